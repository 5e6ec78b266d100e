/* Philox4x32-10 (Salmon et al. 2011), a counter-based generator: the same key and counter give the same numbers as
 * runtime/base/philox.h, which kernels may not include. */
#ifndef TENON_CPU_PHILOX_H
#define TENON_CPU_PHILOX_H

#include <stdint.h>

static inline void cpu_philox(uint64_t key, uint64_t hi, uint64_t lo, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Dropout's key and high counter: one stream of draws for each (seed, stream, micro, step), by global element / 4. */
static inline uint64_t cpu_dropout_key(uint64_t seed, uint64_t stream)
{
    uint64_t z = seed + 0x9E3779B97F4A7C15u * (stream + 1); /* splitmix64 (Steele et al. 2014) */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint64_t cpu_dropout_hi(uint64_t micro, uint64_t step)
{
    return step << 24 | (micro & 0xffffffu);
}

#endif
