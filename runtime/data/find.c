/* Find: see find.h. A pattern is cut at its slashes; walk() matches one part a level. */
#include "data/find.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_PROBLEMS 5 /* of one pattern; the rest is counted */

struct walk {
    struct tn_files *files;
    struct tn_diag *diag;
    struct tn_where where;
    size_t problems;
    char path[PATH_MAX]; /* of the folder being read, with its slash */
};

static void walk(struct walk *w, size_t length, char *const *part);

static void problem(struct walk *w, const char *what, const char *path, int error)
{
    if (w->problems++ < MOST_PROBLEMS)
        tn_diag_add(w->diag, w->where, "give the right to read it, or a pattern that leaves it out", "cannot %s %s: %s",
                    what, path, strerror(error));
}

static void add(struct tn_files *files, const char *path, int64_t bytes)
{
    files->items = tn_arena_grow(files->arena, files->items, sizeof *files->items, &files->cap, files->count + 1);
    files->items[files->count++] = (struct tn_file){ tn_arena_strdup(files->arena, path), bytes };
}

static void add_match(struct walk *w)
{
    struct stat info;
    if (stat(w->path, &info) != 0 || !S_ISREG(info.st_mode))
        return; /* dangling links, folders, sockets */
    if (faccessat(AT_FDCWD, w->path, R_OK, AT_EACCESS) != 0)
        problem(w, "read", w->path, errno);
    else
        add(w->files, w->path, info.st_size);
}

/* Puts `name` after the folder of `length` bytes. The new length, or 0 if it is too long. */
static size_t push(struct walk *w, size_t length, const char *name, int folder)
{
    size_t bytes = strlen(name);
    if (length + bytes + 2 > sizeof w->path) {
        w->path[length] = 0;
        problem(w, "go deeper than", w->path, ENAMETOOLONG);
        return 0;
    }
    memcpy(w->path + length, name, bytes);
    length += bytes;
    if (folder)
        w->path[length++] = '/';
    w->path[length] = 0;
    return length;
}

static DIR *open_folder(struct walk *w, size_t length)
{
    w->path[length] = 0;
    DIR *dir = opendir(length ? w->path : ".");
    if (!dir && errno != ENOENT && errno != ENOTDIR)
        problem(w, "list", w->path, errno);
    return dir;
}

