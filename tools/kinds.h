/* Kinds: what check and run find out of every rank before any is launched. */
#ifndef TENON_KINDS_H
#define TENON_KINDS_H

#include "checkpoint/checkpoint.h"
#include "job.h"

enum { TOOL_MOST_KINDS = 64 };

/* Compiles the program of one rank of each kind, holds it against the budget, and looks at what the first step starts
 * from (*origin); problems are added to the job's. `each` sees every rank whose program there is; NULL: nobody does. */
void tool_compile_kinds(struct tn_job *job, struct tn_origin *origin,
                        void (*each)(void *ctx, int32_t rank, const struct tn_compiled *compiled), void *ctx);
/* Whether `rank` is the first of all that differ from it only on axes that are not in `mask`. */
int tool_is_first(const struct tn_job *job, int32_t rank, uint32_t mask);

#endif
