/* fsdp: what its files share. */
#ifndef TENON_FSDP_H
#define TENON_FSDP_H

#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

enum { FSDP_OPTIMIZER, FSDP_GRADIENTS, FSDP_FULL }; /* as the option's choices */

struct fsdp {
    const struct tn_host *host;
    const struct tn_facts_api *facts;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    int level, reshard;
    int32_t prefetch;
    const char *const *units; /* words in names of params; none: by layer */
    uint32_t n_units;
};

/* place.c */
tn_status fsdp_place(void *self, struct tn_program *program);
/* lower.c */
tn_status fsdp_lower(void *self, struct tn_program *program);

static inline void fsdp_op(const struct fsdp *fsdp, const struct tn_program *program, tn_op op, struct tn_op_info *info)
{
    *info = (struct tn_op_info){ .struct_size = sizeof *info };
    fsdp->read->op_info(program, op, info);
}

static inline void fsdp_value(const struct fsdp *fsdp, const struct tn_program *program, tn_value v,
                              struct tn_value_info *info)
{
    *info = (struct tn_value_info){ .struct_size = sizeof *info };
    fsdp->read->value_info(program, v, info);
}

#endif
