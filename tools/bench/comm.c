/* tenon bench comm: collectives of several backends, side by side (bench.h). */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "program/ops.h"

enum { CEILING_FROM = 64 << 10 /* below, an operation is latency */ };

struct comm {
    const struct bench_options *o;
    struct bench_world *w;
    struct bench_backends *b;
    json_t *results; /* rank 0 */
    uint64_t wrong;  /* of all lines, rank 0 */
    /* the line under way */
    struct bench_call call;
    int cold;
    struct bench_ceiling ceiling;
};

/* ---- one call ---- */

static void call_once(struct comm *m, struct bench_backend *b)
{
    const struct bench_call *c = &m->call;
    const struct tn_collective *t = b->table;
    struct bench_buffers buf = bench_call_buffers(c, b->send, b->recv);
    struct tn_request *r = NULL, *other = NULL;
    const char *name = bench_op_name(c->op);
    tn_status status = TN_ERROR;
    switch (c->op) {
    case BENCH_ALL_REDUCE:
        status = t->all_reduce(b->comm, buf.send, buf.recv, c->count, c->dtype, c->red, NULL, &r);
        break;
    case BENCH_ALL_GATHER: status = t->all_gather(b->comm, buf.send, buf.recv, c->count, c->dtype, NULL, &r); break;
    case BENCH_REDUCE_SCATTER:
        status = t->reduce_scatter(b->comm, buf.send, buf.recv, c->count, c->dtype, c->red, NULL, &r);
        break;
    case BENCH_ALL_TO_ALL: status = t->all_to_all(b->comm, buf.send, buf.recv, c->count, c->dtype, NULL, &r); break;
    case BENCH_BROADCAST:
        status = t->broadcast(b->comm, buf.send, buf.recv, c->count, c->dtype, c->root, NULL, &r);
        break;
    case BENCH_SEND_RECV:
        bench_must(m->w, b, t->send(b->comm, buf.send, c->count, c->dtype, (c->rank + 1) % c->n, NULL, &other), name);
        status = t->recv(b->comm, buf.recv, c->count, c->dtype, (c->rank + c->n - 1) % c->n, NULL, &r);
        break;
    default: status = t->barrier(b->comm, NULL, &r);
    }
    if (status != TN_OK)
        bench_must(m->w, b, status, name);
    bench_wait(m->w, b, r, name);
    bench_wait(m->w, b, other, name);
}

/* ---- as contestants: the backends, then the ways to measure the ceiling ---- */

static void warm(void *ctx, int who, int64_t calls)
{
    struct comm *m = ctx;
    bench_barrier(m->w, &m->b->backend[who < m->b->n ? who : 0]);
    for (int64_t i = 0; i < calls && who < m->b->n; i++)
        call_once(m, &m->b->backend[who]);
    if (who >= m->b->n && m->ceiling.bytes && !m->cold && bench_ceiling_counts(&m->call, who - m->b->n))
        bench_ceiling_pass(&m->ceiling, who - m->b->n);
}

/* Back to back: one look at the clock between two calls. */
static void run_warm(struct comm *m, struct bench_backend *b, struct bench_sample *samples, size_t calls)
{
    uint64_t before = bench_now_ns();
    for (size_t i = 0; i < calls; i++) {
        call_once(m, b);
        uint64_t after = bench_now_ns();
        samples[i] = (struct bench_sample){ before, after - before };
        before = after;
    }
}

static void run_cold(struct comm *m, struct bench_backend *b, struct bench_sample *samples, size_t calls)
{
    for (size_t i = 0; i < calls; i++) {
        bench_flush(b->send, m->call.bytes);
        bench_flush(b->recv, m->call.bytes);
        bench_barrier(m->w, b);
        uint64_t before = bench_now_ns();
        call_once(m, b);
        samples[i] = (struct bench_sample){ before, bench_now_ns() - before };
    }
}

