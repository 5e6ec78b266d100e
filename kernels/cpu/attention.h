/* Attention: what attention.c (checks, plan, threads) and attention_core.c (the arithmetic, compiled for each
 * instruction level) share. */
#ifndef TENON_CPU_ATTENTION_H
#define TENON_CPU_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

enum {
    CPU_ATTENTION_TILE = 64,  /* queries and keys of a tile */
    CPU_ATTENTION_HEAD = 1024 /* largest head_dim */
};

/* One op. Tensors are [batch, length, heads * head_dim]; lse and its gradient's input are [batch, q_length, heads].
 *
 * A query sees the keys whose index in the sequence is at most its own, where causal, and at least the start of its
 * document, where there is one. Without qi and ki, rows and keys are numbered as they lie. Tiles in which no query sees
 * a key cost nothing, and only those in which some do and some do not are masked element by element; so what a cut of
 * the sequence saves (zigzag, documents) follows from the numbers alone.
 *
 * Work is cut into units that share nothing they write. Forward: unit = (batch, query head, chunk), a chunk being a run
 * of query tiles. Backward: unit = (batch, key head, part); the (query head of the group, query tile) pairs of a key
 * head are dealt out to its parts in turn, each part sums its own dk and dv, and these are added in order in the
 * end. */
struct cpu_attention {
    int64_t batch, q_length, k_length;
    int heads, kv_heads, head_dim;
    int causal, bf16;
    int block; /* attention_block: o, dq, dk, dv are f32 whatever the rest is, and what is given is added to */
    float scale;
    const void *q, *k, *v;
    void *o;    /* forward: written; backward: read */
    float *lse; /* likewise */
    const void *d_o;
    void *dq, *dk, *dv;
    int chunks, parts;
    const int32_t *start;                        /* [batch, q_length]; NULL: 0 */
    const int32_t *qi, *ki;                      /* [q_length], [k_length]; NULL: 0, 1, .. */
    const float *o_given, *lse_given;            /* forward: softmax so far; NULL: none */
    const float *dq_given, *dk_given, *dv_given; /* backward: sums so far; NULL: none */
};

/* Keys of which head a thread has packed in its scratch, and how many tiles of them. */
struct cpu_attention_packed {
    int64_t head; /* batch * kv_heads + key head; -1: none */
    int64_t tiles;
};

struct cpu_attention_level {
    size_t (*forward_bytes)(const struct cpu_attention *a); /* scratch of one thread */
    size_t (*backward_bytes)(const struct cpu_attention *a);
    size_t (*sums_bytes)(const struct cpu_attention *a); /* dk and dv of one unit, f32 */
    void (*forward)(const struct cpu_attention *a, int64_t unit, char *scratch, struct cpu_attention_packed *packed);
    void (*backward)(const struct cpu_attention *a, int64_t unit, char *scratch, char *sums,
                     struct cpu_attention_packed *packed);
    /* Adds the parts' sums of one key head, `stride` bytes apart, to the first, and writes tile `tile` of dk and dv. */
    void (*finish)(const struct cpu_attention *a, int64_t head, int64_t tile, char *sums, size_t stride);
};

/* Least and largest of n > 0 numbers. */
struct cpu_attention_span {
    int32_t least, most;
};

static inline struct cpu_attention_span cpu_attention_span(const int32_t *index, int64_t n)
{
    struct cpu_attention_span span = { index[0], index[0] };
    for (int64_t i = 1; i < n; i++) {
        span.least = index[i] < span.least ? index[i] : span.least;
        span.most = index[i] > span.most ? index[i] : span.most;
    }
    return span;
}

static inline int64_t cpu_attention_tiles(int64_t length)
{
    return (length + CPU_ATTENTION_TILE - 1) / CPU_ATTENTION_TILE;
}

#endif
