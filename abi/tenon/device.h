/* The device table: memory, queues, events and kernels of one kind of processor.
 *
 * A device is bound once and launched often: bind chooses and prepares a kernel for one op
 * with its tensors' addresses; launch only runs it. launch, event_* and queue_* neither
 * allocate nor look names up. Unless said otherwise, functions are [main]. */
#ifndef TENON_DEVICE_H
#define TENON_DEVICE_H

#include <tenon/program_edit.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor as a kernel sees it: dense, row-major, this rank's part. */
struct tn_tensor {
    uint32_t struct_size;
    uint32_t dtype;
    int32_t rank;
    uint32_t space;
    int64_t shape[TN_MAX_DIMS];  /* local */
    int64_t offset[TN_MAX_DIMS]; /* of this part in the whole, where the cut is contiguous */
    int64_t global[TN_MAX_DIMS]; /* shape of the whole */
    void *data;                  /* 64-byte aligned; NULL in `supports` and `workspace` */
    /* Where a dimension is cut in zigzag order: its first `run` indices are those of the whole from `first` on, the
     * others from `second` on. run 0: the cut is contiguous. */
    int64_t run[TN_MAX_DIMS], first[TN_MAX_DIMS], second[TN_MAX_DIMS];
};

struct tn_op_desc {
    uint32_t struct_size;
    uint32_t opcode;
    const char *name; /* of the opcode */
    uint32_t n_in, n_out;
    const struct tn_tensor *const *in;  /* an absent optional tensor is NULL */
    const struct tn_tensor *const *out; /* may be an input's memory where ops.def allows it */
    const struct tn_attr *attrs;
    uint32_t n_attrs, attr_stride;
};

struct tn_device_info {
    uint32_t struct_size;
    uint32_t threads;
    uint64_t memory_bytes; /* what one rank of this host may use */
    double peak_flops_f32; /* 0: not known; measured or from the processor's data */
    double peak_flops_bf16;
    double memory_bytes_per_s; /* 0: not known */
    const char *name;          /* "AMD EPYC, 2 threads, avx512" */
};

struct tn_queue;
struct tn_event;
struct tn_kernel;

struct tn_device {
    uint32_t struct_size;

    tn_status (*create)(const struct tn_host *host, void **self);
    void (*destroy)(void *self); /* accepts NULL */
    /* Caller sets struct_size; where that leaves the speeds out, a device that measures them need not. Called when the
     * number of ranks is known, before any kernel is bound. */
    tn_status (*probe)(void *self, struct tn_device_info *info);

    tn_status (*mem_alloc)(void *self, uint32_t space, uint64_t bytes, void **memory);
    void (*mem_free)(void *self, uint32_t space, void *memory, uint64_t bytes);

    /* Work of one queue runs in order; queues run beside each other. A device that computes
     * in the calling thread may run launch at once: its queues are then always empty. */
    tn_status (*queue_create)(void *self, struct tn_queue **queue);
    void (*queue_destroy)(void *self, struct tn_queue *queue);
    tn_status (*queue_sync)(void *self, struct tn_queue *queue); /* waits until empty */
    tn_status (*event_create)(void *self, struct tn_event **event);
    void (*event_destroy)(void *self, struct tn_event *event);
    tn_status (*event_record)(void *self, struct tn_event *event, struct tn_queue *queue);
    /* Work put on `queue` from now on starts after the event. */
    tn_status (*event_wait)(void *self, struct tn_event *event, struct tn_queue *queue);

    /* TN_OK if there is a kernel for this opcode, these dtypes and this shape. */
    tn_status (*supports)(void *self, const struct tn_op_desc *op);
    /* Scratch bytes that the op needs while it runs. */
    tn_status (*workspace)(void *self, const struct tn_op_desc *op, uint64_t *bytes);
    /* The tensors' addresses and the scratch stay valid while the kernel lives; the
     * descriptors need not. */
    tn_status (*bind)(void *self, const struct tn_op_desc *op, void *scratch, struct tn_kernel **kernel);
    void (*kernel_destroy)(void *self, struct tn_kernel *kernel);
    tn_status (*launch)(void *self, struct tn_kernel *kernel, struct tn_queue *queue);

    /* Copies between spaces, in the order of the queue. */
    tn_status (*copy)(void *self, void *to, const void *from, uint64_t bytes, struct tn_queue *queue);

    /* Seconds the op would take here, for simulation and search; NULL: unknown. */
    double (*cost)(void *self, const struct tn_op_desc *op);
};

#ifdef __cplusplus
}
#endif
#endif
