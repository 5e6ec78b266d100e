/* Conformance: many operations, groups and pieces of memory at a time. */
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests.h"
#include "values.h"

/* Ends a request by test alone. */
static void poll_until_done(struct rank *r, struct tn_request *q)
{
    tn_status st = TN_PENDING;
    for (uint64_t i = 0; st == TN_PENDING; i++) {
        CHECK(r, i < UINT64_C(1) << 32);
        st = r->t->test(q);
        r->t->progress(r->self);
    }
    CHECK_STATUS(r, st, TN_OK);
}

static void fill(float *x, uint64_t count, int32_t rank, uint64_t salt)
{
    for (uint64_t i = 0; i < count; i++)
        value_store(&x[i], TN_F32, FILL_ROUNDING, rank, i, salt);
}

/* Elements from `first` on of what the members gave. */
static void check_part_of_sum(struct rank *r, const float *x, uint64_t first, uint64_t count, const int32_t *ranks,
                              int32_t n, uint64_t salt)
{
    for (uint64_t i = 0; i < count; i++) {
        float want;
        value_reduce(&want, TN_F32, TN_RED_SUM, FILL_ROUNDING, ranks, n, first + i, salt);
        int is_right = r->caps.nested_sums ? value_is_near(&x[i], TN_F32, FILL_ROUNDING, ranks, n, first + i, salt)
                                           : memcmp(&x[i], &want, sizeof want) == 0;
        check_that(r, is_right, __FILE__, __LINE__, "sum %llu, element %llu: %g, not %g", (unsigned long long)salt,
                   (unsigned long long)i, (double)x[i], (double)want);
    }
}

static void check_sum(struct rank *r, const float *x, uint64_t count, const int32_t *ranks, int32_t n, uint64_t salt)
{
    check_part_of_sum(r, x, 0, count, ranks, n, salt);
}

static void all_reduce(struct rank *r, struct tn_comm *c, float *x, uint64_t count, struct tn_request **q)
{
    CHECK_STATUS(r, r->t->all_reduce(c, x, x, count, TN_F32, TN_RED_SUM, NULL, q), TN_OK);
}

/* Small, direct and staged operations under way together, ended in another order on each rank. */
void test_outstanding(struct rank *r)
{
    static const uint64_t counts[] = { 1, 9000, 50, 33333, 0, 70001, 3, 9000, 20000, 58 };
    enum { N = 20, COUNTS = sizeof counts / sizeof *counts, ROOM = 70016 };
    void *memory;
    CHECK_STATUS(r, r->t->mem_alloc(r->self, N * ROOM * sizeof(float), &memory), TN_OK);
    float *own = malloc(N * ROOM * sizeof *own), *x[N];
    struct tn_request *q[N];
    CHECK(r, own != NULL);
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < N; k++) {
            x[k] = ((k + (k == 7 ? r->rank : 0)) % 3 == 0 ? own : (float *)memory) + (size_t)k * ROOM;
            fill(x[k], counts[k % COUNTS], r->rank, (uint64_t)(k + round * N));
            all_reduce(r, r->world, x[k], counts[k % COUNTS], &q[k]);
        }
        for (int k = 0; k < N; k++) {
            static const int strides[] = { 1, 3, 7, 9, 11, 13, 17, 19 }; /* prime to N */
            int which = (k * strides[(r->rank + round) % 8] + r->rank) % N;
            if ((which + r->rank) % 2)
                finish(r, q[which]);
            else
                poll_until_done(r, q[which]);
            check_sum(r, x[which], counts[which % COUNTS], NULL, r->n, (uint64_t)(which + round * N));
        }
    }
    barrier(r);
    r->t->mem_free(r->self, memory);
    free(own);
}

