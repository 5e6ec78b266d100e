/* A strategy with an op of its own, as a third party would write it: swiglu becomes swap.swiglu for as long as programs
 * are placed, and with `lower = off` for ever, so that no device can run it. */
#include <string.h>

#include <tenon/op_register.h>
#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

struct swap {
    const struct tn_host *host;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    uint32_t opcode;
};

static const struct tn_op_definition swiglu = {
    .struct_size = sizeof swiglu,
    .like = TN_OP_SWIGLU,
    .name = "swap.swiglu",
    .ins = "g u",
    .outs = "y",
    .attrs = "",
    .alias = "",
    .doc = "swiglu by another name.",
};

static tn_status create(const struct tn_host *host, void **self)
{
    const struct tn_ops_api *ops = host->get_api(host, "tn.ops/1");
    struct swap *swap = host->alloc(host, sizeof *swap);
    if (!swap)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    swap->host = host;
    swap->read = host->get_api(host, "tn.program/1");
    swap->edit = host->get_api(host, "tn.program_edit/1");
    tn_status status = ops->add(host, &swiglu, &swap->opcode);
    if (status == TN_OK)
        *self = swap;
    else
        host->release(host, swap);
    return status;
}

static void destroy(void *self)
{
    struct swap *swap = self;
    if (swap)
        swap->host->release(swap->host, swap);
}

static void rename_all(const struct swap *swap, struct tn_program *program, uint32_t from, uint32_t to)
{
    for (tn_op op = swap->read->op_next(program, 0); op; op = swap->read->op_next(program, op)) {
        struct tn_op_info info = { .struct_size = sizeof info };
        swap->read->op_info(program, op, &info);
        if (info.opcode == from)
            swap->edit->set_opcode(program, op, to);
    }
}

static tn_status place(void *self, struct tn_program *program)
{
    const struct swap *swap = self;
    rename_all(swap, program, TN_OP_SWIGLU, swap->opcode);
    return TN_OK;
}

static tn_status lower(void *self, struct tn_program *program)
{
    const struct swap *swap = self;
    if (swap->host->get_int(swap->host, "lower"))
        rename_all(swap, program, swap->opcode, TN_OP_SWIGLU);
    return TN_OK;
}

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_BOOL, 0, 0, "lower", "on", 0, 0, NULL, "Replace the op again." },
};

static const struct tn_strategy table = {
    .struct_size = sizeof(struct tn_strategy),
    .create = create,
    .destroy = destroy,
    .place = place,
    .lower = lower,
};

static const char *const needs[] = { "tn.program/1", "tn.program_edit/1", "tn.ops/1", NULL };

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,   .min_host_minor = 1, .kind = TN_PLUGIN_STRATEGY,
    .id = "swap",      .version = "1",      .summary = "A test.",
    .build_info = "",  .table = &table,     .options = options,
    .option_count = 1, .needs = needs,
};

TN_EXPORT const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    return &plugin;
}
