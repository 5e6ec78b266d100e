/* The program: how plugins read it (api "tn.program/1"). Editing is in program_edit.h.
 *
 * A program is a list of ops over values (docs/program.md). Ids are small integers, stable
 * for the life of the program, never 0. All calls are [main]. Strings and arrays returned
 * belong to the program and stay valid until it is destroyed, except the input and output
 * arrays of an op, which an edit of that op replaces. */
#ifndef TENON_PROGRAM_H
#define TENON_PROGRAM_H

#include <tenon/host.h>
#include <tenon/value.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_program;
typedef uint32_t tn_value; /* 0: none (an absent optional input) */
typedef uint32_t tn_op;    /* 0: none */

struct tn_value_info {
    uint32_t struct_size; /* set by the caller; the host fills what fits */
    uint32_t dtype, kind, space, flags;
    int32_t rank;
    int64_t shape[TN_MAX_DIMS];    /* global, whatever the layout */
    const char *dims[TN_MAX_DIMS]; /* logical axis of each dimension ("heads"), or "" */
    const char *name;
    const char *tag;  /* set by the model for strategies ("residual"), or "" */
    tn_op def;        /* the op that makes it; 0 for params, inputs, states */
    int32_t layer;    /* -1: none */
    tn_value like;    /* param that a state or gradient belongs to, or 0 */
    tn_value grad_of; /* forward value that it is a gradient of, or 0 */
};

struct tn_op_info {
    uint32_t struct_size; /* set by the caller */
    uint32_t opcode;      /* TN_OP_* (ops.h), or one given to a plugin's op */
    const char *name;     /* of the opcode: "linear" */
    uint32_t region;      /* TN_REGION_* */
    int32_t layer;        /* -1: none */
    int32_t stage;        /* of a pipeline; 0 without one */
    uint32_t n_in, n_out;
    const tn_value *in, *out; /* an absent optional one is 0 */
    const char *tag;
    tn_op source;      /* the op that this one was derived from, or 0 */
    uint32_t like;     /* core opcode whose rules it follows (op_register.h): its own where it is a core op, or 0 */
    uint32_t op_flags; /* TN_OP_COMMUNICATES, of a plugin's op */
};

struct tn_program_api {
    uint32_t struct_size;

    /* Ops in program order: op_next(p, 0) is the first; 0 after the last. */
    tn_op (*op_next)(const struct tn_program *p, tn_op after);
    void (*op_info)(const struct tn_program *p, tn_op op, struct tn_op_info *info);
    int64_t (*attr_int)(const struct tn_program *p, tn_op op, const char *key, int64_t missing);
    double (*attr_float)(const struct tn_program *p, tn_op op, const char *key, double missing);

    /* Values in order of their making: value_next(p, 0) is the first; 0 after the last. */
    tn_value (*value_next)(const struct tn_program *p, tn_value after);
    void (*value_info)(const struct tn_program *p, tn_value v, struct tn_value_info *info);
    tn_value (*value_find)(const struct tn_program *p, const char *name); /* 0 if none */
    /* The next op after `after` in program order that has v among its inputs; 0 if none. */
    tn_op (*user_next)(const struct tn_program *p, tn_value v, tn_op after);

    /* Placement of a value on an axis (0 to axis_count-1), TN_PLACE_UNSET if undecided. */
    tn_placement (*placement)(const struct tn_program *p, tn_value v, int32_t axis);
    /* Local shape on this rank, once placements are decided. */
    void (*local_shape)(const struct tn_program *p, tn_value v, int64_t *shape);

    /* The mesh, first axis fastest. axis_find gives -1 if there is none of that name. */
    int32_t (*axis_count)(const struct tn_program *p);
    int32_t (*axis_find)(const struct tn_program *p, const char *name);
    const char *(*axis_name)(const struct tn_program *p, int32_t axis);
    int32_t (*axis_size)(const struct tn_program *p, int32_t axis);
    int32_t (*axis_coord)(const struct tn_program *p, int32_t axis); /* this rank's */

    /* FLOPs of an op and bytes that it moves, by its cost rule, with global shapes: as if one
     * rank ran all of it. */
    void (*op_cost)(const struct tn_program *p, tn_op op, double *flops, double *bytes);
};

#ifdef __cplusplus
}
#endif
#endif
