/* Passes on the local program, in the order of the flow: buckets, fuse, schedule. Each is one file with one entry. */
#ifndef TENON_PASSES_H
#define TENON_PASSES_H

#include <tenon/strategy.h>

#include "program/ops.h"

/* Requires: a resolved program; most_bytes above 0. Establishes: gradients whose sum goes along `axis`, and perhaps
 * along others too, are summed together, up to so many bytes, if they go along the same axes. Preserves: all values,
 * to the bit. */
void tn_join_sums(struct tn_program *p, int32_t axis, int64_t most_bytes);

/* Requires: on a mesh with an axis of stages, a stage on each op (-1: all run it). Establishes: only the ops that this
 * rank runs are left. */
void tn_own_stages(struct tn_program *p);

/* Requires: placements everywhere. Establishes: neighbours that one kernel does in one pass over memory are one op.
 * Preserves: values, up to rounding. */
void tn_fuse(struct tn_program *p);

/* Requires: the local program. Establishes, in the empty program `flat`: the ops of one whole step in the order they
 * run, each micro-batch's by themselves (values "name@m" where there are several); accumulators chained through the
 * micro-batches; communication of the step region right after what it needs; what a slot receives from other stages
 * ahead of the slot before it. `slots` NULL: forward and backward of each micro-batch in turn. */
void tn_schedule(const struct tn_program *p, struct tn_program *flat, int32_t micro_batches,
                 const struct tn_slot *slots, uint32_t n_slots);

/* 1 for opcodes that a collective backend runs. */
int tn_op_is_comm(uint32_t opcode);
/* 1 for opcodes that copy between spaces: they run beside computation, as communication does. */
int tn_op_is_copy(uint32_t opcode);
/* 1 for opcodes that only name memory (sync, view, pack): no kernel runs. */
int tn_op_is_free(uint32_t opcode);

#endif
