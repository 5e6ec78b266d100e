/* Timing of collectives (measure.h).
 *
 * A line is the median over batches; a batch is as many calls as take a few milliseconds, timed
 * on rank 0 after a barrier; the best batch is what a quiet moment of a busy machine gave. Bus
 * bandwidth is the usual one: all_reduce 2(n-1)/n S/t; all_gather, reduce_scatter, all_to_all
 * (n-1)/n S/t; broadcast, send/recv S/t. GB = 1e9 bytes. The ceiling is what the memory system
 * gave in the same run for the bytes that the operation must at least load and store on one
 * host, going through a working set of the same size. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "measure.h"

enum { BATCHES = 15 };

struct timing {
    double median, best; /* over batches, seconds for a call */
};

static const char *const names[BENCH_OPS] = { "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                                              "barrier", "send_recv" };

const char *bench_op_name(int op)
{
    return names[op];
}

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int bench_compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_touch(float *x, size_t bytes)
{
    double start = bench_now();
    for (size_t i = 0; i < bytes / sizeof *x; i++)
        x[i] += 1.0f;
    __asm__ volatile("" : : "r"(x) : "memory");
    return bench_now() - start;
}

static double bus_factor(int op, int n)
{
    if (op == BENCH_ALL_REDUCE)
        return 2.0 * (n - 1) / n;
    if (op == BENCH_BROADCAST || op == BENCH_SEND_RECV)
        return 1;
    return (double)(n - 1) / n;
}

/* Loads and stores that all ranks together cannot do without, in units of S. */
static double moved(int op, int n)
{
    if (op == BENCH_ALL_REDUCE || op == BENCH_ALL_TO_ALL)
        return 2.0 * n;
    if (op == BENCH_SEND_RECV)
        return 2;
    return n + 1.0;
}

static int parse_size(const char *text, char **end, size_t *size)
{
    double value = strtod(text, end);
    if (*end == text || value < 0)
        return 0;
    if (**end == 'K' || **end == 'M' || **end == 'G') {
        value *= **end == 'K' ? 1024.0 : **end == 'M' ? 1048576.0 : 1073741824.0;
        ++*end;
    }
    *size = (size_t)value;
    return **end == 0 || **end == ',';
}

static int parse_sizes(const char *text, size_t *to, int cap)
{
    int n = 0;
    for (char *end; n < cap && parse_size(text, &end, &to[n]); text = end + 1) {
        n++;
        if (!*end)
            return n;
    }
    return -1;
}

static int parse_ops(const char *text, struct bench_options *o)
{
    o->n_ops = 0;
    while (o->n_ops < BENCH_OPS) {
        size_t length = strcspn(text, ",");
        int op = 0;
        while (op < BENCH_OPS && (strncmp(names[op], text, length) != 0 || names[op][length]))
            op++;
        if (op == BENCH_OPS)
            return -1;
        o->ops[o->n_ops++] = op;
        if (!text[length])
            return o->n_ops;
        text += length + 1;
    }
    return -1;
}

static int parse_one(struct bench_options *o, const char *key, const char *value)
{
    size_t sizes[16];
    if (strcmp(key, "--ops") == 0)
        return parse_ops(value, o) > 0;
    if (strcmp(key, "--sizes") == 0)
        return (o->n_sizes = parse_sizes(value, o->sizes, BENCH_SIZES)) > 0;
    if (strcmp(key, "--ranks") == 0) {
        o->n_ranks = parse_sizes(value, sizes, 16);
        for (int i = 0; i < o->n_ranks; i++)
            o->ranks[i] = (int)sizes[i];
        return o->n_ranks > 0;
    }
    if (strcmp(key, "--seconds") == 0)
        return (o->seconds = strtod(value, NULL)) > 0;
    if (strcmp(key, "--dtype") == 0)
        return (o->is_bf16 = strcmp(value, "bf16") == 0) || strcmp(value, "f32") == 0;
    if (strcmp(key, "--json") == 0)
        return (o->json = value) != NULL;
    if (strcmp(key, "--label") == 0)
        return (o->label = value) != NULL;
    return 0;
}

int bench_parse(struct bench_options *o, int argc, char **argv)
{
    *o = (struct bench_options){ .n_ops = 1, .sizes = { 8, 1024, 65536, 1 << 20, 4 << 20, 16 << 20 }, .n_sizes = 6,
                                 .ranks = { 2, 4, 8 }, .n_ranks = 3, .seconds = 0.2, .label = "" };
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i += 2)
        if (i + 1 >= argc || !parse_one(o, argv[i], argv[i + 1])) {
            fprintf(stderr, "%s %s: the options are --ops all_reduce,... --sizes 8,1M,... --ranks 2,4,... --seconds S "
                            "--dtype f32|bf16 --json FILE --label TEXT\n", argv[i], i + 1 < argc ? argv[i + 1] : "");
            return -1;
        }
    return i;
}

