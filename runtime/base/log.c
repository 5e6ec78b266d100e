/* Log: see log.h. */
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tenon/host.h>

static int log_rank = -1, log_level = TN_LOG_WARN;

int tn_log_level(const char *name)
{
    static const char *const names[] = { "debug", "info", "warn", "error" };
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

void tn_log_setup(int rank, int level)
{
    const char *asked = getenv("TENON_LOG");
    int found = asked ? tn_log_level(asked) : -1;
    log_rank = rank;
    log_level = found >= 0 ? found : level;
}

void tn_vlog(int level, const char *who, const char *fmt, va_list args)
{
    static const char *const prefix[] = { "debug: ", "", "warning: ", "error: " };
    if (level < log_level)
        return;
    char line[4096];
    int n = snprintf(line, sizeof line, "tenon: ");
    if (log_rank >= 0)
        n += snprintf(line + n, sizeof line - (size_t)n, "rank %d: ", log_rank);
    if (who)
        n += snprintf(line + n, sizeof line - (size_t)n, "%.64s: ", who);
    n += snprintf(line + n, sizeof line - (size_t)n, "%s", prefix[level & 3]);
    int room = (int)sizeof line - n - 1;
    int text = vsnprintf(line + n, (size_t)room, fmt, args);
    n += text < room ? text : room - 1;
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)n);
    (void)written;
}

void tn_log(int level, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tn_vlog(level, NULL, fmt, args);
    va_end(args);
}
