/* Vec: the tables of all instruction levels; see vec.h. */
#include "vec.h"

#include <assert.h>

#include "device.h"

extern const struct cpu_vec cpu_vec_baseline;
#if defined(__x86_64__)
extern const struct cpu_vec cpu_vec_avx2, cpu_vec_avx512, cpu_vec_avx512_bf16, cpu_vec_amx;
#endif

const struct cpu_vec *cpu_vec_pick(int isa)
{
    static const struct cpu_vec *const tables[CPU_ISA_COUNT] = {
        [CPU_BASELINE] = &cpu_vec_baseline,
#if defined(__x86_64__)
        [CPU_AVX2] = &cpu_vec_avx2,
        [CPU_AVX512] = &cpu_vec_avx512,
        [CPU_AVX512_BF16] = &cpu_vec_avx512_bf16,
        [CPU_AMX] = &cpu_vec_amx,
#endif
    };
    assert(isa >= 0 && isa < CPU_ISA_COUNT && tables[isa]);
    return tables[isa];
}
