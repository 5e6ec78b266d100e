/* Matrix products: linear, linear_dx, linear_dw, on the tensors as they lie, whatever is transposed.
 *
 * With AVX-512 our own core (product.c) does those of more than a few rows; all else is one oneDNN matmul primitive.
 * docs/decisions/cpu-gemm.md has the figures. Accumulation is part of the product, so dw is read and written once.
 * Where oneDNN has no bf16 products (no AVX-512), bf16 operands are widened to f32 in scratch. Scratch comes from the
 * workspace; the core allocates nothing, oneDNN the few small blocks of its argument table. */
#include <limits.h>

#include <oneapi/dnnl/dnnl.h>

#include "check.h"
#include "product.h"

/* How it is done: as it lies, or widened; and where things are in the scratch. */
struct plan {
    int own;                    /* by our own core; nothing else of this holds then but bytes */
    struct cpu_product product; /* that the primitive computes: f32 where widened */
    int widened, narrow_c;      /* a and b are widened; so is c, and narrowed afterwards */
    uint64_t b_at, c_at, primitive_at, bytes;
};

/* kernel->state */
struct gemm {
    struct cpu_parts *parts; /* or else: */
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, c, scratch;
    dnnl_exec_arg_t args[5];
    int n_args;
    struct plan plan;
    const void *a_data, *b_data;
    void *c_data;
};

/* --- what an op asks for --- */

static tn_status refuse(struct cpu *cpu, const struct tn_op_desc *op, const char *why)
{
    return cpu->host->fail(cpu->host, TN_UNSUPPORTED, "cpu: %s: %s", op->name, why);
}

static tn_status check_operand(struct cpu *cpu, const struct tn_op_desc *op, const struct tn_tensor *tensor,
                               uint32_t dtype)
{
    if (!tensor || tensor->rank < 1)
        return refuse(cpu, op, "a tensor is missing or has no dimensions");
    if (tensor->dtype != dtype)
        return refuse(cpu, op,
                      "the dtypes do not match; x, w and their gradients are all f32 or all bf16, "
                      "bias and dw f32");
    return TN_OK;
}

/* Rows and columns of the activation `x` and the matrix `w`, whose sides are `in` and `out`. */
static tn_status check_matrix(struct cpu *cpu, const struct tn_op_desc *op, const struct tn_tensor *w, int64_t in,
                              int64_t out, int trans)
{
    if (w->rank != 2)
        return refuse(cpu, op, "w is not a matrix");
    int64_t w_in = w->shape[trans ? 1 : 0], w_out = w->shape[trans ? 0 : 1];
    if (w_in != in || w_out != out)
        return cpu->host->fail(cpu->host, TN_UNSUPPORTED,
                               "cpu: %s: w joins %lld with %lld elements, the activations have %lld and %lld", op->name,
                               (long long)w_in, (long long)w_out, (long long)in, (long long)out);
    return TN_OK;
}

/* The sides of all three ops: x [t, in], y or dy [t, out], w [in, out] or [out, in] with trans. */
struct sides {
    const struct tn_tensor *x, *y, *w, *bias, *acc;
    uint32_t opcode;
    int trans;
};

static int sides_of(const struct tn_op_desc *op, struct sides *s)
{
    if (op->n_in < 2 || op->n_out != 1)
        return 0;
    const struct tn_tensor *third = op->n_in > 2 ? op->in[2] : NULL;
    *s = (struct sides){ .opcode = op->opcode, .trans = cpu_attr_i(op, "trans", 0) != 0 };
    switch (op->opcode) {
    case TN_OP_LINEAR: s->x = op->in[0], s->w = op->in[1], s->bias = third, s->y = op->out[0]; break;
    case TN_OP_LINEAR_DX: s->y = op->in[0], s->w = op->in[1], s->acc = third, s->x = op->out[0]; break;
    default: s->x = op->in[0], s->y = op->in[1], s->acc = third, s->w = op->out[0]; break;
    }
    return s->x && s->y && s->w;
}

static struct cpu_product product_of(const struct sides *s)
{
    int64_t t = cpu_rows(s->x), in = cpu_cols(s->x), out = cpu_cols(s->y);
    struct cpu_product p = {
        .dtype = s->x->dtype, .c_dtype = s->x->dtype, .has_bias = s->bias != NULL, .accumulate = s->acc != NULL
    };
    if (s->opcode == TN_OP_LINEAR) {
        p.m = t, p.n = out, p.k = in, p.b_trans = s->trans;
    } else if (s->opcode == TN_OP_LINEAR_DX) {
        p.m = t, p.n = in, p.k = out, p.b_trans = !s->trans;
    } else {
        p.m = s->trans ? out : in, p.n = s->trans ? in : out, p.k = t, p.a_trans = 1, p.c_dtype = TN_F32;
    }
    return p;
}

