/* Autodiff and the passes around it: forward program -> training program, still global shapes.
 *
 *     precision   params and activations in the compute dtype
 *     objective   the mean loss over all target tokens, and the seed of the backward pass
 *     autodiff    the backward region: a gradient accumulator for every param
 *     optimizer   the step region: gradients in their final type, norm, clip, update
 *
 * Each is one file with one entry. */
#ifndef TENON_AUTODIFF_H
#define TENON_AUTODIFF_H

#include "program/ops.h"
#include "config/settings.h"

/* Requires: a forward program in f32. Establishes: linears and embeddings compute in `dtype`; each param of a linear
 * is cast once, in the prologue. Params, statistics and the loss stay f32. */
void tn_precision(struct tn_program *p, uint32_t dtype);

/* Requires: one value flagged TN_VALUE_LOSS. Establishes: input labels.step [micro_batches, batch, sequence], the
 * prologue values loss.targets and loss.seed (1 / target tokens of the whole global batch), the accumulator
 * loss.total and, in step, the output loss.mean. */
void tn_objective(struct tn_program *p, int64_t micro_batches);

/* Requires: tn_objective. Establishes: for each param p that the loss depends on, an accumulator grad.p (what earlier
 * micro-batches left) and the backward ops that add to it. */
void tn_autodiff(struct tn_program *p);

/* Requires: tn_autodiff. Establishes: inputs lr and t, states, the step region's updates, the output grad.clip. */
void tn_optimizer(struct tn_program *p, const struct tn_settings *settings);

/* By value, in the program's arena: the last one of the chain of in-place updates that starts at it, within the
 * micro-batch regions; itself where nothing updates it. */
tn_value *tn_accumulated(struct tn_program *p);

/* For the gradient rules (rules_grad.c): */
struct tn_autodiff {
    tn_value *grad; /* by forward value: its gradient so far, 0 none yet */
    uint8_t *needs; /* by value: 1 if a param lies behind it */
};
/* Adds a backward op named "<op>.<suffix>". */
tn_value tn_grad_op(struct tn_program *p, tn_op of, const char *suffix, uint32_t opcode, const tn_value *in,
                    uint32_t n_in, const struct tn_attr *attrs, uint32_t n_attrs);
/* dv is one more term of v's gradient. */
void tn_grad_add(struct tn_program *p, struct tn_autodiff *ad, tn_value v, tn_value dv);
/* The accumulator so far of the param behind w (through its cast), as the last input of the next op; then the op's
 * output takes its place. */
tn_value tn_grad_acc(struct tn_program *p, struct tn_autodiff *ad, tn_value w);
void tn_grad_set(struct tn_program *p, struct tn_autodiff *ad, tn_value w, tn_value dw);

#endif
