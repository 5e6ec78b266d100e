/* Products by tile registers (amx.h): the packing and the runs of product_core.c for bf16, at the level that has them.
 *
 * A tile of c is 2 x 2 registers. A panel is two registers wide, its halves, and has one block behind the other: for
 * every 16 words of depth the first half, then the second; a's hold a row of words for each lane, b's a row of lanes
 * for each word. What is missing at the edges is zero. */
#ifndef TENON_CPU_PRODUCT_AMX_H
#define TENON_CPU_PRODUCT_AMX_H

#include "amx.h"
#include "product_core.h"

enum { PANEL = TILE_SIDE, HALVES = PANEL / AMX_SIDE };

INLINE uint32_t ones(int64_t n)
{
    return n <= 0 ? 0 : n >= 32 ? UINT32_MAX : (1u << n) - 1;
}

/* Lanes from `lane` on, of which `lanes` are there, over 16 words of depth from `k` on, of which `left` elements are
 * there: a register. */
INLINE void pack_tile(const struct lanes *s, uint32_t *to, int64_t lane, int64_t lanes, int64_t k, int64_t left,
                      int by_lane)
{
    const uint16_t *x = (const uint16_t *)(const void *)s->at + lane * s->lane + k * s->k;
    __m512i r[AMX_SIDE];
    int have_lanes = s->k == 1;
#pragma GCC unroll 16
    for (int i = 0; i < AMX_SIDE; i++) {
        if (have_lanes) {
            r[i] = _mm512_maskz_loadu_epi16(i < lanes ? ones(left) : 0, x + i * s->lane);
        } else {
            __mmask16 low = 2 * i < left ? (__mmask16)ones(lanes) : 0;
            __mmask16 high = 2 * i + 1 < left ? (__mmask16)ones(lanes) : 0;
            __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low, x + 2 * i * s->k));
            __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high, x + (2 * i + 1) * s->k));
            r[i] = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
        }
    }
    if (have_lanes != by_lane)
        amx_transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < AMX_SIDE; i++)
        _mm512_store_si512(to + i * AMX_SIDE, r[i]);
}

/* `n` lanes in panels, one behind the other; `words` of depth, a multiple of 16. In the order in which the operand
 * lies. */
static __attribute__((noinline)) void pack_tiles(const struct lanes *s, uint32_t *to, int64_t n, int64_t words,
                                                 int64_t k_end, int by_lane)
{
    int64_t groups = (n + PANEL - 1) / PANEL * HALVES, blocks = words / AMX_SIDE;
    int64_t outer = s->k == 1 ? groups : blocks, inner = s->k == 1 ? blocks : groups;
    for (int64_t i = 0; i < outer; i++)
        for (int64_t j = 0; j < inner; j++) {
            int64_t g = s->k == 1 ? i : j, block = s->k == 1 ? j : i;
            pack_tile(s, to + (g / HALVES * blocks + block) * HALVES * AMX_WORDS + g % HALVES * AMX_WORDS, g * AMX_SIDE,
                      n - g * AMX_SIDE, 2 * AMX_SIDE * block, k_end - 2 * AMX_SIDE * block, by_lane);
        }
}

/* A tile of c, its sums in memory. */
struct sums {
    float *at; /* [PANEL, PANEL] */
    int64_t row, rows, col, cols;
};

INLINE void finish_sums(const struct finish *f, const struct sums *sums, int64_t from, int64_t to)
{
    for (int64_t r = from; r < to && r < sums->rows; r++) {
        const float *at = sums->at + r * PANEL;
        __m512 row[HALVES] = { _mm512_load_ps(at), _mm512_load_ps(at + AMX_SIDE) };
        finish_row(f, row, HALVES, sums->row + r, sums->col, sums->cols);
    }
}

/* sums (+)= a panel of a times one of b. Meanwhile the tile `before` is finished, a few rows for each step of depth,
 * which the tile registers leave time for. */
INLINE void multiply_tiles(const uint32_t *a, const uint32_t *b, int64_t words, float *sums, int add,
                           const struct finish *f, const struct sums *before)
{
    enum { ROW = PANEL * 4, LOWER = AMX_SIDE * PANEL };
    int64_t at_once = (PANEL * AMX_SIDE + words - 1) / words, done = 0;
    if (add) {
        _tile_loadd(0, sums, ROW);
        _tile_loadd(1, sums + AMX_SIDE, ROW);
        _tile_loadd(2, sums + LOWER, ROW);
        _tile_loadd(3, sums + LOWER + AMX_SIDE, ROW);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t w = 0; w < words; w += AMX_SIDE) {
        _tile_loadd(4, a, AMX_ROW);
        _tile_loadd(6, b, AMX_ROW);
        _tile_loadd(7, b + AMX_WORDS, AMX_ROW);
        _tile_loadd(5, a + AMX_WORDS, AMX_ROW);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a += HALVES * AMX_WORDS;
        b += HALVES * AMX_WORDS;
        finish_sums(f, before, done, done + at_once);
        done += at_once;
    }
    _tile_stored(0, sums, ROW);
    _tile_stored(1, sums + AMX_SIDE, ROW);
    _tile_stored(2, sums + LOWER, ROW);
    _tile_stored(3, sums + LOWER + AMX_SIDE, ROW);
}

/* A run by tile registers, in pieces of depth whose part of a's panel stays in L1; between them the sums of a panel's
 * tiles wait in memory. */
static void run_tiles(const struct cpu_part *p, const struct run *run, const struct scratch *scratch)
{
    struct finish finish = finish_of(p, run, scratch->c);
    struct sums before = { .rows = 0 };
    int64_t k = 2 * run->word, k_left = p->k - k, words = round_up(run->words, AMX_SIDE);
    struct lanes a = lanes_of(&p->a, run->row, p->a.row_step, k, p->a.col_step, 1);
    pack_tiles(&a, scratch->a, run->rows, words, k_left, 1);
    amx_begin();
    for (int64_t at = 0; at < run->cols; at += TILES_L2) {
        int64_t cols = least(run->cols - at, TILES_L2);
        struct lanes b = lanes_of(&p->b, run->col + at, p->b.col_step, k, p->b.row_step, 1);
        pack_tiles(&b, scratch->b, cols, words, k_left, 0);
        AMX_FENCE();
        for (int64_t row = 0; row < run->rows; row += PANEL)
            for (int64_t w = 0; w < words; w += TILES_L1)
                for (int64_t col = 0; col < cols; col += PANEL) {
                    float *sums = scratch->sums + col * PANEL;
                    multiply_tiles(scratch->a + row * words + w * PANEL, scratch->b + col * words + w * PANEL,
                                   least(words - w, TILES_L1), sums, w > 0, &finish, &before);
                    int done = w + TILES_L1 >= words;
                    before = (struct sums){ sums, row, done ? least(run->rows - row, PANEL) : 0, at + col,
                                            least(cols - col, PANEL) };
                }
    }
    amx_end();
    finish_sums(&finish, &before, 0, PANEL);
}

#endif
