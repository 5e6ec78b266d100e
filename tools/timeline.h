/* Timeline: the pipeline's schedule drawn, for dump and check. */
#ifndef TENON_TOOL_TIMELINE_H
#define TENON_TOOL_TIMELINE_H

#include <stdio.h>

#include "job.h"
#include "passes/timeline.h"

/* Compiles every stage's rank and draws what they do; the exit code. mode: TN_PROGRAM_*. */
int tool_timeline(struct tn_job *job, int mode, int svg);
/* One line: how much of the time ranks wait, and what the formula says. */
void tool_print_bubble(const struct tn_timeline *t, FILE *out);

#endif
