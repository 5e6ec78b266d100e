/* pp: pipeline parallelism. Each rank of the axis runs the layers of one stage, micro-batch after micro-batch.
 *
 * place.c gives every op its stage; lower.c sends across the cuts; this file has the options, the cut of the layers
 * and the order of micro-batches: gpipe (Huang et al. 2019) or 1f1b (Narayanan et al. 2019). */
#include "pp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const schedules[] = {"gpipe", "1f1b", NULL};

static const struct tn_option options[] = {
    {sizeof(struct tn_option), TN_OPT_INT, TN_OPT_AUTO, 0, "size", "auto", 1, 1024, NULL,
     "Stages, one a rank; auto: all ranks that other strategies leave."},
    {sizeof(struct tn_option), TN_OPT_LIST, 0, 0, "layers", NULL, 0, 0, NULL,
     "Layers of each stage (7, 9, 9, 7); empty: as even as can be, the first stages with the rest."},
    {sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "schedule", "1f1b", 0, 0, schedules,
     "gpipe: all forward, then all backward; 1f1b: as few micro-batches in flight as there are stages ahead."},
};

static tn_status create(const struct tn_host *host, void **self)
{
    const struct tn_facts_api *facts = host->get_api(host, "tn.facts/1");
    const struct tn_program_api *read = host->get_api(host, "tn.program/1");
    const struct tn_program_edit_api *edit = host->get_api(host, "tn.program_edit/1");
    if (!facts || !read || !edit || !TN_HAS(edit, set_kind))
        return host->fail(host, TN_UNSUPPORTED, "pp needs a host with tn.facts/1, tn.program/1 and tn.program_edit/1 with set_kind");
    struct pp *pp = host->alloc(host, sizeof *pp);
    if (!pp)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    memset(pp, 0, sizeof *pp);
    pp->host = host;
    pp->facts = facts;
    pp->read = read;
    pp->edit = edit;
    pp->schedule = (int)host->get_int(host, "schedule");
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
        *out = (struct tn_axis){.struct_size = sizeof *out, .size = size, .name = "pp", .kind = TN_AXIS_STAGES};
    return TN_OK;
}

int pp_cut(const struct pp *pp, int32_t size, int64_t layers, int32_t *first)
{
    first[0] = 0;
    for (int32_t stage = 0; stage < size; stage++) {
        int64_t count = layers / size + (stage < layers % size);
        if (pp->n_layers > 0)
            count = stage < (int32_t)pp->n_layers ? strtoll(pp->layers[stage], NULL, 10) : 0;
        if (count < 1 || first[stage] + count > layers)
            return 0;
        first[stage + 1] = first[stage] + (int32_t)count;
    }
    return first[size] == layers && (pp->n_layers == 0 || (int32_t)pp->n_layers == size);
}

static tn_status check(void *self, int32_t size)
{
    const struct pp *pp = self;
    const struct tn_host *host = pp->host;
    int64_t layers = pp->facts->get(host, "layers", 0);
    int32_t first[PP_MOST_LAYERS + 1];
    char what[160], fix[160];
    if (layers <= 0 || layers > PP_MOST_LAYERS)
        return TN_OK; /* the model says so */
    if (size > layers) {
        snprintf(what, sizeof what, "%d stages for %lld layers leave some without any", size, (long long)layers);
        snprintf(fix, sizeof fix, "use at most %lld", (long long)layers);
        host->problem(host, "size", what, fix);
    } else if (!pp_cut(pp, size, layers, first)) {
        snprintf(what, sizeof what, "these are not %d numbers from 1 that add up to layers = %lld", size, (long long)layers);
        host->problem(host, "layers", what, "give one a stage, or none for even stages");
    }
    return TN_OK;
}

static void slot(struct tn_slot *slots, uint32_t cap, uint32_t *n, uint32_t region, int32_t stage, int32_t micro)
{
    if (*n < cap)
        slots[*n] = (struct tn_slot){.struct_size = sizeof *slots, .region = region, .stage = stage, .micro = micro};
    ++*n;
}

/* Warm-up forwards min(p - r - 1, m), then one forward, one backward, then what is left (1f1b); gpipe warms up with all. */
static tn_status schedule(void *self, const struct tn_program *program, int32_t micro_batches, struct tn_slot *slots,
                          uint32_t cap, uint32_t *n)
{
    const struct pp *pp = self;
    int32_t stage = pp->read->axis_coord(program, pp->read->axis_find(program, "pp"));
    int32_t ahead = pp->size - stage - 1, warm = ahead < micro_batches ? ahead : micro_batches;
    if (pp->schedule == PP_GPIPE)
        warm = micro_batches;
    *n = 0;
    for (int32_t m = 0; m < warm; m++)
        slot(slots, cap, n, TN_REGION_FORWARD, stage, m);
    for (int32_t m = warm; m < micro_batches; m++) {
        slot(slots, cap, n, TN_REGION_FORWARD, stage, m);
        slot(slots, cap, n, TN_REGION_BACKWARD, stage, m - warm);
    }
    for (int32_t m = micro_batches - warm; m < micro_batches; m++)
        slot(slots, cap, n, TN_REGION_BACKWARD, stage, m);
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
    .schedule = schedule,
};

/* It cuts what all others have made. */
static const char *const after[] = {"tp", "cp", "dp", "fsdp", "ckpt", NULL};
static const char *const needs[] = {"tn.facts/1", "tn.program/1", "tn.program_edit/1", NULL};

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .id = "pp",
    .version = "0.1.0",
    .summary = "Pipeline parallelism: layers cut in stages, micro-batches in gpipe or 1f1b order.",
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
