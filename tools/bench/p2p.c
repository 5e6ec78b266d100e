/* tenon bench latency and bandwidth: messages from rank 0 to rank 1 and back (bench.h).
 *
 * latency: a message to and fro; the time is half of a round trip. bandwidth: a window of messages is under way at
 * once, answered by a small one; then both ranks send a window to each other. Other ranks look on. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include <tenon/value.h>

enum { PATTERN = 251, ANSWER_BYTES = 4 };

struct p2p {
    const struct bench_options *o;
    struct bench_world *w;
    struct bench_backends *b;
    uint64_t bytes;
    int both_ways;
    struct tn_request **window; /* [2 * o->window] */
    json_t *results;
    uint64_t wrong;
};

/* ---- messages ---- */

static struct tn_request *start_send(struct p2p *m, struct bench_backend *b, const void *data, uint64_t bytes)
{
    struct tn_request *r = NULL;
    tn_status status = b->table->send(b->comm, data, bytes, TN_U8, 1 - m->w->rank, NULL, &r);
    if (status != TN_OK)
        bench_must(m->w, b, status, "send");
    return r;
}

static struct tn_request *start_recv(struct p2p *m, struct bench_backend *b, void *data, uint64_t bytes)
{
    struct tn_request *r = NULL;
    tn_status status = b->table->recv(b->comm, data, bytes, TN_U8, 1 - m->w->rank, NULL, &r);
    if (status != TN_OK)
        bench_must(m->w, b, status, "recv");
    return r;
}

static void send_one(struct p2p *m, struct bench_backend *b, const void *data, uint64_t bytes)
{
    bench_wait(m->w, b, start_send(m, b, data, bytes), "send");
}

static void recv_one(struct p2p *m, struct bench_backend *b, void *data, uint64_t bytes)
{
    bench_wait(m->w, b, start_recv(m, b, data, bytes), "recv");
}

static void round_trip(struct p2p *m, struct bench_backend *b)
{
    if (m->w->rank == 0)
        send_one(m, b, b->send, m->bytes);
    recv_one(m, b, b->recv, m->bytes);
    if (m->w->rank == 1)
        send_one(m, b, b->send, m->bytes);
}

static void window_of_messages(struct p2p *m, struct bench_backend *b)
{
    int32_t n = 0;
    if (m->w->rank == 1 || m->both_ways)
        for (int32_t i = 0; i < m->o->window; i++)
            m->window[n++] = start_recv(m, b, b->recv, m->bytes);
    if (m->w->rank == 0 || m->both_ways)
        for (int32_t i = 0; i < m->o->window; i++)
            m->window[n++] = start_send(m, b, b->send, m->bytes);
    for (int32_t i = 0; i < n; i++)
        bench_wait(m->w, b, m->window[i], "window");
    if (m->w->rank == 0)
        recv_one(m, b, b->recv + m->bytes, ANSWER_BYTES);
    else
        send_one(m, b, b->send + m->bytes, ANSWER_BYTES);
}

static void once(struct p2p *m, struct bench_backend *b)
{
    if (m->w->rank > 1)
        return;
    if (m->o->command == BENCH_LATENCY)
        round_trip(m, b);
    else
        window_of_messages(m, b);
}

/* ---- as contestants ---- */

static void warm(void *ctx, int who, int64_t calls)
{
    struct p2p *m = ctx;
    bench_barrier(m->w, &m->b->backend[who]);
    for (int64_t i = 0; i < calls; i++)
        once(m, &m->b->backend[who]);
}

static void run(void *ctx, int who, struct bench_sample *samples, size_t calls)
{
    struct p2p *m = ctx;
    uint64_t share = m->o->command == BENCH_LATENCY ? 2 : 1, before = bench_now_ns();
    for (size_t i = 0; i < calls && m->w->rank < 2; i++) {
        once(m, &m->b->backend[who]);
        uint64_t after = bench_now_ns();
        if (m->w->rank == 0)
            samples[i] = (struct bench_sample){ before, (after - before) / share };
        before = after;
    }
}

/* ---- checks ---- */

static void fill(char *to, uint64_t bytes, int seed)
{
    for (uint64_t i = 0; i < bytes; i++)
        to[i] = (char)((i % PATTERN + (uint64_t)seed) & 0xff);
}

