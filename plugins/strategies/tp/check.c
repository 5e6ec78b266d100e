/* tp: what must divide, and the sizes that would work. The world follows the size, so that it limits none. */
#include <stdio.h>
#include <string.h>

#include "tp.h"

enum { SIZES_MOST = 24 };

static int64_t fact(const struct tp *tp, const char *name)
{
    return tp->facts->get(tp->host, name, 0);
}

static int kv_fits(int64_t kv_heads, int64_t size)
{
    return kv_heads <= 0 || kv_heads % size == 0 || size % kv_heads == 0;
}

static int works(const struct tp *tp, int64_t size)
{
    int64_t vocab = fact(tp, "vocab");
    return fact(tp, "heads") % size == 0 && kv_fits(fact(tp, "kv_heads"), size) && fact(tp, "mlp") % size == 0 &&
           (vocab <= 0 || vocab >= size) && !(tp->sequence_parallel && fact(tp, "sequence") % size != 0);
}

/* "use 1, 2, 4 or 8": every size that would work. */
static void sizes_text(const struct tp *tp, char *text, size_t bytes)
{
    int64_t heads = fact(tp, "heads"), found[SIZES_MOST];
    int n = 0;
    for (int64_t size = 1; size <= heads && n < SIZES_MOST; size++)
        if (works(tp, size))
            found[n++] = size;
    size_t at = (size_t)snprintf(text, bytes, "use ");
    for (int i = 0; i < n && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%lld",
                               i == 0       ? ""
                               : i == n - 1 ? " or "
                                            : ", ",
                               (long long)found[i]);
}

static void refuse(const struct tp *tp, const char *what)
{
    char fix[256];
    sizes_text(tp, fix, sizeof fix);
    tp->host->problem(tp->host, "size", what, fix);
}

static void check_divides(const struct tp *tp, int32_t size, const char *name)
{
    char what[160];
    int64_t value = fact(tp, name);
    if (value % size == 0)
        return;
    snprintf(what, sizeof what, "%d does not divide %s = %lld", size, name, (long long)value);
    refuse(tp, what);
}

tn_status tp_check(void *self, int32_t size)
{
    const struct tp *tp = self;
    char what[160], fix[160];
    check_divides(tp, size, "heads");
    check_divides(tp, size, "mlp");
    int64_t kv_heads = fact(tp, "kv_heads"), vocab = fact(tp, "vocab"), sequence = fact(tp, "sequence");
    if (!kv_fits(kv_heads, size)) {
        snprintf(what, sizeof what, "%d and kv_heads = %lld do not divide each other", size, (long long)kv_heads);
        refuse(tp, what);
    }
    if (vocab > 0 && vocab < size) {
        snprintf(what, sizeof what, "%d ranks are more than the vocab = %lld tokens", size, (long long)vocab);
        refuse(tp, what);
    }
    if (tp->sequence_parallel && sequence % size != 0) {
        snprintf(what, sizeof what, "the sequence of %lld tokens does not divide by size = %d", (long long)sequence,
                 size);
        snprintf(fix, sizeof fix, "use off, or a [data] sequence such as %lld",
                 (long long)((sequence + size - 1) / size * size));
        tp->host->problem(tp->host, "sequence_parallel", what, fix);
    }
    return TN_OK;
}
