/* Pipeline: no schedule of pp blocks, whatever the backend does with the order of messages; both sides of every message
 * mean the same one; and the bubble is what the formula says.
 *
 * Jobs are compiled for every rank and walked by passes/timeline.c: sends end when they are received, ranks wait where
 * their plans wait, and in the strict way each rank's channel does one thing after another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "flow.h"
#include "job.h"
#include "passes/timeline.h"
#include "scratch.h"

enum { LAYERS = 12, MOST_RANKS = 8, MOST_MESSAGES = 1024, MOST_SET = 16 };

static const char *const manifest =
    "[gpt]\nlayers = 12\nhidden = 64\nheads = 4\nvocab = 16\n[data]\npath = a.txt\nsequence = 16\nvalidation = 0\n"
    "[strategies]\nchain = pp\n";

/* One setting of a job. */
struct layout {
    const char *family, *schedule;
    int ranks, chunks, micro_batches, vocab;
    const char *more; /* another override, or NULL */
};

/* "layers.3.out 2 -> 3 @1": what a rank sends or receives, by channel and peer. */
struct flow_log {
    char text[MOST_MESSAGES][96];
    int n;
};

static struct flow_log sent[MOST_RANKS][MOST_RANKS][TN_MAX_CHANNELS], received[MOST_RANKS][MOST_RANKS][TN_MAX_CHANNELS];

static void open_job(struct tn_job *job, const struct layout *l)
{
    char text[MOST_SET][64];
    const char *set[MOST_SET];
    size_t n = 0;
#define SET(...) (snprintf(text[n], sizeof text[n], __VA_ARGS__), set[n] = text[n], n++)
    SET("gpt.family=%s", l->family);
    SET("gpt.vocab=%d", l->vocab);
    SET("pp.schedule=%s", l->schedule);
    SET("pp.size=%d", l->ranks);
    if (l->chunks > 1)
        SET("pp.chunks=%d", l->chunks);
    SET("data.micro_batches=%d", l->micro_batches);
    SET("data.batch=%d", l->micro_batches);
    if (l->more)
        SET("%s", l->more);
#undef SET
    if (tn_job_open(job, scratch_path("job.ini"), set, n, 0))
        tn_diag_print(&job->diag, stderr);
    assert_int_equal(job->diag.count, 0);
}

/* Value, stage from and to: the op's name says the other stage, "x.to3" or "x.at3". */
static void log_message(struct flow_log *log, const struct tn_program *p, tn_op op)
{
    const struct tn_op_data *o = &p->ops[op];
    assert_true(log->n < MOST_MESSAGES);
    int sends = o->opcode == TN_OP_SEND;
    const char *value = p->values[sends ? o->in[0] : o->out[0]].name;
    const char *to = strstr(o->name, sends ? ".to" : ".at");
    assert_non_null(to);
    int length = (int)(sends ? strcspn(value, "@") : (size_t)(to - o->name));
    snprintf(log->text[log->n++], sizeof log->text[0], "%.*s -> %d @%d", length < 60 ? length : 60, value, atoi(to + 3),
             o->micro);
}

static void log_messages(const struct tn_program *flat, int32_t rank)
{
    TN_EACH_OP(flat, op) {
        const struct tn_op_data *o = &flat->ops[op];
        int64_t peer = tn_attr_i(flat, op, "peer", 0), channel = tn_attr_i(flat, op, "channel", 0);
        if (o->opcode == TN_OP_SEND)
            log_message(&sent[rank][peer][channel], flat, op);
        else if (o->opcode == TN_OP_RECV)
            log_message(&received[peer][rank][channel], flat, op);
    }
}

