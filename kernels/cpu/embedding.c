/* Embedding on the cpu device: rows of a table by id, and the gradient of the table.
 *
 * A rank may own a part of the rows: the descriptor's offset says which, and ids of other parts give zeros (or add
 * nothing). In the gradient threads share columns, so that equal ids never meet and tokens are summed in order. */
#include "check.h"

/* --- forward: embedding(ids w) -> y --- */

static void copy_rows(struct tn_kernel *k, int64_t token)
{
    const struct tn_tensor *w = &k->in[1], *y = &k->out[0];
    const struct cpu_vec *vec = k->cpu->vec;
    int64_t cols = cpu_cols(w), row = ((const int32_t *)k->in[0].data)[token] - w->offset[0];
    void *to = cpu_at(y, token * cols);
    if (row < 0 || row >= w->shape[0])
        memset(to, 0, (size_t)(cols * cpu_dtype_bytes(y->dtype)));
    else if (w->dtype == y->dtype)
        memcpy(to, cpu_at(w, row * cols), (size_t)(cols * cpu_dtype_bytes(y->dtype)));
    else if (w->dtype == TN_F32)
        vec->from_f32[CPU_VEC_BF16](to, cpu_at(w, row * cols), cols);
    else
        vec->to_f32[CPU_VEC_BF16](to, cpu_at(w, row * cols), cols);
}

static void run_embedding(struct tn_kernel *k)
{
    int64_t tokens = cpu_elements(&k->in[0]);
#pragma omp parallel for num_threads(cpu_team(k->cpu, cpu_elements(&k->out[0]))) schedule(static)
    for (int64_t token = 0; token < tokens; token++)
        copy_rows(k, token);
}

static tn_status bind_embedding(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 2, 2, 1), "ids, w and y");
    const struct tn_tensor *ids = &k->in[0], *w = &k->in[1], *y = &k->out[0];
    CPU_REQUIRE(ids->dtype == TN_I32, "i32 ids");
    CPU_REQUIRE(cpu_is_activation(w) && cpu_is_activation(y), "w and y in f32 or bf16");
    CPU_REQUIRE(w->rank == 2, "w with rows and columns");
    CPU_REQUIRE(cpu_elements(y) == cpu_elements(ids) * cpu_cols(w), "y with a row of w for each id");
    k->run = run_embedding;
    return TN_OK;
}

/* --- gradient: embedding_dw(ids dy acc?) -> dw --- */

static void add_columns(struct tn_kernel *k, int64_t from, int64_t n)
{
    const struct tn_tensor *dw = &k->out[0];
    const int32_t *ids = k->in[0].data;
    int64_t tokens = cpu_elements(&k->in[0]), cols = cpu_cols(dw), dtype = cpu_vec_dtype(k->in[1].dtype);
    for (int64_t token = 0; token < tokens; token++) {
        int64_t row = ids[token] - dw->offset[0];
        if (row < 0 || row >= dw->shape[0])
            continue;
        float *to = (float *)dw->data + row * cols + from;
        k->cpu->vec->accumulate[dtype](to, to, cpu_at(&k->in[1], token * cols + from), n);
    }
}

static void zero(struct tn_kernel *k)
{
    float *dw = k->out[0].data;
    int64_t n = cpu_elements(&k->out[0]);
#pragma omp parallel for num_threads(cpu_team(k->cpu, n)) schedule(static)
    for (int64_t at = 0; at < n; at += CPU_BLOCK)
        memset(dw + at, 0, (size_t)cpu_block(n, at) * sizeof *dw);
}

static void run_embedding_dw(struct tn_kernel *k)
{
    int64_t n = cpu_elements(&k->in[1]), cols = cpu_cols(&k->out[0]);
    int team = cpu_team(k->cpu, n);
    int64_t share = (cols + team - 1) / team, run = (share + 15) / 16 * 16;
    if (!cpu_optional(k, 2))
        zero(k);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t at = 0; at < cols; at += run)
        add_columns(k, at, cols - at < run ? cols - at : run);
}

static tn_status bind_embedding_dw(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    CPU_REQUIRE(cpu_arity(k, 2, 3, 1), "ids, dy, acc and dw");
    const struct tn_tensor *ids = &k->in[0], *dy = &k->in[1], *acc = cpu_optional(k, 2), *dw = &k->out[0];
    CPU_REQUIRE(ids->dtype == TN_I32, "i32 ids");
    CPU_REQUIRE(cpu_is_activation(dy), "dy in f32 or bf16");
    CPU_REQUIRE(dw->dtype == TN_F32 && dw->rank == 2, "dw in f32 with rows and columns");
    CPU_REQUIRE(cpu_elements(dy) == cpu_elements(ids) * cpu_cols(dw), "dy with a row of dw for each id");
    CPU_REQUIRE(!acc || (acc->data == dw->data && cpu_alike(acc, dw)), "an accumulator in place");
    k->run = run_embedding_dw;
    return TN_OK;
}

const struct cpu_row cpu_embedding_rows[] = {
    { TN_OP_EMBEDDING, bind_embedding, NULL },
    { TN_OP_EMBEDDING_DW, bind_embedding_dw, NULL },
    { TN_OP_NONE, NULL, NULL },
};
