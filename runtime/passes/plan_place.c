/* Placing: see plan_place.h.
 *
 * What is placed is kept by offset and, at one offset, by time, in shelves of a bounded size, each of one offset. A
 * shelf knows its times and its highest end, so that the search for a gap passes most shelves by: a pipeline's
 * micro-batches use the same offsets one after another, and a block meets few of the hundred thousand that lie below its
 * gap. Blocks at one offset never meet in time, so those of a shelf that meet another one are neighbours. */
#include "passes/plan_place.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SHELF = 64 };

/* What lies at the shelf's offset from one time to another. */
struct span {
    int64_t first, last, end;
};

struct shelf {
    int64_t offset, first, last, end; /* earliest, latest, highest of all on it */
    size_t n;
    struct span *span; /* [SHELF] */
};

struct shelves {
    struct shelf *shelf;
    size_t n, cap;
};

static int larger_first(const void *a, const void *b)
{
    const struct tn_block *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return (x->root > y->root) - (x->root < y->root);
}

static struct shelf *add_shelf(struct shelves *s, size_t at, int64_t offset)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->shelf = realloc(s->shelf, s->cap * sizeof *s->shelf);
        assert(s->shelf);
    }
    memmove(s->shelf + at + 1, s->shelf + at, (s->n++ - at) * sizeof *s->shelf);
    s->shelf[at] = (struct shelf){ .offset = offset, .span = malloc(SHELF * sizeof(struct span)) };
    assert(s->shelf[at].span);
    return &s->shelf[at];
}

static void summarise(struct shelf *shelf)
{
    shelf->first = shelf->span[0].first;
    shelf->last = shelf->span[shelf->n - 1].last;
    shelf->end = shelf->offset;
    for (size_t i = 0; i < shelf->n; i++)
        shelf->end = shelf->span[i].end > shelf->end ? shelf->span[i].end : shelf->end;
}

/* Number of the first shelf that is behind (offset, first). */
static size_t shelf_behind(const struct shelves *s, int64_t offset, int64_t first)
{
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct shelf *shelf = &s->shelf[middle];
        int is_behind = shelf->offset != offset ? shelf->offset > offset : shelf->first > first;
        *(is_behind ? &high : &low) = is_behind ? middle : middle + 1;
    }
    return low;
}

/* A shelf of this offset on which a span from `first` on goes, with room for it. */
static struct shelf *shelf_for(struct shelves *s, int64_t offset, int64_t first)
{
    size_t behind = shelf_behind(s, offset, first), at = behind ? behind - 1 : 0;
    if (behind == 0 || s->shelf[at].offset != offset) {
        if (behind == s->n || s->shelf[behind].offset != offset)
            return add_shelf(s, behind, offset);
        at = behind;
    }
    if (s->shelf[at].n < SHELF)
        return &s->shelf[at];
    struct shelf *upper = add_shelf(s, at + 1, offset), *shelf = &s->shelf[at]; /* the later half goes to a new one */
    upper->n = SHELF / 2;
    shelf->n -= upper->n;
    memcpy(upper->span, shelf->span + shelf->n, upper->n * sizeof *upper->span);
    summarise(upper);
    summarise(shelf);
    return first < upper->first ? shelf : upper;
}

static void put(struct shelves *s, const struct tn_block *b)
{
    struct shelf *shelf = shelf_for(s, b->offset, b->first);
    size_t i = shelf->n++;
    for (; i > 0 && b->first < shelf->span[i - 1].first; i--)
        shelf->span[i] = shelf->span[i - 1];
    shelf->span[i] = (struct span){ b->first, b->last, b->offset + b->bytes };
    summarise(shelf);
}

/* The highest end of what meets b in time, at least `at`. */
static int64_t highest_end(const struct shelf *shelf, const struct tn_block *b, int64_t at)
{
    const struct span *span = shelf->span, *end = span + shelf->n;
    for (size_t n = shelf->n, half; n > 1; n -= half) { /* the first that lasts until b begins */
        half = n / 2;
        span += span[half - 1].last < b->first ? half : 0;
    }
    for (; span < end && span->first <= b->last && at < shelf->end; span++)
        at = span->end > at ? span->end : at;
    return at;
}

static int64_t lowest_gap(const struct shelves *s, const struct tn_block *b)
{
    int64_t at = 0;
    for (const struct shelf *shelf = s->shelf; shelf < s->shelf + s->n && shelf->offset < at + b->bytes; shelf++)
        if (shelf->end > at && shelf->first <= b->last && shelf->last >= b->first)
            at = highest_end(shelf, b, at);
    return at;
}

int64_t tn_place_blocks(struct tn_block *block, size_t n)
{
    struct shelves s = { 0 };
    int64_t top = 0;
    qsort(block, n, sizeof *block, larger_first);
    for (size_t i = 0; i < n; i++) {
        struct tn_block *b = &block[i];
        b->offset = lowest_gap(&s, b);
        put(&s, b);
        top = b->offset + b->bytes > top ? b->offset + b->bytes : top;
    }
    for (size_t k = 0; k < s.n; k++)
        free(s.shelf[k].span);
    free(s.shelf);
    return top;
}
