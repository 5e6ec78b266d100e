/* Optimizer: the step region (autodiff.h says what it requires and establishes).
 *
 *     g.w = sync(grad.w')                    its type makes resolve reduce the gradient
 *     grad.sumsq = sumsq(g.w, ...)           each element of each param counted once
 *     grad.clip = clip(grad.sumsq)           {factor, norm, skip}
 *     w', m', v' = adamw(w, m, v, g.w, grad.clip, lr, t)
 *
 * Params whose gradient nothing adds to keep their value. */
#include "passes/autodiff.h"

#include <stdlib.h>

static const int64_t scalar[TN_MAX_DIMS] = { 1, 1, 1, 1, 1, 1 };

static tn_value state_of(struct tn_program *p, tn_value param, const char *suffix)
{
    const char *name = tn_arena_printf(&p->arena, "%s.%s", p->values[param].name, suffix);
    tn_value state = tn_value_new(p, TN_KIND_STATE, name, TN_F32, p->values[param].rank, p->values[param].shape);
    p->values[state].like = param;
    p->values[state].layer = p->values[param].layer;
    return state;
}

static void update(struct tn_program *p, const struct tn_settings *settings, tn_value param, tn_value g, tn_value clip,
                   tn_value lr, tn_value t)
{
    double decay = p->values[param].flags & TN_VALUE_NO_DECAY ? 0.0 : settings->weight_decay;
    const char *name = tn_arena_printf(&p->arena, "%s.update", p->values[param].name);
    p->at_layer = p->values[param].layer;
    if (settings->optimizer == TN_OPTIMIZER_ADAMW) {
        tn_value m = state_of(p, param, "adamw.m"), v = state_of(p, param, "adamw.v");
        const struct tn_attr attrs[] = { TN_ATTR_F("beta1", settings->beta1), TN_ATTR_F("beta2", settings->beta2),
                                         TN_ATTR_F("eps", settings->eps), TN_ATTR_F("decay", decay) };
        tn_op_new(p, TN_OP_ADAMW, name, (tn_value[]){ param, m, v, g, clip, lr, t }, 7, attrs, 4);
    } else {
        tn_value m = state_of(p, param, "sgd.m");
        const struct tn_attr attrs[] = { TN_ATTR_F("momentum", settings->momentum), TN_ATTR_F("decay", decay) };
        tn_op_new(p, TN_OP_SGD, name, (tn_value[]){ param, m, g, clip, lr }, 5, attrs, 2);
    }
    tn_op op = tn_last_op(p);
    for (uint32_t i = 0; i < p->ops[op].n_out; i++) {
        tn_value from = p->ops[op].in[i], to = p->ops[op].out[i];
        p->values[to].kind = p->values[from].kind;
        p->values[to].like = param;
    }
}

void tn_optimizer(struct tn_program *p, const struct tn_settings *settings)
{
    struct {
        tn_value param, g;
    } *updates = malloc((p->n_values + 1) * sizeof *updates);
    tn_value *g = malloc((p->n_values + 1) * sizeof *g);
    uint32_t n = 0, n_values = p->n_values;
    if (!updates || !g) {
        tn_program_error(p, 0, "out of memory");
        goto done;
    }
    const tn_value *totals = tn_accumulated(p);
    p->at_region = TN_REGION_STEP;
    for (tn_value acc = 1; acc <= n_values; acc++) {
        if (p->values[acc].kind != TN_KIND_ACCUMULATOR || p->values[acc].def || !p->values[acc].like)
            continue;
        tn_value param = p->values[acc].like, total = totals[acc];
        p->at_layer = p->values[param].layer;
        const char *name = tn_arena_printf(&p->arena, "%s.g", p->values[param].name);
        g[n] = tn_op_new(p, TN_OP_SYNC, name, &total, 1, NULL, 0);
        p->values[g[n]].like = param;
        updates[n].param = param;
        updates[n].g = g[n];
        n++;
    }
    p->at_layer = -1;
    if (n == 0) {
        tn_program_error(p, 0, "no param of the model has a gradient");
        goto done;
    }
    tn_value lr = tn_value_new(p, TN_KIND_INPUT, "lr", TN_F32, 0, scalar);
    tn_value t = tn_value_new(p, TN_KIND_INPUT, "t", TN_F32, 0, scalar);
    tn_value sumsq = tn_op_new(p, TN_OP_SUMSQ, "grad.sumsq", g, n, NULL, 0);
    const struct tn_attr max_norm[] = { TN_ATTR_F("max_norm", settings->clip) };
    tn_value clip = tn_op_new(p, TN_OP_CLIP, "grad.clip", &sumsq, 1, max_norm, 1);
    p->values[clip].flags |= TN_VALUE_OUTPUT;
    for (uint32_t i = 0; i < n; i++)
        update(p, settings, updates[i].param, updates[i].g, clip, lr, t);
    p->at_layer = -1;
done:
    free(updates);
    free(g);
}
