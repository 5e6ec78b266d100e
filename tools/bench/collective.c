/* Benchmark of a collective backend: collective [options] BACKEND.so
 *
 * Forks the ranks itself and uses nothing but the backend's table, so that any backend can be
 * measured alone. Buffers come from the backend's mem_alloc (the executor's arena does), or with
 * TENON_BENCH_PRIVATE=1 from the heap. Options: measure.c. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loopback.h"
#include "measure.h"
#include "plainhost.h"

#define SECONDS(s) ((uint64_t)(s) * 1000000000u)

struct rank {
    const struct bench_options *options;
    const struct tn_collective *table;
    struct plainhost host;
    struct tn_bootstrap bootstrap;
    struct loopback *lb;
    void *self;
    struct tn_comm *comm;
    char *a, *b; /* send and receive */
    size_t bytes;
    int32_t rank, n;
};

static void must(struct rank *r, tn_status st, const char *what)
{
    if (st == TN_OK)
        return;
    fprintf(stderr, "rank %d: %s: %d: %s\n", (int)r->rank, what, (int)st, r->host.message);
    _exit(1);
}

static void wait_for(struct rank *r, struct tn_request *q, const char *what)
{
    must(r, r->table->wait(q, SECONDS(30)), what);
}

static void run(void *ctx, int op, size_t bytes)
{
    struct rank *r = ctx;
    const struct tn_collective *t = r->table;
    uint32_t dtype = r->options->is_bf16 ? TN_BF16 : TN_F32;
    uint64_t all = bytes / (r->options->is_bf16 ? 2 : 4), part = all / (uint64_t)r->n;
    int32_t right = (r->rank + 1) % r->n, left = (r->rank + r->n - 1) % r->n;
    struct tn_request *q = NULL, *other = NULL;
    tn_status st = TN_ERROR;
    switch (op) {
    case BENCH_ALL_REDUCE:
        st = t->all_reduce(r->comm, r->a, r->a, all, dtype, TN_RED_SUM, NULL, &q);
        break;
    case BENCH_ALL_GATHER:
        st = t->all_gather(r->comm, r->a, r->b, part, dtype, NULL, &q);
        break;
    case BENCH_REDUCE_SCATTER:
        st = t->reduce_scatter(r->comm, r->a, r->b, part, dtype, TN_RED_SUM, NULL, &q);
        break;
    case BENCH_ALL_TO_ALL:
        st = t->all_to_all(r->comm, r->a, r->b, part, dtype, NULL, &q);
        break;
    case BENCH_BROADCAST:
        st = t->broadcast(r->comm, r->a, r->a, all, dtype, 0, NULL, &q);
        break;
    case BENCH_BARRIER:
        st = t->barrier(r->comm, NULL, &q);
        break;
    case BENCH_SEND_RECV:
        must(r, t->send(r->comm, r->a, all, dtype, right, NULL, &other), "send");
        st = t->recv(r->comm, r->b, all, dtype, left, NULL, &q);
        break;
    }
    must(r, st, bench_op_name(op));
    wait_for(r, q, bench_op_name(op));
    if (other)
        wait_for(r, other, "send");
}

static void barrier(void *ctx)
{
    run(ctx, BENCH_BARRIER, 0);
}

static double share(void *ctx, double value)
{
    struct rank *r = ctx;
    uint32_t count;
    _Atomic uint64_t *words = loopback_words(r->lb, &count);
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (r->rank == 0)
        atomic_store(&words[0], bits);
    barrier(r);
    bits = atomic_load(&words[0]);
    barrier(r);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The working set of n buffers, cut among as many ranks as there are cores. */
static double memory(void *ctx, size_t bytes)
{
    struct rank *r = ctx;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int workers = r->n < cores ? r->n : (int)cores, passes = bytes > (4 << 20) ? 5 : 20;
    size_t mine = bytes * (size_t)r->n / (size_t)workers;
    float *x = r->rank < workers ? calloc(1, mine) : NULL;
    if (x)
        bench_touch(x, mine);
    double best = 1e9;
    for (int i = 0; i < passes; i++) {
        barrier(r);
        double seconds = x ? bench_touch(x, mine) : 1e9;
        best = seconds < best ? seconds : best;
        barrier(r);
    }
    free(x);
    return 2.0 * (double)mine * workers / share(r, best);
}

static void rank_main(struct rank *r)
{
    must(r, r->table->create(&r->host.host, NULL, NULL, &r->self), "create");
    must(r, r->table->init(r->self, &r->bootstrap, SECONDS(10)), "init");
    int32_t ranks[256];
    for (int32_t i = 0; i < r->n; i++)
        ranks[i] = i;
    must(r, r->table->comm_create(r->self, "world", ranks, r->n, SECONDS(10), &r->comm), "comm_create");
    size_t bytes = r->bytes < 4096 ? 4096 : r->bytes;
    const char *is_private = getenv("TENON_BENCH_PRIVATE");
    void *memory_of_both;
    if (is_private && *is_private == '1')
        memory_of_both = calloc(2, bytes);
    else
        must(r, r->table->mem_alloc(r->self, 2 * bytes, &memory_of_both), "mem_alloc");
    r->a = memory_of_both;
    r->b = r->a + bytes;
    struct bench_library lib = { r, r->rank, r->n, run, barrier, share, memory };
    bench_run(r->options, &lib);
    r->table->comm_destroy(r->comm);
    r->table->destroy(r->self);
    _exit(0);
}

static int run_world(const struct bench_options *o, const struct tn_plugin *plugin, int n)
{
    struct loopback *lb = loopback_create(n);
    if (!lb)
        return 1;
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct rank r = { .options = o, .table = plugin->table, .lb = lb, .rank = i, .n = n };
            plainhost_init(&r.host, plugin);
            r.bootstrap = loopback_bootstrap(lb, i);
            for (int s = 0; s < o->n_sizes; s++)
                r.bytes = o->sizes[s] > r.bytes ? o->sizes[s] : r.bytes;
            rank_main(&r);
        }
    }
    int failed = 0;
    for (int i = 0, status; i < n; i++)
        if (wait(&status) > 0 && status != 0) {
            loopback_died(lb, i);
            failed = 1;
        }
    loopback_destroy(lb);
    return failed;
}

int main(int argc, char **argv)
{
    struct bench_options o;
    int at = bench_parse(&o, argc, argv);
    if (at < 0 || at + 1 != argc) {
        fprintf(stderr, "usage: %s [options] BACKEND.so\n", argv[0]);
        return 2;
    }
    const struct tn_plugin *plugin = plainhost_load(argv[at], TN_PLUGIN_COLLECTIVE);
    if (!plugin)
        return 1;
    if (!*o.label)
        o.label = plugin->id;
    bench_header(&o);
    int failed = 0;
    for (int i = 0; i < o.n_ranks; i++)
        failed |= run_world(&o, plugin, o.ranks[i]);
    return failed;
}
