/* Rules: the functions that ops.def names. One family a file: rules_shape.c, rules_place.c, rules_grad.c,
 * rules_cost.c, rules_lower.c. "none" is NULL. */
#ifndef TENON_RULES_H
#define TENON_RULES_H

#include "program/ops.h"

typedef void tn_shape_rule(struct tn_program *p, tn_op op);
typedef int tn_place_rule(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most);
typedef void tn_grad_rule(struct tn_program *p, tn_op op, struct tn_autodiff *ad);
typedef void tn_cost_rule(const struct tn_program *p, tn_op op, double *flops, double *bytes);
typedef void tn_lower_rule(struct tn_program *p, tn_op op);

/* The opcode that a rule goes by: of the core op that a plugin's op is like, or its own. */
static inline uint32_t tn_rule_opcode(const struct tn_program *p, tn_op op)
{
    uint32_t opcode = p->ops[op].opcode, like = tn_op_kind(opcode)->like;
    return like ? like : opcode;
}

#define shape_none NULL
#define place_none NULL
#define grad_none NULL
#define cost_none NULL
#define lower_none NULL

tn_shape_rule shape_embedding, shape_linear, shape_same, shape_same_n, shape_norm, shape_attention, shape_cross_entropy,
    shape_cast, shape_embedding_dw, shape_linear_dx, shape_linear_dw, shape_bias_dw, shape_bias_gelu_dx,
    shape_swiglu_dx, shape_norm_dx, shape_norm_dw, shape_attention_dx, shape_scalar, shape_clip, shape_view, shape_pack,
    shape_add_norm, shape_ce_max, shape_ce_sum, shape_ce_loss, shape_attention_block, shape_attention_block_dx,
    shape_offload, shape_fetch;
tn_place_rule place_embedding, place_linear, place_bias, place_same_linear, place_same_nonlinear, place_norm,
    place_rope, place_attention, place_cross_entropy, place_embedding_dw, place_linear_dx, place_linear_dw,
    place_bias_dw, place_bias_gelu_dx, place_norm_dx, place_norm_dw, place_attention_dx, place_cross_entropy_dx,
    place_count_targets, place_scale_by, place_sumsq, place_optimizer, place_comm, place_dropout, place_attention_block,
    place_attention_block_dx;
/* Rows as rules_place.c writes them, up to a NULL; each may become two. */
int tn_place_rows(const struct tn_program *p, tn_op op, int32_t axis, const char *const *specs, struct tn_row *rows,
                  int most);
tn_grad_rule grad_embedding, grad_linear, grad_bias_add, grad_add, grad_gelu, grad_bias_gelu, grad_swiglu,
    grad_layernorm, grad_rmsnorm, grad_rope, grad_attention, grad_cross_entropy, grad_cast, grad_dropout;
tn_cost_rule cost_memory, cost_linear, cost_attention, cost_cross_entropy, cost_comm, cost_free;
tn_lower_rule lower_cross_entropy, lower_sumsq, lower_comm;

#endif
