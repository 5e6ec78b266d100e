/* Product core: a matrix product by one thread, after Goto and van de Geijn (2008) as BLIS orders the loops. Compiled
 * once for each instruction level, with CPU_LEVEL the suffix; only AVX-512 has one.
 *
 * Both operands are packed in words of 32 bits: one f32, or two bf16 that follow each other along k, whose products
 * one instruction adds to an f32. So f32 and bf16 differ in packing and in that instruction alone. A panel of a is
 * ROWS wide, one of b COLS; a tile of c, ROWS x COLS, stays in registers over a run of DEPTH words:
 *
 *     b, DEPTH x COLS_L2 words, in L2
 *     a, ROWS x DEPTH words, in L1    ->  tile += a b
 *
 * A long k takes several runs; c is then read again, or, if it is bf16, kept as f32 in scratch until the last. Where
 * there are tile registers (AMX), they do bf16, in runs of their own: product_amx.h. */
#include "product_core.h"

#define JOIN(a, b) a##b
#define TABLE(level) JOIN(cpu_product_, level)
extern const struct cpu_product_level TABLE(CPU_LEVEL);

#if !defined(__AVX512F__)

const struct cpu_product_level TABLE(CPU_LEVEL) = { NULL, NULL, NULL };

#else
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = 8, VECTORS = 3, COLS = 16 * VECTORS, LANES = 8, GROUPS = COLS / LANES };
enum { DEPTH = 768, COLS_L2 = 4 * COLS, ROWS_L3 = 128 * ROWS, COLS_L3 = 32 * COLS, AHEAD = 16 };

/* The same by tile registers; and of a run, what is done at once so that a's part of it stays in L1. */
#if defined(__AMX_BF16__)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif
enum { TILES_DEPTH = 512, TILES_L2 = 512, TILES_L1 = 192, TILE_WORDS = 16, TILE_SIDE = 32 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t a, int64_t unit)
{
    return (a + unit - 1) / unit * unit;
}

static int64_t words_of(int64_t k, int bf16)
{
    return bf16 ? (k + 1) / 2 : k;
}

/* Whether tile registers do it. */
static int by_tiles(const struct cpu_part *p)
{
    return HAS_TILES && p->bf16;
}

/* Words of a run of k: equal runs of at most DEPTH; in whole tiles. */
static int64_t depth_of(const struct cpu_part *p)
{
    int64_t words = words_of(p->k, p->bf16), most = by_tiles(p) ? TILES_DEPTH : DEPTH,
            count = (words + most - 1) / most;
    return count ? round_up((words + count - 1) / count, by_tiles(p) ? TILE_WORDS : 1) : 0;
}

/* Words of a panel of a; a line more than it needs, so that panels do not meet in the same sets of the cache. */
static int64_t panel_of(int64_t depth)
{
    return ROWS * depth + 16;
}

/* --- packing --- */

/* Where words go: lane l of group g at depth w is to[g * group + w * word + l]. */
struct panel {
    uint32_t *to;
    int64_t group, word;
};

/* An operand seen the same way for a and b: lanes are its rows or columns, `lane` and `k` the steps of each. */
struct lanes {
    const char *at;
    int64_t lane, k;
    int bf16;
};

INLINE uint32_t word_at(const struct lanes *s, int64_t lane, int64_t w, int64_t k_end)
{
    if (!s->bf16)
        return ((const uint32_t *)(const void *)s->at)[lane * s->lane + w * s->k];
    const uint16_t *x = (const uint16_t *)(const void *)s->at + lane * s->lane;
    uint32_t low = x[2 * w * s->k], high = 2 * w + 1 < k_end ? x[(2 * w + 1) * s->k] : 0;
    return low | high << 16;
}

/* Any group, one word at a time: the edges. Lanes from `n` on are zero. */
static void pack_slowly(const struct lanes *s, const struct panel *p, int64_t g, int64_t n, int64_t from, int64_t to,
                        int64_t k_end)
{
    for (int64_t w = from; w < to; w++)
        for (int64_t l = 0; l < LANES; l++)
            p->to[g * p->group + w * p->word + l] = g * LANES + l < n ? word_at(s, g * LANES + l, w, k_end) : 0;
}

