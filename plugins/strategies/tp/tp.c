/* tp: tensor parallelism (Shoeybi et al. 2019) as placements. The plugin's table and axes.
 *
 * place.c says who owns which part of each param; resolve finds the collectives. With
 * sequence_parallel (Korthikanti et al. 2022) the residual stream is cut along the sequence,
 * and lower.c gathers again for the backward pass what would be costly to keep. */
#include <stddef.h>

#include "tp.h"

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_INT, TN_OPT_AUTO, 0, "size", "auto", 1, 1 << 20, NULL,
      "Ranks that share each layer; auto: all that other strategies leave." },
    { sizeof(struct tn_option), TN_OPT_BOOL, 0, 0, "sequence_parallel", "off", 0, 0, NULL,
      "Cut the residual stream along the sequence between the layers' cut parts: less memory, same traffic." },
    { sizeof(struct tn_option), TN_OPT_SIZE, 0, 0, "bucket", "4M", 0, 0, NULL,
      "Gradients that are sums over these ranks are added up together until they have this many bytes; 0: each by "
      "itself." },
};

static tn_status create(const struct tn_host *host, void **self)
{
    struct tp *tp = host->alloc(host, sizeof *tp);
    if (!tp)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    *tp = (struct tp){
        .host = host,
        .facts = host->get_api(host, "tn.facts/1"),
        .read = host->get_api(host, "tn.program/1"),
        .edit = host->get_api(host, "tn.program_edit/1"),
        .sequence_parallel = host->get_int(host, "sequence_parallel") != 0,
        .bucket_bytes = (uint64_t)host->get_int(host, "bucket"),
    };
    *self = tp;
    return TN_OK;
}

static void destroy(void *self)
{
    struct tp *tp = self;
    if (tp)
        tp->host->release(tp->host, tp);
}

void tp_axes_of(const struct tp *tp, int32_t size, struct tp_axes *axes)
{
    int64_t kv_heads = tp->facts->get(tp->host, "kv_heads", size);
    int factored = kv_heads > 0 && kv_heads % size != 0 && size % kv_heads == 0;
    if (factored && kv_heads > 1)
        *axes =
            (struct tp_axes){ 2, { (int32_t)(size / kv_heads), (int32_t)kv_heads }, { "tp_rep", "tp_kv" }, { 0, 1 } };
    else
        *axes = (struct tp_axes){ 1, { size, 0 }, { "tp", NULL }, { !factored, 0 } };
}

static tn_status axes(void *self, int32_t size, struct tn_axis *out, int32_t cap, int32_t *n)
{
    struct tp *tp = self;
    tp_axes_of(tp, size, &tp->axes);
    *n = tp->axes.n;
    for (int32_t a = 0; a < tp->axes.n && a < cap; a++) {
        out[a].struct_size = sizeof out[a];
        out[a].size = tp->axes.size[a];
        out[a].name = tp->axes.name[a];
    }
    return TN_OK;
}

static const struct tn_strategy table = {
    .struct_size = sizeof(struct tn_strategy),
    .create = create,
    .destroy = destroy,
    .axes = axes,
    .check = tp_check,
    .place = tp_place,
    .lower = tp_lower,
};

static const char *const needs[] = { "tn.facts/1", "tn.program/1", "tn.program_edit/1", NULL };

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .id = "tp",
    .version = "0.1.0",
    .summary = "Tensor parallelism: heads, MLP and vocabulary cut over ranks.",
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
