/* Feed: which rows and columns of the global batch each rank and micro-batch gets. A token is 100 row + column. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "flow_cpu.h"
#include "job.h"

enum { MICRO = 2, BATCH = 4, SEQUENCE = 8 };

struct fed {
    struct flow f;
    struct tn_program flat;
    struct flow_run run;
    struct tn_feed *feed;
};

static const int32_t *starts; /* of the batch that open_feed feeds */

/* A program of inputs alone would have no memory for them: each is read once. */
static void open_feed(struct fed *fed, const char *mesh, const char *micro_place, const char *step_place)
{
    char text[1024];
    const char *index_place = strstr(micro_place, "S1z") ? "cp: S0z, dp: R" : "dp: R";
    snprintf(
        text, sizeof text,
        "%sinput start: i32[4, 8] {%s}\ninput index: i32[8] {%s}\ninput tokens: i32[4, 8] {%s}\ninput labels: i32[4, "
        "8] {%s}\ninput positions: i32[4, 8] {%s}\n"
        "input labels.step: i32[2, 4, 8] {%s}\ninput lr: f32[]\n"
        "region prologue\n  n: f32[] = count_targets(labels: labels.step)\n  i: f32[] = count_targets(labels: index)\n"
        "region forward\n  a: f32[] = count_targets(labels: tokens)\n  b: f32[] = count_targets(labels: labels)\n"
        "  e: f32[] = count_targets(labels: start)\n  c: f32[] = count_targets(labels: positions)\n  d: f32[] = "
        "scale_by(x: c, s: lr)\n",
        mesh, micro_place, index_place, micro_place, micro_place, micro_place, step_place);
    flow_parse(&fed->f, text);
    tn_program_init(&fed->flat, &fed->f.mesh, fed->f.p.coord);
    tn_schedule(&fed->f.p, &fed->flat, MICRO, NULL, 0);
    flow_clean(&fed->flat);
    flow_run_open(&fed->run, &fed->flat, 0xff);
    fed->feed = tn_feed_new(fed->run.exec, &fed->flat);
    assert_non_null(fed->feed);
    int32_t tokens[MICRO * BATCH * SEQUENCE], labels[MICRO * BATCH * SEQUENCE];
    tn_feed_starts(fed->feed, starts);
    for (int r = 0; r < MICRO * BATCH; r++)
        for (int c = 0; c < SEQUENCE; c++) {
            tokens[r * SEQUENCE + c] = 100 * r + c;
            labels[r * SEQUENCE + c] = 10000 + 100 * r + c;
        }
    assert_int_equal(tn_feed_rows(fed->feed, tokens, labels), TN_OK);
}

static void close_feed(struct fed *fed)
{
    tn_feed_destroy(fed->feed);
    flow_run_close(&fed->run);
    tn_program_finish(&fed->flat);
    flow_finish(&fed->f);
}

/* Rows `row` of the global batch and columns `column`, plus `base`. */
static void holds(struct fed *fed, const char *name, const int *row, int rows, const int *column, int columns, int base)
{
    int32_t got[MICRO * BATCH * SEQUENCE];
    assert_int_equal(flow_run_elements(&fed->run, name), rows * columns);
    flow_run_read(&fed->run, name, got);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            assert_int_equal(got[r * columns + c], base + 100 * row[r] + column[c]);
}

#define N(array) (int)(sizeof(array) / sizeof *(array))
#define INTS(...) (const int[]){ __VA_ARGS__ }, N(((const int[]){ __VA_ARGS__ }))
#define COLUMNS INTS(0, 1, 2, 3, 4, 5, 6, 7)

static void one_rank_gets_all(void **state)
{
    struct fed fed;
    open_feed(&fed, "mesh dp=1\n", "dp: R", "dp: R");
    holds(&fed, "tokens@0", INTS(0, 1, 2, 3), COLUMNS, 0);
    holds(&fed, "tokens@1", INTS(4, 5, 6, 7), COLUMNS, 0);
    holds(&fed, "labels@1", INTS(4, 5, 6, 7), COLUMNS, 10000);
    holds(&fed, "labels.step", INTS(0, 1, 2, 3, 4, 5, 6, 7), COLUMNS, 10000);
    holds(&fed, "positions@1", INTS(0, 0, 0, 0), COLUMNS, 0);
    close_feed(&fed);
}

