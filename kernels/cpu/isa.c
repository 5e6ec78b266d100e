/* What the processor can do and how many threads a rank should use. */
#include <sched.h>
#include <stdlib.h>

#include "device.h"

int cpu_isa_detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return CPU_BASELINE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return CPU_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? CPU_AVX512_BF16 : CPU_AVX512;
#else
    return CPU_BASELINE;
#endif
}

const char *cpu_isa_name(int isa)
{
    static const char *const names[CPU_ISA_COUNT] = { "baseline", "avx2", "avx512", "avx512_bf16" };
    return isa >= 0 && isa < CPU_ISA_COUNT ? names[isa] : "?";
}

int cpu_threads_auto(void)
{
    cpu_set_t mask;
    int cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
    const char *text = getenv("LOCAL_WORLD_SIZE");
    int ranks = text ? atoi(text) : 1;
    int threads = ranks > 1 ? cores / ranks : cores;
    return threads > 1 ? threads : 1;
}
