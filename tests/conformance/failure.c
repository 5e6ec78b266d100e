/* Conformance: what goes wrong is told, to the right rank, in time, and nothing hangs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tests.h"

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct tn_comm_error last_error(struct rank *r, struct tn_comm *c)
{
    struct tn_comm_error e = { .struct_size = sizeof e };
    CHECK_STATUS(r, r->t->last_error(c, &e), TN_OK);
    return e;
}

static int names_rank(const char *text, int32_t rank)
{
    char name[32];
    snprintf(name, sizeof name, "rank %d", (int)rank);
    const char *at = strstr(text, name);
    return at && (at[strlen(name)] < '0' || at[strlen(name)] > '9');
}

/* The last rank is late: the others learn who, what and how much, and can wait on. */
void test_timeout(struct rank *r)
{
    enum { COUNT = 5000 };
    float *x = calloc(COUNT, sizeof *x);
    struct tn_request *q;
    int32_t late = r->n - 1;
    barrier(r); /* collective 0 */
    if (r->rank == late && r->n > 1)
        for (int32_t i = 0; i < r->n - 1; i++)
            while (!atomic_load(shared_word(r, (uint32_t)i)))
                usleep(1000);
    CHECK_STATUS(r, r->t->all_reduce(r->world, x, x, COUNT, TN_F32, TN_RED_SUM, NULL, &q), TN_OK);
    if (r->rank != late) {
        _Atomic uint64_t *came = shared_word(r, MAX_RANKS);
        atomic_fetch_add(came, 1);
        while (atomic_load(came) < (uint64_t)r->n - 1) { /* else whoever comes last of them is named */
            CHECK_STATUS(r, r->t->test(q), TN_PENDING);
            usleep(100);
        }
        double start = clock_s();
        CHECK_STATUS(r, r->t->wait(q, SECONDS(0.2)), TN_TIMEOUT);
        double took = clock_s() - start;
        CHECK(r, took > 0.19 && took < 15);
        struct tn_comm_error e = last_error(r, r->world);
        CHECK(r, e.peer == late && e.op_number == 1 && e.bytes == COUNT * 4 && strcmp(e.op, "all_reduce") == 0);
        check_that(r, names_rank(e.message, late) && strstr(e.message, "all_reduce") && strstr(e.message, "world"),
                   __FILE__, __LINE__, "message: %s", e.message);
        CHECK_STATUS(r, r->t->wait(q, 0), TN_TIMEOUT);
        atomic_store(shared_word(r, (uint32_t)r->rank), 1);
    }
    finish(r, q);
    if (r->n > 1) { /* a message that never comes */
        CHECK_STATUS(r, r->t->recv(r->world, x, 1, TN_F32, (r->rank + 1) % r->n, NULL, &q), TN_OK);
        CHECK_STATUS(r, r->t->wait(q, SECONDS(0.05)), TN_TIMEOUT);
        CHECK(r, last_error(r, r->world).peer == (r->rank + 1) % r->n);
    }
    meet(r);
    free(x);
}

void test_abort(struct rank *r)
{
    float x[100] = { 0 };
    struct tn_request *q = NULL;
    _Atomic uint64_t *started = shared_word(r, 0);
    barrier(r);
    if (r->rank == 0) {
        while (atomic_load(started) < (uint64_t)r->n - 1)
            usleep(1000);
        usleep(50000);
        r->t->comm_abort(r->world);
    } else {
        CHECK_STATUS(r, r->t->all_reduce(r->world, x, x, 100, TN_F32, TN_RED_SUM, NULL, &q), TN_OK);
        atomic_fetch_add(started, 1);
        CHECK_STATUS(r, r->t->wait(q, SECONDS(60)), TN_ABORTED);
    }
    CHECK_STATUS(r, r->t->barrier(r->world, NULL, &q), TN_ABORTED);
    meet(r);
}

/* One member calls something else. All learn it, with both sides named. */
static void conflict(struct rank *r, const char *name, int kind)
{
    int32_t ranks[MAX_RANKS];
    for (int32_t i = 0; i < r->n; i++)
        ranks[i] = i;
    struct tn_comm *c;
    CHECK_STATUS(r, r->t->comm_create(r->self, name, ranks, r->n, SECONDS(10), &c), TN_OK);
    float *x = calloc(20000 * MAX_RANKS, sizeof *x), *y = calloc(20000 * MAX_RANKS, sizeof *y);
    struct tn_request *q;
    int odd = r->rank == r->n - 1;
    uint64_t count = kind == 0 ? 10 : 20000;
    tn_status st;
    if (odd && kind == 2)
        st = r->t->all_gather(c, x, y, count, TN_F32, NULL, &q);
    else if (odd && kind == 3)
        st = r->t->barrier(c, NULL, &q);
    else
        st = r->t->all_reduce(c, x, x, odd && kind < 2 ? count + 1 : count, odd && kind == 4 ? TN_I32 : TN_F32,
                              odd && kind == 5 ? TN_RED_MAX : TN_RED_SUM, NULL, &q);
    CHECK_STATUS(r, st, TN_OK);
    CHECK_STATUS(r, r->t->wait(q, SECONDS(10)), TN_CONFLICT);
    const char *text = r->host.message;
    check_that(r, names_rank(text, 0) && names_rank(text, r->n - 1) && strstr(text, name), __FILE__, __LINE__,
               "message: %s", text);
    CHECK(r, last_error(r, c).op_number == 0);
    meet(r);
    r->t->comm_destroy(c);
    free(x);
    free(y);
}

