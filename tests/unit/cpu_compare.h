/* One op on the cpu device against its reference version, at every instruction level of this processor. */
#ifndef TENON_TESTS_CPU_COMPARE_H
#define TENON_TESTS_CPU_COMPARE_H

#include "cpu_harness.h"

/* Calls body with a fresh harness for each instruction level, for 1 and 2 threads, and for f32 and bf16. */
void compare_everywhere(void (*body)(struct harness *h, uint32_t dtype));
/* The same for f32 alone. */
void compare_everywhere_f32(void (*body)(struct harness *h));

/* Runs the reference into f64 tensors and then the op, whose outputs may be memory of its inputs, and compares every
 * element. `tolerance` is for f32 outputs; bf16 ones may be off by their rounding besides. */
void compare(struct harness *h, uint32_t opcode, const struct tn_tensor *const *in, uint32_t n_in,
             const struct tn_tensor *const *out, uint32_t n_out, const struct tn_attr *attrs, uint32_t n_attrs,
             double tolerance);
#define COMPARE(h, opcode, in, out, attrs, tolerance) \
    compare(h, opcode, in, HARNESS_COUNT(in), out, HARNESS_COUNT(out), attrs, HARNESS_COUNT(attrs), tolerance)

/* Runs the reference alone, on outputs that are its own. */
#define REFERENCE(opcode, in, out, attrs) \
    reference(opcode, in, HARNESS_COUNT(in), out, HARNESS_COUNT(out), attrs, HARNESS_COUNT(attrs))
void reference(uint32_t opcode, const struct tn_tensor *const *in, uint32_t n_in, const struct tn_tensor *const *out,
               uint32_t n_out, const struct tn_attr *attrs, uint32_t n_attrs);

/* A filled tensor: harness_tensor and harness_fill with scale 1, and a copy of one in another dtype. */
struct tn_tensor *filled(struct harness *h, uint32_t dtype, uint64_t seed, int rows, int cols);
struct tn_tensor *copied(struct harness *h, uint32_t dtype, const struct tn_tensor *from);

/* Fails unless dx[i] is the slope, along x[i], of sum(dy y), where `forward` writes y from x (all f64). */
void check_slopes(struct tn_tensor *x, const struct tn_tensor *dx, double (*objective)(void *arg), void *arg,
                  double tolerance);

/* For tests of one thread against two: same bytes. */
void check_same_bytes(const struct tn_tensor *a, const struct tn_tensor *b);

#endif