/* Rows and columns of a grid of two rows, both at once. */
void test_grid(struct rank *r)
{
    enum { COUNT = 12345 };
    if (r->n % 2)
        return;
    int32_t width = r->n / 2, row = r->rank / width, column = r->rank % width;
    int32_t in_row[MAX_RANKS], in_column[2] = { column, column + width };
    for (int32_t i = 0; i < width; i++)
        in_row[i] = row * width + i;
    struct tn_comm *rows, *columns;
    CHECK_STATUS(r, r->t->comm_create(r->self, "row", in_row, width, SECONDS(10), &rows), TN_OK);
    CHECK_STATUS(r, r->t->comm_create(r->self, "column", in_column, 2, SECONDS(10), &columns), TN_OK);
    void *memory;
    CHECK_STATUS(r, r->t->mem_alloc(r->self, COUNT * sizeof(float), &memory), TN_OK);
    float *x = memory, *y = malloc(COUNT * sizeof *y);
    for (uint64_t round = 0; round < 30; round++) {
        struct tn_request *q[2];
        fill(x, COUNT, r->rank, round);
        fill(y, COUNT, r->rank, round + 100);
        all_reduce(r, round % 3 ? rows : columns, x, COUNT, &q[0]);
        all_reduce(r, round % 3 ? columns : rows, y, COUNT, &q[1]);
        finish(r, q[(r->rank + round) % 2]);
        finish(r, q[(r->rank + round + 1) % 2]);
        check_sum(r, x, COUNT, round % 3 ? in_row : in_column, round % 3 ? width : 2, round);
        check_sum(r, y, COUNT, round % 3 ? in_column : in_row, round % 3 ? 2 : width, round + 100);
    }
    barrier(r);
    r->t->comm_destroy(columns);
    r->t->comm_destroy(rows);
    r->t->mem_free(r->self, memory);
    free(y);
}

/* A rank that waits in one group goes on serving the others: here even and odd ranks wait in
 * different groups for each other. */
void test_across_groups(struct rank *r)
{
    enum { COUNT = 300000 };
    int32_t ranks[MAX_RANKS];
    for (int32_t i = 0; i < r->n; i++)
        ranks[i] = i;
    struct tn_comm *a, *b;
    CHECK_STATUS(r, r->t->comm_create(r->self, "a", ranks, r->n, SECONDS(10), &a), TN_OK);
    CHECK_STATUS(r, r->t->comm_create(r->self, "b", ranks, r->n, SECONDS(10), &b), TN_OK);
    float *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y);
    fill(x, COUNT, r->rank, 1);
    fill(y, COUNT, r->rank, 2);
    struct tn_request *q[2];
    all_reduce(r, a, x, COUNT, &q[0]);
    if (r->rank % 2 == 0) {
        all_reduce(r, b, y, COUNT, &q[1]);
        finish(r, q[1]);
        finish(r, q[0]);
    } else {
        finish(r, q[0]);
        all_reduce(r, b, y, COUNT, &q[1]);
        finish(r, q[1]);
    }
    check_sum(r, x, COUNT, NULL, r->n, 1);
    check_sum(r, y, COUNT, NULL, r->n, 2);
    barrier(r);
    r->t->comm_destroy(a);
    r->t->comm_destroy(b);
    free(x);
    free(y);
}

/* More operations than any queue holds, none waited for until all are started. */
void test_ring_full(struct rank *r)
{
    enum { N = 400 };
    static _Thread_local float x[N];
    struct tn_request *q[N], *message[2 * 40];
    for (int k = 0; k < N; k++) {
        fill(&x[k], 1, r->rank, (uint64_t)k);
        all_reduce(r, r->world, &x[k], 1, &q[k]);
    }
    for (int k = N - 1; k >= 0; k--)
        finish(r, q[k]);
    for (int k = 0; k < N; k++)
        check_sum(r, &x[k], 1, NULL, r->n, (uint64_t)k);
    int32_t to = (r->rank + 1) % r->n, from = (r->rank + r->n - 1) % r->n;
    for (int k = 0; k < 40; k++) {
        CHECK_STATUS(r, r->t->send(r->world, &x[k], 1, TN_F32, to, NULL, &message[k]), TN_OK);
        CHECK_STATUS(r, r->t->recv(r->world, &x[k + 100], 1, TN_F32, from, NULL, &message[k + 40]), TN_OK);
    }
    for (int k = 0; k < 80; k++)
        finish(r, message[k]);
    CHECK(r, memcmp(x, x + 100, 40 * sizeof *x) == 0);
}

