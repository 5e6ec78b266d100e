/* Plan: every value of a flat program gets a place in the arena of its space, and every hazard a wait.
 *
 * The device's arena of a rank is [persistent | transient | scratch]: params and states first, at the same offsets in
 * every program of the job; then everything with a lifetime; then one scratch area that kernels share. Host memory and
 * the file on disk are [persistent | transient]. Their sizes are exact, and known before anything is launched. */
#ifndef TENON_PLAN_H
#define TENON_PLAN_H

#include "passes/passes.h"

/* X(NAME, text) */
#define TN_CATEGORY_LIST(X)       \
    X(PARAMS, "params")           \
    X(GRADIENTS, "gradients")     \
    X(OPTIMIZER, "optimizer")     \
    X(ACTIVATIONS, "activations") \
    X(BUFFERS, "buffers")

enum tn_category {
#define TN_X(name, text) TN_MEM_##name,
    TN_CATEGORY_LIST(TN_X)
#undef TN_X
        TN_MEM_COUNT
};
extern const char *const tn_category_name[TN_MEM_COUNT];

enum { TN_SPACES = 3 };
enum { TN_DISK_BLOCK = 4096 }; /* values on disk begin at a multiple of it */

/* What lies in one space. */
struct tn_plan_space {
    int64_t persistent_bytes, transient_bytes;
    int64_t category_bytes[TN_MEM_COUNT]; /* most that is live at once of each */
};

struct tn_plan {
    struct tn_arena memory;
    const struct tn_program *p;
    int64_t *offset; /* by value: bytes into the arena of its space; -1: has no memory */
    /* By order of op (its end last): the communication and copies wait[first_wait[i] .. first_wait[i + 1]) that must be
     * done before it runs. */
    uint32_t *first_wait;
    tn_op *wait;
    uint32_t n_waits;
    int64_t persistent_bytes, transient_bytes, scratch_bytes;
    int64_t category_bytes[TN_MEM_COUNT]; /* most that is live at once of each; scratch counts as buffers */
    struct tn_plan_space away[TN_SPACES]; /* by space: host memory and disk; of the device the members above */
};

/* Requires: a flat program with local sizes. `base`: plan of the job's first program, whose params and states keep
 * their offsets; NULL for that one. `scratch`: most that a kernel needs. */
void tn_plan_init(struct tn_plan *plan, const struct tn_program *flat, const struct tn_plan *base, int64_t scratch);
void tn_plan_finish(struct tn_plan *plan);
/* Bytes of the device's whole arena. */
int64_t tn_plan_bytes(const struct tn_plan *plan);
/* Bytes in host memory or on disk. */
int64_t tn_plan_away(const struct tn_plan *plan, uint32_t space);

#endif
