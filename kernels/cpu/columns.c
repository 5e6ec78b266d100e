/* Sums over rows: see columns.h. */
#include "columns.h"

enum { MOST_BLOCKS = 32, LEAST_ROWS = 32 };

static int64_t blocks_of(int64_t rows)
{
    int64_t blocks = (rows + LEAST_ROWS - 1) / LEAST_ROWS;
    return blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
}

uint64_t cpu_columns_workspace(int64_t rows, int64_t cols, int sums)
{
    return (uint64_t)(blocks_of(rows) * cols * sums) * sizeof(float);
}

static const void *rows_at(const void *data, int64_t row, int64_t row_bytes)
{
    return data ? (const char *)data + row * row_bytes : NULL;
}

/* The rows of one block, its sums cleared. */
static struct cpu_vec_columns block_at(const struct cpu_vec_columns *all, int64_t block, int64_t cols,
                                       int64_t row_bytes, float *dw, float *db)
{
    int64_t blocks = blocks_of(all->rows), from = all->rows * block / blocks, to = all->rows * (block + 1) / blocks;
    struct cpu_vec_columns part = *all;
    part.dy = rows_at(all->dy, from, row_bytes);
    part.x = rows_at(all->x, from, row_bytes);
    part.dx = (void *)rows_at(all->dx, from, row_bytes);
    part.mean = all->mean ? all->mean + from : NULL;
    part.rstd = all->rstd ? all->rstd + from : NULL;
    part.rows = to - from;
    part.dw = dw ? memset(dw + block * cols, 0, (size_t)cols * sizeof *dw) : NULL;
    part.db = db ? memset(db + block * cols, 0, (size_t)cols * sizeof *db) : NULL;
    return part;
}

static void join(const struct tn_kernel *kernel, float *to, const float *sums, int64_t blocks, int64_t cols, bool add)
{
    if (!add)
        memset(to, 0, (size_t)cols * sizeof *to);
    for (int64_t block = 0; block < blocks; block++)
        kernel->cpu->vec->accumulate[CPU_VEC_F32](to, to, sums + block * cols, cols);
}

void cpu_sum_columns(struct tn_kernel *kernel, const struct cpu_vec_columns *all, int64_t cols, uint32_t dtype,
                     bool add, void (*sum)(const struct cpu_vec_columns *c, int64_t n))
{
    int64_t blocks = blocks_of(all->rows), row_bytes = cols * cpu_dtype_bytes(dtype);
    float *dw = all->dw ? kernel->scratch : NULL;
    float *db = all->db ? (float *)kernel->scratch + (dw ? blocks * cols : 0) : NULL;
#pragma omp parallel for num_threads(cpu_team(kernel->cpu, all->rows *cols)) schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        struct cpu_vec_columns part = block_at(all, block, cols, row_bytes, dw, db);
        sum(&part, cols);
    }
    if (dw)
        join(kernel, all->dw, dw, blocks, cols, add);
    if (db)
        join(kernel, all->db, db, blocks, cols, add);
}