static tn_status read_product(struct cpu *cpu, const struct tn_op_desc *op, struct cpu_product *p)
{
    struct sides s;
    if (!sides_of(op, &s))
        return refuse(cpu, op, "a tensor is missing");
    uint32_t dtype = s.x->dtype;
    if (dtype != TN_F32 && dtype != TN_BF16)
        return refuse(cpu, op, "activations are f32 or bf16");
    uint32_t w_dtype = op->opcode == TN_OP_LINEAR_DW ? TN_F32 : dtype;
    tn_status status = check_operand(cpu, op, s.x, dtype);
    if (status == TN_OK)
        status = check_operand(cpu, op, s.y, dtype);
    if (status == TN_OK)
        status = check_operand(cpu, op, s.w, w_dtype);
    if (status == TN_OK && s.bias)
        status = check_operand(cpu, op, s.bias, TN_F32);
    if (status == TN_OK && s.acc)
        status = check_operand(cpu, op, s.acc, op->out[0]->dtype);
    if (status != TN_OK)
        return status;
    if (cpu_rows(s.x) != cpu_rows(s.y) || (s.acc && cpu_elements(s.acc) != cpu_elements(op->out[0])) ||
        (s.bias && cpu_elements(s.bias) != cpu_cols(s.y)))
        return refuse(cpu, op, "the shapes do not match");
    *p = product_of(&s);
    return check_matrix(cpu, op, s.w, cpu_cols(s.x), cpu_cols(s.y), s.trans);
}

/* --- oneDNN --- */

static dnnl_data_type_t dnnl_dtype(uint32_t dtype)
{
    return dtype == TN_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_memory_desc_t matrix_desc(int64_t rows, int64_t cols, int transposed, uint32_t dtype)
{
    dnnl_memory_desc_t desc;
    dnnl_dims_t dims = { rows, cols };
    dnnl_dims_t strides = { transposed ? 1 : cols, transposed ? rows : 1 };
    dnnl_status_t status = dnnl_memory_desc_init_by_strides(&desc, 2, dims, dnnl_dtype(dtype), strides);
    if (status != dnnl_success)
        memset(&desc, 0, sizeof desc); /* refused by the primitive descriptor */
    return desc;
}

static dnnl_primitive_attr_t attributes(int accumulate)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    if (dnnl_primitive_attr_create(&attr) != dnnl_success)
        return NULL;
    int ok = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success;
    if (ok && accumulate) {
        ok = dnnl_post_ops_create(&ops) == dnnl_success && dnnl_post_ops_append_sum(ops, 1.0f) == dnnl_success &&
             dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success;
        dnnl_post_ops_destroy(ops);
    }
    if (!ok) {
        dnnl_primitive_attr_destroy(attr);
        return NULL;
    }
    return attr;
}

