/* Placing: blocks of memory with lifetimes get offsets (a step of plan.c, which owns the blocks). */
#ifndef TENON_PLAN_PLACE_H
#define TENON_PLAN_PLACE_H

#include <stddef.h>
#include <stdint.h>

struct tn_block {
    uint32_t root;       /* the value it is for; smaller ones first among equals */
    int64_t bytes;       /* more than 0 */
    int64_t first, last; /* times that it is needed, both counted */
    int64_t offset;      /* out */
};

/* Largest first, each at the lowest offset that is free for its whole life (greedy by size; Pisarchyk and Lee 2020).
 * Sorts the blocks; returns the bytes that all need together. */
int64_t tn_place_blocks(struct tn_block *block, size_t n);

#endif
