/* Options: one manifest section read through a table of struct tn_option.
 *
 * The core's own sections and every plugin's go through the same code: types, ranges,
 * defaults, unknown keys with the nearest known one. */
#ifndef TENON_OPTIONS_H
#define TENON_OPTIONS_H

#include <stdint.h>

#include <tenon/option.h>

#include "config/manifest.h"

struct tn_option_value {
    const struct tn_option *option;
    int given;     /* the manifest has the key */
    int64_t i;     /* int, bool, size (bytes), duration (ns), enum (index); -1 for auto */
    double f;      /* float (NaN-free); -1 for auto */
    const char *s; /* string ("" if empty), and the text of any other */
    const char *const *list;
    uint32_t list_count;
};

struct tn_options {
    const char *section;
    struct tn_option_value *values; /* one a row of the table, in its order */
    uint32_t count;
    int sound; /* every value was given as the table wants it; unknown keys do no harm */
};

/* Reads `section` of the manifest. Rows lie `stride` bytes apart. Memory is the manifest's. */
void tn_options_read(struct tn_options *options, struct tn_manifest *m, const char *section,
                     const struct tn_option *table, uint32_t count, uint32_t stride, struct tn_diag *diag);
/* The value of a key that the table has; an unknown key is a fault of ours (assert). */
const struct tn_option_value *tn_options_get(const struct tn_options *options, const char *key);
/* NULL if the table has no such key. */
const struct tn_option_value *tn_options_find(const struct tn_options *options, const char *key);
/* The known name nearest to `word` (edit distance at most a third of it, at least 2), or NULL. */
const char *tn_nearest(const char *word, const char *const *names, size_t count);
/* Prints the table as a plain reference: key, type, default, range or choices, help. */
struct tn_buf;
void tn_options_describe(const struct tn_option *table, uint32_t count, uint32_t stride, struct tn_buf *out);

#endif
