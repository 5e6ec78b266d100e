/* Local: which elements of a whole tensor this rank's part holds, along one dimension.
 *
 * Cuts are applied from the slowest axis (outermost) to the fastest: equal parts, unequal parts, or the two chunks
 * r and 2n-1-r of a zigzag order. */
#include "job.h"

#include <stdlib.h>
#include <string.h>

/* Adds elements `first` .. `first + n` of `from`, counted along its runs. */
static void take(struct tn_spans *to, const struct tn_spans *from, int64_t first, int64_t n)
{
    for (int32_t i = 0; i < from->n && n > 0; i++) {
        int64_t count = from->run[i].count;
        if (first < count) {
            int64_t part = count - first < n ? count - first : n, start = from->run[i].first + first;
            if (to->n > 0 && to->run[to->n - 1].first + to->run[to->n - 1].count == start)
                to->run[to->n - 1].count += part;
            else
                to->run[to->n++] = (struct tn_span){ start, part };
            n -= part;
        }
        first = first > count ? first - count : 0;
    }
}

static struct tn_spans cut(const struct tn_program *p, tn_placement place, int32_t axis, const struct tn_spans *whole)
{
    int64_t size = p->mesh->axis[axis].size, coord = p->coord[axis], n = 0;
    struct tn_spans part = { .n = 0 };
    for (int32_t i = 0; i < whole->n; i++)
        n += whole->run[i].count;
    if (TN_PLACE_PARTS(place)) {
        const struct tn_parts *parts = &p->parts[TN_PLACE_PARTS(place)];
        int64_t unit = n / parts->sum, before = 0;
        for (int64_t i = 0; i < coord; i++)
            before += parts->weights[i];
        take(&part, whole, before * unit, parts->weights[coord] * unit);
    } else if (TN_PLACE_ORDER(place) == TN_ORDER_ZIGZAG) {
        int64_t chunk = n / (2 * size);
        take(&part, whole, coord * chunk, chunk);
        take(&part, whole, (2 * size - 1 - coord) * chunk, chunk);
    } else {
        take(&part, whole, coord * (n / size), n / size);
    }
    return part;
}

struct tn_spans tn_local_spans(const struct tn_program *p, tn_value v, int32_t dim)
{
    struct tn_spans runs = { 1, { { 0, p->values[v].shape[dim] } } };
    for (int32_t axis = p->mesh->n_axes - 1; axis >= 0; axis--) {
        tn_placement place = p->values[v].place[axis];
        if (TN_PLACE_KIND(place) == TN_PLACE_SHARD && TN_PLACE_DIM(place) == dim)
            runs = cut(p, place, axis, &runs);
    }
    return runs;
}

int64_t tn_local_indices(const struct tn_program *p, tn_value v, int32_t dim, int64_t *index)
{
    struct tn_spans runs = tn_local_spans(p, v, dim);
    int64_t n = 0;
    for (int32_t i = 0; i < runs.n; i++)
        for (int64_t k = 0; k < runs.run[i].count; k++)
            index[n++] = runs.run[i].first + k;
    return n;
}

tn_status tn_walk_init(struct tn_walk *walk, const struct tn_program *p, tn_value v)
{
    const struct tn_value_data *value = &p->values[v];
    int64_t shape[TN_MAX_DIMS], offset[TN_MAX_DIMS];
    int32_t rank;
    memset(walk, 0, sizeof *walk);
    walk->rank = value->rank;
    memcpy(walk->whole, value->shape, sizeof walk->whole);
    tn_local(p, v, p->coord, &rank, shape, offset);
    walk->count = tn_elements(shape, rank);
    int64_t first = 0;
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++)
        if (TN_PLACE_KIND(value->place[axis]) == TN_PLACE_FLAT)
            first = offset[0];
    for (int32_t dim = walk->rank - 1; dim >= 0; dim--) {
        walk->index[dim] = malloc((size_t)value->shape[dim] * sizeof *walk->index[dim]);
        if (!walk->index[dim])
            return TN_NO_MEMORY;
        walk->shape[dim] = tn_local_indices(p, v, dim, walk->index[dim]);
        walk->at[dim] = first % walk->shape[dim];
        first /= walk->shape[dim];
    }
    return TN_OK;
}

static int64_t element_at(const struct tn_walk *walk)
{
    int64_t element = 0;
    for (int32_t dim = 0; dim < walk->rank; dim++)
        element = element * walk->whole[dim] + walk->index[dim][walk->at[dim]];
    return element;
}

int64_t tn_walk_next(struct tn_walk *walk)
{
    int64_t element = element_at(walk);
    for (int32_t dim = walk->rank - 1; dim >= 0 && ++walk->at[dim] == walk->shape[dim]; dim--)
        walk->at[dim] = 0;
    return element;
}

/* Dimensions after `cut` are whole, so rows of it lie side by side as long as their indices do. */
int64_t tn_walk_run(struct tn_walk *walk, int64_t most, int64_t *element)
{
    int32_t cut = walk->rank - 1;
    int64_t row = 1, within = 0, rows = 1;
    for (; cut >= 0 && walk->shape[cut] == walk->whole[cut]; cut--) {
        within += walk->at[cut] * row;
        row *= walk->shape[cut];
    }
    *element = element_at(walk);
    if (cut >= 0)
        for (const int64_t *index = walk->index[cut] + walk->at[cut];
             walk->at[cut] + rows < walk->shape[cut] && rows * row - within < most && index[rows] == *index + rows;)
            rows++;
    int64_t count = rows * row - within < most ? rows * row - within : most, after = within + count;
    for (int32_t dim = walk->rank - 1; dim >= 0; dim--) {
        int64_t at = dim > cut ? after : walk->at[dim] + after;
        walk->at[dim] = at % walk->shape[dim];
        after = at / walk->shape[dim];
    }
    return count;
}

void tn_walk_finish(struct tn_walk *walk)
{
    for (int32_t dim = 0; dim < walk->rank; dim++)
        free(walk->index[dim]);
}
