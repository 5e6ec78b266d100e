/* Chooses the kernels of reduce.c for this processor. */
#include "backend.h"

extern const struct ucx_kernels ucx_kernels_portable;
#ifdef UCX_X86
extern const struct ucx_kernels ucx_kernels_avx2, ucx_kernels_avx512;
#endif

const struct ucx_kernels *ucx_kernels_pick(void)
{
#ifdef UCX_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &ucx_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &ucx_kernels_avx2;
#endif
    return &ucx_kernels_portable;
}

int ucx_can_reduce(uint32_t dtype)
{
    return dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F64 || dtype == TN_I32 || dtype == TN_I64;
}
