/* Sums over the rows of activations, for the gradients of biases and of norms' weights.
 *
 * Rows are cut in at most 32 blocks, whatever the number of threads; each block is summed in scratch by one thread, and
 * then the blocks in order. So the sums are the same for any number of threads, and their error grows with the blocks'
 * length only. */
#ifndef TENON_CPU_COLUMNS_H
#define TENON_CPU_COLUMNS_H

#include "check.h"

/* Sums `all`, of `cols` columns and activations of `dtype`, into all->dw and all->db (either may be NULL): added to
 * what is there with `add`, else replacing it. */
void cpu_sum_columns(struct tn_kernel *kernel, const struct cpu_vec_columns *all, int64_t cols, uint32_t dtype,
                     bool add, void (*sum)(const struct cpu_vec_columns *c, int64_t n));

/* Scratch bytes for `sums` sums of `cols` columns over `rows` rows. */
uint64_t cpu_columns_workspace(int64_t rows, int64_t cols, int sums);

#endif
