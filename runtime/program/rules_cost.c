/* Cost rules: FLOPs and bytes of one op with this rank's shapes; bytes of communication are those sent per rank. */
#include "program/rules.h"

#include <math.h>

#include <tenon/plan.h>

static double local_bytes(const struct tn_program *p, tn_value v)
{
    return v ? (double)tn_local_elements(p, v) * tn_dtype_bytes(p->values[v].dtype) : 0;
}

void cost_free(const struct tn_program *p, tn_op op, double *flops, double *bytes)
{
    *flops = *bytes = 0;
}

/* Each tensor once; a handful of FLOPs an element do not matter. */
void cost_memory(const struct tn_program *p, tn_op op, double *flops, double *bytes)
{
    const struct tn_op_data *o = &p->ops[op];
    *flops = *bytes = 0;
    for (uint32_t i = 0; i < o->n_in; i++)
        *bytes += local_bytes(p, o->in[i]);
    for (uint32_t i = 0; i < o->n_out; i++) {
        *bytes += local_bytes(p, o->out[i]);
        *flops += o->out[i] ? (double)tn_local_elements(p, o->out[i]) : 0;
    }
}

/* 2 T K N: in all three forms the elements of two inputs and the output multiply to (T K N)^2. */
void cost_linear(const struct tn_program *p, tn_op op, double *flops, double *bytes)
{
    cost_memory(p, op, flops, bytes);
    const struct tn_op_data *o = &p->ops[op];
    double a = (double)tn_local_elements(p, o->in[0]), b = (double)tn_local_elements(p, o->in[1]);
    double y = (double)tn_local_elements(p, o->out[0]);
    *flops = 2 * sqrt(a * b * y);
}

/* Forward: two products over the pairs that see each other, half the square if causal; backward: five. */
void cost_attention(const struct tn_program *p, tn_op op, double *flops, double *bytes)
{
    cost_memory(p, op, flops, bytes);
    uint32_t opcode = tn_rule_opcode(p, op);
    int backward = opcode == TN_OP_ATTENTION_DX || opcode == TN_OP_ATTENTION_BLOCK_DX;
    tn_value k = p->ops[op].in[backward ? 2 : 1], q = p->ops[op].in[backward ? 1 : 0];
    int32_t rank;
    int64_t shape[TN_MAX_DIMS];
    tn_local(p, k, p->coord, &rank, shape, NULL);
    double pairs = (double)tn_local_elements(p, q) * (double)shape[1]; /* B Sq Sk H D */
    pairs *= tn_attr_f(p, op, "share", tn_attr_i(p, op, "causal", 0) ? 0.5 : 1.0);
    *flops = (backward ? 5 : 2) * 2 * pairs;
}

void cost_cross_entropy(const struct tn_program *p, tn_op op, double *flops, double *bytes)
{
    cost_memory(p, op, flops, bytes);
    *flops = 4 * (double)tn_local_elements(p, p->ops[op].in[0]);
}

/* Bytes each rank sends (and receives) by the best algorithm: facts on bus bandwidth. */
void cost_comm(const struct tn_program *p, tn_op op, double *flops, double *bytes)
{
    const struct tn_op_data *o = &p->ops[op];
    int32_t axis = (int32_t)tn_attr_i(p, op, "axis", -1);
    double n = axis >= 0 && axis < p->mesh->n_axes ? p->mesh->axis[axis].size : 1, share = (n - 1) / n;
    double in = o->n_in ? local_bytes(p, o->in[0]) : 0, out = o->n_out ? local_bytes(p, o->out[0]) : 0;
    *flops = 0;
    switch (tn_rule_opcode(p, op)) {
    case TN_OP_STAGE_SUM:
    case TN_OP_ALL_REDUCE: *bytes = 2 * share * in; break;
    case TN_OP_ALL_GATHER: *bytes = share * out; break;
    case TN_OP_REDUCE_SCATTER: *bytes = share * in; break;
    case TN_OP_ALL_TO_ALL: *bytes = share * in; break;
    default: *bytes = in > out ? in : out; break;
    }
}

/* The larger of the times for its FLOPs and its bytes. */
double tn_program_seconds(const struct tn_program *p, tn_op op)
{
    double flops, bytes;
    const struct tn_op_kind *kind = op && op <= p->n_ops ? tn_op_kind(p->ops[op].opcode) : NULL;
    if (!kind || !kind->cost)
        return 0;
    kind->cost(p, op, &flops, &bytes);
    return fmax(flops / TN_NOMINAL_FLOPS, bytes / TN_NOMINAL_BYTES);
}
