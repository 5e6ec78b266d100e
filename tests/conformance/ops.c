/* Conformance: every operation gives the right values, in every dtype, size, place and alignment.
 *
 * Buffers have guard bytes around them; what is only read must stay as it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests.h"
#include "values.h"

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, N_OPS };
enum { SHARED, PRIVATE, MIXED, PLACES };
enum { GUARD = 64, GUARD_BYTE = 0xa5 };

struct buffers {
    char *shared, *own; /* mem_alloc'd and from the heap, two halves each */
    char *expected;
    size_t half;
};

struct setting {
    int op, place, in_place, shift, fill;
    uint32_t dtype, red;
    uint64_t count;
    int32_t root;
    uint64_t salt;
};

static void buffers_init(struct rank *r, struct buffers *b, size_t bytes)
{
    void *memory;
    b->half = (bytes + 4 * GUARD + 4095) / 4096 * 4096;
    CHECK_STATUS(r, r->t->mem_alloc(r->self, 2 * b->half, &memory), TN_OK);
    b->shared = memory;
    CHECK(r, (uintptr_t)memory % 64 == 0);
    b->own = malloc(2 * b->half);
    b->expected = malloc(b->half);
    CHECK(r, b->own && b->expected);
}

static void buffers_finish(struct rank *r, struct buffers *b)
{
    barrier(r); /* nobody reads ours any more */
    r->t->mem_free(r->self, b->shared);
    free(b->own);
    free(b->expected);
}

static int is_reduction(const struct setting *s)
{
    return s->op == ALL_REDUCE || s->op == REDUCE_SCATTER;
}

static uint64_t in_count(const struct rank *r, const struct setting *s)
{
    return s->count * (s->op == REDUCE_SCATTER || s->op == ALL_TO_ALL ? (uint64_t)r->n : 1);
}

static uint64_t out_count(const struct rank *r, const struct setting *s)
{
    return s->count * (s->op == ALL_GATHER || s->op == ALL_TO_ALL ? (uint64_t)r->n : 1);
}

/* Of `count` elements the first `drawn` stand there, which are all or a whole period: the rest. */
static void repeat(char *at, uint32_t e, uint64_t drawn, uint64_t count)
{
    for (uint64_t done = drawn; done < count;) {
        uint64_t more = done < count - done ? done : count - done;
        memcpy(at + done * e, at, more * e);
        done += more;
    }
}

static void give(const struct rank *r, const struct setting *s, char *in)
{
    uint64_t count = in_count(r, s), drawn = value_drawn(s->dtype, s->fill, count);
    uint32_t e = dtype_bytes(s->dtype);
    for (uint64_t i = 0; i < drawn; i++)
        value_store(in + i * e, s->dtype, s->fill, r->rank, i, s->salt);
    repeat(in, e, drawn, count);
}

static void expect(const struct rank *r, const struct setting *s, char *to)
{
    uint32_t e = dtype_bytes(s->dtype);
    uint64_t mine = (uint64_t)r->rank * s->count, drawn = value_drawn(s->dtype, s->fill, s->count);
    for (int32_t piece = 0; s->count && piece < (int32_t)(out_count(r, s) / s->count); piece++) {
        char *at = to + (uint64_t)piece * s->count * e;
        for (uint64_t i = 0; i < drawn; i++)
            switch (s->op) {
            case ALL_REDUCE: value_reduce(at + i * e, s->dtype, s->red, s->fill, NULL, r->n, i, s->salt); break;
            case REDUCE_SCATTER:
                value_reduce(at + i * e, s->dtype, s->red, s->fill, NULL, r->n, mine + i, s->salt);
                break;
            case ALL_GATHER: value_store(at + i * e, s->dtype, s->fill, piece, i, s->salt); break;
            case ALL_TO_ALL: value_store(at + i * e, s->dtype, s->fill, piece, mine + i, s->salt); break;
            default: value_store(at + i * e, s->dtype, s->fill, s->root, i, s->salt); break;
            }
        repeat(at, e, drawn, s->count);
    }
}

static tn_status call(struct rank *r, const struct setting *s, const char *in, char *out, struct tn_request **q)
{
    const struct tn_collective *t = r->t;
    switch (s->op) {
    case ALL_REDUCE: return t->all_reduce(r->world, in, out, s->count, s->dtype, s->red, NULL, q);
    case ALL_GATHER: return t->all_gather(r->world, in, out, s->count, s->dtype, NULL, q);
    case REDUCE_SCATTER: return t->reduce_scatter(r->world, in, out, s->count, s->dtype, s->red, NULL, q);
    case ALL_TO_ALL: return t->all_to_all(r->world, in, out, s->count, s->dtype, NULL, q);
    default: return t->broadcast(r->world, in, out, s->count, s->dtype, s->root, NULL, q);
    }
}

