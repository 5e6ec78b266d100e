/* Placing: see plan_place.h.
 *
 * What is placed is kept by offset and, among equals, by time, in shelves of a bounded size. A shelf knows the times
 * and the highest end of what is on it, so that the search for a gap passes most shelves by: a pipeline's micro-batches
 * use the same offsets one after another, and a block meets few of the hundred thousand that lie below its gap. */
#include "passes/plan_place.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SHELF = 64 };

struct placed {
    int64_t offset, end, first, last;
};

struct shelf {
    int64_t first, last, end; /* earliest, latest, highest of all on it */
    size_t n;
    struct placed item[SHELF];
};

struct shelves {
    struct shelf **shelf;
    size_t n, cap;
};

static int larger_first(const void *a, const void *b)
{
    const struct tn_block *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return (x->root > y->root) - (x->root < y->root);
}

static int is_before(const struct placed *x, const struct placed *y)
{
    return x->offset != y->offset ? x->offset < y->offset : x->first < y->first;
}

static struct shelf *add_shelf(struct shelves *s, size_t at)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->shelf = realloc(s->shelf, s->cap * sizeof *s->shelf);
        assert(s->shelf);
    }
    struct shelf *shelf = malloc(sizeof *shelf);
    assert(shelf);
    memmove(s->shelf + at + 1, s->shelf + at, (s->n++ - at) * sizeof *s->shelf);
    shelf->n = 0;
    return s->shelf[at] = shelf;
}

static void summarise(struct shelf *shelf)
{
    shelf->first = shelf->item[0].first;
    shelf->last = shelf->item[0].last;
    shelf->end = shelf->item[0].end;
    for (size_t i = 1; i < shelf->n; i++) {
        const struct placed *p = &shelf->item[i];
        shelf->first = p->first < shelf->first ? p->first : shelf->first;
        shelf->last = p->last > shelf->last ? p->last : shelf->last;
        shelf->end = p->end > shelf->end ? p->end : shelf->end;
    }
}

/* The last shelf whose first item is not behind `p`. */
static size_t shelf_for(const struct shelves *s, const struct placed *p)
{
    size_t low = 0, high = s->n;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(is_before(p, &s->shelf[middle]->item[0]) ? &high : &low) = middle;
    }
    return low;
}

static void put(struct shelves *s, struct placed p)
{
    size_t at = s->n ? shelf_for(s, &p) : 0;
    struct shelf *shelf = s->n ? s->shelf[at] : add_shelf(s, 0);
    if (shelf->n == SHELF) { /* the upper half goes to a new one */
        struct shelf *upper = add_shelf(s, at + 1);
        upper->n = SHELF / 2;
        shelf->n -= upper->n;
        memcpy(upper->item, shelf->item + shelf->n, upper->n * sizeof *upper->item);
        summarise(upper);
        summarise(shelf);
        shelf = is_before(&p, &upper->item[0]) ? shelf : upper;
    }
    size_t i = shelf->n++;
    for (; i > 0 && is_before(&p, &shelf->item[i - 1]); i--)
        shelf->item[i] = shelf->item[i - 1];
    shelf->item[i] = p;
    summarise(shelf);
}

static int64_t lowest_gap(const struct shelves *s, const struct tn_block *b)
{
    int64_t at = 0;
    for (size_t k = 0; k < s->n && s->shelf[k]->item[0].offset < at + b->bytes; k++) {
        const struct shelf *shelf = s->shelf[k];
        if (shelf->end <= at || shelf->first > b->last || shelf->last < b->first)
            continue;
        for (size_t i = 0; i < shelf->n && shelf->item[i].offset < at + b->bytes; i++) {
            const struct placed *p = &shelf->item[i];
            if (p->end > at && p->first <= b->last && b->first <= p->last)
                at = p->end;
        }
    }
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
        put(&s, (struct placed){ b->offset, b->offset + b->bytes, b->first, b->last });
        top = b->offset + b->bytes > top ? b->offset + b->bytes : top;
    }
    for (size_t k = 0; k < s.n; k++)
        free(s.shelf[k]);
    free(s.shelf);
    return top;
}
