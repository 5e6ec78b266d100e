/* Verify, file tests: each program of a folder, and beside it what the parser and the verifier say of it.
 *
 *     run FOLDER            compares; prints TAP
 *     run --bless FOLDER    writes the .expected files anew
 *
 * A program's first line is `# after: STAGE`. What can be parsed is also printed, parsed and printed again: the two
 * texts must be equal. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "program/program.h"

static int read_file(const char *path, struct tn_buf *text)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return -1;
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof part, file)) > 0)
        tn_buf_add(text, part, n);
    int failed = ferror(file);
    fclose(file);
    return failed ? -1 : 0;
}

static int write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return -1;
    fputs(text, file);
    return fclose(file);
}

/* The printed program; caller frees. */
static char *printed(const struct tn_program *p)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out)
        abort();
    tn_program_print(p, out);
    fclose(out);
    return text;
}

/* Adds a line to `said` if printing, parsing and printing gives other bytes. */
static void check_round(const struct tn_program *p, struct tn_buf *said)
{
    struct tn_program again;
    struct tn_mesh mesh = { 0 };
    char *text = printed(p);
    tn_program_init(&again, &mesh, NULL);
    if (tn_program_parse(&again, &mesh, text, strlen(text)) < 0) {
        tn_buf_printf(said, "the printed program does not parse: %s\n%s", again.errors[0], text);
    } else {
        char *second = printed(&again);
        if (strcmp(text, second) != 0)
            tn_buf_printf(said, "printed again, the program differs:\n%s---\n%s", text, second);
        free(second);
    }
    tn_program_finish(&again);
    free(text);
}

/* What is said of a program: its errors, or ok. */
static void examine(const struct tn_buf *text, struct tn_buf *said)
{
    char stage[32] = "";
    struct tn_program p;
    struct tn_mesh mesh = { 0 };
    if (sscanf(text->text, "# after: %31s", stage) != 1) {
        tn_buf_printf(said, "the first line must be: # after: STAGE\n");
        return;
    }
    tn_program_init(&p, &mesh, NULL);
    if (tn_program_parse(&p, &mesh, text->text, text->length) == 0) {
        check_round(&p, said);
        tn_program_verify(&p, stage);
    }
    for (size_t i = 0; i < p.n_errors; i++)
        tn_buf_printf(said, "%s\n", p.errors[i]);
    if (!said->length)
        tn_buf_printf(said, "ok\n");
    tn_program_finish(&p);
}

static void comment(const char *title, const char *text)
{
    printf("# %s:\n", title);
    while (*text) {
        int length = (int)strcspn(text, "\n");
        printf("#   %.*s\n", length, text);
        text += length + (text[length] == '\n');
    }
}

/* 1 if it is as expected, or was blessed. */
static int run_one(const char *folder, const char *name, int bless, int number)
{
    char path[PATH_MAX], expected_path[PATH_MAX];
    struct tn_buf text, said, expected;
    int stem = (int)(strlen(name) - strlen(".program"));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(expected_path, sizeof expected_path, "%s/%.*s.expected", folder, stem, name);
    tn_buf_init(&text);
    tn_buf_init(&said);
    tn_buf_init(&expected);
    int good = read_file(path, &text) == 0;
    if (good)
        examine(&text, &said);
    if (bless)
        good = good && write_file(expected_path, said.text) == 0;
    else
        good = good && read_file(expected_path, &expected) == 0 && strcmp(said.text, expected.text) == 0;
    printf("%s %d - %.*s\n", good ? "ok" : "not ok", number, stem, name);
    if (!good) {
        comment("expected", expected.text);
        comment("said", said.text);
    }
    tn_buf_finish(&text);
    tn_buf_finish(&said);
    tn_buf_finish(&expected);
    return good;
}

static int is_program(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name), suffix = strlen(".program");
    return length > suffix && strcmp(entry->d_name + length - suffix, ".program") == 0;
}

int main(int argc, char **argv)
{
    int bless = argc == 3 && strcmp(argv[1], "--bless") == 0;
    if (argc != 2 + bless) {
        fprintf(stderr, "usage: run [--bless] FOLDER\n");
        return 2;
    }
    const char *folder = argv[1 + bless];
    struct dirent **entries;
    int n = scandir(folder, &entries, is_program, alphasort), failed = 0;
    if (n <= 0) {
        fprintf(stderr, "no *.program in %s\n", folder);
        return 2;
    }
    printf("1..%d\n", n);
    for (int i = 0; i < n; i++) {
        failed += !run_one(folder, entries[i]->d_name, bless, i + 1);
        free(entries[i]);
    }
    free(entries);
    return failed > 0;
}
