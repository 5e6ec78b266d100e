/* Ops: abi's ops.def as a table, with the runtime's rules, plus the ops that plugins registered. */
#ifndef TENON_RUNTIME_OPS_H
#define TENON_RUNTIME_OPS_H

#include "program/program.h"

enum { TN_OP_MOST_FIXED = 12 };

struct tn_row;      /* resolve.h */
struct tn_autodiff; /* autodiff.h */

struct tn_op_kind {
    const char *name, *ins, *outs, *attrs, *alias, *doc; /* as in ops.def */
    /* parsed from them: */
    uint32_t min_in, max_in; /* max_in UINT32_MAX: variadic */
    uint32_t n_out;
    const char *in_names[TN_OP_MOST_FIXED], *out_names[TN_OP_MOST_FIXED];
    uint32_t n_in_names;
    int8_t must_alias[TN_OP_MOST_FIXED];  /* by output: input whose memory it is, or -1 */
    uint32_t may_alias[TN_OP_MOST_FIXED]; /* by output: bit mask of inputs */

    /* of a plugin's op; NULL and 0 for the core's: */
    const char *plugin;
    uint32_t like, flags; /* core opcode whose rules it has where its own are missing; TN_OP_COMMUNICATES */

    /* Sets dtype, rank and shape of the op's outputs, or records an error. */
    void (*shape)(struct tn_program *p, tn_op op);
    /* Rows of placements on `axis`; returns their number, at most `most`; 0: none. */
    int (*place)(const struct tn_program *p, tn_op op, int32_t axis, struct tn_row *rows, int most);
    /* Adds the ops of its gradient (autodiff.h); NULL: not differentiable. */
    void (*grad)(struct tn_program *p, tn_op op, struct tn_autodiff *ad);
    /* FLOPs and bytes moved with this rank's shapes. */
    void (*cost)(const struct tn_program *p, tn_op op, double *flops, double *bytes);
    /* Replaces the op by simpler ones where its placements ask for it; NULL: nothing to do. */
    void (*lower)(struct tn_program *p, tn_op op);
};

/* Seconds at the nominal rates of the ABI's plan.h. */
double tn_program_seconds(const struct tn_program *p, tn_op op);

/* For ops_plugin.c: number of words of ins or outs; fills what is parsed from the text of a kind, 0 without memory. */
uint32_t tn_op_words(const char *text);
int tn_op_kind_parse(struct tn_op_kind *kind);

/* NULL for an unknown opcode. */
const struct tn_op_kind *tn_op_kind(uint32_t opcode);
uint32_t tn_op_by_name(const char *name); /* TN_OP_NONE if unknown */
const char *tn_dtype_name(uint32_t dtype);
uint32_t tn_dtype_by_name(const char *name); /* 0 if unknown */

#endif
