/* The collectives, as reactions: each starts some sends, and each message that lands may start more.
 *
 * Sums have the bits of rank order, so no algorithm here adds on the way, as rings and trees do; terms travel to who
 * adds them, which moves as many bytes as a ring. What is chosen, by size and group:
 *
 *     all_reduce      up to `small`: everything to all, each adds                          one round
 *                     the same in groups above `direct`: by recursive doubling             log2(n) rounds
 *                     larger: parts to their owners, who add and give the sums to all      two rounds, in segments
 *                     two members, up to `segment`: everything to the other                one round
 *     reduce_scatter  parts to their owners, who add                                       one round
 *     all_gather      direct; above `direct`, small: recursive doubling; large, across hosts: a ring
 *     all_to_all      direct
 *     broadcast       small: a binomial tree; large: fetched from the root by all; across hosts: the root deals out
 *                     parts, which the members give to each other (van de Geijn)
 *     barrier         dissemination (Hensgen, Finkel, Manber 1988): log2(n) rounds
 *
 * "Direct" starts with the next member, so that not all send to the same one first. A message is compared with the
 * operation it is for; if they differ, trouble.c finds out what each member calls. */
#include "backend.h"

#include <inttypes.h>
#include <string.h>

enum { TINY_CLASS, SMALL_CLASS, LARGE_CLASS, NO_CLASS }; /* of scratch */
enum { TINY_SCRATCH = 512, WINDOW = 2 /* segments being collected */ };
enum { TERMS, SUMS };  /* phases of an all_reduce in parts */
enum { DEALT, GIVEN }; /* phases of a broadcast in parts */

uint32_t ucx_what(const struct tn_request *r)
{
    return r->op | r->dtype << 8 | r->red << 16;
}

static uint64_t bytes_of(const struct tn_request *r)
{
    return r->count * r->esize;
}

struct tn_request *ucx_op_find(struct tn_comm *c, uint64_t number)
{
    struct tn_request *r = c->bucket[number % BUCKETS];
    while (r && r->number != number)
        r = r->chain;
    return r;
}

/* ---- cutting ---- */

struct cut {
    uint64_t at, length;
}; /* elements */

/* Part `m` of `length` elements cut for n members. */
static struct cut part(uint64_t length, int32_t n, int32_t m)
{
    uint64_t k = (uint64_t)m, whole = length / (uint64_t)n, more = length % (uint64_t)n;
    return (struct cut){ k * whole + (k < more ? k : more), whole + (k < more) };
}

/* Where a member's part of a segment lies: in what is sent, and (of an all_reduce) in what is received. */
static struct cut part_of_segment(const struct tn_request *r, uint32_t s, int32_t m)
{
    uint64_t n = r->op == TN_CALL_ALL_REDUCE ? (uint64_t)r->comm->n : 1, at = s * r->segment * n;
    uint64_t length = r->count - at < r->segment * n ? r->count - at : r->segment * n;
    if (r->op == TN_CALL_REDUCE_SCATTER)
        return (struct cut){ (uint64_t)m * r->count + at, length };
    struct cut cut = part(length, r->comm->n, m);
    return (struct cut){ at + cut.at, cut.length };
}

static char *term_at(const struct tn_request *r, uint32_t s, int32_t m)
{
    return r->scratch + ((uint64_t)(s % WINDOW) * (uint64_t)r->comm->n + (uint64_t)m) * r->segment * r->esize;
}

/* ---- sends ---- */

static void say(struct tn_request *r, int32_t member, uint32_t phase, uint32_t piece, const char *data, uint64_t bytes)
{
    if (!r->comm->failed)
        ucx_say(r->comm, r, member, ucx_head_of(r, KIND_DATA, phase, piece), data, bytes);
}

static void say_to_all(struct tn_request *r, uint32_t phase, uint32_t piece, const char *data, uint64_t bytes)
{
    const struct tn_comm *c = r->comm;
    for (int32_t i = 1; i < c->n; i++)
        say(r, (c->me + i) % c->n, phase, piece, data, bytes);
}

