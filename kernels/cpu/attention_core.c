/* Attention core: forward with the online softmax (Milakov and Gimelshein 2018; Dao et al. 2022) and backward (Dao
 * 2023, algorithm 2), one unit of work at a time. Compiled once for each instruction level, with CPU_LEVEL the suffix.
 *
 * Scores live only as TILE x TILE tiles, so memory is O(length). Exponents are kept in base 2: a score is
 * s = q.k scale log2(e), and lse is turned to base e where it is stored. Each unit packs the keys and values of its
 * head once, in the layouts that the products of attention_tile.h read. */
#include <math.h>
#include <stddef.h>

#include "attention.h"
#include "attention_tile.h"

static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
/* A score that becomes 0. A power of two, so that scaled it is exact, and less itself 0 in one rounding as in two. */
static const float MASKED = -0x1p100f;
static const float UNSEEN = -1e24f; /* below it, and scaled it stays so, a row's largest score was MASKED */

/* Width of a row of head_dim as the columns of a product. */
INLINE int width_of(const struct cpu_attention *a)
{
    return (a->head_dim + 15) / 16 * 16;
}

/* Words of one packed tile, enough for each of the layouts. */
INLINE size_t tile_words(const struct cpu_attention *a)
{
    return (size_t)TILE * (size_t)width_of(a);
}

