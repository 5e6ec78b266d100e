/* attention_block and attention_block_dx, one block of keys after the other, against plain double loops over all keys;
 * and attention with documents likewise. Queries and keys lie as a cut of the sequence leaves them: in order, zigzag,
 * or in any order; some queries see nothing at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_harness.h"

enum order { IN_ORDER, ZIGZAG, SHUFFLED };
enum { MOST_BLOCKS = 4 };

/* Queries of rank `rank` of `blocks`, each of `length` tokens; documents of about `document` tokens, 0: one. */
struct shape {
    int batch, length, blocks, rank, heads, kv_heads, head_dim, causal;
    enum order order;
    int document;
};

static const struct shape shapes[] = {
    { 1, 8, 1, 0, 1, 1, 8, 1, IN_ORDER, 0 },     { 2, 33, 2, 0, 2, 2, 16, 1, IN_ORDER, 0 },
    { 2, 33, 2, 1, 2, 1, 16, 1, IN_ORDER, 7 },   { 1, 128, 2, 0, 2, 1, 64, 1, ZIGZAG, 0 },
    { 1, 128, 2, 1, 4, 2, 24, 1, ZIGZAG, 50 },   { 1, 70, 4, 2, 6, 2, 12, 1, ZIGZAG, 0 },
    { 2, 70, 3, 1, 3, 3, 40, 1, ZIGZAG, 31 },    { 1, 97, 2, 1, 2, 1, 20, 1, SHUFFLED, 0 },
    { 1, 130, 2, 0, 1, 1, 96, 1, SHUFFLED, 60 }, { 1, 65, 2, 0, 2, 2, 32, 0, IN_ORDER, 0 },
    { 1, 200, 1, 0, 8, 1, 8, 1, IN_ORDER, 1 },   { 1, 64, 4, 3, 1, 1, 64, 1, ZIGZAG, 300 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct block {
    struct tn_tensor *k, *v, *ki, *dk, *dv;
};

struct problem {
    struct shape s;
    struct tn_tensor *q, *qi, *start, *d_o, *o, *o_low, *lse, *dq;
    struct block block[MOST_BLOCKS];
};

/* --- what lies where --- */

/* Index of token `at` of `rank`. */
static int index_of(const struct shape *s, int rank, int at)
{
    int all = s->length * s->blocks, half = s->length / 2;
    if (s->order == IN_ORDER)
        return rank * s->length + at;
    if (s->order == ZIGZAG)
        return at < half ? rank * half + at : (2 * s->blocks - 1 - rank) * half + at - half;
    int step = all / 3;
    while (step < 1 || all % step == 0) /* coprime enough: all are prime times a power of two, or so */
        step++;
    return (int)((int64_t)(rank * s->length + at) * step % all);
}

/* First token of the document of token `index`, another one in each sequence. */
static int start_of(const struct shape *s, int batch, int index)
{
    int length = s->document + batch;
    return s->document ? index / length * length : 0;
}

static int sees(const struct shape *s, int batch, int query, int key)
{
    return !s->causal || (key <= query && key >= start_of(s, batch, query));
}

/* --- the reference --- */

static double at(const struct tn_tensor *x, const struct shape *s, int heads, int b, int row, int head, int d)
{
    return harness_get(x, (((int64_t)b * x->shape[1] + row) * heads + head) * s->head_dim + d);
}

/* Weights of a query's keys, block after block; log of their sum, -INFINITY where it sees none. */
static double weights(const struct problem *p, int b, int row, int head, double *weight)
{
    const struct shape *s = &p->s;
    double most = -INFINITY, sum = 0;
    int kv = head / (s->heads / s->kv_heads), query = index_of(s, s->rank, row), keys = s->length * s->blocks;
    for (int n = 0; n < keys; n++) {
        const struct block *block = &p->block[n / s->length];
        double dot = 0;
        for (int d = 0; d < s->head_dim; d++)
            dot += at(p->q, s, s->heads, b, row, head, d) * at(block->k, s, s->kv_heads, b, n % s->length, kv, d);
        weight[n] = sees(s, b, query, index_of(s, n / s->length, n % s->length)) ? dot / sqrt(s->head_dim) : -INFINITY;
        most = fmax(most, weight[n]);
    }
    for (int n = 0; n < keys; n++)
        sum += weight[n] = most == -INFINITY ? 0 : exp(weight[n] - most);
    for (int n = 0; n < keys && sum > 0; n++)
        weight[n] /= sum;
    return sum > 0 ? most + log(sum) : -INFINITY;
}

struct wanted {
    double *dq, *dk[MOST_BLOCKS], *dv[MOST_BLOCKS], *weight, *dp;
};

static void check_row(const struct problem *p, struct wanted *w, int b, int row, int head, double tolerance)
{
    const struct shape *s = &p->s;
    int kv = head / (s->heads / s->kv_heads), keys = s->length * s->blocks;
    int64_t place = ((int64_t)b * s->length + row) * s->heads + head;
    double lse = weights(p, b, row, head, w->weight), mean = 0;
    if (lse == -INFINITY)
        assert_true(harness_get(p->lse, place) == -INFINITY);
    else
        harness_check(p->lse, place, lse, 1e-5);
    for (int d = 0; d < s->head_dim; d++) {
        double o = 0;
        for (int n = 0; n < keys; n++)
            o += w->weight[n] * at(p->block[n / s->length].v, s, s->kv_heads, b, n % s->length, kv, d);
        harness_check(p->o, place * s->head_dim + d, o, tolerance);
    }
    for (int n = 0; n < keys; n++) {
        w->dp[n] = 0;
        for (int d = 0; d < s->head_dim; d++)
            w->dp[n] += at(p->d_o, s, s->heads, b, row, head, d) *
                        at(p->block[n / s->length].v, s, s->kv_heads, b, n % s->length, kv, d);
        mean += w->weight[n] * w->dp[n];
    }
    for (int n = 0; n < keys; n++) {
        double ds = w->weight[n] * (w->dp[n] - mean) / sqrt(s->head_dim);
        int64_t to = (((int64_t)b * s->length + n % s->length) * s->kv_heads + kv) * s->head_dim;
        for (int d = 0; d < s->head_dim; d++) {
            w->dq[place * s->head_dim + d] +=
                ds * at(p->block[n / s->length].k, s, s->kv_heads, b, n % s->length, kv, d);
            w->dk[n / s->length][to + d] += ds * at(p->q, s, s->heads, b, row, head, d);
            w->dv[n / s->length][to + d] += w->weight[n] * at(p->d_o, s, s->heads, b, row, head, d);
        }
    }
}

static void check_tensor(const struct tn_tensor *got, double *want, double tolerance)
{
    for (int64_t n = 0; n < harness_elements(got); n++)
        harness_check(got, n, want[n], tolerance);
    free(want);
}

static void check(const struct problem *p, double forward, double backward)
{
    const struct shape *s = &p->s;
    size_t keys = (size_t)(s->length * s->blocks), of_q = (size_t)harness_elements(p->q);
    size_t of_k = (size_t)harness_elements(p->block[0].k);
    struct wanted w = { .dq = calloc(of_q, sizeof *w.dq),
                        .weight = calloc(keys, sizeof *w.weight),
                        .dp = calloc(keys, sizeof *w.dp) };
    for (int n = 0; n < s->blocks; n++) {
        w.dk[n] = calloc(of_k, sizeof *w.dk[n]);
        w.dv[n] = calloc(of_k, sizeof *w.dv[n]);
    }
    for (int b = 0; b < s->batch; b++)
        for (int row = 0; row < s->length; row++)
            for (int head = 0; head < s->heads; head++)
                check_row(p, &w, b, row, head, forward);
    check_tensor(p->dq, w.dq, backward);
    for (int n = 0; n < s->blocks; n++) {
        check_tensor(p->block[n].dk, w.dk[n], backward);
        check_tensor(p->block[n].dv, w.dv[n], backward);
    }
    free(w.weight);
    free(w.dp);
}

/* --- running --- */

static struct tn_tensor *indices(struct harness *h, const struct shape *s, int rank)
{
    struct tn_tensor *index = harness_tensor(h, TN_I32, 1, s->length);
    for (int n = 0; n < s->length; n++)
        ((int32_t *)index->data)[n] = index_of(s, rank, n);
    return index;
}

static void make(struct harness *h, struct problem *p, struct shape s, uint32_t dtype)
{
    memset(p, 0, sizeof *p);
    p->s = s;
    p->q = harness_tensor(h, dtype, 3, s.batch, s.length, s.heads * s.head_dim);
    p->d_o = harness_like(h, dtype, p->q);
    p->o_low = harness_like(h, dtype, p->q);
    p->o = harness_like(h, TN_F32, p->q);
    p->dq = harness_like(h, TN_F32, p->q);
    p->lse = harness_tensor(h, TN_F32, 3, s.batch, s.length, s.heads);
    p->qi = indices(h, &s, s.rank);
    p->start = harness_tensor(h, TN_I32, 2, s.batch, s.length);
    for (int b = 0; b < s.batch; b++)
        for (int n = 0; n < s.length; n++)
            ((int32_t *)p->start->data)[b * s.length + n] = start_of(&s, b, index_of(&s, s.rank, n));
    harness_fill(p->q, 1, 2);
    harness_fill(p->d_o, 4, 1);
    for (int n = 0; n < s.blocks; n++) {
        struct block *block = &p->block[n];
        block->k = harness_tensor(h, dtype, 3, s.batch, s.length, s.kv_heads * s.head_dim);
        block->v = harness_like(h, dtype, block->k);
        block->dk = harness_like(h, TN_F32, block->k);
        block->dv = harness_like(h, TN_F32, block->k);
        block->ki = indices(h, &s, n);
        harness_fill(block->k, 10 + (uint64_t)n, 2);
        harness_fill(block->v, 20 + (uint64_t)n, 1);
    }
}

#define ATTRS(s)                                                                           \
    {                                                                                      \
        TN_ATTR_F("scale", 1.0 / sqrt((s).head_dim)), TN_ATTR_I("head_dim", (s).head_dim), \
            TN_ATTR_I("causal", (s).causal)                                                \
    }

/* Block `first` and on, around, as a ring brings them. */
static void run_blocks(struct harness *h, struct problem *p)
{
    const struct shape *s = &p->s;
    const struct tn_attr attrs[] = ATTRS(*s);
    struct tn_tensor *start = s->document ? p->start : NULL;
    for (int n = 0; n < s->blocks; n++) {
        struct block *b = &p->block[(s->rank + n) % s->blocks];
        struct tn_tensor *o = n ? p->o : NULL, *lse = n ? p->lse : NULL;
        assert_int_equal(HARNESS_RUN(h, TN_OP_ATTENTION_BLOCK, HARNESS_T(p->q, b->k, b->v, p->qi, b->ki, start, o, lse),
                                     HARNESS_T(p->o, p->lse), attrs),
                         TN_OK);
    }
    for (int64_t n = 0; n < harness_elements(p->o); n++)
        harness_set(p->o_low, n, harness_get(p->o, n));
    for (int n = 0; n < s->blocks; n++) {
        struct block *b = &p->block[(s->rank + n) % s->blocks];
        assert_int_equal(HARNESS_RUN(h, TN_OP_ATTENTION_BLOCK_DX,
                                     HARNESS_T(p->d_o, p->q, b->k, b->v, p->o_low, p->lse, p->qi, b->ki, start,
                                               n ? p->dq : NULL, NULL, NULL),
                                     HARNESS_T(p->dq, b->dk, b->dv), attrs),
                         TN_OK);
    }
}

static void check_all(int64_t threads, int64_t isa, uint32_t dtype)
{
    struct harness h;
    harness_open(&h, threads, isa);
    for (size_t n = 0; n < SHAPES; n++) {
        struct problem p;
        make(&h, &p, shapes[n], dtype);
        run_blocks(&h, &p);
        check(&p, dtype == TN_BF16 ? 1e-2 : 1e-5, dtype == TN_BF16 ? 4e-2 : 5e-5);
        harness_clear(&h);
    }
    harness_close(&h);
}

static void f32(void **state)
{
    check_all(1, 0, TN_F32);
    check_all(3, 0, TN_F32);
}

static void bf16(void **state)
{
    check_all(1, 0, TN_BF16);
    check_all(2, 0, TN_BF16);
}

static void baseline(void **state)
{
    check_all(1, 1, TN_F32);
    check_all(1, 1, TN_BF16);
}

static void avx2(void **state)
{
    check_all(1, 2, TN_F32);
}

static void avx512(void **state)
{
    check_all(1, 3, TN_BF16);
}

static void avx512_bf16(void **state)
{
    check_all(1, 4, TN_BF16);
}

/* attention itself, where there is one block in order. */
static void documents_of_a_whole_sequence(void **state)
{
    static const uint32_t dtypes[] = { TN_F32, TN_BF16 };
    struct harness h;
    harness_open(&h, 2, 0);
    for (size_t n = 0; n < 2 * SHAPES; n++) {
        struct problem p;
        struct shape s = shapes[n / 2];
        if (!s.causal)
            continue;
        s.blocks = 1;
        s.rank = 0;
        s.order = IN_ORDER;
        s.document = s.document ? s.document : 20;
        make(&h, &p, s, dtypes[n % 2]);
        p.o = harness_like(&h, dtypes[n % 2], p.q);
        p.dq = harness_like(&h, dtypes[n % 2], p.q);
        struct block *b = &p.block[0];
        b->dk = harness_like(&h, dtypes[n % 2], b->k);
        b->dv = harness_like(&h, dtypes[n % 2], b->k);
        const struct tn_attr attrs[] = ATTRS(s);
        assert_int_equal(
            HARNESS_RUN(&h, TN_OP_ATTENTION, HARNESS_T(p.q, b->k, b->v, p.start), HARNESS_T(p.o, p.lse), attrs), TN_OK);
        assert_int_equal(HARNESS_RUN(&h, TN_OP_ATTENTION_DX, HARNESS_T(p.d_o, p.q, b->k, b->v, p.o, p.lse, p.start),
                                     HARNESS_T(p.dq, b->dk, b->dv), attrs),
                         TN_OK);
        check(&p, n % 2 ? 1e-2 : 1e-5, n % 2 ? 4e-2 : 5e-5);
        harness_clear(&h);
    }
    harness_close(&h);
}

/* A rank before all keys of a block: o = 0, lse = -inf, gradients 0; and what there was so far stays. */
static void nothing_seen_is_nothing_added(void **state)
{
    struct harness h;
    harness_open(&h, 2, 0);
    struct problem p;
    make(&h, &p, (struct shape){ 2, 67, 2, 0, 2, 1, 16, 1, IN_ORDER, 0 }, TN_F32);
    const struct tn_attr attrs[] = ATTRS(p.s);
    struct block *b = &p.block[1];
    harness_fill(p.o, 1, 1);
    harness_fill(p.dq, 1, 1);
    harness_fill(b->dk, 1, 1);
    for (int run = 0; run < 2; run++) { /* with documents: each begins behind the block */
        assert_int_equal(HARNESS_RUN(&h, TN_OP_ATTENTION_BLOCK,
                                     HARNESS_T(p.q, b->k, b->v, p.qi, b->ki, run ? p.start : NULL),
                                     HARNESS_T(p.o, p.lse), attrs),
                         TN_OK);
        assert_int_equal(HARNESS_RUN(&h, TN_OP_ATTENTION_BLOCK_DX,
                                     HARNESS_T(p.d_o, p.q, b->k, b->v, p.o, p.lse, p.qi, b->ki, run ? p.start : NULL),
                                     HARNESS_T(p.dq, b->dk, b->dv), attrs),
                         TN_OK);
        for (int64_t n = 0; n < harness_elements(p.lse); n++)
            assert_true(harness_get(p.lse, n) == -INFINITY);
        for (int64_t n = 0; n < harness_elements(p.q); n++)
            assert_true(harness_get(p.o, n) == 0 && harness_get(p.dq, n) == 0);
        for (int64_t n = 0; n < harness_elements(b->dk); n++)
            assert_true(harness_get(b->dk, n) == 0 && harness_get(b->dv, n) == 0);
    }
    harness_fill(p.o, 7, 1);
    harness_fill(p.lse, 8, 1);
    struct tn_tensor *o = harness_like(&h, TN_F32, p.o), *lse = harness_like(&h, TN_F32, p.lse);
    for (int in_place = 0; in_place < 2; in_place++) {
        assert_int_equal(HARNESS_RUN(&h, TN_OP_ATTENTION_BLOCK,
                                     HARNESS_T(p.q, b->k, b->v, p.qi, b->ki, NULL, p.o, p.lse),
                                     HARNESS_T(in_place ? p.o : o, in_place ? p.lse : lse), attrs),
                         TN_OK);
        for (int64_t n = 0; n < harness_elements(o); n++)
            harness_check(in_place ? p.o : o, n, harness_get(in_place ? o : p.o, n), 1e-6);
        for (int64_t n = 0; n < harness_elements(lse); n++)
            harness_check(in_place ? p.lse : lse, n, harness_get(in_place ? lse : p.lse, n), 1e-6);
    }
    harness_close(&h);
}

static void gradients_add_to_what_is_given(void **state)
{
    struct harness h;
    harness_open(&h, 2, 0);
    struct problem p;
    make(&h, &p, (struct shape){ 1, 100, 1, 0, 4, 2, 16, 1, SHUFFLED, 30 }, TN_F32);
    run_blocks(&h, &p);
    struct block *b = &p.block[0];
    const struct tn_attr attrs[] = ATTRS(p.s);
    struct tn_tensor *dq = harness_like(&h, TN_F32, p.q), *dk = harness_like(&h, TN_F32, b->k),
                     *dv = harness_like(&h, TN_F32, b->k);
    harness_fill(dq, 1, 1);
    harness_fill(dk, 2, 1);
    harness_fill(dv, 3, 1);
    struct tn_tensor *out[3] = { harness_like(&h, TN_F32, dq), harness_like(&h, TN_F32, dk),
                                 harness_like(&h, TN_F32, dk) };
    assert_int_equal(HARNESS_RUN(&h, TN_OP_ATTENTION_BLOCK_DX,
                                 HARNESS_T(p.d_o, p.q, b->k, b->v, p.o, p.lse, p.qi, b->ki, p.start, dq, dk, dv),
                                 HARNESS_T(out[0], out[1], out[2]), attrs),
                     TN_OK);
    const struct tn_tensor *given[] = { dq, dk, dv }, *alone[] = { p.dq, b->dk, b->dv };
    for (int which = 0; which < 3; which++)
        for (int64_t n = 0; n < harness_elements(out[which]); n++)
            harness_check(out[which], n, harness_get(given[which], n) + harness_get(alone[which], n), 1e-6);
    harness_close(&h);
}

/* A training step must be able to see that something is wrong. */
static void nan_is_not_hidden(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct problem p;
    make(&h, &p, (struct shape){ 1, 40, 2, 1, 1, 1, 16, 1, IN_ORDER, 0 }, TN_F32);
    for (int d = 0; d < 16; d++)
        harness_set(p.q, 3 * 16 + d, NAN);
    run_blocks(&h, &p);
    assert_true(isnan(harness_get(p.o, 3 * 16)) && isnan(harness_get(p.lse, 3)) && isfinite(harness_get(p.lse, 4)));
    assert_true(isnan(harness_get(p.dq, 3 * 16)) && isnan(harness_get(p.block[0].dk, 0)));
    harness_close(&h);
}

static void what_does_not_fit_is_refused(void **state)
{
    struct harness h;
    harness_open(&h, 1, 0);
    struct problem p;
    make(&h, &p, (struct shape){ 1, 8, 1, 0, 1, 1, 8, 1, IN_ORDER, 0 }, TN_F32);
    struct block *b = &p.block[0];
    const struct tn_attr attrs[] = ATTRS(p.s);
    struct tn_tensor *few = harness_tensor(&h, TN_I32, 1, 7);
    assert_int_equal(
        HARNESS_RUN(&h, TN_OP_ATTENTION_BLOCK, HARNESS_T(p.q, b->k, b->v, few, b->ki), HARNESS_T(p.o, p.lse), attrs),
        TN_UNSUPPORTED);
    assert_non_null(strstr(h.message, "qi and ki"));
    assert_int_equal(HARNESS_RUN(&h, TN_OP_ATTENTION_BLOCK, HARNESS_T(p.q, b->k, b->v, p.qi, b->ki, few),
                                 HARNESS_T(p.o, p.lse), attrs),
                     TN_UNSUPPORTED);
    assert_non_null(strstr(h.message, "start"));
    assert_int_equal(HARNESS_RUN(&h, TN_OP_ATTENTION_BLOCK, HARNESS_T(p.q, b->k, b->v, p.qi, b->ki, NULL, p.o),
                                 HARNESS_T(p.o, p.lse), attrs),
                     TN_UNSUPPORTED);
    assert_non_null(strstr(h.message, "both o and lse"));
    harness_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32),
        cmocka_unit_test(bf16),
        cmocka_unit_test(baseline),
        cmocka_unit_test(avx2),
        cmocka_unit_test(avx512),
        cmocka_unit_test(avx512_bf16),
        cmocka_unit_test(documents_of_a_whole_sequence),
        cmocka_unit_test(nothing_seen_is_nothing_added),
        cmocka_unit_test(gradients_add_to_what_is_given),
        cmocka_unit_test(nan_is_not_hidden),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests_name("cpu_attention_block", tests, NULL, NULL);
}
