/* Precision: which ops compute in the low dtype (autodiff.h says what it requires and establishes).
 *
 *     y = linear(x, w)      =>      prologue: w.bf16 = cast(w)
 *                                   forward:  y = linear(x, w.bf16)
 *
 * The embedding's look-up is where activations become `dtype`; all others follow by their shape rules. */
#include "passes/autodiff.h"

static tn_value cast_once(struct tn_program *p, tn_value w, uint32_t dtype, tn_op first)
{
    const char *name = tn_arena_printf(&p->arena, "%s.%s", p->values[w].name, tn_dtype_name(dtype));
    tn_value cast = tn_value_find(p, name);
    if (cast)
        return cast;
    const struct tn_attr to[] = { TN_ATTR_I("dtype", dtype) };
    p->at_region = TN_REGION_PROLOGUE;
    p->at_layer = p->values[w].layer;
    p->insert_before = first;
    cast = tn_op_new(p, TN_OP_CAST, name, &w, 1, to, 1);
    p->insert_before = 0;
    p->at_layer = -1;
    p->values[cast].like = w;
    return cast;
}

void tn_precision(struct tn_program *p, uint32_t dtype)
{
    if (dtype == TN_F32)
        return;
    tn_op first = p->first;
    for (tn_op op = first; op; op = p->ops[op].next) {
        if (p->ops[op].opcode == TN_OP_EMBEDDING) {
            const struct tn_attr to = TN_ATTR_I("dtype", dtype);
            tn_attr_set(p, op, &to);
        }
        if (p->ops[op].opcode == TN_OP_LINEAR && p->values[p->ops[op].in[1]].dtype == TN_F32)
            tn_set_input(p, op, 1, cast_once(p, p->ops[op].in[1], dtype, first));
        if (tn_op_kind(p->ops[op].opcode)->shape)
            tn_op_kind(p->ops[op].opcode)->shape(p, op);
    }
}
