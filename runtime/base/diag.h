/* Diag: the problems found so far, so that all are reported in one go.
 *
 * Every user error goes through here. One prints as
 *     job.ini:12: [tp] size: 3 does not divide heads = 8; use 1, 2, 4 or 8
 * What is not known (no line, no key) is left out. */
#ifndef TENON_BASE_DIAG_H
#define TENON_BASE_DIAG_H

#include <stdio.h>

#include "base/arena.h"

struct tn_where {
    const char *file;          /* NULL: none */
    int line;                  /* 0: none */
    const char *section, *key; /* NULL: none */
};

struct tn_problem {
    struct tn_where where;
    const char *what, *fix; /* fix: what would work; NULL: none */
};

struct tn_diag {
    struct tn_arena arena;
    struct tn_problem *problems;
    size_t count, cap;
};

void tn_diag_init(struct tn_diag *diag);
void tn_diag_finish(struct tn_diag *diag);
/* Copies everything. `fix` may be NULL; it is plain text, `what` is a format. */
void tn_diag_add(struct tn_diag *diag, struct tn_where where, const char *fix, const char *what, ...)
    __attribute__((format(printf, 4, 5)));
/* One line a problem, in order of file and line, then of being found. */
void tn_diag_print(const struct tn_diag *diag, FILE *out);
/* The line of one problem, without newline, in the diag's arena. */
const char *tn_diag_text(struct tn_diag *diag, const struct tn_problem *problem);

#endif