static int is_guarded(const char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)p[i] != GUARD_BYTE)
            return 0;
    return 1;
}

/* Where send and receive buffers are: in the halves of one memory, or one inside the other. */
static void place_buffers(const struct rank *r, const struct setting *s, const struct buffers *b, char **in, char **out)
{
    int use_own = s->place == PRIVATE || (s->place == MIXED && r->rank % 2);
    char *base = (use_own ? b->own : b->shared) + GUARD + s->shift;
    size_t piece = s->count * dtype_bytes(s->dtype), mine = (size_t)r->rank * piece;
    *in = base;
    *out = base + b->half;
    if (!s->in_place)
        return;
    *out = base + (s->op == REDUCE_SCATTER ? mine : 0);
    *in = base + (s->op == ALL_GATHER ? mine : 0);
}

static void run_setting(struct rank *r, const struct setting *s, struct buffers *b)
{
    static const char *const names[] = { "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast" };
    uint32_t e = dtype_bytes(s->dtype);
    size_t in_bytes = in_count(r, s) * e, out_bytes = out_count(r, s) * e;
    size_t used = (in_bytes > out_bytes ? in_bytes : out_bytes) + 2 * GUARD;
    char *in, *out;
    place_buffers(r, s, b, &in, &out);
    char *low = in < out ? in : out;
    memset(low - GUARD, GUARD_BYTE, used);
    if (!s->in_place)
        memset(out - GUARD, GUARD_BYTE, used);
    give(r, s, in);
    uint64_t before = hash_bytes(in, in_bytes);
    struct tn_request *q = NULL;
    CHECK_STATUS(r, call(r, s, in, out, &q), TN_OK);
    finish(r, q);
    expect(r, s, b->expected);
    char where[160];
    snprintf(where, sizeof where, "%s of %llu %s%s, %s%s, shifted by %d", names[s->op], (unsigned long long)s->count,
             dtype_name(s->dtype),
             !is_reduction(s)       ? ""
             : s->red == TN_RED_MAX ? " (max)"
                                    : " (sum)",
             s->place == SHARED    ? "shared"
             : s->place == PRIVATE ? "private"
                                   : "mixed",
             s->in_place ? ", in place" : "", s->shift);
    check_that(r, memcmp(out, b->expected, out_bytes) == 0, __FILE__, __LINE__, "%s: wrong values", where);
    if (s->in_place)
        return;
    check_that(r, is_guarded(out - GUARD, GUARD) && is_guarded(out + out_bytes, GUARD), __FILE__, __LINE__,
               "%s: wrote beside the buffer", where);
    check_that(r, hash_bytes(in, in_bytes) == before, __FILE__, __LINE__, "%s: changed its input", where);
}

/* The same where the order of sums is the backend's own: the caller judges the result. */
static void run_unknown(struct rank *r, const struct setting *s, struct buffers *b)
{
    char *in, *out;
    struct tn_request *q = NULL;
    place_buffers(r, s, b, &in, &out);
    give(r, s, in);
    CHECK_STATUS(r, call(r, s, in, out, &q), TN_OK);
    finish(r, q);
}

static int is_applicable(const struct rank *r, const struct setting *s)
{
    if (is_reduction(s) && !(r->caps.dtypes >> s->dtype & 1 && value_is_reduced(s->dtype)))
        return 0;
    if (s->in_place && s->op == ALL_TO_ALL)
        return 0;
    return s->red == TN_RED_SUM || is_reduction(s);
}

void test_matrix(struct rank *r)
{
    static const uint64_t counts[] = { 0, 1, 7, 58, 4099 };
    struct buffers b;
    struct setting s = { .fill = FILL_INTEGERS };
    buffers_init(r, &b, 4099 * 8 * MAX_RANKS + 64);
    for (s.op = 0; s.op < N_OPS; s.op++)
        for (s.dtype = TN_F32; s.dtype <= TN_F64; s.dtype++)
            for (s.red = TN_RED_SUM; s.red <= TN_RED_MAX; s.red++)
                for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
                    for (s.place = 0; s.place < PLACES; s.place++)
                        for (s.in_place = 0; s.in_place < 2; s.in_place++) {
                            s.salt++;
                            s.shift = s.salt % 3 == 0 ? (int)dtype_bytes(s.dtype) : s.salt % 3 == 1 ? 0 : 1;
                            s.count = counts[k];
                            s.root = (int32_t)(s.salt % (uint64_t)r->n);
                            if (is_applicable(r, &s))
                                run_setting(r, &s, &b);
                        }
    buffers_finish(r, &b);
}

