/* The products of attention_tile.h by tile registers (amx.h): c in blocks of 2 x 2 registers, straight from the tiles as
 * they are packed. Rows come in units of 32, columns and words of 16; where words run out sooner, they are zero. */
#ifndef TENON_CPU_ATTENTION_AMX_H
#define TENON_CPU_ATTENTION_AMX_H

/* 32 rows of c by one register of columns, or by two. */
INLINE void multiply_registers(const struct product *p, const word *a, int64_t a_row, float *c, int column, int two)
{
    const word *b = p->b + column;
    int64_t c_row = p->c_row * 4, b_row = p->b_row * 4;
    c += column;
    if (p->add) {
        _tile_loadd(0, c, c_row);
        _tile_loadd(2, c + AMX_SIDE * p->c_row, c_row);
        if (two)
            _tile_loadd(1, c + AMX_SIDE, c_row);
        if (two)
            _tile_loadd(3, c + AMX_SIDE * p->c_row + AMX_SIDE, c_row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int k = 0; k < p->k; k += AMX_SIDE, a += AMX_SIDE, b += AMX_SIDE * p->b_row) {
        _tile_loadd(4, a, a_row * 4);
        _tile_loadd(5, a + AMX_SIDE * a_row, a_row * 4);
        _tile_loadd(6, b, b_row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        if (!two)
            continue;
        _tile_loadd(7, b + AMX_SIDE, b_row);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_row);
    _tile_stored(2, c + AMX_SIDE * p->c_row, c_row);
    if (!two)
        return;
    _tile_stored(1, c + AMX_SIDE, c_row);
    _tile_stored(3, c + AMX_SIDE * p->c_row + AMX_SIDE, c_row);
}

/* to [m, TILE / 2]: a left side whose rows lie side by side in each word, as rows of words. */
INLINE void turn_left(word *to, const struct product *p)
{
    for (int m = 0; m < p->m; m += AMX_SIDE)
        for (int k = 0; k < p->k; k += AMX_SIDE) {
            __m512i r[AMX_SIDE];
#pragma GCC unroll 16
            for (int i = 0; i < AMX_SIDE; i++)
                r[i] = _mm512_loadu_si512(p->a + m + (k + i) * p->a_col);
            amx_transpose(r);
#pragma GCC unroll 16
            for (int i = 0; i < AMX_SIDE; i++)
                _mm512_store_si512(to + (m + i) * (TILE / 2) + k, r[i]);
        }
}

static __attribute__((noinline)) void multiply_pairs(const struct product *p)
{
    word turned[TILE * TILE / 2] __attribute__((aligned(64)));
    const word *a = p->a;
    int64_t a_row = p->a_row;
    if (p->a_col != 1) {
        turn_left(turned, p);
        a = turned;
        a_row = TILE / 2;
    }
    AMX_FENCE();
    for (int m = 0; m < p->m; m += 2 * AMX_SIDE, a += 2 * AMX_SIDE * a_row)
        for (int n = 0; n < p->n; n += 2 * AMX_SIDE)
            if (n + AMX_SIDE < p->n)
                multiply_registers(p, a, a_row, p->c + m * p->c_row, n, 1);
            else
                multiply_registers(p, a, a_row, p->c + m * p->c_row, n, 0);
    AMX_FENCE();
}

#endif
