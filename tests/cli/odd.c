/* odd: a strategy for tests of what the core refuses. It does to the program what its option says. */
#include <stdio.h>
#include <string.h>

#include <tenon/host.h>
#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

#ifndef VERSION
#define VERSION "1.0.0"
#endif

enum {
    NOTHING,
    BATCH_OF_PARAM,
    PARTIAL_INPUT,
    UNEVEN,
    REMOVE_USED,
    UNKNOWN_VALUE,
    WRONG_SHAPE,
    NO_MESSAGE,
    TAKE_HEADS,
    SKIP_REDUCTION
};
static const char *const deeds[] = {
    "nothing",     "batch_of_param", "partial_input", "uneven",         "remove_used", "unknown_value",
    "wrong_shape", "no_message",     "take_heads",    "skip_reduction", NULL
};

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_INT, 0, 0, "size", "2", 1, 64, NULL, "Ranks." },
    { sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "deed", "nothing", 0, 0, deeds, "What it does to the program." },
};

struct odd {
    const struct tn_host *host;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    int64_t deed;
};

static tn_status create(const struct tn_host *host, void **self)
{
    struct odd *odd = host->alloc(host, sizeof *odd);
    if (!odd)
        return host->fail(host, TN_NO_MEMORY, "no memory");
    *odd = (struct odd){ host, host->get_api(host, "tn.program/1"), host->get_api(host, "tn.program_edit/1"),
                         host->get_int(host, "deed") };
    *self = odd;
    return TN_OK;
}

static void destroy(void *self)
{
    struct odd *odd = self;
    if (odd)
        odd->host->release(odd->host, odd);
}

/* The first forward op of an opcode. */
static tn_op find_op(const struct odd *odd, const struct tn_program *p, uint32_t opcode, struct tn_op_info *info)
{
    for (tn_op op = odd->read->op_next(p, 0); op; op = odd->read->op_next(p, op)) {
        *info = (struct tn_op_info){ .struct_size = sizeof *info };
        odd->read->op_info(p, op, info);
        if (info->opcode == opcode && info->region == TN_REGION_FORWARD)
            return op;
    }
    return 0;
}

static tn_value find_param(const struct odd *odd, const struct tn_program *p, const char *part)
{
    for (tn_value v = odd->read->value_next(p, 0); v; v = odd->read->value_next(p, v)) {
        struct tn_value_info info = { .struct_size = sizeof info };
        odd->read->value_info(p, v, &info);
        if (info.kind == TN_KIND_PARAM && strstr(info.name, part))
            return v;
    }
    return 0;
}

static tn_status place(void *self, struct tn_program *p)
{
    struct odd *odd = self;
    struct tn_op_info info;
    int32_t axis = odd->read->axis_find(p, "odd");
    tn_op op = find_op(odd, p, TN_OP_LINEAR, &info);
    switch (odd->deed) {
    case BATCH_OF_PARAM: /* there is no third dimension */
        odd->edit->place(p, find_param(odd, p, "q_proj"), axis, TN_SHARD(2));
        return TN_OK;
    case PARTIAL_INPUT: /* norms of a sum that is not there yet */
        odd->edit->place(p, find_param(odd, p, "embed"), axis, TN_PARTIAL(TN_RED_SUM));
        return TN_OK;
    case UNEVEN: odd->edit->place(p, find_param(odd, p, "q_proj"), axis, TN_SHARD(0)); return TN_OK;
    case REMOVE_USED: odd->edit->op_remove(p, op); return TN_OK;
    case UNKNOWN_VALUE: odd->edit->set_input(p, op, 0, 999999); return TN_OK;
    case WRONG_SHAPE:
        odd->edit->op(p, TN_OP_ADD, "odd.sum", (tn_value[]){ info.out[0], info.in[1] }, 2, NULL, 0);
        return TN_OK;
    case NO_MESSAGE: return TN_ERROR;
    case TAKE_HEADS: /* what tp cuts otherwise */
        odd->edit->place(p, find_param(odd, p, "q_proj"), odd->read->axis_find(p, "tp"), TN_SHARD(1));
        return TN_OK;
    default: return TN_OK;
    }
}

/* The sum that tp needs is left out: what comes after takes each rank's term for the whole. */
static tn_status lower(void *self, struct tn_program *p)
{
    struct odd *odd = self;
    struct tn_op_info info;
    if (odd->deed == SKIP_REDUCTION && find_op(odd, p, TN_OP_ALL_REDUCE, &info))
        odd->edit->replace_uses(p, info.out[0], info.in[0], 0);
    return TN_OK;
}

static const struct tn_strategy table = {
    .struct_size = sizeof table,
    .create = create,
    .destroy = destroy,
    .place = place,
    .lower = lower,
};

static const struct tn_plugin plugin = {
    .magic = TN_PLUGIN_MAGIC,
    .struct_size = sizeof plugin,
    .abi_major = TN_ABI_MAJOR,
    .abi_minor = TN_ABI_MINOR,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .option_stride = sizeof(struct tn_option),
    .id = "odd",
    .version = VERSION,
    .summary = "What the core must refuse.",
    .build_info = "",
    .table = &table,
    .options = options,
    .option_count = sizeof options / sizeof *options,
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host);

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    return &plugin;
}
