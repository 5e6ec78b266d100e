/* Store: the key-value server through which ranks of a job find each other, and its client.
 *
 * One server a job: in the launcher for `tenon run`, in rank 0's process where another
 * launcher started the ranks. It also carries news: a rank whose connection drops before it
 * said goodbye is dead, and every other client learns it, with the reason if one is known.
 * Keys (up to 256 bytes) are written once, the first put stands; a value has up to 64 KiB, all together 64 MiB. */
#ifndef TENON_STORE_H
#define TENON_STORE_H

#include <stddef.h>
#include <stdint.h>

#include <tenon/collective.h>

struct tn_store_server;
struct tn_store;

/* Listens on addr ("127.0.0.1"; NULL: any) and port (0: any; *port is set). Serves from its own thread.
 * Clients must present `token` (1 to 128 bytes). Failure: text in error; TN_INVALID: addr, port or token can never do. */
tn_status tn_store_serve(struct tn_store_server **server, const char *addr, uint16_t *port, const char *token,
                         int32_t world, char *error, size_t error_bytes);
/* Tells all clients that `rank` is gone and why ("was killed by signal 9 (Killed)"). Any thread. A lost connection
 * tells them too, but later, so that a reason given here within 200 ms is the one they hear. */
void tn_store_bury(struct tn_store_server *server, int32_t rank, const char *reason);
/* Somebody watches the ranks and gives a reason for every death: so long it is waited for, not 200 ms. Any thread. */
void tn_store_expect_reasons(struct tn_store_server *server, uint64_t within_ns);
/* The process of `rank` ended and all seemed well: that is news only if it had not said goodbye. Any thread. */
void tn_store_ended(struct tn_store_server *server, int32_t rank);
/* Buries every rank that has not joined yet, so that those which wait for them know. Any thread. */
void tn_store_bury_missing(struct tn_store_server *server, const char *reason);
/* Waits until no client is connected. 1: none is; 0: the time is over. */
int tn_store_wait_empty(struct tn_store_server *server, uint64_t timeout_ns);
void tn_store_stop(struct tn_store_server *server); /* tells the deaths that it knows first; accepts NULL */

/* Connects, retrying until timeout. */
tn_status tn_store_connect(struct tn_store **store, const char *addr, uint16_t port, const char *token, int32_t rank,
                           int32_t world, uint64_t timeout_ns, char *error, size_t error_bytes);
/* Says, right after connecting, whose process serves (-1, as at first: none of the ranks), so that the server's loss
 * counts as that rank's death. */
void tn_store_served_by(struct tn_store *store, int32_t rank);
/* Fills everything of the bootstrap table, local_rank, local_size and host_id found by exchange (blocks until all
 * ranks joined). TN_PEER: one died; TN_TIMEOUT: see tn_store_missing. The table lives as long as the store. */
tn_status tn_store_bootstrap(struct tn_store *store, uint64_t timeout_ns, struct tn_bootstrap *bootstrap);
/* The ranks that have not joined, as "1, 3-5"; asks the server and waits five seconds at most. "" if not known. */
void tn_store_missing(struct tn_store *store, char *ranks, size_t ranks_bytes);
/* The death that is known, as "rank 1 was killed by signal 9 (Killed)"; NULL while all live. Never blocks, costs
 * one atomic read. `*rank` may be NULL; -1 where the death is not a rank's but the launcher's. */
const char *tn_store_death(struct tn_store *store, int32_t *rank);
void tn_store_goodbye(struct tn_store *store); /* an orderly end; then frees. Accepts NULL */
void tn_store_drop(struct tn_store *store);    /* frees without goodbye: peers take it for a death. Accepts NULL */

#endif