static uint64_t differ(const char *have, uint64_t bytes, int seed)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < bytes; i++)
        wrong += have[i] != (char)((i % PATTERN + (uint64_t)seed) & 0xff);
    return wrong;
}

/* Each way once for a latency line, a window each way for a bandwidth line. */
static uint64_t check(struct p2p *m, struct bench_backend *b)
{
    uint64_t wrong = 0, *all = m->w->rank == 0 ? bench_alloc((size_t)m->w->n * sizeof *all) : NULL;
    m->both_ways = 1;
    for (int64_t i = 0; i < m->o->checks && m->w->rank < 2; i++) {
        int seed = (int)(i * 7 + 1);
        fill(b->send, m->bytes, seed + m->w->rank);
        memset(b->recv, 0x5a, m->bytes);
        once(m, b);
        wrong += differ(b->recv, m->bytes, seed + 1 - m->w->rank);
    }
    bench_gather(m->w, &wrong, sizeof wrong, all);
    for (int32_t r = 1; r < m->w->n && all; r++)
        all[0] += all[r];
    wrong = all ? all[0] : 0;
    free(all);
    m->both_ways = 0;
    return wrong;
}

/* The first message of a pair may set the way up. */
static void print_first(struct p2p *m)
{
    for (int i = 0; i < m->b->n; i++) {
        char byte = 0;
        bench_barrier(m->w, &m->b->backend[i]);
        uint64_t before = bench_now_ns();
        if (m->w->rank == 0) {
            send_one(m, &m->b->backend[i], &byte, 1);
            recv_one(m, &m->b->backend[i], &byte, 1);
        } else if (m->w->rank == 1) {
            recv_one(m, &m->b->backend[i], &byte, 1);
            send_one(m, &m->b->backend[i], &byte, 1);
        }
        if (m->w->rank == 0 && !m->o->json && !m->o->csv)
            printf("# first message, %s: half a round trip of %.2f us\n", m->b->backend[i].name,
                   (double)(bench_now_ns() - before) * 0.5e-3);
    }
}

/* ---- output ---- */

static void head(const struct p2p *m)
{
    printf("#\n# %10s ", "size");
    if (m->o->command == BENCH_LATENCY)
        printf("%10s %10s %10s", "time", "p99", "least");
    else
        printf("%10s %10s %12s", "one way", "both ways", "msg/s");
    printf(" %6s  %-14s %7s %s\n# %10s ", "#wrong", "backend", "ratio", "95% interval", "(B)");
    printf(m->o->command == BENCH_LATENCY ? "%10s %10s %10s\n" : "%10s %10s %12s\n",
           m->o->command == BENCH_LATENCY ? "(us)" : "(GB/s)", m->o->command == BENCH_LATENCY ? "(us)" : "(GB/s)",
           m->o->command == BENCH_LATENCY ? "(us)" : "");
}

/* Bytes per second of one window, GB = 1e9 bytes. */
static double rate(const struct p2p *m, const struct bench_outcome *outcome, int ways)
{
    double bytes = (double)m->bytes * m->o->window * ways;
    return outcome->time_us > 0 ? bytes / (outcome->time_us * 1e-6) * 1e-9 : 0;
}

