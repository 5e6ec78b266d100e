/* tenon bench: measures communication; the parts are in bench/. Without RANK in the environment it loads the backends
 * to see that they are there, then starts one process a rank, each of which is this command again. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tenon/host.h>

#include "base/log.h"
#include "bench/bench.h"
#include "config/options.h"

#define LONGEST_S 1e9 /* what a time-out in nanoseconds has room for */

static void usage(FILE *out)
{
    fprintf(out, "usage: tenon bench comm|latency|bandwidth [OPTIONS]\n\n"
                 "  comm       collectives: time, bandwidth, share of the memory's ceiling, backends side by side;\n"
                 "             with --job, those of one step of a job\n"
                 "  latency    half a round trip between two ranks\n"
                 "  bandwidth  messages between two ranks, one way and both ways\n\n"
                 "`tenon bench comm --help` says more.\n");
}

/* Where the executor's default comes from: the manifest's own. */
static const char *default_backend(void)
{
    const struct tn_settings_section *section = tn_settings_sections();
    for (; section->name; section++)
        for (uint32_t i = 0; strcmp(section->name, "comm") == 0 && i < section->count; i++)
            if (strcmp(section->table[i].key, "backend") == 0)
                return section->table[i].fallback;
    return "";
}

/* What depends on the number of ranks. `speaks`: one of them says it. */
static int fits(const struct bench_options *o, int32_t ranks, int speaks)
{
    const char *what = o->root >= ranks ? "--root is not one of them" : "messages need two; use -p 2";
    if (o->root < ranks && (ranks > 1 || o->command == BENCH_COMM))
        return 1;
    if (speaks)
        fprintf(stderr, "tenon bench: there are ranks 0 to %d: %s\n", ranks - 1, what);
    return 0;
}

static int run(const struct bench_options *o, struct bench_world *w, struct bench_backends *b)
{
    bench_backends_start(b, w);
    int code = o->command == BENCH_COMM ? bench_comm_run(o, w, b) : bench_p2p_run(o, w, b);
    bench_backends_stop(b);
    return code;
}

static int refuse(struct bench_backends *b)
{
    bench_backends_close(b);
    return TOOL_USAGE;
}

/* As one rank. */
static int run_rank(const struct bench_options *o)
{
    struct bench_world w = { .timeout_ns = (uint64_t)(fmin(o->timeout_seconds, LONGEST_S) * 1e9) };
    struct bench_backends b;
    char error[1024] = "";
    tn_launch_joined(&w.rank, &w.n, error, sizeof error);
    tn_log_setup(w.rank, TN_LOG_WARN);
    if (o->ranks && o->ranks != w.n) {
        if (w.rank == 0)
            fprintf(stderr, "tenon bench: --ranks %d, but the launcher started %d\n", o->ranks, w.n);
        return TOOL_USAGE;
    }
    if (!fits(o, w.n, w.rank == 0))
        return TOOL_USAGE;
    if (!o->job && bench_backends_open(&b, o, default_backend(), w.rank == 0))
        return refuse(&b);
    tn_status joined = tn_rank_init(&w.joined, w.timeout_ns, error, sizeof error);
    if (joined != TN_OK) {
        tn_log(TN_LOG_ERROR, "%s%s", error, bench_advice(joined));
        if (!o->job)
            bench_backends_close(&b);
        return joined == TN_INVALID ? TOOL_USAGE : TOOL_FAILED;
    }
    signal(SIGINT, SIG_DFL); /* there is no step to finish first */
    signal(SIGTERM, SIG_DFL);
    w.local_n = w.joined.bootstrap.local_size;
    if (o->pin)
        bench_pin(&w);
    int code = o->job ? bench_job_run(o, &w) : run(o, &w, &b);
    if (!o->job)
        bench_backends_close(&b);
    tn_rank_finish(&w.joined);
    return tool_printed(code);
}

static int32_t usual_ranks(const struct bench_options *o)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return o->command != BENCH_COMM || cores < 2 ? 2 : cores > 64 ? 64 : (int32_t)cores;
}

/* As the parent of all ranks. */
static int launch(const struct bench_options *o, char **argv)
{
    int32_t ranks = o->ranks ? o->ranks : usual_ranks(o);
    if (!fits(o, ranks, 1))
        return TOOL_USAGE;
    tn_launch_hold_signals();
    if (o->job) {
        ranks = bench_job_ranks(o);
    } else {
        struct bench_backends b;
        if (bench_backends_open(&b, o, default_backend(), 1))
            return refuse(&b);
        bench_backends_close(&b);
    }
    return ranks ? tn_launch_local(ranks, argv) : TOOL_USAGE;
}

int tenon_bench_main(int argc, char **argv)
{
    static const char *const names[] = { "comm", "latency", "bandwidth" };
    struct bench_options o;
    char error[512];
    int32_t rank = 0, world = 1;
    int command = 0;
    if (argc < 2 || tool_is_help(argv[1])) {
        usage(argc < 2 ? stderr : stdout);
        return argc < 2 ? TOOL_USAGE : tool_printed(TOOL_DONE);
    }
    while (command < 3 && strcmp(argv[1], names[command]) != 0)
        command++;
    if (command == 3) {
        const char *nearest = tn_nearest(argv[1], names, 3);
        fprintf(stderr, "tenon bench: unknown benchmark %s; ", argv[1]);
        fprintf(stderr, nearest ? "did you mean %s?\n" : "use comm, latency or bandwidth\n", nearest);
        return TOOL_USAGE;
    }
    int code = bench_options_read(&o, command, argc - 1, argv + 1);
    if (code >= 0)
        return code;
    int joined = tn_launch_joined(&rank, &world, error, sizeof error);
    if (joined < 0) {
        fprintf(stderr, "tenon: %s\n", error);
        return TOOL_USAGE;
    }
    if (rank == 0 && bench_output_check(&o))
        return TOOL_FAILED;
    return joined ? run_rank(&o) : launch(&o, argv - 1);
}
