/* Options of a plugin: a static table that the core parses, checks and documents.
 *
 * Each row is a key of the plugin's own manifest section. The core reads the text of the
 * manifest, refuses unknown keys and values out of range, and hands the plugin typed
 * values (host.h, get_*). A key without a value in the manifest has its default. */
#ifndef TENON_OPTION_H
#define TENON_OPTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, number, text) */
#define TN_OPT_LIST(X)         \
    X(INT, 1, "int")           \
    X(FLOAT, 2, "float")       \
    X(BOOL, 3, "bool")         \
    X(SIZE, 4, "size")         \
    X(DURATION, 5, "duration") \
    X(ENUM, 6, "enum")         \
    X(STRING, 7, "string")     \
    X(LIST, 8, "list")

enum {
#define TN_X(name, number, text) TN_OPT_##name = number,
    TN_OPT_LIST(TN_X)
#undef TN_X
};

enum {
    TN_OPT_REQUIRED = 1, /* no default: the manifest must give it */
    TN_OPT_AUTO = 2      /* an int, float or size that may also be the word "auto": get_* gives -1 */
};

struct tn_option {
    uint32_t struct_size;
    uint32_t type;  /* TN_OPT_*: int 42; float 1e-4; bool true/false/on/off/yes/no; size 4M,
                       2G (binary, bytes); duration 250ms, 2s, 3m (nanoseconds); enum one
                       of choices; string; list, comma separated strings */
    uint32_t flags; /* TN_OPT_REQUIRED, TN_OPT_AUTO */
    uint32_t reserved;
    const char *key;
    const char *fallback;       /* the default, as a manifest would say it; NULL: empty string,
                                     empty list, or no default with TN_OPT_REQUIRED */
    double min, max;            /* inclusive, for int, float, size, duration; both 0: any */
    const char *const *choices; /* NULL-terminated, for enum */
    const char *help;           /* one sentence for the reference page and `plugin inspect` */
};

#ifdef __cplusplus
}
#endif
#endif
