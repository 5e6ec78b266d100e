/* Layout on the cpu device: this rank's part of a tensor, the reverse, and blocks joined or cut along a dimension.
 *
 * All are copies of boxes: `outer` pieces of `bytes` bytes each, with a stride on either side. What to copy is read
 * from the descriptors, so any dtype will do. */
#include "check.h"

struct box {
    char *to;
    const char *from;
    int64_t outer, bytes, to_stride, from_stride; /* strides in bytes */
};

enum { COPY_BYTES = 65536 }; /* that a thread copies at a time of one long piece */

static void copy_piece(const struct cpu *cpu, char *to, const char *from, int64_t bytes)
{
#pragma omp parallel for num_threads(cpu_team(cpu, bytes / 4)) schedule(static)
    for (int64_t at = 0; at < bytes; at += COPY_BYTES)
        memcpy(to + at, from + at, (size_t)(bytes - at < COPY_BYTES ? bytes - at : COPY_BYTES));
}

static void copy_box(const struct cpu *cpu, const struct box *box)
{
    if (box->outer == 1) {
        copy_piece(cpu, box->to, box->from, box->bytes);
        return;
    }
#pragma omp parallel for num_threads(cpu_team(cpu, box->outer * box->bytes / 4)) schedule(static)
    for (int64_t n = 0; n < box->outer; n++)
        memcpy(box->to + n * box->to_stride, box->from + n * box->from_stride, (size_t)box->bytes);
}

static int64_t product(const struct tn_tensor *tensor, int32_t from, int32_t to)
{
    int64_t n = 1;
    for (int32_t d = from; d < to; d++)
        n *= tensor->shape[d];
    return n;
}

static int64_t tensor_bytes(const struct tn_tensor *tensor)
{
    return cpu_elements(tensor) * cpu_dtype_bytes(tensor->dtype);
}

/* --- slice(x) -> y and unslice(x) -> y: `part` is a run of `whole` along dim, or of its elements with dim -1 --- */

enum { LAYOUT_DIM, LAYOUT_START };

/* The part's box inside the whole, its `to` on the part's side. */
static struct box part_box(const struct tn_kernel *k, const struct tn_tensor *whole, const struct tn_tensor *part)
{
    int32_t dim = (int32_t)k->i[LAYOUT_DIM];
    int64_t start = k->i[LAYOUT_START], bytes = cpu_dtype_bytes(whole->dtype);
    if (dim < 0) {
        int64_t left = cpu_elements(whole) - start, n = cpu_elements(part);
        n = left < n ? (left > 0 ? left : 0) : n; /* the last parts hold padding */
        return (struct box){ part->data, (char *)whole->data + (n ? start * bytes : 0), 1, n * bytes, 0, 0 };
    }
    int64_t inner = product(part, dim + 1, part->rank) * bytes;
    return (struct box){
        .to = part->data,
        .from = (char *)whole->data + start * inner,
        .outer = product(part, 0, dim),
        .bytes = part->shape[dim] * inner,
        .to_stride = part->shape[dim] * inner,
        .from_stride = whole->shape[dim] * inner,
    };
}

static void run_slice(struct tn_kernel *k)
{
    const struct tn_tensor *whole = &k->in[0], *part = &k->out[0];
    struct box box = part_box(k, whole, part);
    copy_box(k->cpu, &box);
    if (k->i[LAYOUT_DIM] < 0)
        memset(box.to + box.bytes, 0, (size_t)(tensor_bytes(part) - box.bytes));
}

static void run_unslice(struct tn_kernel *k)
{
    const struct tn_tensor *part = &k->in[0], *whole = &k->out[0];
    struct box box = part_box(k, whole, part);
    struct box reverse = { (char *)box.from, box.to, box.outer, box.bytes, box.from_stride, box.to_stride };
    memset(whole->data, 0, (size_t)tensor_bytes(whole));
    copy_box(k->cpu, &reverse);
}

/* The part must be the whole but for its run along dim, which must lie inside. */
static tn_status check_part(struct cpu *cpu, const struct tn_op_desc *op, const struct tn_tensor *whole,
                            const struct tn_tensor *part, int64_t dim, int64_t start)
{
    CPU_REQUIRE(dim < whole->rank && part->rank == whole->rank, "a dim of its tensors, both of one rank");
    for (int32_t d = 0; d < whole->rank; d++)
        CPU_REQUIRE(d == dim || part->shape[d] == whole->shape[d], "tensors that differ along dim only");
    CPU_REQUIRE(start >= 0 && start + part->shape[dim] <= whole->shape[dim], "a part that lies in the whole");
    return TN_OK;
}

