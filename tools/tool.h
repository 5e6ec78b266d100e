/* Tool: what the sub-commands of `tenon` share. One file a sub-command. */
#ifndef TENON_TOOL_H
#define TENON_TOOL_H

#include <stddef.h>
#include <stdint.h>

enum { TOOL_DONE = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };
enum { TOOL_MOST_OVERRIDES = 64 };

/* The options that run, check and dump have in common. */
struct tool_args {
    const char *manifest;
    int32_t ranks;                              /* -n; 0: not given */
    const char *overrides[TOOL_MOST_OVERRIDES]; /* --set, and others that stand for one */
    size_t n_overrides;
    char steps[64];
};

int tool_is_help(const char *word); /* --help or -h */
/* Tries argv[*at] as one of: JOB.ini, -n N, --set S.K=V, --steps N. 1: taken (*at is its last word); 0: not one of
 * them; -1: wrong, said on stderr. */
int tool_arg(struct tool_args *args, int argc, char **argv, int *at);
/* The value after option argv[*at], which becomes *at; NULL if there is none, said on stderr. */
const char *tool_value(int argc, char **argv, int *at);
/* Says on stderr that the command does not take `word`, with the nearest of its own options (NULL-terminated) and of
 * those above, and returns TOOL_USAGE. */
int tool_unknown(const char *command, const char *word, const char *const *options);

/* `code`, or TOOL_FAILED with a message if what was printed did not arrive (a full disk, a closed pipe). */
int tool_printed(int code);

int tenon_run_main(int argc, char **argv); /* argv[0] is the sub-command */
int tenon_check_main(int argc, char **argv);
int tenon_dump_main(int argc, char **argv);
int tenon_plugin_main(int argc, char **argv);
int tenon_data_main(int argc, char **argv);
int tenon_bench_main(int argc, char **argv);
int tenon_version_main(int argc, char **argv);

#endif
