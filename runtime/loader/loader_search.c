/* Loader, step 1: from a plugin's name to its file. The working directory is never looked at. */
#include "loader/loader_steps.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "config/options.h"

enum { MOST_LEVELS = 6 }; /* from an executable of the build tree up to the build folder */

/* A growing list of paths or ids. */
struct names {
    struct tn_arena *arena;
    const char **list;
    size_t count, cap;
};

static void names_add(struct names *names, const char *name)
{
    names->list = tn_arena_grow(names->arena, names->list, sizeof *names->list, &names->cap, names->count + 1);
    names->list[names->count++] = tn_arena_strdup(names->arena, name);
}

static int is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* ---- where this Tenon's own plugins are ---- */

/* Folders below `root`, down to `depth`: the build tree keeps plugins/strategies/..., kernels/.... */
static void add_tree(struct names *folders, const char *root, int depth)
{
    struct dirent **entries;
    int n = scandir(root, &entries, NULL, alphasort);
    if (n < 0)
        return;
    names_add(folders, root);
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        size_t length = strlen(name);
        char *path = tn_arena_printf(folders->arena, "%s/%s", root, name);
        int objects = length > 2 && strcmp(name + length - 2, ".p") == 0; /* Meson's private folders */
        if (name[0] != '.' && !objects && depth > 0 && is_folder(path))
            add_tree(folders, path, depth - 1);
        free(entries[i]);
    }
    free(entries);
}

/* The executable's folder, without '/' at its end; 0 if unknown. */
static int own_folder(char *folder, size_t room)
{
    ssize_t n = readlink("/proc/self/exe", folder, room - 1);
    if (n <= 0 || (size_t)n >= room - 1)
        return 0;
    folder[n] = 0;
    char *slash = strrchr(folder, '/');
    if (!slash)
        return 0;
    *slash = 0;
    return 1;
}

/* An installed executable takes the plugins installed with it, wherever the install was moved to; one of a build tree
 * takes the build's. */
static void add_own(struct names *folders)
{
    char folder[4096];
    if (!own_folder(folder, sizeof folder)) {
        names_add(folders, TENON_PLUGIN_DIR);
        return;
    }
    const char *beside = tn_arena_printf(folders->arena, "%s/../%s", folder, TENON_PLUGIN_SUBDIR);
    char *installed = realpath(beside, NULL);
    if (installed) {
        names_add(folders, installed);
        free(installed);
        return;
    }
    for (int level = 0; level < MOST_LEVELS && *folder; level++) {
        if (is_folder(tn_arena_printf(folders->arena, "%s/meson-private", folder))) {
            add_tree(folders, tn_arena_printf(folders->arena, "%s/plugins", folder), 2);
            add_tree(folders, tn_arena_printf(folders->arena, "%s/kernels", folder), 1);
            return;
        }
        *strrchr(folder, '/') = 0;
    }
    names_add(folders, TENON_PLUGIN_DIR);
}

static void add_path_variable(struct names *folders)
{
    const char *at = secure_getenv("TENON_PLUGIN_PATH");
    while (at && *at) {
        const char *end = strchrnul(at, ':');
        if (*at == '/')
            names_add(folders, tn_arena_printf(folders->arena, "%.*s", (int)(end - at), at));
        at = *end ? end + 1 : end;
    }
}

size_t tn_search_folders(const struct tn_search *search, struct tn_arena *arena, const char *const **list)
{
    struct names folders = { .arena = arena };
    if (search->beside_manifest && search->manifest_folder)
        names_add(&folders, search->manifest_folder);
    add_path_variable(&folders);
    add_own(&folders);
    *list = folders.list;
    return folders.count;
}

/* ---- names ---- */

static int is_id(const char *name)
{
    if (*name < 'a' || *name > 'z')
        return 0;
    return name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")] == 0;
}

/* Of the plugins in the folders the one whose id is nearest to `name`, or NULL. */
static const char *nearest_id(const char *name, const char *const *folders, size_t count, struct tn_arena *arena)
{
    struct names ids = { .arena = arena };
    for (size_t i = 0; i < count; i++) {
        struct dirent **entries;
        int n = scandir(folders[i], &entries, NULL, alphasort);
        for (int k = 0; k < n; k++) {
            size_t length = strlen(entries[k]->d_name);
            if (length > 3 && strcmp(entries[k]->d_name + length - 3, ".so") == 0)
                names_add(&ids, tn_arena_printf(arena, "%.*s", (int)length - 3, entries[k]->d_name));
            free(entries[k]);
        }
        if (n >= 0)
            free(entries);
    }
    return tn_nearest(name, ids.list, ids.count);
}

static enum tn_load find_path(const char *name, const struct tn_search *search, struct tn_arena *arena,
                              const char **path, struct tn_load_error *error)
{
    if (*name != '/' && !search->manifest_folder)
        return tn_load_fail(error, TN_LOAD_NOT_FOUND,
                            "%s: a relative path needs a manifest to start from; use an absolute one", name);
    *path =
        *name == '/' ? tn_arena_strdup(arena, name) : tn_arena_printf(arena, "%s/%s", search->manifest_folder, name);
    if (access(*path, F_OK) != 0)
        return tn_load_fail(error, TN_LOAD_NOT_FOUND, "%s: %s", *path, strerror(errno));
    return TN_LOAD_OK;
}

enum tn_load tn_load_find(const char *name, const struct tn_search *search, struct tn_arena *arena, const char **path,
                          struct tn_load_error *error)
{
    if (strchr(name, '/'))
        return find_path(name, search, arena, path, error);
    if (!is_id(name))
        return tn_load_fail(error, TN_LOAD_NOT_FOUND,
                            "'%.80s' is neither an id ([a-z][a-z0-9_]*) nor a path; a path has a '/', as in ./%.80s",
                            name, name);
    const char *const *folders;
    size_t count = tn_search_folders(search, arena, &folders);
    for (size_t i = 0; i < count; i++) {
        *path = tn_arena_printf(arena, "%s/%s.so", folders[i], name);
        if (access(*path, F_OK) == 0)
            return TN_LOAD_OK;
    }
    struct tn_buf tried;
    tn_buf_init(&tried);
    for (size_t i = 0; i < count; i++)
        tn_buf_printf(&tried, "%s%s", i ? ":" : "", folders[i]);
    const char *nearest = nearest_id(name, folders, count, arena);
    tn_load_fail(error, TN_LOAD_NOT_FOUND, "no file %s.so in %s; %s%s%s", name, tried.text,
                 nearest ? "did you mean " : "name a folder in TENON_PLUGIN_PATH, or give a path",
                 nearest ? nearest : "", nearest ? "?" : "");
    tn_buf_finish(&tried);
    return TN_LOAD_NOT_FOUND;
}
