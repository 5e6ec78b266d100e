/* Report: metrics as JSON lines, plain progress, results, text made safe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <pty.h>

#include "run/report.h"
#include "scratch.h"

static int setup(void **state)
{
    scratch_open();
    return 0;
}

static int teardown(void **state)
{
    scratch_close();
    return 0;
}

static struct tn_step_report step_report(int64_t step, int64_t steps)
{
    return (struct tn_step_report){ .step = step,
                                    .steps = steps,
                                    .loss = 5.5 / (double)step,
                                    .grad_norm = 1.25,
                                    .lr = 3e-4,
                                    .tokens = 2048,
                                    .step_ms = 10.5,
                                    .tokens_per_s = 195047.6,
                                    .mfu = -1,
                                    .mem_peak_bytes = 1 << 20 };
}

struct output {
    char *out, *err;
};

static void output_free(struct output *output)
{
    free(output->out);
    free(output->err);
}

static int count(const char *text, const char *word)
{
    int found = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        found++;
    return found;
}

/* Runs `body` with both streams in files. */
static struct output capture(void (*body)(void))
{
    int out = scratch_capture(STDOUT_FILENO, "out"), err = scratch_capture(STDERR_FILENO, "err");
    body();
    scratch_restore(STDERR_FILENO, err);
    scratch_restore(STDOUT_FILENO, out);
    return (struct output){ scratch_read("out", NULL), scratch_read("err", NULL) };
}

static int close_status;
static char close_error[256];

static void whole_run(void)
{
    struct tn_report *report;
    if (tn_report_open(&report, scratch_path("m.jsonl"), 0, close_error) != 0)
        abort();
    tn_report_validation(report, 0, 5.5452);
    for (int64_t step = 1; step <= 300; step++) {
        struct tn_step_report s = step_report(step, 300);
        tn_report_step(report, &s);
        if (step == 150)
            tn_report_validation(report, step, 2.5);
    }
    tn_report_validation(report, 300, 1.8731);
    tn_report_sample(report, "int ", "main(\x1b[31m)", 11);
    close_status = tn_report_close(report, close_error);
}

static void test_plain_run(void **state)
{
    struct output o = capture(whole_run);
    assert_int_equal(close_status, 0);
    assert_string_equal(o.out, "sample:\nint main(\xEF\xBF\xBD[31m)\n"
                               "training loss 5.5000 -> 0.0183 (step 300)\n"
                               "validation loss 5.5452 -> 1.8731 (step 300)\n"
                               "validation perplexity 256.01 -> 6.51, ratio 0.0254\n");
    assert_int_equal(count(o.err, "step 1/300: loss 5.5000, grad norm 1.25, lr 0.0003, 195048 tokens/s, 0:03 left\n"),
                     1);
    assert_int_equal(count(o.err, "/300: loss"), 11); /* the first one and each tenth */
    assert_int_equal(count(o.err, "step 150: validation loss 2.5000\n"), 1);
    assert_int_equal(count(o.err, "300 steps, 614400 tokens in 0:00; 1.0 MiB of memory a rank\n"), 1);
    assert_null(strchr(o.err, '\r'));
    assert_null(strchr(o.err, '\033'));
    output_free(&o);
}

static void test_metrics(void **state)
{
    struct output o = capture(whole_run);
    output_free(&o);
    char *text = scratch_read("m.jsonl", NULL), *save = NULL;
    int64_t lines = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_error_t error;
        json_t *object = json_loads(line, 0, &error);
        assert_non_null(object);
        static const char *const keys[] = { "step",         "loss", "grad_norm",      "lr",     "tokens", "step_ms",
                                            "tokens_per_s", "mfu",  "mem_peak_bytes", "skipped" };
        assert_int_equal(json_object_size(object), sizeof keys / sizeof *keys);
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            assert_non_null(json_object_get(object, keys[i]));
        assert_int_equal(json_integer_value(json_object_get(object, "step")), ++lines);
        assert_true(fabs(json_number_value(json_object_get(object, "loss")) - 5.5 / (double)lines) < 1e-8);
        assert_true(json_is_null(json_object_get(object, "mfu")));
        assert_int_equal(json_integer_value(json_object_get(object, "mem_peak_bytes")), 1 << 20);
        json_decref(object);
    }
    assert_int_equal(lines, 300);
    free(text);
}

static void not_finite(void)
{
    struct tn_report *report;
    if (tn_report_open(&report, scratch_path("m.jsonl"), 0, close_error) != 0)
        abort();
    struct tn_step_report s = step_report(1, 2);
    s.loss = NAN;
    s.grad_norm = INFINITY;
    s.mfu = 0.5;
    s.skipped = 1;
    tn_report_step(report, &s);
    close_status = tn_report_close(report, close_error);
}

static void test_not_finite(void **state)
{
    struct output o = capture(not_finite);
    char *text = scratch_read("m.jsonl", NULL);
    assert_string_equal(text, "{\"step\": 1, \"loss\": null, \"grad_norm\": null, \"lr\": 0.0003, \"tokens\": 2048, "
                              "\"step_ms\": 10.500, \"tokens_per_s\": 195047.6, \"mfu\": 0.5000, "
                              "\"mem_peak_bytes\": 1048576, \"skipped\": 1}\n");
    assert_int_equal(count(o.err, "step 1: the gradients are not finite; skipped (1 so far)\n"), 1);
    assert_string_equal(o.out, "training loss nan (step 1)\n");
    free(text);
    output_free(&o);
}