void bench_header(const struct bench_options *o)
{
    printf("%-12s %-14s %5s %10s %11s %11s %11s %13s %6s\n", o->label, "operation", "ranks", "bytes", "median us",
           "best us", "busbw GB/s", "ceiling GB/s", "share");
}

static void print_line(const struct bench_options *o, int op, int n, size_t bytes, struct timing t, double memory)
{
    double seconds = t.median;
    double bus = (double)bytes * bus_factor(op, n) / seconds * 1e-9;
    double ceiling = memory > 0 ? memory / moved(op, n) * bus_factor(op, n) * 1e-9 : 0;
    printf("%-12s %-14s %5d %10zu %11.2f %11.2f %11.3f ", o->label, names[op], n, bytes, seconds * 1e6,
           t.best * 1e6, bus);
    if (ceiling > 0)
        printf("%13.2f %5.0f%%\n", ceiling, 100 * bus / ceiling);
    else
        printf("%13s %6s\n", "-", "-");
    fflush(stdout);
    FILE *f = o->json ? fopen(o->json, "a") : NULL;
    if (!f)
        return;
    fprintf(f, "{\"label\": \"%s\", \"op\": \"%s\", \"dtype\": \"%s\", \"ranks\": %d, \"bytes\": %zu, ", o->label,
            names[op], o->is_bf16 ? "bf16" : "f32", n, bytes);
    fprintf(f, "\"seconds\": %.9g, \"best_seconds\": %.9g, ", seconds, t.best);
    fprintf(f, "\"busbw_bytes_per_s\": %.6g, \"ceiling_bytes_per_s\": %.6g}\n", bus * 1e9, ceiling * 1e9);
    fclose(f);
}

static double time_batch(const struct bench_library *lib, int op, size_t bytes, long calls)
{
    lib->barrier(lib->ctx);
    double start = bench_now();
    for (long i = 0; i < calls; i++)
        lib->run(lib->ctx, op, bytes);
    return (bench_now() - start) / (double)calls;
}

static struct timing measure(const struct bench_options *o, const struct bench_library *lib, int op, size_t bytes)
{
    double once = time_batch(lib, op, bytes, 2); /* warm-up: pages, caches */
    once = lib->share(lib->ctx, once);
    once = lib->share(lib->ctx, time_batch(lib, op, bytes, once < 1e-4 ? 100 : 2));
    double batch = o->seconds / BATCHES;
    long calls = once > 0 && once < batch ? (long)(batch / once) : 1;
    double times[BATCHES];
    for (int i = 0; i < BATCHES; i++)
        times[i] = time_batch(lib, op, bytes, calls);
    qsort(times, BATCHES, sizeof *times, bench_compare_doubles);
    return (struct timing){ times[BATCHES / 2], times[0] };
}

void bench_run(const struct bench_options *o, const struct bench_library *lib)
{
    for (int s = 0; s < o->n_sizes; s++) {
        double memory = 0;
        if (lib->memory && o->sizes[s] >= 65536)
            memory = lib->memory(lib->ctx, o->sizes[s]);
        for (int i = 0; i < o->n_ops; i++) {
            if (o->ops[i] == BENCH_BARRIER && s > 0)
                continue;
            struct timing t = measure(o, lib, o->ops[i], o->ops[i] == BENCH_BARRIER ? 0 : o->sizes[s]);
            if (lib->rank == 0)
                print_line(o, o->ops[i], lib->n, o->ops[i] == BENCH_BARRIER ? 0 : o->sizes[s], t, memory);
        }
    }
}
