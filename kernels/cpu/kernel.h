/* Kernel: one op bound to its tensors on the cpu device.
 *
 * A family of ops is one file that exports a table of rows; device.c joins the tables. bind
 * checks dtypes and shapes, reads attributes, and leaves a `run` that neither allocates nor
 * decides. Elementwise work is done by functions of vec.h, compiled once for each CPU level
 * and chosen when the device is created. */
#ifndef TENON_CPU_KERNEL_H
#define TENON_CPU_KERNEL_H

#include <string.h>

#include <tenon/device.h>
#include <tenon/ops.h>

enum { CPU_MOST_TENSORS = 8 };

struct cpu; /* device.h: the instance (threads, vec table, oneDNN engine and stream) */

struct tn_kernel {
    void (*run)(struct tn_kernel *kernel);
    void (*release)(struct tn_kernel *kernel); /* frees `state`; NULL: nothing to free */
    struct cpu *cpu;
    const char *name;
    uint32_t n_in, n_out;
    struct tn_tensor *in, *out; /* copies; an absent optional one has data == NULL and dtype == 0 */
    void *scratch;
    void *state;  /* the family's own */
    int64_t i[4]; /* attributes and sizes, as the family likes */
    double f[4];
};

struct cpu_row {
    uint32_t opcode;
    /* Fills run (and state); TN_UNSUPPORTED with host->fail for dtypes or shapes it cannot take. With
     * data == NULL in the tensors (supports, workspace) it must still decide, and must not touch data. */
    tn_status (*bind)(struct cpu *cpu, const struct tn_op_desc *op, struct tn_kernel *kernel);
    /* Scratch bytes; NULL: none. */
    uint64_t (*workspace)(struct cpu *cpu, const struct tn_op_desc *op);
};

static inline const struct tn_attr *cpu_attr(const struct tn_op_desc *op, const char *key)
{
    for (uint32_t n = 0; n < op->n_attrs; n++) {
        const struct tn_attr *attr = (const struct tn_attr *)((const char *)op->attrs + (size_t)n * op->attr_stride);
        if (strcmp(attr->key, key) == 0)
            return attr;
    }
    return NULL;
}

static inline int64_t cpu_attr_i(const struct tn_op_desc *op, const char *key, int64_t missing)
{
    const struct tn_attr *attr = cpu_attr(op, key);
    return attr ? (attr->is_float ? (int64_t)attr->f : attr->i) : missing;
}

static inline double cpu_attr_f(const struct tn_op_desc *op, const char *key, double missing)
{
    const struct tn_attr *attr = cpu_attr(op, key);
    return attr ? (attr->is_float ? attr->f : (double)attr->i) : missing;
}

static inline int64_t cpu_elements(const struct tn_tensor *tensor)
{
    int64_t n = 1;
    for (int32_t d = 0; d < tensor->rank; d++)
        n *= tensor->shape[d];
    return n;
}

/* Elements of the last dimension, and the number of such rows. */
static inline int64_t cpu_cols(const struct tn_tensor *tensor)
{
    return tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
}

static inline int64_t cpu_rows(const struct tn_tensor *tensor)
{
    int64_t cols = cpu_cols(tensor);
    return cols ? cpu_elements(tensor) / cols : 0;
}

/* The families' tables, ended by opcode TN_OP_NONE. */
extern const struct cpu_row cpu_linear_rows[];     /* linear.c: linear, linear_dx, linear_dw (oneDNN) */
extern const struct cpu_row cpu_attention_rows[];  /* attention.c: attention, attention_dx */
extern const struct cpu_row cpu_norm_rows[];       /* norm.c: layernorm*, rmsnorm*, add_layernorm, add_rmsnorm */
extern const struct cpu_row cpu_activation_rows[]; /* activation.c: bias_add, bias_dw, gelu*, bias_gelu*, swiglu*, rope,
                                                      add, add_n, cast, dropout */
extern const struct cpu_row cpu_embedding_rows[];  /* embedding.c: embedding, embedding_dw */
extern const struct cpu_row cpu_loss_rows[];       /* loss.c: cross_entropy, cross_entropy_dx, ce_max, ce_sum, ce_loss,
                                                      count_targets, grad_seed, scale_by */
extern const struct cpu_row cpu_optimizer_rows[];  /* optimizer.c: accumulate, sync, sumsq, clip, adamw, sgd */
extern const struct cpu_row cpu_layout_rows[];     /* layout.c: slice, unslice, merge_blocks, split_blocks */

#endif
