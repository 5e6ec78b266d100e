/* Kinds: see kinds.h. Ranks that differ only on axes whose parts are equal run the same program, so one of each kind is
 * compiled, up to TOOL_MOST_KINDS. What kinds have in common is lowered once. */
#include "kinds.h"

/* Axes on which ranks differ in more than their data: unequal parts, or stages. */
static uint32_t uneven_axes(const struct tn_program *p)
{
    uint32_t mask = 0;
    for (tn_value v = 1; v <= p->n_values; v++)
        for (int32_t axis = 0; axis < p->mesh->n_axes; axis++)
            if (p->mesh->axis[axis].stages ||
                (TN_PLACE_KIND(p->values[v].place[axis]) == TN_PLACE_SHARD && TN_PLACE_PARTS(p->values[v].place[axis])))
                mask |= 1u << axis;
    return mask;
}

int tool_is_first(const struct tn_job *job, int32_t rank, uint32_t mask)
{
    int32_t coord[TN_MAX_AXES];
    tn_mesh_coord(&job->mesh, rank, coord);
    for (int32_t axis = 0; axis < job->mesh.n_axes; axis++)
        if (!(mask >> axis & 1) && coord[axis])
            return 0;
    return 1;
}

void tool_compile_kinds(struct tn_job *job, struct tn_origin *origin,
                        void (*each)(void *ctx, int32_t rank, const struct tn_compiled *compiled), void *ctx)
{
    uint32_t mask = 0;
    size_t before = job->diag.count;
    int kinds = 0;
    struct tn_lowered lowered = { .is_done = 0 };
    for (int32_t rank = 0; rank < job->mesh.world && kinds < TOOL_MOST_KINDS && job->diag.count == before; rank++) {
        struct tn_compiled c;
        if (!tool_is_first(job, rank, mask))
            continue;
        if (tn_job_compile_next(job, TN_PROGRAM_TRAIN, rank, &lowered, &c) == TN_OK) {
            tn_job_check_budget(job, rank, &c.plan);
            if (kinds++ == 0)
                tn_checkpoint_check(job, &c, origin);
            mask = uneven_axes(&c.program);
            if (each)
                each(ctx, rank, &c);
        }
        tn_compiled_finish(&c);
    }
    tn_lowered_finish(&lowered);
}
