/* Loader: finds, checks and opens the plugins that a manifest names (design section 3, rules 10-12).
 *
 * A plugin name with a '/' is a path (relative: to the manifest's folder); without one it is an id, searched as
 * file "<id>.so" in: the manifest's folder if [job] plugins_beside_manifest, the absolute folders of
 * TENON_PLUGIN_PATH (ignored under AT_SECURE), the install's plugin folder (or, when run from the build tree, the
 * build's). The first file found is the one: a named plugin that fails is fatal, with a reason code, and no other is
 * tried. The file must be safe (loader_file.c) before dlopen sees it. */
#ifndef TENON_LOADER_H
#define TENON_LOADER_H

#include <tenon/collective.h>
#include <tenon/device.h>
#include <tenon/model.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

#include "config/settings.h"

/* X(NAME, text) */
#define TN_LOAD_LIST(X)                         \
    X(OK, "ok")                                 \
    X(NOT_FOUND, "not-found")                   \
    X(UNSAFE_FILE, "unsafe-file")               \
    X(NOT_ELF, "not-elf")                       \
    X(WRONG_ARCH, "wrong-arch")                 \
    X(MISSING_DEPENDENCY, "missing-dependency") \
    X(NO_ENTRY, "no-entry")                     \
    X(ABI_MAJOR, "abi-major")                   \
    X(ABI_MINOR, "abi-minor")                   \
    X(FEATURE_MISSING, "feature-missing")       \
    X(UNSUPPORTED_DEVICE, "unsupported-device") \
    X(INIT_FAILED, "init-failed")

enum tn_load {
#define TN_X(name, text) TN_LOAD_##name,
    TN_LOAD_LIST(TN_X)
#undef TN_X
};

struct tn_library {   /* an opened plugin file */
    const char *path; /* absolute, links resolved, in the arena */
    /* In the arena: the plugin's description and its table as this host's structs, so that a field the plugin was
     * built without reads as 0 and a field this host does not know is left out. */
    const struct tn_plugin *plugin;
    void *handle;
    uint16_t minor; /* negotiated */
};

struct tn_load_error {
    enum tn_load reason;
    char text[2048]; /* reason code, path, and dlerror or what was found, verbatim */
};

struct tn_search {               /* where to look; folders in order */
    const char *manifest_folder; /* NULL: none */
    int beside_manifest;
};

/* Opens one plugin; kind 0: any. On failure returns the reason and fills *error. The library is never closed. */
enum tn_load tn_library_open(struct tn_library *library, const char *name, uint32_t kind,
                             const struct tn_search *search, struct tn_arena *arena, struct tn_load_error *error);
/* The folders in which an id is searched, in order, and their number. */
size_t tn_search_folders(const struct tn_search *search, struct tn_arena *arena, const char *const **folders);
const char *tn_load_name(enum tn_load reason);  /* "not-found" */
const char *tn_plugin_kind_name(uint32_t kind); /* "strategy"; "unknown" */

enum { TN_MOST_OPENED = 4 };

/* One plugin with its options and host table. What the host table hands out belongs to it. */
struct tn_instance {
    struct tn_library library;
    struct tn_options options;
    struct tn_host host;
    void *self; /* what create made; NULL before */
    struct tn_manifest *manifest;
    struct tn_diag *diag; /* where host->problem goes */
    char message[1024];   /* last host->fail of this instance; "" none */
    char report[1536];    /* what tn_instance_message answered last */
    const struct tn_facts *facts;
    struct tn_instance *next;                   /* of a layer: the collective below it */
    const struct tn_opener *opener;             /* of collectives */
    struct tn_instance *opened[TN_MOST_OPENED]; /* what it opened through tn.backends/1 */
    uint32_t n_opened;
};

/* "tn.facts/1" and other tables that the core offers are looked up here. */
struct tn_facts {
    int64_t (*get)(const struct tn_facts *facts, const char *name, int64_t missing);
    const struct tn_trials *trials; /* NULL: there is no job that could plan */
};

/* What a job answers to "tn.plan/1"; `caller` is the instance that asks. */
struct tn_trials {
    int64_t (*budget)(const struct tn_facts *facts);
    int64_t (*peak)(const struct tn_facts *facts, const struct tn_instance *caller, struct tn_program *copy,
                    uint32_t flags);
    double (*away)(const struct tn_facts *facts, const struct tn_instance *caller, uint64_t bytes);
};

/* "tn.backends/1": finds or makes the job's instance of a backend, for `by`. Failure: a message of `by`. */
struct tn_opener {
    tn_status (*open)(const struct tn_opener *opener, struct tn_instance *by, const char *name,
                      struct tn_instance **found);
};

/* Fills the host table, reads the plugin's section. No create is called. The instance must not move afterwards. */
void tn_instance_init(struct tn_instance *instance, const struct tn_library *library, struct tn_manifest *m,
                      struct tn_diag *diag);
/* Calls the create of its kind; a collective gets the backend `next` below it, or NULL. TN_LOAD_OK, or
 * TN_LOAD_UNSUPPORTED_DEVICE (a device or collective that answers TN_UNSUPPORTED) or TN_LOAD_INIT_FAILED with *error
 * filled. */
enum tn_load tn_instance_create(struct tn_instance *instance, struct tn_instance *next, struct tn_load_error *error);
void tn_instance_destroy(struct tn_instance *instance); /* its `self`; nothing if create was not called or failed */
/* The typed table of an instance. */
static inline const void *tn_instance_table(const struct tn_instance *instance)
{
    return instance->library.plugin->table;
}
/* After a failed create or call: the message (of one that says nothing, what those below it said), or one that
 * calls the silence a fault of the plugin. Valid until the next one; the message is then forgotten. */
const char *tn_instance_message(struct tn_instance *instance);
/* Whether get_api answers to this id. */
int tn_host_has_api(const char *id);
/* Order, conflicts and needs of the chain; problems go to the diag. */
void tn_chain_check(struct tn_instance *const *chain, size_t count, struct tn_diag *diag);
/* Hash of ids, versions, minors and order, for the ranks' comparison. */
uint64_t tn_chain_hash(struct tn_instance *const *all, size_t count);

#endif
