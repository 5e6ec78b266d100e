/* Norms on the cpu device: layernorm and rmsnorm, with the residual add before them, and their gradients.
 *
 * Rows are independent: threads share them. rmsnorm with `group` is rmsnorm over shorter and more rows. */
#include "columns.h"

/* kernel->i of this family */
enum { NORM_COLS, NORM_ROWS, NORM_DTYPE };
/* kernel->f */
enum { NORM_EPS };

static void set_sizes(struct tn_kernel *kernel, const struct tn_tensor *x, int64_t group)
{
    int64_t n = cpu_elements(x), cols = group ? group : cpu_cols(x);
    kernel->i[NORM_COLS] = cols;
    kernel->i[NORM_ROWS] = cols ? n / cols : 0;
    kernel->i[NORM_DTYPE] = cpu_vec_dtype(x->dtype);
}

static bool group_fits(const struct tn_tensor *x, int64_t group)
{
    return group >= 0 && (group == 0 || cpu_cols(x) % group == 0);
}

static int64_t elements(const struct tn_kernel *kernel)
{
    return kernel->i[NORM_ROWS] * kernel->i[NORM_COLS];
}

static void *row_of(void *data, int64_t row, const struct tn_kernel *kernel)
{
    int64_t bytes = kernel->i[NORM_DTYPE] == CPU_VEC_BF16 ? 2 : 4;
    return data ? (char *)data + row * kernel->i[NORM_COLS] * bytes : NULL;
}

/* --- forward --- */

/* The tensors of a forward op: those of add_* and of the plain norm differ only in b and r. */
struct forward {
    struct tn_tensor *a, *b, *w, *bias, *r, *y, *mean, *rstd;
};

static struct forward layernorm_tensors(struct tn_kernel *k, bool add)
{
    struct tn_tensor *in = k->in, *out = k->out;
    if (add)
        return (struct forward){ &in[0], &in[1], &in[2], &in[3], &out[0], &out[1], &out[2], &out[3] };
    return (struct forward){ &in[0], NULL, &in[1], &in[2], NULL, &out[0], &out[1], &out[2] };
}

static struct forward rmsnorm_tensors(struct tn_kernel *k, bool add)
{
    struct tn_tensor *in = k->in, *out = k->out;
    if (add)
        return (struct forward){ &in[0], &in[1], &in[2], NULL, &out[0], &out[1], NULL, &out[2] };
    return (struct forward){ &in[0], NULL, &in[1], NULL, NULL, &out[0], NULL, &out[1] };
}

static void *data_of(const struct tn_tensor *tensor)
{
    return tensor ? tensor->data : NULL;
}

static void run_forward(struct tn_kernel *k, const struct forward *t,
                        void (*norm)(const struct cpu_vec_norm *row, int64_t n))
{
    float *mean = data_of(t->mean), *rstd = t->rstd->data;
    void *b = data_of(t->b), *r = data_of(t->r);
#pragma omp parallel for num_threads(cpu_team(k->cpu, elements(k))) schedule(static)
    for (int64_t n = 0; n < k->i[NORM_ROWS]; n++) {
        struct cpu_vec_norm row = {
            .r = row_of(r, n, k),
            .y = row_of(t->y->data, n, k),
            .a = row_of(t->a->data, n, k),
            .b = row_of(b, n, k),
            .w = t->w->data,
            .bias = data_of(t->bias),
            .mean = mean ? mean + n : NULL,
            .rstd = rstd + n,
            .eps = (float)k->f[NORM_EPS],
        };
        norm(&row, k->i[NORM_COLS]);
    }
}

static void run_layernorm(struct tn_kernel *k)
{
    struct forward tensors = layernorm_tensors(k, k->n_in == 4);
    run_forward(k, &tensors, k->cpu->vec->layernorm[k->i[NORM_DTYPE]]);
}

static void run_rmsnorm(struct tn_kernel *k)
{
    struct forward tensors = rmsnorm_tensors(k, k->n_in == 3);
    run_forward(k, &tensors, k->cpu->vec->rmsnorm[k->i[NORM_DTYPE]]);
}

