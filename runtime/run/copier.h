/* Copier: memory beyond the device's (host memory, one file on disk) and the thread that copies to and from it.
 *
 * The executor starts a copy and goes on; copies are done one after the other, in the order in which they were started.
 * Everything is allocated when the copier is made: host memory, the file's whole size, the buffer through which disk
 * transfers go and the ring of copies. A failure ends all copies behind it and is told by whoever waits. */
#ifndef TENON_COPIER_H
#define TENON_COPIER_H

#include <stddef.h>

#include <tenon/device.h>

enum { TN_COPY_OUT, TN_COPY_IN }; /* away from the device, back to it */

/* One transfer, described once and started in every step. */
struct tn_copy {
    uint32_t way, space;
    void *device;   /* there */
    int64_t offset; /* in the space's memory or file */
    uint64_t bytes;
    struct tn_event *event; /* what the device had to do before it started; NULL: nothing */
    const char *name;       /* of the op, for messages */
};

struct tn_copier;

struct tn_copier_of {
    const struct tn_device *device;
    void *device_self;
    int64_t host_bytes, disk_bytes; /* 0: none */
    const char *folder;             /* of the file, which has no name and so goes with the process */
};

/* NULL with text in error. */
struct tn_copier *tn_copier_new(const struct tn_copier_of *of, char *error, size_t error_bytes);
void tn_copier_destroy(struct tn_copier *copier); /* accepts NULL; waits for what is under way */
/* The ticket to wait for. *copy must live until then. [main] */
uint64_t tn_copier_start(struct tn_copier *copier, const struct tn_copy *copy);
/* Blocks. After a failure every wait fails, and the first one has logged why. [main] */
tn_status tn_copier_wait(struct tn_copier *copier, uint64_t ticket);

#endif
