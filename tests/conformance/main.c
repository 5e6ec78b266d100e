/* The conformance suite for collective backends: conformance [options] BACKEND.so
 *
 *   --threads     ranks are threads of one process
 *   --ranks N     only with so many (default: 1 to 8)
 *   --test NAME   only that one
 *   --set "key=value ..."  options of the backend, or of the layer
 *   --over PATH   what is tested is a layer over this plugin, which may be one over the next --over
 *   --with PATH   a backend that what is tested may open by its id
 *   --hosts N     ranks are told that they are on N hosts, and cannot share memory across them
 *   --hosts aabb  the same, a letter for each rank and so many ranks
 *   --but A,B     not these tests
 *   --groups N    that one test makes and destroys (default 1000)
 *
 *   --joined FILE one rank of those that mpirun started, which meet in FILE; with --test
 *
 * Prints a line for each test and, at the end, what failed. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "life.h"
#include "tests.h"

/* FEW_SIZES: with 2, 4 and 8 ranks. TWICE: and the words that it leaves must be the same in both runs. */
enum { PROCESSES_ONLY = 1, FEW_SIZES = 2, TWICE = 4 };

static const struct test {
    const char *name;
    test_fn *fn;
    int flags, killed;
} tests[] = {
    { "matrix", test_matrix, 0, -1 },
    { "large", test_large, 0, -1 },
    { "rounding", test_rounding, TWICE, -1 },
    { "send_recv", test_send_recv, 0, -1 },
    { "early_recv", test_early_recv, 0, -1 },
    { "arguments", test_arguments, 0, -1 },
    { "outstanding", test_outstanding, 0, -1 },
    { "grid", test_grid, 0, -1 },
    { "across_groups", test_across_groups, 0, -1 },
    { "ring_full", test_ring_full, 0, -1 },
    { "random", test_random, 0, -1 },
    { "wake", test_wake, FEW_SIZES, -1 },
    { "memory", test_memory, FEW_SIZES, -1 },
    { "timeout", test_timeout, 0, -1 },
    { "abort", test_abort, FEW_SIZES, -1 },
    { "conflict", test_conflict, FEW_SIZES, -1 },
    { "message_conflict", test_message_conflict, FEW_SIZES, -1 },
    { "killed", test_killed, PROCESSES_ONLY | FEW_SIZES, 1 },
    { "killed_and_late", test_killed_and_late, PROCESSES_ONLY | FEW_SIZES, 1 },
    { "killed_while_busy", test_killed_while_busy, PROCESSES_ONLY | FEW_SIZES, 1 },
    { "group_timeout", test_group_timeout, FEW_SIZES, -1 },
    { "groups_without_leak", test_groups_without_leak, FEW_SIZES, -1 },
};

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A launcher's ranks end with the test, as MPI starts but once in a process. */
static int join_one(const struct world *w, const struct test *t, const char *file)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (!rank || !size || atoi(size) > MAX_RANKS) {
        fprintf(stderr, "--joined: no rank of an mpirun with at most %d\n", MAX_RANKS);
        return 1;
    }
    return world_join(w, t->name, file, atoi(rank), atoi(size), t->fn);
}

static int run_one(struct world *w, const struct test *t, int32_t n)
{
    int fds = count_entries("/proc/self/fd", "");
    w->expect_killed = t->killed;
    double start = clock_s();
    int failed = world_run(w, t->name, n, t->fn);
    uint64_t first[2] = { w->words[0], w->words[1] };
    if (!failed && t->flags & TWICE) {
        failed = world_run(w, t->name, n, t->fn);
        if (!failed && (first[0] != w->words[0] || first[1] != w->words[1]))
            failed = fprintf(stderr, "%s: other bits in another run\n", t->name) > 0;
    }
    if (!failed && count_entries("/proc/self/fd", "") > fds)
        failed = fprintf(stderr, "%s: a descriptor is left open\n", t->name) > 0;
    printf("%-20s %d ranks  %6.2f s  %s\n", t->name, (int)n, clock_s() - start, failed ? "FAILED" : "ok");
    fflush(stdout);
    return failed != 0;
}

/* In a list with commas between. */
static int is_listed(const char *name, const char *list)
{
    size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == 0 || at[length] == ','))
            return 1;
    return 0;
}

static int usage(const char *name)
{
    fprintf(
        stderr,
        "usage: %s [--threads] [--ranks N] [--test NAME] [--set \"key=value\"] [--over PLUGIN.so] [--with PLUGIN.so] "
        "[--hosts N|aabb] [--but NAMES] [--groups N] [--joined FILE] PLUGIN.so\n",
        name);
    return 2;
}

int main(int argc, char **argv)
{
    struct world w = { .limit_s = 250, .groups = 1000 };
    const char *only = NULL, *but = "", *path = NULL, *joined = NULL;
    int ranks = 0, failed = 0, ran = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0)
            w.use_threads = 1;
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
            ranks = atoi(argv[++i]);
        else if (strcmp(argv[i], "--test") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (strcmp(argv[i], "--joined") == 0 && i + 1 < argc)
            joined = argv[++i];
        else if (strcmp(argv[i], "--set") == 0 && i + 1 < argc)
            w.overrides = argv[++i];
        else if (strcmp(argv[i], "--over") == 0 && i + 1 < argc && w.n_below < MAX_LAYERS)
            w.below[w.n_below++] = plainhost_load(argv[++i], TN_PLUGIN_COLLECTIVE);
        else if (strcmp(argv[i], "--with") == 0 && i + 1 < argc && w.n_with < MAX_LAYERS)
            w.with[w.n_with++] = plainhost_load(argv[++i], TN_PLUGIN_COLLECTIVE);
        else if (strcmp(argv[i], "--hosts") == 0 && i + 1 < argc)
            w.hosts = argv[++i];
        else if (strcmp(argv[i], "--groups") == 0 && i + 1 < argc)
            w.groups = atoi(argv[++i]);
        else if (strcmp(argv[i], "--but") == 0 && i + 1 < argc)
            but = argv[++i];
        else if (argv[i][0] == '-' || path)
            return usage(argv[0]);
        else
            path = argv[i];
    }
    if (!path || ranks < 0 || ranks > MAX_RANKS)
        return usage(argv[0]);
    w.plugin = plainhost_load(path, TN_PLUGIN_COLLECTIVE);
    if (!w.plugin)
        return 1;
    for (int32_t i = 0; i < w.n_below; i++)
        if (!w.below[i])
            return 1;
    for (int32_t i = 0; i < w.n_with; i++)
        if (!w.with[i])
            return 1;
    if (w.hosts && !isdigit((unsigned char)*w.hosts))
        ranks = (int)strlen(w.hosts);
    for (size_t i = 0; joined && i < sizeof tests / sizeof *tests; i++)
        if (only && strcmp(only, tests[i].name) == 0)
            return join_one(&w, &tests[i], joined);
    if (joined)
        return usage(argv[0]);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        for (int32_t n = 1; n <= MAX_RANKS; n++) {
            const struct test *t = &tests[i];
            int is_few = n == 2 || n == 4 || n == 8;
            if (is_listed(t->name, but) || (ranks && n != ranks) || (only && strcmp(only, t->name) != 0) ||
                (t->flags & FEW_SIZES && !is_few && !w.hosts) || (t->flags & PROCESSES_ONLY && w.use_threads))
                continue;
            failed += run_one(&w, t, n);
            ran++;
        }
    printf("%d of %d failed\n", failed, ran);
    return failed > 0 || ran == 0;
}
