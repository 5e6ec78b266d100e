/* Scratch: a temporary folder for one test, and small files in it. Header-only. */
#ifndef TENON_TESTS_SCRATCH_H
#define TENON_TESTS_SCRATCH_H

#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch_folder[64];

static inline void scratch_open(void)
{
    strcpy(scratch_folder, "/tmp/tenon-test-XXXXXX");
    if (!mkdtemp(scratch_folder))
        abort();
}

static inline int scratch_remove(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

static inline void scratch_close(void)
{
    nftw(scratch_folder, scratch_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* Path of `name` in the folder; one of eight buffers in turn. */
static inline const char *scratch_path(const char *name)
{
    static char paths[8][512];
    static int turn;
    char *path = paths[turn++ & 7];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_folder, name);
    return path;
}

static inline void scratch_write(const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(scratch_path(name), "wb");
    if (!file || fwrite(bytes, 1, count, file) != count || fclose(file) != 0)
        abort();
}

static inline void scratch_text(const char *name, const char *text)
{
    scratch_write(name, text, strlen(text));
}

/* The whole file with a NUL after it, for the caller to free; NULL if there is none. */
static inline char *scratch_read(const char *name, size_t *count)
{
    FILE *file = fopen(scratch_path(name), "rb");
    if (count)
        *count = 0;
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    char *bytes = malloc(size + 1);
    rewind(file);
    if (!bytes || fread(bytes, 1, size, file) != size)
        abort();
    fclose(file);
    bytes[size] = 0;
    if (count)
        *count = size;
    return bytes;
}

/* Sends a file descriptor to a file of the folder; restore with scratch_restore. */
static inline int scratch_capture(int fd, const char *name)
{
    fflush(NULL);
    int saved = dup(fd), file = open(scratch_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (saved < 0 || file < 0 || dup2(file, fd) < 0)
        abort();
    close(file);
    return saved;
}

static inline void scratch_restore(int fd, int saved)
{
    fflush(NULL);
    dup2(saved, fd);
    close(saved);
}

#endif
