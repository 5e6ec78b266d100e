/* Elementwise ops on the cpu device: bias, gelu, swiglu, rope, sums, casts and dropout, forward and backward.
 *
 * Threads share blocks of elements, or rows where an op needs to know its column. */
#include <math.h>

#include "columns.h"
#include "philox.h"

/* kernel->i of this family */
enum { ACT_DTYPE, ACT_COLS, ACT_ROWS, ACT_TANH };

/* For ops whose inputs and outputs, up to the number given, are all alike. */
static tn_status bind_alike(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k, uint32_t ins)
{
    const struct tn_tensor *x = &k->in[0];
    CPU_REQUIRE(cpu_is_activation(x), "f32 or bf16 activations");
    for (uint32_t n = 1; n < ins; n++)
        CPU_REQUIRE(cpu_alike(&k->in[n], x), "activations of one dtype and size");
    for (uint32_t n = 0; n < k->n_out; n++)
        CPU_REQUIRE(cpu_alike(&k->out[n], x), "outputs like its inputs");
    k->i[ACT_DTYPE] = cpu_vec_dtype(x->dtype);
    k->i[ACT_COLS] = cpu_cols(x);
    k->i[ACT_ROWS] = cpu_rows(x);
    k->i[ACT_TANH] = cpu_attr_i(op, "tanh", 0) != 0;
    return TN_OK;
}

static int64_t elements(const struct tn_kernel *k)
{
    return cpu_elements(&k->in[0]);
}

/* --- blocks of elements: add(a b), gelu(x), gelu_dx(dy x), swiglu(g u), swiglu_dx(dy g u) --- */

static void add_block(struct tn_kernel *k, int64_t at, int64_t n)
{
    k->cpu->vec->add[k->i[ACT_DTYPE]](cpu_at(&k->out[0], at), cpu_at(&k->in[0], at), cpu_at(&k->in[1], at), n);
}

static void gelu_block(struct tn_kernel *k, int64_t at, int64_t n)
{
    k->cpu->vec->gelu[k->i[ACT_TANH]][k->i[ACT_DTYPE]](cpu_at(&k->out[0], at), cpu_at(&k->in[0], at), n);
}

static void gelu_dx_block(struct tn_kernel *k, int64_t at, int64_t n)
{
    k->cpu->vec->gelu_dx[k->i[ACT_TANH]][k->i[ACT_DTYPE]](cpu_at(&k->out[0], at), cpu_at(&k->in[0], at),
                                                          cpu_at(&k->in[1], at), n);
}

static void swiglu_block(struct tn_kernel *k, int64_t at, int64_t n)
{
    k->cpu->vec->swiglu[k->i[ACT_DTYPE]](cpu_at(&k->out[0], at), cpu_at(&k->in[0], at), cpu_at(&k->in[1], at), n);
}

static void swiglu_dx_block(struct tn_kernel *k, int64_t at, int64_t n)
{
    k->cpu->vec->swiglu_dx[k->i[ACT_DTYPE]](cpu_at(&k->out[0], at), cpu_at(&k->out[1], at), cpu_at(&k->in[0], at),
                                            cpu_at(&k->in[1], at), cpu_at(&k->in[2], at), n);
}

static const struct {
    uint32_t opcode, ins, outs;
    void (*block)(struct tn_kernel *k, int64_t at, int64_t n);
} blocks[] = {
    { TN_OP_ADD, 2, 1, add_block },
    { TN_OP_GELU, 1, 1, gelu_block },
    { TN_OP_GELU_DX, 2, 1, gelu_dx_block },
    { TN_OP_SWIGLU, 2, 1, swiglu_block },
    { TN_OP_SWIGLU_DX, 3, 2, swiglu_dx_block },
};

static void run_blocks(struct tn_kernel *k)
{
    void (*block)(struct tn_kernel *, int64_t, int64_t) = blocks[(intptr_t)k->state].block;
    int64_t n = elements(k);
#pragma omp parallel for num_threads(cpu_team(k->cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK)
        block(k, at, cpu_block(n, at));
}

