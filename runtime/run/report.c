/* Report: see report.h. Pace and look of the progress lines, the closing results, and text made safe to print.
 *
 * Standard output has only results (losses at the end, the sample), so that it can be piped; all else is stderr. */
#include "run/report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "run/metrics.h"
#include "data/unicode.h"

#define REDRAW_S 0.1 /* between two pictures of the progress line */
#define PLAIN_S 5.0  /* between two plain lines; longer runs have rarer ones, up to: */
#define PLAIN_MAX 60.0
#define BAR 20

struct tn_report {
    struct tn_metrics metrics;
    int tty, colour;
    int drawn;            /* a progress line is on the screen */
    double opened, shown; /* seconds: begin of the run, and of the line shown last */
    double first_at;      /* the first step's end */
    int64_t first_step, steps_done, tokens;
    struct tn_step_report last;
    double first_loss;
    int validations;
    int64_t validation_step;
    double first_validation, last_validation;
    int stdout_failed; /* errno */
};

int tn_report_open(struct tn_report **report, const char *metrics, int64_t after, char *error)
{
    *report = NULL;
    struct tn_report *r = calloc(1, sizeof *r);
    if (!r) {
        snprintf(error, 256, "out of memory");
        return -1;
    }
    if (tn_metrics_open(&r->metrics, metrics, after, error) != 0) {
        free(r);
        return -1;
    }
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    r->tty = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    r->colour = r->tty && !(no_color && *no_color);
    r->opened = r->shown = tn_now_s();
    *report = r;
    return 0;
}

/* One write, so that the lines of several processes do not mix. */
static void put_stderr(const struct tn_buf *text)
{
    ssize_t wrote = write(STDERR_FILENO, text->text, text->length);
    (void)wrote;
}

/* Takes the progress line away, so that something else can be printed. */
static void clear_line(struct tn_report *r)
{
    static const char clear[] = "\r\033[K";
    if (r->drawn) {
        ssize_t wrote = write(STDERR_FILENO, clear, sizeof clear - 1);
        (void)wrote;
    }
    r->drawn = 0;
}

