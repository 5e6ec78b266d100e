/* Tool: what the sub-commands share; see tool.h. */
#include "tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/options.h"

static const char *const tool_options[] = { "-n", "--set", "--steps", NULL };

int tool_is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

const char *tool_value(int argc, char **argv, int *at)
{
    if (*at + 1 < argc)
        return argv[++*at];
    fprintf(stderr, "tenon: %s needs a value\n", argv[*at]);
    return NULL;
}

int tool_unknown(const char *command, const char *word, const char *const *options)
{
    const char *names[16] = { "--help" };
    size_t n = 1;
    for (const char *const *common = tool_options; options && *common; common++)
        names[n++] = *common;
    for (; options && *options && n < sizeof names / sizeof *names; options++)
        names[n++] = *options;
    const char *nearest = *word == '-' ? tn_nearest(word, names, n) : NULL;
    if (nearest)
        fprintf(stderr, "tenon %s: unknown option %s; did you mean %s?\n", command, word, nearest);
    else
        fprintf(stderr, "tenon %s: unknown argument %s; see tenon %s --help\n", command, word, command);
    return TOOL_USAGE;
}

int tool_printed(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "tenon: cannot write the output: %s\n", strerror(errno));
    return TOOL_FAILED;
}

/* A whole number from 1 to `most`, or -1. */
static long number(const char *text, long most)
{
    char *end;
    long n = strtol(text, &end, 10);
    return *text && !*end && n >= 1 && n <= most ? n : -1;
}

static int add_override(struct tool_args *args, const char *override)
{
    if (args->n_overrides == TOOL_MOST_OVERRIDES) {
        fprintf(stderr, "tenon: more than %d --set; put them in a manifest\n", TOOL_MOST_OVERRIDES);
        return -1;
    }
    args->overrides[args->n_overrides++] = override;
    return 1;
}

int tool_arg(struct tool_args *args, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    int takes_value = strcmp(word, "-n") == 0 || strcmp(word, "--set") == 0 || strcmp(word, "--steps") == 0;
    if (!takes_value && (*word == '-' || args->manifest))
        return 0;
    if (!takes_value) {
        args->manifest = word;
        return 1;
    }
    const char *value = tool_value(argc, argv, at);
    if (!value)
        return -1;
    if (strcmp(word, "--set") == 0)
        return add_override(args, value);
    long most = word[1] == 'n' ? 1 << 20 : 1000000000000, n = number(value, most);
    if (n < 0) {
        fprintf(stderr, "tenon: %s %s: not a whole number from 1 to %ld\n", word, value, most);
        return -1;
    }
    if (word[1] == 'n') {
        args->ranks = (int32_t)n;
        return 1;
    }
    snprintf(args->steps, sizeof args->steps, "job.steps=%ld", n);
    return add_override(args, args->steps);
}