static void print(struct p2p *m, int who, const struct bench_outcome *one, const struct bench_outcome *both,
                  struct bench_interval ratio, int64_t wrong)
{
    int is_latency = m->o->command == BENCH_LATENCY;
    const char *name = m->b->backend[who].name;
    double messages = one->time_us > 0 ? m->o->window / (one->time_us * 1e-6) : 0;
    json_t *line =
        json_pack("{s:s, s:i, s:I, s:s, s:I, s:f, s:f, s:f}", "op", is_latency ? "latency" : "bandwidth", "ranks",
                  m->w->n, "size", (json_int_t)m->bytes, "backend", name, "iterations", (json_int_t)one->iterations,
                  "time_us", one->time_us, "p99_us", one->p99_us, "least_us", one->least_us);
    if (!is_latency) {
        json_object_set_new(line, "window", json_integer(m->o->window));
        json_object_set_new(line, "one_way", json_real(rate(m, one, 1)));
        json_object_set_new(line, "both_ways", json_real(rate(m, both, 2)));
        json_object_set_new(line, "messages_per_s", json_real(messages));
    }
    json_object_set_new(line, "wrong", wrong < 0 ? json_null() : json_integer(wrong));
    json_object_set_new(line, "ratio", json_real(ratio.middle));
    json_object_set_new(line, "ratio_low", json_real(ratio.low));
    json_object_set_new(line, "ratio_high", json_real(ratio.high));
    json_array_append_new(m->results, line);
    if (m->o->json || m->o->csv)
        return;
    printf("  %10llu ", (unsigned long long)m->bytes);
    if (is_latency)
        printf("%10.2f %10.2f %10.2f", one->time_us, one->p99_us, one->least_us);
    else
        printf("%10.3f %10.3f %12.0f", rate(m, one, 1), rate(m, both, 2), messages);
    if (wrong < 0)
        printf(" %6s  %-14s", "N/A", name);
    else
        printf(" %6lld  %-14s", (long long)wrong, name);
    if (who == 0)
        printf(" %7s\n", "1");
    else
        printf(" %7.2f [%.2f, %.2f]\n", ratio.middle, ratio.low, ratio.high);
    fflush(stdout);
}

/* ---- the run ---- */

static void measure(struct p2p *m, uint64_t bytes)
{
    struct bench_outcome one[BENCH_MOST_BACKENDS], both[BENCH_MOST_BACKENDS] = { 0 };
    struct bench_race race = { .ctx = m,
                               .n = m->b->n,
                               .warm = warm,
                               .run = run,
                               .iterations = m->o->iterations,
                               .warmups = m->o->warmups,
                               .seconds = m->o->seconds };
    int64_t wrong[BENCH_MOST_BACKENDS];
    m->bytes = bytes;
    for (int i = 0; i < m->b->n; i++) {
        wrong[i] = m->o->checks ? (int64_t)check(m, &m->b->backend[i]) : -1;
        m->wrong += wrong[i] > 0 ? (uint64_t)wrong[i] : 0;
    }
    bench_race_run(m->w, &race, one);
    m->both_ways = 1;
    if (m->o->command == BENCH_BANDWIDTH)
        bench_race_run(m->w, &race, both);
    m->both_ways = 0;
    for (int i = 0; i < m->b->n && m->w->rank == 0; i++)
        print(m, i, &one[i], &both[i], bench_ratio(one[i].block_us, one[0].block_us, one[i].blocks), wrong[i]);
}

static uint64_t largest(const struct bench_options *o)
{
    uint64_t bytes, most = 64;
    for (int at = 0; bench_size(o, at, &bytes); at++)
        most = bytes > most ? bytes : most;
    return most;
}

int bench_p2p_run(const struct bench_options *o, struct bench_world *w, struct bench_backends *b)
{
    struct p2p m = { .o = o, .w = w, .b = b, .results = json_array() };
    json_t *about = bench_about(o, w);
    for (int i = 0; i < b->n && about; i++)
        bench_about_add(about, b->backend[i].name, &b->backend[i].job);
    m.window = bench_alloc((size_t)(2 * o->window) * sizeof *m.window);
    if (w->rank == 0 && !o->json && !o->csv)
        bench_about_print(about, stdout);
    bench_backends_alloc(b, w, largest(o) + ANSWER_BYTES, o->from_heap);
    print_first(&m);
    if (w->rank == 0 && !o->json && !o->csv)
        head(&m);
    uint64_t bytes, before = UINT64_MAX;
    for (int at = 0; bench_size(o, at, &bytes); at++, before = bytes)
        if (bytes != before)
            measure(&m, bytes);
    int code = TOOL_DONE;
    if (w->rank == 0) {
        static const struct bench_chart charts[] = { { "time_us", "half a round trip, us", NULL },
                                                     { "one_way", "one way, GB/s", NULL } };
        code = bench_output(o, about, m.results, NULL, &charts[o->command == BENCH_BANDWIDTH]) || m.wrong ? TOOL_FAILED
                                                                                                          : TOOL_DONE;
        if (m.wrong)
            fprintf(stderr, "tenon bench: %llu bytes are wrong\n", (unsigned long long)m.wrong);
    }
    bench_tell(w, &code, sizeof code);
    free(m.window);
    json_decref(about);
    json_decref(m.results);
    return code;
}
