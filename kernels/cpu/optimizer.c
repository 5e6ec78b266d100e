/* What runs once per step on the cpu device: gradient norm, clip, AdamW, SGD, and accumulation across micro-batches.
 *
 * Each makes one pass over its memory. sumsq adds blocks of fixed size, each by one thread, and then the blocks in
 * order: the norm is the same for any number of threads. */
#include <math.h>

#include "check.h"

static float scalar(const struct tn_tensor *tensor)
{
    return *(const float *)tensor->data;
}

/* --- accumulate(x acc?) -> y, sync(g) -> y --- */

static void run_accumulate(struct tn_kernel *k)
{
    const struct tn_tensor *x = &k->in[0], *acc = cpu_optional(k, 1), *y = &k->out[0];
    int64_t n = cpu_elements(y), dtype = cpu_vec_dtype(x->dtype);
    if (!acc && x->data == y->data)
        return;
#pragma omp parallel for num_threads(cpu_team(k->cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK) {
        if (acc)
            k->cpu->vec->accumulate[dtype](cpu_at(y, at), cpu_at(acc, at), cpu_at(x, at), cpu_block(n, at));
        else
            k->cpu->vec->to_f32[dtype](cpu_at(y, at), cpu_at(x, at), cpu_block(n, at));
    }
}

static tn_status bind_accumulate(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, 2, 1), "x, acc and y");
    const struct tn_tensor *x = &k->in[0], *acc = cpu_optional(k, 1), *y = &k->out[0];
    CPU_REQUIRE(cpu_is_activation(x) && cpu_is(y, TN_F32, cpu_elements(x)), "x in f32 or bf16, y in f32");
    CPU_REQUIRE(!acc || cpu_alike(acc, y), "acc like y");
    k->run = run_accumulate;
    return TN_OK;
}

static void run_sync(struct tn_kernel *k)
{
    const struct tn_tensor *x = &k->in[0], *y = &k->out[0];
    if (x->data != y->data)
        memcpy(y->data, x->data, (size_t)(cpu_elements(x) * cpu_dtype_bytes(x->dtype)));
}

static tn_status bind_sync(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, 1, 1) && cpu_alike(&k->in[0], &k->out[0]), "g and y alike");
    k->run = run_sync;
    return TN_OK;
}

/* --- sumsq(g...) -> s --- */

enum { SUM_BLOCK = 16384 };

static int64_t sum_blocks(const struct tn_tensor *tensor)
{
    return (cpu_elements(tensor) + SUM_BLOCK - 1) / SUM_BLOCK;
}

static void run_sumsq(struct tn_kernel *k)
{
    double *sums = k->scratch, total = 0;
    for (uint32_t input = 0; input < k->n_in; input++) {
        const float *g = k->in[input].data;
        int64_t n = cpu_elements(&k->in[input]), blocks = sum_blocks(&k->in[input]);
#pragma omp parallel for num_threads(cpu_team(k->cpu, n)) schedule(static)
        for (int64_t block = 0; block < blocks; block++) {
            int64_t at = block * SUM_BLOCK;
            sums[block] = k->cpu->vec->sumsq(g + at, n - at < SUM_BLOCK ? n - at : SUM_BLOCK);
        }
        for (int64_t block = 0; block < blocks; block++)
            total += sums[block];
    }
    *(float *)k->out[0].data = (float)total;
}

static tn_status bind_sumsq(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, UINT32_MAX, 1), "gradients and s");
    for (uint32_t input = 0; input < k->n_in; input++)
        CPU_REQUIRE(k->in[input].dtype == TN_F32, "f32 gradients");
    CPU_REQUIRE(cpu_is(&k->out[0], TN_F32, 1), "an f32 scalar s");
    k->run = run_sumsq;
    return TN_OK;
}

static uint64_t workspace_sumsq(struct cpu *cpu, const struct tn_op_desc *op)
{
    int64_t most = 0;
    for (uint32_t input = 0; input < op->n_in; input++) {
        int64_t blocks = op->in[input] ? sum_blocks(op->in[input]) : 0;
        most = blocks > most ? blocks : most;
    }
    return (uint64_t)most * sizeof(double);
}

/* --- clip(s) -> c --- */

static void run_clip(struct tn_kernel *k)
{
    float s = scalar(&k->in[0]), *c = k->out[0].data;
    double norm = sqrt((double)s), factor = k->f[0] / (norm + 1e-6);
    c[0] = k->f[0] > 0 && factor < 1 ? (float)factor : 1.0f;
    c[1] = (float)norm;
    c[2] = isfinite(s) ? 0.0f : 1.0f;
    c[3] = 0.0f;
}

static tn_status bind_clip(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, 1, 1), "s and c");
    CPU_REQUIRE(cpu_is(&k->in[0], TN_F32, 1) && cpu_is(&k->out[0], TN_F32, 4), "an f32 scalar s and f32 c[4]");
    k->f[0] = cpu_attr_f(op, "max_norm", 0);
    k->run = run_clip;
    return TN_OK;
}

/* --- adamw(p m v g c lr t) -> p2 m2 v2 --- */

enum { ADAMW_BETA1, ADAMW_BETA2, ADAMW_EPS, ADAMW_DECAY };

