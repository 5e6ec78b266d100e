/* The loss on the cpu device: cross-entropy in one pass over the logits, its gradient in place, its parts for a cut
 * vocabulary, and the count that normalises it.
 *
 * Threads share rows; the rows' losses are then added in order in f64, so the loss does not depend on the number of
 * threads. A descriptor's offset says which columns of the vocabulary this rank owns; a label elsewhere has no logit
 * here. Labels below 0 are masked. */
#include <math.h>

#include "check.h"

/* kernel->i of this family */
enum { LOSS_ROWS, LOSS_COLS, LOSS_FIRST, LOSS_DTYPE };

/* Sizes from the logits, the labels' row count checked against them. */
static tn_status set_sizes(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k,
                           const struct tn_tensor *labels)
{
    const struct tn_tensor *x = &k->in[0];
    CPU_REQUIRE(cpu_is_activation(x) && x->rank >= 1, "logits in f32 or bf16");
    k->i[LOSS_COLS] = cpu_cols(x);
    k->i[LOSS_ROWS] = cpu_rows(x);
    k->i[LOSS_FIRST] = x->offset[x->rank - 1];
    k->i[LOSS_DTYPE] = cpu_vec_dtype(x->dtype);
    CPU_REQUIRE(!labels || cpu_is(labels, TN_I32, k->i[LOSS_ROWS]), "i32 labels, one a row");
    return TN_OK;
}

static int64_t elements(const struct tn_kernel *k)
{
    return k->i[LOSS_ROWS] * k->i[LOSS_COLS];
}

static const void *row_of(const struct tn_kernel *k, int64_t row)
{
    return cpu_at(&k->in[0], row * k->i[LOSS_COLS]);
}

/* Where `label` is among this rank's columns, or -1. */
static int64_t column_of(const struct tn_kernel *k, int32_t label)
{
    int64_t column = label - k->i[LOSS_FIRST];
    return label >= 0 && column >= 0 && column < k->i[LOSS_COLS] ? column : -1;
}

/* The label's logit, 0 where it is not here. */
static float target(const struct tn_kernel *k, int64_t row, int32_t label)
{
    int64_t column = column_of(k, label);
    float value = 0;
    if (column >= 0)
        k->cpu->vec->to_f32[k->i[LOSS_DTYPE]](&value, cpu_at(&k->in[0], row * k->i[LOSS_COLS] + column), 1);
    return value;
}

/* --- cross_entropy(logits labels) -> loss lse --- */

/* log of the row's sum of exponentials, less its largest logit, which is returned in *m. */
static double row_log_sum(struct tn_kernel *k, int64_t row, float *m)
{
    double z;
    k->cpu->vec->online_softmax[k->i[LOSS_DTYPE]](row_of(k, row), k->i[LOSS_COLS], m, &z);
    return log(z);
}

/* The rows' losses are kept in scratch, in f64: lse in f32 would lose what large logits leave of them. */
static void run_cross_entropy(struct tn_kernel *k)
{
    const int32_t *labels = k->in[1].data;
    float *lse = k->out[1].data;
    double *row_loss = k->scratch, loss = 0;
#pragma omp parallel for num_threads(cpu_team(k->cpu, elements(k))) schedule(static)
    for (int64_t row = 0; row < k->i[LOSS_ROWS]; row++) {
        float m;
        double log_sum = row_log_sum(k, row, &m);
        lse[row] = (float)((double)m + log_sum);
        row_loss[row] = labels[row] >= 0 ? (double)m - (double)target(k, row, labels[row]) + log_sum : 0;
    }
    for (int64_t row = 0; row < k->i[LOSS_ROWS]; row++)
        loss += row_loss[row];
    *(float *)k->out[0].data = (float)loss;
}

static uint64_t workspace_cross_entropy(struct cpu *cpu, const struct tn_op_desc *op)
{
    return (uint64_t)cpu_rows(op->in[0]) * sizeof(double);
}

static tn_status bind_cross_entropy(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 2, 2, 2), "logits, labels, loss and lse");
    tn_status status = set_sizes(cpu, op, k, &k->in[1]);
    if (status != TN_OK)
        return status;
    CPU_REQUIRE(cpu_is(&k->out[0], TN_F32, 1) && cpu_is(&k->out[1], TN_F32, k->i[LOSS_ROWS]),
                "an f32 scalar loss and f32 lse, one a row");
    k->run = run_cross_entropy;
    return TN_OK;
}