/* The next `bytes` of scratch; with no scratch yet only its size counts. */
static void *take(char *base, size_t *used, size_t bytes)
{
    char *at = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

INLINE struct rows rows_in(const struct cpu_attention *a, const void *data, int64_t length, int heads, int64_t batch,
                           int head, int64_t tile, int bf16)
{
    int64_t first = tile * TILE, stride = (int64_t)heads * a->head_dim;
    int64_t element = (batch * length + first) * stride + (int64_t)head * a->head_dim;
    int64_t count = length - first < TILE ? length - first : TILE;
    return (struct rows){ (const char *)data + element * (bf16 ? 2 : 4), stride, (int)count, a->head_dim, bf16 };
}

INLINE struct rows rows_of(const struct cpu_attention *a, const void *data, int64_t length, int heads, int64_t batch,
                           int head, int64_t tile)
{
    return rows_in(a, data, length, heads, batch, head, tile, a->bf16);
}

/* Of an output, which a block has in f32. */
INLINE struct rows rows_out(const struct cpu_attention *a, void *data, int64_t length, int heads, int64_t batch,
                            int head, int64_t tile)
{
    return rows_in(a, data, length, heads, batch, head, tile, a->bf16 && !a->block);
}

/* Key tiles up to the last one that a query tile may see. */
INLINE int64_t key_tiles(const struct cpu_attention *a, int64_t q_tile)
{
    int64_t all = cpu_attention_tiles(a->k_length);
    return a->causal && !a->qi && q_tile + 1 < all ? q_tile + 1 : all;
}

/* Indices of a tile's rows: where they lie, whether they are a run without gaps. */
struct indices {
    struct cpu_attention_span span;
    int run;
};

INLINE struct indices indices_of(const int32_t *index, int64_t length, int64_t tile)
{
    int64_t first = tile * TILE, n = length - first < TILE ? length - first : TILE;
    if (!index)
        return (struct indices){ { (int32_t)first, (int32_t)(first + n - 1) }, 1 };
    struct indices is = { cpu_attention_span(index + first, n), 0 };
    int gaps = 0;
    for (int64_t i = 0; i < n; i++)
        gaps |= index[first + i] - index[first] != (int32_t)i;
    is.run = !gaps;
    return is;
}

/* What a query tile is, beside any key tile. */
struct queries {
    struct indices is;
    struct cpu_attention_span start;
    int64_t batch, tile;
};

INLINE struct queries queries_of(const struct cpu_attention *a, int64_t batch, int64_t q_tile)
{
    int64_t first = q_tile * TILE, n = a->q_length - first < TILE ? a->q_length - first : TILE;
    struct queries q = { indices_of(a->qi, a->q_length, q_tile), { INT32_MIN, INT32_MIN }, batch, q_tile };
    if (a->start)
        q.start = cpu_attention_span(a->start + batch * a->q_length + first, n);
    return q;
}

/* What the queries of a tile see of the keys of another: nothing; else all but what is masked, and on the diagonal,
 * where query r is key r, only the triangle is computed. */
struct sight {
    int nothing, diagonal, masked;
};

INLINE struct sight sight_of(const struct cpu_attention *a, const struct queries *q, int64_t k_tile)
{
    struct sight sight = { 0, 0, (k_tile + 1) * TILE > a->k_length };
    if (!a->causal)
        return sight;
    struct indices keys = indices_of(a->ki, a->k_length, k_tile);
    int later = keys.span.most > q->is.span.least, earlier = keys.span.least < q->start.most;
    sight.nothing = keys.span.least > q->is.span.most || keys.span.most < q->start.least;
    sight.diagonal = later && keys.run && q->is.run && keys.span.least == q->is.span.least;
    sight.masked |= later || earlier;
    return sight;
}

/* Columns of a row of scores that are computed: on the diagonal to the end of the row's strip. */
INLINE int columns_of(int pairs, int diagonal, int row)
{
    return diagonal ? (row / strip_of(pairs) + 1) * strip_of(pairs) : TILE;
}

/* Row r of a tile where indices or documents say what it sees. */
INLINE void mask_row(const struct cpu_attention *a, float *s, const struct queries *q, int r, int64_t k_tile,
                     int columns)
{
    int64_t row = q->tile * TILE + r, first = k_tile * TILE, left = a->k_length - first;
    if (row >= a->q_length)
        return;
    int32_t to = a->qi ? a->qi[row] : (int32_t)row,
            from = a->start ? a->start[q->batch * a->q_length + row] : INT32_MIN;
    int count = left < columns ? (int)left : columns;
    for (int n = 0; n < count; n++) {
        int32_t key = a->ki ? a->ki[first + n] : (int32_t)first + n;
        s[n] = key < from || key > to ? MASKED : s[n];
    }
    for (int n = count; n < columns; n++)
        s[n] = MASKED;
}

/* Hides the keys behind the end, and where causal those behind the query and before its document. */
INLINE void mask_tile(int pairs, const struct cpu_attention *a, float *s, const struct queries *q, int64_t k_tile,
                      struct sight sight)
{
    int64_t left = a->k_length - k_tile * TILE;
    if (!sight.masked)
        return;
    if (a->causal && (a->qi || a->start)) {
        for (int r = 0; r < TILE; r++)
            mask_row(a, s + r * TILE, q, r, k_tile, columns_of(pairs, sight.diagonal, r));
        return;
    }
    for (int r = 0; r < TILE; r++) {
        int64_t visible = sight.diagonal && r + 1 < left ? r + 1 : left;
        for (int64_t n = visible; n < columns_of(pairs, sight.diagonal, r); n++)
            s[r * TILE + n] = MASKED;
    }
}

INLINE void store_rows(const struct rows *rows, const float *from, int width)
{
    for (int r = 0; r < rows->count; r++) {
        void *row = (void *)(uintptr_t)row_at(rows, r);
        for (int n = 0; n < rows->head_dim; n++)
            store(row, n, from[r * width + n], rows->bf16);
    }
}

/* Adds what a block was given, f32. */
INLINE void add_rows(const struct rows *given, float *to, int width)
{
    for (int r = 0; r < given->count; r++) {
        const float *row = row_at(given, r);
        for (int n = 0; n < given->head_dim; n++)
            to[r * width + n] += row[n];
    }
}

/* --- forward --- */

struct forward {
    word *keys, *values; /* packed, a tile after the other */
    word *q;
    float *s, *o, *most;
    float *sum; /* [TILE, LANES]: added up when the row is done */
};

static size_t forward_layout(const struct cpu_attention *a, char *base, struct forward *f)
{
    size_t used = 0, all = (size_t)cpu_attention_tiles(a->k_length) * tile_words(a) * 4;
    f->keys = take(base, &used, all);
    f->values = take(base, &used, all);
    f->q = take(base, &used, tile_words(a) * 4);
    f->o = take(base, &used, tile_words(a) * 4);
    f->s = take(base, &used, TILE * TILE * 4);
    f->most = take(base, &used, TILE * 4);
    f->sum = take(base, &used, TILE * LANES * 4);
    return used;
}

static size_t forward_bytes(const struct cpu_attention *a)
{
    struct forward f;
    return forward_layout(a, NULL, &f);
}

/* Scores of one tile to weights, in place; corrects the running maximum, sum and output of each row. */
INLINE void soften(int pairs, struct forward *f, int rows, int width, int diagonal, float to_base2)
{
    for (int r = 0; r < rows; r++) {
        float *s = f->s + r * TILE;
        int columns = columns_of(pairs, diagonal, r);
        vec most = vec_load(s);
        for (int n = LANES; n < columns; n += LANES)
            most = vec_max(vec_load(s + n), most);
        float before = f->most[r], peak = vec_largest(most) * to_base2;
        peak = peak > before ? peak : before;
        vec sum = { 0 };
        for (int n = 0; n < columns; n += LANES) {
            vec p = vec_exp2(vec_load(s + n) * to_base2 - peak);
            sum += p;
            pack_row(pairs, s, n, p);
        }
        float shrink = peak > before ? vec_exp2(vec_all(before - peak))[0] : 1.0f;
        f->most[r] = peak;
        vec_store(f->sum + r * LANES, vec_load(f->sum + r * LANES) * shrink + sum);
        for (int n = 0; n < width && shrink != 1.0f; n += LANES)
            vec_store(f->o + r * width + n, vec_load(f->o + r * width + n) * shrink);
    }
}

/* Queries that have seen nothing yet, or where a block was given the softmax so far, that. */
INLINE void forward_begin(const struct cpu_attention *a, struct forward *f, int64_t batch, int head, int64_t q_tile,
                          int width)
{
    memset(f->o, 0, tile_words(a) * 4);
    memset(f->sum, 0, TILE * LANES * 4);
    for (int r = 0; r < TILE; r++)
        f->most[r] = MASKED;
    if (!a->o_given)
        return;
    struct rows rows = rows_in(a, a->o_given, a->q_length, a->heads, batch, head, q_tile, 0);
    for (int r = 0; r < rows.count; r++) {
        float lse = a->lse_given[(batch * a->q_length + q_tile * TILE + r) * a->heads + head];
        if (lse == -INFINITY)
            continue;
        f->most[r] = lse * LOG2_E;
        f->sum[r * LANES] = 1.0f;
        memcpy(f->o + r * width, row_at(&rows, r), (size_t)a->head_dim * 4);
    }
}

INLINE void forward_store(const struct cpu_attention *a, struct forward *f, int64_t batch, int head, int64_t q_tile,
                          int width)
{
    struct rows rows = rows_out(a, a->o, a->q_length, a->heads, batch, head, q_tile);
    for (int r = 0; r < rows.count; r++) {
        float sum = vec_sum(vec_load(f->sum + r * LANES));
        int blind = f->most[r] <= UNSEEN && sum == sum; /* every key was hidden: the weights are nobody's */
        vec inverse = vec_all(blind ? 0.0f : 1.0f / sum);
        for (int n = 0; n < width; n += LANES)
            vec_store(f->o + r * width + n, vec_load(f->o + r * width + n) * inverse);
        int64_t row = batch * a->q_length + q_tile * TILE + r;
        a->lse[row * a->heads + head] = blind ? -INFINITY : f->most[r] * LN_2 + logf(sum);
    }
    store_rows(&rows, f->o, width);
}

INLINE void forward_tile(int pairs, const struct cpu_attention *a, struct forward *f, int64_t batch, int head,
                         int64_t q_tile)
{
    int width = width_of(a), words = words_of(pairs, a->head_dim), p_words = pairs ? TILE / 2 : TILE;
    int q_row = left_row_of(pairs, a->head_dim);
    size_t stride = tile_words(a);
    struct rows q = rows_of(a, a->q, a->q_length, a->heads, batch, head, q_tile);
    int rows = rows_up(pairs, q.count);
    pack_left(pairs, f->q, &q);
    struct queries queries = queries_of(a, batch, q_tile);
    forward_begin(a, f, batch, head, q_tile, width);
    for (int64_t k_tile = 0; k_tile < key_tiles(a, q_tile); k_tile++) {
        struct sight sight = sight_of(a, &queries, k_tile);
        int diagonal = sight.diagonal;
        if (sight.nothing)
            continue;
        struct product scores = { f->s,  f->q, f->keys + k_tile * (int64_t)stride, TILE, q_row, 1, TILE, rows, TILE,
                                  words, 0 };
        struct product output = {
            f->o, (const word *)f->s, f->values + k_tile * (int64_t)stride, width, TILE, 1, width, rows, width, p_words,
            1
        };
        multiply_tile(pairs, diagonal ? COLUMNS_TO : WHOLE, scores);
        mask_tile(pairs, a, f->s, &queries, k_tile, sight);
        soften(pairs, f, rows, width, diagonal, a->scale * LOG2_E);
        multiply_tile(pairs, diagonal ? WORDS_TO : WHOLE, output);
    }
    forward_store(a, f, batch, head, q_tile, width);
}

INLINE void forward_pack(int pairs, const struct cpu_attention *a, struct forward *f, int64_t batch, int kv_head,
                         int64_t tiles, struct cpu_attention_packed *packed)
{
    int64_t head = batch * a->kv_heads + kv_head;
    if (packed->head != head)
        *packed = (struct cpu_attention_packed){ head, 0 };
    for (; packed->tiles < tiles; packed->tiles++) {
        size_t at = (size_t)packed->tiles * tile_words(a);
        struct rows k = rows_of(a, a->k, a->k_length, a->kv_heads, batch, kv_head, packed->tiles);
        struct rows v = rows_of(a, a->v, a->k_length, a->kv_heads, batch, kv_head, packed->tiles);
        pack_left(pairs, f->q, &k);
        pack_across(pairs, f->keys + at, f->q, a->head_dim);
        pack_right(pairs, f->values + at, &v, width_of(a));
    }
}

INLINE void forward_unit(int pairs, const struct cpu_attention *a, int64_t unit, char *scratch,
                         struct cpu_attention_packed *packed)
{
    struct forward f;
    forward_layout(a, scratch, &f);
    int64_t chunk = unit % a->chunks, tiles = cpu_attention_tiles(a->q_length);
    int head = (int)(unit / a->chunks % a->heads);
    int64_t batch = unit / a->chunks / a->heads;
    int64_t first = tiles * chunk / a->chunks, end = tiles * (chunk + 1) / a->chunks;
    if (first == end)
        return;
    forward_pack(pairs, a, &f, batch, head / (a->heads / a->kv_heads), key_tiles(a, end - 1), packed);
    for (int64_t q_tile = first; q_tile < end; q_tile++)
        forward_tile(pairs, a, &f, batch, head, q_tile);
}

/* --- backward --- */

struct backward {
    word *keys_across, *values_across, *keys_right; /* packed, a tile after the other */
    word *q_left, *q_right, *do_left, *do_right;
    float *s, *dp, *dq; /* s: scores, then weights */
    word *p_down, *ds_down, *ds_left;
    float *lse, *delta; /* in base 2; sum of do * o */
    float *dk, *dv;     /* of the unit */
};

static size_t backward_layout(const struct cpu_attention *a, char *base, struct backward *b)
{
    size_t used = 0, tile = tile_words(a) * 4, square = TILE * TILE * 4;
    size_t all = (size_t)cpu_attention_tiles(a->k_length) * tile;
    b->keys_across = take(base, &used, all);
    b->values_across = take(base, &used, all);
    b->keys_right = take(base, &used, all);
    b->q_left = take(base, &used, tile);
    b->q_right = take(base, &used, tile);
    b->do_left = take(base, &used, tile);
    b->do_right = take(base, &used, tile);
    b->dq = take(base, &used, tile);
    b->s = take(base, &used, square);
    b->dp = take(base, &used, square);
    b->p_down = take(base, &used, square);
    b->ds_down = take(base, &used, square);
    b->ds_left = take(base, &used, square);
    b->lse = take(base, &used, TILE * 4);
    b->delta = take(base, &used, TILE * 4);
    return used;
}

static size_t backward_bytes(const struct cpu_attention *a)
{
    struct backward b;
    return backward_layout(a, NULL, &b);
}

static size_t sums_bytes(const struct cpu_attention *a)
{
    return 2 * (size_t)cpu_attention_tiles(a->k_length) * tile_words(a) * 4;
}

INLINE void backward_pack(int pairs, const struct cpu_attention *a, struct backward *b, int64_t head,
                          struct cpu_attention_packed *packed)
{
    if (packed->head == head)
        return;
    *packed = (struct cpu_attention_packed){ head, cpu_attention_tiles(a->k_length) };
    for (int64_t tile = 0; tile < packed->tiles; tile++) {
        size_t at = (size_t)tile * tile_words(a);
        int64_t batch = head / a->kv_heads;
        int kv_head = (int)(head % a->kv_heads);
        struct rows k = rows_of(a, a->k, a->k_length, a->kv_heads, batch, kv_head, tile);
        struct rows v = rows_of(a, a->v, a->k_length, a->kv_heads, batch, kv_head, tile);
        pack_left(pairs, b->q_left, &k);
        pack_across(pairs, b->keys_across + at, b->q_left, a->head_dim);
        pack_left(pairs, b->q_left, &v);
        pack_across(pairs, b->values_across + at, b->q_left, a->head_dim);
        pack_right(pairs, b->keys_right + at, &k, width_of(a));
    }
}

/* The query tile's rows, their lse and delta. Rows behind the end get weights of 0. */
INLINE void backward_queries(int pairs, const struct cpu_attention *a, struct backward *b, int64_t batch, int head,
                             int64_t q_tile)
{
    struct rows q = rows_of(a, a->q, a->q_length, a->heads, batch, head, q_tile);
    struct rows d_o = rows_of(a, a->d_o, a->q_length, a->heads, batch, head, q_tile);
    struct rows o = rows_of(a, a->o, a->q_length, a->heads, batch, head, q_tile);
    int64_t row = batch * a->q_length + q_tile * TILE;
    pack_left(pairs, b->do_left, &d_o);
    pack_left(pairs, b->q_left, &o);
    for (int r = 0; r < TILE; r++) {
        b->delta[r] = dot_rows(pairs, b->do_left, b->q_left, r, left_row_of(pairs, a->head_dim));
        b->lse[r] = r < q.count ? a->lse[(row + r) * a->heads + head] * LOG2_E : -MASKED;
        if (b->lse[r] == -INFINITY) /* it saw nothing */
            b->lse[r] = -MASKED;
    }
    pack_left(pairs, b->q_left, &q);
    pack_right(pairs, b->q_right, &q, width_of(a));
    pack_right(pairs, b->do_right, &d_o, width_of(a));
}

/* From s and dp: the weights p and ds = p (dp - delta) scale, laid out for the three products that follow. */
INLINE void backward_weights(int pairs, const struct cpu_attention *a, struct backward *b, int rows, int diagonal)
{
    int64_t down_row = TILE;
    float to_base2 = a->scale * LOG2_E;
    for (int r = 0; r < rows; r += 2) {
        for (int n = 0; n < columns_of(pairs, diagonal, r); n += LANES) {
            vec p[2], ds[2];
#pragma GCC unroll 2
            for (int two = 0; two < 2; two++) {
                const float *s = b->s + (r + two) * TILE + n, *dp = b->dp + (r + two) * TILE + n;
                p[two] = vec_exp2(vec_load(s) * to_base2 - b->lse[r + two]);
                ds[two] = p[two] * (vec_load(dp) - b->delta[r + two]) * a->scale;
                if (pairs)
                    pack_row(pairs, (uint16_t *)b->ds_left + (r + two) * TILE, n, ds[two]);
            }
            int64_t at = (pairs ? r / 2 : r) * down_row + n;
            pack_two_rows(pairs, b->p_down + at, down_row, p[0], p[1]);
            pack_two_rows(pairs, b->ds_down + at, down_row, ds[0], ds[1]);
        }
    }
}

INLINE void backward_tile(int pairs, const struct cpu_attention *a, struct backward *b, const struct queries *queries,
                          int64_t k_tile, int rows)
{
    struct sight sight = sight_of(a, queries, k_tile);
    if (sight.nothing)
        return;
    int width = width_of(a), words = words_of(pairs, a->head_dim), diagonal = sight.diagonal;
    int64_t at = k_tile * (int64_t)tile_words(a);
    int left = left_row_of(pairs, a->head_dim);
    int row_words = pairs ? rows / 2 : rows, key_words = pairs ? TILE / 2 : TILE;
    const word *ds = pairs ? b->ds_left : b->ds_down;
    struct product s = { b->s, b->q_left, b->keys_across + at, TILE, left, 1, TILE, rows, TILE, words, 0 };
    struct product dp = { b->dp, b->do_left, b->values_across + at, TILE, left, 1, TILE, rows, TILE, words, 0 };
    struct product dv = { b->dv + at, b->p_down, b->do_right, width, 1, TILE, width, TILE, width, row_words, 1 };
    struct product dk = { b->dk + at, b->ds_down, b->q_right, width, 1, TILE, width, TILE, width, row_words, 1 };
    struct product dq = { b->dq, ds, b->keys_right + at, width, key_words, 1, width, rows, width, key_words, 1 };
    multiply_tile(pairs, diagonal ? COLUMNS_TO : WHOLE, s);
    multiply_tile(pairs, diagonal ? COLUMNS_TO : WHOLE, dp);
    mask_tile(pairs, a, b->s, queries, k_tile, sight);
    backward_weights(pairs, a, b, rows, diagonal);
    multiply_tile(pairs, diagonal ? WORDS_FROM : WHOLE, dv);
    multiply_tile(pairs, diagonal ? WORDS_FROM : WHOLE, dk);
    multiply_tile(pairs, diagonal ? WORDS_TO : WHOLE, dq);
}

INLINE void backward_unit(int pairs, const struct cpu_attention *a, int64_t unit, char *scratch, char *sums,
                          struct cpu_attention_packed *packed)
{
    struct backward b;
    backward_layout(a, scratch, &b);
    b.dk = (float *)(void *)sums;
    b.dv = b.dk + (size_t)cpu_attention_tiles(a->k_length) * tile_words(a);
    memset(sums, 0, sums_bytes(a));
    int64_t head = unit / a->parts, part = unit % a->parts, batch = head / a->kv_heads;
    int64_t tiles = cpu_attention_tiles(a->q_length);
    int group = a->heads / a->kv_heads, first_head = (int)(head % a->kv_heads) * group;
    backward_pack(pairs, a, &b, head, packed);
    for (int64_t item = part; item < group * tiles; item += a->parts) {
        int q_head = first_head + (int)(item / tiles);
        int64_t q_tile = item % tiles;
        struct rows dq = rows_out(a, a->dq, a->q_length, a->heads, batch, q_head, q_tile);
        struct queries queries = queries_of(a, batch, q_tile);
        int rows = rows_up(pairs, dq.count);
        backward_queries(pairs, a, &b, batch, q_head, q_tile);
        memset(b.dq, 0, tile_words(a) * 4);
        for (int64_t k_tile = 0; k_tile < key_tiles(a, q_tile); k_tile++)
            backward_tile(pairs, a, &b, &queries, k_tile, rows);
        if (a->dq_given) {
            struct rows given = rows_in(a, a->dq_given, a->q_length, a->heads, batch, q_head, q_tile, 0);
            add_rows(&given, b.dq, width_of(a));
        }
        store_rows(&dq, b.dq, width_of(a));
    }
}

static void finish(const struct cpu_attention *a, int64_t head, int64_t tile, char *sums, size_t stride)
{
    size_t half = sums_bytes(a) / 2, at = (size_t)tile * tile_words(a) * 4;
    for (int which = 0; which < 2; which++) {
        struct rows rows = rows_out(a, which ? a->dv : a->dk, a->k_length, a->kv_heads, head / a->kv_heads,
                                    (int)(head % a->kv_heads), tile);
        const float *given = which ? a->dv_given : a->dk_given;
        float *sum = (float *)(void *)(sums + which * half + at);
        for (int part = 1; part < a->parts; part++) {
            const float *more = (const float *)(const void *)(sums + part * stride + which * half + at);
            for (size_t n = 0; n < tile_words(a); n += LANES)
                vec_store(sum + n, vec_load(sum + n) + vec_load(more + n));
        }
        if (given) {
            struct rows before =
                rows_in(a, given, a->k_length, a->kv_heads, head / a->kv_heads, (int)(head % a->kv_heads), tile, 0);
            add_rows(&before, sum, width_of(a));
        }
        store_rows(&rows, sum, width_of(a));
    }
}

/* --- the level's table --- */

static void forward(const struct cpu_attention *a, int64_t unit, char *scratch, struct cpu_attention_packed *packed)
{
    if (!HAS_PAIRS || !a->bf16) {
        forward_unit(0, a, unit, scratch, packed);
        return;
    }
    pairs_begin();
    forward_unit(HAS_PAIRS, a, unit, scratch, packed);
    pairs_end();
}

static void backward(const struct cpu_attention *a, int64_t unit, char *scratch, char *sums,
                     struct cpu_attention_packed *packed)
{
    if (!HAS_PAIRS || !a->bf16) {
        backward_unit(0, a, unit, scratch, sums, packed);
        return;
    }
    pairs_begin();
    backward_unit(HAS_PAIRS, a, unit, scratch, sums, packed);
    pairs_end();
}

#define JOIN(a, b) a##b
#define TABLE(level) JOIN(cpu_attention_, level)

extern const struct cpu_attention_level TABLE(CPU_LEVEL);

const struct cpu_attention_level TABLE(CPU_LEVEL) = {
    .forward_bytes = forward_bytes,
    .backward_bytes = backward_bytes,
    .sums_bytes = sums_bytes,
    .forward = forward,
    .backward = backward,
    .finish = finish,
};
