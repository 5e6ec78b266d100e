/* A matrix product by the device's own core: who takes it, in which parts. Owned by linear.c's kernels. */
#ifndef TENON_CPU_PRODUCT_H
#define TENON_CPU_PRODUCT_H

#include "device.h"

/* c [m, n] (+)= a [m, k] b [k, n] (+ bias [n]); a_trans: a lies as [k, m], b_trans: b lies as [n, k]. */
struct cpu_product {
    int64_t m, n, k;
    int a_trans, b_trans;
    uint32_t dtype, c_dtype; /* of a and b; of c */
    int has_bias, accumulate;
};

struct cpu_product_data {
    const void *a, *b, *bias;
    void *c;
    char *scratch; /* of cpu_product_scratch bytes, at a multiple of 64 */
};

struct cpu_parts;

/* Whether the core has this product and should do it: it packs all of b, which few rows do not pay for. */
int cpu_product_takes(const struct cpu *cpu, const struct cpu_product *p);
uint64_t cpu_product_scratch(const struct cpu *cpu, const struct cpu_product *p);

/* NULL if there is no memory. */
struct cpu_parts *cpu_parts_create(const struct cpu *cpu, const struct cpu_product *p,
                                   const struct cpu_product_data *data);
void cpu_parts_destroy(const struct cpu *cpu, struct cpu_parts *parts);
void cpu_parts_run(const struct cpu_parts *parts);

#endif
