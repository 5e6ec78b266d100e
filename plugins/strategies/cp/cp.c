/* cp: context parallelism. Each rank of the axis has a part of every sequence; only attention looks across.
 *
 * place.c cuts the inputs along the sequence and makes attention an op of its own, cp.attention, whose ranks talk to
 * each other; lower.c replaces it by blocks of attention and messages: around a ring (Liu et al. 2023), or after
 * gathering all keys (Dubey et al. 2024). With all_to_all (Jacobs et al. 2023) attention stays as it is, and types do
 * the exchange. */
#include <string.h>

#include "cp.h"

static const char *const methods[] = { "ring", "all_gather", "all_to_all", NULL };
static const char *const zigzag[] = { "auto", "on", "off", NULL };

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_INT, TN_OPT_AUTO, 0, "size", "auto", 1, 1024, NULL,
      "Ranks that share each sequence; auto: all that other strategies leave." },
    { sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "method", "ring", 0, 0, methods,
      "ring: keys and values go around while attention runs; all_gather: all are gathered first; all_to_all: attention "
      "has whole sequences of some heads." },
    { sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "zigzag", "auto", 0, 0, zigzag,
      "Give each rank one run of tokens from the front and one from the back, so that causal attention is as much work "
      "on each; auto: but for all_to_all, where it is so anyway." },
    { sizeof(struct tn_option), TN_OPT_BOOL, 0, 0, "regather", "on", 0, 0, NULL,
      "all_gather: gather keys and values again for the backward pass instead of keeping those of all ranks." },
    { sizeof(struct tn_option), TN_OPT_SIZE, 0, 0, "bucket", "4M", 0, 0, NULL,
      "Gradients are reduced together until they have this many bytes; 0: each by itself." },
};

static const struct tn_op_definition attention = {
    .struct_size = sizeof(struct tn_op_definition),
    .like = TN_OP_ATTENTION,
    .flags = TN_OP_COMMUNICATES,
    .name = "cp.attention",
    .ins = "q k v start?",
    .outs = "o lse",
    .attrs = "!scale head_dim causal axis",
    .alias = "",
    .doc = "Attention over sequences that are cut along `axis`.",
    .rows = cp_rows,
};

static const struct tn_op_definition attention_dx = {
    .struct_size = sizeof(struct tn_op_definition),
    .like = TN_OP_ATTENTION_DX,
    .flags = TN_OP_COMMUNICATES,
    .name = "cp.attention_dx",
    .ins = "do q k v o lse start?",
    .outs = "dq dk dv",
    .attrs = "!scale head_dim causal axis",
    .alias = "",
    .doc = "Its gradients.",
    .rows = cp_rows,
};

static tn_status register_ops(struct cp *cp)
{
    const struct tn_ops_api *ops = cp->host->get_api(cp->host, "tn.ops/1");
    tn_status status = ops->add(cp->host, &attention, &cp->attention);
    return status == TN_OK ? ops->add(cp->host, &attention_dx, &cp->attention_dx) : status;
}

static tn_status create(const struct tn_host *host, void **self)
{
    const struct tn_program_edit_api *edit = host->get_api(host, "tn.program_edit/1");
    struct cp *cp = host->alloc(host, sizeof *cp);
    if (!cp)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    memset(cp, 0, sizeof *cp);
    cp->host = host;
    cp->facts = host->get_api(host, "tn.facts/1");
    cp->read = host->get_api(host, "tn.program/1");
    cp->edit = edit;
    cp->method = (int)host->get_int(host, "method");
    cp->zigzag = (int)host->get_int(host, "zigzag");
    cp->regather = (int)host->get_int(host, "regather");
    cp->bucket_bytes = (uint64_t)host->get_int(host, "bucket");
    tn_status status = edit && TN_HAS(edit, set_opcode)
                           ? register_ops(cp)
                           : host->fail(host, TN_UNSUPPORTED, "cp needs a host with tn.program_edit/1 with set_opcode");
    if (status == TN_OK)
        *self = cp;
    else
        host->release(host, cp);
    return status;
}

static void destroy(void *self)
{
    struct cp *cp = self;
    if (cp)
        cp->host->release(cp->host, cp);
}

static const struct tn_strategy table = {
    .struct_size = sizeof(struct tn_strategy),
    .create = create,
    .destroy = destroy,
    .check = cp_check,
    .place = cp_place,
    .lower = cp_lower,
};

/* tp may cut what is left of a sequence; ckpt copies cp.attention as one op. */
static const char *const after[] = { "tp", "ckpt", NULL };
static const char *const needs[] = { "tn.facts/1", "tn.program/1", "tn.program_edit/1", "tn.ops/1", NULL };

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .id = "cp",
    .version = "0.1.0",
    .summary = "Context parallelism: sequences cut over ranks, with ring, all-gather or all-to-all attention.",
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
