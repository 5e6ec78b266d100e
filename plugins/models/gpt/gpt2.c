/* GPT-2 (Radford et al. 2019): learned positions, LayerNorm before each half, GELU, biases.
 *
 * Names and layouts are Hugging Face's: Conv1D weights are [in, out], and c_attn holds q, k
 * and v side by side. Here they are three params, so that heads can be cut; in checkpoints
 * they are slices of the one tensor. */
#include <stdio.h>

#include "gpt.h"

tn_value gpt2_embed(struct gpt_builder *b, tn_value *table)
{
    const struct gpt *g = b->gpt;
    gpt_scope(b, -1, "transformer.", "");
    *table = gpt_matrix(b, "wte.weight", g->vocab, "vocab", g->hidden, "embed", g->init_std);
    tn_value wpe = gpt_matrix(b, "wpe.weight", g->positions, "position", g->hidden, "embed", g->init_std);
    const tn_value token_in[] = { b->tokens, *table }, position_in[] = { b->positions, wpe };
    tn_value tokens = gpt_op(b, TN_OP_EMBEDDING, "embed.tokens", token_in, 2, NULL, 0);
    tn_value positions = gpt_op(b, TN_OP_EMBEDDING, "embed.positions", position_in, 2, NULL, 0);
    b->edit->set_tag(b->program, tokens, "residual");
    b->edit->set_tag(b->program, positions, "residual");
    return gpt_dropout(b, "embed.dropout", gpt_residual(b, "embed", tokens, positions));
}

/* One of q, k, v: `offset` is where its columns start in c_attn, of `fused` columns. */
static tn_value attention_input(struct gpt_builder *b, tn_value x, const char *which, int64_t out, const char *dim,
                                int64_t offset, int64_t fused)
{
    const struct gpt *g = b->gpt;
    char name[GPT_NAME_MOST], stored[GPT_PREFIX_MOST + GPT_NAME_MOST];

    snprintf(name, sizeof name, "attn.c_attn.weight.%s", which);
    snprintf(stored, sizeof stored, "%sattn.c_attn.weight", b->params);
    tn_value w = gpt_matrix(b, name, g->hidden, "embed", out, dim, g->init_std);
    b->edit->set_stored(b->program, w, stored, 1, offset, fused);

    snprintf(name, sizeof name, "attn.c_attn.bias.%s", which);
    snprintf(stored, sizeof stored, "%sattn.c_attn.bias", b->params);
    tn_value bias = gpt_vector(b, name, out, dim, TN_INIT_ZEROS);
    b->edit->set_stored(b->program, bias, stored, 0, offset, fused);

    snprintf(name, sizeof name, "attn.%s", which);
    tn_value y = gpt_matmul(b, name, x, w, 0);
    snprintf(name, sizeof name, "attn.%s.bias", which);
    return gpt_add_bias(b, name, y, bias);
}

/* A projection back into the residual stream, and the sum. */
static tn_value join(struct gpt_builder *b, const struct gpt_linear *linear, const char *drop, const char *sum,
                     tn_value x, tn_value branch)
{
    return gpt_residual(b, sum, x, gpt_dropout(b, drop, gpt_project(b, linear, branch)));
}

static tn_value attention_half(struct gpt_builder *b, tn_value x)
{
    const struct gpt *g = b->gpt;
    int64_t q_dim = g->heads * g->head_dim, kv_dim = g->kv_heads * g->head_dim, fused = q_dim + 2 * kv_dim;
    tn_value h = gpt_norm(b, "ln_1", "ln_1", x);
    tn_value q = attention_input(b, h, "q", q_dim, "heads", 0, fused);
    tn_value k = attention_input(b, h, "k", kv_dim, "kv_heads", q_dim, fused);
    tn_value v = attention_input(b, h, "v", kv_dim, "kv_heads", q_dim + kv_dim, fused);
    tn_value o = gpt_attention(b, q, k, v);
    const struct gpt_linear proj = { "attn.c_proj", "attn.proj", q_dim, g->hidden,           "heads",
                                     "embed",       0,           1,     gpt_residual_std(g), "residual" };
    return join(b, &proj, "attn.dropout", "attn.residual", x, o);
}

static tn_value mlp_half(struct gpt_builder *b, tn_value x)
{
    const struct gpt *g = b->gpt;
    tn_value h = gpt_norm(b, "ln_2", "ln_2", x);
    tn_value w = gpt_matrix(b, "mlp.c_fc.weight", g->hidden, "embed", g->mlp, "mlp", g->init_std);
    tn_value bias = gpt_vector(b, "mlp.c_fc.bias", g->mlp, "mlp", TN_INIT_ZEROS);
    const tn_value in[] = { gpt_matmul(b, "mlp.fc", h, w, 0), bias };
    const struct tn_attr tanh_form = TN_ATTR_I("tanh", 1);
    tn_value a = gpt_op(b, TN_OP_BIAS_GELU, "mlp.gelu", in, 2, &tanh_form, 1);
    const struct gpt_linear proj = { "mlp.c_proj", "mlp.proj", g->mlp, g->hidden,           "mlp",
                                     "embed",      0,          1,      gpt_residual_std(g), "residual" };
    return join(b, &proj, "mlp.dropout", "mlp.residual", x, a);
}

tn_value gpt2_layer(struct gpt_builder *b, int32_t layer, tn_value x)
{
    gpt_scope(b, layer, "transformer.h.%d.", "h.%d.");
    return mlp_half(b, attention_half(b, x));
}
