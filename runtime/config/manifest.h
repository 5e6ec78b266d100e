/* Manifest: the INI file as sections of keys with their places. First arrow of the flow.
 *
 * Only the text is known here; what keys mean is options.h. Read with inih; every problem
 * (syntax, duplicate key, not UTF-8, too large) goes to the diag with file and line. */
#ifndef TENON_MANIFEST_H
#define TENON_MANIFEST_H

#include <stdint.h>

#include "base/arena.h"
#include "base/diag.h"

enum { TN_MANIFEST_MOST_BYTES = 1 << 20, TN_MANIFEST_MOST_KEYS = 4096 };

struct tn_entry {
    const char *section, *key, *value;
    struct tn_where where; /* file "--set" and line 0 for an override */
    int used;              /* set by options.c once some table knew the key */
};

struct tn_section {
    const char *name;
    struct tn_where where; /* of its "[name]" line */
};

struct tn_manifest {
    struct tn_arena arena;
    const char *path, *folder; /* of the file; folder is absolute */
    int readable;              /* 0: nothing could be read, so that nothing is missing either */
    struct tn_entry *entries;  /* in file order, then overrides that were new */
    size_t count, cap;
    struct tn_section *sections; /* in file order, also those without keys */
    size_t section_count, section_cap;
    uint64_t hash; /* of all entries, for the ranks' comparison */
};

/* Reads `path` (NULL: no file, all comes from the overrides) and applies `overrides` ("section.key=value"; of two for
 * one key the later holds). Problems go to diag; the manifest is usable (and must be finished) in any case. */
void tn_manifest_init(struct tn_manifest *m, const char *path, const char *const *overrides, size_t n_overrides,
                      struct tn_diag *diag);
void tn_manifest_finish(struct tn_manifest *m);
/* The entry, or NULL. */
struct tn_entry *tn_manifest_find(const struct tn_manifest *m, const char *section, const char *key);
/* Where `key` stands, or would: for problems about a key that was not given. */
struct tn_where tn_manifest_where(const struct tn_manifest *m, const char *section, const char *key);

#endif
