/* Loader, step 3: whether this host can work with what tn_plugin_query returned.
 *
 * The frozen prefix is read first. The rest is then copied into this host's own structs, as far as the plugin's
 * struct_size says it is there, so that nothing after this file has to ask for sizes. */
#include "loader/loader_steps.h"

#include <stddef.h>
#include <string.h>

enum { PREFIX_BYTES = offsetof(struct tn_plugin, table) };

const char *tn_plugin_kind_name(uint32_t kind)
{
    static const char *const names[] = { [0] = "unknown",
#define TN_X(name, number, text) [number] = text,
                                         TN_PLUGIN_KIND_LIST(TN_X)
#undef TN_X
    };
    return kind < sizeof names / sizeof *names ? names[kind] : names[0];
}

/* A copy of `bytes`, of which the first `given` come from the plugin. sizeof a struct with pointers is a multiple of
 * theirs; an odd size would cut a field in two. */
static void *copy_struct(struct tn_arena *arena, const void *from, uint32_t given, size_t bytes)
{
    given -= given % (uint32_t)sizeof(void *);
    void *copy = tn_arena_alloc(arena, bytes);
    memcpy(copy, from, given < bytes ? given : bytes);
    return copy;
}

/* ---- the frozen prefix ---- */

static int is_id(const char *id)
{
    return id && *id >= 'a' && *id <= 'z' && strlen(id) <= 48 &&
           id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_")] == 0;
}

static int is_core_section(const char *id)
{
    for (const struct tn_settings_section *section = tn_settings_sections(); section->name; section++)
        if (strcmp(section->name, id) == 0)
            return 1;
    return 0;
}

static enum tn_load check_version(const struct tn_plugin *plugin, const char *path, struct tn_load_error *error)
{
    if (plugin->abi_major != TN_ABI_MAJOR)
        return tn_load_fail(error, TN_LOAD_ABI_MAJOR,
                            "%s: built for ABI %u.%u; this Tenon has %d.%d: build the plugin against its headers", path,
                            plugin->abi_major, plugin->abi_minor, TN_ABI_MAJOR, TN_ABI_MINOR);
    if (plugin->min_host_minor > TN_ABI_MINOR)
        return tn_load_fail(error, TN_LOAD_ABI_MINOR, "%s: needs a Tenon of ABI %u.%u or later; this one has %d.%d",
                            path, plugin->abi_major, plugin->min_host_minor, TN_ABI_MAJOR, TN_ABI_MINOR);
    return TN_LOAD_OK;
}

static enum tn_load check_prefix(const struct tn_plugin *plugin, const char *path, uint32_t kind,
                                 struct tn_load_error *error)
{
    if (plugin->magic != TN_PLUGIN_MAGIC || plugin->struct_size < PREFIX_BYTES + sizeof(void *))
        return tn_load_fail(
            error, TN_LOAD_NO_ENTRY,
            "%s: %s returned no plugin description (magic 0x%08x, size %u; expected 0x%08x, at least %zu)", path,
            TN_PLUGIN_ENTRY, plugin->magic, plugin->struct_size, TN_PLUGIN_MAGIC, PREFIX_BYTES + sizeof(void *));
    enum tn_load reason = check_version(plugin, path, error);
    if (reason)
        return reason;
    if (!is_id(plugin->id) || is_core_section(plugin->id))
        return tn_load_fail(
            error, TN_LOAD_NO_ENTRY,
            "%s: its id '%.60s' is no free section name; use [a-z][a-z0-9_]*, and none of the core's sections", path,
            plugin->id ? plugin->id : "");
    if (!plugin->version || !plugin->summary || !plugin->build_info)
        return tn_load_fail(error, TN_LOAD_NO_ENTRY, "%s: its description lacks the version, summary or build_info",
                            path);
    if (kind && plugin->kind != kind)
        return tn_load_fail(error, TN_LOAD_NO_ENTRY, "%s: is a plugin of kind %s, where a %s is wanted", path,
                            tn_plugin_kind_name(plugin->kind), tn_plugin_kind_name(kind));
    return TN_LOAD_OK;
}

/* ---- the table ---- */

struct function {
    const char *name;
    size_t offset;
};
/* clang-format off */
#define FN(table, name) { #name, offsetof(struct table, name) }

