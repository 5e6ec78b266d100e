/* Preloaded into every process of a job: a disk that can be held up. With SLOW_LOG, what is done to files is written there
 * in order: "fsync PATH" once it is done, "rename FROM TO" before. With SLOW_HOLD, whoever comes to something of this
 * pattern ("before fsync PATH", "after fsync PATH", the same with rename FROM TO) logs "held" and waits until the file
 * SLOW_GO is there. */
#include <dlfcn.h>
#include <fcntl.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void note(const char *line)
{
    const char *path = getenv("SLOW_LOG");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (fd < 0)
        return;
    if (write(fd, line, strlen(line)) < 0)
        abort();
    close(fd);
}

static void hold(const char *when, const char *what)
{
    const char *pattern = getenv("SLOW_HOLD"), *go = getenv("SLOW_GO");
    char text[8300];
    regex_t compiled;
    if (!pattern || !*pattern || !go)
        return;
    snprintf(text, sizeof text, "%s %s", when, what);
    if (regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        abort();
    int is_held = regexec(&compiled, text, 0, NULL, 0) == 0;
    regfree(&compiled);
    if (is_held)
        note("held\n");
    while (is_held && access(go, F_OK) != 0)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

int fsync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    char link[64], path[3000], what[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    snprintf(what, sizeof what, "fsync %s", path);
    hold("before", what);
    int result = real(fd);
    strcat(what, "\n");
    note(what);
    what[strlen(what) - 1] = 0;
    hold("after", what);
    return result;
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    char what[8192];
    snprintf(what, sizeof what, "rename %s %s\n", from, to);
    note(what);
    what[strlen(what) - 1] = 0;
    hold("before", what);
    int result = real(from, to);
    hold("after", what);
    return result;
}
