/* Log: lines on stderr, "tenon: rank 1: text". Results go to stdout, never through here. */
#ifndef TENON_BASE_LOG_H
#define TENON_BASE_LOG_H

#include <stdarg.h>

/* Levels are TN_LOG_* of <tenon/host.h>. Below `level` nothing is printed (default: WARN,
 * or TENON_LOG=debug|info|warn|error). rank < 0: no rank in the prefix. One write a line,
 * so that lines of several ranks do not mix. Any thread. */
void tn_log_setup(int rank, int level);
int tn_log_level(const char *name); /* TN_LOG_*; -1: no such level */
void tn_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tn_vlog(int level, const char *who, const char *fmt, va_list args); /* who: plugin, or NULL */

#endif
