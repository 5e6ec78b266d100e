/* Loader: opens one plugin, step by step; see loader.h. */
#include "loader/loader_steps.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *tn_load_name(enum tn_load reason)
{
    static const char *const names[] = {
#define TN_X(name, text) text,
        TN_LOAD_LIST(TN_X)
#undef TN_X
    };
    return names[reason];
}

enum tn_load tn_load_fail(struct tn_load_error *error, enum tn_load reason, const char *fmt, ...)
{
    error->reason = reason;
    int n = snprintf(error->text, sizeof error->text, "%s: ", tn_load_name(reason));
    va_list args;
    va_start(args, fmt);
    vsnprintf(error->text + n, sizeof error->text - (size_t)n, fmt, args);
    va_end(args);
    return reason;
}

/* dlopen's own text says all; which reason it is: about the file itself, or about something that the file needs. */
static enum tn_load open_failed(const char *path, struct tn_load_error *error)
{
    const char *text = dlerror();
    if (!text)
        text = "dlopen failed and does not say why";
    size_t length = strlen(path);
    int about_file = strncmp(text, path, length) == 0 && text[length] == ':';
    int about_symbol = strstr(text, "undefined symbol") || strstr(text, "not found") || strstr(text, "not defined") ||
                       strstr(text, "static TLS");
    if (about_file && !about_symbol)
        return tn_load_fail(error, TN_LOAD_NOT_ELF, "%s", text);
    if (about_file)
        return tn_load_fail(error, TN_LOAD_MISSING_DEPENDENCY, "%s", text);
    return tn_load_fail(error, TN_LOAD_MISSING_DEPENDENCY, "%s: %s", path, text);
}

/* dlsym also finds a symbol of a library that the plugin is linked with: that one is no entry. */
static enum tn_load check_origin(const void *entry, const char *path, struct tn_load_error *error)
{
    Dl_info info;
    struct stat there, here;
    if (!dladdr(entry, &info) || !info.dli_fname || stat(info.dli_fname, &there) != 0 || stat(path, &here) != 0)
        return tn_load_fail(error, TN_LOAD_NO_ENTRY, "%s: %s lies in no file that can be found", path, TN_PLUGIN_ENTRY);
    if (there.st_dev != here.st_dev || there.st_ino != here.st_ino)
        return tn_load_fail(error, TN_LOAD_NO_ENTRY,
                            "%s: has no %s of its own; the one found is of %s, which it is linked with", path,
                            TN_PLUGIN_ENTRY, info.dli_fname);
    return TN_LOAD_OK;
}

static enum tn_load query(struct tn_library *library, const struct tn_plugin **plugin, struct tn_load_error *error)
{
    dlerror();
    void *entry = dlsym(library->handle, TN_PLUGIN_ENTRY);
    const char *text = dlerror();
    if (!entry)
        return tn_load_fail(error, TN_LOAD_NO_ENTRY, "%s", text ? text : library->path);
    enum tn_load reason = check_origin(entry, library->path, error);
    if (reason)
        return reason;
    static const struct tn_host_info host = { sizeof host, TN_ABI_MAJOR, TN_ABI_MINOR, TENON_VERSION };
    const struct tn_plugin *(*call)(const struct tn_host_info *);
    memcpy(&call, &entry, sizeof call); /* ISO C has no cast from an object's to a function's address */
    *plugin = call(&host);
    if (!*plugin)
        return tn_load_fail(error, TN_LOAD_FEATURE_MISSING, "%s: refuses to work with Tenon %s, ABI %d.%d",
                            library->path, TENON_VERSION, TN_ABI_MAJOR, TN_ABI_MINOR);
    return TN_LOAD_OK;
}

enum tn_load tn_library_open(struct tn_library *library, const char *name, uint32_t kind,
                             const struct tn_search *search, struct tn_arena *arena, struct tn_load_error *error)
{
    const char *found;
    *library = (struct tn_library){ 0 };
    *error = (struct tn_load_error){ 0 };
    enum tn_load reason = tn_load_find(name, search, arena, &found, error);
    if (reason)
        return reason;
    char *path = realpath(found, NULL);
    if (!path)
        return tn_load_fail(error, TN_LOAD_NOT_FOUND, "%s: %s", found, strerror(errno));
    library->path = tn_arena_strdup(arena, path);
    free(path);

    reason = tn_load_check_file(found, library->path, error);
    if (reason)
        return reason;
    library->handle = dlopen(library->path, RTLD_NOW | RTLD_LOCAL);
    if (!library->handle)
        return open_failed(library->path, error);
    const struct tn_plugin *plugin;
    reason = query(library, &plugin, error);
    return reason ? reason : tn_load_check_plugin(library, plugin, name, kind, arena, error);
}
