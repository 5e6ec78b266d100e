/* Gradient rules: the backward ops of one forward op, as ops.def names them.
 *
 * Each reads the gradients of its outputs from ad and adds those of its inputs. Params (and casts of params) get an
 * accumulating op, whose last input is what was accumulated so far. */
#include "passes/autodiff.h"
#include "program/rules.h"

static tn_value in(const struct tn_program *p, tn_op op, uint32_t i)
{
    return p->ops[op].in[i];
}

static tn_value out(const struct tn_program *p, tn_op op, uint32_t i)
{
    return p->ops[op].out[i];
}

static tn_value dout(const struct tn_program *p, tn_op op, const struct tn_autodiff *ad)
{
    return ad->grad[out(p, op, 0)];
}

/* All attributes of the op, for a backward op that takes the same. */
#define SAME_ATTRS p->ops[op].attrs, p->ops[op].n_attrs
#define IN(...) (tn_value[]){ __VA_ARGS__ }, sizeof(tn_value[]){ __VA_ARGS__ } / sizeof(tn_value)

void grad_embedding(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value w = in(p, op, 1);
    const struct tn_attr rows[] = { TN_ATTR_I("rows", p->values[w].shape[0]) };
    tn_value acc = tn_grad_acc(p, ad, w);
    tn_grad_set(p, ad, w, tn_grad_op(p, op, "dw", TN_OP_EMBEDDING_DW, IN(in(p, op, 0), dout(p, op, ad), acc), rows, 1));
}

static void bias_gradient(struct tn_program *p, tn_op op, struct tn_autodiff *ad, tn_value dy, tn_value b)
{
    tn_value acc = tn_grad_acc(p, ad, b);
    tn_grad_set(p, ad, b, tn_grad_op(p, op, "db", TN_OP_BIAS_DW, IN(dy, acc), NULL, 0));
}

void grad_linear(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value x = in(p, op, 0), w = in(p, op, 1), dy = dout(p, op, ad);
    if (ad->needs[x])
        tn_grad_add(p, ad, x, tn_grad_op(p, op, "dx", TN_OP_LINEAR_DX, IN(dy, w), SAME_ATTRS));
    tn_value acc = tn_grad_acc(p, ad, w);
    tn_grad_set(p, ad, w, tn_grad_op(p, op, "dw", TN_OP_LINEAR_DW, IN(x, dy, acc), SAME_ATTRS));
    if (p->ops[op].n_in > 2 && in(p, op, 2))
        bias_gradient(p, op, ad, dy, in(p, op, 2));
}

void grad_bias_add(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value dy = dout(p, op, ad), x = in(p, op, 0);
    bias_gradient(p, op, ad, dy, in(p, op, 1));
    tn_grad_add(p, ad, x, dy);
}

void grad_add(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value dy = dout(p, op, ad);
    tn_grad_add(p, ad, in(p, op, 0), dy);
    tn_grad_add(p, ad, in(p, op, 1), dy);
}

void grad_gelu(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_grad_add(p, ad, in(p, op, 0),
                tn_grad_op(p, op, "dx", TN_OP_GELU_DX, IN(dout(p, op, ad), in(p, op, 0)), SAME_ATTRS));
}

void grad_bias_gelu(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value x = in(p, op, 0), b = in(p, op, 1), acc = tn_grad_acc(p, ad, b);
    tn_value dx = tn_grad_op(p, op, "dx", TN_OP_BIAS_GELU_DX, IN(dout(p, op, ad), x, b, acc), SAME_ATTRS);
    tn_grad_set(p, ad, b, p->ops[p->n_ops].out[1]);
    tn_grad_add(p, ad, x, dx);
}

void grad_swiglu(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value g = in(p, op, 0), u = in(p, op, 1);
    tn_value dg = tn_grad_op(p, op, "dg", TN_OP_SWIGLU_DX, IN(dout(p, op, ad), g, u), NULL, 0);
    tn_value du = p->ops[p->n_ops].out[1];
    tn_grad_add(p, ad, g, dg);
    tn_grad_add(p, ad, u, du);
}

