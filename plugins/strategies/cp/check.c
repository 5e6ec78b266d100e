/* cp.check: sequences that cannot be cut without dropping tokens, heads that cannot be dealt out, and what would do. */
#include <stdio.h>
#include <string.h>

#include "cp.h"

enum { SIZES_MOST = 24 };

static int64_t fact(const struct cp *cp, const char *name)
{
    return cp->facts->get(cp->host, name, 0);
}

static int works(const struct cp *cp, int64_t size)
{
    int64_t pieces = cp_is_zigzag(cp) && size > 1 ? 2 * size : size;
    int heads = cp->method != CP_ALL_TO_ALL || (fact(cp, "heads") % size == 0 && fact(cp, "kv_heads") % size == 0);
    return fact(cp, "sequence") % pieces == 0 && heads;
}

/* "use 1, 2 or 4": every size that would work, the first of them if there are many. */
static void sizes_text(const struct cp *cp, char *text, size_t bytes)
{
    int64_t sequence = fact(cp, "sequence"), found[SIZES_MOST];
    int n = 0;
    for (int64_t size = 1; size <= sequence && size <= 1024 && n < SIZES_MOST; size++)
        if (works(cp, size))
            found[n++] = size;
    size_t at = (size_t)snprintf(text, bytes, "use ");
    for (int i = 0; i < n && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%lld",
                               i == 0       ? ""
                               : i == n - 1 ? " or "
                                            : ", ",
                               (long long)found[i]);
}

static void check_heads(const struct cp *cp, int32_t size, const char *name)
{
    char what[160], fix[320];
    int64_t heads = fact(cp, name);
    if (cp->method != CP_ALL_TO_ALL || heads <= 0 || heads % size == 0)
        return;
    snprintf(what, sizeof what, "%d does not divide %s = %lld, which all_to_all deals out", size, name,
             (long long)heads);
    sizes_text(cp, fix, sizeof fix - 40);
    strcat(fix, ", or method = ring");
    cp->host->problem(cp->host, "size", what, fix);
}

tn_status cp_check(void *self, int32_t size)
{
    const struct cp *cp = self;
    int64_t sequence = fact(cp, "sequence"), pieces = cp_is_zigzag(cp) && size > 1 ? 2 * size : size;
    char what[160], fix[320];
    if (sequence > 0 && sequence % pieces != 0) {
        snprintf(what, sizeof what, "the sequence of %lld tokens does not divide by %lld, %s%d%s", (long long)sequence,
                 (long long)pieces, pieces > size ? "two runs on each of " : "", size,
                 pieces > size ? " ranks" : " ranks of it");
        sizes_text(cp, fix, sizeof fix - 80);
        snprintf(fix + strlen(fix), 80, ", or a [data] sequence such as %lld",
                 (long long)((sequence + pieces - 1) / pieces * pieces));
        cp->host->problem(cp->host, "size", what, fix);
    }
    check_heads(cp, size, "heads");
    check_heads(cp, size, "kv_heads");
    return TN_OK;
}
