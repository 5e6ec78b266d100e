/* Report: what a run shows. Results on stdout, progress and logs on stderr, metrics as JSON lines in a file.
 *
 * Only rank 0 reports. On a TTY one progress line is redrawn, with colour unless NO_COLOR is set; elsewhere plain
 * lines at a sensible pace. */
#ifndef TENON_REPORT_H
#define TENON_REPORT_H

#include <stddef.h>
#include <stdint.h>

struct tn_step_report {
    int64_t step, steps; /* from 1 */
    double loss;         /* mean over the target tokens of the whole global batch */
    double grad_norm, lr;
    int64_t tokens; /* of this step, all ranks */
    double step_ms;
    double tokens_per_s;     /* of the whole job */
    double mfu;              /* negative: not known */
    uint64_t mem_peak_bytes; /* largest rank */
    int64_t skipped;         /* steps skipped so far */
};

struct tn_report;

/* metrics: file for JSON lines, or NULL; those up to step `after` stay, 0: a new file. -1 with *error set (static text
 * buffer of 256) if it cannot be written. */
int tn_report_open(struct tn_report **report, const char *metrics, int64_t after, char *error);
void tn_report_step(struct tn_report *report, const struct tn_step_report *step);
void tn_report_validation(struct tn_report *report, int64_t step, double loss); /* first, middle and last ones */
/* The step waited so long for the checkpoint made after it. */
void tn_report_checkpoint(struct tn_report *report, int64_t step, double stall_ms);
/* Prints the prompt and its continuation `text`; what could change a terminal's state is replaced. */
void tn_report_sample(struct tn_report *report, const char *prompt, const char *text, size_t bytes);
/* The closing summary; -1 if metrics could not be written completely (full disk). Accepts NULL. */
int tn_report_close(struct tn_report *report, char *error);

#endif
