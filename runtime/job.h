/* Job: one manifest from text to bound programs. The flow of ARCHITECTURE.md, as functions.
 *
 *     setup.c    manifest, settings, plugins, mesh, checks      (what `tenon check` needs)
 *     backends.c which collective backend serves which axis
 *     job.c      model -> ... -> bound program                  (two flat functions)
 *     machine.c  memory, communicators, agreement of the ranks
 *     train.c    the step loop, validation, the closing sample
 */
#ifndef TENON_JOB_H
#define TENON_JOB_H

#include "passes/autodiff.h"
#include "data/data.h"
#include "run/exec.h"
#include "ranks/launch.h"
#include "loader/loader.h"
#include "passes/passes.h"
#include "passes/plan.h"
#include "run/report.h"

enum { TN_MOST_CHAIN = 16, TN_MOST_LAYERS = 8 };

/* A collective backend of the job, made once whoever names it. Layers stand over it where an axis uses it. */
struct tn_backend {
    struct tn_instance instance;
    struct tn_instance layer[TN_MOST_LAYERS]; /* the outermost first */
    uint32_t n_layers;
    int is_used;                     /* by an axis, or by the job as a whole; else only by another backend */
    struct tn_bootstrap bootstrap;   /* as this backend sees it: its keys are apart from those of others */
    const struct tn_bootstrap *keys; /* the job's */
    int32_t number;
};

struct tn_job {
    struct tn_facts facts; /* must be first: what plugins ask through tn.facts/1 */
    struct tn_diag diag;
    struct tn_manifest manifest;
    struct tn_settings settings;
    struct tn_instance model, device, chain[TN_MOST_CHAIN];
    uint32_t n_chain;
    struct tn_backend backend[TN_MOST_BACKENDS]; /* the first is that of [comm] */
    uint32_t n_backends;
    struct tn_backend *made[TN_MOST_BACKENDS]; /* in the order in which they can be connected: openers last */
    uint32_t n_made;
    int32_t axis_backend[TN_MAX_AXES]; /* index; that of [comm] where [comm.AXIS] says nothing */
    struct tn_opener opener;           /* answers tn.backends/1 */
    int32_t chain_size[TN_MOST_CHAIN]; /* ranks along each strategy's axes; 1 without */
    struct tn_mesh mesh;
    uint8_t channels[TN_MAX_AXES];     /* a bit for each channel that a program compiled so far sends on, on any rank */
    int32_t ranks_given;               /* by the launcher or -n; 0: not said */
    struct tn_device_info device_info; /* without speeds until tn_job_device */
    int64_t trial_scratch;             /* of the kernels in the program at hand, once a trial asked; else 0 */
};

/* What plugins may ask of the plan (trial.c). */
extern const struct tn_trials tn_job_trials;

/* Reads the manifest, loads and creates the plugins, lays out the mesh, lets everyone check. All problems are in
 * job->diag; their number is returned. The job must be closed in any case. `ranks`: of the launcher or -n, 0 if
 * neither says. */
size_t tn_job_open(struct tn_job *job, const char *path, const char *const *overrides, size_t n_overrides,
                   int32_t ranks);
void tn_job_close(struct tn_job *job);
/* Adds problems with the data: files that are missing or cannot be read, too little of it. Reads none of it. */
void tn_job_check_data(struct tn_job *job);

/* Backends (backends.c). That of [comm], before the mesh is known; those of [comm.AXIS], after. */
void tn_job_open_backend(struct tn_job *job);
void tn_job_open_axis_backends(struct tn_job *job);
void tn_job_close_backends(struct tn_job *job);
/* Its init, through its layers. The bootstrap lives as long as the job. */
tn_status tn_job_connect_backend(struct tn_backend *backend, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns);
/* How many serve an axis, or the job as a whole. */
int32_t tn_job_used_backends(const struct tn_job *job);
/* The backend, or the outermost layer over it. */
struct tn_instance *tn_job_collective(struct tn_backend *backend);
/* Opens the plugin that [section] key names, reads its options and creates it, over `next` if it is a layer. */
void tn_job_load(struct tn_job *job, struct tn_instance *instance, const char *name, uint32_t kind, const char *section,
                 const char *key, struct tn_instance *next);
