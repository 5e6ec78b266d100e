/* gpt: what the two families share: the options as read, and a builder that names things.
 *
 * gpt.c is the plugin (options, check, facts, the frame of the program: inputs, embedding,
 * layers, head, loss); gpt2.c and llama.c hold one layer each; build.c makes params and ops. */
#ifndef TENON_GPT_H
#define TENON_GPT_H

#include <stddef.h>

#include <tenon/model.h>
#include <tenon/ops.h>
#include <tenon/plugin.h>

enum { GPT_FAMILY_GPT2 = 0, GPT_FAMILY_LLAMA = 1 }; /* indices of option "family" */
enum { GPT_PREFIX_MOST = 64, GPT_NAME_MOST = 96 };

struct gpt {
    const struct tn_host *host;
    const struct tn_program_edit_api *edit;
    const struct tn_facts_api *facts;
    int family;
    int64_t layers, hidden, heads, kv_heads, head_dim, mlp, vocab;
    int64_t positions; /* -1: as many as the job's sequence */
    int tied, qkv_bias, qk_norm;
    double norm_eps, rope_theta, dropout, init_std;
};

/* A linear layer to make. Weights are [in, out], or [out, in] with `trans`. */
struct gpt_linear {
    const char *param, *op; /* names inside the scope, without ".weight" */
    int64_t in, out;
    const char *in_dim, *out_dim; /* logical axes */
    int trans, bias;
    double std;
    const char *tag; /* of what it makes, with and without the bias; NULL: none */
};

struct gpt_builder {
    const struct gpt *gpt;
    const struct tn_program_edit_api *edit;
    struct tn_program *program;
    tn_value tokens, positions, labels;
    tn_value start;               /* 0 where a sequence is one document */
    tn_value step;                /* 0 without dropout */
    int64_t dropouts;             /* made so far: each has its own stream of random numbers */
    char params[GPT_PREFIX_MOST]; /* prefix of the names of params: "transformer.h.3." */
    char ops[GPT_PREFIX_MOST];    /* prefix of the names of ops: "h.3." */
};

/* build.c */
/* Names and ops made from now on belong to this layer (-1: none); prefixes are formats with one %d for it. */
void gpt_scope(struct gpt_builder *b, int32_t layer, const char *params, const char *ops);
tn_value gpt_matrix(struct gpt_builder *b, const char *name, int64_t rows, const char *row_dim, int64_t cols,
                    const char *col_dim, double std);
tn_value gpt_vector(struct gpt_builder *b, const char *name, int64_t n, const char *dim, uint32_t init);
tn_value gpt_op(struct gpt_builder *b, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                const struct tn_attr *attrs, uint32_t n_attrs);
tn_value gpt_project(struct gpt_builder *b, const struct gpt_linear *linear, tn_value x);
tn_value gpt_matmul(struct gpt_builder *b, const char *name, tn_value x, tn_value w, int trans);
tn_value gpt_add_bias(struct gpt_builder *b, const char *name, tn_value x, tn_value bias);
tn_value gpt_norm(struct gpt_builder *b, const char *param, const char *op, tn_value x);
tn_value gpt_attention(struct gpt_builder *b, tn_value q, tn_value k, tn_value v);
tn_value gpt_residual(struct gpt_builder *b, const char *op, tn_value stream, tn_value branch);
tn_value gpt_dropout(struct gpt_builder *b, const char *op, tn_value x);
double gpt_residual_std(const struct gpt *g); /* of projections into the residual stream (Radford et al. 2019) */

/* gpt2.c, llama.c: one layer, and the embedding of the tokens. */
tn_value gpt2_embed(struct gpt_builder *b, tn_value *table);
tn_value gpt2_layer(struct gpt_builder *b, int32_t layer, tn_value x);
tn_value llama_embed(struct gpt_builder *b, tn_value *table);
tn_value llama_layer(struct gpt_builder *b, int32_t layer, tn_value x);

#endif