static tn_status bind_forward(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k,
                              const struct forward *t)
{
    int64_t group = cpu_attr_i(op, "group", 0);
    CPU_REQUIRE(cpu_is_activation(t->a), "f32 or bf16 activations");
    CPU_REQUIRE(group_fits(t->a, group), "a group that divides the last dimension");
    set_sizes(k, t->a, group);
    CPU_REQUIRE(cpu_alike(t->y, t->a), "y like x");
    CPU_REQUIRE(!t->b || (cpu_alike(t->b, t->a) && cpu_alike(t->r, t->a)), "a, b and r alike");
    CPU_REQUIRE(cpu_is(t->w, TN_F32, k->i[NORM_COLS]), "f32 weights, one a column");
    CPU_REQUIRE(!t->bias || cpu_is(t->bias, TN_F32, k->i[NORM_COLS]), "an f32 bias, one a column");
    CPU_REQUIRE(!t->mean || cpu_is(t->mean, TN_F32, k->i[NORM_ROWS]), "f32 statistics, one a row");
    CPU_REQUIRE(cpu_is(t->rstd, TN_F32, k->i[NORM_ROWS]), "f32 statistics, one a row");
    k->f[NORM_EPS] = cpu_attr_f(op, "eps", 1e-5);
    return TN_OK;
}

static tn_status bind_layernorm(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    bool add = op->opcode == TN_OP_ADD_LAYERNORM;
    CPU_REQUIRE(add ? cpu_arity(k, 4, 4, 4) : cpu_arity(k, 3, 3, 3), "its inputs and outputs of ops.def");
    struct forward tensors = layernorm_tensors(k, add);
    k->run = run_layernorm;
    return bind_forward(cpu, op, k, &tensors);
}

static tn_status bind_rmsnorm(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    bool add = op->opcode == TN_OP_ADD_RMSNORM;
    CPU_REQUIRE(add ? cpu_arity(k, 3, 3, 3) : cpu_arity(k, 2, 2, 2), "its inputs and outputs of ops.def");
    struct forward tensors = rmsnorm_tensors(k, add);
    k->run = run_rmsnorm;
    return bind_forward(cpu, op, k, &tensors);
}

/* --- gradient of x: layernorm_dx(dy x w mean rstd res?), rmsnorm_dx(dy x w rstd res?) --- */

static void run_dx(struct tn_kernel *k, const float *mean, const float *rstd, const struct tn_tensor *res,
                   void (*norm_dx)(const struct cpu_vec_norm_dx *row, int64_t n))
{
    void *residual = data_of(res);
#pragma omp parallel for num_threads(cpu_team(k->cpu, elements(k))) schedule(static)
    for (int64_t n = 0; n < k->i[NORM_ROWS]; n++) {
        struct cpu_vec_norm_dx row = {
            .dx = row_of(k->out[0].data, n, k),
            .dy = row_of(k->in[0].data, n, k),
            .x = row_of(k->in[1].data, n, k),
            .res = row_of(residual, n, k),
            .w = k->in[2].data,
            .mean = mean ? mean[n] : 0.0f,
            .rstd = rstd[n],
        };
        norm_dx(&row, k->i[NORM_COLS]);
    }
}

static void run_layernorm_dx(struct tn_kernel *k)
{
    run_dx(k, k->in[3].data, k->in[4].data, cpu_optional(k, 5), k->cpu->vec->layernorm_dx[k->i[NORM_DTYPE]]);
}

static void run_rmsnorm_dx(struct tn_kernel *k)
{
    run_dx(k, NULL, k->in[3].data, cpu_optional(k, 4), k->cpu->vec->rmsnorm_dx[k->i[NORM_DTYPE]]);
}

static tn_status bind_dx(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    bool centred = op->opcode == TN_OP_LAYERNORM_DX;
    uint32_t needed = centred ? 5 : 4;
    int64_t group = cpu_attr_i(op, "group", 0);
    CPU_REQUIRE(cpu_arity(k, needed, needed + 1, 1), "its inputs and outputs of ops.def");
    const struct tn_tensor *dy = &k->in[0], *x = &k->in[1], *res = cpu_optional(k, needed);
    CPU_REQUIRE(cpu_is_activation(x), "f32 or bf16 activations");
    CPU_REQUIRE(group_fits(x, group), "a group that divides the last dimension");
    set_sizes(k, x, group);
    CPU_REQUIRE(cpu_alike(dy, x) && cpu_alike(&k->out[0], x) && (!res || cpu_alike(res, x)), "dy, dx and res like x");
    CPU_REQUIRE(cpu_is(&k->in[2], TN_F32, k->i[NORM_COLS]), "f32 weights, one a column");
    for (uint32_t n = 3; n < needed; n++)
        CPU_REQUIRE(cpu_is(&k->in[n], TN_F32, k->i[NORM_ROWS]), "f32 statistics, one a row");
    k->run = centred ? run_layernorm_dx : run_rmsnorm_dx;
    return TN_OK;
}

/* --- gradients of w and b: layernorm_dw(dy x mean rstd accw? accb?), rmsnorm_dw(dy x rstd acc?) --- */