static int rounds_of(int32_t n)
{
    int rounds = 0;
    while (INT64_C(1) << rounds < n)
        rounds++;
    return rounds;
}

/* Doubling and barrier: a round is sent once those before it have come. */
static void say_rounds(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    uint32_t rounds = (uint32_t)rounds_of(c->n);
    while (r->round < rounds && (r->round == 0 || r->rounds_got >> (r->round - 1) & 1)) {
        uint32_t k = r->round++;
        if (r->op == TN_CALL_BARRIER) {
            say(r, (int32_t)((c->me + (INT64_C(1) << k)) % c->n), 0, k, NULL, 0);
            continue;
        }
        uint64_t block = (uint64_t)c->me >> k << k;
        const char *base = r->op == TN_CALL_ALL_REDUCE ? r->scratch : r->out;
        say(r, c->me ^ (1 << k), 0, k, base + block * bytes_of(r), bytes_of(r) << k);
    }
}

/* The subtrees, largest first. */
static void say_down_tree(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    int32_t place = (c->me - r->peer + c->n) % c->n, mask = 1;
    while (mask < c->n && !(place & mask))
        mask <<= 1;
    for (mask >>= 1; mask > 0; mask >>= 1)
        if (place + mask < c->n)
            say(r, (place + mask + r->peer) % c->n, 0, 0, r->out, bytes_of(r));
}

static void say_terms(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    for (; r->sent < r->segments && r->sent < r->reduced + WINDOW; r->sent++)
        for (int32_t i = 1; i < c->n; i++) {
            int32_t m = (c->me + i) % c->n;
            struct cut cut = part_of_segment(r, r->sent, m);
            say(r, m, TERMS, r->sent, r->in + cut.at * r->esize, cut.length * r->esize);
        }
}

static void say_part(struct tn_request *r, int32_t to, uint32_t phase, int32_t p)
{
    struct cut cut = part(r->count, r->comm->n, p);
    say(r, to, phase, (uint32_t)p, r->out + cut.at * r->esize, cut.length * r->esize);
}

static void deal(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    for (int32_t i = 1; i < c->n; i++) {
        int32_t m = (c->me + i) % c->n;
        say_part(r, m, DEALT, m);
        say_part(r, m, GIVEN, c->me);
    }
}

/* ---- adding ---- */

static void add(struct tn_request *r, void *out, uint64_t count)
{
    const struct tn_comm *c = r->comm;
    if (count)
        c->backend->kernels->reduce(r->dtype, r->red, c->sources, c->n, out, count);
}

static void add_all(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    for (int32_t m = 0; m < c->n; m++)
        c->sources[m] = m == c->me ? r->in : r->scratch + (uint64_t)m * bytes_of(r);
    add(r, r->out, r->count);
}

static void add_segment(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    uint32_t s = r->reduced;
    struct cut mine = part_of_segment(r, s, c->me);
    for (int32_t m = 0; m < c->n; m++)
        c->sources[m] = m == c->me ? r->in + mine.at * r->esize : term_at(r, s, m);
    char *out = r->out + (r->op == TN_CALL_ALL_REDUCE ? mine.at : s * r->segment) * r->esize;
    add(r, out, mine.length);
    r->parts_got[s % WINDOW] = 0;
    r->reduced++;
    if (r->op == TN_CALL_ALL_REDUCE)
        say_to_all(r, SUMS, s, out, mine.length * r->esize);
}

/* ---- where a message belongs: 1 and `to`; 0: no room yet; -1: nowhere ---- */

struct place {
    char *to;
    uint64_t bytes;
};

