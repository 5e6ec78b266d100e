/* Tile registers (AMX) of the level that has them, for bf16: what products and attention share.
 *
 * A register has AMX_SIDE rows of AMX_SIDE words, a word being two bf16 that are neighbours along the contraction. One
 * instruction adds to a register of f32 sums what the rows of a left register and the columns of a right one give. */
#ifndef TENON_CPU_AMX_H
#define TENON_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

enum { AMX_SIDE = 16, AMX_WORDS = AMX_SIDE * AMX_SIDE, AMX_ROW = AMX_SIDE * 4 /* bytes */ };

/* Stands between what is written and tiles that are loaded from it: the compiler does not know that they read. */
#define AMX_FENCE() __asm__ volatile("" ::: "memory")

/* All registers of this thread at full size. What others (oneDNN) had set is theirs to set again. */
static inline void amx_begin(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = { .palette = 1,
                 .row_bytes = { AMX_ROW, AMX_ROW, AMX_ROW, AMX_ROW, AMX_ROW, AMX_ROW, AMX_ROW, AMX_ROW },
                 .rows = { AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE, AMX_SIDE } };
    _tile_loadconfig(&config);
}

/* Registers in use are saved at each switch of threads: gives them back. */
static inline void amx_end(void)
{
    _tile_release();
}

/* Rows of words become columns: words, then pairs of them, then quarters of a vector change places. */
static inline __attribute__((always_inline)) void amx_transpose(__m512i r[AMX_SIDE])
{
    __m512i t[AMX_SIDE];
#pragma GCC unroll 16
    for (int i = 0; i < AMX_SIDE; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < AMX_SIDE; i += 4) {
        for (int high = 0; high < 2; high++) {
            r[i + 2 * high] = _mm512_unpacklo_epi64(t[i + high], t[i + 2 + high]);
            r[i + 2 * high + 1] = _mm512_unpackhi_epi64(t[i + high], t[i + 2 + high]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        __m512i even = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88), odd = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        __m512i even2 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        __m512i odd2 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
        t[i] = _mm512_shuffle_i32x4(even, even2, 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
        t[i + 8] = _mm512_shuffle_i32x4(even, even2, 0xdd);
        t[i + 12] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < AMX_SIDE; i++)
        r[i] = t[i];
}

#endif
