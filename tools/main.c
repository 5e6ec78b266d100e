/* tenon: the command. Looks the sub-command up and hands over; each is one file beside this one. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tenon/plugin.h>

#include "base/log.h"
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

int tenon_version_main(int argc, char **argv)
{
    if (argc > 1 && !tool_is_help(argv[1]))
        return tool_unknown("version", argv[1], NULL);
    printf("tenon %s (ABI %d.%d)\n", TENON_VERSION, TN_ABI_MAJOR, TN_ABI_MINOR);
    return tool_printed(TOOL_DONE);
}

/* A standard stream that is closed would be the first file opened, and get what is printed. What takes its place can be
 * used no more than the stream itself. */
static void keep_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            exit(TOOL_FAILED);
}

static int check_log_level(void)
{
    const char *asked = getenv("TENON_LOG");
    if (!asked || !*asked || tn_log_level(asked) >= 0)
        return 0;
    fprintf(stderr, "tenon: TENON_LOG is \"%s\"; use debug, info, warn or error\n", asked);
    return -1;
}

int main(int argc, char **argv)
{
    keep_standard_streams();
    if (argc < 2) {
        usage(stderr);
        return TOOL_USAGE;
    }
    if (tool_is_help(argv[1]) || strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return tool_printed(TOOL_DONE);
    }
    if (strcmp(argv[1], "--version") == 0)
        return tenon_version_main(1, argv + 1);
    if (check_log_level())
        return TOOL_USAGE;
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