static int place_part(const struct tn_request *r, const struct ucx_head *h, struct place *p)
{
    struct cut cut;
    if (h->piece >= r->segments)
        return -1;
    if (h->phase == SUMS) {
        cut = part_of_segment(r, h->piece, h->from);
        *p = (struct place){ r->out + cut.at * r->esize, cut.length * r->esize };
        return 1;
    }
    if (h->piece >= r->reduced + WINDOW)
        return 0;
    cut = part_of_segment(r, h->piece, r->comm->me);
    *p = (struct place){ term_at(r, h->piece, h->from), cut.length * r->esize };
    return 1;
}

static int place_of(const struct tn_request *r, const struct ucx_head *h, struct place *p)
{
    const struct tn_comm *c = r->comm;
    uint64_t bytes = bytes_of(r);
    *p = (struct place){ r->out, bytes };
    if (!r->is_started)
        return 0;
    if (r->op == TN_CALL_BARRIER) {
        p->bytes = 0;
        return 1;
    }
    switch (r->way) {
    case WAY_PARTS: return place_part(r, h, p);
    case WAY_DOUBLING:
        if (h->piece >= (uint32_t)rounds_of(c->n))
            return -1;
        p->to = (r->op == TN_CALL_ALL_REDUCE ? r->scratch : r->out) +
                (((uint64_t)c->me >> h->piece ^ 1) << h->piece) * bytes;
        p->bytes = bytes << h->piece;
        return 1;
    case WAY_RING: p->to += (uint64_t)h->piece * bytes; return h->piece < (uint32_t)c->n ? 1 : -1;
    case WAY_SCATTER:
        if (h->piece >= (uint32_t)c->n)
            return -1;
        p->to += part(r->count, c->n, (int32_t)h->piece).at * r->esize;
        p->bytes = part(r->count, c->n, (int32_t)h->piece).length * r->esize;
        return 1;
    case WAY_TREE: return 1;
    default: /* direct */
        if (r->op == TN_CALL_BROADCAST)
            return 1;
        p->to = (r->op == TN_CALL_ALL_REDUCE ? r->scratch : r->out) + (uint64_t)h->from * bytes;
        return 1;
    }
}

static void try_to_take(struct tn_request *r, struct ucx_in *in)
{
    struct place p;
    int where = place_of(r, &in->head, &p);
    if (where == 0) {
        in->next = r->held;
        r->held = in;
        return;
    }
    if (where < 0 || p.bytes != in->bytes) {
        ucx_comm_fail(r->comm, r, TN_CONFLICT, r->comm->ranks[in->head.from],
                      "rank %d sent %" PRIu64
                      " bytes of another algorithm; the options of [ucx] must be the same on all "
                      "ranks",
                      (int)r->comm->ranks[in->head.from], in->bytes);
        ucx_drop(in);
        return;
    }
    ucx_take(r, in, p.to);
}

static void try_held(struct tn_request *r)
{
    struct ucx_in *held = r->held;
    r->held = NULL;
    while (held) {
        struct ucx_in *next = held->next;
        if (r->comm->failed)
            ucx_drop(held);
        else
            try_to_take(r, held);
        held = next;
    }
}

void ucx_op_message(struct tn_request *r, struct ucx_in *in)
{
    const struct ucx_head *h = &in->head;
    int32_t root = r->op == TN_CALL_BROADCAST ? r->peer : 0;
    if (h->what == ucx_what(r) && h->count == r->count && h->root == root) {
        try_to_take(r, in);
        return;
    }
    ucx_split(r->comm, r->number);
    ucx_drop(in);
}

