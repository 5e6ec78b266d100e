/* Preloaded into every process of a job: a disk whose every fsync takes SLOW_MS longer. With SLOW_LOG, what is done to
 * files is written there in order: "fsync PATH" and "rename FROM TO". */
#include <dlfcn.h>
#include <fcntl.h>
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

int fsync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    const char *ms = getenv("SLOW_MS");
    char link[64], path[3000], line[4096];
    long wait = ms ? atol(ms) : 0;
    nanosleep(&(struct timespec){ .tv_sec = wait / 1000, .tv_nsec = wait % 1000 * 1000000 }, NULL);
    int result = real(fd);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    snprintf(line, sizeof line, "fsync %s\n", path);
    note(line);
    return result;
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    char line[8192];
    snprintf(line, sizeof line, "rename %s %s\n", from, to);
    note(line);
    return real(from, to);
}
