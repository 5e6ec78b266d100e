/* tenon plugin: lists the plugins that would be found, and describes one file.
 *
 * Each plugin is opened in a process of its own with a deadline: one that crashes or hangs is a line of the answer,
 * not the end of this command. No plugin's create is called. */
#include <errno.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "loader/loader.h"
#include "tool.h"

enum { DEADLINE_MS = 5000 };

static const char usage[] =
    "usage: tenon plugin list\n"
    "       tenon plugin inspect FILE|ID\n"
    "\n"
    "list     every plugin in the search folders (TENON_PLUGIN_PATH, then Tenon's own): id, kind, version,\n"
    "         file and what it is, or the reason why it does not load.\n"
    "inspect  one plugin in full: id, version, ABI, options with types, defaults, ranges and help, or the\n"
    "         reason why it does not load; then the exit code is 1.\n";

/* ---- a process of its own ---- */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads until the other end closes; 0 if the deadline passed first. */
static int collect(int fd, struct tn_buf *out)
{
    int64_t end = now_ms() + DEADLINE_MS;
    char text[4096];
    for (;;) {
        struct pollfd wait = { fd, POLLIN, 0 };
        int64_t left = end - now_ms();
        if (left <= 0 || poll(&wait, 1, (int)left) == 0)
            return 0;
        ssize_t n = read(fd, text, sizeof text);
        if (n == 0)
            return 1;
        if (n > 0)
            tn_buf_add(out, text, (size_t)n);
        else if (errno != EINTR)
            return 1;
    }
}

/* What `describe` prints about `name`, and its exit code; 1 with a line of ours if it crashed or hung. */
static int describe_apart(int (*describe)(const char *name, FILE *out), const char *name, struct tn_buf *out)
{
    int ends[2], status = 0;
    fflush(NULL);
    if (pipe(ends) != 0) {
        tn_buf_printf(out, "%s: %s\n", name, strerror(errno));
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        FILE *pipe_out = fdopen(ends[1], "w");
        int code = pipe_out ? describe(name, pipe_out) : 1;
        fflush(NULL);
        _exit(code); /* no atexit of a plugin's libraries */
    }
    close(ends[1]);
    int in_time = child > 0 && collect(ends[0], out);
    close(ends[0]);
    if (child > 0 && !in_time)
        kill(child, SIGKILL);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (child > 0 && in_time && WIFEXITED(status))
        return WEXITSTATUS(status);
    if (child < 0)
        tn_buf_printf(out, "%s: %s\n", name, strerror(errno));
    else if (!in_time)
        tn_buf_printf(out, "%s: did not answer in %d s\n", name, DEADLINE_MS / 1000);
    else
        tn_buf_printf(out, "%s: ended by signal %d (%s) while it was opened\n", name, WTERMSIG(status),
                      strsignal(WTERMSIG(status)));
    return 1;
}

/* ---- inspect ---- */

static void print_list(const char *title, const char *const *list, FILE *out)
{
    if (!list || !*list)
        return;
    fprintf(out, "%s", title);
    for (; *list; list++)
        fprintf(out, " %s", *list);
    fprintf(out, "\n");
}

static void print_plugin(const struct tn_library *library, FILE *out)
{
    const struct tn_plugin *plugin = library->plugin;
    fprintf(out, "id         %s\nkind       %s\nversion    %s\n", plugin->id, tn_plugin_kind_name(plugin->kind),
            plugin->version);
    fprintf(out, "summary    %s\nfile       %s\n", plugin->summary, library->path);
    fprintf(out, "abi        %u.%u, needs a host from %u.%u; with this one %u.%u\n", plugin->abi_major,
            plugin->abi_minor, plugin->abi_major, plugin->min_host_minor, plugin->abi_major, library->minor);
    if (*plugin->build_info)
        fprintf(out, "built with %s\n", plugin->build_info);
    print_list("needs     ", plugin->needs, out);
    print_list("after     ", plugin->after, out);
    print_list("before    ", plugin->before, out);
    print_list("conflicts ", plugin->conflicts, out);
}

