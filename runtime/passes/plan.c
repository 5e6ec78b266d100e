/* Plan: see plan.h. Four steps: storages (which values share memory), waits (which communication or copy a later op
 * must wait for), lifetimes, offsets.
 *
 * Communication, and copies between spaces, run beside computation from the op that starts them to the first op that
 * needs their result or would overwrite their input; both buffers live until then. Everything else lives from its first
 * to its last op. So a value that is fetched is never read before its copy-out is done, and what it was copied from is
 * not used for anything else before. */
#include "passes/plan.h"
#include "passes/plan_place.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };
/* A copy away from the device frees memory only once somebody has waited for it: a later one does when so many are
 * under way, or any op that stands so far behind. */
enum { COPIES_UNDER_WAY = 2, OPS_BESIDE_COPY = 16 };

const char *const tn_category_name[TN_MEM_COUNT] = {
#define TN_X(name, text) text,
    TN_CATEGORY_LIST(TN_X)
#undef TN_X
};

/* A storage is named by the value that it was made for; others point to it, with an offset. */
struct planner {
    struct tn_plan *plan;
    const struct tn_program *p;
    tn_value *parent;      /* by value: the value whose memory it is part of; itself for a root */
    int64_t *delta;        /* by value: bytes into its parent's memory */
    int64_t *bytes;        /* by root */
    int64_t *first, *last; /* by root: order of the first and last op that needs it */
    int64_t *last_use;     /* by root: as last, communication not counted beyond its start */
    uint8_t *persistent, *category, *packed;
    tn_op *pending; /* by root: communication under way that writes it */
    tn_op *reading; /* by root: the latest communication under way that reads it */
    int64_t end;    /* order after the last op */
};

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static tn_value root_of(const struct planner *s, tn_value v, int64_t *offset)
{
    int64_t sum = 0;
    while (s->parent[v] != v) {
        sum += s->delta[v];
        v = s->parent[v];
    }
    if (offset)
        *offset = sum;
    return v;
}

static int64_t value_bytes(const struct tn_program *p, tn_value v)
{
    return tn_local_elements(p, v) * tn_dtype_bytes(p->values[v].dtype);
}

static void join(struct planner *s, tn_value v, tn_value into, int64_t delta)
{
    s->parent[v] = into;
    s->delta[v] = delta;
}

/* step 1: storages */

static void pack_inputs(struct planner *s, tn_op op)
{
    const struct tn_op_data *o = &s->p->ops[op];
    int64_t at = 0, item = tn_dtype_bytes(s->p->values[o->out[0]].dtype);
    for (uint32_t i = 0; i < o->n_in; i++) {
        int64_t offset;
        tn_value root = root_of(s, o->in[i], &offset);
        assert(offset == 0 && !s->packed[root] && !s->persistent[root]);
        join(s, root, o->out[0], at * item);
        s->packed[root] = 1;
        at += round_up(tn_local_elements(s->p, o->in[i]), 16);
    }
    s->bytes[o->out[0]] = round_up(at * item, ALIGN);
}

/* v is `delta` bytes into the memory of `of`. */
static void join_part(struct planner *s, tn_value v, tn_value of, int64_t delta)
{
    int64_t offset;
    tn_value root = root_of(s, of, &offset);
    join(s, v, root, offset + delta);
}

static void share_memory(struct planner *s, tn_op op)
{
    const struct tn_op_data *o = &s->p->ops[op];
    const struct tn_op_kind *kind = tn_op_kind(o->opcode);
    for (uint32_t i = 0; i < o->n_out; i++) {
        int in = kind->must_alias[i];
        if (in >= 0 && (uint32_t)in < o->n_in && o->in[in])
            join_part(s, o->out[i], o->in[in], 0);
    }
    if (o->opcode == TN_OP_SYNC)
        join_part(s, o->out[0], o->in[0], 0);
    if (o->opcode == TN_OP_VIEW)
        join_part(s, o->out[0], o->in[0],
                  tn_attr_i(s->p, op, "offset", 0) * tn_dtype_bytes(s->p->values[o->in[0]].dtype));
    if (o->opcode == TN_OP_PACK)
        pack_inputs(s, op);
}