static int is_dots(const char *name)
{
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* A folder, and not by a symbolic link. w->path holds the entry. */
static int is_own_folder(struct walk *w, const struct dirent *entry)
{
    struct stat info;
    if (entry->d_type != DT_UNKNOWN)
        return entry->d_type == DT_DIR;
    return lstat(w->path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* `**`: this folder, and all below it. */
static void walk_deep(struct walk *w, size_t length, char *const *part)
{
    DIR *dir = open_folder(w, length);
    if (!dir)
        return;
    walk(w, length, part + 1);
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t below;
        if (entry->d_name[0] != '.' && (below = push(w, length, entry->d_name, 0)) && is_own_folder(w, entry) &&
            (below = push(w, length, entry->d_name, 1)))
            walk_deep(w, below, part);
    }
    closedir(dir);
}

static void walk_matches(struct walk *w, size_t length, char *const *part)
{
    DIR *dir = open_folder(w, length);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (is_dots(entry->d_name) || fnmatch(*part, entry->d_name, FNM_PERIOD) != 0)
            continue;
        if (part[1] && entry->d_type == DT_REG)
            continue;
        size_t below = push(w, length, entry->d_name, part[1] != NULL);
        if (below && part[1])
            walk(w, below, part + 1);
        else if (below)
            add_match(w);
    }
    closedir(dir);
}

static void walk(struct walk *w, size_t length, char *const *part)
{
    if (strcmp(*part, "**") == 0) {
        walk_deep(w, length, part);
    } else if (strpbrk(*part, "*?[\\")) {
        walk_matches(w, length, part);
    } else {
        size_t below = push(w, length, *part, part[1] != NULL);
        if (below && part[1])
            walk(w, below, part + 1);
        else if (below)
            add_match(w);
    }
}

/* The parts between the slashes, NULL at the end; `**x` becomes `**` and `*x`. */
static char **cut(const char *pattern)
{
    size_t most = 3;
    for (const char *c = pattern; *c; c++)
        most += *c == '/' ? 2 : 0;
    size_t bytes = strlen(pattern);
    /* One block: the pointers, then the text (a `*` more for each part at most). */
    char **parts = malloc(most * sizeof *parts + bytes + 3 * most);
    if (!parts)
        return NULL;
    char *text = (char *)(parts + most);
    size_t count = 0;
    for (const char *c = pattern; *c;) {
        size_t n = strcspn(c, "/");
        int deep = n >= 2 && c[0] == '*' && c[1] == '*', last = c[n] == 0;
        if (deep) {
            parts[count++] = strcpy(text, "**");
            text += 3;
        }
        if (deep ? n > 2 || last : n > 0) {
            const char *from = deep ? c + 1 : c;
            size_t take = deep ? n - 1 : n;
            parts[count++] = memcpy(text, from, take);
            text[take] = 0;
            text += take + 1;
        }
        c += last ? n : n + 1;
    }
    parts[count] = NULL;
    return parts;
}

void tn_files_find(struct tn_files *files, const char *pattern, const char *folder, struct tn_diag *diag,
                   struct tn_where where)
{
    struct walk *w = calloc(1, sizeof *w);
    char **parts = cut(pattern);
    size_t before = files->count, length = 1;
    if (!w || !parts) {
        tn_diag_add(diag, where, NULL, "out of memory");
        goto free_all;
    }
    w->files = files;
    w->diag = diag;
    w->where = where;
    if (pattern[0] == '/')
        strcpy(w->path, "/");
    else
        length = folder && *folder ? push(w, 0, folder, 1) : 0;
    if (parts[0] && (length || !folder || !*folder))
        walk(w, length, parts);
    if (w->problems > MOST_PROBLEMS)
        tn_diag_add(diag, where, NULL, "and %zu more that cannot be read", w->problems - MOST_PROBLEMS);
    if (files->count == before && w->problems == 0)
        tn_diag_add(diag, where, "give a file, or a glob such as texts/*.txt or /usr/include/**.h",
                    "no file matches '%s'", pattern);
free_all:
    free(parts);
    free(w);
}

void tn_files_find_list(struct tn_files *files, const char *patterns, const char *folder, struct tn_diag *diag,
                        struct tn_where where)
{
    int found = 0;
    for (const char *c = patterns; *c;) {
        size_t n = 0;
        while (c[n] && c[n] != ',')
            n += c[n] == '\\' && c[n + 1] ? 2 : 1;
        size_t from = strspn(c, " \t"), to = n;
        from = from < n ? from : n;
        while (to > from && (c[to - 1] == ' ' || c[to - 1] == '\t'))
            to--;
        char *pattern = to > from ? strndup(c + from, to - from) : NULL;
        if (pattern) {
            tn_files_find(files, pattern, folder, diag, where);
            found = 1;
        }
        free(pattern);
        c += c[n] ? n + 1 : n;
    }
    if (!found)
        tn_diag_add(diag, where, "give a file, or a glob such as texts/*.txt or /usr/include/**.h", "is empty");
}

int tn_files_add(struct tn_files *files, const char *path, struct tn_diag *diag, struct tn_where where)
{
    struct stat info;
    if (stat(path, &info) != 0 || faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) != 0) {
        tn_diag_add(diag, where, NULL, "cannot read %s: %s", path, strerror(errno));
        return -1;
    }
    if (!S_ISREG(info.st_mode)) {
        tn_diag_add(diag, where, "give a file, or a glob such as folder/**.txt", "%s is not a regular file", path);
        return -1;
    }
    add(files, path, info.st_size);
    return 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct tn_file *)a)->path, ((const struct tn_file *)b)->path);
}

void tn_files_sort(struct tn_files *files)
{
    if (files->count == 0)
        return;
    qsort(files->items, files->count, sizeof *files->items, by_path);
    size_t kept = 1;
    for (size_t i = 1; i < files->count; i++)
        if (strcmp(files->items[i].path, files->items[kept - 1].path) != 0)
            files->items[kept++] = files->items[i];
    files->count = kept;
}
