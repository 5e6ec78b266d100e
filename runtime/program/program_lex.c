/* Program lex: see program_lex.h. Words and quoted names are copied into the program's arena. */
#include "program/program_lex.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "program/program_text.h"

int tn_lex_problem(struct tn_lex *lex, const char *fix, const char *fmt, ...)
{
    if (lex->bad || lex->problems >= TN_LEX_MOST)
        return -1;
    lex->bad = 1;
    lex->problems++;
    char what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    tn_program_error(lex->p, 0, "line %d: %s%s%s", lex->line, what, fix ? "; " : "", fix ? fix : "");
    return -1;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

/* Where the quoted text that starts at `at` has its closing quote; `end` if it has none. */
static const char *quote_end(const char *at, const char *end)
{
    while (at < end && *at != '"')
        at += *at == '\\' && end - at > 1 ? 2 : 1;
    return at;
}

/* One character of a quoted name, moving *at past it; -1 if none may stand there. */
static int quoted_char(const char **at, const char *end)
{
    char c = *(*at)++;
    if (c != '\\')
        return c ? (unsigned char)c : -1;
    if (*at == end)
        return -1;
    c = *(*at)++;
    if (c != 'x')
        return c ? (unsigned char)c : -1;
    if (end - *at < 2)
        return -1;
    int high = hex_digit((*at)[0]), low = hex_digit((*at)[1]);
    *at += 2;
    return high >= 0 && low >= 0 && (high || low) ? high << 4 | low : -1;
}

static void next_string(struct tn_lex *lex)
{
    const char *end = quote_end(lex->at, lex->end);
    char *text = tn_arena_alloc(&lex->p->arena, (size_t)(end - lex->at) + 1);
    int c = 0;
    for (size_t n = 0; end < lex->end && lex->at < end && (c = quoted_char(&lex->at, end)) >= 0; n++)
        text[n] = (char)c;
    if (end == lex->end || c < 0) {
        lex->token = TN_LEX_BAD;
        tn_lex_problem(lex, "close it with \"; \\\", \\\\ and \\xHH stand for odd characters, none of which is a NUL",
                       "a quoted name has no end, or a character that no name may have");
        return;
    }
    lex->at = end + 1;
    lex->token = TN_LEX_STRING;
    lex->text = text;
}

void tn_lex_next(struct tn_lex *lex)
{
    while (lex->at < lex->end && (*lex->at == ' ' || *lex->at == '\t'))
        lex->at++;
    if (lex->at == lex->end) {
        lex->token = TN_LEX_END;
        return;
    }
    if (*lex->at == '"') {
        lex->at++;
        next_string(lex);
        return;
    }
    size_t length = tn_word_length(lex->at, lex->end);
    if (length) {
        char *text = tn_arena_alloc(&lex->p->arena, length + 1);
        memcpy(text, lex->at, length);
        lex->at += length;
        lex->token = TN_LEX_WORD;
        lex->text = text;
        return;
    }
    char c = *lex->at++;
    lex->token = c && strchr("()[]{}:,=@|", c) ? c : TN_LEX_BAD;
    if (lex->token != TN_LEX_BAD)
        return;
    const char *fix = "put names with such characters in quotes";
    if (c > ' ' && c < 0x7f)
        tn_lex_problem(lex, fix, "unexpected character '%c'", c);
    else
        tn_lex_problem(lex, fix, "unexpected character 0x%02x", (unsigned char)c);
}

const char *tn_lex_found(const struct tn_lex *lex, char text[TN_LEX_TEXT])
{
    if (lex->token == TN_LEX_END)
        snprintf(text, TN_LEX_TEXT, "the end of the line");
    else if (lex->token == TN_LEX_WORD || lex->token == TN_LEX_STRING)
        snprintf(text, TN_LEX_TEXT, "'%.50s'", lex->text);
    else
        snprintf(text, TN_LEX_TEXT, "'%c'", lex->token);
    return text;
}

int tn_lex_expect(struct tn_lex *lex, int token, const char *where)
{
    char found[TN_LEX_TEXT];
    if (lex->token != token)
        return tn_lex_problem(lex, NULL, "expected '%c' %s, found %s", token, where, tn_lex_found(lex, found));
    tn_lex_next(lex);
    return 0;
}

/* Takes the token if it is this one. */
int tn_lex_accept(struct tn_lex *lex, int token)
{
    if (lex->token != token)
        return 0;
    tn_lex_next(lex);
    return 1;
}

int tn_lex_at_absent(const struct tn_lex *lex)
{
    return lex->token == TN_LEX_WORD && strcmp(lex->text, "_") == 0;
}

/* A name, bare or quoted; NULL after recording a problem. */
const char *tn_lex_name(struct tn_lex *lex, const char *what)
{
    char found[TN_LEX_TEXT];
    if ((lex->token != TN_LEX_WORD && lex->token != TN_LEX_STRING) || tn_lex_at_absent(lex)) {
        tn_lex_problem(lex, NULL, "expected %s, found %s", what, tn_lex_found(lex, found));
        return NULL;
    }
    const char *text = lex->text;
    tn_lex_next(lex);
    return text;
}

int tn_lex_read_int(const char *text, int64_t *n)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end || end == text || *text == '+')
        return -1;
    *n = value;
    return 0;
}

int tn_lex_int(struct tn_lex *lex, const char *what, int64_t least, int64_t most, int64_t *n)
{
    char found[TN_LEX_TEXT];
    if (lex->token != TN_LEX_WORD || tn_lex_read_int(lex->text, n) < 0)
        return tn_lex_problem(lex, NULL, "expected a number as %s, found %s", what, tn_lex_found(lex, found));
    if (*n < least || *n > most)
        return tn_lex_problem(lex, NULL, "%s is %" PRId64 "; it may be %" PRId64 " to %" PRId64, what, *n, least, most);
    tn_lex_next(lex);
    return 0;
}

int tn_lex_int32(struct tn_lex *lex, const char *what, int32_t *n)
{
    int64_t wide = 0;
    int status = tn_lex_int(lex, what, INT32_MIN, INT32_MAX, &wide);
    *n = (int32_t)wide;
    return status;
}

int tn_lex_float(struct tn_lex *lex, double *f)
{
    char found[TN_LEX_TEXT], *end = NULL;
    if (lex->token == TN_LEX_WORD)
        *f = strtod(lex->text, &end);
    if (!end || *end || end == lex->text)
        return tn_lex_problem(lex, NULL, "expected a number, found %s", tn_lex_found(lex, found));
    tn_lex_next(lex);
    return 0;
}
