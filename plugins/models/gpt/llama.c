/* Llama (Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU, grouped-query attention.
 *
 * With qkv_bias it is Qwen2's layer, with qk_norm Qwen3's (each head of q and k normed
 * before the rotation). Names are Hugging Face's; weights are [out, in]. */
#include "gpt.h"

tn_value llama_embed(struct gpt_builder *b, tn_value *table)
{
    const struct gpt *g = b->gpt;
    gpt_scope(b, -1, "model.", "");
    *table = gpt_matrix(b, "embed_tokens.weight", g->vocab, "vocab", g->hidden, "embed", g->init_std);
    const tn_value in[] = { b->tokens, *table };
    tn_value x = gpt_op(b, TN_OP_EMBEDDING, "embed", in, 2, NULL, 0);
    b->edit->set_tag(b->program, x, "residual");
    return gpt_dropout(b, "embed.dropout", x);
}

/* q or k after its projection: normed by head if asked, and rotated. */
static tn_value rotate(struct gpt_builder *b, tn_value x, const char *norm_param, const char *norm_op,
                       const char *rope_op)
{
    const struct gpt *g = b->gpt;
    if (g->qk_norm) {
        const tn_value in[] = { x, gpt_vector(b, norm_param, g->head_dim, "", TN_INIT_ONES) };
        const struct tn_attr attrs[] = { TN_ATTR_F("eps", g->norm_eps), TN_ATTR_I("group", g->head_dim) };
        x = gpt_op(b, TN_OP_RMSNORM, norm_op, in, 2, attrs, 2);
    }
    const tn_value in[] = { x, b->positions };
    const struct tn_attr attrs[] = { TN_ATTR_F("theta", g->rope_theta), TN_ATTR_I("head_dim", g->head_dim) };
    return gpt_op(b, TN_OP_ROPE, rope_op, in, 2, attrs, 2);
}

static tn_value attention_half(struct gpt_builder *b, tn_value x)
{
    const struct gpt *g = b->gpt;
    int64_t q_dim = g->heads * g->head_dim, kv_dim = g->kv_heads * g->head_dim;
    int bias = g->qkv_bias;
    const struct gpt_linear wq = { "self_attn.q_proj", "attn.q", g->hidden, q_dim, "embed", "heads", 1, bias,
                                   g->init_std,        NULL };
    const struct gpt_linear wk = { "self_attn.k_proj", "attn.k", g->hidden, kv_dim,      "embed",
                                   "kv_heads",         1,        bias,      g->init_std, NULL };
    const struct gpt_linear wv = { "self_attn.v_proj", "attn.v", g->hidden, kv_dim,      "embed",
                                   "kv_heads",         1,        bias,      g->init_std, NULL };
    const struct gpt_linear wo = { "self_attn.o_proj",  "attn.proj", q_dim, g->hidden, "heads", "embed", 1, 0,
                                   gpt_residual_std(g), "residual" };

    tn_value h = gpt_norm(b, "input_layernorm", "attn.norm", x);
    tn_value q = gpt_project(b, &wq, h);
    tn_value k = gpt_project(b, &wk, h);
    tn_value v = gpt_project(b, &wv, h);
    q = rotate(b, q, "self_attn.q_norm.weight", "attn.q.norm", "attn.q.rope");
    k = rotate(b, k, "self_attn.k_norm.weight", "attn.k.norm", "attn.k.rope");
    tn_value o = gpt_project(b, &wo, gpt_attention(b, q, k, v));
    return gpt_residual(b, "attn.residual", x, gpt_dropout(b, "attn.dropout", o));
}

static tn_value mlp_half(struct gpt_builder *b, tn_value x)
{
    const struct gpt *g = b->gpt;
    const struct gpt_linear gate = { "mlp.gate_proj", "mlp.gate", g->hidden, g->mlp,      "embed",
                                     "mlp",           1,          0,         g->init_std, NULL };
    const struct gpt_linear up = {
        "mlp.up_proj", "mlp.up", g->hidden, g->mlp, "embed", "mlp", 1, 0, g->init_std, NULL
    };
    const struct gpt_linear down = { "mlp.down_proj", "mlp.down", g->mlp, g->hidden,           "mlp",
                                     "embed",         1,          0,      gpt_residual_std(g), "residual" };

    tn_value h = gpt_norm(b, "post_attention_layernorm", "mlp.norm", x);
    const tn_value gu[] = { gpt_project(b, &gate, h), gpt_project(b, &up, h) };
    tn_value a = gpt_op(b, TN_OP_SWIGLU, "mlp.swiglu", gu, 2, NULL, 0);
    tn_value y = gpt_project(b, &down, a);
    return gpt_residual(b, "mlp.residual", x, gpt_dropout(b, "mlp.dropout", y));
}

tn_value llama_layer(struct gpt_builder *b, int32_t layer, tn_value x)
{
    gpt_scope(b, layer, "model.layers.%d.", "layers.%d.");
    return mlp_half(b, attention_half(b, x));
}
