/* Every op of norm.c, activation.c, embedding.c, loss.c, optimizer.c and layout.c, written as ops.def says it: plain
 * loops in f64, one element after another. The unit tests compare the kernels with these; nothing else uses them. */
#ifndef TENON_CPU_REFERENCE_H
#define TENON_CPU_REFERENCE_H

#include "kernel.h"

/* Inputs may be of any dtype but f16. Outputs are written in their own dtype (f64 keeps all), may not share memory
 * with inputs, and are whole: an accumulator is read from its input. TN_UNSUPPORTED for other opcodes. */
tn_status cpu_reference_run(const struct tn_op_desc *op);

/* gelu, and its slope. */
double cpu_reference_gelu(double x, int tanh_form);
double cpu_reference_gelu_slope(double x, int tanh_form);

#endif
