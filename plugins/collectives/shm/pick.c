/* Chooses the kernels of reduce.c for this processor. */
#include "shm.h"

extern const struct shm_kernels shm_kernels_portable;
#ifdef SHM_X86
extern const struct shm_kernels shm_kernels_avx2, shm_kernels_avx512;
#endif

const struct shm_kernels *shm_kernels_pick(void)
{
#ifdef SHM_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &shm_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &shm_kernels_avx2;
#endif
    return &shm_kernels_portable;
}

int shm_can_reduce(uint32_t dtype)
{
    return dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F64 || dtype == TN_I32 || dtype == TN_I64;
}