/* Eight lanes that lie side by side: a copy, or two rows of bf16 zipped. */
INLINE __m256i load_row(const struct lanes *s, int64_t lane, int64_t w)
{
    if (!s->bf16)
        return _mm256_loadu_si256((const void *)(s->at + 4 * (lane + w * s->k)));
    const char *low = s->at + 2 * (lane + 2 * w * s->k);
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)low));
    __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(low + 2 * s->k)));
    return _mm256_or_si256(a, _mm256_slli_epi32(b, 16));
}

/* Eight lanes of eight words, where words lie side by side: a transposition. */
INLINE void transpose(const struct lanes *s, int64_t lane, int64_t w, uint32_t *to, int64_t step)
{
    __m256 r[8], t[8];
    int64_t words = s->bf16 ? s->lane * 2 : s->lane * 4;
    const char *at = s->at + lane * words + w * 4;
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps((const float *)(const void *)(at + i * words));
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps((float *)(void *)(to + i * step), _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps((float *)(void *)(to + (i + 4) * step), _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* Rows of lanes that lie side by side, those of AHEAD words later on their way. */
INLINE void pack_rows(const struct lanes *s, const struct panel *p, int64_t groups, int64_t words)
{
    int64_t bytes = s->bf16 ? 2 : 4, row = s->k * bytes * (s->bf16 ? 2 : 1);
    for (int64_t w = 0; w < words; w++) {
        const char *ahead = s->at + (w + AHEAD) * row;
        for (int64_t at = 0; at < groups * LANES * bytes; at += 64) {
            _mm_prefetch(ahead + at, _MM_HINT_T0);
            if (s->bf16)
                _mm_prefetch(ahead + s->k * bytes + at, _MM_HINT_T0);
        }
        for (int64_t g = 0; g < groups; g++)
            _mm256_storeu_si256((void *)(p->to + g * p->group + w * p->word), load_row(s, g * LANES, w));
    }
}

/* Lanes whose words lie side by side, two groups at a time so that whole cache lines are written. */
INLINE void pack_columns(const struct lanes *s, const struct panel *p, int64_t groups, int64_t words)
{
    for (int64_t g = 0; g < groups; g += 2)
        for (int64_t w = 0; w < words; w += 8)
            for (int64_t i = g; i < groups && i < g + 2; i++)
                transpose(s, i * LANES, w, p->to + i * p->group + w * p->word, p->word);
}

/* `n` lanes, at most COLS of them, padded with zeros to whole groups; `words` of depth. */
static void pack(const struct lanes *s, const struct panel *p, int64_t n, int64_t words, int64_t k_end)
{
    int64_t whole = n / LANES, done = s->bf16 && k_end < 2 * words ? words - 1 : words;
    if (s->lane == 1)
        pack_rows(s, p, whole, done);
    else if (s->k == 1)
        pack_columns(s, p, whole, done -= done % 8);
    else
        done = 0;
    for (int64_t g = 0; g < whole; g++)
        pack_slowly(s, p, g, n, done, words, k_end);
    if (n % LANES)
        pack_slowly(s, p, whole, n, 0, words, k_end);
}

/* A run of k of lanes [first, first + n) in panels of `width`, one behind the other. */
static void pack_all(const struct lanes *s, uint32_t *to, int64_t n, int64_t width, int64_t words, int64_t k_end)
{
    for (int64_t first = 0; first < n; first += COLS) {
        struct lanes part = *s;
        int64_t count = least(n - first, COLS);
        part.at += first * s->lane * (s->bf16 ? 2 : 4);
        struct panel panel = { to + first * words, LANES, COLS };
        if (width == ROWS)
            panel = (struct panel){ to + first / ROWS * panel_of(words), panel_of(words), ROWS };
        pack(&part, &panel, count, words, k_end);
        for (int64_t g = (count + LANES - 1) / LANES; width == COLS && g < GROUPS; g++)
            pack_slowly(&part, &panel, g, 0, 0, words, k_end);
    }
}

/* --- a tile --- */

/* What becomes of a tile: what is added to it, and where it goes. */
struct finish {
    const void *add; /* or NULL; rows `step` apart, like `to` */
    const float *bias;
    void *to;
    int64_t add_step, to_step;
    int add_bf16, to_bf16;
};

INLINE __m512 bf16_load(const void *x, __mmask16 mask)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x)), 16));
}

INLINE void bf16_store(void *x, __mmask16 mask, __m512 value)
{
#if defined(__AVX512BF16__)
    _mm256_mask_storeu_epi16(x, mask, (__m256i)_mm512_cvtneps_pbh(value));
#else
    (void)x, (void)mask, (void)value; /* this level takes no bf16 */
#endif
}