static struct cpu_vec_adamw adamw_of(const struct tn_kernel *k)
{
    const float *c = k->in[4].data;
    double lr = scalar(&k->in[5]), t = scalar(&k->in[6]), beta1 = k->f[ADAMW_BETA1], beta2 = k->f[ADAMW_BETA2];
    return (struct cpu_vec_adamw){
        .beta1 = (float)beta1,
        .beta2 = (float)beta2,
        .one_minus_beta1 = (float)(1 - beta1),
        .one_minus_beta2 = (float)(1 - beta2),
        .eps = (float)k->f[ADAMW_EPS],
        .factor = c[0],
        .step = (float)(lr / (1 - pow(beta1, t))),
        .keep = (float)(1 - lr * k->f[ADAMW_DECAY]),
        .inv_sqrt_c2 = (float)(1 / sqrt(1 - pow(beta2, t))),
    };
}

static bool skipped(const struct tn_tensor *c)
{
    return ((const float *)c->data)[2] != 0;
}

static void run_adamw(struct tn_kernel *k)
{
    if (skipped(&k->in[4]))
        return;
    struct cpu_vec_adamw adamw = adamw_of(k);
    float *p = k->out[0].data, *m = k->out[1].data, *v = k->out[2].data;
    const float *g = k->in[3].data;
    int64_t n = cpu_elements(&k->in[0]);
#pragma omp parallel for num_threads(cpu_team(k->cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK)
        k->cpu->vec->adamw(&adamw, p + at, m + at, v + at, g + at, cpu_block(n, at));
}

static bool in_place(const struct tn_kernel *k, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (k->in[i].data != k->out[i].data)
            return false;
    }
    return true;
}

static tn_status bind_adamw(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 7, 7, 3), "p, m, v, g, c, lr, t and p2, m2, v2");
    int64_t n = cpu_elements(&k->in[0]);
    for (uint32_t i = 0; i < 4; i++)
        CPU_REQUIRE(cpu_is(&k->in[i], TN_F32, n), "p, m, v and g in f32, of one size");
    for (uint32_t i = 0; i < 3; i++)
        CPU_REQUIRE(cpu_is(&k->out[i], TN_F32, n), "outputs like p");
    CPU_REQUIRE(in_place(k, 3), "p, m and v in place");
    CPU_REQUIRE(cpu_is(&k->in[4], TN_F32, 4), "f32 c[4]");
    CPU_REQUIRE(cpu_is(&k->in[5], TN_F32, 1) && cpu_is(&k->in[6], TN_F32, 1), "f32 scalars lr and t");
    k->f[ADAMW_BETA1] = cpu_attr_f(op, "beta1", 0.9);
    k->f[ADAMW_BETA2] = cpu_attr_f(op, "beta2", 0.999);
    k->f[ADAMW_EPS] = cpu_attr_f(op, "eps", 1e-8);
    k->f[ADAMW_DECAY] = cpu_attr_f(op, "decay", 0);
    k->run = run_adamw;
    return TN_OK;
}

/* --- sgd(p m g c lr) -> p2 m2 --- */

enum { SGD_MOMENTUM, SGD_DECAY };

static void run_sgd(struct tn_kernel *k)
{
    if (skipped(&k->in[3]))
        return;
    float factor = ((const float *)k->in[3].data)[0], lr = scalar(&k->in[4]);
    float momentum = (float)k->f[SGD_MOMENTUM], decay = (float)k->f[SGD_DECAY];
    float *p = k->out[0].data, *m = k->out[1].data;
    const float *g = k->in[2].data;
    int64_t n = cpu_elements(&k->in[0]);
#pragma omp parallel for num_threads(cpu_team(k->cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK)
        k->cpu->vec->sgd(lr, momentum, factor, decay, p + at, m + at, g + at, cpu_block(n, at));
}

static tn_status bind_sgd(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 5, 5, 2), "p, m, g, c, lr and p2, m2");
    int64_t n = cpu_elements(&k->in[0]);
    for (uint32_t i = 0; i < 3; i++)
        CPU_REQUIRE(cpu_is(&k->in[i], TN_F32, n), "p, m and g in f32, of one size");
    for (uint32_t i = 0; i < 2; i++)
        CPU_REQUIRE(cpu_is(&k->out[i], TN_F32, n), "outputs like p");
    CPU_REQUIRE(in_place(k, 2), "p and m in place");
    CPU_REQUIRE(cpu_is(&k->in[3], TN_F32, 4) && cpu_is(&k->in[4], TN_F32, 1), "f32 c[4] and an f32 scalar lr");
    k->f[SGD_MOMENTUM] = cpu_attr_f(op, "momentum", 0);
    k->f[SGD_DECAY] = cpu_attr_f(op, "decay", 0);
    k->run = run_sgd;
    return TN_OK;
}

const struct cpu_row cpu_optimizer_rows[] = {
    { TN_OP_ACCUMULATE, bind_accumulate, NULL },
    { TN_OP_SYNC, bind_sync, NULL },
    { TN_OP_SUMSQ, bind_sumsq, workspace_sumsq },
    { TN_OP_CLIP, bind_clip, NULL },
    { TN_OP_ADAMW, bind_adamw, NULL },
    { TN_OP_SGD, bind_sgd, NULL },
    { TN_OP_NONE, NULL, NULL },
};