/* The best of a few: this is to be a ceiling. The workers go at the same time. */
static struct bench_sample time_pass(struct comm *m, int pass)
{
    enum { TRIES = 3 };
    struct bench_sample best = { bench_now_ns(), 0 };
    for (int i = 0; i < TRIES && m->ceiling.bytes && bench_ceiling_counts(&m->call, pass); i++) {
        if (m->cold)
            bench_flush(m->ceiling.memory, m->ceiling.bytes);
        uint64_t before = bench_now_ns();
        bench_ceiling_pass(&m->ceiling, pass);
        uint64_t took_ns = bench_now_ns() - before;
        if (i == 0 || took_ns < best.took_ns)
            best = (struct bench_sample){ before, took_ns };
    }
    return best;
}

static void run(void *ctx, int who, struct bench_sample *samples, size_t calls)
{
    struct comm *m = ctx;
    if (who < m->b->n) {
        (m->cold ? run_cold : run_warm)(m, &m->b->backend[who], samples, calls);
        return;
    }
    *samples = time_pass(m, who - m->b->n);
}

/* ---- the ceiling ---- */

static uint64_t working_set(const struct bench_call *call)
{
    struct bench_buffers buf = bench_call_buffers(call, NULL, NULL);
    uint64_t larger = buf.send_bytes > buf.recv_bytes ? buf.send_bytes : buf.recv_bytes;
    return (uint64_t)call->n * (call->place == BENCH_IN_PLACE ? larger : buf.send_bytes + buf.recv_bytes);
}

/* As many ranks as there are cores go through the working set. Returns the number of ways to do it; 0: no ceiling. */
static int start_ceiling(struct comm *m)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int32_t workers = cores > 0 && cores < m->w->n ? (int32_t)cores : m->w->n;
    int32_t local = m->w->joined.bootstrap.local_rank;
    m->ceiling = (struct bench_ceiling){ 0 };
    if (m->call.bytes < CEILING_FROM || m->call.n < 2 || m->w->local_n != m->w->n)
        return 0;
    if (local < workers)
        bench_ceiling_init(&m->ceiling, working_set(&m->call) / (uint64_t)workers);
    return BENCH_PASSES;
}

/* Bytes per second that all workers together loaded and stored in the best way. Each counts with its own time: a
 * backend may share work out as the cores are free. */
