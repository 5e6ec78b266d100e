/* A matrix product in parts of c, one a thread, each done by product_core.c on its own: threads share nothing that is
 * written, wait for nobody but the last one, and allocate nothing. */
#include <omp.h>

#include "check.h"
#include "product.h"
#include "product_core.h"

enum { FEWEST_ROWS = 32, UNIT = 48 };
static const double WORTH_A_TEAM = 1e6; /* FLOP; below it, waking other threads costs more */

extern const struct cpu_product_level cpu_product_baseline;
#if defined(__x86_64__)
extern const struct cpu_product_level cpu_product_avx2, cpu_product_avx512, cpu_product_avx512_bf16, cpu_product_amx;
#endif

static const struct cpu_product_level *const levels[CPU_ISA_COUNT] = {
    [CPU_BASELINE] = &cpu_product_baseline,
#if defined(__x86_64__)
    [CPU_AVX2] = &cpu_product_avx2,
    [CPU_AVX512] = &cpu_product_avx512,
    [CPU_AVX512_BF16] = &cpu_product_avx512_bf16,
    [CPU_AMX] = &cpu_product_amx,
#endif
};

struct cpu_parts {
    void (*compute)(const struct cpu_part *part, char *scratch);
    char *scratch;
    size_t scratch_bytes; /* of one part */
    int n;
    struct cpu_part part[];
};

/* Parts down and across c, and their sides. */
struct grid {
    int rows, cols;
    int64_t m, n;
};

int cpu_product_takes(const struct cpu *cpu, const struct cpu_product *p)
{
    const struct cpu_product_level *level = levels[cpu->isa];
    return p->m >= FEWEST_ROWS && (p->dtype == TN_BF16 ? level->bf16 : level->f32) != NULL;
}

static int64_t side(int64_t size, int parts)
{
    int64_t each = (size + parts - 1) / parts, rounded = (each + UNIT - 1) / UNIT * UNIT;
    return rounded < size ? rounded : size;
}

/* The largest part should be small, then its sides short, so that little is packed twice. */
static struct grid cut(const struct cpu *cpu, const struct cpu_product *p)
{
    int threads = 2.0 * (double)p->m * (double)p->n * (double)p->k < WORTH_A_TEAM ? 1 : cpu->threads;
    struct grid best = { 1, 1, p->m, p->n };
    for (int rows = threads; rows >= 1; rows--) {
        if (threads % rows)
            continue;
        struct grid g = { rows, threads / rows, side(p->m, rows), side(p->n, threads / rows) };
        int64_t size = g.m * g.n, least = best.m * best.n;
        if (size < least || (size == least && g.m + g.n < best.m + best.n))
            best = g;
    }
    best.rows = (int)((p->m + best.m - 1) / best.m);
    best.cols = (int)((p->n + best.n - 1) / best.n);
    return best;
}

static struct cpu_matrix matrix(const void *base, int64_t row, int64_t col, int64_t rows, int64_t cols, int transposed,
                                uint32_t dtype)
{
    struct cpu_matrix x = { .row_step = transposed ? 1 : cols, .col_step = transposed ? rows : 1 };
    x.at = (const char *)base + (row * x.row_step + col * x.col_step) * cpu_dtype_bytes(dtype);
    return x;
}

static struct cpu_part part_at(const struct cpu_product *p, const struct cpu_product_data *data, const struct grid *g,
                               int number)
{
    int64_t row = number / g->cols * g->m, col = number % g->cols * g->n;
    return (struct cpu_part){
        .m = p->m - row < g->m ? p->m - row : g->m,
        .n = p->n - col < g->n ? p->n - col : g->n,
        .k = p->k,
        .a = matrix(data->a, row, 0, p->m, p->k, p->a_trans, p->dtype),
        .b = matrix(data->b, 0, col, p->k, p->n, p->b_trans, p->dtype),
        .bias = p->has_bias ? (const float *)data->bias + col : NULL,
        .c = (char *)data->c + (row * p->n + col) * cpu_dtype_bytes(p->c_dtype),
        .c_step = p->n,
        .bf16 = p->dtype == TN_BF16,
        .c_bf16 = p->c_dtype == TN_BF16,
        .accumulate = p->accumulate,
    };
}

/* Of the first part, which is a largest one. */
static uint64_t part_scratch(const struct cpu *cpu, const struct cpu_product *p, const struct grid *g)
{
    static char nowhere[1];
    const struct cpu_product_data none = { nowhere, nowhere, nowhere, nowhere, nowhere };
    struct cpu_part first = part_at(p, &none, g, 0);
    return (levels[cpu->isa]->scratch(&first) + 63) / 64 * 64;
}

uint64_t cpu_product_scratch(const struct cpu *cpu, const struct cpu_product *p)
{
    struct grid g = cut(cpu, p);
    return part_scratch(cpu, p, &g) * (uint64_t)(g.rows * g.cols);
}

struct cpu_parts *cpu_parts_create(const struct cpu *cpu, const struct cpu_product *p,
                                   const struct cpu_product_data *data)
{
    struct grid g = cut(cpu, p);
    int n = g.rows * g.cols;
    const struct cpu_product_level *level = levels[cpu->isa];
    struct cpu_parts *parts = cpu->host->alloc(cpu->host, sizeof *parts + (size_t)n * sizeof parts->part[0]);
    if (!parts)
        return NULL;
    *parts = (struct cpu_parts){ .compute = p->dtype == TN_BF16 ? level->bf16 : level->f32,
                                 .scratch = data->scratch,
                                 .scratch_bytes = part_scratch(cpu, p, &g),
                                 .n = n };
    for (int i = 0; i < n; i++)
        parts->part[i] = part_at(p, data, &g, i);
    return parts;
}

void cpu_parts_destroy(const struct cpu *cpu, struct cpu_parts *parts)
{
    if (parts)
        cpu->host->release(cpu->host, parts);
}

void cpu_parts_run(const struct cpu_parts *parts)
{
#pragma omp parallel for num_threads(parts->n) schedule(static)
    for (int i = 0; i < parts->n; i++)
        parts->compute(&parts->part[i], parts->scratch + (size_t)i * parts->scratch_bytes);
}
