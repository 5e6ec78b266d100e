/* Ops of a plugin's own (api "tn.ops/1").
 *
 * A plugin registers its ops in create; from then on models and strategies make them with edit->op as they make the
 * core's, and they are printed, parsed, verified, differentiated and placed alike. Devices know none of them: the
 * plugin's strategy replaces each in `lower`, or the job is refused with the op's name and the plugin's.
 *
 * Registration is for the life of the process: a name has one opcode, and whoever registers the same op again is given
 * that one. All calls and call-backs are [main]; call-backs hang on no instance. */
#ifndef TENON_OP_REGISTER_H
#define TENON_OP_REGISTER_H

#include <tenon/program_edit.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call-back works with; valid during the call. */
struct tn_op_call {
    uint32_t struct_size;
    tn_op op;
    struct tn_program *program;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    void *ctx; /* the host's */

    /* [shape] The type of an output, global shape. What does not fit is said with edit->error. */
    void (*set_output)(const struct tn_op_call *call, uint32_t index, uint32_t dtype, int32_t rank,
                       const int64_t *shape);

    /* [grad] The gradient that reached v, an output of the op; 0: none. */
    tn_value (*gradient)(const struct tn_op_call *call, tn_value v);
    /* [grad] One more term of the gradient of v, an input of the op: an activation, or a param, whose gradients
     * are accumulated. Backward ops are made with edit->op; their place is set. */
    void (*add_gradient)(const struct tn_op_call *call, tn_value v, tn_value term);
};

enum {
    TN_OP_COMMUNICATES = 1 /* its ranks talk to each other when it runs: running it again sends again */
};

struct tn_op_definition {
    uint32_t struct_size;
    uint32_t like;  /* core opcode whose rule counts where a call-back is NULL, and whose inputs come first among the
                       op's; further inputs are whole on all axes then. TN_OP_NONE: of no core op */
    uint32_t flags; /* TN_OP_COMMUNICATES */
    uint32_t reserved;
    const char *name; /* "vendor.name": letters, digits and _, one dot; may not be a core op's */

    /* As in ops.def; copied. `alias` counts inputs and outputs from 0. At most 12 inputs and 8 outputs. */
    const char *ins, *outs, *attrs, *alias;
    const char *doc;

    /* Types of the outputs. Called again by the verifier: same inputs, same types. */
    void (*shape)(const struct tn_op_call *call);

    /* The rows of placements that the op allows on `axis`, "inputs>outputs" separated by spaces, one letter a
     * value: R replicate, P partial(sum), M partial(max), F flat, a digit d shard(d), L shard(last dimension of the
     * first input). "RR>R 0R>0": all whole, or the first input and the output cut along dimension 0. Rows whose
     * cuts do not divide are left out, and unequal and zigzag cuts are taken as equal ones are. Program and op are
     * only read. The text must live until the next call; NULL: the rows of `like`. */
    const char *(*rows)(const struct tn_op_call *call, int32_t axis);

    /* Backward ops; NULL and no `like`: the loss may not depend on it. */
    void (*grad)(const struct tn_op_call *call);

    /* FLOPs and bytes moved with this rank's shapes; NULL and no `like`: each tensor once. */
    void (*cost)(const struct tn_op_call *call, double *flops, double *bytes);
};

struct tn_ops_api {
    uint32_t struct_size;
    /* Sets *opcode. Fails with a message if the definition is wrong, or another op has the name. */
    tn_status (*add)(const struct tn_host *host, const struct tn_op_definition *definition, uint32_t *opcode);
    /* The opcode of a name, a core op's too; TN_OP_NONE if there is none. */
    uint32_t (*find)(const char *name);
};

#ifdef __cplusplus
}
#endif
#endif
