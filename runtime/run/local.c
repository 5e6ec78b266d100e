/* Local: which elements of a whole tensor this rank's part holds, along one dimension.
 *
 * Cuts are applied from the slowest axis (outermost) to the fastest: equal parts, unequal parts, or the two chunks
 * r and 2n-1-r of a zigzag order. */
#include "job.h"

#include <stdlib.h>
#include <string.h>

/* Keeps chunk `first` .. of the list, moved to `to`. */
static int64_t keep(int64_t *index, int64_t to, int64_t first, int64_t n)
{
    memmove(index + to, index + first, (size_t)n * sizeof *index);
    return n;
}

static int64_t cut(const struct tn_program *p, tn_placement place, int32_t axis, int64_t *index, int64_t n)
{
    int64_t size = p->mesh->axis[axis].size, coord = p->coord[axis];
    if (TN_PLACE_PARTS(place)) {
        const struct tn_parts *parts = &p->parts[TN_PLACE_PARTS(place)];
        int64_t unit = n / parts->sum, before = 0;
        for (int64_t i = 0; i < coord; i++)
            before += parts->weights[i];
        return keep(index, 0, before * unit, parts->weights[coord] * unit);
    }
    if (TN_PLACE_ORDER(place) == TN_ORDER_ZIGZAG) {
        int64_t chunk = n / (2 * size), mirror = 2 * size - 1 - coord;
        keep(index, 0, coord * chunk, chunk);
        return chunk + keep(index, chunk, mirror * chunk, chunk);
    }
    return keep(index, 0, coord * (n / size), n / size);
}

int64_t tn_local_indices(const struct tn_program *p, tn_value v, int32_t dim, int64_t *index)
{
    int64_t n = p->values[v].shape[dim];
    for (int64_t i = 0; i < n; i++)
        index[i] = i;
    for (int32_t axis = p->mesh->n_axes - 1; axis >= 0; axis--) {
        tn_placement place = p->values[v].place[axis];
        if (TN_PLACE_KIND(place) == TN_PLACE_SHARD && TN_PLACE_DIM(place) == dim)
            n = cut(p, place, axis, index, n);
    }
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