static uint8_t category_of(uint32_t kind)
{
    switch (kind) {
    case TN_KIND_PARAM: return TN_MEM_PARAMS;
    case TN_KIND_STATE: return TN_MEM_OPTIMIZER;
    case TN_KIND_ACCUMULATOR: return TN_MEM_GRADIENTS;
    case TN_KIND_ACTIVATION: return TN_MEM_ACTIVATIONS;
    default: return TN_MEM_BUFFERS;
    }
}

static void grow(struct planner *s, tn_value v, int64_t elements)
{
    int64_t offset, bytes = round_up(elements * tn_dtype_bytes(s->p->values[v].dtype), ALIGN);
    tn_value root = root_of(s, v, &offset);
    if (s->bytes[root] < offset + bytes)
        s->bytes[root] = offset + bytes;
}

/* What is gathered from, or scattered into, flat parts has room for the padding that makes the parts equal. */
static void pad_flat(struct planner *s, tn_op op)
{
    const struct tn_op_data *o = &s->p->ops[op];
    int gathers = o->opcode == TN_OP_ALL_GATHER;
    if ((!gathers && o->opcode != TN_OP_REDUCE_SCATTER) || tn_attr_i(s->p, op, "dim", -1) >= 0)
        return;
    int32_t axis = (int32_t)tn_attr_i(s->p, op, "axis", 0);
    tn_value part = gathers ? o->in[0] : o->out[0], whole = gathers ? o->out[0] : o->in[0];
    int64_t elements = tn_flat_part(s->p, part, axis);
    grow(s, part, elements);
    grow(s, whole, elements * s->p->mesh->axis[axis].size);
}

static void find_storages(struct planner *s)
{
    const struct tn_program *p = s->p;
    for (tn_value v = 1; v <= p->n_values; v++) {
        s->parent[v] = v;
        s->bytes[v] = round_up(value_bytes(p, v), p->values[v].space == TN_SPACE_DISK ? TN_DISK_BLOCK : ALIGN);
        s->persistent[v] =
            !p->values[v].def && (p->values[v].kind == TN_KIND_PARAM || p->values[v].kind == TN_KIND_STATE);
    }
    TN_EACH_OP(p, op)
        share_memory(s, op);
    TN_EACH_OP(p, op)
        pad_flat(s, op);
}

/* 0 for an input `like`, which only says what an output is like. */
static int reads(const struct tn_op_data *o, uint32_t input)
{
    int is_like = (o->opcode == TN_OP_VIEW && input == 1) || (o->opcode == TN_OP_RECV && input == 0);
    return !is_like || input >= o->n_in;
}

static void note_uses(struct planner *s)
{
    const struct tn_program *p = s->p;
    for (tn_value v = 1; v <= p->n_values; v++) {
        s->first[v] = INT64_MAX;
        s->last[v] = s->last_use[v] = -1;
        s->category[v] = category_of(p->values[v].kind);
    }
    TN_EACH_OP(p, op) {
        const struct tn_op_data *o = &p->ops[op];
        for (uint32_t i = 0; i < o->n_in + o->n_out; i++) {
            tn_value v = i < o->n_in ? o->in[i] : o->out[i - o->n_in];
            if (!v || !reads(o, i))
                continue;
            tn_value root = root_of(s, v, NULL);
            if (o->order < s->first[root])
                s->first[root] = o->order;
            if (s->last_use[root] < o->order)
                s->last_use[root] = o->order;
            if (p->values[v].kind == TN_KIND_ACCUMULATOR)
                s->category[root] = TN_MEM_GRADIENTS;
            if (p->values[v].flags & TN_VALUE_OUTPUT)
                s->last_use[root] = s->end;
        }
    }
    for (tn_value v = 1; v <= p->n_values; v++)
        if (!p->values[v].def && s->parent[v] == v)
            s->first[v] = -1; /* the host writes it before the step */
}

