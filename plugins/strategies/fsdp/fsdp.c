/* fsdp: fully sharded data parallelism (Rajbhandari et al. 2020, ZeRO; Zhao et al. 2023). Params, gradients and
 * optimizer states are cut flat over the ranks that share the batch; params are gathered for the ops that use them.
 * With a dp axis beside it, it is hybrid sharding: cut along fsdp, whole along dp.
 *
 * place.c says how values lie; resolve finds the collectives; lower.c says when they run, unit by unit, and so how long
 * gathered params live. */
#include "fsdp.h"

#include <stdio.h>
#include <string.h>

static const char *const levels[] = { "optimizer", "gradients", "full", NULL };

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_INT, TN_OPT_AUTO, 0, "size", "auto", 1, 1 << 20, NULL,
      "Ranks that share the model's state and the batch; auto: all that other strategies leave." },
    { sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "level", "full", 0, 0, levels,
      "What is cut: optimizer (states and master params), gradients (these too), full (params are gathered for each "
      "use)." },
    { sizeof(struct tn_option), TN_OPT_INT, 0, 0, "prefetch", "1", 0, 64, NULL,
      "Units ahead of their use that params are gathered, with level full; above 0 gradients are reduced while the "
      "next "
      "unit computes." },
    { sizeof(struct tn_option), TN_OPT_BOOL, 0, 0, "reshard", "on", 0, 0, NULL,
      "Let gathered params go after their use and gather again for the next one, with level full." },
    { sizeof(struct tn_option), TN_OPT_LIST, 0, 0, "units", NULL, 0, 0, NULL,
      "What is gathered and reduced together: of each layer the params with the same one of these words in their name, "
      "and the rest; empty: each layer." },
};

static tn_status create(const struct tn_host *host, void **self)
{
    struct fsdp *fsdp = host->alloc(host, sizeof *fsdp);
    if (!fsdp)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    *fsdp = (struct fsdp){
        .host = host,
        .facts = host->get_api(host, "tn.facts/1"),
        .read = host->get_api(host, "tn.program/1"),
        .edit = host->get_api(host, "tn.program_edit/1"),
        .level = (int)host->get_int(host, "level"),
        .reshard = host->get_int(host, "reshard") != 0,
        .prefetch = (int32_t)host->get_int(host, "prefetch"),
    };
    fsdp->n_units = host->get_list(host, "units", &fsdp->units);
    *self = fsdp;
    return TN_OK;
}

static void destroy(void *self)
{
    struct fsdp *fsdp = self;
    if (fsdp)
        fsdp->host->release(fsdp->host, fsdp);
}

static tn_status check(void *self, int32_t size)
{
    const struct fsdp *fsdp = self;
    const struct tn_host *host = fsdp->host;
    int64_t rows = fsdp->facts->get(host, "micro_batch", 0), micro_batches = fsdp->facts->get(host, "micro_batches", 1);
    char what[160], fix[160];
    if (rows % size == 0)
        return TN_OK;
    snprintf(what, sizeof what, "%d does not divide the %lld sequences of a micro-batch", size, (long long)rows);
    int64_t up = (rows + size - 1) / size * size;
    snprintf(fix, sizeof fix, "use a [data] batch such as %lld", (long long)(up * micro_batches));
    host->problem(host, "size", what, fix);
    return TN_OK;
}

static const struct tn_strategy table = {
    .struct_size = sizeof(struct tn_strategy),
    .create = create,
    .destroy = destroy,
    .check = check,
    .place = fsdp_place,
    .lower = fsdp_lower,
};

static const char *const needs[] = { "tn.facts/1", "tn.program/1", "tn.program_edit/1", NULL };

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .id = "fsdp",
    .version = "0.1.0",
    .summary = "Fully sharded data parallelism (ZeRO 1, 2, 3): states, gradients and params cut over the ranks.",
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