void test_memory(struct rank *r)
{
    enum { PIECES = 20, ROUNDS = 4 };
    for (int round = 0; round < ROUNDS; round++) {
        void *memory[PIECES];
        for (int k = 0; k < PIECES; k++) {
            size_t bytes = (size_t)k * 5000 + (size_t)r->rank * 777;
            CHECK_STATUS(r, r->t->mem_alloc(r->self, bytes, &memory[k]), TN_OK);
            CHECK(r, (uintptr_t)memory[k] % 64 == 0);
            for (size_t i = 0; i < bytes; i++)
                CHECK(r, ((char *)memory[k])[i] == 0);
            memset(memory[k], 0x5a, bytes);
        }
        float *x = memory[PIECES - 1];
        fill(x, 9000, r->rank, 5);
        struct tn_request *q;
        all_reduce(r, r->world, x, 9000, &q);
        finish(r, q);
        check_sum(r, x, 9000, NULL, r->n, 5);
        barrier(r);
        for (int k = 0; k < PIECES; k++)
            r->t->mem_free(r->self, memory[(k * 7 + r->rank) % PIECES]);
    }
}

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One late operation: rank 0 comes when the others have long been asleep. Returns how long after
 * that they were done. */
static double late_by(struct rank *r, int kind, float *x)
{
    struct tn_request *q;
    _Atomic uint64_t *came = shared_word(r, 0);
    barrier(r);
    if (r->rank == 0) {
        usleep(10000);
        atomic_store(came, (uint64_t)(clock_s() * 1e9));
    }
    if (kind < 2)
        all_reduce(r, r->world, x, kind == 0 ? 1 : 20000, &q);
    else if (r->rank == 0)
        CHECK_STATUS(r, r->t->send(r->world, x, 20000, TN_F32, 1, NULL, &q), TN_OK);
    else if (r->rank == 1)
        CHECK_STATUS(r, r->t->recv(r->world, x, 20000, TN_F32, 0, NULL, &q), TN_OK);
    else
        return 0;
    finish(r, q);
    return clock_s() - (double)atomic_load(came) * 1e-9;
}

/* The same by a plain futex: how late the machine itself wakes who sleeps, being busy with other things. */
static double plainly_late_by(struct rank *r)
{
    _Atomic uint64_t *came = shared_word(r, 0), *gate = shared_word(r, 1);
    uint32_t seen = (uint32_t)atomic_load(gate);
    barrier(r);
    if (r->rank == 0) {
        usleep(10000);
        atomic_store(came, (uint64_t)(clock_s() * 1e9));
        atomic_fetch_add(gate, 1);
        syscall(SYS_futex, gate, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
    while ((uint32_t)atomic_load(gate) == seen)
        syscall(SYS_futex, gate, FUTEX_WAIT, seen, NULL, NULL, 0);
    return clock_s() - (double)atomic_load(came) * 1e-9;
}

enum { TURNS = 9 };

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *of)
{
    qsort(of, TURNS, sizeof *of, compare_doubles);
    return of[TURNS / 2];
}

/* Whether any rank says so. Each question has a word of its own. */
static int does_any(struct rank *r, int says, uint32_t question)
{
    atomic_fetch_add(shared_word(r, question), (uint64_t)says);
    meet(r);
    return atomic_load(shared_word(r, question)) > 0;
}

/* Who sleeps is woken by what it waits for, not by the next time-out of its sleep. Where that takes long, a plain futex
 * in turns with it tells whether it is the machine. */
void test_wake(struct rank *r)
{
    static const double soon = 0.02;
    double late[TURNS], plainly[TURNS];
    if (r->n < 2)
        return;
    void *memory;
    CHECK_STATUS(r, r->t->mem_alloc(r->self, 80000, &memory), TN_OK);
    float *own = calloc(20000, sizeof *own);
    for (int kind = 0; kind < 3; kind++)
        for (int place = 0; place < 2; place++) {
            float *x = place ? own : memory;
            for (int turn = 0; turn < TURNS; turn++)
                late[turn] = late_by(r, kind, x);
            if (!does_any(r, median(late) > soon, 2 + (uint32_t)(2 * kind + place)))
                continue;
            for (int turn = 0; turn < TURNS; turn++) {
                late[turn] = late_by(r, kind, x);
                plainly[turn] = plainly_late_by(r);
            }
            double took = median(late), usual = median(plainly);
            check_that(r, took <= soon + 4 * usual, __FILE__, __LINE__,
                       "kind %d, %s: %.1f ms to wake, a plain futex %.1f ms", kind, place ? "private" : "shared",
                       took * 1e3, usual * 1e3);
        }
    barrier(r);
    r->t->mem_free(r->self, memory);
    free(own);
}

/* ---- a random program: all operations on three groups, many under way; the same on all ranks but for its pauses,
 * where buffers are, and the order of calls on different groups ---- */

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, BARRIER, MESSAGE, N_OPS };

