/* Flow: small programs written as text (docs/program.md), for tests that take them through passes by hand; and the
 * executor on the cpu device, for tests that run what came out. Any failure fails the test. */
#ifndef TENON_TESTS_FLOW_H
#define TENON_TESTS_FLOW_H

#include "run/exec.h"
#include "passes/passes.h"
#include "passes/resolve.h"

struct flow {
    struct tn_mesh mesh;
    struct tn_program p;
};

void flow_parse(struct flow *f, const char *text);
void flow_finish(struct flow *f);
/* The program as text; the caller frees it. */
char *flow_text(const struct tn_program *p);
/* Fails unless the program, as text, contains `line`. */
void flow_has(const struct tn_program *p, const char *line);
void flow_has_not(const struct tn_program *p, const char *line);
/* Fails unless the program has recorded exactly one error, which contains `what`. */
void flow_refused(const struct tn_program *p, const char *what);
/* Fails if there are errors, with their text. */
void flow_clean(const struct tn_program *p);
tn_value flow_value(const struct tn_program *p, const char *name);
tn_op flow_op(const struct tn_program *p, const char *name);                 /* 0: none */
int flow_count(const struct tn_program *p, uint32_t opcode, int32_t region); /* region -1: any */

#endif