static tn_status bind_blocks(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    size_t row = 0;
    while (blocks[row].opcode != op->opcode)
        row++;
    CPU_REQUIRE(cpu_arity(k, blocks[row].ins, blocks[row].ins, blocks[row].outs), "its inputs and outputs of ops.def");
    k->state = (void *)(intptr_t)row;
    k->run = run_blocks;
    return bind_alike(cpu, op, k, blocks[row].ins);
}

/* --- rows: bias_add(x b), bias_gelu(x b) --- */

static void run_bias(struct tn_kernel *k, void (*row)(void *y, const void *x, const float *b, int64_t n))
{
    int64_t cols = k->i[ACT_COLS];
#pragma omp parallel for num_threads(cpu_team(k->cpu, elements(k))) schedule(static)
    for (int64_t n = 0; n < k->i[ACT_ROWS]; n++)
        row(cpu_at(&k->out[0], n * cols), cpu_at(&k->in[0], n * cols), k->in[1].data, cols);
}

static void run_bias_add(struct tn_kernel *k)
{
    run_bias(k, k->cpu->vec->bias_add[k->i[ACT_DTYPE]]);
}

static void run_bias_gelu(struct tn_kernel *k)
{
    run_bias(k, k->cpu->vec->bias_gelu[k->i[ACT_TANH]][k->i[ACT_DTYPE]]);
}

static tn_status bind_bias(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 2, 2, 1), "x, b and y");
    CPU_REQUIRE(cpu_is(&k->in[1], TN_F32, cpu_cols(&k->in[0])), "an f32 bias, one a column");
    k->run = op->opcode == TN_OP_BIAS_ADD ? run_bias_add : run_bias_gelu;
    return bind_alike(cpu, op, k, 1);
}

/* --- sums over rows: bias_dw(dy acc?) -> db, bias_gelu_dx(dy x b acc?) -> dx db --- */

static void run_bias_dw(struct tn_kernel *k)
{
    struct cpu_vec_columns all = { .dy = k->in[0].data, .rows = k->i[ACT_ROWS], .db = k->out[0].data };
    cpu_sum_columns(k, &all, k->i[ACT_COLS], k->in[0].dtype, cpu_optional(k, 1) != NULL,
                    k->cpu->vec->bias_dw[k->i[ACT_DTYPE]]);
}

/* Of both: the first input is dy. */
static uint64_t workspace_bias(struct cpu *cpu, const struct tn_op_desc *op)
{
    return cpu_columns_workspace(cpu_rows(op->in[0]), cpu_cols(op->in[0]), 1);
}

static tn_status bind_bias_dw(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, 2, 1), "dy, acc and db");
    const struct tn_tensor *dy = &k->in[0], *acc = cpu_optional(k, 1), *db = &k->out[0];
    CPU_REQUIRE(cpu_is_activation(dy), "dy in f32 or bf16");
    CPU_REQUIRE(cpu_is(db, TN_F32, cpu_cols(dy)), "an f32 gradient, one a column");
    CPU_REQUIRE(!acc || (acc->data == db->data && cpu_alike(acc, db)), "an accumulator in place");
    k->i[ACT_DTYPE] = cpu_vec_dtype(dy->dtype);
    k->i[ACT_COLS] = cpu_cols(dy);
    k->i[ACT_ROWS] = cpu_rows(dy);
    k->run = run_bias_dw;
    return TN_OK;
}

static void run_bias_gelu_dx(struct tn_kernel *k)
{
    struct cpu_vec_columns all = {
        .dy = k->in[0].data,
        .x = k->in[1].data,
        .dx = k->out[0].data,
        .b = k->in[2].data,
        .rows = k->i[ACT_ROWS],
        .db = k->out[1].data,
    };
    cpu_sum_columns(k, &all, k->i[ACT_COLS], k->in[0].dtype, cpu_optional(k, 3) != NULL,
                    k->cpu->vec->bias_gelu_dx[k->i[ACT_TANH]][k->i[ACT_DTYPE]]);
}

