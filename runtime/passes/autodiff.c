/* Autodiff: the backward region from the forward one (autodiff.h says what it requires and establishes).
 *
 * Walks the forward ops from last to first; each op's gradient rule (rules_grad.c) adds backward ops. Gradients of
 * activations that have several users are added up; those of params are accumulated in place.
 *
 *     y = linear(x, w)      =>      x.grad  = linear_dx(y.grad, w)
 *                                   grad.w' = linear_dw(x, y.grad, grad.w)
 */
#include "passes/autodiff.h"

#include <string.h>

tn_value tn_grad_op(struct tn_program *p, tn_op of, const char *suffix, uint32_t opcode, const tn_value *in,
                    uint32_t n_in, const struct tn_attr *attrs, uint32_t n_attrs)
{
    const char *name = tn_arena_printf(&p->arena, "%s.%s", p->ops[of].name, suffix);
    tn_value out = tn_op_new(p, opcode, name, in, n_in, attrs, n_attrs);
    p->ops[p->n_ops].source = of;
    return out;
}

void tn_grad_add(struct tn_program *p, struct tn_autodiff *ad, tn_value v, tn_value dv)
{
    if (!ad->needs[v])
        return;
    if (!p->values[dv].grad_of) /* one that is passed on stays its first one's */
        p->values[dv].grad_of = v;
    if (ad->grad[v]) {
        const char *name = tn_arena_printf(&p->arena, "%s.grad.%u", p->values[v].name, dv);
        dv = tn_op_new(p, TN_OP_ADD, name, (tn_value[]){ ad->grad[v], dv }, 2, NULL, 0);
        p->values[dv].grad_of = v;
    }
    ad->grad[v] = dv;
}

/* The param whose cast w is, or w. */
static tn_value param_of(const struct tn_program *p, tn_value w)
{
    tn_op def = p->values[w].def;
    return def && p->ops[def].opcode == TN_OP_CAST && p->ops[def].region == TN_REGION_PROLOGUE ? p->ops[def].in[0] : w;
}

tn_value tn_grad_acc(struct tn_program *p, struct tn_autodiff *ad, tn_value w)
{
    tn_value param = param_of(p, w);
    if (ad->grad[param])
        return ad->grad[param];
    const struct tn_value_data *value = &p->values[param];
    if (value->kind != TN_KIND_PARAM)
        tn_program_error(p, 0, "%s is used as a weight, but is no param: its gradient would be lost", value->name);
    const char *name = tn_arena_printf(&p->arena, "grad.%s", value->name);
    tn_value acc = tn_value_new(p, TN_KIND_ACCUMULATOR, name, TN_F32, value->rank, p->values[param].shape);
    p->values[acc].like = param;
    p->values[acc].layer = p->values[param].layer;
    ad->grad[param] = acc;
    return acc;
}

void tn_grad_set(struct tn_program *p, struct tn_autodiff *ad, tn_value w, tn_value dw)
{
    tn_value param = param_of(p, w);
    p->values[dw].kind = TN_KIND_ACCUMULATOR;
    p->values[dw].like = param;
    ad->grad[param] = dw;
}

tn_value *tn_accumulated(struct tn_program *p)
{
    size_t n = (size_t)p->n_values + 1;
    tn_value *total = tn_arena_alloc(&p->arena, n * sizeof *total), *root = tn_arena_alloc(&p->arena, n * sizeof *root);
    for (tn_value v = 1; v < n; v++)
        total[v] = root[v] = v;
    TN_EACH_OP(p, op) {
        const struct tn_op_data *o = &p->ops[op];
        if (!tn_region_per_micro(o->region))
            continue;
        const struct tn_op_kind *kind = tn_op_kind(o->opcode);
        for (uint32_t i = 0; i < o->n_out; i++) {
            int alias = kind->must_alias[i];
            tn_value from = alias >= 0 && (uint32_t)alias < o->n_in ? o->in[alias] : 0;
            if (!from || total[root[from]] != from)
                continue;
            root[o->out[i]] = root[from];
            total[root[from]] = o->out[i];
        }
    }
    return total;
}

/* Which values a gradient must reach: params, and all that is computed from them. */
static void mark_needs(const struct tn_program *p, uint8_t *needs)
{
    for (tn_value v = 1; v <= p->n_values; v++)
        needs[v] = p->values[v].kind == TN_KIND_PARAM;
    TN_EACH_OP(p, op)
        for (uint32_t i = 0; i < p->ops[op].n_in; i++)
            for (uint32_t o = 0; p->ops[op].in[i] && needs[p->ops[op].in[i]] && o < p->ops[op].n_out; o++)
                needs[p->ops[op].out[o]] = 1;
}

static void differentiate(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    int reached = 0;
    for (uint32_t i = 0; i < p->ops[op].n_out; i++)
        reached |= ad->grad[p->ops[op].out[i]] != 0;
    if (!reached)
        return;
    const struct tn_op_kind *kind = tn_op_kind(p->ops[op].opcode);
    if (!kind->grad) {
        tn_program_error(p, op, "the loss depends on it, but %s has no gradient rule", kind->name);
        return;
    }
    p->at_layer = p->ops[op].layer;
    p->at_stage = p->ops[op].stage;
    kind->grad(p, op, ad);
}

void tn_autodiff(struct tn_program *p)
{
    tn_value loss = 0;
    for (tn_value v = 1; v <= p->n_values; v++)
        if (p->values[v].flags & TN_VALUE_LOSS)
            loss = v;
    tn_op last_forward = 0, step = 0;
    TN_EACH_OP(p, op) {
        if (p->ops[op].region == TN_REGION_FORWARD)
            last_forward = op;
        if (p->ops[op].region == TN_REGION_STEP && !step)
            step = op;
    }
    tn_value seed = tn_value_find(p, "loss.seed");
    if (!loss || !seed) {
        tn_program_error(p, 0, "the model's program has no value flagged as the loss");
        return;
    }
    size_t most = (size_t)p->n_values + 1; /* only values of the forward program have gradients */
    struct tn_autodiff ad = { .grad = tn_arena_alloc(&p->arena, most * sizeof *ad.grad),
                              .needs = tn_arena_alloc(&p->arena, most) };
    mark_needs(p, ad.needs);
    ad.grad[loss] = seed;
    p->at_region = TN_REGION_BACKWARD;
    p->insert_before = step;
    for (tn_op op = last_forward, previous; op; op = previous) {
        previous = p->ops[op].prev;
        if (p->ops[op].region == TN_REGION_FORWARD)
            differentiate(p, op, &ad);
    }
    p->insert_before = 0;
    p->at_layer = -1;
}