static void compile_all(struct tn_job *job, int ranks, struct tn_timeline *t)
{
    memset(sent, 0, sizeof sent);
    memset(received, 0, sizeof received);
    tn_timeline_init(t, ranks);
    for (int32_t rank = 0; rank < ranks; rank++) {
        struct tn_compiled c;
        if (tn_job_compile(job, TN_PROGRAM_TRAIN, rank, 0, 0, NULL, NULL, &c) != TN_OK)
            tn_diag_print(&job->diag, stderr);
        assert_int_equal(job->diag.count, 0);
        tn_timeline_add(t, rank, &c.plan);
        log_messages(&c.flat, rank);
        tn_compiled_finish(&c);
    }
}

static void check_messages(int ranks)
{
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < ranks; b++)
            for (int channel = 0; channel < TN_MAX_CHANNELS; channel++) {
                const struct flow_log *s = &sent[a][b][channel], *r = &received[a][b][channel];
                assert_int_equal(s->n, r->n);
                for (int i = 0; i < s->n; i++)
                    assert_string_equal(s->text[i], r->text[i]);
            }
}

static void describe(const struct layout *l, const char *what)
{
    print_error("%s, %s, %d ranks, %d chunks, %d micro-batches: %s\n", l->family, l->schedule, l->ranks, l->chunks,
                l->micro_batches, what);
}

static struct tn_bubble run(const struct layout *l)
{
    struct tn_job job;
    struct tn_timeline t;
    char error[1024] = "";
    open_job(&job, l);
    compile_all(&job, l->ranks, &t);
    for (int in_order = 1; in_order >= 0; in_order--) {
        tn_status status = tn_timeline_run(&t, in_order, error, sizeof error);
        if (status != TN_OK)
            describe(l, error);
        assert_int_equal(status, TN_OK);
    }
    check_messages(l->ranks);
    struct tn_bubble bubble = tn_timeline_bubble(&t);
    tn_timeline_finish(&t);
    tn_job_close(&job);
    return bubble;
}

static const char *const schedules[] = { "gpipe", "1f1b", "interleaved", "zero-bubble" };
enum { INTERLEAVED = 2 };

static void no_schedule_blocks(void **state)
{
    static const int micro_batches[] = { 1, 2, 4, 5 };
    int n = 0;
    for (size_t s = 0; s < 4; s++)
        for (int ranks = 2; ranks <= 4; ranks++)
            for (size_t m = 0; m < sizeof micro_batches / sizeof *micro_batches; m++)
                for (int chunks = s == INTERLEAVED ? 2 : 1;
                     chunks <= (s == INTERLEAVED ? LAYERS / ranks : 1) && chunks <= 4; chunks++) {
                    struct layout l = { n % 2 ? "gpt2" : "llama",
                                        schedules[s],
                                        ranks,
                                        chunks,
                                        micro_batches[m],
                                        16,
                                        (n + 1) % 3 ? "gpt.tied=true" : "pp.layers=cost" };
                    run(&l);
                    n++;
                }
}

/* Beside others, whose communication stays in the slots of its stage. */
static void no_schedule_blocks_where_stages_are_unequal(void **state)
{
    for (size_t s = 0; s < 4; s++) {
        struct layout l = { "gpt2",
                            schedules[s],
                            5,
                            s == INTERLEAVED ? 2 : 1,
                            7,
                            4096,
                            s == INTERLEAVED ? "pp.layers=1, 1, 1, 2, 1, 1, 1, 1, 2, 1" : "pp.layers=1, 5, 1, 3, 2" };
        run(&l);
    }
}

/* Equal stages but for embedding and head, which are small here. */
static void the_bubble_is_the_formulas(void **state)
{
    for (size_t s = 0; s < 4; s++)
        for (int ranks = 2; ranks <= 4; ranks += 2)
            for (int chunks = s == INTERLEAVED ? 2 : 1; chunks <= (s == INTERLEAVED ? 3 : 1); chunks++) {
                struct layout l = { "llama", schedules[s], ranks, chunks, 2 * ranks, 16, NULL };
                if (LAYERS % (ranks * chunks))
                    continue;
                struct tn_bubble b = run(&l);
                if (b.idle > b.formula + 0.02 || b.idle < b.formula - 0.02) {
                    char text[128];
                    snprintf(text, sizeof text, "idle %.3f, by the formula %.3f", b.idle, b.formula);
                    describe(&l, text);
                    fail();
                }
            }
}