static void print_options(const struct tn_plugin *plugin, FILE *out)
{
    struct tn_buf options;
    tn_buf_init(&options);
    tn_options_describe(plugin->options, plugin->option_count, plugin->option_stride, &options);
    if (plugin->option_count)
        fprintf(out, "\n[%s]\n%s", plugin->id, options.text);
    else
        fprintf(out, "\n[%s] has no options\n", plugin->id);
    tn_buf_finish(&options);
}

/* `name` is a path as typed, or an id. */
static enum tn_load open_named(struct tn_library *library, const char *name, struct tn_arena *arena,
                               struct tn_load_error *error)
{
    char here[4096];
    int is_file = strchr(name, '/') || access(name, F_OK) == 0;
    const struct tn_search search = { getcwd(here, sizeof here), 0 };
    return tn_library_open(library, is_file && *name != '/' ? tn_arena_printf(arena, "./%s", name) : name, 0, &search,
                           arena, error);
}

static int inspect(const char *name, FILE *out)
{
    struct tn_arena arena;
    struct tn_library library;
    struct tn_load_error error;
    tn_arena_init(&arena);
    int failed = open_named(&library, name, &arena, &error) != TN_LOAD_OK;
    if (failed) {
        fprintf(out, "%s\n", error.text);
    } else {
        print_plugin(&library, out);
        print_options(library.plugin, out);
    }
    tn_arena_finish(&arena);
    return failed;
}

static int inspect_main(const char *name)
{
    struct tn_buf out;
    tn_buf_init(&out);
    int code = describe_apart(inspect, name, &out);
    fputs(out.text, code ? stderr : stdout);
    tn_buf_finish(&out);
    return code;
}

/* ---- list ---- */

static int list_one(const char *path, FILE *out)
{
    struct tn_arena arena;
    struct tn_library library;
    struct tn_load_error error;
    const struct tn_search search = { NULL, 0 };
    tn_arena_init(&arena);
    int failed = tn_library_open(&library, path, 0, &search, &arena, &error) != TN_LOAD_OK;
    const struct tn_plugin *plugin = library.plugin;
    if (failed)
        fprintf(out, "%s\n", error.text);
    else
        fprintf(out, "%-10s %-10s %-8s %s\n    %s\n", plugin->id, tn_plugin_kind_name(plugin->kind), plugin->version,
                library.path, plugin->summary);
    tn_arena_finish(&arena);
    return failed;
}

static void list_folder(const char *folder, int *found)
{
    struct tn_buf out;
    glob_t files;
    tn_buf_init(&out);
    tn_buf_printf(&out, "%s/*.so", folder);
    if (glob(out.text, 0, NULL, &files) == 0) {
        for (size_t i = 0; i < files.gl_pathc; i++) {
            tn_buf_clear(&out);
            describe_apart(list_one, files.gl_pathv[i], &out);
            fputs(out.text, stdout);
        }
        *found += (int)files.gl_pathc;
        globfree(&files);
    }
    tn_buf_finish(&out);
}

static int list_main(void)
{
    const struct tn_search search = { NULL, 0 };
    const char *const *folders;
    struct tn_arena arena;
    int found = 0;
    tn_arena_init(&arena);
    size_t count = tn_search_folders(&search, &arena, &folders);
    for (size_t i = 0; i < count; i++)
        list_folder(folders[i], &found);
    if (!found)
        fprintf(stderr, "tenon: no plugin in %s%s\n", folders[0], count > 1 ? " and the folders after it" : "");
    tn_arena_finish(&arena);
    return found == 0;
}

int tenon_plugin_main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (tool_is_help(argv[i])) {
            fputs(usage, stdout);
            return tool_printed(0);
        }
    if (argc == 2 && strcmp(argv[1], "list") == 0)
        return tool_printed(list_main());
    if (argc == 3 && strcmp(argv[1], "inspect") == 0)
        return tool_printed(inspect_main(argv[2]));
    fputs(usage, stderr);
    return 2;
}
