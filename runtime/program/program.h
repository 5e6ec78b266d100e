/* Program: what every pass reads and rewrites (docs/program.md).
 *
 * A doubly linked list of ops over a table of values; both are named by small ids (0: none)
 * and live in the program's arena. Passes of the runtime use these structs directly;
 * plugins see the same program through program_api.c.
 *
 * Errors do not stop a pass: they are collected in `errors`, and job.c looks after each arrow. */
#ifndef TENON_RUNTIME_PROGRAM_H
#define TENON_RUNTIME_PROGRAM_H

#include <stdint.h>
#include <stdio.h>

#include <tenon/ops.h>
#include <tenon/program_edit.h>

#include "base/arena.h"
#include "program/mesh.h"

enum { TN_MAX_ATTRS = 6 };

struct tn_value_data {
    const char *name;
    uint32_t dtype, kind, space, flags;
    int32_t rank;
    int64_t shape[TN_MAX_DIMS];    /* global */
    const char *dims[TN_MAX_DIMS]; /* logical axis names, "" for none */
    const char *tag;               /* "" for none */
    tn_op def;
    uint32_t def_index; /* which output of def */
    int32_t layer, stage;
    tn_value like, grad_of;
    uint8_t init; /* params: TN_INIT_* */
    double init_arg;
    struct {
        const char *name;
        int32_t dim;
        int64_t offset, full;
    } stored;       /* name NULL: as it is */
    uint32_t claim; /* number in claims, from 1; 0: nobody's */
    tn_placement place[TN_MAX_AXES];
    tn_placement want[TN_MAX_AXES];
    const char *placed_by[TN_MAX_AXES]; /* plugin that pinned it, for messages */
};

struct tn_op_data {
    uint32_t opcode;
    const char *name; /* global and stable: "layers.3.attn.q" */
    uint32_t region;
    int32_t layer, stage;
    int32_t micro; /* micro-batch, after schedule; -1: none */
    const char *tag;
    tn_op source;
    uint32_t n_in, n_out;
    tn_value *in, *out;
    uint32_t n_attrs;
    struct tn_attr attrs[TN_MAX_ATTRS];
    tn_op prev, next; /* program order; 0 at the ends */
    uint8_t linked;   /* 0 once removed */
    int64_t order;    /* grows along the list */
};

struct tn_parts {
    int32_t n;
    const int64_t *weights;
    int64_t sum;
};

/* A claim of a strategy on a value; `lost_to`: the claim that was there before, or 0. */
struct tn_claimed {
    tn_value v;
    struct tn_claim claim;
    uint32_t lost_to;
};

struct tn_program {
    struct tn_arena arena;
    const struct tn_mesh *mesh;
    const int32_t *coord;         /* of the rank it is compiled for, by axis */
    uint32_t coord_read;          /* mask of axes on which a plugin asked for it, or tried a copy for this rank */
    struct tn_value_data *values; /* [1 .. n_values] */
    struct tn_op_data *ops;       /* [1 .. n_ops], in order of making */
    uint32_t n_values, n_ops;
    size_t cap_values, cap_ops;
    tn_op first, last;
    struct tn_parts parts[256];
    uint32_t n_parts;
    struct tn_names *names; /* name -> value, for uniqueness and look-up */
    struct tn_uses *uses;   /* value -> ops (uses.c) */

    /* where new ops go, and who is at work */
    uint32_t at_region;
    int32_t at_layer, at_stage;
    tn_op insert_before;
    const char *actor; /* plugin or pass, for messages */

    int32_t unaided;           /* a trial by TN_PEAK_UNAIDED of the ABI's plan.h */
    struct tn_claimed *claims; /* [1 .. n_claims], in the arena */
    uint32_t n_claims;
    size_t cap_claims;

    const char **errors; /* in the arena */
    size_t n_errors, cap_errors;
};

void tn_program_init(struct tn_program *p, const struct tn_mesh *mesh, const int32_t *coord);
/* Room for so many, for who knows before how many will be made. */
void tn_program_reserve(struct tn_program *p, size_t values, size_t ops);
void tn_program_finish(struct tn_program *p);
/* A copy with the same ids, as of the busiest rank (plan.h of the ABI); the original outlives it. NULL: no memory. */
struct tn_program *tn_program_copy(const struct tn_program *p);
void tn_program_drop(struct tn_program *copy); /* accepts NULL */
/* The same for the rank at `coord`, in the caller's memory; ended by tn_program_finish. */
void tn_program_copy_as(struct tn_program *copy, const struct tn_program *p, const int32_t *coord);

