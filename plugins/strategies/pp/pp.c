/* pp: pipeline parallelism. Each rank of the axis runs the layers of one stage, micro-batch after micro-batch.
 *
 * cut.c says which layers each stage has, place.c gives every op its stage, tied.c copies shared params; lower.c sends
 * across the cuts, weight.c puts weight gradients off; order.c is the order of micro-batches. This file has the
 * options. */
#include "pp.h"

#include <stdio.h>

static const char *const schedules[] = { "gpipe", "1f1b", "interleaved", "zero-bubble", NULL };

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_INT, TN_OPT_AUTO, 0, "size", "auto", 1, 1024, NULL,
      "Stages, one a rank; auto: all ranks that other strategies leave." },
    { sizeof(struct tn_option), TN_OPT_LIST, 0, 0, "layers", NULL, 0, 0, NULL,
      "Layers of each stage (7, 9, 9, 7); cost: stages of equal FLOPs, embedding and head counted; empty: equal "
      "numbers, the "
      "first stages with the rest." },
    { sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "schedule", "1f1b", 0, 0, schedules,
      "gpipe: all forward, then all backward; 1f1b: as few micro-batches in flight as there are stages ahead; "
      "interleaved: 1f1b, "
      "each rank with several stages; zero-bubble: 1f1b, weight gradients later, where ranks would wait." },
    { sizeof(struct tn_option), TN_OPT_INT, TN_OPT_AUTO, 0, "chunks", "auto", 1, PP_MOST_CHUNKS, NULL,
      "Stages of each rank with schedule = interleaved: rank r of n has stages r, r + n, ..; auto: 2." },
};

static tn_status create(const struct tn_host *host, void **self)
{
    struct pp *pp = host->alloc(host, sizeof *pp);
    if (!pp)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    *pp = (struct pp){
        .host = host,
        .facts = host->get_api(host, "tn.facts/1"),
        .read = host->get_api(host, "tn.program/1"),
        .edit = host->get_api(host, "tn.program_edit/1"),
        .schedule = (int)host->get_int(host, "schedule"),
        .chunks = (int32_t)host->get_int(host, "chunks"),
    };
    pp->n_layers = host->get_list(host, "layers", &pp->layers);
    *self = pp;
    return TN_OK;
}

static void destroy(void *self)
{
    struct pp *pp = self;
    if (pp)
        pp->host->release(pp->host, pp);
}

static tn_status axes(void *self, int32_t size, struct tn_axis *out, int32_t cap, int32_t *n)
{
    struct pp *pp = self;
    pp->size = size;
    *n = 1;
    if (cap > 0)
        *out = (struct tn_axis){ .struct_size = sizeof *out, .size = size, .name = "pp", .kind = TN_AXIS_STAGES };
    return TN_OK;
}

static void check_chunks(const struct pp *pp)
{
    const struct tn_host *host = pp->host;
    char what[160];
    if (pp->schedule == PP_INTERLEAVED && pp->chunks == 1)
        host->problem(host, "chunks", "1 chunk a rank is nothing to interleave", "use 2 or more, or schedule = 1f1b");
    if (pp->schedule != PP_INTERLEAVED && pp->chunks > 1) {
        snprintf(what, sizeof what, "%d chunks a rank, but schedule = %s runs one", pp->chunks,
                 schedules[pp->schedule]);
        host->problem(host, "chunks", what, "leave it out, or use schedule = interleaved");
    }
}

static tn_status check(void *self, int32_t size)
{
    const struct pp *pp = self;
    const struct tn_host *host = pp->host;
    int64_t layers = pp->facts->get(host, "layers", 0);
    int32_t first[PP_MOST_LAYERS + 1], stages = pp_stages(pp, size);
    char what[160], fix[160];
    check_chunks(pp);
    if (layers <= 0 || layers > PP_MOST_LAYERS)
        return TN_OK; /* the model says so */
    if (stages > layers) {
        snprintf(what, sizeof what, "%d ranks with %d stages each are %d stages, for %lld layers: some would have none",
                 size, stages / size, stages, (long long)layers);
        int n = snprintf(fix, sizeof fix, "use at most %lld", (long long)layers * size / stages);
        if (stages > size && layers / size >= 2)
            snprintf(fix + n, sizeof fix - (size_t)n, ", or chunks = %lld", (long long)layers / size);
        else if (stages > size && layers >= size)
            snprintf(fix + n, sizeof fix - (size_t)n, ", or schedule = 1f1b");
        host->problem(host, "size", what, fix);
    } else if (!pp_cut(pp, stages, layers, first)) {
        snprintf(what, sizeof what, "these are not %d numbers from 1 that add up to layers = %lld", stages,
                 (long long)layers);
        host->problem(host, "layers", what, "give one a stage, cost for stages of equal cost, or none for even ones");
    }
    return TN_OK;
}

static const struct tn_strategy table = {
    .struct_size = sizeof(struct tn_strategy),
    .create = create,
    .destroy = destroy,
    .axes = axes,
    .check = check,
    .place = pp_place,
    .lower = pp_lower,
    .schedule = pp_schedule,
};

/* It cuts what all others have made. */
static const char *const after[] = { "tp", "cp", "dp", "fsdp", "ckpt", NULL };
static const char *const needs[] = { "tn.facts/1", "tn.program/1", "tn.program_edit/1", NULL };

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .id = "pp",
    .version = "0.1.0",
    .summary = "Pipeline parallelism: layers cut in stages, micro-batches through them in one of four orders.",
    .build_info = "",
    .table = &table,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .after = after,
    .needs = needs,
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    (void)host;
    return &plugin;
}
