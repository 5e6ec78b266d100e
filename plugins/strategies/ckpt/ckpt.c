/* ckpt: activation checkpointing (Chen et al. 2016). Instead of keeping an activation from the forward to the backward
 * pass, the ops that make it run again right before the backward pass needs it. recompute.c does the work, automatic.c
 * chooses what to do; this file has the options and the plugin's table. */
#include "ckpt.h"

#include <stdio.h>
#include <string.h>

static const char *const ways[] = { "full", "selective", NULL };
static const char *const modes[] = { "manual", "auto", NULL };

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "recompute", "selective", 0, 0, ways,
      "full: everything of a layer but its input; selective: the ops and tags listed." },
    { sizeof(struct tn_option), TN_OPT_FLOAT, 0, 0, "ratio", "1", 0, 1, NULL,
      "Share of the layers that it applies to, from the first one." },
    { sizeof(struct tn_option), TN_OPT_LIST, 0, 0, "ops", "attention, layernorm, rmsnorm, gelu, bias_gelu, swiglu", 0,
      0, NULL, "Opcodes that selective runs again." },
    { sizeof(struct tn_option), TN_OPT_LIST, 0, 0, "tags", NULL, 0, 0, NULL,
      "Tags of values whose ops selective runs again." },
    { sizeof(struct tn_option), TN_OPT_BOOL, 0, 0, "resend", "off", 0, 0, NULL,
      "Repeat collectives too, instead of keeping what they delivered." },
    { sizeof(struct tn_option), TN_OPT_ENUM, 0, 0, "mode", "manual", 0, 0, modes,
      "auto: what runs again is the least with which the plan fits [device] memory; recompute, ratio, ops and tags are "
      "not looked at." },
};

static tn_status create(const struct tn_host *host, void **self)
{
    const struct tn_facts_api *facts = host->get_api(host, "tn.facts/1");
    const struct tn_program_api *read = host->get_api(host, "tn.program/1");
    const struct tn_program_edit_api *edit = host->get_api(host, "tn.program_edit/1");
    const struct tn_plan_api *plan = host->get_api(host, "tn.plan/1");
    if (!facts || !read || !plan || !edit || !TN_HAS(edit, claim))
        return host->fail(
            host, TN_UNSUPPORTED,
            "ckpt needs a host with tn.facts/1, tn.program/1, tn.plan/1 and tn.program_edit/1 with claim");
    struct ckpt *ckpt = host->alloc(host, sizeof *ckpt);
    if (!ckpt)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    memset(ckpt, 0, sizeof *ckpt);
    ckpt->host = host;
    ckpt->facts = facts;
    ckpt->read = read;
    ckpt->edit = edit;
    ckpt->plan = plan;
    ckpt->automatic = host->get_int(host, "mode") == 1;
    ckpt->full = host->get_int(host, "recompute") == 0;
    ckpt->ratio = host->get_float(host, "ratio");
    ckpt->resend = host->get_int(host, "resend") != 0;
    ckpt->n_ops = host->get_list(host, "ops", &ckpt->ops);
    ckpt->n_tags = host->get_list(host, "tags", &ckpt->tags);
    *self = ckpt;
    return TN_OK;
}

static void destroy(void *self)
{
    struct ckpt *ckpt = self;
    if (ckpt)
        ckpt->host->release(ckpt->host, ckpt);
}

static tn_status lower(void *self, struct tn_program *program)
{
    const struct ckpt *ckpt = self;
    if (ckpt->automatic)
        return ckpt_automatic(ckpt, program);
    ckpt_check_tags(ckpt, program);
    int32_t layers = (int32_t)(ckpt->ratio * (double)ckpt->facts->get(ckpt->host, "layers", 0) + 0.5);
    const struct ckpt_choice choice = { .full = ckpt->full ? layers : 0,
                                        .some = layers,
                                        .key = ckpt->full     ? "recompute"
                                               : ckpt->n_tags ? "tags"
                                                              : "ops" };
    return ckpt_recompute(ckpt, program, &choice);
}

static const struct tn_strategy table = {
    .struct_size = sizeof(struct tn_strategy),
    .create = create,
    .destroy = destroy,
    .check = ckpt_check,
    .lower = lower,
};

/* They gather again for the backward pass what its copies use, so that the copies must be there. */
static const char *const before[] = { "tp", "fsdp", NULL };
static const char *const needs[] = { "tn.facts/1", "tn.program/1", "tn.program_edit/1", "tn.plan/1", NULL };

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .id = "ckpt",
    .version = "0.1.0",
    .summary = "Activation checkpointing: forward ops run again in the backward pass instead of keeping their results.",
    .build_info = "",
    .table = &table,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .before = before,
    .needs = needs,
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    (void)host;
    return &plugin;
}