/* What must be there: all functions but those of which the header says that they may be NULL. */
static const struct function strategy_functions[] = { FN(tn_strategy, create), FN(tn_strategy, destroy), { NULL, 0 } };
static const struct function collective_functions[] = {
    FN(tn_collective, create),      FN(tn_collective, destroy),
    FN(tn_collective, caps),        FN(tn_collective, init),
    FN(tn_collective, mem_alloc),   FN(tn_collective, mem_free),
    FN(tn_collective, comm_create), FN(tn_collective, comm_destroy),
    FN(tn_collective, comm_abort),  FN(tn_collective, all_reduce),
    FN(tn_collective, all_gather),  FN(tn_collective, reduce_scatter),
    FN(tn_collective, all_to_all),  FN(tn_collective, broadcast),
    FN(tn_collective, send),        FN(tn_collective, recv),
    FN(tn_collective, barrier),     FN(tn_collective, test),
    FN(tn_collective, wait),        FN(tn_collective, progress),
    FN(tn_collective, last_error),  { NULL, 0 },
};
static const struct function device_functions[] = {
    FN(tn_device, create),
    FN(tn_device, destroy),
    FN(tn_device, probe),
    FN(tn_device, mem_alloc),
    FN(tn_device, mem_free),
    FN(tn_device, queue_create),
    FN(tn_device, queue_destroy),
    FN(tn_device, queue_sync),
    FN(tn_device, event_create),
    FN(tn_device, event_destroy),
    FN(tn_device, event_record),
    FN(tn_device, event_wait),
    FN(tn_device, supports),
    FN(tn_device, workspace),
    FN(tn_device, bind),
    FN(tn_device, kernel_destroy),
    FN(tn_device, launch),
    FN(tn_device, copy),
    { NULL, 0 },
};
static const struct function model_functions[] = {
    FN(tn_model, create), FN(tn_model, destroy), FN(tn_model, fact),
    FN(tn_model, check),  FN(tn_model, build),   { NULL, 0 },
};

/* clang-format on */

static const struct kind {
    size_t bytes;
    const struct function *functions;
} kinds[] = {
    [TN_PLUGIN_STRATEGY] = { sizeof(struct tn_strategy), strategy_functions },
    [TN_PLUGIN_COLLECTIVE] = { sizeof(struct tn_collective), collective_functions },
    [TN_PLUGIN_DEVICE] = { sizeof(struct tn_device), device_functions },
    [TN_PLUGIN_MODEL] = { sizeof(struct tn_model), model_functions },
};

static enum tn_load take_table(struct tn_plugin *plugin, const char *path, struct tn_arena *arena,
                               struct tn_load_error *error)
{
    if (plugin->kind == 0 || plugin->kind >= sizeof kinds / sizeof *kinds)
        return tn_load_fail(error, TN_LOAD_FEATURE_MISSING, "%s: is of a kind (%u) that this Tenon does not know", path,
                            plugin->kind);
    const struct kind *kind = &kinds[plugin->kind];
    uint32_t given = 0;
    if (plugin->table)
        memcpy(&given, plugin->table, sizeof given);
    if (given < 2 * sizeof(void *))
        return tn_load_fail(error, TN_LOAD_NO_ENTRY, "%s: has no %s table", path, tn_plugin_kind_name(plugin->kind));
    char *table = copy_struct(arena, plugin->table, given, kind->bytes);
    for (const struct function *function = kind->functions; function->name; function++) {
        void *address;
        memcpy(&address, table + function->offset, sizeof address);
        if (!address)
            return tn_load_fail(error, TN_LOAD_FEATURE_MISSING, "%s: its %s table lacks the function %s", path,
                                tn_plugin_kind_name(plugin->kind), function->name);
    }
    plugin->table = table;
    return TN_LOAD_OK;
}

static enum tn_load check_needs(const struct tn_plugin *plugin, const char *path, struct tn_load_error *error)
{
    for (const char *const *need = plugin->needs; need && *need; need++)
        if (!tn_host_has_api(*need))
            return tn_load_fail(error, TN_LOAD_FEATURE_MISSING, "%s: needs \"%.80s\", which Tenon %s does not have",
                                path, *need, TENON_VERSION);
    return TN_LOAD_OK;
}

enum tn_load tn_load_check_plugin(struct tn_library *library, const struct tn_plugin *plugin, const char *name,
                                  uint32_t kind, struct tn_arena *arena, struct tn_load_error *error)
{
    const char *path = library->path;
    enum tn_load reason = check_prefix(plugin, path, kind, error);
    if (reason)
        return reason;
    if (!strchr(name, '/') && strcmp(name, plugin->id) != 0)
        return tn_load_fail(error, TN_LOAD_NOT_FOUND,
                            "%s: holds the plugin %s, not %s; rename the file, or give its path", path, plugin->id,
                            name);
    struct tn_plugin *copy = copy_struct(arena, plugin, plugin->struct_size, sizeof *copy);
    library->plugin = copy;
    library->minor = plugin->abi_minor < TN_ABI_MINOR ? plugin->abi_minor : TN_ABI_MINOR;
    if (!copy->options)
        copy->option_count = 0;
    reason = take_table(copy, path, arena, error);
    return reason ? reason : check_needs(copy, path, error);
}