static tn_status bind_part(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    bool slice = op->opcode == TN_OP_SLICE;
    int64_t dim = cpu_attr_i(op, "dim", 0);
    CPU_REQUIRE(cpu_arity(k, 1, 1, 1) && k->in[0].dtype == k->out[0].dtype, "x and y of one dtype");
    CPU_REQUIRE(cpu_dtype_bytes(k->in[0].dtype) > 0, "a dtype of value.h");
    const struct tn_tensor *whole = slice ? &k->in[0] : &k->out[0], *part = slice ? &k->out[0] : &k->in[0];
    k->run = slice ? run_slice : run_unslice;
    k->i[LAYOUT_DIM] = dim;
    if (dim < 0) {
        CPU_REQUIRE(part->rank == 1 && part->offset[0] >= 0, "a flat part in one dimension");
        k->i[LAYOUT_START] = part->offset[0]; /* not coord parts of this size: the last one may be shorter */
        return TN_OK;
    }
    CPU_REQUIRE(dim < whole->rank, "a dim of its tensors");
    k->i[LAYOUT_START] = part->offset[dim] - whole->offset[dim];
    return check_part(cpu, op, whole, part, dim, k->i[LAYOUT_START]);
}

/* --- merge_blocks(x) -> y and split_blocks(x) -> y: `parts` dense blocks, and them joined along dim --- */

enum { BLOCKS_DIM, BLOCKS_PARTS, BLOCKS_RUNS /* of a block along dim: 2 in zigzag order */ };

/* A run of a block, its `to` on the joined side. */
static struct box block_box(const struct tn_kernel *k, const struct tn_tensor *joined, const struct tn_tensor *dense,
                            int64_t run)
{
    int32_t dim = (int32_t)k->i[BLOCKS_DIM];
    int64_t parts = k->i[BLOCKS_PARTS], runs = k->i[BLOCKS_RUNS], part = run / runs, half = run % runs;
    int64_t outer = product(joined, 0, dim), row = product(joined, dim, joined->rank) * cpu_dtype_bytes(joined->dtype);
    int64_t piece = row / parts, bytes = piece / runs, at = half ? 2 * parts - 1 - part : part;
    return (struct box){
        .to = (char *)joined->data + at * bytes,
        .from = (char *)dense->data + part * outer * piece + half * bytes,
        .outer = outer,
        .bytes = bytes,
        .to_stride = row,
        .from_stride = piece,
    };
}

static void run_merge_blocks(struct tn_kernel *k)
{
    for (int64_t run = 0; run < k->i[BLOCKS_PARTS] * k->i[BLOCKS_RUNS]; run++) {
        struct box box = block_box(k, &k->out[0], &k->in[0], run);
        copy_box(k->cpu, &box);
    }
}

static void run_split_blocks(struct tn_kernel *k)
{
    for (int64_t run = 0; run < k->i[BLOCKS_PARTS] * k->i[BLOCKS_RUNS]; run++) {
        struct box box = block_box(k, &k->in[0], &k->out[0], run);
        struct box reverse = { (char *)box.from, box.to, box.outer, box.bytes, box.from_stride, box.to_stride };
        copy_box(k->cpu, &reverse);
    }
}

static tn_status bind_blocks(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *k)
{
    bool merge = op->opcode == TN_OP_MERGE_BLOCKS;
    int64_t dim = cpu_attr_i(op, "dim", 0), parts = cpu_attr_i(op, "parts", 1);
    int64_t runs = cpu_attr_i(op, "order", TN_ORDER_PLAIN) == TN_ORDER_ZIGZAG ? 2 : 1;
    CPU_REQUIRE(cpu_arity(k, 1, 1, 1) && cpu_alike(&k->in[0], &k->out[0]), "x and y of one dtype and size");
    CPU_REQUIRE(cpu_dtype_bytes(k->in[0].dtype) > 0, "a dtype of value.h");
    const struct tn_tensor *joined = merge ? &k->out[0] : &k->in[0];
    CPU_REQUIRE(dim >= 0 && dim < joined->rank, "a dim of its tensors");
    CPU_REQUIRE(parts > 0 && joined->shape[dim] % (parts * runs) == 0, "parts that divide the dimension");
    k->i[BLOCKS_DIM] = dim;
    k->i[BLOCKS_PARTS] = parts;
    k->i[BLOCKS_RUNS] = runs;
    k->run = merge ? run_merge_blocks : run_split_blocks;
    return TN_OK;
}

const struct cpu_row cpu_layout_rows[] = {
    { TN_OP_SLICE, bind_part, NULL },
    { TN_OP_UNSLICE, bind_part, NULL },
    { TN_OP_MERGE_BLOCKS, bind_blocks, NULL },
    { TN_OP_SPLIT_BLOCKS, bind_blocks, NULL },
    { TN_OP_NONE, NULL, NULL },
};
