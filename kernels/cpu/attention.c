/* Attention: checks the op, cuts it into units of work, and runs them on the instance's threads.
 *
 * The arithmetic is in attention_core.c, of which the table for the instance's instruction level is taken. Which thread
 * runs a unit never changes a result: units share nothing they write, and sums over units are taken in order. */
#include <math.h>
#include <omp.h>

#include "attention.h"
#include "device.h"

enum { UNITS_A_THREAD = 4, PARTS_A_THREAD = 2 };

extern const struct cpu_attention_level cpu_attention_baseline;
#if defined(__x86_64__)
extern const struct cpu_attention_level cpu_attention_avx2, cpu_attention_avx512, cpu_attention_avx512_bf16,
    cpu_attention_amx;
#endif

static const struct cpu_attention_level *level_of(const struct cpu *cpu)
{
    switch (cpu->isa) {
#if defined(__x86_64__)
    case CPU_AVX2: return &cpu_attention_avx2;
    case CPU_AVX512: return &cpu_attention_avx512;
    case CPU_AVX512_BF16: return &cpu_attention_avx512_bf16;
    case CPU_AMX: return &cpu_attention_amx;
#endif
    }
    return &cpu_attention_baseline;
}

/* kernel->state */
struct plan {
    struct cpu_attention a;
    const struct cpu_attention_level *level;
    size_t thread_bytes, sums_bytes, sums_at; /* in the scratch */
};

/* --- what the op asks for --- */

static tn_status refuse(struct cpu *cpu, const struct tn_op_desc *op, const char *why)
{
    return cpu->host->fail(cpu->host, TN_UNSUPPORTED, "cpu: %s: %s", op->name, why);
}

/* in: q k v [o] of the same dtype; [do] is like q. */
static int alike(const struct tn_tensor *a, const struct tn_tensor *b)
{
    if (!a || !b || a->dtype != b->dtype || a->rank != b->rank)
        return 0;
    for (int32_t d = 0; d < a->rank; d++) {
        if (a->shape[d] != b->shape[d])
            return 0;
    }
    return 1;
}

static int is_lse(const struct tn_tensor *lse, const struct cpu_attention *a)
{
    return lse && lse->dtype == TN_F32 && cpu_elements(lse) == a->batch * a->q_length * a->heads;
}

/* An input; NULL where it is absent. */
static const struct tn_tensor *input(const struct tn_op_desc *op, uint32_t n)
{
    return n < op->n_in ? op->in[n] : NULL;
}

static tn_status read_shape(struct cpu *cpu, const struct tn_op_desc *op, const struct tn_tensor *q,
                            const struct tn_tensor *k, const struct tn_tensor *v, struct cpu_attention *a)
{
    if (!q || !k || !v || (q->dtype != TN_F32 && q->dtype != TN_BF16) || k->dtype != q->dtype)
        return refuse(cpu, op, "q, k and v are all f32 or all bf16");
    if (q->rank != 3 || !alike(k, v) || k->rank != 3 || k->shape[0] != q->shape[0])
        return refuse(cpu, op, "q, k and v are [batch, sequence, heads * head_dim], k and v of the same shape");
    int64_t head_dim = cpu_attr_i(op, "head_dim", 0);
    if (head_dim < 1 || head_dim > CPU_ATTENTION_HEAD || q->shape[2] % head_dim || k->shape[2] % head_dim)
        return cpu->host->fail(
            cpu->host, TN_UNSUPPORTED, "cpu: %s: head_dim = %lld does not divide %lld and %lld, or is not 1 to %d",
            op->name, (long long)head_dim, (long long)q->shape[2], (long long)k->shape[2], (int)CPU_ATTENTION_HEAD);
    *a = (struct cpu_attention){
        .batch = q->shape[0],
        .q_length = q->shape[1],
        .k_length = k->shape[1],
        .heads = (int)(q->shape[2] / head_dim),
        .kv_heads = (int)(k->shape[2] / head_dim),
        .head_dim = (int)head_dim,
        .causal = cpu_attr_i(op, "causal", 1) != 0,
        .bf16 = q->dtype == TN_BF16,
        .block = op->opcode == TN_OP_ATTENTION_BLOCK || op->opcode == TN_OP_ATTENTION_BLOCK_DX,
        .scale = (float)cpu_attr_f(op, "scale", 1.0 / sqrt((double)head_dim)),
    };
    if (a->kv_heads == 0 ? a->heads != 0 : a->heads % a->kv_heads != 0)
        return cpu->host->fail(cpu->host, TN_UNSUPPORTED, "cpu: %s: %d key heads do not divide %d query heads",
                               op->name, a->kv_heads, a->heads);
    if (a->causal && !a->block && a->q_length != a->k_length)
        return refuse(cpu, op, "causal attention has as many queries as keys");
    if (a->k_length == 0 && a->q_length != 0)
        return refuse(cpu, op, "there are no keys");
    return TN_OK;
}

static int is_index(const struct tn_tensor *x, int64_t elements)
{
    return x && x->dtype == TN_I32 && cpu_elements(x) == elements;
}

