/* Collectives: publish, agree, and do the work in slices. The protocol is explained in wait.c.
 *
 * An operation's work is cut in pieces (one for each rank that gets or gives one), a piece in
 * slices of cache size. A rank starts with the slices of its own part, so that its share stays
 * in its core's cache from one operation to the next, and then takes what others left. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sched.h>
#include <unistd.h>

#include "shm.h"

enum { SLICE_MIN = 16 << 10, SLICE_MAX = 64 << 10, SLICES_PER_WORKER = 4, FULL_NAP_US = 50 };

static struct shm_slot *slot_of(const struct tn_comm *c, int32_t member, uint64_t number)
{
    return &c->slots[(uint64_t)member * RING + number % RING];
}

static struct shm_state *state_of(const struct tn_comm *c, uint64_t number)
{
    return &c->block->states[number % RING];
}

/* Pieces of `count` elements in the send and in the receive buffer. */
static int32_t in_pieces(const struct tn_request *r)
{
    return r->op == TN_CALL_REDUCE_SCATTER || r->op == TN_CALL_ALL_TO_ALL ? r->comm->n : 1;
}

static int32_t out_pieces(const struct tn_request *r)
{
    return r->op == TN_CALL_ALL_GATHER || r->op == TN_CALL_ALL_TO_ALL ? r->comm->n : 1;
}

static int32_t work_pieces(const struct tn_request *r)
{
    return r->op == TN_CALL_ALL_REDUCE || r->op == TN_CALL_BROADCAST ? 1 : r->comm->n;
}

/* ---- publish ---- */

static uint64_t least_completed(const struct tn_comm *c)
{
    uint64_t least = UINT64_MAX;
    for (int32_t i = 0; i < c->n; i++) {
        uint64_t done = atomic_load(&c->block->members[i].completed);
        least = done < least ? done : least;
    }
    return least;
}

/* Waits until no member can still look at the slot that the next operation takes. */
static tn_status find_room(struct tn_comm *c, const struct tn_request *r)
{
    uint64_t end = 0;
    while (c->next >= c->room) {
        c->room = least_completed(c) + RING;
        if (c->next < c->room)
            break;
        shm_advance(c->shm, 1);
        tn_status st = shm_failure(c);
        if (st != TN_OK)
            return st;
        uint64_t now = shm_now();
        if (!end)
            end = c->shm->timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + c->shm->timeout_ns;
        st = shm_poll(c->shm, now);
        if (st != TN_OK && st != TN_PENDING)
            return shm_error(c, TN_PEER, -1, r, "%s number %" PRIu64 " of group %s: a rank of the job has died",
                             tn_call_name(r->op), r->number, c->name);
        if (now >= end)
            return shm_error(c, TN_TIMEOUT, -1, r,
                             "%s number %" PRIu64 " of group %s: %d operations are under way and "
                             "a member does not go on",
                             tn_call_name(r->op), r->number, c->name, RING);
        usleep(FULL_NAP_US);
    }
    return TN_OK;
}

static void fill_small(const struct tn_request *r, struct shm_slot *slot)
{
    const struct tn_comm *c = r->comm;
    if (r->count > 0 && r->op != TN_CALL_BARRIER && (r->op != TN_CALL_BROADCAST || r->root == c->me))
        memcpy(slot->data, r->in, r->count * r->esize * (uint64_t)in_pieces(r));
}

static void fill_large(struct tn_request *r, struct shm_slot *slot)
{
    const struct shm *s = r->comm->shm;
    uint64_t bytes = r->count * r->esize;
    slot->large.send =
        r->op == TN_CALL_BROADCAST && r->root != r->comm->me ? 0 : shm_locate(s, r->in, bytes * (uint64_t)in_pieces(r));
    slot->large.recv = shm_locate(s, r->out, bytes * (uint64_t)out_pieces(r));
    atomic_store_explicit(&slot->large.rounds, 0, memory_order_relaxed);
}

static uint32_t what_of(const struct tn_request *r)
{
    return r->op | r->dtype << 8 | r->red << 16;
}

static void clear_state(struct shm_state *state)
{
    for (int i = 0; i < PARTS; i++)
        atomic_store_explicit(&state->parts[i].claimed, 0, memory_order_relaxed);
    atomic_store_explicit(&state->done, 0, memory_order_relaxed);
    atomic_store_explicit(&state->ready, 0, memory_order_relaxed);
}