void grad_layernorm(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value x = in(p, op, 0), w = in(p, op, 1), b = in(p, op, 2), dy = dout(p, op, ad);
    tn_value mean = out(p, op, 1), rstd = out(p, op, 2);
    tn_value dx = tn_grad_op(p, op, "dx", TN_OP_LAYERNORM_DX, IN(dy, x, w, mean, rstd), NULL, 0);
    tn_value acc_w = tn_grad_acc(p, ad, w), acc_b = tn_grad_acc(p, ad, b);
    tn_value dw = tn_grad_op(p, op, "dw", TN_OP_LAYERNORM_DW, IN(dy, x, mean, rstd, acc_w, acc_b), NULL, 0);
    tn_grad_set(p, ad, b, p->ops[p->n_ops].out[1]);
    tn_grad_set(p, ad, w, dw);
    tn_grad_add(p, ad, x, dx);
}

void grad_rmsnorm(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value x = in(p, op, 0), w = in(p, op, 1), dy = dout(p, op, ad), rstd = out(p, op, 1);
    const struct tn_attr group[] = { TN_ATTR_I("group", tn_attr_i(p, op, "group", 0)) };
    tn_value dx = tn_grad_op(p, op, "dx", TN_OP_RMSNORM_DX, IN(dy, x, w, rstd), group, 1);
    tn_value acc = tn_grad_acc(p, ad, w);
    tn_grad_set(p, ad, w, tn_grad_op(p, op, "dw", TN_OP_RMSNORM_DW, IN(dy, x, rstd, acc), group, 1));
    tn_grad_add(p, ad, x, dx);
}

/* A rotation's transpose is the rotation back. */
void grad_rope(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    const struct tn_attr attrs[] = { TN_ATTR_F("theta", tn_attr_f(p, op, "theta", 10000.0)),
                                     TN_ATTR_I("head_dim", tn_attr_i(p, op, "head_dim", 0)),
                                     TN_ATTR_I("inverse", !tn_attr_i(p, op, "inverse", 0)) };
    tn_grad_add(p, ad, in(p, op, 0), tn_grad_op(p, op, "dx", TN_OP_ROPE, IN(dout(p, op, ad), in(p, op, 1)), attrs, 3));
}

void grad_attention(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value q = in(p, op, 0), k = in(p, op, 1), v = in(p, op, 2);
    tn_value start = p->ops[op].n_in > 3 ? in(p, op, 3) : 0;
    const tn_value of[] = { dout(p, op, ad), q, k, v, out(p, op, 0), out(p, op, 1), start };
    tn_value dq = tn_grad_op(p, op, "dq", TN_OP_ATTENTION_DX, of, start ? 7 : 6, SAME_ATTRS);
    tn_value dk = p->ops[p->n_ops].out[1], dv = p->ops[p->n_ops].out[2];
    tn_grad_add(p, ad, q, dq);
    tn_grad_add(p, ad, k, dk);
    tn_grad_add(p, ad, v, dv);
}

void grad_cross_entropy(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_value logits = in(p, op, 0);
    tn_grad_add(p, ad, logits,
                tn_grad_op(p, op, "dlogits", TN_OP_CROSS_ENTROPY_DX,
                           IN(logits, in(p, op, 1), out(p, op, 1), dout(p, op, ad)), NULL, 0));
}

void grad_cast(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    const struct tn_attr back[] = { TN_ATTR_I("dtype", p->values[in(p, op, 0)].dtype) };
    tn_grad_add(p, ad, in(p, op, 0), tn_grad_op(p, op, "dx", TN_OP_CAST, IN(dout(p, op, ad)), back, 1));
}

/* Its mask follows from the same counters. */
void grad_dropout(struct tn_program *p, tn_op op, struct tn_autodiff *ad)
{
    tn_grad_add(p, ad, in(p, op, 0),
                tn_grad_op(p, op, "dx", TN_OP_DROPOUT, IN(dout(p, op, ad), in(p, op, 1)), SAME_ATTRS));
}
