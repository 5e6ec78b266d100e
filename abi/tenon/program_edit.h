/* The program: how models build it and strategies edit it (api "tn.program_edit/1").
 *
 * All calls are [main]. A call that cannot be taken (an unknown id, a shape that an op
 * refuses) records one error in the program, naming the op and its values, and returns 0 or
 * does nothing; the host checks after each pass. So plugins need not check every call. */
#ifndef TENON_PROGRAM_EDIT_H
#define TENON_PROGRAM_EDIT_H

#include <tenon/program.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An attribute of an op: a number by name. */
struct tn_attr {
    uint32_t struct_size;
    uint32_t is_float;
    const char *key;
    int64_t i;
    double f;
};
/* clang-format off */
#define TN_ATTR_I(k, v) { sizeof(struct tn_attr), 0, k, v, 0.0 }
#define TN_ATTR_F(k, v) { sizeof(struct tn_attr), 1, k, 0, v }
/* clang-format on */

enum { TN_CLAIM_CHOSEN = 1 /* the strategy chose the value; the manifest asked for none in particular */ };

/* Who takes care of what a value would keep in memory between its uses. */
struct tn_claim {
    uint32_t struct_size;
    uint32_t flags;   /* TN_CLAIM_* */
    const char *who;  /* id of the plugin */
    const char *what; /* "recompute", "host": what becomes of it instead */
    const char *key;  /* of the plugin's manifest section, that asked for it */
};

struct tn_program_edit_api {
    uint32_t struct_size;

    /* Region, layer (-1: none) and stage that values and ops made from now on carry. */
    void (*at)(struct tn_program *p, uint32_t region, int32_t layer, int32_t stage);
    /* Ops made from now on go before `before`; 0: at the end. */
    void (*insert_before)(struct tn_program *p, tn_op before);

    /* A value that no op makes: param, input, const or state. dims: logical axis of each
     * dimension, "" for none, or NULL. Names are global and unique. */
    tn_value (*value)(struct tn_program *p, uint32_t kind, const char *name, uint32_t dtype, int32_t rank,
                      const int64_t *shape, const char *const *dims);
    /* An op of a core opcode, or of a plugin's. Absent optional inputs are 0; trailing ones may be left out.
     * The shape rule makes its outputs, named after the op's name and output; the first one
     * is returned (an op without outputs returns 0). The op is last_op(p). */
    tn_value (*op)(struct tn_program *p, uint32_t opcode, const char *name, const tn_value *in, uint32_t n_in,
                   const struct tn_attr *attrs, uint32_t n_attrs);
    tn_op (*last_op)(const struct tn_program *p);
    tn_value (*output)(const struct tn_program *p, tn_op op, uint32_t index);

    void (*set_attr)(struct tn_program *p, tn_op op, const struct tn_attr *attr);
    void (*set_input)(struct tn_program *p, tn_op op, uint32_t index, tn_value v);
    void (*set_stage)(struct tn_program *p, tn_op op, int32_t stage);
    /* Uses of `from` by ops after `after` (0: all) become uses of `to`. */
    void (*replace_uses)(struct tn_program *p, tn_value from, tn_value to, tn_op after);
    void (*op_remove)(struct tn_program *p, tn_op op); /* its outputs must be unused */
    void (*op_move)(struct tn_program *p, tn_op op, tn_op before);

    void (*set_tag)(struct tn_program *p, tn_value v, const char *tag);
    void (*set_flags)(struct tn_program *p, tn_value v, uint32_t flags); /* added */
    void (*set_space)(struct tn_program *p, tn_value v, uint32_t space);
    /* How a param starts (TN_INIT_*). */
    void (*set_init)(struct tn_program *p, tn_value v, uint32_t init, double argument);
    /* Where a param lies in checkpoints: tensor `name`, whose dimension `dim` has `full`
     * elements, of which it is those from `offset`. Default: its own name, whole. */
    void (*set_stored)(struct tn_program *p, tn_value v, const char *name, int32_t dim, int64_t offset, int64_t full);

    /* [place] Pins the placement of a param, input or state on an axis. Setting one twice
     * to different placements is an error naming both plugins. */
    void (*place)(struct tn_program *p, tn_value v, int32_t axis, tn_placement placement);
    /* [place] The placement that resolve should prefer for an activation or gradient. */
    void (*want)(struct tn_program *p, tn_value v, int32_t axis, tn_placement placement);
    /* A table of unequal shares for TN_SHARD_PARTS: rank i of the axis gets weights[i] of
     * their sum. Returns its index, 1 to 255. The cut dimension must divide exactly. */
    uint32_t (*parts_new)(struct tn_program *p, const int64_t *weights, int32_t n);

    /* Records an error of the pass under way, about op (may be 0). */
    void (*error)(struct tn_program *p, tn_op op, const char *fmt, ...) TN_PRINTF(3, 4);

    /* The same op again, in the region, layer and place of at and insert_before: opcode,
     * attributes and placements are kept, outputs are new. Inputs as in the original.
     * Returns the new op. */
    tn_op (*op_copy)(struct tn_program *p, tn_op op, const char *name);
    /* Moves an op to another region; the caller moves it in the list as well where needed. */
    void (*set_region)(struct tn_program *p, tn_op op, uint32_t region);
    /* What a value is (TN_KIND_*), and the param that it belongs to (0: none). */
    void (*set_kind)(struct tn_program *p, tn_value v, uint32_t kind, tn_value like);
    void (*clear_flags)(struct tn_program *p, tn_value v, uint32_t flags);
    /* Another copy of a value that no op makes, equal but for its name: "w#1" is a copy of w that starts as w does. */
    tn_value (*value_copy)(struct tn_program *p, tn_value v, const char *name);
    /* [lower] The strategy under way would take care of v. The first one to claim a value has it:
     * returns the claim that holds, whose `who` tells, valid until the next one. A strategy leaves
     * alone what another one has; `tenon check` counts both. what NULL: only asks; `who` is "" if
     * nobody has it. */
    const struct tn_claim *(*claim)(struct tn_program *p, tn_value v, const char *what, const char *key,
                                    uint32_t flags);
    /* The op becomes one of another opcode, of the same inputs and outputs; attributes, names and links stay. */
    void (*set_opcode)(struct tn_program *p, tn_op op, uint32_t opcode);
    /* [lower] Gradients that resolve has summed along `axis` are summed together, in buckets of at most so many bytes
     * (one gradient may have more; 0: none are joined), each as soon as its last member is complete. Those that are
     * summed along further axes too are joined for all of them at once. */
    void (*join_sums)(struct tn_program *p, int32_t axis, uint64_t bytes);
};

#ifdef __cplusplus
}
#endif
#endif
