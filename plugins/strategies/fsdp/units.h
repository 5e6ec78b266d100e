/* fsdp: units, the params that are gathered together, and their gradients that are reduced together.
 *
 * A unit is what a layer uses, or of it what one item of the option `units` names; what stands before the first layer
 * and what stands behind the last one are units as well. Units of a region have the order in which they are used. */
#ifndef TENON_FSDP_UNITS_H
#define TENON_FSDP_UNITS_H

#include "fsdp.h"

/* What lower works with. */
struct fsdp_lowering {
    const struct fsdp *fsdp;
    struct tn_program *program;
    int32_t axis;
    tn_op last_op;           /* of the program as it was; ids made later are larger */
    uint64_t *order;         /* by op: its place in the program as it was, from 1; 0: none */
    uint64_t first_layer[4]; /* by region: place of the first op of a layer */
};

/* One param's communication as a member of a unit. */
struct fsdp_member {
    tn_op op;            /* the gather, or the reduce_scatter */
    tn_op adds;          /* the op that adds what a reduce_scatter gives to an accumulator, or 0 */
    tn_op at;            /* the op that decides when: the gather's first user, the gradient's maker */
    uint64_t order;      /* of `at` */
    uint64_t unit_order; /* of the unit: of its first user, of its last maker */
    uint32_t region;
    int32_t stage, layer, item; /* of the unit */
};

/* Fills all but `op`, `adds` and `unit_order`: of which unit is param `name`, where op `at` uses it. */
void fsdp_member_at(const struct fsdp_lowering *l, tn_op at, const char *name, struct fsdp_member *member);
/* Sorts members by region, stage and unit. A unit counts from its first member (last: 0) or its last one. */
void fsdp_sort_members(struct fsdp_member *members, uint64_t n, int last);
/* One past the last member of the unit that begins at `first`. */
uint64_t fsdp_unit_end(const struct fsdp_member *members, uint64_t n, uint64_t first);
/* 1 if the units that begin at a and at b are of one region and stage. */
int fsdp_same_run(const struct fsdp_member *a, const struct fsdp_member *b);

/* gather.c: level full: units are gathered ahead of their use, and again for the backward pass. */
tn_status fsdp_gather_units(struct fsdp_lowering *l);
/* reduce.c: levels gradients and full: units are reduced together while the next one computes. */
tn_status fsdp_reduce_units(struct fsdp_lowering *l);
/* lower.c: 1 if op gathers a param, or its cast, whose name is then *name. */
int fsdp_is_gather(const struct fsdp_lowering *l, tn_op op, const char **name);

#endif
