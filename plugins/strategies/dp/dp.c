/* dp: data parallelism. Ranks take shares of the batch; the gradients' type (a sum over the
 * axis) makes resolve reduce them, and lower has those reductions joined.
 *
 * Shares may differ, for ranks of different speed: the loss is divided by the number of
 * target tokens of the whole batch, so the result is the same. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

struct dp {
    const struct tn_host *host;
    const struct tn_facts_api *facts;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    int64_t bucket_bytes; /* 0: each gradient by itself */
    int64_t *shares;      /* of the batch, by rank of the axis; NULL: equal ones */
    int32_t n_shares;
};

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_INT, TN_OPT_AUTO, 0, "size", "auto", 1, 1 << 20, NULL,
      "Ranks that share the batch; auto: all that other strategies leave." },
    { sizeof(struct tn_option), TN_OPT_SIZE, 0, 0, "bucket", "4M", 0, 0, NULL,
      "Gradients are reduced together until they have this many bytes; 0: each by itself." },
    { sizeof(struct tn_option), TN_OPT_LIST, 0, 0, "shares", NULL, 0, 0, NULL,
      "Whole numbers, one a rank: the batch is cut in this ratio (5, 3); empty: equally." },
};

/* Reads "shares"; a word that is no number above 0 is left as 0, which check reports. */
static tn_status read_shares(struct dp *dp)
{
    const struct tn_host *host = dp->host;
    const char *const *items;
    uint32_t n = host->get_list(host, "shares", &items);
    if (n == 0)
        return TN_OK;
    dp->shares = host->alloc(host, n * sizeof *dp->shares);
    if (!dp->shares)
        return host->fail(host, TN_NO_MEMORY, "no memory for %u shares", n);
    dp->n_shares = (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        char *end;
        errno = 0;
        long long share = strtoll(items[i], &end, 10);
        dp->shares[i] = errno || end == items[i] || *end || share < 0 || share > 1000000 ? 0 : share;
    }
    return TN_OK;
}

static void destroy(void *self)
{
    struct dp *dp = self;
    if (!dp)
        return;
    const struct tn_host *host = dp->host;
    host->release(host, dp->shares);
    host->release(host, dp);
}

static tn_status create(const struct tn_host *host, void **self)
{
    struct dp *dp = host->alloc(host, sizeof *dp);
    if (!dp)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    *dp = (struct dp){
        .host = host,
        .facts = host->get_api(host, "tn.facts/1"),
        .read = host->get_api(host, "tn.program/1"),
        .edit = host->get_api(host, "tn.program_edit/1"),
        .bucket_bytes = host->get_int(host, "bucket"),
    };
    tn_status status = read_shares(dp);
    if (status != TN_OK) {
        destroy(dp);
        return status;
    }
    *self = dp;
    return TN_OK;
}

static int64_t sum_of_shares(const struct dp *dp)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < dp->n_shares; i++)
        sum += dp->shares[i];
    return sum;
}

static int check_shares(const struct dp *dp, int32_t size)
{
    const struct tn_host *host = dp->host;
    char what[160], fix[160];
    for (int32_t i = 0; i < dp->n_shares; i++)
        if (dp->shares[i] == 0) {
            snprintf(what, sizeof what, "item %d is no whole number from 1 to 1000000", i + 1);
            host->problem(host, "shares", what, "use numbers such as 5, 3");
            return 0;
        }
    if (dp->n_shares == size)
        return 1;
    snprintf(what, sizeof what, "%d shares for %d ranks", dp->n_shares, size);
    snprintf(fix, sizeof fix, "give %d, or none for equal ones", size);
    host->problem(host, "shares", what, fix);
    return 0;
}

static tn_status check(void *self, int32_t size)
{
    const struct dp *dp = self;
    const struct tn_host *host = dp->host;
    char what[200], fix[200];
    if (dp->n_shares > 0 && !check_shares(dp, size))
        return TN_OK;
    int64_t pieces = dp->n_shares > 0 ? sum_of_shares(dp) : size;
    int64_t batch = dp->facts->get(host, "batch", 0), micro_batches = dp->facts->get(host, "micro_batches", 1);
    int64_t micro_batch = dp->facts->get(host, "micro_batch", micro_batches > 0 ? batch / micro_batches : batch);
    if (micro_batch % pieces == 0)
        return TN_OK;
    int64_t up = (micro_batch + pieces - 1) / pieces * pieces;
    if (dp->n_shares > 0)
        snprintf(what, sizeof what, "a micro-batch of %lld sequences does not divide in %lld, the sum of the shares",
                 (long long)micro_batch, (long long)pieces);
    else
        snprintf(what, sizeof what, "%d does not divide the %lld sequences of a micro-batch", size,
                 (long long)micro_batch);
    snprintf(fix, sizeof fix, "use a [data] batch such as %lld", (long long)(up * micro_batches));
    host->problem(host, dp->n_shares > 0 ? "shares" : "size", what, fix);
    return TN_OK;
}

static void place_input(const struct dp *dp, struct tn_program *program, tn_value v, const struct tn_value_info *info,
                        int32_t axis, uint32_t parts)
{
    for (int32_t dim = 0; dim < info->rank; dim++)
        if (strcmp(info->dims[dim], "batch") == 0)
            dp->edit->place(program, v, axis, TN_SHARD_PARTS(dim, parts));
}

/* Inputs are cut along their batch; params and optimizer states are whole on every rank. */
static tn_status place(void *self, struct tn_program *program)
{
    const struct dp *dp = self;
    int32_t axis = dp->read->axis_find(program, "dp");
    if (axis < 0)
        return dp->host->fail(dp->host, TN_ERROR, "the mesh has no axis dp");
    uint32_t parts = dp->n_shares > 0 ? dp->edit->parts_new(program, dp->shares, dp->n_shares) : 0;
    for (tn_value v = dp->read->value_next(program, 0); v; v = dp->read->value_next(program, v)) {
        struct tn_value_info info = { .struct_size = sizeof info };
        dp->read->value_info(program, v, &info);
        if (info.def)
            continue;
        if (info.kind == TN_KIND_INPUT)
            place_input(dp, program, v, &info, axis, parts);
        else if (info.kind == TN_KIND_PARAM || info.kind == TN_KIND_STATE)
            dp->edit->place(program, v, axis, TN_REPLICATE);
    }
    return TN_OK;
}

/* Gradients are reduced in buckets, each as soon as its last one is complete. */
static tn_status lower(void *self, struct tn_program *program)
{
    const struct dp *dp = self;
    int32_t axis = dp->read->axis_find(program, "dp");
    if (axis >= 0 && TN_HAS(dp->edit, join_sums))
        dp->edit->join_sums(program, axis, (uint64_t)dp->bucket_bytes);
    return TN_OK;
}

static const struct tn_strategy table = {
    .struct_size = sizeof(struct tn_strategy),
    .create = create,
    .destroy = destroy,
    .check = check,
    .place = place,
    .lower = lower,
};

static const char *const needs[] = { "tn.facts/1", "tn.program/1", "tn.program_edit/1", NULL };

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .id = "dp",
    .version = "0.1.0",
    .summary = "Data parallelism: the batch cut over ranks, gradients reduced in buckets.",
    .build_info = "",
    .table = &table,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .needs = needs,
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    (void)host;
    return &plugin;
}
