/* Init: every layout starts from the same model, bit for bit; the numbers have the moments that were asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "flow_cpu.h"
#include "job.h"

enum { ROWS = 24, COLUMNS = 8, ALL = ROWS * COLUMNS };

/* The local part of `value` in the program `text`, started with `seed`; returns its number of elements. */
static int64_t started(const char *text, const char *value, int64_t seed, float *out)
{
    struct flow f;
    struct flow_run run;
    flow_parse(&f, text);
    flow_run_open(&run, &f.p, 0xff);
    assert_int_equal(tn_init_params(run.exec, &f.p, seed), TN_OK);
    flow_run_read(&run, value, out);
    int64_t n = flow_run_elements(&run, value);
    flow_run_close(&run);
    flow_finish(&f);
    return n;
}

#define W "param w: f32[24, 8]"
#define NORMAL " init=normal(0.5)\n"

static void whole(float *out)
{
    assert_int_equal(started(W NORMAL, "w", 7, out), ALL);
}

/* `row`, `column`: global indices of the local ones. */
static void check_part(const char *text, const int64_t *row, int64_t rows, const int64_t *column, int64_t columns)
{
    float all[ALL], part[ALL];
    whole(all);
    assert_int_equal(started(text, "w", 7, part), rows * columns);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            assert_memory_equal(&part[r * columns + c], &all[row[r] * COLUMNS + column[c]], sizeof *part);
}

static void run_of(int64_t *index, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        index[i] = first + i;
}

static void parts_are_slices_of_the_whole(void **state)
{
    char text[256];
    int64_t row[ROWS], column[COLUMNS];
    for (int rank = 0; rank < 4; rank++) {
        run_of(row, 0, ROWS);
        run_of(column, 2 * rank, 2);
        snprintf(text, sizeof text, "mesh tp=4\nrank tp=%d\n" W " {tp: S1}" NORMAL, rank);
        check_part(text, row, ROWS, column, 2);
        run_of(row, 6 * rank, 6);
        run_of(column, 0, COLUMNS);
        snprintf(text, sizeof text, "mesh tp=4\nrank tp=%d\n" W " {tp: S0}" NORMAL, rank);
        check_part(text, row, 6, column, COLUMNS);
        snprintf(text, sizeof text, "mesh tp=4\nrank tp=%d\n" W " {tp: R}" NORMAL, rank);
        run_of(row, 0, ROWS);
        check_part(text, row, ROWS, column, COLUMNS);
    }
}

static void slower_axes_cut_first(void **state)
{
    char text[256];
    int64_t row[ROWS], column[COLUMNS];
    for (int tp = 0; tp < 2; tp++)
        for (int dp = 0; dp < 3; dp++) {
            run_of(row, 8 * dp + 4 * tp, 4);
            run_of(column, 0, COLUMNS);
            snprintf(text, sizeof text, "mesh tp=2 dp=3\nrank tp=%d dp=%d\n" W " {tp: S0, dp: S0}" NORMAL, tp, dp);
            check_part(text, row, 4, column, COLUMNS);
        }
}

static void unequal_parts_and_zigzag(void **state)
{
    static const int64_t first[] = { 0, 15, 21 }, share[] = { 15, 6, 3 };
    char text[256];
    int64_t row[ROWS], column[COLUMNS];
    run_of(column, 0, COLUMNS);
    for (int rank = 0; rank < 3; rank++) {
        run_of(row, first[rank], share[rank]);
        snprintf(text, sizeof text, "mesh dp=3\nrank dp=%d\nparts 1 = 5:2:1\n" W " {dp: S0/1}" NORMAL, rank);
        check_part(text, row, share[rank], column, COLUMNS);
    }
    for (int rank = 0; rank < 3; rank++) {
        run_of(row, 4 * rank, 4);
        run_of(row + 4, 4 * (5 - rank), 4);
        snprintf(text, sizeof text, "mesh cp=3\nrank cp=%d\n" W " {cp: S0z}" NORMAL, rank);
        check_part(text, row, 8, column, COLUMNS);
    }
}

static void names_and_seeds_give_other_numbers(void **state)
{
    float one[ALL], other[ALL];
    whole(one);
    started(W NORMAL, "w", 8, other);
    assert_memory_not_equal(one, other, sizeof one);
    started("param w2: f32[24, 8]" NORMAL, "w2", 7, other);
    assert_memory_not_equal(one, other, sizeof one);
    started("param x: f32[3]\n" W NORMAL, "w", 7, other); /* who else is there does not matter */
    assert_memory_equal(one, other, sizeof one);
}

static void numbers_have_the_moments_asked_for(void **state)
{
    enum { N = 40000 };
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    assert_int_equal(started("param big: f32[200, 200] init=normal(0.02)\n", "big", 1, x), N);
    double sum = 0, square = 0, cube = 0, fourth = 0, beside = 0;
    for (int i = 0; i < N; i++) {
        double z = (double)x[i] / 0.02;
        sum += z;
        square += z * z;
        cube += z * z * z;
        fourth += z * z * z * z;
        beside += i ? z * (double)x[i - 1] / 0.02 : 0;
    }
    /* five deviations of each mean over N independent normals: sqrt of 1, 2, 15, 96 and 1 over N */
    assert_true(fabs(sum / N) < 5 / 200.0);
    assert_true(fabs(square / N - 1) < 5 * sqrt(2.0) / 200);
    assert_true(fabs(cube / N) < 5 * sqrt(15.0) / 200);
    assert_true(fabs(fourth / N - 3) < 5 * sqrt(96.0) / 200);
    assert_true(fabs(beside / N) < 5 / 200.0);
    free(x);
}

static void ones_zeros_and_states(void **state)
{
    float x[5];
    started("param w: f32[5] init=ones\n", "w", 1, x);
    for (int i = 0; i < 5; i++)
        assert_true(x[i] == 1.0f);
    started("param w: f32[5]\n", "w", 1, x);
    for (int i = 0; i < 5; i++)
        assert_true(x[i] == 0.0f);
    started("param w: f32[5] init=ones\nstate w.m: f32[5] like=w\n", "w.m", 1, x); /* whatever the memory held */
    for (int i = 0; i < 5; i++)
        assert_true(x[i] == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_slices_of_the_whole),      cmocka_unit_test(slower_axes_cut_first),
        cmocka_unit_test(unequal_parts_and_zigzag),           cmocka_unit_test(names_and_seeds_give_other_numbers),
        cmocka_unit_test(numbers_have_the_moments_asked_for), cmocka_unit_test(ones_zeros_and_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
