/* Attention: what attention.c (checks, plan, threads) and attention_core.c (the arithmetic, compiled for each
 * instruction level) share. */
#ifndef TENON_CPU_ATTENTION_H
#define TENON_CPU_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

enum {
    CPU_ATTENTION_TILE = 64, /* queries and keys of a tile */
    CPU_ATTENTION_HEAD = 1024 /* largest head_dim */
};

/* One op. Tensors are [batch, length, heads * head_dim]; lse and its gradient's input are [batch, q_length, heads].
 *
 * Work is cut into units that share nothing they write. Forward: unit = (batch, query head, chunk), a chunk being a run
 * of query tiles. Backward: unit = (batch, key head, part); the (query head of the group, query tile) pairs of a key
 * head are dealt out to its parts in turn, each part sums its own dk and dv, and these are added in order in the end. */
struct cpu_attention {
    int64_t batch, q_length, k_length;
    int heads, kv_heads, head_dim;
    int causal, bf16;
    float scale;
    const void *q, *k, *v;
    void *o;            /* forward: written; backward: read */
    float *lse;         /* likewise */
    const void *d_o;
    void *dq, *dk, *dv;
    int chunks, parts;
};

/* Keys of which head a thread has packed in its scratch, and how many tiles of them. */
struct cpu_attention_packed {
    int64_t head; /* batch * kv_heads + key head; -1: none */
    int64_t tiles;
};

struct cpu_attention_level {
    size_t (*forward_bytes)(const struct cpu_attention *a);  /* scratch of one thread */
    size_t (*backward_bytes)(const struct cpu_attention *a);
    size_t (*sums_bytes)(const struct cpu_attention *a);     /* dk and dv of one unit, f32 */
    void (*forward)(const struct cpu_attention *a, int64_t unit, char *scratch, struct cpu_attention_packed *packed);
    void (*backward)(const struct cpu_attention *a, int64_t unit, char *scratch, char *sums,
                     struct cpu_attention_packed *packed);
    /* Adds the parts' sums of one key head, `stride` bytes apart, to the first, and writes tile `tile` of dk and dv. */
    void (*finish)(const struct cpu_attention *a, int64_t head, int64_t tile, char *sums, size_t stride);
};

static inline int64_t cpu_attention_tiles(int64_t length)
{
    return (length + CPU_ATTENTION_TILE - 1) / CPU_ATTENTION_TILE;
}

#endif
