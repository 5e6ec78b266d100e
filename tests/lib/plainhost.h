/* A host for tests and benchmarks that use a plugin's table alone, without the loader: options
 * have their defaults, logs go to stderr (warnings and errors only), the last failure is kept. */
#ifndef TENON_TESTS_PLAINHOST_H
#define TENON_TESTS_PLAINHOST_H

#include <tenon/collective.h>
#include <tenon/plugin.h>

struct plainhost {
    struct tn_host host; /* host.ctx is this struct */
    const struct tn_plugin *plugin;
    struct plainhost *above; /* of a layer over this plugin: it hears of failures too; may be NULL */
    /* Answers tn.backends/1; NULL: this host has none. */
    tn_status (*open)(struct plainhost *h, const char *name, const struct tn_collective **table, void **self);
    void *opener;          /* for `open` */
    const char *overrides; /* "key=value key=value", over the defaults; may be NULL */
    char message[512];     /* of the last failure */
    char text[128];        /* of the last get_string */
};

void plainhost_init(struct plainhost *h, const struct tn_plugin *plugin);
/* Loads a plugin of a kind by path; NULL with a line on stderr. Never unloaded. */
const struct tn_plugin *plainhost_load(const char *path, uint32_t kind);

#endif
