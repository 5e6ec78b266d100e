/* Shape rules: dtype, rank and shape of an op's outputs from its inputs, as ops.def documents.
 *
 * A rule is called with the right number of inputs. What does not fit is recorded as an
 * error that names the op and both shapes; the outputs then keep their scalar shape. */
#include "program/rules.h"

#include <string.h>

#include "base/buf.h"

static struct tn_value_data *in(const struct tn_program *p, tn_op op, uint32_t i)
{
    return i < p->ops[op].n_in && p->ops[op].in[i] ? &p->values[p->ops[op].in[i]] : NULL;
}

static void set(struct tn_program *p, tn_op op, uint32_t i, uint32_t dtype, int32_t rank, const int64_t *shape)
{
    struct tn_value_data *v = &p->values[p->ops[op].out[i]];
    v->dtype = dtype;
    v->rank = rank;
    for (int32_t d = 0; d < TN_MAX_DIMS; d++)
        v->shape[d] = d < rank ? shape[d] : 1;
}

static void set_like(struct tn_program *p, tn_op op, uint32_t i, const struct tn_value_data *like)
{
    set(p, op, i, like->dtype, like->rank, like->shape);
}

static void text_of(const struct tn_value_data *v, struct tn_buf *buf)
{
    tn_buf_printf(buf, "%s %s[", v->name, tn_dtype_name(v->dtype));
    for (int32_t d = 0; d < v->rank; d++)
        tn_buf_printf(buf, "%s%lld", d ? ", " : "", (long long)v->shape[d]);
    tn_buf_printf(buf, "]");
}

/* Records "a f32[..] and b f32[..] do not fit: why". */
static void refuse(struct tn_program *p, tn_op op, const struct tn_value_data *a, const struct tn_value_data *b,
                   const char *why)
{
    struct tn_buf buf;
    tn_buf_init(&buf);
    text_of(a, &buf);
    if (b) {
        tn_buf_printf(&buf, " and ");
        text_of(b, &buf);
    }
    tn_program_error(p, op, "%s: %s", buf.text, why);
    tn_buf_finish(&buf);
}

static int64_t last(const struct tn_value_data *v)
{
    return v->rank ? v->shape[v->rank - 1] : 1;
}