struct group {
    struct tn_comm *comm;
    int32_t ranks[MAX_RANKS], n, me;
};

struct pending {
    struct tn_request *request, *other; /* other: of a message, the one to be sent */
    const struct group *g;
    int op;
    int32_t peer; /* root, or who a message comes from */
    float *in, *out;
    uint64_t count, salt;
};

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void check_values(struct rank *r, const float *x, int32_t rank, uint64_t first, uint64_t count, uint64_t salt)
{
    for (uint64_t i = 0; i < count; i++) {
        float want;
        value_store(&want, TN_F32, FILL_ROUNDING, rank, first + i, salt);
        check_that(r, memcmp(&x[i], &want, sizeof want) == 0, __FILE__, __LINE__,
                   "call %llu, element %llu of rank %d: %g, not %g", (unsigned long long)salt,
                   (unsigned long long)(first + i), (int)rank, (double)x[i], (double)want);
    }
}

static void settle(struct rank *r, struct pending *p)
{
    const struct group *g = p->g;
    uint64_t mine = (uint64_t)(g ? g->me : 0) * p->count;
    if (!p->request)
        return;
    finish(r, p->request);
    if (p->other)
        finish(r, p->other);
    p->request = NULL;
    if (p->op == ALL_REDUCE)
        check_sum(r, p->out, p->count, g->ranks, g->n, p->salt);
    else if (p->op == REDUCE_SCATTER)
        check_part_of_sum(r, p->out, mine, p->count, g->ranks, g->n, p->salt);
    else if (p->op == BROADCAST || p->op == MESSAGE)
        check_values(r, p->out, g->ranks[p->peer], 0, p->count, p->salt);
    for (int32_t i = 0; i < g->n && (p->op == ALL_GATHER || p->op == ALL_TO_ALL); i++)
        check_values(r, p->out + (uint64_t)i * p->count, g->ranks[i], p->op == ALL_GATHER ? 0 : mine, p->count,
                     p->salt);
}

static tn_status start(struct rank *r, struct pending *p, int32_t to)
{
    const struct tn_collective *t = r->t;
    struct tn_comm *c = p->g->comm;
    switch (p->op) {
    case ALL_REDUCE: return t->all_reduce(c, p->in, p->out, p->count, TN_F32, TN_RED_SUM, NULL, &p->request);
    case ALL_GATHER: return t->all_gather(c, p->in, p->out, p->count, TN_F32, NULL, &p->request);
    case REDUCE_SCATTER: return t->reduce_scatter(c, p->in, p->out, p->count, TN_F32, TN_RED_SUM, NULL, &p->request);
    case ALL_TO_ALL: return t->all_to_all(c, p->in, p->out, p->count, TN_F32, NULL, &p->request);
    case BROADCAST: return t->broadcast(c, p->in, p->out, p->count, TN_F32, p->peer, NULL, &p->request);
    case BARRIER: return t->barrier(c, NULL, &p->request);
    default:
        CHECK_STATUS(r, t->send(c, p->in, p->count, TN_F32, to, NULL, &p->other), TN_OK);
        return t->recv(c, p->out, p->count, TN_F32, p->peer, NULL, &p->request);
    }
}

