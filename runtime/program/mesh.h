/* Mesh: the named axes whose product is the world. First axis fastest. */
#ifndef TENON_MESH_H
#define TENON_MESH_H

#include <stdint.h>

#include <tenon/value.h>

struct tn_mesh {
    int32_t n_axes, world;
    struct {
        const char *name;
        int32_t size;
        int32_t stride;    /* ranks between neighbours on the axis */
        const char *owner; /* plugin that declared it */
        int stages;        /* its ranks run stages, not parts */
    } axis[TN_MAX_AXES];
};

/* Adds an axis (after all others: slower). 0, or -1 when full. */
int tn_mesh_add(struct tn_mesh *mesh, const char *name, int32_t size, const char *owner);
int32_t tn_mesh_find(const struct tn_mesh *mesh, const char *name); /* -1: none */
void tn_mesh_coord(const struct tn_mesh *mesh, int32_t rank, int32_t coord[TN_MAX_AXES]);
/* World ranks that differ from `coord` only on `axis`, in order of that axis: axis.size of them. */
void tn_mesh_group(const struct tn_mesh *mesh, const int32_t *coord, int32_t axis, int32_t *ranks);

#endif
