/* The strategy table: a strategy is a pass over the program.
 *
 * Functions are called in the order of this table (away at any time from lower on), all [main],
 * with the instance that create made. place and lower run for each strategy in the order of the
 * manifest's chain. A function that a strategy does not need is NULL. */
#ifndef TENON_STRATEGY_H
#define TENON_STRATEGY_H

#include <tenon/program_edit.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the ranks along an axis do: the same ops on parts of the values, or each its own stage's ops. */
enum { TN_AXIS_PARTS = 0, TN_AXIS_STAGES = 1 };

/* One axis of the mesh that the strategy adds. Axes of one strategy are given fastest first,
 * struct_size bytes of the first one apart. */
struct tn_axis {
    uint32_t struct_size;
    int32_t size;
    const char *name; /* [a-z][a-z0-9_]*, unique in the job; lives as long as the instance */
    uint32_t kind;    /* TN_AXIS_*; at most one axis of a job has stages: rank r of it runs the ops
                         of stages r, r + size, .. and those of stage -1, which all run */
    uint32_t reserved;
};

/* One slot of a pipeline schedule: run region's ops of `stage` for micro-batch `micro`; those of
 * stage -1 run with the last slot of their region and micro-batch. Slots lie struct_size bytes of
 * the first one apart. */
struct tn_slot {
    uint32_t struct_size;
    uint32_t region; /* TN_REGION_FORWARD, TN_REGION_BACKWARD, TN_REGION_WEIGHT */
    int32_t stage;
    int32_t micro;
};

struct tn_strategy {
    uint32_t struct_size;

    /* Reads options from the host; *self is the instance. On failure *self stays NULL. */
    tn_status (*create)(const struct tn_host *host, void **self);
    void (*destroy)(void *self); /* accepts NULL */

    /* The axes it adds. `size` is its option "size" (with `auto` resolved to what is left of
     * the world), 1 if it has no such option. NULL: one axis of that size named by the
     * plugin's id, if it has the option. Writes at most `cap` to `axes`, the number to *n. */
    tn_status (*axes)(void *self, int32_t size, struct tn_axis *axes, int32_t cap, int32_t *n);

    /* Reports every problem with the job as it is (host->problem; sizes from "tn.facts/1").
     * `size` as for axes. Builds nothing. */
    tn_status (*check)(void *self, int32_t size);

    /* Who owns what: placements of params, inputs and states, wants, stages, rewrites. The
     * program has global shapes; whatever is left unplaced becomes replicate. */
    tn_status (*place)(void *self, struct tn_program *program);

    /* Lifetimes: gather, recompute, off-load, buckets. The program has placements and
     * collectives. */
    tn_status (*lower)(void *self, struct tn_program *program);

    /* The order of micro-batches on this rank's stages, every op of theirs once for each; at
     * most one strategy of a chain has it. Writes at most `cap` slots, their number to *n.
     * NULL: each micro-batch forward and backward, in turn. */
    tn_status (*schedule)(void *self, const struct tn_program *program, int32_t micro_batches, struct tn_slot *slots,
                          uint32_t cap, uint32_t *n);

    /* Seconds (at the nominal rates of plan.h) to bring an activation of so many bytes elsewhere and
     * back; negative: it moves none. NULL: the strategy is none that moves. */
    double (*away)(void *self, uint64_t bytes);
};

#ifdef __cplusplus
}
#endif
#endif
