/* Program lex: the tokens of one line of the text form, and the problems found in it (program_parse.c). */
#ifndef TENON_RUNTIME_PROGRAM_LEX_H
#define TENON_RUNTIME_PROGRAM_LEX_H

#include "program/program.h"

enum { TN_LEX_MOST = 20 }; /* problems that are reported of one text */

/* Kinds of tokens; a punctuation mark is its own character. */
enum { TN_LEX_END = 0, TN_LEX_WORD = 'w', TN_LEX_STRING = 's', TN_LEX_BAD = 'b' };

struct tn_lex {
    struct tn_program *p;    /* takes the strings and the errors */
    const char *at, *end;    /* what is left of the line */
    int line, problems, bad; /* bad: this line has a problem already */
    int token;               /* the one under the head */
    const char *text;        /* of a word or string */
};

/* Records the problem of this line, its first only; `fix` says what would work, or is NULL. Always -1. */
int tn_lex_problem(struct tn_lex *lex, const char *fix, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void tn_lex_next(struct tn_lex *lex);
/* The token under the head, as messages show it. */
enum { TN_LEX_TEXT = 64 };
const char *tn_lex_found(const struct tn_lex *lex, char text[TN_LEX_TEXT]);

static inline int tn_lex_at_name(const struct tn_lex *lex)
{
    return lex->token == TN_LEX_WORD || lex->token == TN_LEX_STRING;
}
int tn_lex_at_absent(const struct tn_lex *lex);   /* a bare _ */
int tn_lex_accept(struct tn_lex *lex, int token); /* 1 and past it, if it is this one */

/* Each takes what it names, or records a problem that says `what` was expected, and gives -1 (NULL). */
int tn_lex_expect(struct tn_lex *lex, int token, const char *where);
const char *tn_lex_name(struct tn_lex *lex, const char *what);
int tn_lex_int(struct tn_lex *lex, const char *what, int64_t least, int64_t most, int64_t *n);
int tn_lex_int32(struct tn_lex *lex, const char *what, int32_t *n);
int tn_lex_float(struct tn_lex *lex, double *f);
/* A whole number in decimal and nothing else: 0, else -1. Records nothing. */
int tn_lex_read_int(const char *text, int64_t *n);

#endif
