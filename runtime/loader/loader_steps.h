/* The steps of the loader that stand in files of their own; for loader.c alone. */
#ifndef TENON_LOADER_STEPS_H
#define TENON_LOADER_STEPS_H

#include "loader/loader.h"

/* Fills *error with "reason: text" and returns the reason. */
enum tn_load tn_load_fail(struct tn_load_error *error, enum tn_load reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* loader_search.c: the file that `name` stands for, links not yet resolved. */
enum tn_load tn_load_find(const char *name, const struct tn_search *search, struct tn_arena *arena, const char **path,
                          struct tn_load_error *error);
/* loader_file.c: whether nobody but root and the user can have changed the file, and whether dlopen can take it. */
enum tn_load tn_load_check_file(const char *found, const char *path, struct tn_load_error *error);
/* loader_plugin.c: reads what tn_plugin_query returned into library->plugin. */
enum tn_load tn_load_check_plugin(struct tn_library *library, const struct tn_plugin *plugin, const char *name,
                                  uint32_t kind, struct tn_arena *arena, struct tn_load_error *error);

#endif
