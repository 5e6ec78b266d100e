/* Checkpoint: the model and the optimizer on disk, so that any layout and any other tool can read them.
 *
 *     checkpoint_parts.c   which element of which tensor of a file this rank holds
 *     checkpoint_state.c   state.json and config.json
 *     checkpoint_folder.c  temporary folder, publishing by rename, `latest`, removal of old ones
 *     checkpoint_save.c    every rank writes its elements at their places, behind the steps
 *     checkpoint_load.c    reads a checkpoint, or the files of Hugging Face, into any layout
 *     checkpoint_check.c   what `tenon check` says of all that
 *
 * train.c calls open before the first step, step after each, end after the last (docs/checkpoints.md). */
#ifndef TENON_CHECKPOINT_H
#define TENON_CHECKPOINT_H

#include "job.h"

struct tn_checkpoint;

/* How far a run is; what a resumed one goes on from. */
struct tn_progress {
    int64_t step; /* steps done */
    int64_t applied, skipped, skipped_in_row;
};

struct tn_checkpoint_of {
    struct tn_job *job;
    struct tn_rank *rank; /* NULL: a world of one */
    const struct tn_exec *exec;
    const struct tn_compiled *compiled;
    /* The largest of what all ranks say; all must call it alike. */
    float (*most)(void *ctx, float mine, tn_status *status);
    void *ctx;
};

/* Gives params and states their values from [checkpoint] folder if it resumes, or else from [model] load, and sets
 * *progress. *checkpoint is NULL if neither is asked for; all below accept that. On failure a message was logged. */
tn_status tn_checkpoint_open(struct tn_checkpoint **checkpoint, const struct tn_checkpoint_of *of,
                             struct tn_progress *progress);
/* After a step: copies this rank's part if a checkpoint is due, and fails if an earlier one could not be written.
 * *stall_ms: how long the step waited for a checkpoint that was due; 0: none was. */
tn_status tn_checkpoint_step(struct tn_checkpoint *checkpoint, const struct tn_progress *progress, double *stall_ms);
/* After the last step: saves it unless that was done, and waits until all is on the disk. */
tn_status tn_checkpoint_end(struct tn_checkpoint *checkpoint, const struct tn_progress *progress);
void tn_checkpoint_close(struct tn_checkpoint *checkpoint);

/* What the first step starts from. */
enum { TN_ORIGIN_SEED, TN_ORIGIN_LOAD, TN_ORIGIN_CHECKPOINT };
struct tn_origin {
    int kind;
    char path[4096];             /* of the weights or the checkpoint */
    struct tn_progress progress; /* of the checkpoint */
};

/* Adds to the job's problems what open would refuse, with the key; changes nothing. `compiled`: any rank's. */
void tn_checkpoint_check(struct tn_job *job, const struct tn_compiled *compiled, struct tn_origin *origin);

#endif