/* NULL if oneDNN refuses it. */
static dnnl_primitive_desc_t describe(struct cpu *cpu, const struct cpu_product *p)
{
    dnnl_memory_desc_t a = matrix_desc(p->m, p->k, p->a_trans, p->dtype);
    dnnl_memory_desc_t b = matrix_desc(p->k, p->n, p->b_trans, p->dtype);
    dnnl_memory_desc_t c = matrix_desc(p->m, p->n, 0, p->c_dtype);
    dnnl_memory_desc_t bias = matrix_desc(1, p->n, 0, TN_F32);
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t primitive = NULL;
    dnnl_primitive_attr_t attr = attributes(p->accumulate);
    if (!attr)
        return NULL;
    if (dnnl_matmul_desc_init(&desc, &a, &b, p->has_bias ? &bias : NULL, &c) != dnnl_success ||
        dnnl_primitive_desc_create(&primitive, &desc, attr, cpu->engine, NULL) != dnnl_success)
        primitive = NULL;
    dnnl_primitive_attr_destroy(attr);
    return primitive;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int is_empty(const struct cpu_product *p)
{
    return p->m == 0 || p->n == 0 || p->k == 0;
}

static void widen_plan(struct plan *plan)
{
    struct cpu_product *p = &plan->product;
    plan->widened = 1;
    plan->narrow_c = p->c_dtype == TN_BF16;
    p->dtype = p->c_dtype = TN_F32;
    plan->b_at = aligned((uint64_t)(p->m * p->k) * 4);
    plan->c_at = plan->b_at + aligned((uint64_t)(p->k * p->n) * 4);
    plan->primitive_at = plan->c_at + (plan->narrow_c ? aligned((uint64_t)(p->m * p->n) * 4) : 0);
}

/* Fills *plan and gives oneDNN's descriptor, which the caller destroys; NULL if there is none, or nothing to do. */
static dnnl_primitive_desc_t make_plan(struct cpu *cpu, const struct cpu_product *p, struct plan *plan)
{
    *plan = (struct plan){ .product = *p };
    if (is_empty(p))
        return NULL;
    plan->own = cpu_product_takes(cpu, p);
    if (plan->own) {
        plan->bytes = cpu_product_scratch(cpu, p);
        return NULL;
    }
    dnnl_primitive_desc_t desc = describe(cpu, p);
    if (!desc && p->dtype == TN_BF16) {
        widen_plan(plan);
        desc = describe(cpu, &plan->product);
    }
    if (desc)
        plan->bytes = plan->primitive_at +
                      dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    return desc;
}

static void release(struct tn_kernel *kernel)
{
    struct gemm *g = kernel->state;
    if (!g)
        return;
    cpu_parts_destroy(kernel->cpu, g->parts);
    dnnl_memory_destroy(g->a);
    dnnl_memory_destroy(g->b);
    dnnl_memory_destroy(g->bias);
    dnnl_memory_destroy(g->c);
    dnnl_memory_destroy(g->scratch);
    dnnl_primitive_destroy(g->primitive);
    kernel->cpu->host->release(kernel->cpu->host, g);
}

static int add_arg(struct gemm *g, int arg, dnnl_memory_t *memory, const dnnl_memory_desc_t *desc, dnnl_engine_t engine,
                   void *data)
{
    if (dnnl_memory_create(memory, desc, engine, data) != dnnl_success)
        return 0;
    g->args[g->n_args++] = (dnnl_exec_arg_t){ arg, *memory };
    return 1;
}

static int prepare(struct gemm *g, struct tn_kernel *kernel, const_dnnl_primitive_desc_t desc)
{
    const struct plan *plan = &g->plan;
    dnnl_engine_t engine = kernel->cpu->engine;
    const dnnl_memory_desc_t *a = dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0);
    const dnnl_memory_desc_t *b = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *bias = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 1);
    const dnnl_memory_desc_t *c = dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    char *memory = kernel->scratch;
    void *a_data = plan->widened ? memory : (void *)(uintptr_t)g->a_data;
    void *b_data = plan->widened ? memory + plan->b_at : (void *)(uintptr_t)g->b_data;
    void *c_data = plan->narrow_c ? memory + plan->c_at : g->c_data;
    return dnnl_primitive_create(&g->primitive, desc) == dnnl_success &&
           add_arg(g, DNNL_ARG_SRC, &g->a, a, engine, a_data) &&
           add_arg(g, DNNL_ARG_WEIGHTS, &g->b, b, engine, b_data) &&
           (!plan->product.has_bias || add_arg(g, DNNL_ARG_BIAS, &g->bias, bias, engine, kernel->in[2].data)) &&
           add_arg(g, DNNL_ARG_DST, &g->c, c, engine, c_data) &&
           add_arg(g, DNNL_ARG_SCRATCHPAD, &g->scratch, scratch, engine, memory + plan->primitive_at);
}

/* --- the kernel --- */

static void run(struct tn_kernel *kernel)
{
    struct gemm *g = kernel->state;
    dnnl_status_t status = dnnl_primitive_execute(g->primitive, kernel->cpu->stream, g->n_args, g->args);
    if (status == dnnl_success)
        status = dnnl_stream_wait(kernel->cpu->stream);
    if (status != dnnl_success)
        kernel->cpu->host->log(kernel->cpu->host, TN_LOG_ERROR, "oneDNN failed (%d) in %s", (int)status, kernel->name);
}

static void run_own(struct tn_kernel *kernel)
{
    const struct gemm *g = kernel->state;
    cpu_parts_run(g->parts);
}

static void widen(const struct cpu *cpu, char *to, const void *from, int64_t n)
{
#pragma omp parallel for num_threads(cpu_team(cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK)
        cpu->vec->to_f32[CPU_VEC_BF16]((float *)(void *)to + at, (const uint16_t *)from + at, cpu_block(n, at));
}