/* (p - 1) / m of the ideal time; a third of that with equal forward, backward and weight parts. */
static void the_formula_is_the_known_one(void **state)
{
    struct layout l = { "llama", "1f1b", 4, 1, 12, 16, NULL };
    double plain = run(&l).formula, ideal = 3.0 / 12;
    assert_true(plain > ideal / (1 + ideal) - 1e-9 && plain < ideal / (1 + ideal) + 1e-9);
    l.schedule = "interleaved";
    l.chunks = 3;
    double chunks = run(&l).formula;
    assert_true(chunks > ideal / 3 / (1 + ideal / 3) - 1e-9 && chunks < ideal / 3 / (1 + ideal / 3) + 1e-9);
    l.schedule = "zero-bubble";
    l.chunks = 1;
    double zero = run(&l).formula;
    assert_true(zero > 0.8 * ideal / 3 && zero < 1.4 * ideal / 3);
}

/* what the walk itself must find */

struct two_ranks {
    struct flow f[2];
    struct tn_plan plan[2];
    struct tn_timeline t;
};

static tn_status walk(const char *first, const char *second, int in_order, char *error, size_t bytes)
{
    struct two_ranks two;
    const char *const text[] = { first, second };
    tn_timeline_init(&two.t, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        flow_parse(&two.f[rank], text[rank]);
        flow_clean(&two.f[rank].p);
        two.f[rank].mesh.axis[0].stages = 1;
        tn_plan_init(&two.plan[rank], &two.f[rank].p, NULL, 0);
        tn_timeline_add(&two.t, rank, &two.plan[rank]);
    }
    tn_status status = tn_timeline_run(&two.t, in_order, error, bytes);
    for (int32_t rank = 0; rank < 2; rank++) {
        tn_plan_finish(&two.plan[rank]);
        flow_finish(&two.f[rank]);
    }
    tn_timeline_finish(&two.t);
    return status;
}

#define RANK(lines) "mesh pp=2\ninput x: f32[4] {pp: R}\nregion forward\n" lines
#define SENDS(channel) "  send(x: x) axis=0 peer=1 channel=" channel " @micro=0 @name=out\n"
#define RECEIVES(peer, channel)                                           \
    "  y: f32[4] {pp: R} = recv(_) axis=0 peer=" peer " channel=" channel \
    " @micro=0\n  z: f32[4] {pp: R} = gelu(x: y) @micro=0\n"
#define ANSWERS(channel) "  send(x: x) axis=0 peer=0 channel=" channel " @micro=0 @name=back\n"

static void the_walk_finds_ranks_that_wait_for_each_other(void **state)
{
    char error[1024] = "";
    assert_int_equal(
        walk(RANK(RECEIVES("1", "1") SENDS("1")), RANK(RECEIVES("0", "1") ANSWERS("1")), 0, error, sizeof error),
        TN_TIMEOUT);
    assert_string_equal(error, "rank 0 waits for ever for y from rank 1; rank 1 waits for ever for y from rank 0");
    assert_int_equal(
        walk(RANK(SENDS("1") RECEIVES("1", "1")), RANK(ANSWERS("1") RECEIVES("0", "1")), 0, error, sizeof error),
        TN_OK);
}

/* What is fine with two channels blocks with one, where a backend keeps the order. */
static void the_walk_knows_order_on_a_channel(void **state)
{
    char error[1024] = "";
    for (int in_order = 0; in_order < 2; in_order++) {
        assert_int_equal(walk(RANK(SENDS("1") RECEIVES("1", "1")), RANK(ANSWERS("1") RECEIVES("0", "1")), in_order,
                              error, sizeof error),
                         in_order ? TN_TIMEOUT : TN_OK);
        assert_int_equal(walk(RANK(SENDS("1") RECEIVES("1", "2")), RANK(ANSWERS("2") RECEIVES("0", "1")), in_order,
                              error, sizeof error),
                         TN_OK);
    }
}

