/* Diag: see diag.h. */
#include "base/diag.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

void tn_diag_init(struct tn_diag *diag)
{
    *diag = (struct tn_diag){ 0 };
    tn_arena_init(&diag->arena);
}

void tn_diag_finish(struct tn_diag *diag)
{
    tn_arena_finish(&diag->arena);
    *diag = (struct tn_diag){ 0 };
}

static const char *copy(struct tn_diag *diag, const char *text)
{
    return text ? tn_arena_strdup(&diag->arena, text) : NULL;
}

void tn_diag_add(struct tn_diag *diag, struct tn_where where, const char *fix, const char *what, ...)
{
    va_list args;
    va_start(args, what);
    int length = vsnprintf(NULL, 0, what, args);
    va_end(args);
    char *text = tn_arena_alloc(&diag->arena, (size_t)length + 1);
    va_start(args, what);
    vsnprintf(text, (size_t)length + 1, what, args);
    va_end(args);

    diag->problems = tn_arena_grow(&diag->arena, diag->problems, sizeof *diag->problems, &diag->cap, diag->count + 1);
    diag->problems[diag->count++] = (struct tn_problem){
        .where = { copy(diag, where.file), where.line, copy(diag, where.section), copy(diag, where.key) },
        .what = text,
        .fix = copy(diag, fix),
    };
}

static void format(const struct tn_problem *problem, struct tn_buf *buf)
{
    const struct tn_where *where = &problem->where;
    if (where->file && where->line > 0)
        tn_buf_printf(buf, "%s:%d: ", where->file, where->line);
    else if (where->file)
        tn_buf_printf(buf, "%s: ", where->file);
    if (where->section)
        tn_buf_printf(buf, where->key ? "[%s] " : "[%s]: ", where->section);
    if (where->key)
        tn_buf_printf(buf, "%s: ", where->key);
    tn_buf_printf(buf, problem->fix && *problem->fix ? "%s; %s" : "%s", problem->what, problem->fix);
}

const char *tn_diag_text(struct tn_diag *diag, const struct tn_problem *problem)
{
    struct tn_buf buf;
    tn_buf_init(&buf);
    format(problem, &buf);
    const char *text = tn_arena_strdup(&diag->arena, buf.text);
    tn_buf_finish(&buf);
    return text;
}

static int by_place(const void *a, const void *b)
{
    const struct tn_problem *x = *(const struct tn_problem *const *)a, *y = *(const struct tn_problem *const *)b;
    int order = strcmp(x->where.file ? x->where.file : "", y->where.file ? y->where.file : "");
    if (order == 0)
        order = (x->where.line > y->where.line) - (x->where.line < y->where.line);
    return order ? order : (x > y) - (x < y);
}

void tn_diag_print(const struct tn_diag *diag, FILE *out)
{
    if (diag->count == 0)
        return;
    const struct tn_problem **sorted = malloc(diag->count * sizeof *sorted);
    struct tn_buf buf;
    tn_buf_init(&buf);
    for (size_t i = 0; sorted && i < diag->count; i++)
        sorted[i] = &diag->problems[i];
    if (sorted)
        qsort(sorted, diag->count, sizeof *sorted, by_place);
    for (size_t i = 0; i < diag->count; i++) {
        format(sorted ? sorted[i] : &diag->problems[i], &buf);
        tn_buf_printf(&buf, "\n");
    }
    fputs(buf.text, out);
    tn_buf_finish(&buf);
    free(sorted);
}
