/* Placement rules: the rows (inputs -> outputs) that an op allows on one axis.
 *
 * A row is written as one letter a value, "RR>R": R replicate, P partial(sum), M partial(max), F flat, a digit d or L
 * (the last dimension of the first input) shard(d), # each leading dimension of the first input in turn. Rows whose
 * cuts do not divide are left out, so that resolve only ever sees possible ones. Where a neighbour is cut in unequal
 * parts or zigzag order on this axis, or wanted so, each row stands a second time with that cut. */
#include "passes/resolve.h"
#include "program/rules.h"

#include <assert.h>

#include <string.h>

struct rows {
    const struct tn_program *p;
    tn_op op;
    int32_t axis;
    struct tn_row *row;
    int n, most;
    tn_placement variant; /* order and parts bits of a neighbour's cut; 0 plain */
    int64_t unit;         /* a cut of the last dimension of the inputs in unit_inputs must leave a multiple; 0: any */
    uint32_t unit_inputs; /* bit mask */
};

static tn_placement variant_of(const struct tn_program *p, tn_op op, int32_t axis)
{
    const struct tn_op_data *o = &p->ops[op];
    for (uint32_t i = 0; i < o->n_in + o->n_out; i++) { /* outputs: where an accumulator is still absent */
        tn_value v = i < o->n_in ? o->in[i] : o->out[i - o->n_in];
        tn_placement place = v ? p->values[v].place[axis] : TN_PLACE_UNSET;
        if (TN_PLACE_KIND(place) == TN_PLACE_SHARD && (place & 0xffff0000u))
            return place & 0xffff0000u;
    }
    for (uint32_t i = 0; i < o->n_out; i++) { /* what a strategy would like */
        tn_placement want = o->out[i] ? p->values[o->out[i]].want[axis] : TN_PLACE_UNSET;
        if (TN_PLACE_KIND(want) == TN_PLACE_SHARD && (want & 0xffff0000u))
            return want & 0xffff0000u;
    }
    return 0;
}

static struct rows begin(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *row, int most)
{
    return (
        struct rows){ .p = p, .op = op, .axis = axis, .row = row, .most = most, .variant = variant_of(p, op, axis) };
}

