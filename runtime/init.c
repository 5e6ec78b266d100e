/* Init: the start values of params; states start as zeros.
 *
 * Element i of a param is a function of (seed, name, i), where i counts in the whole tensor: Philox keyed by a hash
 * of seed and name gives four uniforms for each i / 4, Box and Muller (1958) two normals from two of them. So any
 * layout starts from the same model, bit for bit. */
#include "job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/philox.h"

/* Four standard normals for elements 4 group .. 4 group + 3. */
static void normals(uint64_t key, uint64_t group, float out[4])
{
    uint32_t bits[4];
    tn_philox(key, 0, group, bits);
    for (int pair = 0; pair < 2; pair++) {
        double u = ((double)bits[2 * pair] + 0.5) / 4294967296.0, v = ((double)bits[2 * pair + 1] + 0.5) / 4294967296.0;
        double radius = sqrt(-2.0 * log(u)), angle = 6.283185307179586 * v;
        out[2 * pair] = (float)(radius * cos(angle));
        out[2 * pair + 1] = (float)(radius * sin(angle));
    }
}

struct draw {
    uint64_t key, group; /* group: of the four in hand */
    float four[4];
    float scale;
    uint8_t init;
};

static float element(struct draw *d, uint64_t i)
{
    if (d->init != TN_INIT_NORMAL)
        return d->init == TN_INIT_ONES ? 1.0f : 0.0f;
    if (i / 4 != d->group) {
        d->group = i / 4;
        normals(d->key, d->group, d->four);
    }
    return d->scale * d->four[i % 4];
}

/* A param cut by dimensions: rows of the last dimension, each from its own list of indices. */
static void init_sharded(const struct tn_program *p, tn_value v, struct draw *d, float *data)
{
    const struct tn_value_data *value = &p->values[v];
    int32_t rank;
    int64_t shape[TN_MAX_DIMS], at[TN_MAX_DIMS] = { 0 };
    int64_t *index[TN_MAX_DIMS] = { NULL };
    tn_local(p, v, p->coord, &rank, shape, NULL);
    for (int32_t dim = 0; dim < rank; dim++) {
        index[dim] = malloc((size_t)value->shape[dim] * sizeof *index[dim]);
        if (index[dim])
            tn_local_indices(p, v, dim, index[dim]);
    }
    int64_t n = tn_elements(shape, rank);
    for (int64_t i = 0; i < n; i++) {
        uint64_t global = 0;
        for (int32_t dim = 0; dim < rank; dim++)
            global = global * (uint64_t)value->shape[dim] + (uint64_t)(index[dim] ? index[dim][at[dim]] : at[dim]);
        data[i] = element(d, global);
        for (int32_t dim = rank - 1; dim >= 0 && ++at[dim] == shape[dim]; dim--)
            at[dim] = 0;
    }
    for (int32_t dim = 0; dim < rank; dim++)
        free(index[dim]);
}

/* The start values of a param or state; NULL: out of memory. The caller frees them. */
static float *start_values(const struct tn_program *p, tn_value v, int64_t seed)
{
    const struct tn_value_data *value = &p->values[v];
    float *data = calloc((size_t)tn_local_elements(p, v) + 1, sizeof *data);
    if (!data || value->kind == TN_KIND_STATE)
        return data;
    struct draw d = { .key = XXH3_64bits_withSeed(value->name, strlen(value->name), (XXH64_hash_t)seed),
                      .group = UINT64_MAX, .scale = (float)value->init_arg, .init = value->init };
    init_sharded(p, v, &d, data);
    return data;
}

tn_status tn_init_params(const struct tn_exec *exec, const struct tn_program *flat, int64_t seed)
{
    for (tn_value v = 1; v <= flat->n_values; v++) {
        const struct tn_value_data *value = &flat->values[v];
        if ((value->kind != TN_KIND_PARAM && value->kind != TN_KIND_STATE) || value->def)
            continue;
        float *data = start_values(flat, v, seed);
        if (!data)
            return TN_NO_MEMORY;
        tn_status status = tn_exec_write(exec, v, data, (uint64_t)tn_local_elements(flat, v) * sizeof *data);
        free(data);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}
