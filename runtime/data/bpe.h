/* BPE: GPT-2's byte-level byte-pair encoding (Radford et al. 2019, section 2.2; Sennrich et al. 2016).
 *
 * Text is cut into words by GPT-2's rule; each word begins as its bytes, and the pair that the merges list first is
 * joined until none is listed. Any bytes can be encoded, and decoding gives exactly them back. */
#ifndef TENON_BPE_H
#define TENON_BPE_H

#include <stddef.h>
#include <stdint.h>

struct tn_bpe;

struct tn_ids {
    int32_t *ids; /* malloc'd; the user frees it */
    size_t count, cap;
};

/* vocabulary: a JSON object from token to id; merges: a pair a line, first the ones to join first.
 * -1 with *error (a buffer of 256) set. */
int tn_bpe_open(struct tn_bpe **bpe, const char *vocabulary, const char *merges, char *error);
void tn_bpe_close(struct tn_bpe *bpe); /* accepts NULL */
/* The largest id + 1. */
int32_t tn_bpe_vocab(const struct tn_bpe *bpe);
/* Appends the ids of the text. One thread at a time. -1 when out of memory. */
int tn_bpe_encode(struct tn_bpe *bpe, const char *text, size_t bytes, struct tn_ids *ids);
/* Bytes of the longest part from the begin that can be encoded alone, whatever follows; 0 if there is none. */
size_t tn_bpe_cut(const char *text, size_t bytes);
/* The bytes of a token; NULL if there is none of that id. */
const char *tn_bpe_token(const struct tn_bpe *bpe, int32_t id, size_t *bytes);

#endif