static tn_status bind_bias_gelu_dx(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 3, 4, 2), "dy, x, b, acc, dx and db");
    const struct tn_tensor *dy = &k->in[0], *x = &k->in[1], *acc = cpu_optional(k, 3), *db = &k->out[1];
    CPU_REQUIRE(cpu_is_activation(dy) && cpu_alike(x, dy) && cpu_alike(&k->out[0], dy),
                "dy, x and dx alike, in f32 or bf16");
    CPU_REQUIRE(cpu_is(&k->in[2], TN_F32, cpu_cols(dy)), "an f32 bias, one a column");
    CPU_REQUIRE(cpu_is(db, TN_F32, cpu_cols(dy)), "an f32 gradient, one a column");
    CPU_REQUIRE(!acc || (acc->data == db->data && cpu_alike(acc, db)), "an accumulator in place");
    k->i[ACT_DTYPE] = cpu_vec_dtype(dy->dtype);
    k->i[ACT_COLS] = cpu_cols(dy);
    k->i[ACT_ROWS] = cpu_rows(dy);
    k->i[ACT_TANH] = cpu_attr_i(op, "tanh", 0) != 0;
    k->run = run_bias_gelu_dx;
    return TN_OK;
}

/* --- rope(x pos) -> y --- */

/* state: the angle per position of each pair of a head */
static void release_rope(struct tn_kernel *k)
{
    k->cpu->host->release(k->cpu->host, k->state);
}

enum { ROPE_DTYPE, ROPE_COLS, ROPE_ROWS, ROPE_HALF };

static void rope_row(struct tn_kernel *k, int64_t row)
{
    int64_t cols = k->i[ROPE_COLS], half = k->i[ROPE_HALF];
    float cosine[CPU_VEC_HEAD / 2], sine[CPU_VEC_HEAD / 2];
    double pos = k->f[0] * ((const int32_t *)k->in[1].data)[row]; /* f[0]: -1 to rotate back */
    k->cpu->vec->rope_angles(cosine, sine, k->state, pos, half);
    k->cpu->vec->rope[k->i[ROPE_DTYPE]](cpu_at(&k->out[0], row * cols), cpu_at(&k->in[0], row * cols), cosine, sine,
                                        half, cols / (2 * half));
}

static void run_rope(struct tn_kernel *k)
{
#pragma omp parallel for num_threads(cpu_team(k->cpu, elements(k))) schedule(static)
    for (int64_t row = 0; row < k->i[ROPE_ROWS]; row++)
        rope_row(k, row);
}

static tn_status bind_rope(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    const int64_t dim = cpu_attr_i(op, "head_dim", 0);
    const double theta = cpu_attr_f(op, "theta", 10000);
    CPU_REQUIRE(cpu_arity(k, 2, 2, 1), "x, pos and y");
    const struct tn_tensor *x = &k->in[0];
    CPU_REQUIRE(cpu_is_activation(x) && cpu_alike(&k->out[0], x), "x and y alike, in f32 or bf16");
    CPU_REQUIRE(dim > 0 && dim % 2 == 0 && dim <= CPU_VEC_HEAD && cpu_cols(x) % dim == 0,
                "an even head_dim of at most 1024 that divides the last dimension");
    CPU_REQUIRE(cpu_is(&k->in[1], TN_I32, cpu_rows(x)), "i32 positions, one a row");
    double *frequency = cpu->host->alloc(cpu->host, (uint64_t)(dim / 2) * sizeof *frequency);
    if (!frequency)
        return cpu->host->fail(cpu->host, TN_NO_MEMORY, "no memory for %s", op->name);
    for (int64_t i = 0; i < dim / 2; i++)
        frequency[i] = pow(theta, -2.0 * (double)i / (double)dim);
    k->state = frequency;
    k->release = release_rope;
    k->i[ROPE_DTYPE] = cpu_vec_dtype(x->dtype);
    k->i[ROPE_COLS] = cpu_cols(x);
    k->i[ROPE_ROWS] = cpu_rows(x);
    k->i[ROPE_HALF] = dim / 2;
    k->f[0] = cpu_attr_i(op, "inverse", 0) ? -1.0 : 1.0;
    k->run = run_rope;
    return TN_OK;
}

