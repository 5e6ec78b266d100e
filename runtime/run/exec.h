/* Executor: walks a bound program. The only part that runs in every step.
 *
 * Binding turns each op into an entry that holds its kernel, or its collective call with all arguments. The step
 * then neither allocates nor looks anything up: it waits where the plan says so, launches, starts communication and
 * copies between spaces, and goes on. Waiting is done in slices, so that a dead peer or a passed deadline ends the job
 * with a message that names the rank, the op and the group. */
#ifndef TENON_EXEC_H
#define TENON_EXEC_H

#include <tenon/collective.h>
#include <tenon/device.h>

#include "passes/plan.h"
#include "ranks/store.h"
#include "run/copier.h"

enum { TN_MOST_BACKENDS = 6 };

/* A backend, or the outermost layer over it. */
struct tn_carrier {
    const struct tn_collective *table;
    void *self;
};

/* What programs of a job run on; lives as long as the job. */
struct tn_machine {
    const struct tn_device *device;
    void *device_self;
    struct tn_carrier carrier[TN_MOST_BACKENDS];
    int32_t n_carriers;                /* 0 in a world of one */
    int32_t axis_carrier[TN_MAX_AXES]; /* which one serves the groups along an axis */
    int32_t world_carrier;             /* and that of all ranks */
    /* By axis and channel; NULL for axes of one and channels that no program of the job uses. */
    struct tn_comm *comm[TN_MAX_AXES][TN_MAX_CHANNELS];
    struct tn_queue *queue;
    struct tn_store *store; /* NULL in a world of one */
    uint64_t timeout_ns;
    unsigned char *arena;
    uint64_t arena_bytes;
    int32_t arena_carrier;    /* where it came from; -1: from the device */
    struct tn_copier *copier; /* host memory and disk; NULL where all is on the device */
    const struct tn_mesh *mesh;
    int32_t rank;
};

struct tn_exec;

/* Scratch bytes that the program's kernels need (most of one); negative: an op has no kernel, text in error. */
int64_t tn_exec_scratch(const struct tn_machine *machine, const struct tn_program *flat, char *error,
                        size_t error_bytes);
/* Binds every op at its place in machine->arena. NULL with text in error. */
struct tn_exec *tn_exec_bind(const struct tn_machine *machine, const struct tn_plan *plan, char *error,
                             size_t error_bytes);
/* One step. Afterwards all queues are empty. On failure a message was logged. */
tn_status tn_exec_step(struct tn_exec *exec);
void tn_exec_destroy(struct tn_exec *exec); /* accepts NULL */
/* Copies this rank's part of a value from, or to, host memory; done on return. */
tn_status tn_exec_write(const struct tn_exec *exec, tn_value v, const void *from, uint64_t bytes);
tn_status tn_exec_read(const struct tn_exec *exec, tn_value v, void *to, uint64_t bytes);

#endif