/* --- cross_entropy_dx(logits labels lse seed) -> dlogits --- */

static void row_dx(struct tn_kernel *k, int64_t row)
{
    int64_t cols = k->i[LOSS_COLS], dtype = k->i[LOSS_DTYPE];
    int32_t label = ((const int32_t *)k->in[1].data)[row];
    float lse = ((const float *)k->in[2].data)[row], seed = *(const float *)k->in[3].data;
    void *to = cpu_at(&k->out[0], row * cols);
    if (label < 0) {
        memset(to, 0, (size_t)(cols * cpu_dtype_bytes(k->out[0].dtype)));
        return;
    }
    int64_t column = column_of(k, label);
    float at_label = (expf(target(k, row, label) - lse) - 1.0f) * seed; /* before its logit is overwritten */
    k->cpu->vec->softmax[dtype](to, row_of(k, row), lse, seed, cols);
    if (column >= 0)
        k->cpu->vec->from_f32[dtype](cpu_at(&k->out[0], row * cols + column), &at_label, 1);
}

static void run_cross_entropy_dx(struct tn_kernel *k)
{
#pragma omp parallel for num_threads(cpu_team(k->cpu, elements(k))) schedule(static)
    for (int64_t row = 0; row < k->i[LOSS_ROWS]; row++)
        row_dx(k, row);
}

static tn_status bind_cross_entropy_dx(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 4, 4, 1), "logits, labels, lse, seed and dlogits");
    tn_status status = set_sizes(cpu, op, k, &k->in[1]);
    if (status != TN_OK)
        return status;
    CPU_REQUIRE(cpu_is(&k->in[2], TN_F32, k->i[LOSS_ROWS]) && cpu_is(&k->in[3], TN_F32, 1),
                "f32 lse, one a row, and an f32 scalar seed");
    CPU_REQUIRE(cpu_alike(&k->out[0], &k->in[0]), "dlogits like logits");
    k->run = run_cross_entropy_dx;
    return TN_OK;
}

/* --- over a cut vocabulary: ce_max(logits) -> m, ce_sum(logits labels m) -> zt,
 * ce_loss(zt m labels) -> loss lse --- */

static void run_ce_max(struct tn_kernel *k)
{
    float *m = k->out[0].data;
#pragma omp parallel for num_threads(cpu_team(k->cpu, elements(k))) schedule(static)
    for (int64_t row = 0; row < k->i[LOSS_ROWS]; row++)
        m[row] = k->cpu->vec->max[k->i[LOSS_DTYPE]](row_of(k, row), k->i[LOSS_COLS]);
}

static tn_status bind_ce_max(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, 1, 1), "logits and m");
    tn_status status = set_sizes(cpu, op, k, NULL);
    if (status != TN_OK)
        return status;
    CPU_REQUIRE(cpu_is(&k->out[0], TN_F32, k->i[LOSS_ROWS]), "f32 m, one a row");
    k->run = run_ce_max;
    return TN_OK;
}

static void run_ce_sum(struct tn_kernel *k)
{
    const int32_t *labels = k->in[1].data;
    const float *m = k->in[2].data;
    float *z = k->out[0].data, *t = z + k->i[LOSS_ROWS];
#pragma omp parallel for num_threads(cpu_team(k->cpu, elements(k))) schedule(static)
    for (int64_t row = 0; row < k->i[LOSS_ROWS]; row++) {
        z[row] = (float)k->cpu->vec->sum_exp[k->i[LOSS_DTYPE]](row_of(k, row), m[row], k->i[LOSS_COLS]);
        t[row] = target(k, row, labels[row]);
    }
}

static tn_status bind_ce_sum(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 3, 3, 1), "logits, labels, m and zt");
    tn_status status = set_sizes(cpu, op, k, &k->in[1]);
    if (status != TN_OK)
        return status;
    CPU_REQUIRE(cpu_is(&k->in[2], TN_F32, k->i[LOSS_ROWS]), "f32 m, one a row");
    CPU_REQUIRE(cpu_is(&k->out[0], TN_F32, 2 * k->i[LOSS_ROWS]), "f32 zt, two a row");
    k->run = run_ce_sum;
    return TN_OK;
}