void ucx_op_landed(struct tn_request *r, const struct ucx_head *h)
{
    const struct tn_comm *c = r->comm;
    int32_t next = (c->me + 1) % c->n;
    r->got++;
    c->backend->is_dirty = 1;
    if (r->op == TN_CALL_BARRIER || r->way == WAY_DOUBLING) {
        r->rounds_got |= UINT64_C(1) << h->piece;
        say_rounds(r);
    } else if (r->way == WAY_RING && (int32_t)h->piece != next) {
        say(r, next, 0, h->piece, r->out + (uint64_t)h->piece * bytes_of(r), bytes_of(r));
    } else if (r->way == WAY_TREE) {
        say_down_tree(r);
    } else if (r->way == WAY_SCATTER && h->phase == DEALT) {
        for (int32_t i = 1; i < c->n; i++)
            if ((c->me + i) % c->n != r->peer)
                say_part(r, (c->me + i) % c->n, GIVEN, c->me);
    } else if (r->way == WAY_PARTS && h->phase == TERMS) {
        r->parts_got[h->piece % WINDOW]++;
        while (r->reduced < r->segments && r->parts_got[r->reduced % WINDOW] == (uint32_t)c->n - 1 && !c->failed) {
            add_segment(r);
            say_terms(r);
            try_held(r);
        }
    }
}

/* ---- start and end ---- */

static int is_power_of_two(int32_t n)
{
    return (n & (n - 1)) == 0;
}

/* All members choose alike: by what is compared, the options, and the group. */
static void choose_way(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    const struct backend *b = c->backend;
    uint64_t bytes = bytes_of(r);
    uint32_t others = (uint32_t)c->n - 1, rounds = (uint32_t)rounds_of(c->n);
    int is_wide = c->n > b->direct_ranks && is_power_of_two(c->n);
    r->way = WAY_DIRECT;
    r->expected = others;
    r->scratch_class = NO_CLASS;
    switch (r->op) {
    case TN_CALL_ALL_REDUCE:
        if (c->n == 2 && bytes <= b->segment_bytes) /* no more bytes than in parts, and one round less */
            r->segments = 1;
        else
            r->way = bytes > b->small_bytes ? WAY_PARTS : is_wide ? WAY_DOUBLING : WAY_DIRECT;
        r->segment = r->count;
        r->scratch_class = bytes > b->small_bytes ? LARGE_CLASS : bytes > TINY_SCRATCH ? SMALL_CLASS : TINY_CLASS;
        break;
    case TN_CALL_REDUCE_SCATTER:
        r->way = WAY_PARTS;
        r->scratch_class = bytes > b->small_bytes ? LARGE_CLASS : bytes > TINY_SCRATCH ? SMALL_CLASS : TINY_CLASS;
        break;
    case TN_CALL_ALL_GATHER:
        if (is_wide && bytes <= b->eager_bytes)
            r->way = WAY_DOUBLING;
        else if (c->spans_hosts && bytes >= b->ring_bytes && c->n > 2)
            r->way = WAY_RING;
        break;
    case TN_CALL_BROADCAST:
        r->way = bytes <= b->eager_bytes || c->n == 2 ? WAY_TREE : c->spans_hosts ? WAY_SCATTER : WAY_DIRECT;
        r->expected = c->me == r->peer ? 0 : r->way == WAY_SCATTER ? (uint32_t)c->n : 1;
        break;
    case TN_CALL_BARRIER: r->expected = rounds; break;
    default: break;
    }
    if (r->way == WAY_DOUBLING)
        r->expected = rounds;
    if (r->way != WAY_PARTS)
        return;
    uint64_t whole = r->op == TN_CALL_ALL_REDUCE ? (r->count + others) / (uint64_t)c->n : r->count;
    uint64_t most = r->scratch_class == LARGE_CLASS ? b->segment_bytes / r->esize : whole;
    r->segments = (uint32_t)((whole + most - 1) / most);
    r->segment = (whole + r->segments - 1) / r->segments;
    if (r->op == TN_CALL_ALL_REDUCE) /* the last segment may not be needed after rounding up */
        r->segments = (uint32_t)((r->count + r->segment * (uint64_t)c->n - 1) / (r->segment * (uint64_t)c->n));
    else
        r->segments = (uint32_t)((r->count + r->segment - 1) / r->segment);
    r->expected = r->segments * others * (r->op == TN_CALL_ALL_REDUCE ? 2 : 1);
}