static int same_shape(const struct tn_value_data *a, const struct tn_value_data *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

/* Leading dimensions of a (all but the last `skip`) equal b's. */
static int same_leading(const struct tn_value_data *a, const struct tn_value_data *b, int32_t skip_a, int32_t skip_b)
{
    if (a->rank - skip_a != b->rank - skip_b || a->rank < skip_a)
        return 0;
    for (int32_t d = 0; d < a->rank - skip_a; d++)
        if (a->shape[d] != b->shape[d])
            return 0;
    return 1;
}

/* x's shape with another last dimension. */
static void with_last(const struct tn_value_data *x, int64_t n, int64_t *shape)
{
    memcpy(shape, x->shape, sizeof x->shape);
    shape[x->rank - 1] = n;
}

static const int64_t no_shape[TN_MAX_DIMS] = { 1, 1, 1, 1, 1, 1 };

void shape_scalar(struct tn_program *p, tn_op op)
{
    set(p, op, 0, TN_F32, 0, no_shape);
}

void shape_clip(struct tn_program *p, tn_op op)
{
    set(p, op, 0, TN_F32, 1, (int64_t[TN_MAX_DIMS]){ 4, 1, 1, 1, 1, 1 });
}

void shape_same(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *x = in(p, op, 0);
    if (!x)
        return;
    uint32_t opcode = tn_rule_opcode(p, op);
    int all_alike = opcode == TN_OP_ADD || opcode == TN_OP_SWIGLU || opcode == TN_OP_GELU_DX || opcode == TN_OP_ADD_N ||
                    opcode == TN_OP_ACCUMULATE;
    for (uint32_t i = 1; all_alike && i < p->ops[op].n_in; i++) {
        const struct tn_value_data *y = in(p, op, i);
        if (y && !same_shape(x, y))
            refuse(p, op, x, y, "shapes must be equal");
        else if (y && y->dtype != x->dtype && opcode != TN_OP_ACCUMULATE)
            refuse(p, op, x, y, "dtypes must be equal");
    }
    int has_bias = opcode == TN_OP_BIAS_ADD || opcode == TN_OP_BIAS_GELU;
    if (has_bias && (in(p, op, 1)->rank != 1 || in(p, op, 1)->shape[0] != last(x) || x->rank == 0))
        refuse(p, op, x, in(p, op, 1), "the bias must have as many elements as the last dimension");
    if (opcode == TN_OP_ROPE) {
        int64_t head_dim = tn_attr_i(p, op, "head_dim", 0);
        if (head_dim <= 0 || head_dim % 2 || last(x) % head_dim)
            refuse(p, op, x, NULL, "head_dim must be even and divide the last dimension");
        else if (!same_leading(x, in(p, op, 1), 1, 0))
            refuse(p, op, x, in(p, op, 1), "each token needs one position");
    }
    set(p, op, 0, opcode == TN_OP_ACCUMULATE ? TN_F32 : x->dtype, x->rank, x->shape);
}

void shape_same_n(struct tn_program *p, tn_op op)
{
    for (uint32_t i = 0; i < p->ops[op].n_out; i++) {
        if (!same_shape(in(p, op, 0), in(p, op, i)))
            refuse(p, op, in(p, op, 0), in(p, op, i), "shapes must be equal");
        set_like(p, op, i, in(p, op, i));
    }
    const struct tn_value_data *g = in(p, op, p->ops[op].n_out);
    if (g && !same_shape(in(p, op, 0), g))
        refuse(p, op, in(p, op, 0), g, "the gradient must have the param's shape");
}

void shape_embedding(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *ids = in(p, op, 0), *w = in(p, op, 1);
    if (w->rank != 2 || ids->rank + 1 > TN_MAX_DIMS || ids->dtype != TN_I32) {
        refuse(p, op, ids, w, "needs i32 ids and a table [rows, columns]");
        return;
    }
    int64_t shape[TN_MAX_DIMS];
    memcpy(shape, ids->shape, sizeof shape);
    shape[ids->rank] = w->shape[1];
    set(p, op, 0, (uint32_t)tn_attr_i(p, op, "dtype", TN_F32), ids->rank + 1, shape);
}

/* Dimension of w that is contracted (K) or made (N), by its layout. */
static int32_t dim_k(const struct tn_program *p, tn_op op)
{
    return tn_attr_i(p, op, "trans", 0) ? 1 : 0;
}

void shape_linear(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *x = in(p, op, 0), *w = in(p, op, 1), *bias = in(p, op, 2);
    int32_t k = dim_k(p, op);
    if (x->rank < 1 || w->rank != 2 || last(x) != w->shape[k] || x->dtype != w->dtype) {
        refuse(p, op, x, w, k ? "x [.., K] needs w [N, K] of its dtype" : "x [.., K] needs w [K, N] of its dtype");
        return;
    }
    if (bias && (bias->rank != 1 || bias->shape[0] != w->shape[1 - k]))
        refuse(p, op, w, bias, "the bias must have N elements");
    int64_t shape[TN_MAX_DIMS];
    with_last(x, w->shape[1 - k], shape);
    set(p, op, 0, x->dtype, x->rank, shape);
}

void shape_linear_dx(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *dy = in(p, op, 0), *w = in(p, op, 1);
    int32_t k = dim_k(p, op);
    if (dy->rank < 1 || w->rank != 2 || last(dy) != w->shape[1 - k] || dy->dtype != w->dtype) {
        refuse(p, op, dy, w, "dy [.., N] needs the w of its linear");
        return;
    }
    int64_t shape[TN_MAX_DIMS];
    with_last(dy, w->shape[k], shape);
    set(p, op, 0, dy->dtype, dy->rank, shape);
}

void shape_linear_dw(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *x = in(p, op, 0), *dy = in(p, op, 1);
    int32_t k = dim_k(p, op);
    if (x->rank < 1 || !same_leading(x, dy, 1, 1) || x->dtype != dy->dtype) {
        refuse(p, op, x, dy, "x [.., K] and dy [.., N] must share their leading dimensions");
        return;
    }
    int64_t shape[TN_MAX_DIMS] = { 1, 1, 1, 1, 1, 1 };
    shape[k] = last(x);
    shape[1 - k] = last(dy);
    set(p, op, 0, TN_F32, 2, shape);
}

static void set_columns(struct tn_program *p, tn_op op, uint32_t i, int64_t n)
{
    set(p, op, i, TN_F32, 1, (int64_t[TN_MAX_DIMS]){ n, 1, 1, 1, 1, 1 });
}

void shape_bias_dw(struct tn_program *p, tn_op op)
{
    set_columns(p, op, 0, last(in(p, op, 0)));
}

void shape_bias_gelu_dx(struct tn_program *p, tn_op op)
{
    if (!same_shape(in(p, op, 0), in(p, op, 1)))
        refuse(p, op, in(p, op, 0), in(p, op, 1), "shapes must be equal");
    set_like(p, op, 0, in(p, op, 0));
    set_columns(p, op, 1, last(in(p, op, 0)));
}

void shape_swiglu_dx(struct tn_program *p, tn_op op)
{
    for (uint32_t i = 1; i < 3; i++)
        if (!same_shape(in(p, op, 0), in(p, op, i)))
            refuse(p, op, in(p, op, 0), in(p, op, i), "shapes must be equal");
    set_like(p, op, 0, in(p, op, 0));
    set_like(p, op, 1, in(p, op, 0));
}

/* Statistics of a norm over x: one a row, or one a group. */
static void set_statistic(struct tn_program *p, tn_op op, uint32_t i, const struct tn_value_data *x, int64_t group)
{
    int64_t shape[TN_MAX_DIMS];
    with_last(x, group ? last(x) / group : 1, shape);
    set(p, op, i, TN_F32, group ? x->rank : x->rank - 1, shape);
}

static int norm_fits(struct tn_program *p, tn_op op, const struct tn_value_data *x, const struct tn_value_data *w)
{
    int64_t group = tn_attr_i(p, op, "group", 0), n = group ? group : last(x);
    if (x->rank >= 1 && group >= 0 && last(x) % n == 0 && (!w || (w->rank == 1 && w->shape[0] == n)))
        return 1;
    refuse(p, op, x, w, "the weight must have as many elements as are normalised");
    return 0;
}

void shape_norm(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *x = in(p, op, 0);
    if (!norm_fits(p, op, x, in(p, op, 1)))
        return;
    set_like(p, op, 0, x);
    for (uint32_t i = 1; i < p->ops[op].n_out; i++)
        set_statistic(p, op, i, in(p, op, 0), tn_attr_i(p, op, "group", 0));
}

void shape_add_norm(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *a = in(p, op, 0);
    if (!same_shape(a, in(p, op, 1)))
        refuse(p, op, a, in(p, op, 1), "shapes must be equal");
    if (!norm_fits(p, op, a, in(p, op, 2)))
        return;
    set_like(p, op, 0, a);
    set_like(p, op, 1, a);
    for (uint32_t i = 2; i < p->ops[op].n_out; i++)
        set_statistic(p, op, i, in(p, op, 0), tn_attr_i(p, op, "group", 0));
}

void shape_norm_dx(struct tn_program *p, tn_op op)
{
    if (!same_shape(in(p, op, 0), in(p, op, 1)))
        refuse(p, op, in(p, op, 0), in(p, op, 1), "shapes must be equal");
    set_like(p, op, 0, in(p, op, 1));
}

void shape_norm_dw(struct tn_program *p, tn_op op)
{
    if (!norm_fits(p, op, in(p, op, 0), NULL))
        return;
    int64_t group = tn_attr_i(p, op, "group", 0);
    for (uint32_t i = 0; i < p->ops[op].n_out; i++)
        set_columns(p, op, i, group ? group : last(in(p, op, 0)));
}

static int heads_fit(struct tn_program *p, tn_op op, uint32_t first)
{
    const struct tn_value_data *q = in(p, op, first), *k = in(p, op, first + 1), *v = in(p, op, first + 2);
    int64_t d = tn_attr_i(p, op, "head_dim", 0);
    if (q->rank == 3 && k->rank == 3 && same_shape(k, v) && q->shape[0] == k->shape[0] && d > 0 && last(q) % d == 0 &&
        last(k) % d == 0 && last(q) % last(k) == 0 && q->dtype == k->dtype)
        return 1;
    refuse(p, op, q, k, "needs q [B, S, H D], k and v [B, S, Hkv D], where Hkv divides H and head_dim is D");
    return 0;
}

/* One number a token, of each sequence of q (rank 2) or of them all (rank 1). */
static int indices_fit(struct tn_program *p, tn_op op, const struct tn_value_data *of,
                       const struct tn_value_data *index, int32_t rank)
{
    if (index->dtype == TN_I32 && index->rank == rank && index->shape[rank - 1] == of->shape[1] &&
        (rank == 1 || index->shape[0] == of->shape[0]))
        return 1;
    refuse(p, op, of, index, rank == 1 ? "indices are i32 [S]" : "start is i32 [B, S]");
    return 0;
}

/* q k v from input `first` on, start? at `start`. */
static int attention_fits(struct tn_program *p, tn_op op, uint32_t first, uint32_t start)
{
    if (!heads_fit(p, op, first))
        return 0;
    const struct tn_value_data *q = in(p, op, first), *k = in(p, op, first + 1);
    if (q->shape[1] != k->shape[1]) {
        refuse(p, op, q, k, "needs as many keys as queries");
        return 0;
    }
    return !in(p, op, start) || indices_fit(p, op, q, in(p, op, start), 2);
}

static int block_fits(struct tn_program *p, tn_op op, uint32_t first, uint32_t indices)
{
    if (!heads_fit(p, op, first))
        return 0;
    const struct tn_value_data *q = in(p, op, first), *k = in(p, op, first + 1), *start = in(p, op, indices + 2);
    return indices_fit(p, op, q, in(p, op, indices), 1) && indices_fit(p, op, k, in(p, op, indices + 1), 1) &&
           (!start || indices_fit(p, op, q, start, 2));
}

static void set_lse(struct tn_program *p, tn_op op, const struct tn_value_data *q)
{
    int64_t shape[TN_MAX_DIMS];
    with_last(q, last(q) / tn_attr_i(p, op, "head_dim", 1), shape);
    set(p, op, 1, TN_F32, 3, shape);
}

void shape_attention(struct tn_program *p, tn_op op)
{
    if (!attention_fits(p, op, 0, 3))
        return;
    const struct tn_value_data *q = &p->values[p->ops[op].in[0]];
    set_like(p, op, 0, q);
    set_lse(p, op, q);
}

void shape_attention_dx(struct tn_program *p, tn_op op)
{
    if (!attention_fits(p, op, 1, 6))
        return;
    for (uint32_t i = 0; i < 3; i++)
        set_like(p, op, i, in(p, op, 1 + i));
}

void shape_attention_block(struct tn_program *p, tn_op op)
{
    if (!block_fits(p, op, 0, 3))
        return;
    const struct tn_value_data *q = &p->values[p->ops[op].in[0]];
    set(p, op, 0, TN_F32, 3, q->shape);
    set_lse(p, op, q);
}

void shape_attention_block_dx(struct tn_program *p, tn_op op)
{
    if (!block_fits(p, op, 1, 6))
        return;
    for (uint32_t i = 0; i < 3; i++)
        set(p, op, i, TN_F32, 3, in(p, op, 1 + i)->shape);
}

void shape_cross_entropy(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *logits = in(p, op, 0), *labels = in(p, op, 1);
    if (!same_leading(logits, labels, 1, 0) || labels->dtype != TN_I32) {
        refuse(p, op, logits, labels, "needs logits [.., V] and i32 labels [..]");
        return;
    }
    set(p, op, 0, TN_F32, 0, no_shape);
    set(p, op, 1, TN_F32, labels->rank, labels->shape);
}

void shape_ce_max(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *logits = in(p, op, 0);
    set(p, op, 0, TN_F32, logits->rank - 1, logits->shape);
}

void shape_ce_sum(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *labels = in(p, op, 1);
    int64_t shape[TN_MAX_DIMS] = { 2, 1, 1, 1, 1, 1 };
    for (int32_t d = 0; d < labels->rank && d + 1 < TN_MAX_DIMS; d++)
        shape[d + 1] = labels->shape[d];
    set(p, op, 0, TN_F32, labels->rank + 1, shape);
}

void shape_ce_loss(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *labels = in(p, op, 2);
    set(p, op, 0, TN_F32, 0, no_shape);
    set(p, op, 1, TN_F32, labels->rank, labels->shape);
}

void shape_cast(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *x = in(p, op, 0);
    uint32_t dtype = (uint32_t)tn_attr_i(p, op, "dtype", 0);
    if (tn_dtype_bytes(dtype) == 0)
        refuse(p, op, x, NULL, "attribute dtype names no dtype");
    set(p, op, 0, dtype, x->rank, x->shape);
}

void shape_embedding_dw(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *ids = in(p, op, 0), *dy = in(p, op, 1);
    if (!same_leading(dy, ids, 1, 0)) {
        refuse(p, op, ids, dy, "needs ids [..] and dy [.., H]");
        return;
    }
    set(p, op, 0, TN_F32, 2, (int64_t[TN_MAX_DIMS]){ tn_attr_i(p, op, "rows", 0), last(dy), 1, 1, 1, 1 });
}

void shape_view(struct tn_program *p, tn_op op)
{
    set_like(p, op, 0, in(p, op, 1));
}

/* Packed parts lie at multiples of 16 elements; axes that cut any part cut the whole `flat`. */
/* The plan puts each input where the pack has it, so it must be free to lie anywhere, and once. */
static int may_be_packed(struct tn_program *p, tn_op op, uint32_t i)
{
    const struct tn_op_data *o = &p->ops[op];
    const struct tn_value_data *v = &p->values[o->in[i]];
    const char *why = !v->def                                 ? "no op makes it"
                      : p->ops[v->def].opcode == TN_OP_VIEW   ? "it is a view of other memory"
                      : v->dtype != p->values[o->in[0]].dtype ? "its dtype is not that of the first input"
                                                              : NULL;
    for (uint32_t k = 0; k < i && !why; k++)
        why = o->in[k] == o->in[i] ? "it is packed twice" : NULL;
    if (why)
        tn_program_error(p, op, "%s cannot be packed: %s", v->name, why);
    return !why;
}

void shape_pack(struct tn_program *p, tn_op op)
{
    int64_t n = 0, ranks = 1;
    const struct tn_op_data *o = &p->ops[op];
    for (uint32_t i = 0; i < o->n_in; i++)
        if (!may_be_packed(p, op, i))
            return;
    for (uint32_t i = 0; i < o->n_in; i++)
        n += (tn_local_elements(p, o->in[i]) + 15) / 16 * 16;
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        int cut = 0, partial = 0;
        for (uint32_t i = 0; i < o->n_in; i++) {
            uint32_t kind = TN_PLACE_KIND(p->values[o->in[i]].place[axis]);
            cut |= kind == TN_PLACE_SHARD || kind == TN_PLACE_FLAT;
            partial |= kind == TN_PLACE_PARTIAL;
        }
        if (cut)
            ranks *= p->mesh->axis[axis].size;
        p->values[o->out[0]].place[axis] = cut ? TN_FLAT : partial ? TN_PARTIAL(TN_RED_SUM) : TN_REPLICATE;
    }
    set(p, op, 0, in(p, op, 0)->dtype, 1, (int64_t[TN_MAX_DIMS]){ n * ranks, 1, 1, 1, 1, 1 });
}

/* A copy is what its original is, elsewhere. */
void shape_offload(struct tn_program *p, tn_op op)
{
    const struct tn_value_data *x = in(p, op, 0), *into = in(p, op, 1);
    int64_t space = tn_attr_i(p, op, "space", into ? into->space : TN_SPACE_HOST);
    set_like(p, op, 0, x);
    p->values[p->ops[op].out[0]].space = (uint32_t)space;
    if (x->space != TN_SPACE_DEVICE || (space != TN_SPACE_HOST && space != TN_SPACE_DISK))
        refuse(p, op, x, NULL, "it goes from the device to space 1 (host) or 2 (disk)");
    if (into && (into->dtype != x->dtype || !same_shape(into, x) || into->space != space))
        refuse(p, op, x, into, "both must have the same type and sizes, the second in the space asked for");
}

void shape_fetch(struct tn_program *p, tn_op op)
{
    set_like(p, op, 0, in(p, op, 0));
    p->values[p->ops[op].out[0]].space = TN_SPACE_DEVICE;
    if (in(p, op, 0)->space == TN_SPACE_DEVICE)
        refuse(p, op, in(p, op, 0), NULL, "it is on the device already");
}
