/* What product.c (parts for threads, scratch) and product_core.c (the arithmetic of a part, compiled for each
 * instruction level) share. */
#ifndef TENON_CPU_PRODUCT_CORE_H
#define TENON_CPU_PRODUCT_CORE_H

#include <stddef.h>
#include <stdint.h>

/* A matrix inside of another: element (row, col) is `row * row_step + col * col_step` elements from `at`; one of the
 * steps is 1. */
struct cpu_matrix {
    const void *at;
    int64_t row_step, col_step;
};

/* c [m, n] (+)= a [m, k] b [k, n] (+ bias [n]), by one thread. */
struct cpu_part {
    int64_t m, n, k;
    struct cpu_matrix a, b;
    const float *bias; /* or NULL */
    void *c;           /* its rows are c_step elements apart */
    int64_t c_step;
    int bf16, c_bf16, accumulate;
};

/* Functions of one level; NULL where it has none. */
struct cpu_product_level {
    size_t (*scratch)(const struct cpu_part *part);
    void (*f32)(const struct cpu_part *part, char *scratch);  /* a, b and c are f32 */
    void (*bf16)(const struct cpu_part *part, char *scratch); /* a and b are bf16, c as it says */
};

#endif
