/* Conformance: many operations, groups and pieces of memory at a time. */
#include <stdlib.h>
#include <string.h>
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

static void check_sum(struct rank *r, const float *x, uint64_t count, const int32_t *ranks, int32_t n, uint64_t salt)
{
    for (uint64_t i = 0; i < count; i++) {
        float want;
        value_reduce(&want, TN_F32, TN_RED_SUM, FILL_ROUNDING, ranks, n, i, salt);
        int is_right = r->caps.nested_sums ? value_is_near(&x[i], TN_F32, FILL_ROUNDING, ranks, n, i, salt)
                                           : memcmp(&x[i], &want, sizeof want) == 0;
        check_that(r, is_right, __FILE__, __LINE__, "sum %llu, element %llu: %g, not %g",
                   (unsigned long long)salt, (unsigned long long)i, (double)x[i], (double)want);
    }
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

/* Who sleeps is woken by what it waits for, not by the next time-out of its sleep. */
void test_wake(struct rank *r)
{
    enum { TURNS = 9 };
    if (r->n < 2)
        return;
    void *memory;
    CHECK_STATUS(r, r->t->mem_alloc(r->self, 80000, &memory), TN_OK);
    float *own = calloc(20000, sizeof *own);
    for (int kind = 0; kind < 3; kind++)
        for (int place = 0; place < 2; place++) {
            int late = 0;
            for (int turn = 0; turn < TURNS; turn++)
                late += late_by(r, kind, place ? own : memory) > 0.02;
            check_that(r, late <= TURNS / 2, __FILE__, __LINE__, "kind %d, %s: slow to wake %d times of %d", kind,
                       place ? "private" : "shared", late, TURNS);
        }
    barrier(r);
    r->t->mem_free(r->self, memory);
    free(own);
}

/* ---- a random program, the same on all ranks but for its pauses and places ---- */

struct pending {
    struct tn_request *request;
    float *x;
    uint64_t count, salt;
    const int32_t *ranks;
    int32_t n;
};

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void settle(struct rank *r, struct pending *p)
{
    if (!p->request)
        return;
    finish(r, p->request);
    check_sum(r, p->x, p->count, p->ranks, p->n, p->salt);
    p->request = NULL;
}

void test_random(struct rank *r)
{
    enum { STEPS = 400, DEPTH = 12, ROOM = 50048 };
    static const uint64_t counts[] = { 1, 2, 57, 59, 1000, 5000, 17000, 50000 };
    int32_t all[MAX_RANKS], part[MAX_RANKS], n_part = 0;
    for (int32_t i = 0; i < r->n; i++) {
        all[i] = i;
        if (i % 2 == r->rank % 2)
            part[n_part++] = i;
    }
    struct tn_comm *group;
    CHECK_STATUS(r, r->t->comm_create(r->self, "part", part, n_part, SECONDS(10), &group), TN_OK);
    void *memory;
    CHECK_STATUS(r, r->t->mem_alloc(r->self, DEPTH * ROOM * sizeof(float), &memory), TN_OK);
    float *own = malloc(DEPTH * ROOM * sizeof *own);
    struct pending pending[DEPTH] = { 0 };
    uint32_t common = 12345, mine = 777 + (uint32_t)r->rank;
    for (uint64_t step = 0; step < STEPS; step++) {
        uint64_t count = counts[draw(&common) % 8];
        int use_part = draw(&common) % 3 == 0, slot = (int)(step % DEPTH);
        struct pending *p = &pending[slot];
        settle(r, p);
        if (draw(&mine) % 4 == 0)
            settle(r, &pending[draw(&mine) % DEPTH]);
        if (draw(&mine) % 40 == 0)
            usleep(draw(&mine) % 2000);
        float *base = draw(&mine) % 4 == 0 ? own : memory;
        *p = (struct pending){ NULL, base + (size_t)slot * ROOM + draw(&mine) % 40, count, step, use_part ? part : all,
                               use_part ? n_part : r->n };
        fill(p->x, count, r->rank, step);
        all_reduce(r, use_part ? group : r->world, p->x, count, &p->request);
    }
    for (int k = 0; k < DEPTH; k++)
        settle(r, &pending[k]);
    barrier(r);
    r->t->comm_destroy(group);
    r->t->mem_free(r->self, memory);
    free(own);
}
