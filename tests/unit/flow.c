/* Flow: see flow.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "flow.h"

void flow_parse(struct flow *f, const char *text)
{
    tn_program_init(&f->p, &f->mesh, NULL);
    if (tn_program_parse(&f->p, &f->mesh, text, strlen(text)))
        fail_msg("%s", f->p.errors[0]);
}

void flow_finish(struct flow *f)
{
    tn_program_finish(&f->p);
}

char *flow_text(const struct tn_program *p)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    tn_program_print(p, out);
    fclose(out);
    return text;
}

static int contains(const struct tn_program *p, const char *line, char **text)
{
    *text = flow_text(p);
    return strstr(*text, line) != NULL;
}

void flow_has(const struct tn_program *p, const char *line)
{
    char *text;
    if (!contains(p, line, &text))
        fail_msg("there is no \"%s\" in\n%s", line, text);
    free(text);
}

void flow_has_not(const struct tn_program *p, const char *line)
{
    char *text;
    if (contains(p, line, &text))
        fail_msg("there is \"%s\" in\n%s", line, text);
    free(text);
}

void flow_clean(const struct tn_program *p)
{
    for (size_t i = 0; i < p->n_errors; i++)
        print_error("%s\n", p->errors[i]);
    assert_int_equal(p->n_errors, 0);
}

void flow_refused(const struct tn_program *p, const char *what)
{
    assert_int_equal(p->n_errors, 1);
    if (!strstr(p->errors[0], what))
        fail_msg("expected \"%s\" in \"%s\"", what, p->errors[0]);
}

tn_value flow_value(const struct tn_program *p, const char *name)
{
    tn_value v = tn_value_find(p, name);
    if (!v)
        fail_msg("no value %s", name);
    return v;
}

tn_op flow_op(const struct tn_program *p, const char *name)
{
    TN_EACH_OP(p, op)
        if (strcmp(p->ops[op].name, name) == 0)
            return op;
    return 0;
}

int flow_count(const struct tn_program *p, uint32_t opcode, int32_t region)
{
    int n = 0;
    TN_EACH_OP(p, op)
        n += p->ops[op].opcode == opcode && (region < 0 || p->ops[op].region == (uint32_t)region);
    return n;
}
