/* Runs one op at a time on the cpu device table, in process: a host table with two options, tensors with guard bytes
 * around them, and supports / workspace / bind / launch in one call. Failures of the harness itself end the test. */
#ifndef TENON_TESTS_CPU_HARNESS_H
#define TENON_TESTS_CPU_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#include <tenon/device.h>
#include <tenon/ops.h>

struct harness {
    struct tn_host host;
    const struct tn_device *device;
    void *self;
    int64_t threads, isa; /* what get_int answers; isa: 0 auto, 1 baseline, 2 avx2, 3 avx512, 4 avx512_bf16, 5 amx */
    char message[1024];   /* of the last fail, "" without one */
    int64_t live_blocks;  /* host->alloc less host->release */
    struct harness_block *blocks;
};

/* threads 0: auto. Skips the test (cmocka's skip) where the processor lacks the isa. */
void harness_open(struct harness *h, int64_t threads, int64_t isa);
/* Checks every guard, frees all tensors, destroys the device and checks that it released all memory. */
void harness_close(struct harness *h);
/* Checks every guard and frees all tensors. */
void harness_clear(struct harness *h);

/* A zeroed tensor, owned by the harness, and its dimensions as ints: harness_tensor(h, TN_F32, 2, 3, 4). */
struct tn_tensor *harness_tensor(struct harness *h, uint32_t dtype, int rank, ...);
struct tn_tensor *harness_like(struct harness *h, uint32_t dtype, const struct tn_tensor *like);
int64_t harness_elements(const struct tn_tensor *tensor);
double harness_get(const struct tn_tensor *tensor, int64_t index);
void harness_set(struct tn_tensor *tensor, int64_t index, double value);
/* Uniform in [-scale, scale], the same for the same seed; rounded to the dtype. */
void harness_fill(struct tn_tensor *tensor, uint64_t seed, double scale);

/* One op: supports, workspace, bind with exact scratch, launch, destroy. NULL tensors are absent ones. */
tn_status harness_run(struct harness *h, uint32_t opcode, const struct tn_tensor *const *in, uint32_t n_in,
                      const struct tn_tensor *const *out, uint32_t n_out, const struct tn_attr *attrs,
                      uint32_t n_attrs);
/* The same, for arrays: HARNESS_RUN(h, TN_OP_ADD, HARNESS_T(a, b), HARNESS_T(y), HARNESS_A(TN_ATTR_I("k", 1))). */
#define HARNESS_T(...) ((const struct tn_tensor *const[]){ __VA_ARGS__ })
#define HARNESS_A(...) ((const struct tn_attr[]){ __VA_ARGS__ })
#define HARNESS_COUNT(array) ((uint32_t)(sizeof(array) / sizeof(array)[0]))
#define HARNESS_RUN(h, opcode, in, out, attrs) \
    harness_run(h, opcode, in, HARNESS_COUNT(in), out, HARNESS_COUNT(out), attrs, HARNESS_COUNT(attrs))
/* A kernel bound and kept, for tests of launch itself; scratch belongs to the harness. */
tn_status harness_bind(struct harness *h, uint32_t opcode, const struct tn_tensor *const *in, uint32_t n_in,
                       const struct tn_tensor *const *out, uint32_t n_out, const struct tn_attr *attrs,
                       uint32_t n_attrs, struct tn_kernel **kernel);

/* Fails unless |got - want| <= tolerance * (1 + |want|); names the index. */
void harness_check(const struct tn_tensor *got, int64_t index, double want, double tolerance);

#endif
