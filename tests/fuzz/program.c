/* Fuzz: mutated program texts must never crash the parser, the printer or the verifier; what still parses must print
 * and parse back to the same bytes.
 *
 *     program FOLDER [SECONDS [SEED]]     the *.program files of FOLDER are the corpus
 *
 * Mutations are drawn by Philox from the seed and the round, so a failure names what repeats it. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/philox.h"
#include "program/program.h"

enum { MOST_CORPUS = 256 };

struct random {
    uint64_t seed, round, drawn;
};

static uint32_t draw(struct random *random, size_t below)
{
    uint32_t out[4];
    tn_philox(random->seed, random->round, random->drawn++, out);
    return below ? (uint32_t)(out[0] % below) : 0;
}

static struct tn_buf corpus[MOST_CORPUS];
static size_t n_corpus;

static void read_corpus(const char *folder)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX], part[4096];
        size_t length = strlen(entries[i]->d_name), got;
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        FILE *file = length > 8 && strcmp(entries[i]->d_name + length - 8, ".program") == 0 ? fopen(path, "rb") : NULL;
        free(entries[i]);
        if (!file || n_corpus == MOST_CORPUS)
            continue;
        struct tn_buf *text = &corpus[n_corpus++];
        tn_buf_init(text);
        while ((got = fread(part, 1, sizeof part, file)) > 0)
            tn_buf_add(text, part, got);
        fclose(file);
    }
    if (n >= 0)
        free(entries);
}

/* Pieces that mean something to the parser. */
static const char *const pieces[] = {
    "f32[",
    "]",
    "{tp: S0}",
    "{dp: S1z/1}",
    "P",
    "R",
    "F",
    "S7",
    "_",
    "\"",
    "\\x41",
    "=",
    ",",
    ":",
    "by tp",
    "@micro=1",
    "@source=x",
    " 9223372036854775807",
    " -1",
    "0",
    "nan",
    "1e999",
    "param ",
    "region step\n",
    "mesh tp=2 dp=3\n",
    "parts 1 = 1:2\n",
    "want={tp: R}",
    "stored=x[0, 0, 1]",
    "like=x",
    "(",
    ")",
    "cross_entropy",
    "pack",
    "view",
    "recv",
    "attention",
    "layernorm_dw",
    "sumsq",
    "all_gather(x: x) axis=0 dim=1",
    "head_dim=0",
    "group=3",
    "flags=loss|output",
    "\n",
    "embedding",
    "linear_dw",
    "ce_sum",
    "adamw",
    "f32[1, 1, 1, 1, 1, 1]",
    "f32[]",
    "bf16[3, 0]",
};

/* Replaces text[at, at + cut) by `length` bytes of `with`. */
static void splice(struct tn_buf *text, size_t at, size_t cut, const char *with, size_t length)
{
    struct tn_buf out;
    tn_buf_init(&out);
    tn_buf_add(&out, text->text, at);
    tn_buf_add(&out, with, length);
    tn_buf_add(&out, text->text + at + cut, text->length - at - cut);
    tn_buf_finish(text);
    *text = out;
}

/* Start and length of a line, with its newline, that holds position `at`. */
static size_t line_at(const struct tn_buf *text, size_t at, size_t *length)
{
    size_t start = at, end = at;
    while (start > 0 && text->text[start - 1] != '\n')
        start--;
    while (end < text->length && text->text[end] != '\n')
        end++;
    *length = end + (end < text->length) - start;
    return start;
}

static void mutate(struct tn_buf *text, struct random *random)
{
    size_t at = draw(random, text->length), left = text->length - at, length, other_length;
    char byte = (char)draw(random, 256);
    const char *piece = pieces[draw(random, sizeof pieces / sizeof *pieces)];
    const struct tn_buf *from = &corpus[draw(random, n_corpus)];
    switch (draw(random, 7)) {
    case 0: /* a byte */ splice(text, at, left > 0, &byte, 1); break;
    case 1: /* a run is gone */
        length = draw(random, 12);
        splice(text, at, length < left ? length : left, "", 0);
        break;
    case 2: /* a piece */ splice(text, at, 0, piece, strlen(piece)); break;
    case 3: /* a line is gone */
        at = line_at(text, at, &length);
        splice(text, at, length, "", 0);
        break;
    case 4: { /* a line of another program */
        at = line_at(text, at, &length);
        size_t other = line_at(from, draw(random, from->length), &other_length);
        splice(text, at, 0, from->text + other, other_length);
        break;
    }
    case 5: { /* a digit */
        while (at < text->length && (text->text[at] < '0' || text->text[at] > '9'))
            at++;
        byte = (char)('0' + draw(random, 10));
        splice(text, at, at < text->length, &byte, 1);
        break;
    }
    default: /* a word becomes another of the same text */
        other_length = draw(random, text->length);
        length = strcspn(text->text + other_length, " ,:()[]{}=\n");
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)length, text->text + other_length);
        splice(text, at, strcspn(text->text + at, " ,:()[]{}=\n"), word, strlen(word));
    }
}

static char *printed(const struct tn_program *p, size_t *length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    if (!out)
        abort();
    tn_program_print(p, out);
    fclose(out);
    return text;
}

/* 1 if it parsed. */
static int examine(const struct tn_buf *text, const struct random *random)
{
    static const char *const stages[] = { "model", "grad", "place", "resolve", "lower", "schedule", "bound" };
    struct tn_program p, again;
    struct tn_mesh mesh = { 0 }, mesh_again = { 0 };
    tn_program_init(&p, &mesh, NULL);
    int good = tn_program_parse(&p, &mesh, text->text, text->length) == 0;
    if (good) {
        size_t first_length, second_length;
        char *first = printed(&p, &first_length), *second = NULL;
        tn_program_init(&again, &mesh_again, NULL);
        if (tn_program_parse(&again, &mesh_again, first, first_length) == 0)
            second = printed(&again, &second_length);
        if (!second || first_length != second_length || memcmp(first, second, first_length) != 0) {
            printf("seed %llu round %llu: does not print as it parses: %s\n%s\n---\n%s\n",
                   (unsigned long long)random->seed, (unsigned long long)random->round, second ? "" : again.errors[0],
                   first, second ? second : text->text);
            exit(1);
        }
        tn_program_finish(&again);
        free(first);
        free(second);
        for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
            tn_program_verify(&p, stages[i]);
    }
    tn_program_finish(&p);
    return good;
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

int main(int argc, char **argv)
{
    double seconds = argc > 2 ? atof(argv[2]) : 2;
    struct random random = { .seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1 };
    unsigned long long parsed = 0;
    if (argc > 1)
        read_corpus(argv[1]);
    if (n_corpus == 0) {
        fprintf(stderr, "usage: program FOLDER [SECONDS [SEED]]; FOLDER holds *.program files\n");
        return 2;
    }
    for (double end = now() + seconds; now() < end; random.round++) {
        struct tn_buf text;
        random.drawn = 0;
        const struct tn_buf *from = &corpus[draw(&random, n_corpus)];
        tn_buf_init(&text);
        tn_buf_add(&text, from->text, from->length);
        for (uint32_t n = 1 + draw(&random, 3); n; n--)
            mutate(&text, &random);
        parsed += (unsigned long long)examine(&text, &random);
        tn_buf_finish(&text);
    }
    printf("%llu texts, %llu of them parsed\n", (unsigned long long)random.round, parsed);
    for (size_t i = 0; i < n_corpus; i++)
        tn_buf_finish(&corpus[i]);
    return parsed > 0 ? 0 : 1;
}