static void run_ce_loss(struct tn_kernel *k)
{
    int64_t rows = cpu_elements(&k->in[1]);
    const float *z = k->in[0].data, *t = z + rows, *m = k->in[1].data;
    const int32_t *labels = k->in[2].data;
    float *lse = k->out[1].data;
    double loss = 0;
    for (int64_t row = 0; row < rows; row++) {
        double log_sum = log((double)z[row]);
        lse[row] = (float)((double)m[row] + log_sum);
        if (labels[row] >= 0)
            loss += (double)m[row] - (double)t[row] + log_sum;
    }
    *(float *)k->out[0].data = (float)loss;
}

static tn_status bind_ce_loss(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 3, 3, 2), "zt, m, labels, loss and lse");
    int64_t rows = cpu_elements(&k->in[1]);
    CPU_REQUIRE(cpu_is(&k->in[0], TN_F32, 2 * rows) && k->in[1].dtype == TN_F32, "f32 zt, two a row, and f32 m");
    CPU_REQUIRE(cpu_is(&k->in[2], TN_I32, rows), "i32 labels, one a row");
    CPU_REQUIRE(cpu_is(&k->out[0], TN_F32, 1) && cpu_is(&k->out[1], TN_F32, rows),
                "an f32 scalar loss and f32 lse, one a row");
    k->run = run_ce_loss;
    return TN_OK;
}

/* --- the normaliser: count_targets(labels) -> n, grad_seed(n) -> seed, scale_by(x s) -> y --- */

static void run_count_targets(struct tn_kernel *k)
{
    const int32_t *labels = k->in[0].data;
    int64_t count = 0;
    for (int64_t n = 0; n < cpu_elements(&k->in[0]); n++)
        count += labels[n] >= 0;
    *(float *)k->out[0].data = (float)count;
}

static tn_status bind_count_targets(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, 1, 1) && k->in[0].dtype == TN_I32, "i32 labels");
    CPU_REQUIRE(cpu_is(&k->out[0], TN_F32, 1), "an f32 scalar n");
    k->run = run_count_targets;
    return TN_OK;
}

static void run_grad_seed(struct tn_kernel *k)
{
    float n = *(const float *)k->in[0].data;
    *(float *)k->out[0].data = 1.0f / (n > 1.0f ? n : 1.0f);
}

static tn_status bind_grad_seed(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, 1, 1), "n and seed");
    CPU_REQUIRE(cpu_is(&k->in[0], TN_F32, 1) && cpu_is(&k->out[0], TN_F32, 1), "f32 scalars");
    k->run = run_grad_seed;
    return TN_OK;
}

static void run_scale_by(struct tn_kernel *k)
{
    const struct tn_tensor *x = &k->in[0], *y = &k->out[0];
    float s = *(const float *)k->in[1].data;
    int64_t n = cpu_elements(x), dtype = cpu_vec_dtype(x->dtype);
#pragma omp parallel for num_threads(cpu_team(k->cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK)
        k->cpu->vec->scale[dtype](cpu_at(y, at), cpu_at(x, at), s, cpu_block(n, at));
}

static tn_status bind_scale_by(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 2, 2, 1), "x, s and y");
    CPU_REQUIRE(cpu_is_activation(&k->in[0]) && cpu_alike(&k->out[0], &k->in[0]), "x and y alike, in f32 or bf16");
    CPU_REQUIRE(cpu_is(&k->in[1], TN_F32, 1), "an f32 scalar s");
    k->run = run_scale_by;
    return TN_OK;
}

const struct cpu_row cpu_loss_rows[] = {
    { TN_OP_CROSS_ENTROPY, bind_cross_entropy, workspace_cross_entropy },
    { TN_OP_CROSS_ENTROPY_DX, bind_cross_entropy_dx, NULL },
    { TN_OP_CE_MAX, bind_ce_max, NULL },
    { TN_OP_CE_SUM, bind_ce_sum, NULL },
    { TN_OP_CE_LOSS, bind_ce_loss, NULL },
    { TN_OP_COUNT_TARGETS, bind_count_targets, NULL },
    { TN_OP_GRAD_SEED, bind_grad_seed, NULL },
    { TN_OP_SCALE_BY, bind_scale_by, NULL },
    { TN_OP_NONE, NULL, NULL },
};