/* --- through an f32 block: add_n(x...) -> y, cast(x) -> y --- */

static void read_block(const struct cpu_vec *vec, float *to, const struct tn_tensor *x, int64_t at, int64_t n)
{
    if (x->dtype == TN_F16)
        vec->f16_to_f32(to, cpu_at(x, at), n);
    else
        vec->to_f32[cpu_vec_dtype(x->dtype)](to, cpu_at(x, at), n);
}

static void write_block(const struct cpu_vec *vec, const struct tn_tensor *y, int64_t at, const float *from, int64_t n)
{
    if (y->dtype == TN_F16)
        vec->f16_from_f32(cpu_at(y, at), from, n);
    else
        vec->from_f32[cpu_vec_dtype(y->dtype)](cpu_at(y, at), from, n);
}

static void add_n_block(struct tn_kernel *k, int64_t at, int64_t n)
{
    float sum[CPU_BLOCK];
    read_block(k->cpu->vec, sum, &k->in[0], at, n);
    for (uint32_t input = 1; input < k->n_in; input++) {
        const struct tn_tensor *x = &k->in[input];
        k->cpu->vec->accumulate[cpu_vec_dtype(x->dtype)](sum, sum, cpu_at(x, at), n);
    }
    write_block(k->cpu->vec, &k->out[0], at, sum, n);
}

static void run_add_n(struct tn_kernel *k)
{
    int64_t n = elements(k);
#pragma omp parallel for num_threads(cpu_team(k->cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK)
        add_n_block(k, at, cpu_block(n, at));
}

static tn_status bind_add_n(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, UINT32_MAX, 1), "inputs and y");
    for (uint32_t n = 0; n < k->n_in; n++)
        CPU_REQUIRE(cpu_is_activation(&k->in[n]) && cpu_elements(&k->in[n]) == elements(k),
                    "inputs of one size, in f32 or bf16");
    CPU_REQUIRE(cpu_is_activation(&k->out[0]) && cpu_elements(&k->out[0]) == elements(k), "y like its inputs");
    k->run = run_add_n;
    return TN_OK;
}

static void cast_block(struct tn_kernel *k, int64_t at, int64_t n)
{
    const struct tn_tensor *x = &k->in[0], *y = &k->out[0];
    if (x->dtype == y->dtype)
        memmove(cpu_at(y, at), cpu_at(x, at), (size_t)(n * cpu_dtype_bytes(x->dtype)));
    else if (x->dtype == TN_F32)
        write_block(k->cpu->vec, y, at, cpu_at(x, at), n);
    else if (y->dtype == TN_F32)
        read_block(k->cpu->vec, cpu_at(y, at), x, at, n);
    else {
        float wide[CPU_BLOCK];
        read_block(k->cpu->vec, wide, x, at, n);
        write_block(k->cpu->vec, y, at, wide, n);
    }
}

static void run_cast(struct tn_kernel *k)
{
    int64_t n = elements(k);
#pragma omp parallel for num_threads(cpu_team(k->cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK)
        cast_block(k, at, cpu_block(n, at));
}

static bool can_cast(const struct tn_tensor *tensor)
{
    return cpu_is_activation(tensor) || tensor->dtype == TN_F16;
}

static tn_status bind_cast(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 1, 1, 1), "x and y");
    CPU_REQUIRE(can_cast(&k->in[0]) && can_cast(&k->out[0]), "f32, bf16 or f16");
    CPU_REQUIRE(cpu_elements(&k->out[0]) == elements(k), "y of the size of x");
    k->run = run_cast;
    return TN_OK;
}

/* --- dropout(x step) -> y: draws are numbered by global elements, so every layout drops the same --- */

enum { DROP_DTYPE, DROP_KEY, DROP_MICRO, DROP_THRESHOLD };

