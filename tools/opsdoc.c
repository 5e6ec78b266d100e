/* Opsdoc: the reference page of the core ops, docs/ops.md, from the op table alone.
 *
 *     opsdoc                  prints the page
 *     opsdoc --check FILE     1 if FILE is another text; a test calls it */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    const char *name, *ins, *outs, *attrs, *alias, *shape, *place, *grad, *cost, *lower, *doc;
};

static const struct row rows[] = {
#define TN_OP(name, NAME, ins, outs, attrs, alias, shape, place, grad, cost, lower, doc) \
    { #name, ins, outs, attrs, alias, #shape, #place, #grad, #cost, #lower, doc },
#include <tenon/ops.def>
#undef TN_OP
};

/* A part of the page begins with this op. */
static const struct {
    const char *first, *title, *text;
} parts[] = {
    { "embedding", "Forward", "What a model plugin builds its program of." },
    { "embedding_dw", "Backward", "What autodiff makes of the forward ops. `acc` is what earlier micro-batches left." },
    { "count_targets", "Once per step", "The loss normaliser, and what the optimizer does." },
    { "all_reduce", "Communication",
      "Put in by resolve where types ask for it, and by strategies. `axis` is an axis of the mesh by number, `dim` a "
      "dimension, `red` 0 for sum and 1 for max." },
    { "merge_blocks", "Layout and storage", "Put in by lowering." },
    { "add_layernorm", "Fused and expanded",
      "Made by the runtime from others: fused where the device has the kernel, or expanded where a cut asks for it." },
};

static const char *part_text(const char *first, const char **title)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].first, first) == 0) {
            *title = parts[i].title;
            return parts[i].text;
        }
    return NULL;
}

/* The words of "a b? c", with `separator` between. */
static void put_words(FILE *out, const char *words, const char *separator)
{
    for (; *words; words++)
        if (*words == ' ')
            fputs(separator, out);
        else
            fputc(*words, out);
}

/* The i-th word of `words`, printed. */
static void put_word(FILE *out, const char *words, int i)
{
    for (; i > 0; i--)
        words += strcspn(words, " ") + 1;
    fprintf(out, "`%.*s`", (int)strcspn(words, " ?."), words);
}

static void put_signature(FILE *out, const struct row *row)
{
    fprintf(out, "    ");
    put_words(out, row->outs, ", ");
    fprintf(out, "%s%s(", *row->outs ? " = " : "", row->name);
    put_words(out, row->ins, ", ");
    fprintf(out, ")");
    for (const char *at = row->attrs; *at; at += strspn(at, " ")) {
        int is_float = *at == '!', length = (int)strcspn(at, " ");
        fprintf(out, " %.*s=%s", length - is_float, at + is_float, is_float ? "FLOAT" : "INT");
        at += length;
    }
    fprintf(out, "\n\n");
}

static void put_memory(FILE *out, const struct row *row)
{
    const char *separator = "Memory: ";
    for (const char *at = row->alias; *at; at += strspn(at, " "), separator = ", ") {
        fprintf(out, "%s", separator);
        put_word(out, row->outs, at[0] - '0');
        fprintf(out, at[1] == '=' ? " is that of " : " may be that of ");
        char *end;
        put_word(out, row->ins, (int)strtol(at + 2, &end, 10));
        at = end;
    }
    if (*row->alias)
        fprintf(out, ".\n");
}

static void put_rules(FILE *out, const struct row *row)
{
    const struct {
        const char *what, *rule;
    } rules[] = {
        { "shape", row->shape }, { "placement", row->place }, { "gradient", row->grad },
        { "cost", row->cost },   { "lowering", row->lower },
    };
    const char *separator = "Rules: ";
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (strcmp(rules[i].rule, "none") == 0)
            continue;
        fprintf(out, "%s%s `%s`", separator, rules[i].what, rules[i].rule);
        separator = ", ";
    }
    fprintf(out, ".\n");
}

static void put_page(FILE *out)
{
    fprintf(out,
            "# Ops of the core\n\n"
            "Made by tools/opsdoc.c from abi/tenon/ops.def; do not edit. How a program looks is in "
            "[program.md](program.md).\n\n"
            "`x?` may be absent, `x...` is one or more. Rules name the functions of the runtime: `shape_linear` and so "
            "on (runtime/program/rules.h).\n"
            "Tensors: `x`, `y` are activations [.., N]; `w` is a matrix [K, N], or [N, K] with trans=1.\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *title, *text = part_text(rows[i].name, &title);
        if (text)
            fprintf(out, "\n## %s\n\n%s\n", title, text);
        fprintf(out, "\n### %s\n\n", rows[i].name);
        put_signature(out, &rows[i]);
        fprintf(out, "%s\n", rows[i].doc);
        if (*rows[i].alias) {
            fprintf(out, "\n");
            put_memory(out, &rows[i]);
        }
        fprintf(out, "\n");
        put_rules(out, &rows[i]);
    }
}

static int same_as(const char *path, const char *page, size_t length)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return 0;
    int same = 1;
    for (size_t i = 0; i <= length && same; i++)
        same = fgetc(file) == (i < length ? (unsigned char)page[i] : EOF);
    fclose(file);
    return same;
}

int main(int argc, char **argv)
{
    char *page = NULL;
    size_t length;
    if (argc != 1 && !(argc == 3 && strcmp(argv[1], "--check") == 0)) {
        fprintf(stderr, "usage: opsdoc [--check FILE]\n");
        return 2;
    }
    FILE *out = open_memstream(&page, &length);
    if (!out)
        return 1;
    put_page(out);
    fclose(out);
    int status = 0;
    if (argc == 1) {
        fputs(page, stdout);
    } else if (!same_as(argv[2], page, length)) {
        fprintf(stderr, "%s is out of date; make it anew: opsdoc > %s\n", argv[2], argv[2]);
        status = 1;
    }
    free(page);
    return status;
}
