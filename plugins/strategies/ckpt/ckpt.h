/* ckpt: what its files share. */
#ifndef TENON_CKPT_H
#define TENON_CKPT_H

#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

struct ckpt {
    const struct tn_host *host;
    const struct tn_facts_api *facts;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    int full, resend;
    double ratio;
    const char *const *ops, *const *tags; /* of selective */
    uint32_t n_ops, n_tags;
};

/* check.c */
tn_status ckpt_check(void *self, int32_t size);
/* recompute.c */
tn_status ckpt_lower(void *self, struct tn_program *program);

#endif