static void dp_cuts_each_micro_batch(void **state)
{
    struct fed fed;
    open_feed(&fed, "mesh dp=2\nrank dp=1\n", "dp: S0", "dp: S1");
    holds(&fed, "tokens@0", INTS(2, 3), COLUMNS, 0);
    holds(&fed, "tokens@1", INTS(6, 7), COLUMNS, 0);
    holds(&fed, "labels.step", INTS(2, 3, 6, 7), COLUMNS, 10000);
    close_feed(&fed);
}

static void shares_may_be_unequal(void **state)
{
    struct fed fed;
    open_feed(&fed, "mesh dp=2\nrank dp=0\nparts 1 = 3:1\n", "dp: S0/1", "dp: S1/1");
    holds(&fed, "tokens@1", INTS(4, 5, 6), COLUMNS, 0);
    holds(&fed, "labels.step", INTS(0, 1, 2, 4, 5, 6), COLUMNS, 10000);
    close_feed(&fed);
    open_feed(&fed, "mesh dp=2\nrank dp=1\nparts 1 = 3:1\n", "dp: S0/1", "dp: S1/1");
    holds(&fed, "tokens@1", INTS(7), COLUMNS, 0);
    holds(&fed, "labels.step", INTS(3, 7), COLUMNS, 10000);
    close_feed(&fed);
}

/* Tokens, labels and positions are cut alike. */
static void zigzag_takes_a_chunk_from_each_end(void **state)
{
    struct fed fed;
    open_feed(&fed, "mesh cp=2 dp=2\nrank cp=1 dp=1\n", "cp: S1z, dp: S0", "cp: S2z, dp: S1");
    holds(&fed, "tokens@1", INTS(6, 7), INTS(2, 3, 4, 5), 0);
    holds(&fed, "labels@0", INTS(2, 3), INTS(2, 3, 4, 5), 10000);
    holds(&fed, "labels.step", INTS(2, 3, 6, 7), INTS(2, 3, 4, 5), 10000);
    holds(&fed, "positions@0", INTS(0, 0), INTS(2, 3, 4, 5), 0);
    close_feed(&fed);
    open_feed(&fed, "mesh cp=2 dp=2\nrank cp=0 dp=0\n", "cp: S1z, dp: S0", "cp: S2z, dp: S1");
    holds(&fed, "tokens@0", INTS(0, 1), INTS(0, 1, 6, 7), 0);
    close_feed(&fed);
}

/* Row r begins its second document at column r % 8: positions count from there. */
static void documents_restart_positions(void **state)
{
    int32_t of[MICRO * BATCH * SEQUENCE];
    struct fed fed;
    int32_t got[MICRO * BATCH * SEQUENCE];
    static const int columns[] = { 2, 3, 4, 5 };
    for (int r = 0; r < MICRO * BATCH; r++)
        for (int c = 0; c < SEQUENCE; c++)
            of[r * SEQUENCE + c] = c >= r ? r : 0;
    starts = of;
    open_feed(&fed, "mesh cp=2 dp=2\nrank cp=1 dp=1\n", "cp: S1z, dp: S0", "cp: S2z, dp: S1");
    starts = NULL;
    holds(&fed, "index", INTS(0), INTS(2, 3, 4, 5), 0);
    flow_run_read(&fed.run, "start@0", got);
    for (int n = 0; n < 8; n++) /* rows 2 and 3 */
        assert_int_equal(got[n], columns[n % 4] >= 2 + n / 4 ? 2 + n / 4 : 0);
    flow_run_read(&fed.run, "positions@0", got);
    for (int n = 0; n < 8; n++)
        assert_int_equal(got[n], columns[n % 4] - (columns[n % 4] >= 2 + n / 4 ? 2 + n / 4 : 0));
    close_feed(&fed);
}

static void scalars_go_by_name(void **state)
{
    struct fed fed;
    open_feed(&fed, "mesh dp=1\n", "dp: R", "dp: R");
    assert_int_equal(tn_feed_step(fed.feed, 0.25f, 3, 2), TN_OK); /* the program has no other */
    assert_true(flow_run_scalar(&fed.run, "lr") == 0.25f);
    assert_int_equal(tn_feed_rows(fed.feed, (const int32_t[MICRO * BATCH * SEQUENCE]){ 0 }, NULL), TN_OK);
    holds(&fed, "labels@1", INTS(4, 5, 6, 7), COLUMNS, 10000); /* none were given */
    tn_feed_destroy(NULL);
    close_feed(&fed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_gets_all),           cmocka_unit_test(dp_cuts_each_micro_batch),
        cmocka_unit_test(shares_may_be_unequal),       cmocka_unit_test(zigzag_takes_a_chunk_from_each_end),
        cmocka_unit_test(documents_restart_positions), cmocka_unit_test(scalars_go_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
