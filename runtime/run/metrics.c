/* Metrics: see metrics.h. */
#include "run/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenon/host.h>

#include "base/buf.h"
#include "base/log.h"

/* Bytes of the whole lines up to that of the first step after `step`. */
static off_t end_of(const char *path, int64_t step)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    ssize_t length;
    off_t end = 0;
    while (file && (length = getline(&line, &cap, file)) > 0 && line[length - 1] == '\n') {
        long long of;
        if (sscanf(line, "{\"step\": %lld", &of) == 1 && of > step)
            break;
        end += length;
    }
    free(line);
    if (file)
        fclose(file);
    return end;
}

static int cannot(const char *path, char *error)
{
    snprintf(error, 256, "cannot write metrics to %.180s: %.40s", path, strerror(errno));
    return -1;
}

int tn_metrics_check(const char *path, char *error)
{
    struct stat info;
    int is_there = path && stat(path, &info) == 0;
    if (!path || (is_there && !S_ISDIR(info.st_mode) && access(path, W_OK) == 0))
        return 0;
    if (is_there && S_ISDIR(info.st_mode))
        errno = EISDIR;
    char *copy = !is_there && errno == ENOENT && *path ? strdup(path) : NULL;
    int is_writable = copy && access(dirname(copy), W_OK | X_OK) == 0;
    free(copy);
    return is_writable ? 0 : cannot(path, error);
}

int tn_metrics_open(struct tn_metrics *metrics, const char *path, int64_t after, char *error)
{
    *metrics = (struct tn_metrics){ .fd = -1 };
    if (!path)
        return 0;
    metrics->path = strdup(path);
    struct stat info;
    if (after > 0 && stat(path, &info) == 0 && S_ISREG(info.st_mode))
        metrics->written = end_of(path, after);
    metrics->fd = open(path, O_WRONLY | O_CREAT | (metrics->written ? 0 : O_TRUNC) | O_CLOEXEC, 0666);
    if (metrics->path && metrics->fd >= 0 &&
        (!metrics->written || (ftruncate(metrics->fd, metrics->written) == 0 &&
                               lseek(metrics->fd, metrics->written, SEEK_SET) == metrics->written)))
        return 0;
    cannot(path, error);
    if (metrics->fd >= 0)
        close(metrics->fd);
    free(metrics->path);
    *metrics = (struct tn_metrics){ .fd = -1 };
    return -1;
}

/* JSON has no NaN and no infinity. */
static void add_number(struct tn_buf *line, const char *key, double number, const char *format)
{
    tn_buf_printf(line, ", \"%s\": ", key);
    if (isfinite(number)) {
        char text[64];
        snprintf(text, sizeof text, format, number);
        tn_buf_printf(line, "%s", text);
    } else {
        tn_buf_printf(line, "null");
    }
}

static int write_all(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t wrote = write(fd, text, length);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return -1;
        text += wrote;
        length -= (size_t)wrote;
    }
    return 0;
}

/* Frees the line. */
static void write_line(struct tn_metrics *metrics, struct tn_buf *line)
{
    if (write_all(metrics->fd, line->text, line->length) == 0) {
        metrics->written += (off_t)line->length;
    } else {
        metrics->failed = errno ? errno : EIO;
        tn_log(TN_LOG_ERROR, "cannot write metrics to %s: %s; the run goes on without", metrics->path,
               strerror(metrics->failed));
        int cut = ftruncate(metrics->fd, metrics->written); /* the part of a line; pipes have no length to cut */
        (void)cut;
    }
    tn_buf_finish(line);
}

void tn_metrics_step(struct tn_metrics *metrics, const struct tn_step_report *step)
{
    if (metrics->fd < 0 || metrics->failed)
        return;
    struct tn_buf line;
    tn_buf_init(&line);
    tn_buf_printf(&line, "{\"step\": %lld", (long long)step->step);
    add_number(&line, "loss", step->loss, "%.9g");
    add_number(&line, "grad_norm", step->grad_norm, "%.9g");
    add_number(&line, "lr", step->lr, "%.9g");
    tn_buf_printf(&line, ", \"tokens\": %lld", (long long)step->tokens);
    add_number(&line, "step_ms", step->step_ms, "%.3f");
    add_number(&line, "tokens_per_s", step->tokens_per_s, "%.1f");
    add_number(&line, "mfu", step->mfu < 0 ? NAN : step->mfu, "%.4f");
    tn_buf_printf(&line, ", \"mem_peak_bytes\": %llu, \"skipped\": %lld}\n", (unsigned long long)step->mem_peak_bytes,
                  (long long)step->skipped);
    write_line(metrics, &line);
}

void tn_metrics_checkpoint(struct tn_metrics *metrics, int64_t step, double stall_ms)
{
    struct tn_buf line;
    if (metrics->fd < 0 || metrics->failed)
        return;
    tn_buf_init(&line);
    tn_buf_printf(&line, "{\"step\": %lld, \"checkpoint_ms\": %.3f}\n", (long long)step, stall_ms);
    write_line(metrics, &line);
}

int tn_metrics_close(struct tn_metrics *metrics, char *error)
{
    if (metrics->fd < 0)
        return 0;
    if (close(metrics->fd) != 0 && !metrics->failed)
        metrics->failed = errno;
    metrics->fd = -1;
    if (metrics->failed)
        snprintf(error, 256, "metrics in %.160s are not complete: %s", metrics->path, strerror(metrics->failed));
    free(metrics->path);
    return metrics->failed ? -1 : 0;
}
