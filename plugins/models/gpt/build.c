/* Builds params and ops of a gpt: names with the scope's prefix, logical axes, inits and tags.
 *
 * What both families do in the same way is here, so that gpt2.c and llama.c read like the
 * models' definitions. Errors of single calls are kept by the program (program_edit.h). */
#include <math.h>
#include <stdio.h>

#include "gpt.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof(array)[0]))

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
void gpt_scope(struct gpt_builder *b, int32_t layer, const char *params, const char *ops)
{
    snprintf(b->params, sizeof b->params, params, layer);
    snprintf(b->ops, sizeof b->ops, ops, layer);
    b->edit->at(b->program, TN_REGION_FORWARD, layer, 0);
}
#pragma GCC diagnostic pop

double gpt_residual_std(const struct gpt *g)
{
    return g->init_std / sqrt(2.0 * (double)g->layers);
}

static tn_value param(struct gpt_builder *b, const char *name, int32_t rank, const int64_t *shape,
                      const char *const *dims)
{
    char full[GPT_PREFIX_MOST + GPT_NAME_MOST];
    snprintf(full, sizeof full, "%s%s", b->params, name);
    return b->edit->value(b->program, TN_KIND_PARAM, full, TN_F32, rank, shape, dims);
}

tn_value gpt_matrix(struct gpt_builder *b, const char *name, int64_t rows, const char *row_dim, int64_t cols,
                    const char *col_dim, double std)
{
    const int64_t shape[] = { rows, cols };
    const char *const dims[] = { row_dim, col_dim };
    tn_value v = param(b, name, 2, shape, dims);
    b->edit->set_init(b->program, v, TN_INIT_NORMAL, std);
    return v;
}

tn_value gpt_vector(struct gpt_builder *b, const char *name, int64_t n, const char *dim, uint32_t init)
{
    tn_value v = param(b, name, 1, &n, &dim);
    b->edit->set_init(b->program, v, init, 0.0);
    b->edit->set_flags(b->program, v, TN_VALUE_NO_DECAY);
    return v;
}

tn_value gpt_op(struct gpt_builder *b, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                const struct tn_attr *attrs, uint32_t n_attrs)
{
    char full[GPT_PREFIX_MOST + GPT_NAME_MOST];
    snprintf(full, sizeof full, "%s%s", b->ops, name);
    return b->edit->op(b->program, opcode, full, in, n_in, attrs, n_attrs);
}

tn_value gpt_matmul(struct gpt_builder *b, const char *name, tn_value x, tn_value w, int trans)
{
    const tn_value in[] = { x, w };
    const struct tn_attr attr = TN_ATTR_I("trans", 1);
    return gpt_op(b, TN_OP_LINEAR, name, in, COUNT(in), &attr, trans ? 1 : 0);
}

tn_value gpt_add_bias(struct gpt_builder *b, const char *name, tn_value x, tn_value bias)
{
    const tn_value in[] = { x, bias };
    return gpt_op(b, TN_OP_BIAS_ADD, name, in, COUNT(in), NULL, 0);
}

tn_value gpt_project(struct gpt_builder *b, const struct gpt_linear *l, tn_value x)
{
    char name[GPT_NAME_MOST];
    snprintf(name, sizeof name, "%s.weight", l->param);
    tn_value w = l->trans ? gpt_matrix(b, name, l->out, l->out_dim, l->in, l->in_dim, l->std)
                          : gpt_matrix(b, name, l->in, l->in_dim, l->out, l->out_dim, l->std);
    tn_value y = gpt_matmul(b, l->op, x, w, l->trans);
    if (l->tag)
        b->edit->set_tag(b->program, y, l->tag);
    if (!l->bias)
        return y;
    snprintf(name, sizeof name, "%s.bias", l->param);
    tn_value bias = gpt_vector(b, name, l->out, l->out_dim, TN_INIT_ZEROS);
    snprintf(name, sizeof name, "%s.bias", l->op);
    y = gpt_add_bias(b, name, y, bias);
    if (l->tag)
        b->edit->set_tag(b->program, y, l->tag);
    return y;
}

tn_value gpt_norm(struct gpt_builder *b, const char *param_name, const char *op, tn_value x)
{
    const struct gpt *g = b->gpt;
    const struct tn_attr eps = TN_ATTR_F("eps", g->norm_eps);
    char name[GPT_NAME_MOST];
    snprintf(name, sizeof name, "%s.weight", param_name);
    tn_value w = gpt_vector(b, name, g->hidden, "embed", TN_INIT_ONES);
    tn_value y;
    if (g->family == GPT_FAMILY_GPT2) {
        snprintf(name, sizeof name, "%s.bias", param_name);
        const tn_value in[] = { x, w, gpt_vector(b, name, g->hidden, "embed", TN_INIT_ZEROS) };
        y = gpt_op(b, TN_OP_LAYERNORM, op, in, COUNT(in), &eps, 1);
    } else {
        const tn_value in[] = { x, w };
        y = gpt_op(b, TN_OP_RMSNORM, op, in, COUNT(in), &eps, 1);
    }
    b->edit->set_tag(b->program, y, "norm");
    return y;
}

tn_value gpt_attention(struct gpt_builder *b, tn_value q, tn_value k, tn_value v)
{
    const tn_value in[] = { q, k, v, b->start };
    const struct tn_attr attrs[] = {
        TN_ATTR_F("scale", 1.0 / sqrt((double)b->gpt->head_dim)),
        TN_ATTR_I("head_dim", b->gpt->head_dim),
        TN_ATTR_I("causal", 1),
    };
    return gpt_op(b, TN_OP_ATTENTION, "attn", in, b->start ? 4 : 3, attrs, COUNT(attrs));
}

tn_value gpt_dropout(struct gpt_builder *b, const char *op, tn_value x)
{
    if (!b->step)
        return x;
    const tn_value in[] = { x, b->step };
    const struct tn_attr attrs[] = {
        TN_ATTR_F("p", b->gpt->dropout),
        TN_ATTR_I("seed", b->gpt->facts->get(b->gpt->host, "seed", 0)),
        TN_ATTR_I("stream", b->dropouts++),
        TN_ATTR_I("micro", 0),
    };
    tn_value y = gpt_op(b, TN_OP_DROPOUT, op, in, COUNT(in), attrs, COUNT(attrs));
    b->edit->set_tag(b->program, y, "residual");
    return y;
}

tn_value gpt_residual(struct gpt_builder *b, const char *op, tn_value stream, tn_value branch)
{
    const tn_value in[] = { stream, branch };
    tn_value sum = gpt_op(b, TN_OP_ADD, op, in, COUNT(in), NULL, 0);
    b->edit->set_tag(b->program, sum, "residual");
    return sum;
}