/* Where ops.def allows it and the input dies here, an op works in place. */
static void reuse_inputs(struct planner *s)
{
    const struct tn_program *p = s->p;
    TN_EACH_OP(p, op) {
        const struct tn_op_data *o = &p->ops[op];
        const struct tn_op_kind *kind = tn_op_kind(o->opcode);
        for (uint32_t i = 0; i < o->n_out; i++) {
            tn_value out = o->out[i];
            if (!kind->may_alias[i] || s->parent[out] != out)
                continue;
            for (uint32_t k = 0; k < o->n_in && k < TN_OP_MOST_FIXED; k++) {
                if (!(kind->may_alias[i] >> k & 1) || !o->in[k])
                    continue;
                int64_t offset;
                tn_value root = root_of(s, o->in[k], &offset);
                int dies = s->last_use[root] == o->order && s->first[root] >= 0 && !s->persistent[root] && offset == 0;
                int shared = 0; /* another output has taken it */
                for (uint32_t j = 0; j < o->n_out; j++)
                    shared |= j != i && root_of(s, o->out[j], NULL) == root;
                if (dies && !shared && !s->packed[out] && s->bytes[root] == s->bytes[out] &&
                    tn_dtype_bytes(p->values[o->in[k]].dtype) == tn_dtype_bytes(p->values[out].dtype)) {
                    join(s, out, root, 0);
                    s->last_use[root] = s->last_use[out];
                    break;
                }
            }
        }
    }
}

/* step 2: waits */

static void add_wait(struct planner *s, tn_op comm, int64_t order, size_t *cap)
{
    struct tn_plan *plan = s->plan;
    plan->wait = tn_arena_grow(&plan->memory, plan->wait, sizeof *plan->wait, cap, plan->n_waits + 1);
    plan->wait[plan->n_waits++] = comm;
    const struct tn_op_data *o = &s->p->ops[comm];
    for (uint32_t i = 0; i < o->n_in + o->n_out; i++) {
        tn_value v = i < o->n_in ? o->in[i] : o->out[i - o->n_in];
        tn_value root = v && reads(o, i) ? root_of(s, v, NULL) : 0;
        if (!root)
            continue;
        if (s->last[root] < order)
            s->last[root] = order;
        if (s->pending[root] == comm)
            s->pending[root] = 0;
        if (s->reading[root] == comm)
            s->reading[root] = 0;
    }
}

static void wait_for(struct planner *s, tn_op comm, int64_t order, size_t *cap)
{
    if (comm)
        add_wait(s, comm, order, cap);
}

/* The latest send to each peer on each channel of each axis. */
struct sent {
    int64_t to;
    tn_op op;
};

/* The latest send on the way that `op` goes too, which it takes the place of. */
static tn_op take_way(struct planner *s, struct sent **ways, size_t *n, size_t *cap, tn_op op)
{
    int64_t to = (tn_attr_i(s->p, op, "axis", 0) * TN_MAX_CHANNELS + tn_attr_i(s->p, op, "channel", 0)) << 32 |
                 tn_attr_i(s->p, op, "peer", 0);
    size_t i = 0;
    while (i < *n && (*ways)[i].to != to)
        i++;
    if (i == *n) {
        *ways = tn_arena_grow(&s->plan->memory, *ways, sizeof **ways, cap, ++*n);
        (*ways)[i] = (struct sent){ .to = to };
    }
    tn_op before = (*ways)[i].op;
    (*ways)[i].op = op;
    return before;
}

static int runs_beside(uint32_t opcode)
{
    return tn_op_is_comm(opcode) || tn_op_is_copy(opcode);
}

/* Copies away from the device that nobody has waited for, the latest few. */
struct leaving {
    tn_op copy[COPIES_UNDER_WAY];
    uint32_t n;
};

static void wait_for_leaving(struct planner *s, struct leaving *leaving, tn_op op, size_t *cap)
{
    const struct tn_op_data *o = &s->p->ops[op];
    for (uint32_t i = 0; i < COPIES_UNDER_WAY; i++) {
        tn_op *copy = &leaving->copy[i];
        int full = o->opcode == TN_OP_OFFLOAD && i == leaving->n % COPIES_UNDER_WAY;
        if (!*copy || (!full && o->order - s->p->ops[*copy].order < OPS_BESIDE_COPY))
            continue;
        if (s->reading[root_of(s, s->p->ops[*copy].in[0], NULL)] == *copy)
            wait_for(s, *copy, o->order, cap);
        *copy = 0;
    }
    if (o->opcode == TN_OP_OFFLOAD)
        leaving->copy[leaving->n++ % COPIES_UNDER_WAY] = op;
}

