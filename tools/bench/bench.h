/* Bench: what the parts of `tenon bench` share.
 *
 *     options.c   the command line
 *     world.c     this process as a rank: what ranks tell each other beside what is measured
 *     backend.c   the backends under test: loading, starting, calling
 *     values.c    inputs, and what must come out
 *     ceiling.c   what the memory of the host gives
 *     race.c      contestants that take turns, and what their calls took
 *     stats.c     medians, percentiles, intervals
 *     about.c     host, ranks and versions, for the head of every output
 *     comm.c      tenon bench comm: collectives           output.c, chart.c: its table, JSON, CSV and SVG
 *     job.c       tenon bench comm --job: the collectives of one step of a job
 *     p2p.c       tenon bench latency, tenon bench bandwidth
 *
 * Every rank runs the same code in the same order; rank 0 alone prints. */
#ifndef TENON_BENCH_H
#define TENON_BENCH_H

#include <stdio.h>

#include <jansson.h>

#include "base/buf.h"
#include "job.h"
#include "ranks/launch.h"

#include "../tool.h"

enum bench_op {
    BENCH_ALL_REDUCE,
    BENCH_ALL_GATHER,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_TO_ALL,
    BENCH_BROADCAST,
    BENCH_SEND_RECV,
    BENCH_BARRIER,
    BENCH_OPS
};
enum { BENCH_OUT_OF_PLACE, BENCH_IN_PLACE, BENCH_PLACES };
enum { BENCH_COMM, BENCH_LATENCY, BENCH_BANDWIDTH };
enum {
    BENCH_MOST_BACKENDS = 8,
    BENCH_MOST_DTYPES = 8,
    BENCH_MOST_RANKS = 4096,
    BENCH_BLOCKS = 20,
    BENCH_MOST_ITERATIONS = 1000000
};

/* ---- options.c ---- */

struct bench_options {
    int command; /* BENCH_COMM ... */
    int op[BENCH_OPS], n_ops;
    uint64_t least_bytes, most_bytes, step_bytes; /* step 0: by factor */
    double factor;
    int64_t iterations; /* 0: as many as fit into `seconds` */
    int64_t warmups, checks;
    double seconds; /* for each backend in each line */
    uint32_t dtype[BENCH_MOST_DTYPES], red[2];
    int n_dtypes, n_reds;
    int32_t root;                             /* -1: each in turn */
    int32_t ranks;                            /* 0: not given */
    const char *backend[BENCH_MOST_BACKENDS]; /* "shm", "verify+shm"; none: the job's */
    int n_backends;
    char backend_text[4096]; /* what the names point into */
    int cold[2], n_caches;   /* lines with warm buffers, with cold ones, or both */
    int from_heap;           /* --memory heap */
    int pin;
    double timeout_seconds; /* of whatever waits for other ranks */
    double idle_seconds;    /* 0: not measured */
    int32_t window;         /* bandwidth: messages under way */
    const char *manifest, *job;
    double compute; /* --job: the modelled time of kernels is multiplied by it */
    const char *overrides[TOOL_MOST_OVERRIDES];
    size_t n_overrides;
    int json, csv; /* on stdout, in place of the table */
    const char *json_file, *csv_file, *svg_file;
};

/* -1: go on; else the exit code (help was printed, or what is wrong said on stderr). */
int bench_options_read(struct bench_options *o, int command, int argc, char **argv);
const char *bench_op_name(int op);
const char *bench_red_name(uint32_t red);
/* The sizes of the lines; `at` from 0. 0: none left. */
int bench_size(const struct bench_options *o, int at, uint64_t *bytes);

/* ---- world.c ---- */

struct bench_world {
    struct tn_rank joined;
    int32_t rank, n, local_n; /* local_n: ranks on this host */
    uint64_t timeout_ns, next_key;
};

/* Both are collective, in the same order on all ranks, and end the process with a message if a rank is gone. */
/* Rank 0 gets everyone's `bytes` one after another in `all` (NULL elsewhere). */
void bench_gather(struct bench_world *w, const void *mine, size_t bytes, void *all);
/* Rank 0's data, at most 64 KiB, arrives on all. */
void bench_tell(struct bench_world *w, void *data, size_t bytes);
/* What to add to what is said of a time-out; "" of anything else. */
const char *bench_advice(tn_status status);
/* Ends this rank with exit code 1: the launcher and the store tell the others. */
__attribute__((format(printf, 2, 3), noreturn)) void bench_die(const struct bench_world *w, const char *fmt, ...);
void *bench_alloc(size_t bytes); /* zeroed; ends the process when exhausted */
uint64_t bench_now_ns(void);

