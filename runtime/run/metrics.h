/* Metrics: one JSON object a step, one a line, in a file; part of the report. */
#ifndef TENON_METRICS_H
#define TENON_METRICS_H

#include <sys/types.h>

#include "run/report.h"

struct tn_metrics {
    int fd; /* -1: none */
    char *path;
    off_t written; /* bytes of whole lines */
    int failed;    /* errno of the first write that failed; 0 */
};

/* Before any rank starts: -1 with *error (a buffer of 256) set if the path cannot be written to. Opens nothing. */
int tn_metrics_check(const char *path, char *error);
/* path NULL: nothing is written. A run that goes on after step `after` keeps the lines up to it; 0: a new file. -1 with
 * *error set. */
int tn_metrics_open(struct tn_metrics *metrics, const char *path, int64_t after, char *error);
/* A failure is logged once and ends the writing; the file then holds only whole lines. */
void tn_metrics_step(struct tn_metrics *metrics, const struct tn_step_report *step);
/* {"step": 5, "checkpoint_ms": 1.250} */
void tn_metrics_checkpoint(struct tn_metrics *metrics, int64_t step, double stall_ms);
/* -1 with *error set if not every line is in the file. */
int tn_metrics_close(struct tn_metrics *metrics, char *error);

#endif
