/* Between the files of checkpoint.h: tensors of a checkpoint, this rank's parts of them, folders. */
#ifndef TENON_CHECKPOINT_PARTS_H
#define TENON_CHECKPOINT_PARTS_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

/* The two files of tensors. */
enum { TN_CHECKPOINT_MODEL, TN_CHECKPOINT_OPTIMIZER, TN_CHECKPOINT_FILES };
extern const char *const tn_checkpoint_file[TN_CHECKPOINT_FILES];

struct tn_stored_tensor {
    const char *name;
    int file; /* TN_CHECKPOINT_* */
    int32_t rank;
    int64_t shape[TN_MAX_DIMS];
};

/* A param or state of the flat program as a slice of a stored tensor. */
struct tn_stored_part {
    tn_value value; /* of the flat program */
    uint32_t tensor;
    int32_t dim; /* sliced along it, from `offset` on */
    int64_t offset;
};

/* Tensors: the same on all ranks. Parts: this rank's, also those that others hold too. */
struct tn_stored {
    struct tn_arena arena;
    const struct tn_program *flat;
    struct tn_stored_tensor *tensors;
    struct tn_stored_part *parts;
    uint32_t n_tensors, n_parts;
    uint32_t n_values; /* params and states of the whole program: more than parts where a stage holds some alone */
};

void tn_stored_init(struct tn_stored *stored, const struct tn_compiled *compiled);
void tn_stored_finish(struct tn_stored *stored);

/* Longest runs of elements that lie side by side both in this rank's memory and in the stored tensor. */
struct tn_runs {
    struct tn_walk walk;
    int64_t inner, row, stored_row, shift; /* elements: below dim; of the value; of the tensor; before the slice */
    int64_t local, element, left;          /* elements given; of a run of the value that is not given yet */
};
tn_status tn_runs_init(struct tn_runs *runs, const struct tn_stored *stored, uint32_t part);
/* Elements [*local, *local + count) of this rank are [*at, *at + count) of the tensor; returns count, 0 at the end. */
int64_t tn_runs_next(struct tn_runs *runs, int64_t *local, int64_t *at);
void tn_runs_finish(struct tn_runs *runs);

/* state.json and config.json as text to free; NULL: out of memory. */
char *tn_checkpoint_state_text(const struct tn_job *job, const struct tn_progress *progress);
char *tn_checkpoint_config_text(const struct tn_job *job);
/* Reads state.json of `folder`; refuses what this job cannot go on from, text in error. */
tn_status tn_checkpoint_state_read(const struct tn_job *job, const char *folder, struct tn_progress *progress,
                                   char *error, size_t error_bytes);

/* 1: the job goes on from folder/latest, which it does wherever there is one, also one that points to nothing. */
int tn_checkpoint_resumes(const struct tn_job *job, const char *folder);

/* [checkpoint] folder and [model] load as paths, relative ones from the manifest's folder. */
void tn_checkpoint_path(const struct tn_job *job, const char *given, char *path, size_t bytes);
/* Makes the folder and clears what a killed run left in it. All return TN_IO with text in error. */
tn_status tn_checkpoint_folder_prepare(const char *folder, char *error, size_t error_bytes);
/* Gives the temporary folder its name for good, moves `latest`, removes all but the last `keep` (0: none). */
tn_status tn_checkpoint_publish(const char *folder, int64_t step, int64_t keep, char *error, size_t error_bytes);
void tn_checkpoint_temporary(const char *folder, int64_t step, char *path, size_t bytes);
void tn_checkpoint_remove(const char *path); /* a folder and what is in it */

/* Fills params, and states if the folder is a checkpoint to resume from. Logs what it refuses. */
tn_status tn_checkpoint_load(const struct tn_stored *stored, const struct tn_exec *exec, const char *path, int resume);
/* Says all that keeps the tensors of `file` from being loaded from `path`, up to a few. */
void tn_checkpoint_compare(const struct tn_stored *stored, int file, const char *path,
                           void (*each)(void *ctx, const char *what), void *ctx);

#endif
