/* Ranks for the conformance tests (harness.h). */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "life.h"

enum { FIRST_WORD = 2 }; /* word 0 is for meet */

struct seat {
    struct rank rank;
    test_fn *fn;
    jmp_buf out;
    int failed;
    pthread_t thread;
};

static _Thread_local struct seat *seated;

void check_that(struct rank *r, int ok, const char *file, int line, const char *fmt, ...)
{
    if (ok)
        return;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const char *slash = strrchr(file, '/');
    fprintf(stderr, "%s:%d: %s, rank %d of %d: %s\n", slash ? slash + 1 : file, line, r->test, (int)r->rank, (int)r->n,
            text);
    loopback_died(r->lb, r->rank);
    longjmp(seated->out, 1);
}

void finish(struct rank *r, struct tn_request *q)
{
    CHECK_STATUS(r, r->t->wait(q, SECONDS(60)), TN_OK);
}

void barrier(struct rank *r)
{
    struct tn_request *q;
    CHECK_STATUS(r, r->t->barrier(r->world, NULL, &q), TN_OK);
    finish(r, q);
}

_Atomic uint64_t *shared_word(struct rank *r, uint32_t index)
{
    uint32_t count;
    _Atomic uint64_t *words = loopback_words(r->lb, &count);
    CHECK(r, index + FIRST_WORD < count);
    return &words[index + FIRST_WORD];
}

void meet(struct rank *r)
{
    uint32_t count;
    _Atomic uint64_t *words = loopback_words(r->lb, &count);
    uint64_t goal = (atomic_fetch_add(&words[0], 1) / (uint64_t)r->n + 1) * (uint64_t)r->n;
    for (int i = 0; atomic_load(&words[0]) < goal; i++) {
        CHECK(r, i < 600000);
        usleep(100);
    }
}

static tn_status open_backend(struct plainhost *h, const char *name, const struct tn_collective **table, void **self)
{
    struct rank *r = h->opener;
    for (int32_t i = 0; i < r->n_with; i++) {
        if (strcmp(r->with[i].plugin->id, name) != 0)
            continue;
        *table = r->with[i].plugin->table;
        r->with[i].above = h;
        tn_status status = r->with_self[i] ? TN_OK : (*table)->create(&r->with[i].host, NULL, NULL, &r->with_self[i]);
        *self = r->with_self[i];
        return status;
    }
    return h->host.fail(&h->host, TN_NOT_FOUND, "no backend %s; name it by --with", name);
}

static void start(struct rank *r)
{
    const struct tn_collective *next = NULL;
    void *next_self = NULL;
    for (int32_t i = r->n_below - 1; i >= 0; i--) {
        const struct tn_collective *table = r->below[i].plugin->table;
        CHECK_STATUS(r, table->create(&r->below[i].host, next, next_self, &r->below_self[i]), TN_OK);
        next = table;
        next_self = r->below_self[i];
    }
    CHECK_STATUS(r, r->t->create(&r->host.host, next, next_self, &r->self), TN_OK);
    r->caps.struct_size = sizeof r->caps;
    CHECK_STATUS(r, r->t->caps(r->self, &r->caps), TN_OK);
    for (int32_t i = 0; i < r->n_with; i++)
        if (r->with_self[i]) {
            const struct tn_collective *table = r->with[i].plugin->table;
            CHECK_STATUS(r, table->init(r->with_self[i], &r->bootstrap, SECONDS(60)), TN_OK);
        }
    CHECK_STATUS(r, r->t->init(r->self, &r->bootstrap, SECONDS(60)), TN_OK);
    int32_t ranks[MAX_RANKS];
    for (int32_t i = 0; i < r->n; i++)
        ranks[i] = i;
    CHECK_STATUS(r, r->t->comm_create(r->self, "world", ranks, r->n, SECONDS(60), &r->world), TN_OK);
}

static void *sit(void *arg)
{
    struct seat *s = arg;
    struct rank *r = &s->rank;
    seated = s;
    if (setjmp(s->out) == 0) {
        start(r);
        s->fn(r);
        r->t->comm_destroy(r->world);
        r->t->destroy(r->self);
        for (int32_t i = 0; i < r->n_below; i++)
            ((const struct tn_collective *)r->below[i].plugin->table)->destroy(r->below_self[i]);
        for (int32_t i = 0; i < r->n_with; i++)
            ((const struct tn_collective *)r->with[i].plugin->table)->destroy(r->with_self[i]);
    } else {
        s->failed = 1;
    }
    return NULL;
}