INLINE void finish_row(const struct finish *f, const __m512 *sum, int vectors, int64_t row, int64_t col, int64_t cols)
{
    for (int v = 0; v < vectors; v++) {
        int64_t left = cols - 16 * v, at = col + 16 * v;
        if (left <= 0)
            return;
        __mmask16 mask = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        __m512 value = sum[v];
        if (f->bias)
            value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, f->bias + at));
        if (f->add)
            value = _mm512_add_ps(
                value, f->add_bf16 ? bf16_load((const uint16_t *)f->add + row * f->add_step + at, mask)
                                   : _mm512_maskz_loadu_ps(mask, (const float *)f->add + row * f->add_step + at));
        if (f->to_bf16)
            bf16_store((uint16_t *)f->to + row * f->to_step + at, mask, value);
        else
            _mm512_mask_storeu_ps((float *)f->to + row * f->to_step + at, mask, value);
    }
}

INLINE __m512 multiply_add(__m512 sum, __m512 a, __m512 b, int bf16)
{
#if defined(__AVX512BF16__)
    if (bf16)
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#endif
    (void)bf16;
    return _mm512_fmadd_ps(a, b, sum);
}

/* While the sums are computed, the lines that they meet in the end are on their way. */
INLINE void prefetch_tile(const void *c, int64_t step_bytes, int64_t row, int64_t rows, int64_t at_bytes)
{
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            __builtin_prefetch((const char *)c + (row + r) * step_bytes + at_bytes + 64 * v, 1);
}

INLINE void tile(const uint32_t *a, const uint32_t *b, int64_t words, const struct finish *f, int64_t row, int64_t rows,
                 int64_t col, int64_t cols, int bf16)
{
    __m512 sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            sum[r][v] = _mm512_setzero_ps();
    prefetch_tile(f->to, f->to_step * (f->to_bf16 ? 2 : 4), row, rows, col * (f->to_bf16 ? 2 : 4));
    if (f->add && f->add != f->to)
        prefetch_tile(f->add, f->add_step * (f->add_bf16 ? 2 : 4), row, rows, col * (f->add_bf16 ? 2 : 4));
    for (int64_t w = 0; w < words; w++) {
        __m512 cols_of_b[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            cols_of_b[v] = _mm512_loadu_ps((const float *)(const void *)(b + w * COLS + 16 * v));
        for (int v = 0; v < VECTORS; v++)
            _mm_prefetch((const char *)(b + (w + AHEAD) * COLS + 16 * v), _MM_HINT_T0);
        for (int r = 0; r < ROWS; r++) {
            __m512 x = _mm512_castsi512_ps(_mm512_set1_epi32((int)a[w * ROWS + r]));
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] = multiply_add(sum[r][v], x, cols_of_b[v], bf16);
        }
    }
    if (cols == COLS && rows == ROWS) { /* sums stay in registers */
        for (int r = 0; r < ROWS; r++)
            finish_row(f, sum[r], VECTORS, row + r, col, COLS);
        return;
    }
    for (int r = 0; r < ROWS; r++)
        if (r < rows)
            finish_row(f, sum[r], VECTORS, row + r, col, cols);
}

/* --- a part --- */

/* Packed a, packed b, and c where it waits for further runs of k. */
struct scratch {
    uint32_t *a, *b;
    float *c;
    float *sums; /* of the tiles of a row of c, where tile registers do it */
    size_t bytes;
};

static int keeps_c(const struct cpu_part *p)
{
    return p->c_bf16 && words_of(p->k, p->bf16) > depth_of(p);
}

static struct scratch scratch_of(const struct cpu_part *p, char *base)
{
    int64_t depth = depth_of(p), m = least(p->m, ROWS_L3), n = least(p->n, COLS_L3);
    int tiles = by_tiles(p);
    int64_t a_words = tiles ? round_up(m, TILE_SIDE) * depth : round_up(m, COLS) / ROWS * panel_of(depth);
    int64_t b_words =
        tiles ? round_up(least(n, TILES_L2), TILE_SIDE) * depth : round_up(least(n, COLS_L2), COLS) * depth;
    size_t a = (size_t)round_up(a_words, 16) * 4, b = (size_t)round_up(b_words, 16) * 4;
    size_t c = keeps_c(p) ? (size_t)round_up(m * n, 16) * 4 : 0, sums = tiles ? (size_t)TILES_L2 * TILE_SIDE * 4 : 0;
    return (struct scratch){ (uint32_t *)(void *)base, (uint32_t *)(void *)(base + a), (float *)(void *)(base + a + b),
                             (float *)(void *)(base + a + b + c), a + b + c + sums };
}

