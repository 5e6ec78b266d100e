/* Vec: the loops that all memory passes through, as a table of functions on rows.
 *
 * vec_level.c holds them once and is compiled for each instruction level (meson.build); device.c takes the table of
 * its level from cpu_vec_pick. Tables with [2] are indexed by the dtype of the activations, CPU_VEC_F32 or
 * CPU_VEC_BF16. Functions are serial and do not allocate: families cut the work and give each thread its part. All
 * sums are f32 over short runs, so results depend on the level only by rounding and never on the number of threads.
 * Outputs may be the memory of an input of the same size, element for element. */
#ifndef TENON_CPU_VEC_H
#define TENON_CPU_VEC_H

#include <stdint.h>

#include <tenon/value.h>

enum { CPU_VEC_F32 = 0, CPU_VEC_BF16 = 1 };
enum { CPU_VEC_HEAD = 1024 }; /* largest head_dim of rope */

/* What a norm's row reads and writes; `a` and `b` are added first where b is not NULL, and their sum is stored in r. */
struct cpu_vec_norm {
    void *r, *y;
    const void *a, *b;
    const float *w, *bias;
    float *mean, *rstd; /* of this row */
    float eps;
};

struct cpu_vec_norm_dx {
    void *dx;
    const void *dy, *x, *res; /* res may be NULL */
    const float *w;
    float mean, rstd;
};

/* Sums over dense rows of dy, and of x and dx where the op has them: dw and db grow by them. */
struct cpu_vec_columns {
    const void *dy, *x;
    void *dx;
    const float *b;           /* bias_gelu_dx */
    const float *mean, *rstd; /* one a row */
    int64_t rows;
    float *dw, *db;
};

struct cpu_vec_adamw {
    float beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
    float factor;      /* of the gradient */
    float step;        /* lr / (1 - beta1^t) */
    float keep;        /* 1 - lr decay */
    float inv_sqrt_c2; /* 1 / sqrt(1 - beta2^t) */
};

struct cpu_vec_dropout {
    uint64_t key, hi;   /* of Philox */
    uint32_t threshold; /* a draw below it drops the element */
    float scale;
};

struct cpu_vec {
    /* dtypes */
    void (*to_f32[2])(float *y, const void *x, int64_t n);
    void (*from_f32[2])(void *y, const float *x, int64_t n);
    void (*f16_to_f32)(float *y, const void *x, int64_t n);
    void (*f16_from_f32)(void *y, const float *x, int64_t n);

    /* elementwise */
    void (*add[2])(void *y, const void *a, const void *b, int64_t n);
    void (*accumulate[2])(float *y, const float *acc, const void *x, int64_t n);
    void (*scale[2])(void *y, const void *x, float s, int64_t n);
    void (*bias_add[2])(void *y, const void *x, const float *b, int64_t n);
    void (*gelu[2][2])(void *y, const void *x, int64_t n); /* [tanh][dtype] */
    void (*bias_gelu[2][2])(void *y, const void *x, const float *b, int64_t n);
    void (*gelu_dx[2][2])(void *dx, const void *dy, const void *x, int64_t n);
    void (*swiglu[2])(void *y, const void *g, const void *u, int64_t n);
    void (*swiglu_dx[2])(void *dg, void *du, const void *dy, const void *g, const void *u, int64_t n);
    void (*rope_angles)(float *cosine, float *sine, const double *frequency, double pos, int64_t half);
    void (*rope[2])(void *y, const void *x, const float *cosine, const float *sine, int64_t half, int64_t heads);
    void (*dropout[2])(void *y, const void *x, const struct cpu_vec_dropout *d, uint64_t index, int64_t n);

    /* rows of norms */
    void (*layernorm[2])(const struct cpu_vec_norm *row, int64_t n);
    void (*rmsnorm[2])(const struct cpu_vec_norm *row, int64_t n);
    void (*layernorm_dx[2])(const struct cpu_vec_norm_dx *row, int64_t n);
    void (*rmsnorm_dx[2])(const struct cpu_vec_norm_dx *row, int64_t n);

    /* sums over rows of n columns */
    void (*bias_dw[2])(const struct cpu_vec_columns *c, int64_t n);         /* db */
    void (*layernorm_dw[2])(const struct cpu_vec_columns *c, int64_t n);    /* dw, db */
    void (*rmsnorm_dw[2])(const struct cpu_vec_columns *c, int64_t n);      /* dw */
    void (*bias_gelu_dx[2][2])(const struct cpu_vec_columns *c, int64_t n); /* dx, db; [tanh][dtype] */

    /* rows of logits */
    float (*max[2])(const void *x, int64_t n);
    double (*sum_exp[2])(const void *x, float m, int64_t n); /* of exp(x - m) */
    void (*online_softmax[2])(const void *x, int64_t n, float *m, double *z);
    void (*softmax[2])(void *y, const void *x, float lse, float s, int64_t n); /* exp(x - lse) s */

    /* optimizer, all f32 */
    double (*sumsq)(const float *x, int64_t n);
    void (*adamw)(const struct cpu_vec_adamw *a, float *p, float *m, float *v, const float *g, int64_t n);
    void (*sgd)(float lr, float momentum, float factor, float decay, float *p, float *m, const float *g, int64_t n);
};

/* The table of a level (CPU_* of device.h). */
const struct cpu_vec *cpu_vec_pick(int isa);

/* Index into the tables' [2], for activations: f32 or else bf16. */
static inline int cpu_vec_dtype(uint32_t dtype)
{
    return dtype == TN_F32 ? CPU_VEC_F32 : CPU_VEC_BF16;
}

#endif