/* ---- backend.c ---- */

/* The job's bootstrap, with keys of its own for each backend. */
struct bench_bootstrap {
    struct tn_bootstrap table;
    const struct tn_bootstrap *real;
    char prefix[16];
};
const char *bench_label(struct tn_arena *arena, const char *text);
/* The name of a plugin as the loader wants it. */
const char *bench_plugin_name(struct tn_arena *arena, const char *word, size_t length);
void bench_bootstrap_init(struct bench_bootstrap *boot, const struct tn_bootstrap *real, int number);

struct bench_backend {
    const char *name;                  /* "verify+shm" */
    struct tn_job job;                 /* of nothing but this backend, its layers, and what it opens */
    const struct tn_collective *table; /* of the outermost layer */
    void *self;
    struct tn_collective_caps caps;
    struct bench_bootstrap bootstrap;
    struct tn_comm *comm;       /* of all ranks */
    char *memory, *send, *recv; /* one piece, two buffers of `buffer_bytes` */
    uint64_t buffer_bytes;
    int of_backend;
};

/* The backends of the command line, with their options. */
struct bench_backends {
    struct bench_backend *backend; /* [n] */
    int n;
};

/* Loads and creates them; they are not started. Returns the number of problems, which go to stderr if this process
 * `speaks`. `fallback`: where the command line names none. To be closed in any case. */
size_t bench_backends_open(struct bench_backends *b, const struct bench_options *o, const char *fallback, int speaks);
void bench_backends_close(struct bench_backends *b);
/* Starts each and makes the group of all ranks. Collective. */
void bench_backends_start(struct bench_backends *b, struct bench_world *w);
/* Buffers of `bytes` each, from where the executor would take them: the backend if peers read them in place. */
void bench_backends_alloc(struct bench_backends *b, struct bench_world *w, uint64_t bytes, int from_heap);
void bench_backends_stop(struct bench_backends *b);
/* What a request, or starting it, came to must be TN_OK. */
void bench_must(const struct bench_world *w, struct bench_backend *b, tn_status status, const char *what);
/* As the executor does: looks once, then waits. */
void bench_wait(const struct bench_world *w, struct bench_backend *b, struct tn_request *r, const char *what);
void bench_barrier(const struct bench_world *w, struct bench_backend *b);

/* ---- values.c ---- */

/* One operation with all that its result depends on. */
struct bench_call {
    int op, place;
    uint32_t dtype, red;
    int32_t root, rank, n;
    uint64_t bytes; /* S: the larger of a rank's buffers */
    uint64_t count; /* elements per rank, as the table of collective.h counts them */
    uint32_t seed;  /* of the values */
};
struct bench_buffers {
    char *send, *recv;
    uint64_t send_bytes, recv_bytes;
};

/* bytes is rounded down to what the ranks can share evenly; 0: the op does not exist in that place. */
int bench_call_init(struct bench_call *call, int op, int place, uint32_t dtype, uint32_t red, int32_t root,
                    uint64_t bytes, int32_t rank, int32_t n);
struct bench_buffers bench_call_buffers(const struct bench_call *call, char *send, char *recv);
/* Inputs by rank, element and seed; what is to be written holds something else. */
void bench_values_fill(const struct bench_call *call, char *send, char *recv);
/* Elements of the result that differ. Every value is exact: sums are of small whole numbers. */
uint64_t bench_values_wrong(const struct bench_call *call, const char *send, const char *recv);

/* ---- ceiling.c ---- */

/* A worker's part of a working set, and the ways to go through it. */
enum { BENCH_PASSES = 5 };
struct bench_ceiling {
    char *memory;
    uint64_t bytes; /* of this worker; 0: it is none */
    void *mapping;
    uint64_t mapped_bytes;
};
void bench_ceiling_init(struct bench_ceiling *c, uint64_t bytes);
void bench_ceiling_finish(struct bench_ceiling *c);
/* Way `pass` of 0 .. BENCH_PASSES - 1: whether it is one that the operation could go; going it; the bytes that it loads
 * and stores. */
