/* Store wire: what the store's server and clients say to each other, and the buffered connection they say it on.
 *
 * Each side first sends eight magic bytes, then frames: a header of 12 bytes (type, 0, u16 key bytes, u32 data bytes,
 * i32 number; little-endian), the key, the data. Nothing longer than the limits below is ever read into memory. */
#ifndef TENON_STORE_WIRE_H
#define TENON_STORE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/clock.h"

enum {
    TN_WIRE_VERSION = 1,
    TN_WIRE_MAGIC_BYTES = 8,
    TN_WIRE_HEADER_BYTES = 12,
    TN_WIRE_HELLO_BYTES = 16,
    TN_STORE_KEY_MAX = 256,
    TN_STORE_TOKEN_MAX = 128,
    TN_STORE_VALUE_MAX = 64 * 1024,
    TN_STORE_TOTAL_MAX = 64 * 1024 * 1024,
};

enum tn_wire_type {
    /* client to server */
    TN_WIRE_HELLO = 1, /* number: rank; key: token; data: u32 version, i32 world, u64 host_id */
    TN_WIRE_PUT,       /* key, data */
    TN_WIRE_GET,       /* key; answered by VALUE when there is one */
    TN_WIRE_WHO,       /* answered by MISSING */
    TN_WIRE_GOODBYE,   /* answered by GOODBYE */
    /* server to client */
    TN_WIRE_WELCOME, /* data: u64 job_id */
    TN_WIRE_REFUSED, /* number: status; data: why */
    TN_WIRE_READY,   /* all have joined; number: local_rank; data: i32 local_size */
    TN_WIRE_VALUE,   /* key, data */
    TN_WIRE_FULL,    /* the key was not stored: no room */
    TN_WIRE_DEATH,   /* number: rank; data: why */
    TN_WIRE_MISSING, /* data: the ranks that have not joined, "1, 3-5" */
};

struct tn_frame {
    uint8_t type;
    int32_t number;
    uint32_t key_bytes, data_bytes;
    const char *key; /* in the connection's buffer, valid until the next fill; not terminated */
    const char *data;
};

/* One end of a connection. Not for several threads at once. */
struct tn_wire {
    int fd; /* non-blocking; owned */
    int greeted;
    char *in;
    size_t in_bytes, in_used;
    struct tn_buf out;
    size_t out_sent;
};

/* Takes a connected socket: makes it non-blocking, without delay, and quick to notice a host that is gone.
 * -1: out of memory; finish it all the same. */
int tn_wire_init(struct tn_wire *wire, int fd);
void tn_wire_finish(struct tn_wire *wire);
/* Reads what is there, at most a buffer full. 1: read something; 0: nothing there now; -1: closed or broken. */
int tn_wire_fill(struct tn_wire *wire);
/* The next frame read. 1: there is one; 0: not complete yet; -1: the peer does not speak this protocol. */
int tn_wire_next(struct tn_wire *wire, struct tn_frame *frame);
/* Sends what is queued as far as the socket takes it. 1: all; 0: more to send; -1: broken. */
int tn_wire_flush(struct tn_wire *wire);
static inline size_t tn_wire_queued(const struct tn_wire *wire)
{
    return wire->out.length - wire->out_sent;
}

void tn_wire_greet(struct tn_buf *out); /* the magic bytes */
void tn_wire_add(struct tn_buf *out, enum tn_wire_type type, int32_t number, const void *key, size_t key_bytes,
                 const void *data, size_t data_bytes);

/* Numbers in frames' data. */
void tn_wire_put_u32(char *at, uint32_t value);
void tn_wire_put_u64(char *at, uint64_t value);
uint32_t tn_wire_u32(const char *at);
uint64_t tn_wire_u64(const char *at);

#endif