/* start, and for a block qi and ki before it, from input `first` on. */
static tn_status read_indices(struct cpu *cpu, const struct tn_op_desc *op, uint32_t first, struct cpu_attention *a)
{
    const struct tn_tensor *start = input(op, a->block ? first + 2 : first);
    if (start && (!a->causal || !is_index(start, a->batch * a->q_length)))
        return refuse(cpu, op, "start is i32 [batch, sequence], and the attention causal");
    a->start = start ? start->data : NULL;
    if (!a->block)
        return TN_OK;
    if (!is_index(input(op, first), a->q_length) || !is_index(input(op, first + 1), a->k_length))
        return refuse(cpu, op, "qi and ki are i32, as many as queries and keys");
    a->qi = input(op, first)->data;
    a->ki = input(op, first + 1)->data;
    return TN_OK;
}

/* An output: like the input whose gradient or result it is, but f32 where the op is a block. */
static int is_result(const struct tn_tensor *result, const struct tn_tensor *like, const struct cpu_attention *a)
{
    if (!a->block)
        return alike(result, like);
    return result && result->dtype == TN_F32 && cpu_elements(result) == cpu_elements(like);
}

static tn_status read_forward(struct cpu *cpu, const struct tn_op_desc *op, struct cpu_attention *a)
{
    if (op->n_in < 3 || op->n_out != 2)
        return refuse(cpu, op, "takes q, k, v and gives o, lse");
    tn_status status = read_shape(cpu, op, op->in[0], op->in[1], op->in[2], a);
    if (status == TN_OK)
        status = read_indices(cpu, op, 3, a);
    if (status != TN_OK)
        return status;
    if (!is_result(op->out[0], op->in[0], a) || !is_lse(op->out[1], a))
        return refuse(cpu, op, "o is like q, and lse f32 [batch, sequence, heads]");
    const struct tn_tensor *o = a->block ? input(op, 6) : NULL, *lse = a->block ? input(op, 7) : NULL;
    if (!o != !lse || (o && (!is_result(o, op->in[0], a) || !is_lse(lse, a))))
        return refuse(cpu, op, "continues from both o and lse, of the shape of its outputs");
    a->q = op->in[0]->data;
    a->k = op->in[1]->data;
    a->v = op->in[2]->data;
    a->o = op->out[0]->data;
    a->lse = op->out[1]->data;
    a->o_given = o ? o->data : NULL;
    a->lse_given = lse ? lse->data : NULL;
    return TN_OK;
}

static tn_status read_backward(struct cpu *cpu, const struct tn_op_desc *op, struct cpu_attention *a)
{
    if (op->n_in < 6 || op->n_out != 3)
        return refuse(cpu, op, "takes do, q, k, v, o, lse and gives dq, dk, dv");
    tn_status status = read_shape(cpu, op, op->in[1], op->in[2], op->in[3], a);
    if (status == TN_OK)
        status = read_indices(cpu, op, 6, a);
    if (status != TN_OK)
        return status;
    if (!alike(op->in[0], op->in[1]) || !alike(op->in[4], op->in[1]) || !is_lse(op->in[5], a))
        return refuse(cpu, op, "do and o are like q, and lse f32 [batch, sequence, heads]");
    const float **given[] = { &a->dq_given, &a->dk_given, &a->dv_given };
    for (uint32_t n = 0; n < 3; n++) {
        const struct tn_tensor *so_far = a->block ? input(op, 9 + n) : NULL;
        if (!is_result(op->out[n], op->in[1 + n], a) || (so_far && !is_result(so_far, op->in[1 + n], a)))
            return refuse(cpu, op, "dq, dk, dv are like q, k, v");
        *given[n] = so_far ? so_far->data : NULL;
    }
    a->d_o = op->in[0]->data;
    a->q = op->in[1]->data;
    a->k = op->in[2]->data;
    a->v = op->in[3]->data;
    a->o = op->in[4]->data;
    a->lse = op->in[5]->data;
    a->dq = op->out[0]->data;
    a->dk = op->out[1]->data;
    a->dv = op->out[2]->data;
    return TN_OK;
}

/* --- the plan --- */

static int64_t share(int64_t wanted, int64_t have, int64_t most)
{
    int64_t each = have ? (wanted + have - 1) / have : 1;
    each = each < most ? each : most;
    return each > 1 ? each : 1;
}

static int is_backward(const struct tn_op_desc *op)
{
    return op->opcode == TN_OP_ATTENTION_DX || op->opcode == TN_OP_ATTENTION_BLOCK_DX;
}

static tn_status make_plan(struct cpu *cpu, const struct tn_op_desc *op, struct plan *plan)
{
    int backward = is_backward(op);
    struct cpu_attention *a = &plan->a;
    tn_status status = backward ? read_backward(cpu, op, a) : read_forward(cpu, op, a);
    if (status != TN_OK)
        return status;
    int64_t tiles = cpu_attention_tiles(a->q_length), group = a->kv_heads ? a->heads / a->kv_heads : 0;
    a->chunks = (int)share((int64_t)UNITS_A_THREAD * cpu->threads, a->batch * a->heads, tiles);
    a->parts = (int)share((int64_t)PARTS_A_THREAD * cpu->threads, a->batch * a->kv_heads, group * tiles);
    if (cpu->threads == 1)
        a->chunks = a->parts = 1;
    plan->level = level_of(cpu);
    plan->thread_bytes = backward ? plan->level->backward_bytes(a) : plan->level->forward_bytes(a);
    plan->sums_bytes = backward ? plan->level->sums_bytes(a) : 0;
    plan->sums_at = plan->thread_bytes * (size_t)cpu->threads;
    return TN_OK;
}

