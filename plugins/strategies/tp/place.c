/* tp.place: which part of each param a rank owns, by the params' logical axes.
 *
 * Requires: a program with gradients, global shapes. Establishes: heads, kv_heads, mlp and
 * vocab cut along tp's axes, everything else whole, and wants for the residual stream, its
 * gradients, and the logits. Inserts no collective: resolve does. */
#include <stdio.h>
#include <string.h>

#include "tp.h"

enum { MOST_RANKS = 4096, PART_MULTIPLE = 64 };

/* What place works with. */
struct placing {
    const struct tp *tp;
    struct tn_program *program;
    int32_t axis[2];       /* of the mesh */
    tn_placement vocab[2]; /* how dimension 0 of [vocab, ..] lies on each */
};

static void value_info(const struct placing *at, tn_value v, struct tn_value_info *info)
{
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    at->tp->read->value_info(at->program, v, info);
}

/* Parts as equal as can be; where they are large, multiples of 64 for the kernels' sake but
 * for the last one. Their sum is the vocabulary, so that each is an exact length. */
static void uneven_parts(int64_t vocab, int32_t size, int64_t *parts)
{
    int64_t unit = vocab / size >= 2 * PART_MULTIPLE ? PART_MULTIPLE : 1;
    int64_t blocks = (vocab + unit - 1) / unit, used = 0;
    for (int32_t rank = 0; rank < size; rank++) {
        parts[rank] = rank == size - 1 ? vocab - used : (blocks / size + (rank < blocks % size)) * unit;
        used += parts[rank];
    }
}

/* A vocabulary that does not divide is cut in unequal parts, by the larger axis alone where
 * there are two: a second cut would need every part to divide again. */
static void plan_vocab(struct placing *at)
{
    const struct tp_axes *axes = &at->tp->axes;
    int64_t vocab = at->tp->facts->get(at->tp->host, "vocab", 0), all = 1, parts[MOST_RANKS];
    int32_t largest = 0;
    for (int32_t a = 0; a < axes->n; a++) {
        all *= axes->size[a];
        largest = axes->size[a] > axes->size[largest] ? a : largest;
    }
    for (int32_t a = 0; a < axes->n; a++)
        at->vocab[a] = vocab % all == 0 ? TN_SHARD(0) : TN_REPLICATE;
    if (vocab % all == 0)
        return;
    int32_t size = axes->size[largest];
    if (size > MOST_RANKS) {
        char what[128], fix[64];
        snprintf(what, sizeof what, "a vocabulary of %lld cannot be cut over %d ranks", (long long)vocab, size);
        snprintf(fix, sizeof fix, "use at most %d, or a vocabulary that divides", MOST_RANKS);
        at->tp->host->problem(at->tp->host, "size", what, fix);
        return;
    }
    uneven_parts(vocab, size, parts);
    at->vocab[largest] = TN_SHARD_PARTS(0, at->tp->edit->parts_new(at->program, parts, size));
}

/* The vocabulary's cut, of another dimension. */
static tn_placement vocab_cut(const struct placing *at, int32_t a, int32_t dim)
{
    tn_placement cut = at->vocab[a];
    return TN_PLACE_KIND(cut) == TN_PLACE_SHARD ? TN_SHARD_PARTS(dim, TN_PLACE_PARTS(cut)) : cut;
}

static tn_placement param_placement(const struct placing *at, const struct tn_value_info *param, int32_t a)
{
    for (int32_t dim = 0; dim < param->rank; dim++) {
        const char *axis = param->dims[dim];
        if (strcmp(axis, "vocab") == 0)
            return vocab_cut(at, a, dim);
        if (strcmp(axis, "heads") == 0 || strcmp(axis, "mlp") == 0)
            return TN_SHARD(dim);
        if (strcmp(axis, "kv_heads") == 0 && at->tp->axes.kv_cut[a])
            return TN_SHARD(dim);
    }
    return TN_REPLICATE;
}

/* v lies as `param` does: itself, or the param whose optimizer state it is. */
static void place_like(const struct placing *at, tn_value v, const struct tn_value_info *param)
{
    for (int32_t a = 0; a < at->tp->axes.n; a++)
        at->tp->edit->place(at->program, v, at->axis[a], param_placement(at, param, a));
}

/* The gradient of a cut param is cut alike: a sum still to be reduced would be as large as
 * the whole param, which for an embedding is more than the activations it comes from. */
static void place_gradient(const struct placing *at, tn_value accumulator, const struct tn_value_info *param)
{
    for (int32_t a = 0; a < at->tp->axes.n; a++) {
        tn_placement cut = param_placement(at, param, a);
        if (TN_PLACE_KIND(cut) == TN_PLACE_SHARD)
            at->tp->edit->place(at->program, accumulator, at->axis[a], cut);
    }
}

/* The residual stream is whole, or cut along the sequence; so are its gradients, and norms:
 * where the stream is a sum still to be reduced, its norm would else be cut by what is cheapest
 * at that place (the batch, say), and the stream would follow. */
static void want(const struct placing *at, tn_value v, const struct tn_value_info *info)
{
    const struct tp *tp = at->tp;
    const char *tag = info->tag;
    struct tn_value_info forward;
    if (info->grad_of) {
        value_info(at, info->grad_of, &forward);
        tag = strcmp(forward.tag, "residual") == 0 ? forward.tag : "";
    }
    for (int32_t a = 0; a < at->tp->axes.n; a++)
        if (strcmp(tag, "residual") == 0 || strcmp(tag, "norm") == 0)
            tp->edit->want(at->program, v, at->axis[a], tp->sequence_parallel ? TN_SHARD(1) : TN_REPLICATE);
        else if (strcmp(tag, "logits") == 0)
            tp->edit->want(at->program, v, at->axis[a], vocab_cut(at, a, info->rank - 1));
}

tn_status tp_place(void *self, struct tn_program *program)
{
    struct tp *tp = self;
    struct placing at = { .tp = tp, .program = program };
    for (int32_t a = 0; a < tp->axes.n; a++) {
        at.axis[a] = tp->read->axis_find(program, tp->axes.name[a]);
        if (at.axis[a] < 0)
            return tp->host->fail(tp->host, TN_ERROR, "the mesh has no axis %s", tp->axes.name[a]);
    }
    plan_vocab(&at);
    for (tn_value v = tp->read->value_next(program, 0); v; v = tp->read->value_next(program, v)) {
        struct tn_value_info info, param;
        value_info(&at, v, &info);
        if (info.kind == TN_KIND_PARAM && !info.def) {
            place_like(&at, v, &info);
        } else if (info.kind == TN_KIND_STATE && !info.def && info.like) {
            value_info(&at, info.like, &param);
            place_like(&at, v, &param);
        } else if (info.kind == TN_KIND_ACCUMULATOR && !info.def && info.like) {
            value_info(&at, info.like, &param);
            place_gradient(&at, v, &param);
        } else if (info.kind == TN_KIND_ACTIVATION) {
            want(&at, v, &info);
        }
    }
    return TN_OK;
}
