/* Store server, inside: what its thread (store_server.c) and the handling of requests (store_requests.c) share.
 *
 * A connection is a stranger until its first frame, HELLO, has shown the token; only then it is a member, the
 * connection of one rank. */
#ifndef TENON_STORE_SERVER_H
#define TENON_STORE_SERVER_H

#include <pthread.h>

#include "ranks/store.h"
#include "ranks/store_table.h"
#include "ranks/store_wire.h"

enum { TN_STORE_REASON_BYTES = 200 };

struct tn_store_conn {
    struct tn_wire wire;
    struct tn_store_conn *prev, *next; /* among the strangers */
    struct tn_store_conn *next_dirty, *next_closed;
    int32_t rank; /* -1: stranger */
    int dirty, closed, wants_out;
    uint64_t deadline_ns; /* of a stranger */
};

struct tn_store_member {
    struct tn_store_conn *conn; /* NULL: not here, or no longer */
    uint64_t host_id;
    int joined, left; /* left: said goodbye; both under the lock */
    int mourned;      /* has a death; under the lock */
};

struct tn_store_death {
    int32_t rank;
    int exact; /* a reason was given: no need to wait for one */
    uint64_t due_ns;
    char reason[TN_STORE_REASON_BYTES];
};

struct tn_store_server {
    int listen_fd, epoll_fd, wake_fd;
    pthread_t thread;
    char token[TN_STORE_TOKEN_MAX];
    size_t token_bytes;
    int32_t world, joined;
    uint64_t job_id;
    uint64_t accept_again_ns; /* 0: accepting */
    struct tn_store_table table;
    struct tn_store_conn *oldest, *newest; /* strangers */
    int32_t strangers;
    struct tn_store_conn *dirty, *closed;
    struct tn_store_member *members; /* [world] */

    pthread_mutex_t lock; /* everything below; the server's thread also reads without it what only it writes */
    pthread_cond_t emptied;
    int32_t connected; /* members */
    int stop;
    struct tn_store_death *deaths; /* [world], in order of being noticed */
    int32_t death_count, told;
    uint64_t reason_ns; /* how long a death that only a lost connection shows waits for its reason */
};

/* Queues a frame; it is sent at the end of the round. In the server's thread, as all below. */
void tn_store_queue(struct tn_store_server *s, struct tn_store_conn *conn, enum tn_wire_type type, int32_t number,
                    const void *key, size_t key_bytes, const void *data, size_t data_bytes);
void tn_store_queue_death(struct tn_store_server *s, struct tn_store_conn *conn, const struct tn_store_death *death);
/* A member is no stranger any more. */
void tn_store_unlink_stranger(struct tn_store_server *s, struct tn_store_conn *conn);
/* Ends a connection; its memory goes at the end of the round, as events of this round may still name it. `reason`:
 * why the rank counts as dead, if that is certain; NULL: it is only that it is gone. */
void tn_store_close(struct tn_store_server *s, struct tn_store_conn *conn, const char *reason);
/* Acts on one frame of a client. */
void tn_store_on_frame(struct tn_store_server *s, struct tn_store_conn *conn, const struct tn_frame *frame);

#endif