/* One sum a thread, written out at once, or one a part until all are done. */
static int64_t sums_count(const struct cpu *cpu, const struct cpu_attention *a)
{
    return a->parts == 1 ? cpu->threads : a->batch * a->kv_heads * a->parts;
}

static uint64_t workspace(struct cpu *cpu, const struct tn_op_desc *op)
{
    struct plan plan;
    if (make_plan(cpu, op, &plan) != TN_OK)
        return 0;
    return plan.sums_at + plan.sums_bytes * (uint64_t)sums_count(cpu, &plan.a);
}

/* --- the kernels --- */

/* Units are claimed, so that a thread with cheap ones takes more. (A dynamic schedule would allocate where there is
 * but one thread.) */
static int64_t claim(int64_t *next)
{
    return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
}

/* No query of a block sees a key of it, and there is something so far, which then stays as it is. */
static int adds_nothing(const struct cpu_attention *a, int given)
{
    if (!a->block || !a->causal || !given || a->q_length == 0)
        return 0;
    struct cpu_attention_span q = cpu_attention_span(a->qi, a->q_length), k = cpu_attention_span(a->ki, a->k_length);
    return k.least > q.most || (a->start && k.most < cpu_attention_span(a->start, a->batch * a->q_length).least);
}

static void run_forward(struct tn_kernel *kernel)
{
    const struct plan *plan = kernel->state;
    const struct cpu_attention *a = &plan->a;
    if (adds_nothing(a, a->o_given == a->o && a->lse_given == a->lse))
        return;
    int64_t units = a->batch * a->heads * a->chunks, next = 0;
    char *scratch = kernel->scratch;
#pragma omp parallel num_threads(kernel->cpu->threads)
    {
        struct cpu_attention_packed packed = { -1, 0 };
        char *own = scratch + plan->thread_bytes * (size_t)omp_get_thread_num();
        for (int64_t unit; (unit = claim(&next)) < units;)
            plan->level->forward(a, unit, own, &packed);
    }
}

static void finish_head(const struct plan *plan, int64_t head, char *sums)
{
    for (int64_t tile = 0; tile < cpu_attention_tiles(plan->a.k_length); tile++)
        plan->level->finish(&plan->a, head, tile, sums, 0);
}

static void run_backward(struct tn_kernel *kernel)
{
    const struct plan *plan = kernel->state;
    const struct cpu_attention *a = &plan->a;
    if (adds_nothing(a, a->dq_given == a->dq && a->dk_given == a->dk && a->dv_given == a->dv))
        return;
    int64_t heads = a->batch * a->kv_heads, units = heads * a->parts, tiles = cpu_attention_tiles(a->k_length),
            next = 0;
    char *scratch = kernel->scratch, *sums = scratch + plan->sums_at;
#pragma omp parallel num_threads(kernel->cpu->threads)
    {
        struct cpu_attention_packed packed = { -1, 0 };
        size_t thread = (size_t)omp_get_thread_num();
        char *own = scratch + plan->thread_bytes * thread;
        for (int64_t unit; (unit = claim(&next)) < units;) {
            char *sum = sums + plan->sums_bytes * (a->parts == 1 ? thread : (size_t)unit);
            plan->level->backward(a, unit, own, sum, &packed);
            if (a->parts == 1)
                finish_head(plan, unit, sum);
        }
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t n = 0; n < (a->parts == 1 ? 0 : heads * tiles); n++)
            plan->level->finish(a, n / tiles, n % tiles, sums + plan->sums_bytes * (size_t)(n / tiles * a->parts),
                                plan->sums_bytes);
    }
}

static void release(struct tn_kernel *kernel)
{
    kernel->cpu->host->release(kernel->cpu->host, kernel->state);
}

static tn_status bind(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *kernel)
{
    struct plan plan;
    tn_status status = make_plan(cpu, op, &plan);
    if (status != TN_OK)
        return status;
    struct plan *state = cpu->host->alloc(cpu->host, sizeof *state);
    if (!state)
        return cpu->host->fail(cpu->host, TN_NO_MEMORY, "no memory for a kernel of %s", op->name);
    *state = plan;
    kernel->state = state;
    kernel->release = release;
    kernel->run = is_backward(op) ? run_backward : run_forward;
    return TN_OK;
}

const struct cpu_row cpu_attention_rows[] = {
    { TN_OP_ATTENTION, bind, workspace },
    { TN_OP_ATTENTION_DX, bind, workspace },
    { TN_OP_ATTENTION_BLOCK, bind, workspace },
    { TN_OP_ATTENTION_BLOCK_DX, bind, workspace },
    { TN_OP_NONE, NULL, NULL },
};