static void publish(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    struct shm_slot *slot = slot_of(c, c->me, r->number);
    slot->what = what_of(r);
    slot->root = r->root;
    slot->count = r->count;
    if (r->is_small)
        fill_small(r, slot);
    else
        fill_large(r, slot);
    if (c->me == 0 && !r->is_small)
        clear_state(state_of(c, r->number));
    c->ring[r->number % RING] = r;
    c->next = r->number + 1;
    atomic_store(&slot->seq, r->number + 1);
}

/* ---- agree ---- */

static void print_call(const struct shm_slot *slot, char *to, size_t bytes)
{
    uint32_t op = slot->what & 0xff, dtype = slot->what >> 8 & 0xff, red = slot->what >> 16;
    int reduces = op == TN_CALL_ALL_REDUCE || op == TN_CALL_REDUCE_SCATTER;
    if (op == TN_CALL_BARRIER)
        snprintf(to, bytes, "barrier");
    else if (op == TN_CALL_BROADCAST)
        snprintf(to, bytes, "broadcast of %" PRIu64 " %s from member %d", slot->count, tn_call_dtype_name(dtype),
                 (int)slot->root);
    else
        snprintf(to, bytes, "%s%s of %" PRIu64 " %s", tn_call_name(op),
                 reduces && red == TN_RED_MAX ? " (max)"
                 : reduces                    ? " (sum)"
                                              : "",
                 slot->count, tn_call_dtype_name(dtype));
}

/* All members compare with member 0, so all name the same two. */
static int is_agreement(struct tn_comm *c, const struct tn_request *r)
{
    const struct shm_slot *a = slot_of(c, 0, r->number);
    for (int32_t i = 1; i < c->n; i++) {
        const struct shm_slot *b = slot_of(c, i, r->number);
        if (a->what == b->what && a->root == b->root && a->count == b->count)
            continue;
        char first[128], second[128];
        print_call(a, first, sizeof first);
        print_call(b, second, sizeof second);
        shm_comm_fail(c, TN_CONFLICT, c->ranks[c->me == 0 ? i : 0], r,
                      "operation %" PRIu64 " of group %s: rank %d calls %s, rank %d calls %s", r->number, c->name,
                      (int)c->ranks[0], first, (int)c->ranks[i], second);
        return 0;
    }
    return 1;
}

static int have_all_published(struct tn_comm *c, uint64_t number)
{
    if (atomic_load(&slot_of(c, c->missing, number)->seq) != number + 1)
        return 0;
    for (int32_t i = 0; i < c->n; i++)
        if (atomic_load(&slot_of(c, i, number)->seq) != number + 1) {
            c->missing = i;
            return 0;
        }
    return 1;
}