/* Large scratch is one for the group: who comes later waits. Returns whether the request has what it needs. */
static int find_scratch(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    const struct tn_host *host = c->backend->host;
    uint64_t n = (uint64_t)c->n, bytes = n * (r->scratch_class == TINY_CLASS ? TINY_SCRATCH : c->backend->small_bytes);
    if (r->scratch_class == NO_CLASS)
        return 1;
    if (r->scratch_class != LARGE_CLASS) {
        r->scratch = ucx_scratch_take(c, r->scratch_class, bytes);
    } else {
        if (c->owner)
            return 0;
        bytes = n * r->segment * r->esize * (r->segments > 1 ? WINDOW : 1);
        if (c->large_bytes < bytes) {
            host->release(host, c->large);
            c->large = host->alloc(host, bytes);
            c->large_bytes = c->large ? bytes : 0;
        }
        r->scratch = c->large;
        c->owner = r;
    }
    if (!r->scratch)
        ucx_comm_fail(c, r, TN_NO_MEMORY, -1, "no memory for the members' parts, %" PRIu64 " bytes", bytes);
    return r->scratch != NULL;
}

/* This rank's own contribution to its own result. */
static void copy_own(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    uint64_t bytes = bytes_of(r), me = (uint64_t)c->me;
    if (r->op == TN_CALL_ALL_GATHER && r->in != r->out + me * bytes)
        memcpy(r->out + me * bytes, r->in, bytes);
    if (r->op == TN_CALL_ALL_TO_ALL)
        memcpy(r->out + me * bytes, r->in + me * bytes, bytes);
    if (r->op == TN_CALL_BROADCAST && c->me == r->peer && r->in != r->out)
        memcpy(r->out, r->in, bytes);
    if (r->op == TN_CALL_ALL_REDUCE && r->way == WAY_DOUBLING)
        memcpy(r->scratch + me * bytes, r->in, bytes);
}

static void begin(struct tn_request *r)
{
    const struct tn_comm *c = r->comm;
    uint64_t bytes = bytes_of(r);
    if (!find_scratch(r))
        return;
    r->is_started = 1;
    copy_own(r);
    if (r->op == TN_CALL_BARRIER || r->way == WAY_DOUBLING)
        say_rounds(r);
    else if (r->way == WAY_PARTS)
        say_terms(r);
    else if (r->way == WAY_RING)
        say(r, (c->me + 1) % c->n, 0, (uint32_t)c->me, r->in, bytes);
    else if (r->op == TN_CALL_ALL_TO_ALL)
        for (int32_t i = 1; i < c->n; i++) {
            int32_t m = (c->me + i) % c->n;
            say(r, m, 0, 0, r->in + (uint64_t)m * bytes, bytes);
        }
    else if (r->op != TN_CALL_BROADCAST)
        say_to_all(r, 0, 0, r->in, bytes);
    else if (c->me == r->peer && r->way == WAY_TREE)
        say_down_tree(r);
    else if (c->me == r->peer && r->way == WAY_SCATTER)
        deal(r);
    else if (c->me == r->peer)
        say_to_all(r, 0, 0, r->out, bytes);
    if (r->held)
        try_held(r);
}

static void unlink_op(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    struct tn_request **at = &c->bucket[r->number % BUCKETS];
    while (*at != r)
        at = &(*at)->chain;
    *at = r->chain;
    if (r->prev)
        r->prev->next = r->next;
    else
        c->first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        c->last = r->prev;
}

void ucx_op_settle(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    if (!r->is_started || r->got < r->expected)
        return;
    if (r->under_way) /* in place, what is still being sent must not become a sum */
        return;
    if (r->op == TN_CALL_ALL_REDUCE && r->way != WAY_PARTS)
        add_all(r);
    r->status = TN_OK;
    unlink_op(r);
    if (r->scratch_class < LARGE_CLASS)
        ucx_scratch_give(c, r->scratch_class, r->scratch);
    if (c->owner != r)
        return;
    c->owner = NULL;
    for (struct tn_request *next = c->first; next; next = next->next)
        if (!next->is_started) {
            begin(next);
            break;
        }
}