static size_t scratch_bytes(const struct cpu_part *p)
{
    char none;
    return scratch_of(p, &none).bytes;
}

/* Rows and columns of c that are computed together, and one run of k. */
struct run {
    int64_t row, rows, col, cols, word, words;
};

static struct finish finish_of(const struct cpu_part *p, const struct run *run, float *kept)
{
    int first = run->word == 0, last = run->word + run->words == words_of(p->k, p->bf16);
    void *c = (char *)p->c + (run->row * p->c_step + run->col) * (p->c_bf16 ? 2 : 4);
    int via = keeps_c(p);
    struct finish f = { .bias = first && p->bias ? p->bias + run->col : NULL };
    int add_c = first ? p->accumulate : !via;
    f.add = first && !p->accumulate ? NULL : add_c ? c : kept;
    f.add_bf16 = add_c && p->c_bf16;
    f.add_step = add_c ? p->c_step : run->cols;
    f.to = last || !via ? c : kept;
    f.to_bf16 = f.to == c && p->c_bf16;
    f.to_step = f.to == c ? p->c_step : run->cols;
    return f;
}

static struct lanes lanes_of(const struct cpu_matrix *x, int64_t lane, int64_t lane_step, int64_t k, int64_t k_step,
                             int bf16)
{
    return (struct lanes){ (const char *)x->at + (lane * lane_step + k * k_step) * (bf16 ? 2 : 4), lane_step, k_step,
                           bf16 };
}

INLINE void run_of(const struct cpu_part *p, const struct run *run, const struct scratch *scratch, int bf16)
{
    struct finish finish = finish_of(p, run, scratch->c);
    int64_t k = run->word * (bf16 ? 2 : 1), k_left = p->k - k;
    struct lanes a = lanes_of(&p->a, run->row, p->a.row_step, k, p->a.col_step, bf16);
    pack_all(&a, scratch->a, run->rows, ROWS, run->words, k_left);
    for (int64_t at = 0; at < run->cols; at += COLS_L2) {
        int64_t cols = least(run->cols - at, COLS_L2);
        struct lanes b = lanes_of(&p->b, run->col + at, p->b.col_step, k, p->b.row_step, bf16);
        pack_all(&b, scratch->b, cols, COLS, run->words, k_left);
        for (int64_t row = 0; row < run->rows; row += ROWS)
            for (int64_t col = 0; col < cols; col += COLS)
                tile(scratch->a + row / ROWS * panel_of(run->words), scratch->b + col * run->words, run->words, &finish,
                     row, least(run->rows - row, ROWS), at + col, least(cols - col, COLS), bf16);
    }
}

#if HAS_TILES
#include "product_amx.h"
#else
#define run_tiles(p, run, scratch) ((void)0)
#endif

INLINE void part(const struct cpu_part *p, char *memory, int bf16)
{
    struct scratch scratch = scratch_of(p, memory);
    int64_t depth = depth_of(p), words = words_of(p->k, bf16);
    struct run run;
    for (run.col = 0; run.col < p->n; run.col += COLS_L3)
        for (run.row = 0; run.row < p->m; run.row += ROWS_L3)
            for (run.word = 0; run.word < words; run.word += depth) {
                run.rows = least(p->m - run.row, ROWS_L3);
                run.cols = least(p->n - run.col, COLS_L3);
                run.words = least(words - run.word, depth);
                if (HAS_TILES && bf16)
                    run_tiles(p, &run, &scratch);
                else
                    run_of(p, &run, &scratch, bf16);
            }
}

static void part_f32(const struct cpu_part *p, char *memory)
{
    part(p, memory, 0);
}

#if defined(__AVX512BF16__)
static void part_bf16(const struct cpu_part *p, char *memory)
{
    part(p, memory, 1);
}
#else
#define part_bf16 NULL
#endif

const struct cpu_product_level TABLE(CPU_LEVEL) = { scratch_bytes, part_f32, part_bf16 };
#endif
