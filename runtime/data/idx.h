/* Idx: Megatron's indexed token files, PREFIX.bin (tokens) and PREFIX.idx (where each sequence lies).
 *
 * Reading checks every number of the index against the two files before anything uses it. Writing goes to
 * temporary names and is published by rename. Used by data_tokens.c and by `tenon data`. */
#ifndef TENON_IDX_H
#define TENON_IDX_H

#include <stdint.h>
#include <stdio.h>

#include "base/diag.h"

/* A type that holds token ids: u8, u16, i32, i64. */
struct tn_idx_dtype {
    const char *name;
    int code, bytes;
    int64_t most; /* the largest id it holds */
};

/* By name ("u16"), or by code where name is NULL. NULL if there is none. */
const struct tn_idx_dtype *tn_idx_dtype(const char *name, int code);

/* Sequences that lie one after the other in the .bin are one run; most files are a single one. */
struct tn_idx_run {
    int64_t first;  /* token, counted over all sequences in order */
    int64_t offset; /* byte of the .bin */
};

struct tn_idx {
    const struct tn_idx_dtype *dtype;
    char *bin_path;
    int bin; /* open file */
    int64_t sequences, documents, tokens, shortest, longest, bin_bytes;
    struct tn_idx_run *runs;
    size_t n_runs, cap_runs;
};

/* Opens and checks PREFIX.bin and PREFIX.idx. 0, or -1 with problems at `where`; then idx holds nothing. */
int tn_idx_open(struct tn_idx *idx, const char *prefix, struct tn_diag *diag, struct tn_where where);
void tn_idx_close(struct tn_idx *idx);
/* The first token of each of idx->documents documents, for the caller to free; from PREFIX.idx once more. 0, or -1. */
int tn_idx_documents(const struct tn_idx *idx, const char *prefix, int64_t **starts, struct tn_diag *diag,
                     struct tn_where where);
/* Tokens [first, first + count), which exist, as ids below `vocab`. Any thread. 0, or -1 with a message logged. */
int tn_idx_read(const struct tn_idx *idx, int64_t first, int64_t count, int64_t vocab, int32_t *tokens);

struct tn_idx_writer;
/* Opens both files beside their final names. -1 with *error set (a buffer of 256). */
int tn_idx_create(struct tn_idx_writer **writer, const char *prefix, const struct tn_idx_dtype *dtype, char *error);
/* Adds tokens to the document under way; an id that the dtype cannot hold is an error. */
int tn_idx_add(struct tn_idx_writer *writer, const int32_t *tokens, size_t count, char *error);
/* Ends the document under way; one without tokens is left out. */
int tn_idx_end_document(struct tn_idx_writer *writer, char *error);
/* Completes and publishes both files, and frees the writer in any case. */
int tn_idx_publish(struct tn_idx_writer *writer, char *error);
/* Removes what was written and frees the writer; accepts NULL. */
void tn_idx_discard(struct tn_idx_writer *writer);

#endif
