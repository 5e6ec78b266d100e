/* Init: the start values of params; states start as zeros.
 *
 * Element i of a param is a function of (seed, name, i), where i counts in the whole tensor: Philox keyed by a hash
 * of seed and name gives four uniforms for each i / 4, Box and Muller (1958) two normals from two of them. So any
 * layout starts from the same model, bit for bit. A name "w#1" is that of another copy of w, which starts as w does. */
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

/* The start values of a param or state; NULL: out of memory. The caller frees them. */
static float *start_values(const struct tn_program *p, tn_value v, int64_t seed)
{
    const struct tn_value_data *value = &p->values[v];
    float *data = calloc((size_t)tn_local_elements(p, v) + 1, sizeof *data);
    if (!data || value->kind == TN_KIND_STATE)
        return data;
    struct draw d = { .key = XXH3_64bits_withSeed(value->name, strcspn(value->name, "#"), (XXH64_hash_t)seed),
                      .group = UINT64_MAX,
                      .scale = (float)value->init_arg,
                      .init = value->init };
    struct tn_walk walk;
    tn_status status = tn_walk_init(&walk, p, v);
    for (int64_t i = 0; status == TN_OK && i < walk.count; i++)
        data[i] = element(&d, (uint64_t)tn_walk_next(&walk));
    tn_walk_finish(&walk);
    if (status == TN_OK)
        return data;
    free(data);
    return NULL;
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
