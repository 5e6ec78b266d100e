/* Verify: what its files share. verify.c checks what a program says; verify_place.c how it lies on the mesh;
 * verify_alike.c tells which ops need no look. */
#ifndef TENON_VERIFY_H
#define TENON_VERIFY_H

#include "program/ops.h"

/* The arrows of the flow, in order. */
enum tn_after {
    TN_AFTER_MODEL,
    TN_AFTER_GRAD,
    TN_AFTER_PLACE,
    TN_AFTER_RESOLVE,
    TN_AFTER_LOWER,
    TN_AFTER_SCHEDULE,
    TN_AFTER_BOUND,
    TN_AFTER_END
};

struct tn_verify {
    struct tn_program *p;
    struct tn_arena memory; /* of one verification */
    int after;
    tn_op *def;         /* by value: the op of the list that makes it, 0 none */
    uint8_t *live;      /* by value: the program has it: an op makes or uses it, or no op ever made it */
    uint8_t *bad_value; /* what is said of it already makes further checks of it pointless */
    uint8_t *bad_op;
    tn_op
        *first; /* by op: the first one that is alike, itself if there is none before it or its values are not there */
    size_t found;
};

/* One error about `op` (0: none). */
void tn_verify_report(struct tn_verify *vf, tn_op op, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* "w f32[61, 32]". */
enum { TN_VERIFY_TEXT = 256 };
const char *tn_verify_value(const struct tn_program *p, tn_value v, char text[TN_VERIFY_TEXT]);

/* Whether an op before it that is alike was held to its rules, and is as they say. */
static inline int tn_verify_is_known(const struct tn_verify *vf, tn_op op)
{
    return vf->first[op] != op && !vf->bad_op[vf->first[op]];
}

/* The first op alike among those asked about so far, itself if it is that. Its values must exist. The memory must live
 * as long as the table. */
struct tn_alike *tn_alike_new(struct tn_arena *memory);
tn_op tn_alike_first(struct tn_alike *alike, struct tn_arena *memory, const struct tn_program *p, tn_op op);
void tn_alike_finish(struct tn_alike *alike);

/* The values' placements, by themselves. */
void tn_verify_placements(struct tn_verify *vf);
/* The ops', by the rows of their rule. */
void tn_verify_rows(struct tn_verify *vf);

#endif