/* An op waits for communication and copies that write what it touches, or read what it writes. */
static void find_waits(struct planner *s)
{
    const struct tn_program *p = s->p;
    struct tn_plan *plan = s->plan;
    size_t cap = 0, n_ways = 0, cap_ways = 0;
    struct sent *ways = NULL;
    struct leaving leaving = { .n = 0 };
    TN_EACH_OP(p, op) {
        const struct tn_op_data *o = &p->ops[op];
        plan->first_wait[o->order] = plan->n_waits;
        if (tn_op_is_free(o->opcode))
            continue;
        if (o->opcode == TN_OP_SEND) { /* waits for the one before it, so that what was sent is kept no longer */
            tn_op before = take_way(s, &ways, &n_ways, &cap_ways, op);
            if (before && s->reading[root_of(s, p->ops[before].in[0], NULL)] == before)
                wait_for(s, before, o->order, &cap);
        }
        wait_for_leaving(s, &leaving, op, &cap);
        for (uint32_t i = 0; i < o->n_in; i++)
            if (o->in[i] && reads(o, i))
                wait_for(s, s->pending[root_of(s, o->in[i], NULL)], o->order, &cap);
        for (uint32_t i = 0; i < o->n_out; i++) {
            tn_value root = root_of(s, o->out[i], NULL);
            wait_for(s, s->pending[root], o->order, &cap);
            wait_for(s, s->reading[root], o->order, &cap);
        }
        if (!runs_beside(o->opcode))
            continue;
        for (uint32_t i = 0; i < o->n_in && reads(o, i); i++) {
            if (!o->in[i])
                continue;
            tn_value root = root_of(s, o->in[i], NULL);
            if (s->reading[root]) /* one reader at a time is remembered */
                wait_for(s, s->reading[root], o->order, &cap);
            s->reading[root] = op;
        }
        for (uint32_t i = 0; i < o->n_out; i++)
            s->pending[root_of(s, o->out[i], NULL)] = op;
    }
    plan->first_wait[s->end] = plan->n_waits;
    TN_EACH_OP(p, op) { /* what nobody waited for ends with the step */
        const struct tn_op_data *o = &p->ops[op];
        for (uint32_t i = 0; runs_beside(o->opcode) && i < o->n_in + o->n_out; i++) {
            tn_value v = i < o->n_in ? o->in[i] : o->out[i - o->n_in], root = v ? root_of(s, v, NULL) : 0;
            if (v && (s->pending[root] == op || s->reading[root] == op))
                add_wait(s, op, s->end, &cap);
        }
    }
    plan->first_wait[s->end + 1] = plan->n_waits;
}

/* step 3 and 4: lifetimes, offsets */

static void find_lifetimes(struct planner *s)
{
    for (tn_value v = 1; v <= s->p->n_values; v++)
        if (s->parent[v] == v && s->last[v] < s->last_use[v])
            s->last[v] = s->last_use[v];
}

static int64_t *category(struct tn_plan *plan, uint32_t space)
{
    return space == TN_SPACE_DEVICE ? plan->category_bytes : plan->away[space].category_bytes;
}

static void place_persistent(struct planner *s, const struct tn_plan *base)
{
    struct tn_plan *plan = s->plan;
    const struct tn_program *p = s->p;
    int64_t at[TN_SPACES] = { 0 };
    for (tn_value v = 1; v <= p->n_values; v++) {
        if (!s->persistent[v])
            continue;
        uint32_t space = p->values[v].space;
        tn_value known = base ? tn_value_find(base->p, p->values[v].name) : 0;
        assert(!base || known); /* every program of a job has the first one's params */
        assert(!base || base->p->values[known].space == space);
        plan->offset[v] = base ? base->offset[known] : at[space];
        at[space] += s->bytes[v];
        category(plan, space)[s->category[v]] += s->bytes[v];
    }
    plan->persistent_bytes = base ? base->persistent_bytes : at[TN_SPACE_DEVICE];
    for (uint32_t space = TN_SPACE_HOST; space < TN_SPACES; space++)
        plan->away[space].persistent_bytes = base ? base->away[space].persistent_bytes : at[space];
}

/* Most that is live at once in each category. */
static void measure(struct planner *s, uint32_t space, const struct tn_block *block, size_t n)
{
    int64_t steps = s->end + 2;
    int64_t *change = calloc((size_t)(steps + 1), sizeof *change);
    assert(change);
    for (int c = 0; c < TN_MEM_COUNT; c++) {
        memset(change, 0, (size_t)(steps + 1) * sizeof *change);
        for (size_t i = 0; i < n; i++)
            if (s->category[block[i].root] == c) {
                change[block[i].first + 1] += block[i].bytes;
                change[block[i].last + 2] -= block[i].bytes;
            }
        int64_t live = 0, most = 0;
        for (int64_t t = 0; t <= steps; t++) {
            live += change[t];
            most = live > most ? live : most;
        }
        category(s->plan, space)[c] += most;
    }
    free(change);
}

