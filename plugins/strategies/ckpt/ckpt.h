/* ckpt: what its files share. */
#ifndef TENON_CKPT_H
#define TENON_CKPT_H

#include <tenon/op_register.h>
#include <tenon/ops.h>
#include <tenon/plan.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

struct ckpt {
    const struct tn_host *host;
    const struct tn_facts_api *facts;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    const struct tn_plan_api *plan;
    int automatic, full, resend;
    double ratio;
    const char *const *ops, *const *tags; /* of selective */
    uint32_t n_ops, n_tags;
};

/* What runs again: in layers below `full` everything but the layer's input, in those below `some` the listed ops, or
 * those of `cheap`. */
struct ckpt_choice {
    int32_t full, some;
    const uint8_t *cheap; /* by op, up to `most`; NULL: the lists of the options say */
    tn_op most;
    const char *key; /* the option that a claim is by; NULL: a trial, nothing is claimed */
};

/* check.c */
tn_status ckpt_check(void *self, int32_t size);
void ckpt_check_tags(const struct ckpt *ckpt, const struct tn_program *program);
/* recompute.c */
tn_status ckpt_recompute(const struct ckpt *ckpt, struct tn_program *program, const struct ckpt_choice *choice);
/* automatic.c: finds what is least to run again, and does it. */
tn_status ckpt_automatic(const struct ckpt *ckpt, struct tn_program *program);

#endif