static void full_disk(void)
{
    struct tn_report *report;
    if (tn_report_open(&report, "/dev/full", 0, close_error) != 0)
        abort();
    for (int64_t step = 1; step <= 3; step++) {
        struct tn_step_report s = step_report(step, 3);
        tn_report_step(report, &s);
    }
    close_status = tn_report_close(report, close_error);
}

static void test_full_disk(void **state)
{
    struct output o = capture(full_disk);
    assert_int_equal(close_status, -1);
    assert_string_equal(close_error, "metrics in /dev/full are not complete: No space left on device");
    assert_int_equal(count(o.err, "cannot write metrics to /dev/full: No space left on device"), 1);
    output_free(&o);
}

/* Standard output on a full disk: the results are lost, and the status must say so. */
static void test_full_stdout(void **state)
{
    fflush(NULL);
    int saved = dup(STDOUT_FILENO), full = open("/dev/full", O_WRONLY);
    int err = scratch_capture(STDERR_FILENO, "err");
    dup2(full, STDOUT_FILENO);
    whole_run();
    clearerr(stdout);
    scratch_restore(STDERR_FILENO, err);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(full);
    assert_int_equal(close_status, -1);
    assert_non_null(strstr(close_error, "standard output: No space left"));
}

static void test_metrics_refused(void **state)
{
    struct tn_report *report;
    char error[256];
    assert_int_equal(tn_report_open(&report, scratch_path("no/such/m"), 0, error), -1);
    assert_non_null(strstr(error, "No such file"));
    assert_null(report);
    assert_int_equal(tn_report_close(NULL, error), 0);
}

static const char *sample_text;
static size_t sample_bytes;

static void print_sample(void)
{
    struct tn_report *report;
    if (tn_report_open(&report, NULL, 0, close_error) != 0)
        abort();
    tn_report_sample(report, "", sample_text, sample_bytes);
    close_status = tn_report_close(report, close_error);
}

static void check_sample(const char *text, size_t bytes, const char *expected)
{
    sample_text = text;
    sample_bytes = bytes;
    struct output o = capture(print_sample);
    assert_memory_equal(o.out, "sample:\n", 8);
    assert_string_equal(o.out + 8, expected);
    output_free(&o);
}

#define BAD "\xEF\xBF\xBD"

static void test_safe_text(void **state)
{
    check_sample("a\tb\nc\n", 6, "a\tb\nc\n");
    check_sample("", 0, "");
    check_sample("h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80", 12, "h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\n");
    check_sample("\0\r\x1b\x7f", 4, BAD BAD BAD BAD "\n");
    check_sample("\xC2\x9B"
                 "31m",
                 5, BAD "31m\n");                              /* C1: the one-byte escape */
    check_sample("\xE2\x80\xAE", 3, BAD "\n");                 /* right-to-left override */
    check_sample("\xC0\xAF", 2, BAD BAD "\n");                 /* overlong */
    check_sample("\xED\xA0\x80", 3, BAD BAD BAD "\n");         /* surrogate */
    check_sample("\xF4\x90\x80\x80", 4, BAD BAD BAD BAD "\n"); /* beyond U+10FFFF */
    check_sample("\xE2\x82", 2, BAD BAD "\n");                 /* cut short */
}

/* On a terminal: one line redrawn, no wider than the screen, in colour unless NO_COLOR is set. */
static char *on_terminal(const char *term, const char *no_color)
{
    int master, slave;
    struct winsize size = { .ws_row = 24, .ws_col = 60 };
    assert_int_equal(openpty(&master, &slave, NULL, NULL, &size), 0);
    setenv("TERM", term, 1);
    setenv("NO_COLOR", no_color, 1);
    int out = scratch_capture(STDOUT_FILENO, "out"), saved = dup(STDERR_FILENO);
    dup2(slave, STDERR_FILENO);
    struct tn_report *report;
    int opened = tn_report_open(&report, NULL, 0, close_error);
    for (int64_t step = 1; step <= 4 && opened == 0; step++) {
        struct tn_step_report s = step_report(step, 4);
        tn_report_step(report, &s);
        if (step == 2)
            tn_report_validation(report, step, 2.5);
    }
    if (opened == 0)
        tn_report_close(report, close_error);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(slave);
    scratch_restore(STDOUT_FILENO, out);
    static char text[8192];
    size_t length = 0;
    ssize_t got; /* a terminal passes text on in pieces; after the last one it fails, as nobody has its other end */
    while (length < sizeof text - 1 && (got = read(master, text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)got;
    text[length] = 0;
    close(master);
    return text;
}

static void test_terminal(void **state)
{
    char *text = on_terminal("xterm", "");
    assert_int_equal(count(text, "step 4/4 [====================] loss 1.3750"), 1);
    assert_int_equal(count(text, "\033[36m"), 2); /* the first step and the last: the others come too soon */
    assert_int_equal(count(text, "\r\033[Kstep 2: validation loss 2.5000"), 1);
    char *line = strstr(text, "step 1/4");
    assert_non_null(line);
    assert_int_equal(strcspn(line, "\033"), 59);
    text = on_terminal("xterm", "1");
    assert_int_equal(count(text, "step 4/4 ["), 1);
    assert_null(strstr(text, "\033[36m"));
    text = on_terminal("dumb", "");
    assert_null(strstr(text, "\033["));
    assert_int_equal(count(text, "step 4/4: loss"), 1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_plain_run),   T(test_metrics),         T(test_not_finite), T(test_full_disk),
        T(test_full_stdout), T(test_metrics_refused), T(test_safe_text),  T(test_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