static void add_duration(struct tn_buf *line, double seconds)
{
    long long s = seconds > 0 && seconds < 1e12 ? (long long)(seconds + 0.5) : 0;
    if (s >= 3600)
        tn_buf_printf(line, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        tn_buf_printf(line, "%lld:%02lld", s / 60, s % 60);
}

/* By the mean of all steps but the first, which also pays for warming up. */
static double seconds_left(const struct tn_report *r, const struct tn_step_report *step, double now)
{
    int64_t measured = step->step - r->first_step;
    double each = measured > 0 ? (now - r->first_at) / (double)measured : step->step_ms * 1e-3;
    return each * (double)(step->steps - step->step);
}

static int columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void draw(struct tn_report *r, const struct tn_step_report *step, double now)
{
    struct tn_buf text, line;
    tn_buf_init(&text);
    tn_buf_init(&line);
    int filled = step->steps > 0 ? (int)(step->step * BAR / step->steps) : 0;
    tn_buf_printf(&text, "step %lld/%lld [", (long long)step->step, (long long)step->steps);
    for (int i = 0; i < BAR; i++)
        tn_buf_add(&text, i < filled ? "=" : i == filled ? ">" : " ", 1);
    tn_buf_printf(&text, "] loss %.4f  %.0f tokens/s  ", step->loss, step->tokens_per_s);
    add_duration(&text, seconds_left(r, step, now));
    tn_buf_printf(&text, " left");
    size_t room = (size_t)columns() - 1; /* a full line would make some terminals wrap */
    tn_buf_printf(&line, "\r%s%.*s%s\033[K", r->colour ? "\033[36m" : "",
                  (int)(text.length < room ? text.length : room), text.text, r->colour ? "\033[0m" : "");
    put_stderr(&line);
    r->drawn = 1;
    tn_buf_finish(&line);
    tn_buf_finish(&text);
}

static void print_plain(const struct tn_report *r, const struct tn_step_report *step, double now)
{
    struct tn_buf line;
    tn_buf_init(&line);
    tn_buf_printf(&line, "step %lld/%lld: loss %.4f, grad norm %.3g, lr %.3g, %.0f tokens/s, ", (long long)step->step,
                  (long long)step->steps, step->loss, step->grad_norm, step->lr, step->tokens_per_s);
    add_duration(&line, seconds_left(r, step, now));
    tn_buf_printf(&line, " left\n");
    put_stderr(&line);
    tn_buf_finish(&line);
}

/* The first step, the last one, each tenth of the run, and some time after the line before. */
static int is_due(const struct tn_report *r, const struct tn_step_report *step, double now)
{
    if (r->steps_done == 0 || step->step == step->steps)
        return 1;
    double since = now - r->shown, pace = (now - r->opened) / PLAIN_MAX;
    if (r->tty)
        return since >= REDRAW_S;
    pace = pace < PLAIN_S ? PLAIN_S : pace > PLAIN_MAX ? PLAIN_MAX : pace;
    return since >= pace || (step->steps > 0 && step->step * 10 / step->steps != (step->step - 1) * 10 / step->steps);
}

static void note(struct tn_report *r, const struct tn_buf *line)
{
    clear_line(r);
    put_stderr(line);
}

static void note_skip(struct tn_report *r, const struct tn_step_report *step)
{
    struct tn_buf line;
    tn_buf_init(&line);
    tn_buf_printf(&line, "step %lld: the gradients are not finite; skipped (%lld so far)\n", (long long)step->step,
                  (long long)step->skipped);
    note(r, &line);
    tn_buf_finish(&line);
}

void tn_report_step(struct tn_report *r, const struct tn_step_report *step)
{
    double now = tn_now_s();
    tn_metrics_step(&r->metrics, step);
    if (r->steps_done == 0) {
        r->first_step = step->step;
        r->first_at = now;
        r->first_loss = step->loss;
    }
    if (step->skipped > r->last.skipped)
        note_skip(r, step);
    if (is_due(r, step, now)) {
        if (r->tty)
            draw(r, step, now);
        else
            print_plain(r, step, now);
        r->shown = now;
    }
    r->steps_done++;
    r->tokens += step->tokens;
    r->last = *step;
}

void tn_report_checkpoint(struct tn_report *r, int64_t step, double stall_ms)
{
    tn_metrics_checkpoint(&r->metrics, step, stall_ms);
}

void tn_report_validation(struct tn_report *r, int64_t step, double loss)
{
    if (r->validations++ == 0)
        r->first_validation = loss;
    r->last_validation = loss;
    r->validation_step = step;
    struct tn_buf line;
    tn_buf_init(&line);
    tn_buf_printf(&line, "step %lld: validation loss %.4f\n", (long long)step, loss);
    note(r, &line);
    tn_buf_finish(&line);
}

/* Moves the cursor, changes modes or turns the direction of text: not for a terminal. */
static int is_control(uint32_t code)
{
    return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0) ||
           (code >= 0x200E && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
           (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

static void add_safe(struct tn_buf *out, const char *text, size_t bytes)
{
    static const char replacement[] = "\xEF\xBF\xBD";
    for (size_t i = 0; i < bytes;) {
        uint32_t code = 0;
        size_t length = tn_utf8_read(text + i, bytes - i, &code);
        if (length == 0 || is_control(code))
            tn_buf_add(out, replacement, 3);
        else
            tn_buf_add(out, text + i, length);
        i += length ? length : 1;
    }
}

static void put_result(struct tn_report *r, struct tn_buf *text)
{
    clear_line(r);
    if ((fwrite(text->text, 1, text->length, stdout) != text->length || fflush(stdout) != 0) && !r->stdout_failed)
        r->stdout_failed = errno ? errno : EIO;
    tn_buf_finish(text);
}

void tn_report_sample(struct tn_report *r, const char *prompt, const char *text, size_t bytes)
{
    struct tn_buf out;
    tn_buf_init(&out);
    tn_buf_printf(&out, "sample:\n");
    add_safe(&out, prompt, strlen(prompt));
    add_safe(&out, text, bytes);
    if (out.text[out.length - 1] != '\n')
        tn_buf_add(&out, "\n", 1);
    put_result(r, &out);
}

/* "training loss 5.5 -> 1.9 (step 300)" */
static void add_losses(struct tn_buf *out, const char *name, int several, double first, double last, int64_t step)
{
    if (several)
        tn_buf_printf(out, "%s loss %.4f -> %.4f (step %lld)\n", name, first, last, (long long)step);
    else
        tn_buf_printf(out, "%s loss %.4f (step %lld)\n", name, last, (long long)step);
}

static void print_results(struct tn_report *r)
{
    struct tn_buf out;
    tn_buf_init(&out);
    if (r->steps_done > 0)
        add_losses(&out, "training", r->steps_done > 1, r->first_loss, r->last.loss, r->last.step);
    if (r->validations > 0)
        add_losses(&out, "validation", r->validations > 1, r->first_validation, r->last_validation, r->validation_step);
    if (r->validations > 1 && isfinite(r->first_validation - r->last_validation))
        tn_buf_printf(&out, "validation perplexity %.2f -> %.2f, ratio %.4f\n", exp(r->first_validation),
                      exp(r->last_validation), exp(r->last_validation - r->first_validation));
    put_result(r, &out);
}

static void print_summary(struct tn_report *r)
{
    struct tn_buf line;
    tn_buf_init(&line);
    double seconds = tn_now_s() - r->opened;
    tn_buf_printf(&line, "%lld step%s, %lld tokens in ", (long long)r->steps_done, r->steps_done == 1 ? "" : "s",
                  (long long)r->tokens);
    add_duration(&line, seconds);
    tn_buf_printf(&line, "; %.1f MiB of memory a rank", (double)r->last.mem_peak_bytes / (1 << 20));
    if (r->last.skipped > 0)
        tn_buf_printf(&line, "; %lld steps skipped", (long long)r->last.skipped);
    tn_buf_printf(&line, "\n");
    note(r, &line);
    tn_buf_finish(&line);
}

int tn_report_close(struct tn_report *r, char *error)
{
    if (!r)
        return 0;
    int done = 0;
    if (r->drawn) {
        ssize_t wrote = write(STDERR_FILENO, "\n", 1); /* the last picture stays */
        (void)wrote;
        r->drawn = 0;
    }
    if (r->steps_done > 0)
        print_summary(r);
    print_results(r);
    if (r->stdout_failed) {
        snprintf(error, 256, "cannot write results to standard output: %s", strerror(r->stdout_failed));
        done = -1;
    }
    if (tn_metrics_close(&r->metrics, error) != 0)
        done = -1;
    free(r);
    return done;
}