static int32_t rank_of(const struct rows *r, uint32_t i)
{
    tn_value v = r->p->ops[r->op].in[i];
    return v ? r->p->values[v].rank : 0;
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Elements of dimension `dim` that every part is a multiple of, with `placement` on `axis`; 0 if it does not divide. */
static int64_t grain(const struct tn_program *p, tn_value v, int32_t axis, tn_placement placement)
{
    const struct tn_value_data *value = &p->values[v];
    int32_t dim = TN_PLACE_DIM(placement);
    int64_t left = value->shape[dim];
    for (int32_t a = p->mesh->n_axes - 1; a >= 0; a--) {
        tn_placement place = a == axis ? placement : value->place[a];
        if (TN_PLACE_KIND(place) != TN_PLACE_SHARD || TN_PLACE_DIM(place) != dim)
            continue;
        const struct tn_parts *parts = &p->parts[TN_PLACE_PARTS(place)];
        int64_t pieces = TN_PLACE_PARTS(place) ? parts->sum : p->mesh->axis[a].size;
        if (TN_PLACE_ORDER(place) == TN_ORDER_ZIGZAG)
            pieces *= 2;
        if (pieces <= 0 || left % pieces)
            return 0;
        left /= pieces;
        int64_t common = 0;
        for (int32_t i = 0; TN_PLACE_PARTS(place) && i < parts->n; i++)
            common = gcd(common, parts->weights[i]);
        if (common)
            left *= common;
        if (TN_PLACE_ORDER(place) == TN_ORDER_ZIGZAG)
            left *= 2;
    }
    return left;
}

int tn_placement_fits(const struct tn_program *p, tn_value v, int32_t axis, tn_placement placement)
{
    const struct tn_value_data *value = &p->values[v];
    if (TN_PLACE_KIND(placement) != TN_PLACE_SHARD)
        return 1;
    if (TN_PLACE_DIM(placement) >= value->rank || TN_PLACE_PARTS(placement) >= p->n_parts)
        return 0;
    if (TN_PLACE_PARTS(placement) && p->parts[TN_PLACE_PARTS(placement)].n != p->mesh->axis[axis].size)
        return 0;
    return grain(p, v, axis, placement) > 0;
}

/* Reads one letter for a value; 0 if the row cannot hold. */
static int letter(const struct rows *r, char c, int32_t lead, tn_placement variant, tn_value v, int whole_units,
                  tn_placement *place)
{
    int32_t dim = c == 'L' ? rank_of(r, 0) - 1 : c == '#' ? lead : c - '0';
    if (c == 'R' || c == 'P' || c == 'M' || c == 'F') {
        *place = c == 'R' ? TN_REPLICATE : c == 'F' ? TN_FLAT : TN_PARTIAL(c == 'M' ? TN_RED_MAX : TN_RED_SUM);
        return c != 'F' || v == 0 || r->p->values[v].rank > 0;
    }
    assert(c == 'L' || c == '#' || (c >= '0' && c < '0' + TN_MAX_DIMS));
    if (dim < 0)
        return 0;
    *place = TN_SHARD(dim) | variant;
    if (v == 0)
        return 1;
    if (!tn_placement_fits(r->p, v, r->axis, *place))
        return 0;
    int cuts_units = whole_units && r->unit && dim == r->p->values[v].rank - 1;
    return !cuts_units || grain(r->p, v, r->axis, *place) % r->unit == 0;
}

static void row(struct rows *r, const char *spec, int32_t lead, tn_placement variant)
{
    assert(r->n < r->most);
    struct tn_row *row = &r->row[r->n];
    const struct tn_op_data *o = &r->p->ops[r->op];
    memset(row, 0, sizeof *row);
    const char *out = strchr(spec, '>') + 1;
    for (uint32_t i = 0; spec[i] != '>'; i++)
        if (i < o->n_in && !letter(r, spec[i], lead, variant, o->in[i], r->unit_inputs >> i & 1, &row->in[i]))
            return;
    for (uint32_t i = 0; out[i]; i++)
        if (i < o->n_out && !letter(r, out[i], lead, variant, o->out[i], 0, &row->out[i]))
            return;
    r->n++;
}

/* Adds the row, for each leading dimension if it says '#', plain and as the neighbour's cut. */
static void add(struct rows *r, const char *spec)
{
    int each = strchr(spec, '#') != NULL, cuts = spec[strcspn(spec, "#L012345")] != 0;
    int32_t leads = each ? rank_of(r, 0) - 1 : 1;
    for (int32_t lead = 0; lead < leads; lead++) {
        row(r, spec, lead, 0);
        if (cuts && r->variant)
            row(r, spec, lead, r->variant);
    }
}

static int add_all(struct rows r, const char *const *specs)
{
    for (; *specs; specs++)
        add(&r, *specs);
    return r.n;
}

int tn_place_rows(const struct tn_program *p, tn_op op, int32_t axis, const char *const *specs, struct tn_row *rows,
                  int most)
{
    return add_all(begin(p, op, axis, rows, most), specs);
}

#define RULE(name, ...)                                                                                 \
    int place_##name(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most) \
    {                                                                                                   \
        return add_all(begin(p, op, axis, rows, most), (const char *const[]){ __VA_ARGS__, NULL });     \
    }

/* Element-wise over all tensors alike: each dimension's cut, then the letters of `others`. */
static int alike(struct rows r, const char *others, uint32_t skip_scalars)
{
    const struct tn_op_data *o = &r.p->ops[r.op];
    char letters[16], spec[2 * TN_OP_MOST_FIXED + 2];
    size_t n = 0;
    for (const char *c = others; *c; c++)
        letters[n++] = *c;
    tn_value like = o->n_in ? o->in[0] : o->out[0]; /* what is received has no input */
    for (int32_t d = 0; like && d < r.p->values[like].rank; d++)
        letters[n++] = (char)('0' + d);
    for (size_t l = 0; l < n; l++) {
        size_t at = 0;
        uint32_t n_in = o->n_in < TN_OP_MOST_FIXED ? o->n_in : TN_OP_MOST_FIXED;
        for (uint32_t i = 0; i < n_in; i++)
            spec[at++] = i + skip_scalars >= o->n_in ? 'R' : letters[l];
        spec[at++] = '>';
        for (uint32_t i = 0; i < o->n_out; i++)
            spec[at++] = letters[l];
        spec[at] = 0;
        add(&r, spec);
    }
    return r.n;
}

int place_same_linear(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    return alike(begin(p, op, axis, rows, most), "RPF", 0);
}

int place_same_nonlinear(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    return alike(begin(p, op, axis, rows, most), "RF", 0);
}

int place_scale_by(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    return alike(begin(p, op, axis, rows, most), "RPF", 1);
}

int place_dropout(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    return alike(begin(p, op, axis, rows, most), "R", 1);
}

/* Scalars come last: c, lr and, for adamw, t. */
int place_optimizer(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    return alike(begin(p, op, axis, rows, most), "RF", tn_rule_opcode(p, op) == TN_OP_ADAMW ? 3 : 2);
}

/* A dimension is cut by slower axes first, and a flat cut is of what all others left. So where a collective changes the
 * cut of a dimension along its axis, neither a faster axis must cut it yet nor any axis have cut the value flat, or the
 * parts would end up in another order. */
static int without_inner_cuts(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int n)
{
    static const char *const keys[] = { "dim", "from", "to" };
    int kept = 0;
    for (int i = 0; i < n; i++) {
        int inner = 0;
        uint32_t kind = TN_PLACE_KIND(rows[i].in[0]);
        for (int k = 0; k < 3; k++) {
            int64_t dim = tn_attr_i(p, op, keys[k], -1);
            inner |=
                kind == TN_PLACE_SHARD && axis < tn_attr_i(p, op, "axis", -1) && dim == TN_PLACE_DIM(rows[i].in[0]);
            inner |= kind == TN_PLACE_FLAT && dim >= 0;
        }
        if (!inner)
            rows[kept++] = rows[i];
    }
    return kept;
}

/* On axes other than its own a collective keeps every placement; on its own it is what its opcode says. */
int place_comm(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    struct rows r = begin(p, op, axis, rows, most);
    if (tn_attr_i(p, op, "axis", -1) != axis) {
        int reduces = tn_rule_opcode(p, op) == TN_OP_ALL_REDUCE || tn_rule_opcode(p, op) == TN_OP_REDUCE_SCATTER;
        int n = alike(r, !reduces ? "RPMF" : tn_attr_i(p, op, "red", TN_RED_SUM) == TN_RED_MAX ? "RMF" : "RPF", 0);
        return without_inner_cuts(p, op, axis, rows, n);
    }
    int32_t dim = (int32_t)tn_attr_i(p, op, "dim", -1);
    tn_placement cut = dim < 0 ? TN_FLAT : TN_SHARD(dim);
    tn_placement in = p->values[p->ops[op].in[0]].place[axis], out = p->values[p->ops[op].out[0]].place[axis];
    switch (tn_rule_opcode(p, op)) {
    case TN_OP_ALL_REDUCE: in = TN_PARTIAL(tn_attr_i(p, op, "red", 0)), out = TN_REPLICATE; break;
    case TN_OP_ALL_GATHER: in = cut | (in & 0xffff0000u), out = TN_REPLICATE; break;
    case TN_OP_REDUCE_SCATTER: in = TN_PARTIAL(tn_attr_i(p, op, "red", 0)), out = cut | (out & 0xffff0000u); break;
    case TN_OP_ALL_TO_ALL:
        in = TN_SHARD(tn_attr_i(p, op, "from", 0)) | (in & 0xffff0000u);
        out = TN_SHARD(tn_attr_i(p, op, "to", 0)) | (out & 0xffff0000u);
        break;
    case TN_OP_SLICE: in = TN_REPLICATE, out = cut | (out & 0xffff0000u); break;
    case TN_OP_UNSLICE: in = cut | (in & 0xffff0000u), out = TN_PARTIAL(TN_RED_SUM); break;
    default: in = out = TN_REPLICATE; break;
    }
    memset(rows, 0, sizeof *rows);
    rows->in[0] = in;
    rows->out[0] = out;
    return 1;
}

/* ids w > y. A cut vocabulary gives zeros for ids of other parts: the sum is the look-up. */
int place_embedding(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    struct rows r = begin(p, op, axis, rows, most);
    char columns[] = "R1>_";
    columns[3] = (char)('0' + rank_of(&r, 0));
    add(&r, "RR>R");
    for (int32_t d = 0; d < rank_of(&r, 0); d++) {
        char lead[] = { (char)('0' + d), 'R', '>', (char)('0' + d), 0 };
        add(&r, lead);
    }
    add(&r, "R0>P");
    add(&r, columns);
    return r.n;
}

int place_embedding_dw(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    struct rows r = begin(p, op, axis, rows, most);
    char columns[] = "R_1>1";
    columns[1] = (char)('0' + rank_of(&r, 0));
    add(&r, "RRR>R");
    for (int32_t d = 0; d < rank_of(&r, 0); d++) {
        char lead[] = { (char)('0' + d), (char)('0' + d), 'P', '>', 'P', 0 };
        add(&r, lead);
    }
    add(&r, "RR0>0");
    add(&r, columns);
    add(&r, "RPP>P");
    return r.n;
}

/* The linears: w is [K, N], or [N, K] with trans. */
#define LINEAR_RULE(name, plain, transposed)                                                            \
    int place_##name(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most) \
    {                                                                                                   \
        static const char *const as_kn[] = plain, *const as_nk[] = transposed;                          \
        return add_all(begin(p, op, axis, rows, most), tn_attr_i(p, op, "trans", 0) ? as_nk : as_kn);   \
    }
#define LIST(...)         \
    {                     \
        __VA_ARGS__, NULL \
    }

/* x w bias? > y: with a bias the contraction cannot be cut, for each part would add it. */
int place_linear(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    int trans = tn_attr_i(p, op, "trans", 0) != 0, bias = p->ops[op].n_in > 2 && p->ops[op].in[2];
    struct rows r = begin(p, op, axis, rows, most);
    add(&r, "RRR>R");
    add(&r, "#RR>#");
    add(&r, trans ? "R00>L" : "R10>L");
    if (bias)
        return r.n;
    add(&r, trans ? "L1>P" : "L0>P");
    add(&r, "PR>P");
    return r.n;
}
/* dy w acc? > dx */
LINEAR_RULE(linear_dx, LIST("RRR>R", "#R#>#", "L1P>P", "R0L>L", "PRP>P"),
            LIST("RRR>R", "#R#>#", "L0P>P", "R1L>L", "PRP>P"))
/* x dy acc? > dw */
LINEAR_RULE(linear_dw, LIST("RRR>R", "##P>P", "LR0>0", "RL1>1", "RPP>P"),
            LIST("RRR>R", "##P>P", "LR1>1", "RL0>0", "RPP>P"))

RULE(bias, "RR>R", "#R>#", "L0>L")                  /* x b > y */
RULE(bias_dw, "RR>R", "#P>P", "L0>0", "PP>P")       /* dy acc? > db */
RULE(bias_gelu_dx, "RRRR>RR", "##RP>#P", "LL00>L0") /* dy x b acc? > dx db */
RULE(count_targets, "R>R", "0>P", "1>P", "2>P")     /* labels > n */
RULE(sumsq, "R>R")                                  /* each input by itself: resolve.c */

/* Norms: whole, along each leading dimension, and with groups also between them along the last one. */
static int norm_rows(struct rows r, const char *whole, const char *leading, const char *groups)
{
    r.unit = tn_attr_i(r.p, r.op, "group", 0);
    r.unit_inputs = 1;
    add(&r, whole);
    add(&r, leading);
    if (r.unit)
        add(&r, groups);
    return r.n;
}

/* x w b? > y mean? rstd */
int place_norm(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    return norm_rows(begin(p, op, axis, rows, most), "RRR>RRR", "#RR>###", "LR>LL");
}

/* dy x w mean? rstd res? > dx */
int place_norm_dx(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    const char *leading = tn_rule_opcode(p, op) == TN_OP_LAYERNORM_DX ? "##R###>#" : "##R##>#";
    return norm_rows(begin(p, op, axis, rows, most), "RRRRRR>R", leading, "LLRLL>L");
}

/* dy x mean? rstd acc.. > dw db? */
int place_norm_dw(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    const char *leading = tn_rule_opcode(p, op) == TN_OP_LAYERNORM_DW ? "####PP>PP" : "###P>P";
    return norm_rows(begin(p, op, axis, rows, most), "RRRRRR>RR", leading, "LLLP>P");
}

/* x pos > y: linear in x, whole heads. */
int place_rope(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    struct rows r = begin(p, op, axis, rows, most);
    r.unit = tn_attr_i(p, op, "head_dim", 0);
    r.unit_inputs = 1;
    add(&r, "RR>R");
    add(&r, "##>#");
    add(&r, "LR>L");
    add(&r, "PR>P");
    return r.n;
}

/* 1 if each rank has a single key head left, so that the query heads of its group may be cut further. */
static int one_kv_head(const struct rows *r, tn_value k)
{
    const struct tn_value_data *value = &r->p->values[k];
    int64_t left = value->shape[2];
    for (int32_t a = 0; a < r->p->mesh->n_axes; a++)
        if (a != r->axis && TN_PLACE_KIND(value->place[a]) == TN_PLACE_SHARD && TN_PLACE_DIM(value->place[a]) == 2)
            left /= r->p->mesh->axis[a].size;
    return left == r->unit;
}

/* q k v start? > o lse: by batch or by heads; the sequence only through a strategy's own op. */
int place_attention(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    struct rows r = begin(p, op, axis, rows, most);
    r.unit = tn_attr_i(p, op, "head_dim", 0);
    r.unit_inputs = 3;
    add(&r, "RRRR>RR");
    add(&r, "0000>00");
    add(&r, "222R>22");
    if (one_kv_head(&r, p->ops[op].in[1]))
        add(&r, "2RRR>22");
    return r.n;
}

/* do q k v o lse start? > dq dk dv */
int place_attention_dx(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    struct rows r = begin(p, op, axis, rows, most);
    r.unit = tn_attr_i(p, op, "head_dim", 0);
    r.unit_inputs = 7;
    add(&r, "RRRRRRR>RRR");
    add(&r, "0000000>000");
    add(&r, "222222R>222");
    if (one_kv_head(&r, p->ops[op].in[2]))
        add(&r, "22RR22R>2PP");
    return r.n;
}

/* q k v qi ki start? o? lse? > o lse: as attention; and queries cut by sequence, with all keys or each rank with those
 * that it has at the time. */
int place_attention_block(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    struct rows r = begin(p, op, axis, rows, most);
    r.unit = tn_attr_i(p, op, "head_dim", 0);
    r.unit_inputs = 3;
    add(&r, "RRRRRRRR>RR");
    add(&r, "000RR000>00");
    add(&r, "222RRR22>22");
    if (one_kv_head(&r, p->ops[op].in[1]))
        add(&r, "2RRRRR22>22");
    add(&r, "11100111>11");
    add(&r, "1RR0R111>11");
    return r.n;
}

/* do q k v o lse qi ki start? dq? dk? dv? > dq dk dv */
int place_attention_block_dx(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most)
{
    struct rows r = begin(p, op, axis, rows, most);
    r.unit = tn_attr_i(p, op, "head_dim", 0);
    r.unit_inputs = 7;
    add(&r, "RRRRRRRRRRRR>RRR");
    add(&r, "000000RR0000>000");
    add(&r, "222222RRR222>222");
    if (one_kv_head(&r, p->ops[op].in[2]))
        add(&r, "22RR22RRR2PP>2PP");
    add(&r, "111111001111>111");
    add(&r, "11RR110R11PP>1PP");
    return r.n;
}

RULE(cross_entropy, "RR>RR", "##>P#", "LR>RR")       /* logits labels > loss lse; the last one: lower_cross_entropy */
RULE(cross_entropy_dx, "RRRR>R", "###R>#", "LRRR>L") /* logits labels lse seed > dlogits */
