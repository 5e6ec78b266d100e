/* What bind functions ask of an op's tensors, and how the families cut work among threads. */
#ifndef TENON_CPU_CHECK_H
#define TENON_CPU_CHECK_H

#include <stdbool.h>

#include "device.h"
#include "vec.h"

/* Leaves a bind function unless `condition` holds; `what` says what the op takes. */
#define CPU_REQUIRE(condition, what)                                                                          \
    do {                                                                                                      \
        if (!(condition))                                                                                     \
            return cpu->host->fail(cpu->host, TN_UNSUPPORTED, "%s: the cpu kernel takes %s", op->name, what); \
    } while (0)

static inline bool cpu_arity(const struct tn_kernel *kernel, uint32_t min_in, uint32_t max_in, uint32_t n_out)
{
    if (kernel->n_in < min_in || kernel->n_in > max_in || kernel->n_out != n_out)
        return false;
    for (uint32_t n = 0; n < min_in; n++) {
        if (!kernel->in[n].dtype)
            return false;
    }
    return true;
}

/* An optional input; NULL where it is absent. */
static inline const struct tn_tensor *cpu_optional(const struct tn_kernel *kernel, uint32_t index)
{
    return index < kernel->n_in && kernel->in[index].dtype ? &kernel->in[index] : NULL;
}

static inline bool cpu_is_activation(const struct tn_tensor *tensor)
{
    return tensor->dtype == TN_F32 || tensor->dtype == TN_BF16;
}

static inline bool cpu_is(const struct tn_tensor *tensor, uint32_t dtype, int64_t elements)
{
    return tensor->dtype == dtype && cpu_elements(tensor) == elements;
}

/* Same dtype and number of elements. */
static inline bool cpu_alike(const struct tn_tensor *a, const struct tn_tensor *b)
{
    return cpu_is(a, b->dtype, cpu_elements(b));
}

static inline int64_t cpu_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
#define TN_X(name, number, text, bytes) \
    case number: return bytes;
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    default: return 0;
    }
}

/* The address of element `index`. */
static inline void *cpu_at(const struct tn_tensor *tensor, int64_t index)
{
    return (char *)tensor->data + index * cpu_dtype_bytes(tensor->dtype);
}

/* Threads worth waking for an op on so many elements. */
static inline int cpu_team(const struct cpu *cpu, int64_t elements)
{
    return elements >= 32768 ? cpu->threads : 1;
}

/* Elementwise work is cut in blocks of so many elements; the length of the one at `at`. */
enum { CPU_BLOCK = 4096 };

static inline int64_t cpu_block(int64_t n, int64_t at)
{
    return n - at < CPU_BLOCK ? n - at : CPU_BLOCK;
}

#endif