static tn_status check(struct tn_comm *c, struct tn_request *r)
{
    int reduces = r->op == TN_CALL_ALL_REDUCE || r->op == TN_CALL_REDUCE_SCATTER;
    r->esize = r->op == TN_CALL_BARRIER ? 1 : tn_call_dtype_bytes(r->dtype);
    if (!r->esize)
        return ucx_error(c, r, TN_INVALID, -1, "there is no dtype %u", (unsigned)r->dtype);
    if (reduces && !ucx_can_reduce(r->dtype))
        return ucx_error(c, r, TN_UNSUPPORTED, -1, "%s cannot be reduced; use f32, bf16, f64, i32 or i64",
                         tn_call_dtype_name(r->dtype));
    if (reduces && r->red != TN_RED_SUM && r->red != TN_RED_MAX)
        return ucx_error(c, r, TN_UNSUPPORTED, -1, "reduction %u; use sum or max", (unsigned)r->red);
    if (r->peer < 0 || r->peer >= c->n)
        return ucx_error(c, r, TN_INVALID, -1, "from member %d of %d", (int)r->peer, (int)c->n);
    if (r->count > UINT64_C(1) << 44)
        return ucx_error(c, r, TN_INVALID, -1, "%" PRIu64 " elements", r->count);
    return TN_OK;
}

static void enlist(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    struct tn_request **bucket = &c->bucket[r->number % BUCKETS];
    r->chain = *bucket;
    *bucket = r;
    r->prev = c->last;
    r->next = NULL;
    if (c->last)
        c->last->next = r;
    else
        c->first = r;
    c->last = r;
}

static void adopt_early(struct tn_request *r)
{
    for (struct ucx_in **at = &r->comm->early; *at;) {
        struct ucx_in *in = *at;
        if (in->head.number != r->number) {
            at = &in->next;
            continue;
        }
        *at = in->next;
        if (r->comm->failed)
            ucx_drop(in);
        else
            ucx_op_message(r, in);
    }
}

static tn_status start(struct tn_comm *c, struct tn_request make, struct tn_request **out)
{
    *out = NULL;
    make.comm = c;
    make.number = c->number;
    tn_status status = ucx_failure(c);
    if (status == TN_OK)
        status = check(c, &make);
    if (status != TN_OK)
        return status;
    struct tn_request *r = ucx_request_new(c);
    if (!r)
        return ucx_error(c, &make, TN_NO_MEMORY, -1, "no memory for a request");
    make.made = r->made;
    make.status = TN_PENDING;
    *r = make;
    c->number++;
    c->past[r->number % BUCKETS] = (struct ucx_call){ 1, ucx_what(r), r->peer, r->count };
    *out = r;
    if (c->n == 1 || (r->count == 0 && r->op != TN_CALL_BARRIER)) {
        if (r->count && r->in != r->out)
            memmove(r->out, r->in, bytes_of(r));
        r->status = TN_OK;
        adopt_early(r); /* of a member that calls something else */
        return TN_OK;
    }
    choose_way(r);
    enlist(r);
    if (c->is_split && !c->has_told)
        ucx_split(c, c->split_at);
    begin(r);
    if (c->early && !c->failed)
        adopt_early(r);
    c->backend->is_dirty = 1;
    return TN_OK;
}

tn_status ucx_call(struct tn_comm *c, const struct tn_call *a, struct tn_request **r)
{
    struct tn_request make = {
        .op = a->op, .dtype = a->dtype, .red = a->red, .peer = a->peer, .count = a->count, .in = a->send, .out = a->recv
    };
    return a->op == TN_CALL_SEND   ? ucx_send(c, make, r)
           : a->op == TN_CALL_RECV ? ucx_recv(c, make, r)
                                   : start(c, make, r);
}
