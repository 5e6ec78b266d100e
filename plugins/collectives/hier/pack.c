/* bf16 to fp32 and back: sums inside a host and across hosts are made in fp32 and rounded once, at the end. */
#include <string.h>

#include "hier.h"

void hier_widen(float *to, const void *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, (const char *)from + 2 * i, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

/* To nearest, ties to even; a NaN stays one. */
void hier_narrow(void *to, const float *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        uint16_t half = (bits & 0x7fffffff) > 0x7f800000 ? (uint16_t)(bits >> 16 | 0x40)
                                                         : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        memcpy((char *)to + 2 * i, &half, sizeof half);
    }
}