void test_large(struct rank *r)
{
    struct buffers b;
    struct setting s = { .fill = FILL_INTEGERS };
    buffers_init(r, &b, ((1 << 20) + 3) * 4 + 64);
    for (s.op = 0; s.op < N_OPS; s.op++)
        for (s.place = 0; s.place < PLACES; s.place++) {
            int pieces = s.op == ALL_REDUCE || s.op == BROADCAST ? 1 : r->n;
            s.salt++;
            s.count = (uint64_t)((1 << 20) + 3) / (uint64_t)pieces;
            s.dtype = s.salt % 2 ? TN_F32 : TN_BF16;
            s.in_place = s.op != ALL_TO_ALL && s.salt % 3 == 0;
            s.shift = s.salt % 4 == 1 ? 2 : 0;
            s.root = r->n - 1;
            run_setting(r, &s, &b);
        }
    buffers_finish(r, &b);
}

/* Sums that round: in rank order, the same bits on all ranks and in every run, near the truth. */
void test_rounding(struct rank *r)
{
    enum { COUNT = 20011, RUNS = 4 };
    struct buffers b;
    buffers_init(r, &b, COUNT * 4 + 64);
    for (int k = 0; k < 2; k++) {
        struct setting s = { .op = ALL_REDUCE, .dtype = k ? TN_BF16 : TN_F32, .count = COUNT, .fill = FILL_ROUNDING };
        uint64_t first = 0;
        for (int run = 0; run < RUNS; run++) {
            uint32_t e = dtype_bytes(s.dtype);
            s.place = run % PLACES;
            if (!r->caps.nested_sums)
                run_setting(r, &s, &b); /* compares with the sum in rank order */
            else
                run_unknown(r, &s, &b);
            char *in, *out;
            place_buffers(r, &s, &b, &in, &out);
            for (uint64_t i = 0; i < COUNT; i++)
                CHECK(r, value_is_near(out + i * e, s.dtype, s.fill, NULL, r->n, i, s.salt));
            uint64_t hash = hash_bytes(out, COUNT * e);
            CHECK(r, run == 0 || hash == first);
            first = hash;
            _Atomic uint64_t *word = shared_word(r, (uint32_t)k);
            if (r->rank == 0)
                atomic_store(word, hash);
            meet(r);
            CHECK(r, atomic_load(word) == hash);
            meet(r);
        }
    }
    buffers_finish(r, &b);
}

/* Every pair, both ways at once, several messages in order, of every dtype, also misaligned; also to itself. */
void test_send_recv(struct rank *r)
{
    static const uint64_t counts[] = { 0, 1, 25, 26, 4099, 100003 };
    enum { N = sizeof counts / sizeof *counts, BYTES = 8 * 106000 };
    void *memory;
    CHECK_STATUS(r, r->t->mem_alloc(r->self, 2 * BYTES, &memory), TN_OK);
    char *own = malloc(2 * BYTES), *expected = malloc(BYTES);
    for (int place = 0; place < PLACES; place++)
        for (int32_t shift = 0; shift < r->n; shift++) {
            int32_t to = (r->rank + shift) % r->n, from = (r->rank + r->n - shift) % r->n;
            char *base = (place == PRIVATE || (place == MIXED && r->rank % 2) ? own : memory) + shift % 3;
            struct tn_request *sent[N], *got[N];
            uint32_t dtype[N], e[N];
            memset(base + BYTES, 0, BYTES - 2);
            for (int k = 0, at = 0; k < N; at += (int)counts[k] * (int)e[k], k++) {
                dtype[k] = TN_F32 + (uint32_t)(k + shift + place) % (TN_F64 - TN_F32 + 1);
                e[k] = dtype_bytes(dtype[k]);
                for (uint64_t i = 0; i < counts[k]; i++)
                    value_store(base + at + i * e[k], dtype[k], FILL_ROUNDING, r->rank, i, (uint64_t)(k + to));
                CHECK_STATUS(r, r->t->send(r->world, base + at, counts[k], dtype[k], to, NULL, &sent[k]), TN_OK);
                CHECK_STATUS(r, r->t->recv(r->world, base + BYTES + at, counts[k], dtype[k], from, NULL, &got[k]),
                             TN_OK);
            }
            for (int k = N - 1; k >= 0; k--) {
                finish(r, k % 2 ? sent[k] : got[k]);
                finish(r, k % 2 ? got[k] : sent[k]);
            }
            for (int k = 0, at = 0; k < N; at += (int)counts[k] * (int)e[k], k++) {
                for (uint64_t i = 0; i < counts[k]; i++)
                    value_store(expected + i * e[k], dtype[k], FILL_ROUNDING, from, i, (uint64_t)(k + r->rank));
                check_that(r, memcmp(base + BYTES + at, expected, counts[k] * e[k]) == 0, __FILE__, __LINE__,
                           "%llu %s from rank %d: wrong values", (unsigned long long)counts[k], dtype_name(dtype[k]),
                           from);
            }
        }
    barrier(r);
    r->t->mem_free(r->self, memory);
    free(own);
    free(expected);
}

