/* Resolve: every value gets a placement on every axis, and collectives stand where types ask for them.
 *
 * The rule and what it yields for one transformer block: docs/decisions/resolve.md. */
#ifndef TENON_RESOLVE_H
#define TENON_RESOLVE_H

#include "program/ops.h"

/* One row of an op's placement rule on one axis. Inputs beyond TN_OP_MOST_FIXED are as the first. */
struct tn_row {
    tn_placement in[TN_OP_MOST_FIXED], out[TN_OP_MOST_FIXED];
};
enum { TN_MOST_ROWS = 32 };

/* Requires: pins and wants of the strategies. Establishes: a placement for every value on every axis, each op's a
 * row of its rule; no partial at a non-linear op. Preserves: the values computed. */
void tn_resolve(struct tn_program *p);

/* Placement of an op that a strategy adds after resolve: the row that its inputs have; an error if there is none. */
void tn_resolve_late(struct tn_program *p, tn_op op);
/* 1 if `placement` cuts v into whole, non-empty parts on `axis`, other axes' cuts counted. */
int tn_placement_fits(const struct tn_program *p, tn_value v, int32_t axis, tn_placement placement);
/* "shard(1)", "partial(sum)": as messages say it. Static text for the few that have no number, else from buf. */
const char *tn_placement_text(tn_placement placement, char buf[48]);

#endif