static void the_walk_finds_messages_that_do_not_meet(void **state)
{
    char error[1024] = "";
    assert_int_equal(walk(RANK(SENDS("1")), RANK(RECEIVES("0", "2")), 0, error, sizeof error), TN_CONFLICT);
    assert_non_null(strstr(error, "message 0 between ranks 0 and 1 on channel 1 is out on rank 0 and none on rank 1"));
    assert_int_equal(
        walk(RANK("  send(x: x) axis=0 peer=1 @micro=1 @name=out\n"), RANK(RECEIVES("0", "0")), 0, error, sizeof error),
        TN_CONFLICT);
}

/* All ranks, one after another, are what each is alone; returns how many were lowered by themselves. */
static int compile_next(const struct layout *l)
{
    struct tn_job job;
    struct tn_lowered lowered = { .is_done = 0 };
    int by_themselves = 0;
    open_job(&job, l);
    for (int32_t rank = 0; rank < l->ranks; rank++) {
        struct tn_compiled alone, next;
        assert_int_equal(tn_job_compile(&job, TN_PROGRAM_TRAIN, rank, 0, 0, NULL, NULL, &alone), TN_OK);
        assert_int_equal(tn_job_compile_next(&job, TN_PROGRAM_TRAIN, rank, &lowered, &next), TN_OK);
        by_themselves += lowered.coord[0] == rank;
        char *expected[] = { flow_text(&alone.program), flow_text(&alone.flat) };
        char *found[] = { flow_text(&next.program), flow_text(&next.flat) };
        for (int i = 0; i < 2; i++) {
            assert_string_equal(found[i], expected[i]);
            free(expected[i]);
            free(found[i]);
        }
        assert_int_equal(tn_plan_bytes(&next.plan), tn_plan_bytes(&alone.plan));
        assert_true(next.flops == alone.flops);
        tn_compiled_finish(&next);
        tn_compiled_finish(&alone);
    }
    tn_lowered_finish(&lowered);
    tn_job_close(&job);
    return by_themselves;
}

static void ranks_share_what_was_lowered(void **state)
{
    assert_int_equal(compile_next(&(struct layout){ "llama", "interleaved", 4, 2, 4, 16, "pp.layers=cost" }), 1);
}

/* Its choice comes from a plan, which is of one rank. */
static void ranks_share_nothing_that_one_of_them_chose(void **state)
{
    static const char chain[] = "strategies.chain=ckpt, pp";
    scratch_text("job.ini", "[gpt]\nlayers = 12\nhidden = 64\nheads = 4\nvocab = 16\n[data]\npath = a.txt\n"
                            "sequence = 16\nvalidation = 0\n[device]\nmemory = 4M\n[ckpt]\nmode = auto\n");
    assert_int_equal(compile_next(&(struct layout){ "gpt2", "1f1b", 3, 1, 4, 16, chain }), 3);
    scratch_text("job.ini", manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_what_was_lowered),
        cmocka_unit_test(ranks_share_nothing_that_one_of_them_chose),
        cmocka_unit_test(no_schedule_blocks),
        cmocka_unit_test(no_schedule_blocks_where_stages_are_unequal),
        cmocka_unit_test(the_bubble_is_the_formulas),
        cmocka_unit_test(the_formula_is_the_known_one),
        cmocka_unit_test(the_walk_finds_ranks_that_wait_for_each_other),
        cmocka_unit_test(the_walk_knows_order_on_a_channel),
        cmocka_unit_test(the_walk_finds_messages_that_do_not_meet),
    };
    scratch_open();
    scratch_text("job.ini", manifest);
    scratch_text("a.txt", "not read\n");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_close();
    return failed;
}