void test_conflict(struct rank *r)
{
    static const char *const names[] = { "small", "large", "op", "barrier", "dtype", "reduction" };
    for (int kind = 0; kind < 6 && r->n > 1; kind++)
        conflict(r, names[kind], kind);
}

void test_message_conflict(struct rank *r)
{
    float x[300] = { 0 };
    struct tn_request *q;
    if (r->n > 1 && r->rank == 0)
        CHECK_STATUS(r, r->t->send(r->world, x, 299, TN_F32, 1, NULL, &q), TN_OK);
    if (r->n > 1 && r->rank == 1) {
        CHECK_STATUS(r, r->t->recv(r->world, x, 300, TN_F32, 0, NULL, &q), TN_OK);
        CHECK_STATUS(r, r->t->wait(q, SECONDS(10)), TN_CONFLICT);
        CHECK(r, names_rank(r->host.message, 0) && names_rank(r->host.message, 1));
    }
    meet(r);
}

/* Of rank 1. Where the others were told before this rank joins, the call fails already. */
static void learn_of_death(struct rank *r)
{
    float *x = calloc(5000, sizeof *x);
    struct tn_request *q;
    double start = clock_s();
    tn_status st = r->t->all_reduce(r->world, x, x, 5000, TN_F32, TN_RED_SUM, NULL, &q);
    if (st == TN_OK)
        st = r->t->wait(q, SECONDS(20));
    CHECK_STATUS(r, st, TN_PEER);
    check_that(r, names_rank(r->host.message, 1), __FILE__, __LINE__, "message: %s", r->host.message);
    CHECK(r, clock_s() - start < 15);
    CHECK(r, r->t->barrier(r->world, NULL, &q) < 0); /* and not a hang */
    free(x);
}

/* Rank 1 is killed before it joins. */
void test_killed(struct rank *r)
{
    barrier(r);
    meet(r); /* all have left the barrier */
    if (r->rank == 1)
        kill(getpid(), SIGKILL);
    learn_of_death(r);
}

/* Others come late, which are not the ones to be named. */
void test_killed_and_late(struct rank *r)
{
    barrier(r);
    meet(r);
    if (r->rank == 1)
        kill(getpid(), SIGKILL);
    if (r->rank == 0 || r->rank == r->n - 1)
        usleep(200000);
    learn_of_death(r);
}

/* Rank 1 is killed somewhere in a stream of operations, perhaps with a slice in its hands. */
void test_killed_while_busy(struct rank *r)
{
    enum { COUNT = 400000 };
    void *memory;
    CHECK_STATUS(r, r->t->mem_alloc(r->self, COUNT * sizeof(float), &memory), TN_OK);
    meet(r); /* all have made their groups */
    if (r->rank == 1) {
        struct itimerval soon = { .it_value = { 0, 30000 } };
        setitimer(ITIMER_REAL, &soon, NULL); /* SIGALRM ends the process */
    }
    double start = clock_s();
    tn_status st = TN_OK;
    while (st == TN_OK) {
        struct tn_request *q;
        st = r->t->all_reduce(r->world, memory, memory, COUNT, TN_F32, TN_RED_MAX, NULL, &q);
        if (st == TN_OK)
            st = r->t->wait(q, SECONDS(20));
    }
    CHECK_STATUS(r, st, TN_PEER);
    CHECK(r, clock_s() - start < 15);
}

/* A group whose last member does not come; later it does. */
void test_group_timeout(struct rank *r)
{
    int32_t ranks[MAX_RANKS];
    for (int32_t i = 0; i < r->n; i++)
        ranks[i] = r->n - 1 - i; /* member 0 is the last rank in one case, not in the other */
    for (int late = 0; late < 2 && r->n > 1; late++) {
        struct tn_comm *c;
        int32_t who = late ? 0 : r->n - 1;
        if (r->rank != who) {
            CHECK_STATUS(r, r->t->comm_create(r->self, "late", ranks, r->n, SECONDS(0.1), &c), TN_TIMEOUT);
            CHECK(r, strstr(r->host.message, "late") != NULL);
        }
        meet(r);
        CHECK_STATUS(r, r->t->comm_create(r->self, "late", ranks, r->n, SECONDS(10), &c), TN_OK);
        struct tn_request *q;
        CHECK_STATUS(r, r->t->barrier(c, NULL, &q), TN_OK);
        finish(r, q);
        meet(r);
        r->t->comm_destroy(c);
    }
}
