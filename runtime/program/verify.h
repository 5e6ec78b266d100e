/* Verify: what its two files share. verify.c checks what a program says; verify_place.c how it lies on the mesh. */
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
    int after;
    tn_op *def;         /* by value: the op of the list that makes it, 0 none */
    uint8_t *live;      /* by value: the program has it: an op makes or uses it, or no op ever made it */
    uint8_t *bad_value; /* what is said of it already makes further checks of it pointless */
    uint8_t *bad_op;
    size_t found;
};

/* One error about `op` (0: none). */
void tn_verify_report(struct tn_verify *vf, tn_op op, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* "w f32[61, 32]". */
enum { TN_VERIFY_TEXT = 256 };
const char *tn_verify_value(const struct tn_program *p, tn_value v, char text[TN_VERIFY_TEXT]);

/* The values' placements, by themselves. */
void tn_verify_placements(struct tn_verify *vf);
/* The ops', by the rows of their rule. */
void tn_verify_rows(struct tn_verify *vf);

#endif