/* Returns the bytes that it took, from `base` on. */
static int64_t place_transient(struct planner *s, uint32_t space, int64_t base)
{
    const struct tn_program *p = s->p;
    struct tn_plan *plan = s->plan;
    struct tn_block *block = malloc(((size_t)p->n_values + 1) * sizeof *block);
    size_t n = 0;
    assert(block);
    for (tn_value v = 1; v <= p->n_values; v++)
        if (p->values[v].space == space && s->parent[v] == v && !s->persistent[v] && s->last[v] >= 0 && s->bytes[v] > 0)
            block[n++] = (struct tn_block){ .root = v, .bytes = s->bytes[v], .first = s->first[v], .last = s->last[v] };
    int64_t bytes = tn_place_blocks(block, n);
    for (size_t i = 0; i < n; i++)
        plan->offset[block[i].root] = base + block[i].offset;
    measure(s, space, block, n);
    free(block);
    return bytes;
}

void tn_plan_init(struct tn_plan *plan, const struct tn_program *flat, const struct tn_plan *base, int64_t scratch)
{
    *plan = (struct tn_plan){ .p = flat, .scratch_bytes = round_up(scratch, ALIGN) };
    tn_arena_init(&plan->memory);
    size_t n = (size_t)flat->n_values + 1;
    int64_t order = 0;
    TN_EACH_OP(flat, op)
        flat->ops[op].order = order++;
    struct tn_arena work;
    tn_arena_init(&work);
    struct planner s = { .plan = plan, .p = flat, .end = order };
    s.parent = tn_arena_alloc(&work, n * sizeof *s.parent);
    s.delta = tn_arena_alloc(&work, n * sizeof *s.delta);
    s.bytes = tn_arena_alloc(&work, n * sizeof *s.bytes);
    s.first = tn_arena_alloc(&work, n * sizeof *s.first);
    s.last = tn_arena_alloc(&work, n * sizeof *s.last);
    s.last_use = tn_arena_alloc(&work, n * sizeof *s.last_use);
    s.persistent = tn_arena_alloc(&work, n);
    s.category = tn_arena_alloc(&work, n);
    s.packed = tn_arena_alloc(&work, n);
    s.pending = tn_arena_alloc(&work, n * sizeof *s.pending);
    s.reading = tn_arena_alloc(&work, n * sizeof *s.reading);
    plan->offset = tn_arena_alloc(&plan->memory, n * sizeof *plan->offset);
    plan->first_wait = tn_arena_alloc(&plan->memory, ((size_t)order + 2) * sizeof *plan->first_wait);
    for (size_t v = 0; v < n; v++)
        plan->offset[v] = -1;

    find_storages(&s);
    note_uses(&s);
    reuse_inputs(&s);
    find_waits(&s);
    find_lifetimes(&s);
    place_persistent(&s, base);
    plan->transient_bytes = place_transient(&s, TN_SPACE_DEVICE, plan->persistent_bytes);
    for (uint32_t space = TN_SPACE_HOST; space < TN_SPACES; space++)
        plan->away[space].transient_bytes = place_transient(&s, space, plan->away[space].persistent_bytes);
    for (tn_value v = 1; v < n; v++) {
        int64_t delta;
        tn_value root = root_of(&s, v, &delta);
        if (root != v && plan->offset[root] >= 0)
            plan->offset[v] = plan->offset[root] + delta;
    }
    plan->category_bytes[TN_MEM_BUFFERS] += plan->scratch_bytes;
    tn_arena_finish(&work);
}

void tn_plan_finish(struct tn_plan *plan)
{
    tn_arena_finish(&plan->memory);
    *plan = (struct tn_plan){ 0 };
}

int64_t tn_plan_away(const struct tn_plan *plan, uint32_t space)
{
    return plan->away[space].persistent_bytes + plan->away[space].transient_bytes;
}

int64_t tn_plan_bytes(const struct tn_plan *plan)
{
    return plan->persistent_bytes + plan->transient_bytes + plan->scratch_bytes;
}