int bench_ceiling_counts(const struct bench_call *call, int pass);
void bench_ceiling_pass(struct bench_ceiling *c, int pass);
uint64_t bench_ceiling_bytes(const struct bench_ceiling *c, int pass);
/* Loads and stores, in units of S, that the ranks of one host together cannot do without. */
double bench_moved(const struct bench_call *call);
double bench_bus_factor(int op, int32_t n);
/* Neither in this core's cache nor in another's. */
void bench_flush(const char *from, uint64_t bytes);

/* ---- stats.c ---- */

struct bench_interval {
    double middle, low, high;
};
double bench_median(const double *values, size_t n);
double bench_percentile(const double *values, size_t n, double percent); /* the nearest rank's */
/* Median of a ratio between pairs, and its 95% interval by resampling the pairs. */
struct bench_interval bench_ratio(const double *above, const double *below, size_t n);

/* ---- race.c ---- */

struct bench_sample {
    uint64_t start_ns, took_ns;
};
/* Contestants take turns in BENCH_BLOCKS blocks of calls, so that all meet the same disturbances. */
struct bench_race {
    void *ctx;
    int n;      /* contestants with a full share of calls; all zero on ranks that only look on */
    int n_more; /* further ones, with one call a block */
    /* What comes before a block, untimed: `calls` of them, after a barrier. */
    void (*warm)(void *ctx, int who, int64_t calls);
    void (*run)(void *ctx, int who, struct bench_sample *samples, size_t calls);
    int64_t iterations, warmups; /* iterations 0: found by trying */
    double seconds;
};
/* Of one contestant, on rank 0. A call takes what its slowest rank takes. */
struct bench_outcome {
    double time_us, p99_us, least_us, skew_us; /* skew: of the entries into a call, median; -1: several hosts */
    double rate;                               /* calls per second, the sum over the ranks, median */
    double block_us[BENCH_BLOCKS];             /* medians of the blocks */
    size_t blocks;
    uint64_t iterations;
};
/* Collective. outcome[n + n_more]. */
void bench_race_run(struct bench_world *w, const struct bench_race *race, struct bench_outcome *outcome);

/* ---- about.c ---- */

/* Host, ranks and their cores, backends, versions. Collective; on rank 0 the object is the caller's, else NULL. */
json_t *bench_about(const struct bench_options *o, struct bench_world *w);
/* Adds the collective plugins of a job, under the name that it has here. */
void bench_about_add(json_t *about, const char *name, struct tn_job *job);
void bench_about_print(const json_t *about, FILE *out);
void bench_pin(const struct bench_world *w);

/* ---- output.c, chart.c ---- */

/* One place of one line of one backend. */
struct bench_result {
    int is_there;
    double time_us, p99_us, algbw, busbw; /* GB/s */
    int64_t wrong;                        /* -1: not checked */
    double skew_us;                       /* -1: not known */
    double ceiling, share;                /* busbw GB/s; share of it; 0: not measured */
    struct bench_interval ratio;          /* of times: this backend's / the first one's */
    uint64_t iterations;
};
struct bench_line {
    struct bench_call call;
    const char *backend;
    int cold, is_first;
    struct bench_result place[BENCH_PLACES];
};
void bench_table_head(const struct bench_options *o, int op);
void bench_table_line(const struct bench_options *o, const struct bench_line *line);
json_t *bench_line_json(const struct bench_line *line, int place);
void bench_csv(const json_t *results, FILE *out);
/* A chart per op: `y` over "size", a curve for each of "backend" (and "cache"), with "ceiling_busbw" if it is there. */
struct bench_chart {
    const char *y, *y_label, *ceiling; /* ceiling: key, or NULL */
};
void bench_chart_write(const json_t *about, const json_t *results, const struct bench_chart *chart, FILE *out);
/* Opens the files, without changing what is in them. -1: one cannot be written, and said so. */
int bench_output_check(const struct bench_options *o);
/* Writes what the options ask for. 0, or -1 with a message. */
int bench_output(const struct bench_options *o, json_t *about, json_t *results, json_t *more,
                 const struct bench_chart *chart);

/* ---- the runs, each on all ranks; returns the exit code ---- */

int bench_comm_run(const struct bench_options *o, struct bench_world *w, struct bench_backends *b);
int bench_p2p_run(const struct bench_options *o, struct bench_world *w, struct bench_backends *b);
int bench_job_run(const struct bench_options *o, struct bench_world *w);
/* Ranks that the job has; 0 after a message. */
int32_t bench_job_ranks(const struct bench_options *o);

#endif