static void run_layernorm_dw(struct tn_kernel *k)
{
    struct cpu_vec_columns all = {
        .dy = k->in[0].data,
        .x = k->in[1].data,
        .mean = k->in[2].data,
        .rstd = k->in[3].data,
        .rows = k->i[NORM_ROWS],
        .dw = k->out[0].data,
        .db = k->out[1].data,
    };
    cpu_sum_columns(k, &all, k->i[NORM_COLS], k->in[1].dtype, cpu_optional(k, 4) != NULL,
                    k->cpu->vec->layernorm_dw[k->i[NORM_DTYPE]]);
}

static uint64_t workspace_layernorm_dw(struct cpu *cpu, const struct tn_op_desc *op)
{
    return cpu_columns_workspace(cpu_rows(op->in[1]), cpu_cols(op->in[1]), 2);
}

static tn_status bind_layernorm_dw(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 4, 6, 2), "its inputs and outputs of ops.def");
    const struct tn_tensor *x = &k->in[1], *accw = cpu_optional(k, 4), *accb = cpu_optional(k, 5);
    CPU_REQUIRE(cpu_is_activation(x) && cpu_alike(&k->in[0], x), "dy and x in f32 or bf16");
    set_sizes(k, x, 0);
    CPU_REQUIRE(cpu_is(&k->in[2], TN_F32, k->i[NORM_ROWS]) && cpu_is(&k->in[3], TN_F32, k->i[NORM_ROWS]),
                "f32 statistics, one a row");
    CPU_REQUIRE(cpu_is(&k->out[0], TN_F32, k->i[NORM_COLS]) && cpu_is(&k->out[1], TN_F32, k->i[NORM_COLS]),
                "f32 gradients, one a column");
    CPU_REQUIRE(!accw == !accb, "both accumulators or neither");
    CPU_REQUIRE(!accw || (accw->data == k->out[0].data && accb->data == k->out[1].data), "accumulators in place");
    k->run = run_layernorm_dw;
    return TN_OK;
}

static void run_rmsnorm_dw(struct tn_kernel *k)
{
    struct cpu_vec_columns all = {
        .dy = k->in[0].data,
        .x = k->in[1].data,
        .rstd = k->in[2].data,
        .rows = k->i[NORM_ROWS],
        .dw = k->out[0].data,
    };
    cpu_sum_columns(k, &all, k->i[NORM_COLS], k->in[1].dtype, cpu_optional(k, 3) != NULL,
                    k->cpu->vec->rmsnorm_dw[k->i[NORM_DTYPE]]);
}

static tn_status bind_rmsnorm_dw(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    int64_t group = cpu_attr_i(op, "group", 0);
    CPU_REQUIRE(cpu_arity(k, 3, 4, 1), "its inputs and outputs of ops.def");
    const struct tn_tensor *x = &k->in[1], *acc = cpu_optional(k, 3);
    CPU_REQUIRE(cpu_is_activation(x) && cpu_alike(&k->in[0], x), "dy and x in f32 or bf16");
    CPU_REQUIRE(group_fits(x, group), "a group that divides the last dimension");
    set_sizes(k, x, group);
    CPU_REQUIRE(cpu_is(&k->in[2], TN_F32, k->i[NORM_ROWS]), "f32 statistics, one a row");
    CPU_REQUIRE(cpu_is(&k->out[0], TN_F32, k->i[NORM_COLS]), "f32 gradients, one a column");
    CPU_REQUIRE(!acc || acc->data == k->out[0].data, "an accumulator in place");
    k->run = run_rmsnorm_dw;
    return TN_OK;
}

static uint64_t workspace_rmsnorm_dw(struct cpu *cpu, const struct tn_op_desc *op)
{
    int64_t group = cpu_attr_i(op, "group", 0), cols = group > 0 ? group : cpu_cols(op->in[1]);
    return cpu_columns_workspace(cols ? cpu_elements(op->in[1]) / cols : 0, cols, 1);
}

const struct cpu_row cpu_norm_rows[] = {
    { TN_OP_LAYERNORM, bind_layernorm, NULL },
    { TN_OP_RMSNORM, bind_rmsnorm, NULL },
    { TN_OP_ADD_LAYERNORM, bind_layernorm, NULL },
    { TN_OP_ADD_RMSNORM, bind_rmsnorm, NULL },
    { TN_OP_LAYERNORM_DX, bind_dx, NULL },
    { TN_OP_RMSNORM_DX, bind_dx, NULL },
    { TN_OP_LAYERNORM_DW, bind_layernorm_dw, workspace_layernorm_dw },
    { TN_OP_RMSNORM_DW, bind_rmsnorm_dw, workspace_rmsnorm_dw },
    { TN_OP_NONE, NULL, NULL },
};