static int is_any_private(const struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    for (int32_t i = 0; i < c->n; i++) {
        const struct shm_slot *slot = slot_of(c, i, r->number);
        if (slot->large.send == LOC_PRIVATE || slot->large.recv == LOC_PRIVATE)
            return 1;
    }
    return 0;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* Rounds and slices: the same on all members, since they follow from the descriptors. */
static void plan(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    for (int32_t i = 0; i < c->n; i++) {
        const struct shm_slot *slot = slot_of(c, i, r->number);
        int stages = slot->large.send == LOC_PRIVATE || slot->large.recv == LOC_PRIVATE;
        r->stagers += stages;
        if (i == c->me)
            r->is_stager = (uint8_t)stages;
    }
    r->send_loc = slot_of(c, c->me, r->number)->large.send;
    r->recv_loc = slot_of(c, c->me, r->number)->large.recv;
    r->is_staged = r->stagers > 0;
    r->round_elements = r->count;
    if (r->is_staged) {
        uint64_t pieces = (uint64_t)(in_pieces(r) > out_pieces(r) ? in_pieces(r) : out_pieces(r));
        uint64_t fits = BOUNCE_BYTES / r->esize / pieces;
        fits = fits > 64 ? fits / 64 * 64 : fits;
        r->round_elements = fits < r->count ? fits : r->count;
    }
    r->rounds = (uint32_t)ceil_div(r->count, r->round_elements);
    int32_t workers = c->n < c->shm->workers ? c->n : c->shm->workers;
    uint64_t bytes = r->round_elements * r->esize;
    uint64_t slice = bytes * (uint64_t)work_pieces(r) / ((uint64_t)workers * SLICES_PER_WORKER);
    slice = slice < SLICE_MIN ? SLICE_MIN : slice > SLICE_MAX ? SLICE_MAX : slice / 4096 * 4096;
    r->slice_elements = slice / r->esize;
    r->slices_per_piece = (uint32_t)ceil_div(r->round_elements, r->slice_elements);
    r->slices = r->slices_per_piece * (uint32_t)work_pieces(r);
    uint64_t footprint = bytes * (uint64_t)(in_pieces(r) + out_pieces(r)) * (uint64_t)c->n;
    r->stream = footprint > c->shm->cache_bytes / 4 * 3 && !r->is_staged; /* programs have other things in it too */
    r->is_planned = 1;
}

/* Ranks asleep whose help is wanted: all where each has to copy, else as many as there are
 * cores to run them. */
static int32_t helpers(const struct tn_request *r)
{
    if (r->is_small || is_any_private(r))
        return r->comm->n;
    return r->comm->shm->workers > 2 ? r->comm->shm->workers - 1 : 1;
}

static void agree(struct tn_comm *c, int is_caller_publishing)
{
    while (c->agreed < c->next && have_all_published(c, c->agreed)) {
        struct tn_request *r = c->ring[c->agreed % RING];
        if (!is_agreement(c, r))
            return;
        r->is_agreed = 1;
        c->agreed++;
        if (is_caller_publishing)
            shm_ring_all(c, helpers(r));
    }
}

/* ---- work ---- */

static void finish_small(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    uint64_t bytes = r->count * r->esize;
    void *out = r->out;
    r->status = TN_OK;
    if (r->count == 0)
        return;
    for (int32_t i = 0; i < c->n; i++)
        c->in_ptrs[i] = slot_of(c, i, r->number)->data;
    switch (r->op) {
    case TN_CALL_REDUCE_SCATTER:
        for (int32_t i = 0; i < c->n; i++)
            c->in_ptrs[i] = (const char *)c->in_ptrs[i] + (uint64_t)c->me * bytes;
        /* fallthrough */
    case TN_CALL_ALL_REDUCE: c->shm->kernels->reduce(r->dtype, r->red, c->in_ptrs, c->n, &out, 1, r->count, 0); break;
    case TN_CALL_ALL_GATHER:
        for (int32_t i = 0; i < c->n; i++)
            memcpy(r->out + (uint64_t)i * bytes, c->in_ptrs[i], bytes);
        break;
    case TN_CALL_ALL_TO_ALL:
        for (int32_t i = 0; i < c->n; i++)
            memcpy(r->out + (uint64_t)i * bytes, (const char *)c->in_ptrs[i] + (uint64_t)c->me * bytes, bytes);
        break;
    case TN_CALL_BROADCAST: memcpy(r->out, c->in_ptrs[r->root], bytes); break;
    default: break;
    }
}

/* Where a member's piece of a round lies, as this rank maps it. */
struct view {
    char *in, *out;
    uint64_t in_stride, out_stride; /* from piece to piece */
};

static struct view view_of(const struct tn_request *r, int32_t member, uint32_t round)
{
    const struct tn_comm *c = r->comm;
    const struct shm_slot *slot = slot_of(c, member, r->number);
    char *bounce = c->bounce + (uint64_t)member * 2 * BOUNCE_BYTES;
    uint64_t whole = r->count * r->esize, part = r->round_elements * r->esize, at = round * part;
    struct view v = { bounce, bounce + BOUNCE_BYTES, part, part };
    if (slot->large.send != LOC_PRIVATE) {
        v.in = shm_at(c->shm, slot->large.send) + at;
        v.in_stride = whole;
    }
    if (slot->large.recv != LOC_PRIVATE) {
        v.out = shm_at(c->shm, slot->large.recv) + at;
        v.out_stride = whole;
    }
    return v;
}

static void reduce_slice(const struct tn_request *r, uint32_t round, int32_t piece, uint64_t from, uint64_t count)
{
    struct tn_comm *c = r->comm;
    int scatter = r->op == TN_CALL_REDUCE_SCATTER;
    for (int32_t i = 0; i < c->n; i++) {
        struct view v = view_of(r, i, round);
        c->in_ptrs[i] = v.in + (uint64_t)piece * v.in_stride + from * r->esize;
        if (!scatter || i == piece)
            c->out_ptrs[scatter ? 0 : i] = v.out + from * r->esize;
    }
    int stream = r->stream && c->in_ptrs[scatter ? piece : 0] != c->out_ptrs[0];
    c->shm->kernels->reduce(r->dtype, r->red, c->in_ptrs, c->n, c->out_ptrs, scatter ? 1 : c->n, count, stream);
}

/* all_gather of the piece that member `piece` gives; broadcast of the root's. */
static void spread_slice(const struct tn_request *r, uint32_t round, int32_t piece, uint64_t from, uint64_t count)
{
    struct tn_comm *c = r->comm;
    int32_t source = r->op == TN_CALL_BROADCAST ? r->root : piece, m = 0;
    const char *in = view_of(r, source, round).in + from * r->esize;
    for (int32_t i = 0; i < c->n; i++) {
        struct view v = view_of(r, i, round);
        char *out = v.out + (r->op == TN_CALL_BROADCAST ? 0 : (uint64_t)piece * v.out_stride) + from * r->esize;
        if (out != in)
            c->out_ptrs[m++] = out;
    }
    c->shm->kernels->copy(in, c->out_ptrs, m, count * r->esize, r->stream);
}

/* all_to_all, everything that member `piece` gets. */
static void deal_slice(const struct tn_request *r, uint32_t round, int32_t piece, uint64_t from, uint64_t count)
{
    const struct tn_comm *c = r->comm;
    struct view to = view_of(r, piece, round);
    for (int32_t i = 0; i < c->n; i++) {
        struct view v = view_of(r, i, round);
        const char *in = v.in + (uint64_t)piece * v.in_stride + from * r->esize;
        void *out = to.out + (uint64_t)i * to.out_stride + from * r->esize;
        if (out != in)
            c->shm->kernels->copy(in, &out, 1, count * r->esize, r->stream);
    }
}

static void work(const struct tn_request *r, uint32_t round, uint32_t slice)
{
    uint64_t left = r->count - round * r->round_elements;
    uint64_t elements = left < r->round_elements ? left : r->round_elements;
    int32_t piece = (int32_t)(slice / r->slices_per_piece);
    uint64_t from = slice % r->slices_per_piece * r->slice_elements;
    if (from >= elements)
        return;
    uint64_t count = elements - from < r->slice_elements ? elements - from : r->slice_elements;
    switch (r->op) {
    case TN_CALL_ALL_REDUCE:
    case TN_CALL_REDUCE_SCATTER: reduce_slice(r, round, piece, from, count); break;
    case TN_CALL_ALL_TO_ALL: deal_slice(r, round, piece, from, count); break;
    default: spread_slice(r, round, piece, from, count); break;
    }
}

static uint32_t part_start(const struct tn_request *r, uint32_t parts, uint32_t part)
{
    return (uint32_t)((uint64_t)r->slices * part / parts);
}

/* Claims a slice of a part in the rounds that are ready. */
static int claim(const struct tn_request *r, uint32_t parts, uint32_t part, uint32_t ready, uint32_t *round,
                 uint32_t *slice)
{
    _Atomic uint32_t *claimed = &state_of(r->comm, r->number)->parts[part].claimed;
    uint32_t start = part_start(r, parts, part), size = part_start(r, parts, part + 1) - start;
    uint32_t at = atomic_load(claimed);
    do
        if (at >= size * ready)
            return 0;
    while (!atomic_compare_exchange_weak(claimed, &at, at + 1));
    *round = at / size;
    *slice = start + at % size;
    return 1;
}

static uint32_t first_part(const struct tn_comm *c, uint32_t parts)
{
    if (c->shm->n <= c->shm->cores)
        return (uint32_t)((uint64_t)c->me * parts / (uint64_t)c->n);
    int cpu = sched_getcpu(); /* several ranks share a core and its cache */
    return cpu < 0 ? 0 : (uint32_t)cpu % parts;
}

static uint32_t rounds_ready(const struct tn_request *r)
{
    if (!r->is_staged)
        return 1;
    uint32_t ready = atomic_load(&state_of(r->comm, r->number)->ready) / (uint32_t)r->stagers;
    return ready < r->rounds ? ready : r->rounds;
}

/* Works on slices while there are some and the budget lasts. Returns what is left of it. */
static int work_on(const struct tn_request *r, int budget)
{
    struct tn_comm *c = r->comm;
    struct shm_state *state = state_of(c, r->number);
    int32_t most = c->n < c->shm->workers ? c->n : c->shm->workers;
    uint32_t parts = most < PARTS ? (uint32_t)most : PARTS, ready = rounds_ready(r);
    uint32_t part = first_part(c, parts);
    for (uint32_t i = 0; i < parts && budget != 0; i++, part = part + 1 < parts ? part + 1 : 0) {
        uint32_t round, slice;
        while (budget != 0 && claim(r, parts, part, ready, &round, &slice)) {
            work(r, round, slice);
            if ((atomic_fetch_add(&state->done, 1) + 1) % r->slices == 0)
                shm_ring_all(c, c->n);
            budget -= budget > 0;
        }
    }
    return budget;
}

/* ---- staging ---- */

static uint64_t elements_of(const struct tn_request *r, uint32_t round)
{
    uint64_t left = r->count - round * r->round_elements;
    return left < r->round_elements ? left : r->round_elements;
}

static void lay_out(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    struct shm_state *state = state_of(c, r->number);
    uint64_t whole = r->count * r->esize, part = r->round_elements * r->esize;
    char *bounce = c->bounce + (uint64_t)c->me * 2 * BOUNCE_BYTES;
    if (r->send_loc == LOC_PRIVATE)
        for (int32_t p = 0; p < in_pieces(r); p++)
            memcpy(bounce + (uint64_t)p * part, r->in + (uint64_t)p * whole + r->round * part,
                   elements_of(r, r->round) * r->esize);
    r->is_laid_out = 1;
    atomic_store(&slot_of(c, c->me, r->number)->large.rounds, r->round + 1);
    if (atomic_fetch_add(&state->ready, 1) + 1 == (uint32_t)r->stagers * (r->round + 1))
        shm_ring_all(c, c->n);
}

static void take_out(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    uint64_t whole = r->count * r->esize, part = r->round_elements * r->esize;
    const char *bounce = c->bounce + ((uint64_t)c->me * 2 + 1) * BOUNCE_BYTES;
    if (r->recv_loc == LOC_PRIVATE)
        for (int32_t p = 0; p < out_pieces(r); p++)
            memcpy(r->out + (uint64_t)p * whole + r->round * part, bounce + (uint64_t)p * part,
                   elements_of(r, r->round) * r->esize);
    r->is_laid_out = 0;
    r->round++;
}

/* ---- one operation, one step on ---- */

static int advance_one(struct tn_request *r, int budget, int *may_stage)
{
    struct shm_state *state = state_of(r->comm, r->number);
    if (r->is_small) {
        finish_small(r);
        return budget;
    }
    if (!r->is_planned)
        plan(r);
    int stages = r->is_stager && *may_stage;
    for (int again = 1; again && r->status == TN_PENDING;) {
        again = 0;
        if (stages && !r->is_laid_out)
            lay_out(r);
        budget = work_on(r, budget);
        uint32_t done = atomic_load(&state->done);
        if (r->is_laid_out && done >= r->slices * (r->round + 1)) {
            take_out(r);
            again = budget != 0;
        }
        if (r->is_stager ? r->round == r->rounds : done == r->slices * r->rounds)
            r->status = TN_OK;
    }
    if (r->is_stager && r->status == TN_PENDING)
        *may_stage = 0;
    return budget;
}

void shm_ops_advance(struct tn_comm *c, int budget)
{
    int may_stage = 1;
    agree(c, 0);
    for (uint64_t k = c->head; k < c->agreed && budget != 0; k++) {
        struct tn_request *r = c->ring[k % RING];
        if (r)
            budget = advance_one(r, budget, &may_stage);
        if (r && r->status != TN_PENDING)
            c->ring[k % RING] = NULL;
    }
    uint64_t head = c->head;
    while (c->head < c->agreed && !c->ring[c->head % RING])
        c->head++;
    if (c->head != head)
        atomic_store(&c->block->members[c->me].completed, c->head);
}

int32_t shm_ops_missing(struct tn_comm *c, const struct tn_request *r)
{
    for (uint64_t k = c->head; k <= r->number; k++)
        for (int32_t i = 0; i < c->n; i++)
            if (atomic_load(&slot_of(c, i, k)->seq) < k + 1)
                return i;
    for (int32_t i = 0; i < c->n && r->is_staged; i++) {
        const struct shm_slot *slot = slot_of(c, i, r->number);
        if ((slot->large.send == LOC_PRIVATE || slot->large.recv == LOC_PRIVATE) &&
            atomic_load(&slot->large.rounds) < (r->is_stager ? r->round + 1 : rounds_ready(r) + 1))
            return i;
    }
    return -1;
}

/* ---- start ---- */

static tn_status check(struct tn_comm *c, struct tn_request *r)
{
    r->esize = r->op == TN_CALL_BARRIER ? 1 : tn_call_dtype_bytes(r->dtype);
    int reduces = r->op == TN_CALL_ALL_REDUCE || r->op == TN_CALL_REDUCE_SCATTER;
    if (!r->esize)
        return shm_error(c, TN_INVALID, -1, r, "shm: %s with dtype %u", tn_call_name(r->op), (unsigned)r->dtype);
    if (reduces && !shm_can_reduce(r->dtype))
        return shm_error(c, TN_UNSUPPORTED, -1, r, "shm: %s of %s; use f32, bf16, f64, i32 or i64", tn_call_name(r->op),
                         tn_call_dtype_name(r->dtype));
    if (reduces && r->red != TN_RED_SUM && r->red != TN_RED_MAX)
        return shm_error(c, TN_UNSUPPORTED, -1, r, "shm: reduction %u; use sum or max", (unsigned)r->red);
    if (r->root < 0 || r->root >= c->n)
        return shm_error(c, TN_INVALID, -1, r, "shm: broadcast from member %d of %d", (int)r->root, (int)c->n);
    if (r->count > UINT64_C(1) << 44 || r->count * r->esize * (uint64_t)c->n >= UINT64_C(1) << 47)
        return shm_error(c, TN_INVALID, -1, r, "shm: %s of %" PRIu64 " elements", tn_call_name(r->op), r->count);
    return TN_OK;
}

/* A group of one: what is left of any collective is a copy. */
static void finish_alone(struct tn_request *r)
{
    if (r->count > 0 && r->out != r->in)
        memmove(r->out, r->in, r->count * r->esize);
    r->status = TN_OK;
    r->comm->next = r->comm->head = r->comm->agreed = r->number + 1;
}

static tn_status start(struct tn_comm *c, struct tn_request make, struct tn_request **out)
{
    *out = NULL;
    tn_status st = shm_failure(c);
    make.comm = c;
    make.number = c->next;
    if (st == TN_OK)
        st = check(c, &make);
    if (st == TN_OK && c->n > 1)
        st = find_room(c, &make);
    if (st != TN_OK)
        return st;
    struct tn_request *r = shm_request_new(c);
    if (!r)
        return shm_error(c, TN_NO_MEMORY, -1, &make, "shm: no memory for a request");
    *r = make;
    r->status = TN_PENDING;
    r->is_small = r->count * r->esize * (uint64_t)in_pieces(r) <= INLINE_BYTES;
    *out = r;
    if (c->n == 1) {
        finish_alone(r);
        return TN_OK;
    }
    publish(r);
    shm_activate(c);
    agree(c, 1);
    if (r->is_small && r->is_agreed && c->head == r->number)
        shm_ops_advance(c, 1);
    return TN_OK;
}

tn_status shm_call(struct tn_comm *c, const struct tn_call *a, struct tn_request **r)
{
    struct tn_request make = {
        .op = a->op, .dtype = a->dtype, .red = a->red, .root = a->peer, .count = a->count, .in = a->send, .out = a->recv
    };
    return a->op == TN_CALL_SEND || a->op == TN_CALL_RECV ? shm_p2p_start(c, make, r) : start(c, make, r);
}
