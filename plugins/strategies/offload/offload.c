/* offload: activations and optimizer state elsewhere while they are idle, in host memory or on disk (Rajbhandari et al.
 * 2021, Ren et al. 2021). choose.c picks activations, activations.c and optimizer.c put the copies into the program;
 * this file has the options and the plugin's table. When a copy runs and who waits for it is the memory plan's matter.
 */
#include "offload.h"

#include <string.h>

static const char *const spaces[] = { "off", "host", "disk", NULL }; /* in the order of TN_SPACE_* */

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "activations", "host", 0, 0, spaces,
      "Where activations wait for the backward pass." },
    { sizeof(struct tn_option), TN_OPT_LIST, 0, 0, "tags", NULL, 0, 0, NULL,
      "Tags of the activations that move; with ops empty too: any." },
    { sizeof(struct tn_option), TN_OPT_LIST, 0, 0, "ops", NULL, 0, 0, NULL, "Opcodes whose results move." },
    { sizeof(struct tn_option), TN_OPT_SIZE, 0, 0, "min_size", "64K", 0, 1e15, NULL, "Smaller activations stay." },
    { sizeof(struct tn_option), TN_OPT_FLOAT, 0, 0, "share", "1", 0, 1, NULL,
      "Share of their bytes that moves, what is idle longest first." },
    { sizeof(struct tn_option), TN_OPT_SIZE, TN_OPT_AUTO, 0, "keep", "0", 0, 1e15, NULL,
      "Bytes that the device may need: only what does not fit moves; auto: [device] memory; 0: all that share says." },
    { sizeof(struct tn_option), TN_OPT_INT, 0, 0, "prefetch", "1", 0, 64, NULL,
      "Layers ahead of its first use in the backward pass that an activation is fetched, and updates ahead, state; "
      "none "
      "where keep could not be met otherwise." },
    { sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "optimizer", "off", 0, 0, spaces,
      "Where optimizer state is between its updates." },
};

static tn_status create(const struct tn_host *host, void **self)
{
    const struct tn_program_api *read = host->get_api(host, "tn.program/1");
    const struct tn_program_edit_api *edit = host->get_api(host, "tn.program_edit/1");
    const struct tn_plan_api *plan = host->get_api(host, "tn.plan/1");
    if (!read || !edit || !TN_HAS(edit, claim) || !plan)
        return host->fail(host, TN_UNSUPPORTED,
                          "offload needs a host with tn.program/1, tn.plan/1 and tn.program_edit/1 with claim");
    struct offload *o = host->alloc(host, sizeof *o);
    if (!o)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    *o = (struct offload){
        .host = host,
        .read = read,
        .edit = edit,
        .plan = plan,
        .activations = (uint32_t)host->get_int(host, "activations"),
        .optimizer = (uint32_t)host->get_int(host, "optimizer"),
        .min_size = host->get_int(host, "min_size"),
        .keep = host->get_int(host, "keep"),
        .share = host->get_float(host, "share"),
        .prefetch = (int32_t)host->get_int(host, "prefetch"),
    };
    o->n_tags = host->get_list(host, "tags", &o->tags);
    o->n_ops = host->get_list(host, "ops", &o->ops);
    *self = o;
    return TN_OK;
}

static void destroy(void *self)
{
    struct offload *o = self;
    if (o)
        o->host->release(o->host, o);
}

static tn_status check(void *self, int32_t size)
{
    const struct offload *o = self;
    (void)size;
    if (o->keep != OFFLOAD_EVERYTHING && o->share < 1)
        o->host->problem(o->host, "share", "keep says as well how much moves", "give one of the two");
    for (int i = 0; i < 2; i++)
        if ((i ? o->n_ops : o->n_tags) > 0 && o->activations == TN_SPACE_DEVICE)
            o->host->problem(o->host, i ? "ops" : "tags", "with activations = off nothing of these moves",
                             "use activations = host, or an empty list");
    if (o->keep == OFFLOAD_BUDGET && o->plan->budget(o->host) == 0)
        o->host->problem(o->host, "keep", "auto asks for [device] memory, which nobody says",
                         "set it, or give keep in bytes");
    return TN_OK;
}

static tn_status lower(void *self, struct tn_program *program)
{
    const struct offload *o = self;
    struct candidate *list = NULL;
    struct moved moved = { .n = 0 };
    tn_status status = o->optimizer != TN_SPACE_DEVICE ? offload_optimizer(o, program) : TN_OK;
    if (status == TN_OK && o->activations != TN_SPACE_DEVICE &&
        !(o->keep != OFFLOAD_EVERYTHING && o->plan->unaided(program)))
        status = offload_choose(o, program, &list, &moved);
    if (status == TN_OK)
        status = offload_move(o, program, &moved);
    o->host->release(o->host, list);
    return status;
}

static double away(void *self, uint64_t bytes)
{
    const struct offload *o = self;
    double rate = o->activations == TN_SPACE_HOST ? TN_NOMINAL_HOST_BYTES : TN_NOMINAL_DISK_BYTES;
    if (o->activations == TN_SPACE_DEVICE || (int64_t)bytes < o->min_size)
        return -1;
    return 2 * (double)bytes / rate;
}

static const struct tn_strategy table = {
    .struct_size = sizeof(struct tn_strategy),
    .create = create,
    .destroy = destroy,
    .check = check,
    .lower = lower,
    .away = away,
};

/* It moves what all others have left to be kept. */
static const char *const after[] = { "tp", "cp", "dp", "fsdp", "ckpt", "pp", NULL };
static const char *const needs[] = { "tn.program/1", "tn.program_edit/1", "tn.plan/1", NULL };

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .id = "offload",
    .version = "0.1.0",
    .summary = "Off-loading: activations and optimizer state in host memory or on disk while they are idle.",
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
