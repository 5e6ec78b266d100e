/* Data: token sequences for every step, the same whatever the layout.
 *
 * The corpus is one long list of tokens (text as bytes: files of the glob sorted by name; or Megatron .bin/.idx),
 * split at the end into training and validation. Sample i is tokens [i*sequence, (i+1)*sequence] (consecutive
 * samples share one token). Which sample is row r of step s depends on seed, s, r and batch alone: an epoch is a
 * permutation of the samples by a Feistel network over Philox, so nothing is stored and any position is O(1). */
#ifndef TENON_DATA_H
#define TENON_DATA_H

#include "config/settings.h"

enum { TN_SPLIT_TRAIN, TN_SPLIT_VALIDATION };

struct tn_data;

/* Opens and checks everything; problems (no file, too few tokens for one batch, an id beyond vocab) go to diag with
 * the manifest's places; then *data is NULL. `vocab`: of the model. Cheap: files are mapped, not read. */
void tn_data_open(struct tn_data **data, const struct tn_settings *settings, const struct tn_manifest *m, int64_t vocab,
                  struct tn_diag *diag);
/* Says so where there is too little for the validation that is asked for. Once a job: not from tn_data_open, which
 * every rank calls. Accepts NULL. */
void tn_data_warn(const struct tn_data *data, const struct tn_settings *settings);
void tn_data_close(struct tn_data *data); /* accepts NULL */
int64_t tn_data_tokens(const struct tn_data *data, int split);

/* Rows [first, first + rows) of step `step` (from 0) of the global batch: tokens and labels, [rows][sequence].
 * labels[i] = tokens[i+1]; -1 where [data] ignore masks it. Validation: the same with the other split, never
 * shuffled, wrapping at its end. Thread-safe. 0, or -1 with a message logged on an I/O error. */
int tn_data_rows(const struct tn_data *data, int split, int64_t step, int64_t first, int64_t rows, int32_t *tokens,
                 int32_t *labels);

/* With [data] documents = separate, for the same rows: index in its row of the first token of each token's document, 0
 * where that lies before the row. The label of a document's last token is -1. Thread-safe. */
void tn_data_starts(const struct tn_data *data, int split, int64_t step, int64_t first, int64_t rows, int32_t *starts);

/* Prefetch: a thread that has the whole global batch of the next step ready. */
struct tn_prefetch;
int tn_prefetch_start(struct tn_prefetch **prefetch, const struct tn_data *data, int64_t first_step);
/* Global batch of `step` (must be the next one): [batch][sequence] each, valid until the next call. 0, or -1 on
 * error. */
int tn_prefetch_next(struct tn_prefetch *prefetch, int64_t step, const int32_t **tokens, const int32_t **labels);
void tn_prefetch_stop(struct tn_prefetch *prefetch); /* accepts NULL */

#endif
