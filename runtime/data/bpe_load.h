/* BPE, inside: what bpe_load.c reads from the two files and bpe.c encodes with. */
#ifndef TENON_BPE_LOAD_H
#define TENON_BPE_LOAD_H

#include "base/arena.h"
#include "data/bpe.h"

struct bpe_token {
    const char *bytes; /* NULL: no token has this id */
    size_t length;
};

struct bpe_merge {
    int32_t left, right; /* left -1: an empty place of the table */
    int32_t rank, joined;
};

struct bpe_symbol; /* the encoder's scratch */
struct bpe_pair;

struct tn_bpe {
    struct tn_arena arena;
    struct bpe_token *tokens;
    int32_t vocab;
    int32_t byte_id[256];
    struct bpe_merge *merges; /* open addressing; a power of two, at most half full */
    size_t places;
    struct bpe_symbol *symbols;
    struct bpe_pair *heap;
    size_t room, heap_count;
};

/* The place of the pair, or the empty one where it would be. */
struct bpe_merge *bpe_find_merge(const struct tn_bpe *bpe, int32_t left, int32_t right);

#endif
