/* offload: what its files share. */
#ifndef TENON_OFFLOAD_H
#define TENON_OFFLOAD_H

#include <tenon/ops.h>
#include <tenon/plan.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

enum { OFFLOAD_EVERYTHING = 0, OFFLOAD_BUDGET = -1 }; /* of keep, beside bytes */

struct offload {
    const struct tn_host *host;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    const struct tn_plan_api *plan;
    uint32_t activations, optimizer;      /* TN_SPACE_*; TN_SPACE_DEVICE: they stay */
    const char *const *tags, *const *ops; /* of activations, and that make them; none of both: any */
    uint32_t n_tags, n_ops;
    int64_t min_size, keep;
    double share;
    int32_t prefetch;
};

/* An activation that would lie idle between its uses in the forward and in the backward pass. */
struct candidate {
    tn_value v;
    tn_op def, last, first; /* its maker, its last forward user (or maker), its first backward user */
    int64_t bytes;
    const char *key; /* of the manifest, that asks for it */
    double idle;     /* seconds from last to first, at nominal rates */
};

static inline void offload_op(const struct offload *o, const struct tn_program *program, tn_op op,
                              struct tn_op_info *info)
{
    *info = (struct tn_op_info){ .struct_size = sizeof *info };
    o->read->op_info(program, op, info);
}

static inline void offload_value(const struct offload *o, const struct tn_program *program, tn_value v,
                                 struct tn_value_info *info)
{
    *info = (struct tn_value_info){ .struct_size = sizeof *info };
    o->read->value_info(program, v, info);
}

/* What moves: the first n of the list, fetched so many layers ahead. */
struct moved {
    const struct candidate *list;
    uint32_t n;
    int32_t prefetch;
};

/* choose.c: the candidates, those first that free most for longest. The caller releases the list. */
tn_status offload_choose(const struct offload *o, struct tn_program *program, struct candidate **list,
                         struct moved *moved);
/* activations.c: copies them out and back. */
tn_status offload_move(const struct offload *o, struct tn_program *program, const struct moved *moved);
/* optimizer.c */
tn_status offload_optimizer(const struct offload *o, struct tn_program *program);

#endif
