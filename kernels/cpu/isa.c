/* What the processor can do and how many ranks share it. */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include "device.h"

#if defined(__x86_64__)
/* Whether there are tile registers for bf16 and Linux lets this process use them: they are large, so it asks first. */
static int has_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_BF16) && (d & AMX_TILE) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

int cpu_isa_detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return CPU_BASELINE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return CPU_AVX2;
    if (!__builtin_cpu_supports("avx512bf16"))
        return CPU_AVX512;
    return has_tiles() ? CPU_AMX : CPU_AVX512_BF16;
#else
    return CPU_BASELINE;
#endif
}

const char *cpu_isa_name(int isa)
{
    static const char *const names[CPU_ISA_COUNT] = { "baseline", "avx2", "avx512", "avx512_bf16", "amx" };
    return isa >= 0 && isa < CPU_ISA_COUNT ? names[isa] : "?";
}

int cpu_ranks_here(const struct cpu *cpu)
{
    const struct tn_facts_api *facts = cpu->host->get_api(cpu->host, "tn.facts/1");
    const char *text = getenv("LOCAL_WORLD_SIZE");
    int64_t ranks = text ? atoi(text) : facts ? facts->get(cpu->host, "world", 1) : 1;
    return ranks > 1 ? (int)ranks : 1;
}

int cpu_threads_auto(const struct cpu *cpu)
{
    cpu_set_t mask;
    int cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
    int threads = cores / cpu_ranks_here(cpu);
    return threads > 1 ? threads : 1;
}