static void seat_init(struct seat *s, const struct world *w, const char *test, struct loopback *lb, int32_t rank,
                      int32_t n, test_fn *fn)
{
    memset(s, 0, sizeof *s);
    s->fn = fn;
    s->rank = (struct rank){
        .plugin = w->plugin, .t = w->plugin->table, .lb = lb, .test = test, .rank = rank, .n = n, .groups = w->groups
    };
    plainhost_init(&s->rank.host, w->plugin);
    s->rank.host.overrides = w->overrides;
    s->rank.n_below = w->n_below;
    for (int32_t i = 0; i < w->n_below; i++) {
        plainhost_init(&s->rank.below[i], w->below[i]);
        s->rank.below[i].above = i ? &s->rank.below[i - 1] : &s->rank.host;
        s->rank.below[i].overrides = w->overrides;
    }
    s->rank.n_with = w->n_with;
    for (int32_t i = 0; i < w->n_with; i++) {
        plainhost_init(&s->rank.with[i], w->with[i]);
        s->rank.with[i].overrides = w->overrides;
    }
    struct plainhost *innermost = w->n_below ? &s->rank.below[w->n_below - 1] : &s->rank.host;
    if (w->n_with) {
        innermost->open = open_backend;
        innermost->opener = &s->rank;
    }
    s->rank.bootstrap = loopback_bootstrap(lb, rank);
}

static int run_threads(struct seat *seats, const struct world *w, const char *test, struct loopback *lb, int32_t n,
                       test_fn *fn)
{
    int failed = 0;
    for (int32_t i = 0; i < n; i++) {
        seat_init(&seats[i], w, test, lb, i, n, fn);
        if (pthread_create(&seats[i].thread, NULL, sit, &seats[i]) != 0)
            abort();
    }
    for (int32_t i = 0; i < n; i++) {
        pthread_join(seats[i].thread, NULL);
        failed += seats[i].failed;
    }
    return failed;
}

static int judge(int32_t rank, int status, const struct world *w, const char *test, int32_t n)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFSIGNALED(status) &&
        (rank == w->expect_killed || (w->expect_killed == ANY_RANK && WTERMSIG(status) == SIGKILL)))
        return 0;
    if (WIFSIGNALED(status))
        fprintf(stderr, "%s, rank %d of %d: killed by signal %d\n", test, (int)rank, (int)n, WTERMSIG(status));
    return 1;
}

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int reap(pid_t *pids, const struct world *w, const char *test, struct loopback *lb, int32_t n)
{
    int failed = 0, left = n;
    double end = clock_s() + w->limit_s;
    while (left > 0) {
        for (int32_t i = 0; i < n; i++) {
            int status;
            if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i])
                continue;
            pids[i] = 0;
            left--;
            int bad = judge(i, status, w, test, n);
            failed += bad;
            if (bad || WIFSIGNALED(status))
                loopback_died(lb, i);
        }
        if (left > 0 && clock_s() > end) {
            fprintf(stderr, "%s: %d of %d ranks hang\n", test, left, (int)n);
            for (int32_t i = 0; i < n; i++)
                if (pids[i] > 0)
                    kill(pids[i], SIGKILL);
            end += 1e9;
        }
        usleep(300);
    }
    return failed;
}

static int run_processes(struct seat *seats, const struct world *w, const char *test, struct loopback *lb, int32_t n,
                         test_fn *fn)
{
    pid_t pids[MAX_RANKS];
    fflush(NULL);
    for (int32_t i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            abort();
        if (pids[i] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        seat_init(&seats[i], w, test, lb, i, n, fn);
        sit(&seats[i]);
        fflush(NULL);
        exit(seats[i].failed); /* not _exit: sanitizers report at exit */
    }
    return reap(pids, w, test, lb, n);
}

/* Whatever a backend names after the job must be gone with it. */
static int check_leftovers(const struct loopback *lb, const char *test)
{
    char id[24];
    snprintf(id, sizeof id, "%016" PRIx64, loopback_job_id(lb));
    int files = count_entries("/dev/shm", id) + count_entries("/tmp", id), sockets = count_lines("/proc/net/unix", id);
    if (files || sockets)
        fprintf(stderr, "%s: %d files and %d sockets are left\n", test, files, sockets);
    return files + sockets > 0;
}

int world_run(struct world *w, const char *test, int32_t n, test_fn *fn)
{
    struct loopback *lb = loopback_create(n);
    struct seat *seats = calloc(MAX_RANKS, sizeof *seats);
    if (!lb || !seats)
        abort();
    loopback_hosts(lb, w->hosts);
    int failed = w->use_threads ? run_threads(seats, w, test, lb, n, fn) : run_processes(seats, w, test, lb, n, fn);
    uint32_t count;
    for (uint32_t i = 0; i < 2; i++)
        w->words[i] = atomic_load(&loopback_words(lb, &count)[FIRST_WORD + i]);
    failed += check_leftovers(lb, test);
    free(seats);
    loopback_destroy(lb);
    return failed;
}

int world_join(const struct world *w, const char *test, const char *file, int32_t rank, int32_t n, test_fn *fn)
{
    struct loopback *lb = loopback_open(file, n);
    struct seat *seat = calloc(1, sizeof *seat);
    if (!lb || !seat)
        abort();
    loopback_hosts(lb, w->hosts);
    seat_init(seat, w, test, lb, rank, n, fn);
    sit(seat);
    int failed = seat->failed;
    free(seat);
    loopback_destroy(lb);
    return failed;
}