/* Index in the whole of index `i` of dimension d of this part. */
static int64_t global_of(const struct tn_tensor *x, int32_t d, int64_t i)
{
    if (x->run[d] == 0)
        return x->offset[d] + i;
    return i < x->run[d] ? x->first[d] + i : x->second[d] + i - x->run[d];
}

/* Index in the whole of the first element of row `row` of this part. */
static uint64_t global_index(const struct tn_tensor *x, int64_t row)
{
    int64_t index = x->rank ? x->offset[x->rank - 1] : 0, stride = x->rank ? x->global[x->rank - 1] : 1;
    for (int32_t d = x->rank - 2; d >= 0; d--) {
        index += global_of(x, d, row % x->shape[d]) * stride;
        row /= x->shape[d];
        stride *= x->global[d];
    }
    return (uint64_t)index;
}

static void run_dropout(struct tn_kernel *k)
{
    const struct tn_tensor *x = &k->in[0], *step = &k->in[1];
    int64_t cols = cpu_cols(x), rows = cpu_rows(x);
    uint64_t now =
        step->dtype == TN_F32 ? (uint64_t) * (const float *)step->data : (uint64_t) * (const int32_t *)step->data;
    struct cpu_vec_dropout draws = {
        .key = (uint64_t)k->i[DROP_KEY],
        .hi = cpu_dropout_hi((uint64_t)k->i[DROP_MICRO], now),
        .threshold = (uint32_t)k->i[DROP_THRESHOLD],
        .scale = (float)k->f[0],
    };
#pragma omp parallel for num_threads(cpu_team(k->cpu, elements(k))) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        k->cpu->vec->dropout[k->i[DROP_DTYPE]](cpu_at(&k->out[0], row * cols), cpu_at(x, row * cols), &draws,
                                               global_index(x, row), cols);
}

static tn_status bind_dropout(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    const double p = cpu_attr_f(op, "p", 0);
    CPU_REQUIRE(cpu_arity(k, 2, 2, 1), "x, step and y");
    const struct tn_tensor *x = &k->in[0], *step = &k->in[1];
    CPU_REQUIRE(cpu_is_activation(x) && cpu_alike(&k->out[0], x), "x and y alike, in f32 or bf16");
    CPU_REQUIRE(cpu_elements(step) == 1 && (step->dtype == TN_F32 || step->dtype == TN_I32), "a scalar step");
    CPU_REQUIRE(p >= 0 && p < 1, "p of at least 0 and below 1");
    k->i[DROP_DTYPE] = cpu_vec_dtype(x->dtype);
    k->i[DROP_KEY] =
        (int64_t)cpu_dropout_key((uint64_t)cpu_attr_i(op, "seed", 0), (uint64_t)cpu_attr_i(op, "stream", 0));
    k->i[DROP_MICRO] = cpu_attr_i(op, "micro", 0);
    k->i[DROP_THRESHOLD] = (int64_t)(p * 4294967296.0);
    k->f[0] = 1 / (1 - p);
    k->run = run_dropout;
    return TN_OK;
}

const struct cpu_row cpu_activation_rows[] = {
    { TN_OP_ADD, bind_blocks, NULL },
    { TN_OP_GELU, bind_blocks, NULL },
    { TN_OP_GELU_DX, bind_blocks, NULL },
    { TN_OP_SWIGLU, bind_blocks, NULL },
    { TN_OP_SWIGLU_DX, bind_blocks, NULL },
    { TN_OP_BIAS_ADD, bind_bias, NULL },
    { TN_OP_BIAS_GELU, bind_bias, NULL },
    { TN_OP_BIAS_DW, bind_bias_dw, workspace_bias },
    { TN_OP_BIAS_GELU_DX, bind_bias_gelu_dx, workspace_bias },
    { TN_OP_ROPE, bind_rope, NULL },
    { TN_OP_ADD_N, bind_add_n, NULL },
    { TN_OP_CAST, bind_cast, NULL },
    { TN_OP_DROPOUT, bind_dropout, NULL },
    { TN_OP_NONE, NULL, NULL },
};
