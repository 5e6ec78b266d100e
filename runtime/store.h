/* Store: the key-value server through which ranks of a job find each other, and its client.
 *
 * One server a job: in the launcher for `tenon run`, in rank 0's process where another
 * launcher started the ranks. It also carries news: a rank whose connection drops before it
 * said goodbye is dead, and every other client learns it, with the reason if one is known. */
#ifndef TENON_STORE_H
#define TENON_STORE_H

#include <stddef.h>
#include <stdint.h>

#include <tenon/collective.h>

struct tn_store_server;
struct tn_store;

/* Listens on addr ("127.0.0.1"; NULL: any) and port (0: any; *port is set). Serves from its own thread.
 * Clients must present `token`. Failure: text in error. */
tn_status tn_store_serve(struct tn_store_server **server, const char *addr, uint16_t *port, const char *token,
                         int32_t world, char *error, size_t error_bytes);
/* Tells all clients that `rank` is gone and why ("killed by signal 9 (Killed)"). Any thread. */
void tn_store_bury(struct tn_store_server *server, int32_t rank, const char *reason);
void tn_store_stop(struct tn_store_server *server); /* accepts NULL */

/* Connects, retrying until timeout. */
tn_status tn_store_connect(struct tn_store **store, const char *addr, uint16_t port, const char *token, int32_t rank,
                           int32_t world, uint64_t timeout_ns, char *error, size_t error_bytes);
/* Fills everything of the bootstrap table, local_rank, local_size and host_id found by exchange (blocks). */
tn_status tn_store_bootstrap(struct tn_store *store, uint64_t timeout_ns, struct tn_bootstrap *bootstrap);
/* The death that is known, as "rank 1 was killed by signal 9 (Killed)"; NULL while all live. Never blocks, costs
 * one atomic read. `*rank` may be NULL. */
const char *tn_store_death(struct tn_store *store, int32_t *rank);
void tn_store_goodbye(struct tn_store *store); /* an orderly end; then frees. Accepts NULL */

#endif