/* The next call of a group, drawn alike by its members, into a slot that is free: buffers of `room` elements each. */
static void call_next(struct rank *r, const struct group *g, uint32_t *common, uint32_t *mine, struct pending *p,
                      float *memory, uint64_t room)
{
    static const uint64_t counts[] = { 0, 1, 2, 57, 59, 1000, 5000, 17000 };
    int32_t shift = (int32_t)(draw(common) % (uint32_t)g->n);
    int op = (int)(draw(common) % N_OPS), in_place = draw(common) % 3 == 0;
    int is_wide = op == ALL_GATHER || op == REDUCE_SCATTER || op == ALL_TO_ALL;
    *p = (struct pending){ .g = g, .op = op, .salt = draw(common) % 50000, .count = counts[draw(common) % 8] };
    p->count /= is_wide ? (uint64_t)g->n : 1;
    p->peer = op == BROADCAST ? shift : (g->me + g->n - shift) % g->n;
    p->in = memory + draw(mine) % 40;
    p->out = p->in + room + draw(mine) % 40;
    if (in_place && op != ALL_TO_ALL && op != MESSAGE) {
        p->out = p->in + (op == REDUCE_SCATTER ? (uint64_t)g->me * p->count : 0);
        p->in += op == ALL_GATHER ? (uint64_t)g->me * p->count : 0;
    }
    fill(p->in, p->count * (op == REDUCE_SCATTER || op == ALL_TO_ALL ? (uint64_t)g->n : 1), r->rank, p->salt);
    CHECK_STATUS(r, start(r, p, (g->me + shift) % g->n), TN_OK);
}

static void make_group(struct rank *r, struct group *g, const char *name)
{
    CHECK_STATUS(r, r->t->comm_create(r->self, name, g->ranks, g->n, SECONDS(10), &g->comm), TN_OK);
}

void test_random(struct rank *r)
{
    enum { STEPS = 200, DEPTH = 8, GROUPS = 3, ROOM = 17128 };
    struct group group[GROUPS] = { { .me = r->n - 1 - r->rank }, { .me = r->rank / 2 }, { .me = r->rank } };
    uint32_t common[GROUPS] = { 12345, 54321 + (uint32_t)r->rank % 2, 777 }, mine = 999 + (uint32_t)r->rank;
    for (int32_t i = 0; i < r->n; i++) {
        group[0].ranks[group[0].n++] = r->n - 1 - i; /* turned round */
        if (i % 2 == r->rank % 2)
            group[1].ranks[group[1].n++] = i;
        group[2].ranks[group[2].n++] = i;
    }
    make_group(r, &group[0], "turned");
    make_group(r, &group[1], "part");
    make_group(r, &group[2], "all");
    void *memory;
    CHECK_STATUS(r, r->t->mem_alloc(r->self, GROUPS * DEPTH * 2 * ROOM * sizeof(float), &memory), TN_OK);
    float *own = malloc(GROUPS * DEPTH * 2 * ROOM * sizeof *own);
    struct pending pending[GROUPS][DEPTH] = { 0 };
    for (uint64_t step = 0; step < STEPS; step++) {
        uint32_t first = draw(&mine) % GROUPS;
        for (uint32_t k = 0; k < GROUPS; k++) {
            uint32_t g = (first + k) % GROUPS;
            struct pending *p = &pending[g][step % DEPTH];
            settle(r, p);
            if (draw(&mine) % 4 == 0) /* of an earlier step: what all have called, or will without this rank */
                settle(r, &pending[draw(&mine) % GROUPS][(step + 1 + draw(&mine) % (DEPTH - 1)) % DEPTH]);
            if (draw(&mine) % 80 == 0)
                usleep(draw(&mine) % 2000);
            size_t at = (g * DEPTH + step % DEPTH) * 2 * ROOM;
            call_next(r, &group[g], &common[g], &mine, p, (draw(&mine) % 4 == 0 ? own : (float *)memory) + at,
                      ROOM - 40);
        }
    }
    for (int k = 0; k < GROUPS * DEPTH; k++)
        settle(r, &pending[k % GROUPS][k / GROUPS]);
    barrier(r);
    for (int g = 0; g < GROUPS; g++)
        r->t->comm_destroy(group[g].comm);
    r->t->mem_free(r->self, memory);
    free(own);
}