static double ceiling_of(const struct comm *m, const struct bench_outcome *pass, int passes)
{
    double best = 0;
    for (int i = 0; i < passes; i++) {
        double rate = pass[i].rate * (double)bench_ceiling_bytes(&m->ceiling, i);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- one place of one line ---- */

static uint64_t check(struct comm *m, struct bench_backend *b)
{
    uint64_t wrong = 0, *all = m->w->rank == 0 ? bench_alloc((size_t)m->w->n * sizeof *all) : NULL;
    for (int64_t i = 0; i < m->o->checks; i++) {
        m->call.seed = (uint32_t)(i + 1) * 1000u + (uint32_t)m->call.op;
        bench_values_fill(&m->call, b->send, b->recv);
        bench_barrier(m->w, b);
        call_once(m, b);
        wrong += bench_values_wrong(&m->call, b->send, b->recv);
    }
    bench_gather(m->w, &wrong, sizeof wrong, all);
    for (int32_t r = 1; r < m->w->n && all; r++)
        all[0] += all[r];
    wrong = all ? all[0] : 0;
    free(all);
    return wrong;
}

static void conclude(struct comm *m, const struct bench_outcome *mine, const struct bench_outcome *first, double memory,
                     struct bench_result *result)
{
    const struct bench_call *c = &m->call;
    double seconds = mine->time_us * 1e-6, factor = bench_bus_factor(c->op, c->n);
    result->time_us = mine->time_us;
    result->p99_us = mine->p99_us;
    result->skew_us = mine->skew_us;
    result->iterations = mine->iterations;
    result->algbw = seconds > 0 ? (double)c->bytes / seconds * 1e-9 : 0;
    result->busbw = result->algbw * factor;
    if (memory > 0 && seconds > 0) {
        double least = bench_moved(c) * (double)c->bytes / memory;
        result->ceiling = (double)c->bytes / least * factor * 1e-9;
        result->share = least / seconds;
    }
    result->ratio = bench_ratio(mine->block_us, first->block_us, mine->blocks);
}

static void measure(struct comm *m, struct bench_line *lines)
{
    struct bench_outcome outcome[BENCH_MOST_BACKENDS + BENCH_PASSES];
    int n = m->b->n, place = m->call.place;
    for (int i = 0; i < n; i++) {
        struct bench_result *result = &lines[i].place[place];
        lines[i].call = m->call;
        result->is_there = 1;
        result->wrong = -1;
        if (m->o->checks && m->call.op != BENCH_BARRIER) {
            result->wrong = (int64_t)check(m, &m->b->backend[i]);
            m->wrong += (uint64_t)result->wrong;
        }
        memset(m->b->backend[i].send, 0, m->call.bytes); /* sums in place of the timed calls stay finite */
        memset(m->b->backend[i].recv, 0, m->call.bytes);
    }
    int passes = start_ceiling(m);
    struct bench_race race = { .ctx = m,
                               .n = n,
                               .n_more = passes,
                               .warm = warm,
                               .run = run,
                               .iterations = m->o->iterations,
                               .warmups = m->cold ? 0 : m->o->warmups,
                               .seconds = m->o->seconds };
    bench_race_run(m->w, &race, outcome);
    double memory = m->w->rank == 0 ? ceiling_of(m, outcome + n, passes) : 0;
    for (int i = 0; i < n && m->w->rank == 0; i++)
        conclude(m, &outcome[i], &outcome[0], memory, &lines[i].place[place]);
    bench_ceiling_finish(&m->ceiling);
}

/* ---- lines ---- */

static void print(struct comm *m, const struct bench_line *lines)
{
    for (int i = 0; i < m->b->n; i++) {
        if (!m->o->json && !m->o->csv)
            bench_table_line(m->o, &lines[i]);
        for (int place = 0; place < BENCH_PLACES; place++)
            if (lines[i].place[place].is_there)
                json_array_append_new(m->results, bench_line_json(&lines[i], place));
    }
}

static void measure_line(struct comm *m, int op, uint32_t dtype, uint32_t red, int32_t root, uint64_t bytes, int cold)
{
    struct bench_line lines[BENCH_MOST_BACKENDS] = { 0 };
    m->cold = cold;
    for (int i = 0; i < m->b->n; i++) {
        lines[i].backend = m->b->backend[i].name;
        lines[i].cold = cold;
        lines[i].is_first = i == 0;
    }
    for (int place = 0; place < BENCH_PLACES; place++)
        if (bench_call_init(&m->call, op, place, dtype, red, root, bytes, m->w->rank, m->w->n))
            measure(m, lines);
    if (m->w->rank == 0)
        print(m, lines);
}

/* All dtypes, reductions, roots and states of the caches that concern this operation and size. */
static void measure_size(struct comm *m, int op, uint64_t bytes)
{
    const struct bench_options *o = m->o;
    int reduces = op == BENCH_ALL_REDUCE || op == BENCH_REDUCE_SCATTER;
    int n_dtypes = op == BENCH_BARRIER ? 1 : o->n_dtypes, n_reds = reduces ? o->n_reds : 1;
    int32_t first = o->root < 0 ? 0 : o->root, last = o->root < 0 ? m->w->n - 1 : o->root;
    if (op != BENCH_BROADCAST)
        first = last = 0;
    for (int d = 0; d < n_dtypes; d++)
        for (int r = 0; r < n_reds; r++)
            for (int32_t root = first; root <= last; root++)
                for (int cache = 0; cache < o->n_caches; cache++)
                    measure_line(m, op, o->dtype[d], o->red[r], root, bytes, o->cold[cache]);
}

static void measure_op(struct comm *m, int op)
{
    uint64_t bytes, before = UINT64_MAX;
    if (m->w->rank == 0 && !m->o->json && !m->o->csv)
        bench_table_head(m->o, op);
    for (int at = 0; bench_size(m->o, at, &bytes); at++) {
        struct bench_call call;
        bench_call_init(&call, op, 0, m->o->dtype[0], 0, 0, bytes, m->w->rank, m->w->n);
        if (call.bytes != before)
            measure_size(m, op, bytes);
        before = call.bytes;
    }
}

/* ---- waiting ---- */

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Share of a core that ranks use which wait for rank 0: the most of any. */
static double idle_share(struct comm *m, struct bench_backend *b)
{
    double share = 0, *all = m->w->rank == 0 ? bench_alloc((size_t)m->w->n * sizeof *all) : NULL;
    bench_barrier(m->w, b);
    if (m->w->rank == 0) {
        double whole = (double)(int64_t)m->o->idle_seconds;
        struct timespec nap = { (time_t)whole, (long)((m->o->idle_seconds - whole) * 1e9) };
        nanosleep(&nap, NULL);
    }
    double cpu = cpu_seconds();
    uint64_t start = bench_now_ns();
    bench_barrier(m->w, b);
    if (m->w->rank != 0)
        share = (cpu_seconds() - cpu) / ((double)(bench_now_ns() - start) * 1e-9);
    bench_gather(m->w, &share, sizeof share, all);
    for (int32_t r = 1; r < m->w->n && all; r++)
        share = all[r] > share ? all[r] : share;
    free(all);
    return share;
}

static json_t *measure_idle(struct comm *m)
{
    json_t *idle = json_array();
    for (int i = 0; i < m->b->n; i++) {
        double share = idle_share(m, &m->b->backend[i]);
        if (m->w->rank != 0)
            continue;
        json_array_append_new(idle, json_pack("{s:s, s:f, s:f}", "backend", m->b->backend[i].name, "seconds",
                                              m->o->idle_seconds, "core_share", share));
        if (!m->o->json && !m->o->csv)
            printf("# waiting %g s for a late rank, %s: at most %.1f%% of a core a rank\n", m->o->idle_seconds,
                   m->b->backend[i].name, 100 * share);
    }
    return idle;
}

/* ---- the run ---- */

static uint64_t largest(const struct bench_options *o)
{
    uint64_t bytes, most = 64;
    for (int at = 0; bench_size(o, at, &bytes); at++)
        most = bytes > most ? bytes : most;
    return most;
}

int bench_comm_run(const struct bench_options *o, struct bench_world *w, struct bench_backends *b)
{
    struct comm m = { .o = o, .w = w, .b = b, .results = json_array() };
    json_t *about = bench_about(o, w);
    for (int i = 0; i < b->n && about; i++)
        bench_about_add(about, b->backend[i].name, &b->backend[i].job);
    if (w->rank == 0 && !o->json && !o->csv)
        bench_about_print(about, stdout);
    bench_backends_alloc(b, w, largest(o), o->from_heap);
    for (int i = 0; i < o->n_ops; i++)
        measure_op(&m, o->op[i]);
    json_t *idle = o->idle_seconds > 0 ? measure_idle(&m) : NULL;
    int code = TOOL_DONE;
    if (w->rank == 0) {
        static const struct bench_chart chart = { "busbw", "bus bandwidth, GB/s", "ceiling_busbw" };
        json_t *more = idle ? json_pack("{s:o}", "idle", idle) : NULL;
        code = bench_output(o, about, m.results, more, &chart) || m.wrong ? TOOL_FAILED : TOOL_DONE;
        if (m.wrong)
            fprintf(stderr, "tenon bench: %llu elements are wrong\n", (unsigned long long)m.wrong);
        json_decref(more);
    } else {
        json_decref(idle);
    }
    bench_tell(w, &code, sizeof code);
    json_decref(about);
    json_decref(m.results);
    return code;
}
