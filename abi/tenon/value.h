/* The vocabulary of a program's types: dtypes, placements, value kinds, regions.
 *
 * All are plain fixed-width integers, so that they cross the ABI unchanged. Numbers never
 * change; new ones are appended. */
#ifndef TENON_VALUE_H
#define TENON_VALUE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_MAX_DIMS 6     /* dimensions of a tensor */
#define TN_MAX_AXES 8     /* axes of the mesh */
#define TN_MAX_CHANNELS 8 /* of messages along an axis */

/* X(NAME, number, text, bytes) */
#define TN_DTYPE_LIST(X)  \
    X(F32, 1, "f32", 4)   \
    X(BF16, 2, "bf16", 2) \
    X(F16, 3, "f16", 2)   \
    X(I32, 4, "i32", 4)   \
    X(I64, 5, "i64", 8)   \
    X(U8, 6, "u8", 1)     \
    X(I8, 7, "i8", 1)     \
    X(F64, 8, "f64", 8)

enum {
#define TN_X(name, number, text, bytes) TN_##name = number,
    TN_DTYPE_LIST(TN_X)
#undef TN_X
};

/* What a value is. A program's persistent memory is its params and states; accumulators
 * live through one step, across its micro-batches; inputs are written by the host. */
/* X(NAME, number, text) */
#define TN_KIND_LIST(X)              \
    X(PARAM, 1, "param")             \
    X(INPUT, 2, "input")             \
    X(CONST, 3, "const")             \
    X(ACTIVATION, 4, "activation")   \
    X(ACCUMULATOR, 5, "accumulator") \
    X(STATE, 6, "state")

enum {
#define TN_X(name, number, text) TN_KIND_##name = number,
    TN_KIND_LIST(TN_X)
#undef TN_X
};

/* Where its memory is. */
enum { TN_SPACE_DEVICE = 0, TN_SPACE_HOST = 1, TN_SPACE_DISK = 2 };

/* When an op runs: prologue once per step before the first micro-batch; forward, backward and
 * weight once per micro-batch, in this order; step once per step after the last one. weight is
 * what a schedule may put off of the backward pass: gradients that only the step needs. */
/* X(NAME, number, text) */
#define TN_REGION_LIST(X)      \
    X(PROLOGUE, 0, "prologue") \
    X(FORWARD, 1, "forward")   \
    X(BACKWARD, 2, "backward") \
    X(STEP, 3, "step")         \
    X(WEIGHT, 4, "weight")

enum {
#define TN_X(name, number, text) TN_REGION_##name = number,
    TN_REGION_LIST(TN_X)
#undef TN_X
};

/* Flags of a value. */
enum {
    TN_VALUE_LOSS = 1,    /* the scalar that backward starts from: a sum over target tokens */
    TN_VALUE_OUTPUT = 2,  /* read by the host after the step; wanted replicated on all axes */
    TN_VALUE_NO_DECAY = 4 /* a param that weight decay leaves alone */
};

/* How a value lies on one axis of the mesh: one 32-bit word.
 *   replicate        every rank on the axis holds it whole
 *   shard(d)         dimension d is cut along the axis, slower axes first (outer to inner)
 *   flat             the local tensor, as one dimension, padded, is cut along the axis
 *   partial(sum|max) every rank holds a term; the value is their reduction
 * parts names a table of unequal shares (program_edit.h, parts_new); 0 means equal shares. */
typedef uint32_t tn_placement;

enum { TN_PLACE_UNSET = 0, TN_PLACE_REPLICATE = 1, TN_PLACE_SHARD = 2, TN_PLACE_FLAT = 3, TN_PLACE_PARTIAL = 4 };
enum { TN_RED_SUM = 0, TN_RED_MAX = 1 };
enum { TN_ORDER_PLAIN = 0, TN_ORDER_ZIGZAG = 1 };

#define TN_PLACEMENT(kind, dim, order, parts) \
    ((tn_placement)(kind) | (tn_placement)(dim) << 8 | (tn_placement)(order) << 16 | (tn_placement)(parts) << 24)
#define TN_REPLICATE TN_PLACEMENT(TN_PLACE_REPLICATE, 0, 0, 0)
#define TN_SHARD(dim) TN_PLACEMENT(TN_PLACE_SHARD, dim, 0, 0)
#define TN_SHARD_PARTS(dim, parts) TN_PLACEMENT(TN_PLACE_SHARD, dim, 0, parts)
#define TN_SHARD_ZIGZAG(dim) TN_PLACEMENT(TN_PLACE_SHARD, dim, TN_ORDER_ZIGZAG, 0)
#define TN_FLAT TN_PLACEMENT(TN_PLACE_FLAT, 0, 0, 0)
#define TN_PARTIAL(red) TN_PLACEMENT(TN_PLACE_PARTIAL, red, 0, 0)
#define TN_PLACE_KIND(p) ((p)&0xffu)
#define TN_PLACE_DIM(p) ((int32_t)(((p) >> 8) & 0xffu)) /* of shard */
#define TN_PLACE_RED(p) ((int32_t)(((p) >> 8) & 0xffu)) /* of partial */
#define TN_PLACE_ORDER(p) (((p) >> 16) & 0xffu)
#define TN_PLACE_PARTS(p) (((p) >> 24) & 0xffu)

/* How a param starts, drawn by Philox keyed by seed, name and global element index. */
enum { TN_INIT_ZEROS = 0, TN_INIT_ONES = 1, TN_INIT_NORMAL = 2 /* argument: standard deviation */ };

#ifdef __cplusplus
}
#endif
#endif