static void narrow(const struct cpu *cpu, void *to, const char *from, int64_t n)
{
#pragma omp parallel for num_threads(cpu_team(cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK)
        cpu->vec->from_f32[CPU_VEC_BF16]((uint16_t *)to + at, (const float *)(const void *)from + at, cpu_block(n, at));
}

static void run_widened(struct tn_kernel *kernel)
{
    const struct gemm *g = kernel->state;
    const struct plan *plan = &g->plan;
    const struct cpu_product *p = &plan->product;
    char *scratch = kernel->scratch;
    widen(kernel->cpu, scratch, g->a_data, p->m * p->k);
    widen(kernel->cpu, scratch + plan->b_at, g->b_data, p->k * p->n);
    if (plan->narrow_c && p->accumulate)
        widen(kernel->cpu, scratch + plan->c_at, g->c_data, p->m * p->n);
    run(kernel);
    if (plan->narrow_c)
        narrow(kernel->cpu, g->c_data, scratch + plan->c_at, p->m * p->n);
}

/* A product over nothing: zero, or what was there. */
static void run_empty(struct tn_kernel *kernel)
{
    struct gemm *g = kernel->state;
    const struct cpu_product *p = &g->plan.product;
    size_t bytes = (size_t)(p->m * p->n) * (p->c_dtype == TN_BF16 ? 2 : 4);
    if (!p->accumulate && bytes)
        memset(g->c_data, 0, bytes);
}

static int prepare_own(struct gemm *g, struct tn_kernel *kernel)
{
    const struct cpu_product_data data = { g->a_data, g->b_data, g->plan.product.has_bias ? kernel->in[2].data : NULL,
                                           g->c_data, kernel->scratch };
    kernel->run = run_own;
    g->parts = cpu_parts_create(kernel->cpu, &g->plan.product, &data);
    return g->parts != NULL;
}

static tn_status bind_gemm(struct cpu *cpu, struct tn_kernel *kernel, const struct plan *plan, int swapped,
                           const_dnnl_primitive_desc_t desc)
{
    struct gemm *g = cpu->host->alloc(cpu->host, sizeof *g);
    if (!g)
        return cpu->host->fail(cpu->host, TN_NO_MEMORY, "no memory for a kernel of %s", kernel->name);
    memset(g, 0, sizeof *g);
    g->plan = *plan;
    g->a_data = kernel->in[swapped ? 1 : 0].data;
    g->b_data = kernel->in[swapped ? 0 : 1].data;
    g->c_data = kernel->out[0].data;
    kernel->state = g;
    kernel->release = release;
    kernel->run = !desc ? run_empty : plan->widened ? run_widened : run;
    if (plan->own && !prepare_own(g, kernel))
        return cpu->host->fail(cpu->host, TN_NO_MEMORY, "no memory for a kernel of %s", kernel->name);
    if (desc && !prepare(g, kernel, desc))
        return cpu->host->fail(cpu->host, TN_ERROR, "cpu: %s: oneDNN cannot make the product", kernel->name);
    return TN_OK;
}

static tn_status bind(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *kernel)
{
    struct cpu_product p;
    struct plan plan;
    tn_status status = read_product(cpu, op, &p);
    if (status != TN_OK)
        return status;
    if (p.k == 0 && p.has_bias)
        return refuse(cpu, op, "a product over no elements with a bias");
    dnnl_primitive_desc_t desc = make_plan(cpu, &p, &plan);
    /* dw = dy^T x with trans: the operands change places. */
    int swapped = op->opcode == TN_OP_LINEAR_DW && cpu_attr_i(op, "trans", 0) != 0;
    if (!desc && !plan.own && !is_empty(&p))
        status = refuse(cpu, op, "oneDNN has no matmul for these dtypes and shapes");
    else if (kernel->out[0].data || is_empty(&p)) /* not only asked: in `supports` no code is made */
        status = bind_gemm(cpu, kernel, &plan, swapped, desc);
    dnnl_primitive_desc_destroy(desc);
    return status;
}

static uint64_t workspace(struct cpu *cpu, const struct tn_op_desc *op)
{
    struct cpu_product p;
    struct plan plan;
    if (read_product(cpu, op, &p) != TN_OK)
        return 0;
    dnnl_primitive_desc_destroy(make_plan(cpu, &p, &plan));
    return plan.bytes;
}

const struct cpu_row cpu_linear_rows[] = {
    { TN_OP_LINEAR, bind, workspace },
    { TN_OP_LINEAR_DX, bind, workspace },
    { TN_OP_LINEAR_DW, bind, workspace },
    { TN_OP_NONE, NULL, NULL },
};
