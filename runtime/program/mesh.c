/* Mesh: see mesh.h. */
#include "program/mesh.h"

#include <string.h>

int tn_mesh_add(struct tn_mesh *mesh, const char *name, int32_t size, const char *owner)
{
    if (mesh->n_axes == TN_MAX_AXES || (mesh->n_axes && size > INT32_MAX / mesh->world))
        return -1;
    if (mesh->n_axes == 0)
        mesh->world = 1;
    int32_t axis = mesh->n_axes++;
    mesh->axis[axis].name = name;
    mesh->axis[axis].size = size;
    mesh->axis[axis].stride = mesh->world;
    mesh->axis[axis].owner = owner;
    mesh->axis[axis].stages = 0;
    mesh->world *= size;
    return 0;
}

int32_t tn_mesh_find(const struct tn_mesh *mesh, const char *name)
{
    for (int32_t axis = 0; axis < mesh->n_axes; axis++)
        if (strcmp(mesh->axis[axis].name, name) == 0)
            return axis;
    return -1;
}

void tn_mesh_coord(const struct tn_mesh *mesh, int32_t rank, int32_t coord[TN_MAX_AXES])
{
    for (int32_t axis = 0; axis < TN_MAX_AXES; axis++)
        coord[axis] = axis < mesh->n_axes ? rank / mesh->axis[axis].stride % mesh->axis[axis].size : 0;
}

void tn_mesh_group(const struct tn_mesh *mesh, const int32_t *coord, int32_t axis, int32_t *ranks)
{
    int32_t base = 0;
    for (int32_t i = 0; i < mesh->n_axes; i++)
        if (i != axis)
            base += coord[i] * mesh->axis[i].stride;
    for (int32_t i = 0; i < mesh->axis[axis].size; i++)
        ranks[i] = base + i * mesh->axis[axis].stride;
}