/* Model, device, backends with their layers, strategies; returns how many. */
enum { TN_MOST_PLUGINS = 2 + TN_MOST_BACKENDS * (1 + TN_MOST_LAYERS) + TN_MOST_CHAIN };
uint32_t tn_job_plugins(struct tn_job *job, struct tn_instance *all[TN_MOST_PLUGINS]);

/* What a program is for. */
enum { TN_PROGRAM_TRAIN, TN_PROGRAM_EVAL, TN_PROGRAM_SAMPLE };

struct tn_compiled {
    struct tn_program program, flat; /* before and after schedule */
    struct tn_plan plan;
    int32_t coord[TN_MAX_AXES];
    int32_t micro_batches;
    double flops; /* of one step on this rank */
};

/* Sees the program after each arrow ("model", "grad", "place:tp", "resolve", "lower:tp", "schedule", "bound"); says
 * 1 to stop there. */
struct tn_watch {
    int (*after)(void *ctx, const char *stage, const struct tn_program *p, const struct tn_plan *plan);
    void *ctx;
};

/* Compiles for `rank`. batch, sequence: of one micro-batch, for TN_PROGRAM_SAMPLE; else the settings'. `base`: plan
 * of the job's train program, or NULL. watch may be NULL. Failure: TN_INVALID with problems in job->diag. */
tn_status tn_job_compile(struct tn_job *job, int mode, int32_t rank, int64_t batch, int64_t sequence,
                         const struct tn_plan *base, const struct tn_watch *watch, struct tn_compiled *out);
void tn_compiled_finish(struct tn_compiled *compiled);
/* A program as the last strategy's lowering left it: of all stages, which the ranks of a pipeline share. */
struct tn_lowered {
    struct tn_program program;
    int32_t coord[TN_MAX_AXES]; /* of the rank that it was made for */
    int is_done;
};
/* Compiles for one rank after another what tn_job_compile would, each lowered only if *lowered, all zero at first, is
 * not the same for it. What was compiled before must be finished by then; *lowered, last of all. */
tn_status tn_job_compile_next(struct tn_job *job, int mode, int32_t rank, struct tn_lowered *lowered,
                              struct tn_compiled *out);
void tn_lowered_finish(struct tn_lowered *lowered);
/* The step of it that makes `flat` of p, by the schedule of the chain. */
void tn_job_schedule(struct tn_job *job, const struct tn_program *p, struct tn_program *flat, int32_t micro_batches);

/* All that the device says of itself. It may have to measure how fast it is, so that it is not asked for that before
 * somebody wants to know. */
const struct tn_device_info *tn_job_device(struct tn_job *job);

/* Bytes a rank may use: [device] memory, else what the device says. */
int64_t tn_job_budget(const struct tn_job *job);
/* One problem if the plan is larger than the budget. */
void tn_job_check_budget(struct tn_job *job, int32_t rank, const struct tn_plan *plan);

/* Machine (machine.c): this process as one rank, with memory and communicators. `rank` NULL: a world of one. */
tn_status tn_machine_init(struct tn_machine *machine, struct tn_job *job, struct tn_rank *rank, int64_t arena_bytes,
                          char *error, size_t error_bytes);
/* Host memory and disk beside it, where a program has values there. */
tn_status tn_machine_spaces(struct tn_machine *machine, struct tn_job *job, int64_t host_bytes, int64_t disk_bytes,
                            char *error, size_t error_bytes);
