/* tp: what its files share: the instance, and how it cuts. */
#ifndef TENON_TP_H
#define TENON_TP_H

#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

/* The axes of tensor parallelism. With fewer key heads than ranks the axis is factored: key
 * heads are cut by tp_kv and held whole on tp_rep, all else is cut by both. */
struct tp_axes {
    int32_t n;
    int32_t size[2]; /* fastest first */
    const char *name[2];
    int kv_cut[2]; /* 1: key and value heads are cut by it */
};

struct tp {
    const struct tn_host *host;
    const struct tn_facts_api *facts;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    int sequence_parallel;
    uint64_t bucket_bytes; /* of gradients that are summed together; 0: each by itself */
    struct tp_axes axes;
};

/* tp.c */
void tp_axes_of(const struct tp *tp, int32_t size, struct tp_axes *axes);
/* check.c */
tn_status tp_check(void *self, int32_t size);
/* place.c */
tn_status tp_place(void *self, struct tn_program *program);
/* lower.c */
tn_status tp_lower(void *self, struct tn_program *program);

#endif
