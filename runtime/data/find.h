/* Find: the regular files that a glob names, with `**` for folders at any depth.
 *
 * The order is that of the bytes of the paths, the same on every host and in every locale. Used for text data
 * and by `tenon data pack`. */
#ifndef TENON_FIND_H
#define TENON_FIND_H

#include <stdint.h>

#include "base/arena.h"
#include "base/diag.h"

struct tn_file {
    const char *path;
    int64_t bytes;
};

struct tn_files {
    struct tn_arena *arena; /* the caller's; paths live there */
    struct tn_file *items;
    size_t count, cap;
};

/* Adds the files that `pattern` matches; a relative pattern starts in `folder`. A part may hold * ? [...] and \ for
 * the character itself; `**` stands for any number of folders, and `**.h` for `**` and `*.h`. Names that begin with
 * a dot match only a pattern that does; `**` follows no symbolic link; what is no regular file is left out. Files
 * and folders that may not be read, and a pattern that matches nothing, are problems at `where`. */
void tn_files_find(struct tn_files *files, const char *pattern, const char *folder, struct tn_diag *diag,
                   struct tn_where where);
/* The same for a list of patterns with commas between (\, is a comma in a name). */
void tn_files_find_list(struct tn_files *files, const char *patterns, const char *folder, struct tn_diag *diag,
                        struct tn_where where);
/* Adds one file by its path as it is. 0, or -1 with a problem. */
int tn_files_add(struct tn_files *files, const char *path, struct tn_diag *diag, struct tn_where where);
/* By bytes of the path; a path found twice is kept once. */
void tn_files_sort(struct tn_files *files);

#endif