/* A receive that is asked for early holds up nothing: round the ring, every rank asks for the answer to what it has not
 * sent yet, and is kept waiting for it; the answer comes from who waits for what is sent then. */
void test_early_recv(struct rank *r)
{
    static const uint64_t counts[] = { 1, 4099, 100003 };
    int32_t next = (r->rank + 1) % r->n, before = (r->rank + r->n - 1) % r->n;
    if (r->n < 3) /* question and answer would go the same way, and match in order */
        return;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        uint64_t n = counts[k];
        float *x = calloc(4 * n, sizeof *x), *question = x, *answer = x + n, *asked = x + 2 * n, *told = x + 3 * n;
        struct tn_request *early, *sent, *got, *back;
        for (uint64_t i = 0; i < n; i++)
            question[i] = (float)(i % 1000 + (uint64_t)r->rank);
        CHECK_STATUS(r, r->t->recv(r->world, answer, n, TN_F32, next, NULL, &early), TN_OK);
        CHECK_STATUS(r, r->t->wait(early, SECONDS(0.01)), TN_TIMEOUT);
        CHECK_STATUS(r, r->t->send(r->world, question, n, TN_F32, next, NULL, &sent), TN_OK);
        CHECK_STATUS(r, r->t->recv(r->world, asked, n, TN_F32, before, NULL, &got), TN_OK);
        finish(r, got);
        for (uint64_t i = 0; i < n; i++)
            told[i] = asked[i] + 1;
        CHECK_STATUS(r, r->t->send(r->world, told, n, TN_F32, before, NULL, &back), TN_OK);
        finish(r, early);
        finish(r, sent);
        finish(r, back);
        for (uint64_t i = 0; i < n; i++)
            CHECK(r, answer[i] == question[i] + 1);
        free(x);
    }
    barrier(r);
}

/* Wrong arguments are refused with a message and leave the comm usable. */
void test_arguments(struct rank *r)
{
    const struct tn_collective *t = r->t;
    float x[4] = { 1, 2, 3, 4 };
    struct tn_request *q = NULL;
    struct tn_comm *c = NULL;
    CHECK(r, t->all_reduce(r->world, x, x, 4, 77, TN_RED_SUM, NULL, &q) < 0 && *r->host.message);
    CHECK(r, t->all_reduce(r->world, x, x, 4, TN_F32, 9, NULL, &q) < 0);
    CHECK(r, t->broadcast(r->world, x, x, 4, TN_F32, r->n, NULL, &q) < 0);
    CHECK(r, t->send(r->world, x, 4, TN_F32, -1, NULL, &q) < 0);
    int32_t outside[] = { r->rank, r->n }, twice[] = { r->rank, r->rank }, other = (r->rank + 1) % r->n;
    CHECK_STATUS(r, t->comm_create(r->self, "outside", outside, 2, SECONDS(1), &c), TN_INVALID);
    CHECK(r, t->comm_create(r->self, "twice", twice, 2, SECONDS(1), &c) == TN_INVALID);
    if (r->n > 1)
        CHECK_STATUS(r, t->comm_create(r->self, "other", &other, 1, SECONDS(1), &c), TN_INVALID);
    CHECK_STATUS(r, t->all_reduce(r->world, x, x, 4, TN_F32, TN_RED_SUM, NULL, &q), TN_OK);
    finish(r, q);
    CHECK(r, x[0] == (float)r->n && x[3] == 4.0f * (float)r->n);
}