void tn_machine_finish(struct tn_machine *machine, struct tn_job *job);
/* What a carrier that failed says of it. */
const char *tn_machine_message(struct tn_job *job, int32_t carrier);
/* Compares what every rank loaded; names the first that differs. *peak: most bytes of any rank. */
tn_status tn_machine_agree(struct tn_job *job, struct tn_rank *rank, uint64_t bytes, uint64_t *peak, char *error,
                           size_t error_bytes);

/* Sees a run from inside, on every rank: tests compare parameters and losses between layouts with it. */
struct tn_observer {
    void *ctx;
    /* After the parameters got their start values, and after the last step. */
    void (*params)(void *ctx, const struct tn_exec *exec, const struct tn_program *flat, int64_t step);
    void (*step)(void *ctx, const struct tn_step_report *report);
};

/* Train (train.c): the whole run of one rank. Exit code. metrics, observer: may be NULL. */
int tn_job_train(struct tn_job *job, struct tn_rank *rank, const char *metrics, const struct tn_observer *observer);

/* Parts of it, each its own file. */
/* local.c: which elements of dimension `dim` this rank's part has, flat cuts not counted, as spans of neighbours in the
 * order of its memory. A zigzag cut adds two at most, other cuts none. */
struct tn_span {
    int64_t first, count;
};
struct tn_spans {
    int32_t n;
    struct tn_span run[1 + 2 * TN_MAX_AXES];
};
struct tn_spans tn_local_spans(const struct tn_program *p, tn_value v, int32_t dim);
/* The same one by one; returns how many. */
int64_t tn_local_indices(const struct tn_program *p, tn_value v, int32_t dim, int64_t *index);
/* Walks this rank's elements in the order of its memory; each step gives the element's index in the whole tensor. */
struct tn_walk {
    int32_t rank;
    int64_t count;                                  /* elements of this rank's part */
    int64_t shape[TN_MAX_DIMS], whole[TN_MAX_DIMS]; /* of the part before it was cut flat; of the tensor */
    int64_t at[TN_MAX_DIMS];
    int64_t *index[TN_MAX_DIMS];
};
tn_status tn_walk_init(struct tn_walk *walk, const struct tn_program *p, tn_value v);
int64_t tn_walk_next(struct tn_walk *walk);
/* Walks the longest run of elements that also lie side by side in the whole tensor, from *element on, but at most
 * `most`; returns how many. */
int64_t tn_walk_run(struct tn_walk *walk, int64_t most, int64_t *element);
void tn_walk_finish(struct tn_walk *walk);
/* init.c: every param's start values, by name, seed and global element index alone; states are zeros. */
tn_status tn_init_params(const struct tn_exec *exec, const struct tn_program *flat, int64_t seed);
/* lr.c: the learning rate of a step (from 0). */
double tn_lr_at(const struct tn_settings *settings, int64_t step);

/* feed.c: writes the inputs of a flat program before each step. */
struct tn_feed;
struct tn_feed *tn_feed_new(const struct tn_exec *exec, const struct tn_program *flat);
void tn_feed_destroy(struct tn_feed *feed); /* accepts NULL */
/* For the batches to come: index of the first token of each token's document in its row; NULL: rows are one document.
 * Must live until the next tn_feed_rows is done. */
void tn_feed_starts(struct tn_feed *feed, const int32_t *starts);
/* Global batch: tokens and labels [micro_batches * batch][sequence]; labels may be NULL. */
tn_status tn_feed_rows(struct tn_feed *feed, const int32_t *tokens, const int32_t *labels);
/* The scalars that a program has: the learning rate, the number of the update (from 1), that of the step (from 0). */
tn_status tn_feed_step(struct tn_feed *feed, float lr, float t, float step);

/* sample.c: writes to text[n] the token that follows text[0..n), as the bound program of TN_PROGRAM_SAMPLE has it.
 * `number`: how many were drawn before. */
tn_status tn_sample(struct tn_exec *exec, struct tn_feed *feed, const struct tn_program *flat, int64_t seed,
                    double temperature, int32_t *text, int64_t n, int64_t number);

#endif
