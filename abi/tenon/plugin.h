/* The one symbol a plugin exports, and what it returns.
 *
 * The host calls tn_plugin_query right after dlopen; it must have no side effects and
 * return a static description. The host reads the frozen prefix (magic to build_info)
 * before it trusts anything else: major must match, minors negotiate to the lower, and
 * fields behind struct_size are absent. */
#ifndef TENON_PLUGIN_H
#define TENON_PLUGIN_H

#include <tenon/host.h>
#include <tenon/option.h>
#include <tenon/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_PLUGIN_MAGIC 0x4e4e4554u /* "TENN" */
#define TN_ABI_MAJOR 0
#define TN_ABI_MINOR 1

/* X(NAME, number, text) */
#define TN_PLUGIN_KIND_LIST(X)     \
    X(STRATEGY, 1, "strategy")     \
    X(COLLECTIVE, 2, "collective") \
    X(DEVICE, 3, "device")         \
    X(MODEL, 4, "model")

enum {
#define TN_X(name, number, text) TN_PLUGIN_##name = number,
    TN_PLUGIN_KIND_LIST(TN_X)
#undef TN_X
};

struct tn_plugin {
    /* frozen prefix */
    uint32_t magic;       /* TN_PLUGIN_MAGIC */
    uint32_t struct_size; /* sizeof(struct tn_plugin) as the plugin was built */
    uint16_t abi_major, abi_minor;
    uint16_t min_host_minor; /* oldest host it can work with */
    uint16_t reserved;
    uint32_t kind;          /* TN_PLUGIN_* */
    uint32_t option_stride; /* sizeof(struct tn_option) as the plugin was built */
    const char *id;         /* also the name of its manifest section: [a-z][a-z0-9_]* */
    const char *version;
    const char *summary;    /* one sentence */
    const char *build_info; /* compiler and libraries, for bug reports; may be "" */
    /* end of the frozen prefix */

    const void *table; /* struct tn_strategy, tn_collective, tn_device or tn_model, by kind */
    const struct tn_option *options;
    uint32_t option_count;
    uint32_t reserved2;
    /* NULL or NULL-terminated lists of plugin ids, for the order in the chain ... */
    const char *const *after;     /* must come after these, where they are in the chain */
    const char *const *before;    /* must come before these */
    const char *const *conflicts; /* cannot be in one chain with these */
    const char *const *needs;     /* ... and of host APIs it cannot work without ("tn.program/1"): a host that lacks
                                     one does not call create, where get_api of these is never NULL */
};

/* The fields of the frozen prefix that say what a plugin was built with: the same in every plugin. */
#define TN_PLUGIN_BUILT                                                                           \
    .magic = TN_PLUGIN_MAGIC, .struct_size = sizeof(struct tn_plugin), .abi_major = TN_ABI_MAJOR, \
    .abi_minor = TN_ABI_MINOR, .option_stride = sizeof(struct tn_option)

struct tn_host_info {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    const char *version; /* of Tenon, for messages */
};

#define TN_PLUGIN_ENTRY "tn_plugin_query"

#if defined(__GNUC__)
#define TN_EXPORT __attribute__((visibility("default")))
#else
#define TN_EXPORT
#endif

/* What every plugin defines. Returns NULL only if it can work with no host of that info. */
TN_EXPORT const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host);

/* True if `field` of *object lies inside the size that the other side was built with. */
#define TN_HAS(object, field) \
    ((object)->struct_size >= \
     (uint32_t)((const char *)&(object)->field - (const char *)(object)) + sizeof(object)->field)

#ifdef __cplusplus
}
#endif
#endif
