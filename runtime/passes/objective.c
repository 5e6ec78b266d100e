/* Objective: the one loss normaliser (autodiff.h says what it requires and establishes).
 *
 *     prologue: loss.targets = count_targets(labels.step)     all micro-batches, all ranks
 *               loss.seed = grad_seed(loss.targets)           1 / targets
 *     forward:  loss.total' = accumulate(loss, loss.total)
 *     step:     loss.mean = scale_by(loss.total', loss.seed)
 *
 * Backward starts from loss.seed, so gradients are divided once, whatever the micro-batches and the layout. */
#include "passes/autodiff.h"

void tn_objective(struct tn_program *p, int64_t micro_batches)
{
    tn_value loss = 0, labels = tn_value_find(p, "labels");
    for (tn_value v = 1; v <= p->n_values; v++)
        if (p->values[v].flags & TN_VALUE_LOSS)
            loss = v;
    if (!loss || !labels || p->values[labels].rank != 2) {
        tn_program_error(p, 0, "the model builds no loss from an input labels [batch, sequence]");
        return;
    }
    const int64_t *shape = p->values[labels].shape;
    tn_value step = tn_value_new(p, TN_KIND_INPUT, "labels.step", TN_I32, 3,
                                 (int64_t[TN_MAX_DIMS]){ micro_batches, shape[0], shape[1], 1, 1, 1 });
    p->values[step].dims[0] = "micro";
    p->values[step].dims[1] = "batch";
    p->values[step].dims[2] = "sequence";

    p->at_region = TN_REGION_PROLOGUE;
    p->insert_before = p->first;
    tn_value targets = tn_op_new(p, TN_OP_COUNT_TARGETS, "loss.targets", &step, 1, NULL, 0);
    tn_value seed = tn_op_new(p, TN_OP_GRAD_SEED, "loss.seed", &targets, 1, NULL, 0);
    p->insert_before = 0;

    static const int64_t scalar[TN_MAX_DIMS] = { 1, 1, 1, 1, 1, 1 };
    tn_value total = tn_value_new(p, TN_KIND_ACCUMULATOR, "loss.total", TN_F32, 0, scalar);
    p->at_region = TN_REGION_FORWARD;
    total = tn_op_new(p, TN_OP_ACCUMULATE, "loss.total.sum", (tn_value[]){ loss, total }, 2, NULL, 0);
    p->values[total].kind = TN_KIND_ACCUMULATOR;

    p->at_region = TN_REGION_STEP;
    tn_value mean = tn_op_new(p, TN_OP_SCALE_BY, "loss.mean", (tn_value[]){ total, seed }, 2, NULL, 0);
    p->values[mean].flags |= TN_VALUE_OUTPUT;
}
