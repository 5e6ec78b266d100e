/* tenon: the command. Looks the sub-command up and hands over; each is one file beside this one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/plugin.h>

#include "config/options.h"
#include "tool.h"

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
} commands[] = {
    { "run", tenon_run_main, "train the model of a manifest" },
    { "check", tenon_check_main, "report every problem, memory and communication of a manifest; launch nothing" },
    { "dump", tenon_dump_main, "print the program after a stage" },
    { "plugin", tenon_plugin_main, "list plugins, or inspect one" },
    { "data", tenon_data_main, "pack text into token files" },
    { "bench", tenon_bench_main, "measure collectives and messages, backends side by side" },
    { "version", tenon_version_main, "print the versions of Tenon and of its ABI" },
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *out)
{
    fprintf(out, "usage: tenon COMMAND [ARGUMENTS]\n\n");
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n`tenon COMMAND --help` says more. Exit codes: 0 done, 1 failed, 2 usage or manifest.\n");
}

static const char *const tool_options[] = { "-n", "--set", "--steps", NULL };

int tenon_version_main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--help") != 0)
        return tool_unknown("version", argv[1], NULL);
    printf("tenon %s (ABI %d.%d)\n", TENON_VERSION, TN_ABI_MAJOR, TN_ABI_MINOR);
    return TOOL_DONE;
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
    long n = number(value, word[1] == 'n' ? 1 << 20 : 1L << 40);
    if (n < 0) {
        fprintf(stderr, "tenon: %s %s: not a whole number above 0\n", word, value);
        return -1;
    }
    if (word[1] == 'n') {
        args->ranks = (int32_t)n;
        return 1;
    }
    snprintf(args->steps, sizeof args->steps, "job.steps=%ld", n);
    return add_override(args, args->steps);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return TOOL_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return TOOL_DONE;
    }
    if (strcmp(argv[1], "--version") == 0)
        return tenon_version_main(1, argv + 1);
    const char *names[COMMANDS];
    for (size_t i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].main(argc - 1, argv + 1);
    }
    const char *nearest = tn_nearest(argv[1], names, COMMANDS);
    fprintf(stderr, "tenon: unknown command %s; ", argv[1]);
    fprintf(stderr, nearest ? "did you mean %s?\n" : "see tenon --help\n", nearest);
    return TOOL_USAGE;
}
