/* What the benchmarks of collectives share: operations, timing, figures, output.
 *
 * A main starts the ranks and gives bench_run a few calls into its library; bench_run measures
 * every (operation, size) and rank 0 prints a line for each. */
#ifndef TENON_BENCH_MEASURE_H
#define TENON_BENCH_MEASURE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { BENCH_ALL_REDUCE, BENCH_ALL_GATHER, BENCH_REDUCE_SCATTER, BENCH_ALL_TO_ALL, BENCH_BROADCAST, BENCH_BARRIER,
       BENCH_SEND_RECV, BENCH_OPS };
enum { BENCH_SIZES = 32 };

struct bench_options {
    int ops[BENCH_OPS], n_ops;
    size_t sizes[BENCH_SIZES];
    int n_sizes;
    int ranks[16], n_ranks;
    double seconds;   /* of measuring for each line */
    int is_bf16;
    const char *json; /* JSON lines are appended to this file; NULL: none */
    const char *label;
};

/* A rank's library. Sizes are S, the larger one of a rank's send and receive buffer. */
struct bench_library {
    void *ctx;
    int rank, n;
    void (*run)(void *ctx, int op, size_t bytes);
    void (*barrier)(void *ctx);
    double (*share)(void *ctx, double value);   /* rank 0's value, on all ranks */
    double (*memory)(void *ctx, size_t bytes);  /* bytes/s that the cores can load and store in place while going
                                                   through a working set of n times that size; NULL: not measured */
};

/* Parses --ops, --sizes, --ranks, --seconds, --dtype, --json, --label; returns the index of the
 * first other argument, or -1 with a line on stderr. */
int bench_parse(struct bench_options *o, int argc, char **argv);
void bench_header(const struct bench_options *o);
void bench_run(const struct bench_options *o, const struct bench_library *lib);
const char *bench_op_name(int op);
double bench_now(void);
int bench_compare_doubles(const void *a, const void *b);
/* Seconds that one pass of `x += 1` over the working set takes. */
double bench_touch(float *x, size_t bytes);

#endif