static inline struct tn_value_data *tn_val(const struct tn_program *p, tn_value v)
{
    return &p->values[v];
}
static inline struct tn_op_data *tn_opd(const struct tn_program *p, tn_op op)
{
    return &p->ops[op];
}

static inline void tn_program_note_coord(const struct tn_program *p, int32_t axis)
{
    ((struct tn_program *)p)->coord_read |= 1u << axis;
}

/* Regions that run once for each micro-batch. */
static inline int tn_region_per_micro(uint32_t region)
{
    return region == TN_REGION_FORWARD || region == TN_REGION_BACKWARD || region == TN_REGION_WEIGHT;
}
/* Grows in the order in which regions run. */
static inline int tn_region_turn(uint32_t region)
{
    return region == TN_REGION_WEIGHT ? 5 : region == TN_REGION_STEP ? 6 : (int)region;
}

/* Building. Names are made unique by the caller. Shapes of outputs come from the op's shape rule; a refusal is
 * recorded and the output is a scalar. */
tn_value tn_value_new(struct tn_program *p, uint32_t kind, const char *name, uint32_t dtype, int32_t rank,
                      const int64_t *shape);
tn_value tn_op_new(struct tn_program *p, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                   const struct tn_attr *attrs, uint32_t n_attrs); /* its first output; the op is tn_last_op */
tn_op tn_last_op(const struct tn_program *p);                      /* the op made last */
/* An op with outputs that exist already (parser, schedule). */
tn_op tn_op_raw(struct tn_program *p, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                const tn_value *out, uint32_t n_out, const struct tn_attr *attrs, uint32_t n_attrs);
tn_value tn_value_find(const struct tn_program *p, const char *name);
void tn_op_unlink(struct tn_program *p, tn_op op);
void tn_op_move(struct tn_program *p, tn_op op, tn_op before); /* before 0: to the end */
int tn_op_is_sum(const struct tn_program *p, tn_op op);        /* an all_reduce that adds */
void tn_program_renumber(struct tn_program *p);                /* sets order anew, with room between ops */
int64_t tn_attr_i(const struct tn_program *p, tn_op op, const char *key, int64_t missing);
double tn_attr_f(const struct tn_program *p, tn_op op, const char *key, double missing);
void tn_attr_set(struct tn_program *p, tn_op op, const struct tn_attr *attr);
void tn_program_error(struct tn_program *p, tn_op op, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Uses (uses.c). An input that is set otherwise than by these is noted, with all of its op. */
void tn_set_input(struct tn_program *p, tn_op op, uint32_t i, tn_value v);
void tn_note_inputs(struct tn_program *p, tn_op op);
tn_op tn_user_next(const struct tn_program *p, tn_value v, tn_op after); /* as user_next of the ABI's program.h */
tn_op tn_only_user(const struct tn_program *p, tn_value v);              /* 0: nobody, or several inputs read it */
void tn_replace_uses(struct tn_program *p, tn_value from, tn_value to, tn_op after);
void tn_uses_init(struct tn_program *p);
void tn_uses_copy(struct tn_program *copy, const struct tn_program *p);

/* Shapes. */
uint32_t tn_dtype_bytes(uint32_t dtype);
int64_t tn_elements(const int64_t *shape, int32_t rank);
/* This rank's part: shape, and offset where the cut is contiguous (either may be NULL). Flat cuts collapse it to one
 * dimension, without the padding that makes all parts equal. */
void tn_local(const struct tn_program *p, tn_value v, const int32_t *coord, int32_t *rank, int64_t *shape,
              int64_t *offset);
/* Elements of that part. */
int64_t tn_local_elements(const struct tn_program *p, tn_value v);
/* Elements of each part, padding counted, of a value cut flat along `axis`. */
int64_t tn_flat_part(const struct tn_program *p, tn_value v, int32_t axis);

#define TN_EACH_OP(p, op) for (tn_op op = (p)->first; op; op = (p)->ops[op].next)

/* Text form (program_text.c): prints all, and reads back what it printed. Errors of reading: "line 3: ..." in the
 * program's errors. */
void tn_program_print(const struct tn_program *p, FILE *out);
int tn_program_parse(struct tn_program *p, struct tn_mesh *mesh, const char *text, size_t length);
/* Verifier (verify.c): the invariants are listed on top of it. Adds to the program's errors, returns how many. */
size_t tn_program_verify(struct tn_program *p, const char *after);

#endif
