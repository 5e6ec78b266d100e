/* Store join: how a rank gets its connection to the store: reach it, show the token, be admitted. */
#ifndef TENON_STORE_JOIN_H
#define TENON_STORE_JOIN_H

#include <stddef.h>
#include <stdint.h>

#include "ranks/store_wire.h"

#include <tenon/status.h>

struct tn_join {
    const char *addr, *token;
    uint16_t port;
    int32_t rank, world;
    uint64_t host_id;
    uint64_t deadline_ns;
};

/* Retries until the deadline while nobody answers; a refusal is final. On success the caller owns the wire, which may
 * hold frames already. Failure: text in error. */
tn_status tn_store_join(const struct tn_join *join, struct tn_wire *wire, uint64_t *job_id, char *error,
                        size_t error_bytes);
/* Equal exactly on processes that can reach each other's abstract unix sockets and process ids, so share memory; or as
 * TENON_SIMULATE_HOSTS says: a letter for each rank, another letter another host. */
uint64_t tn_store_host_id(int32_t rank);
/* -1, with text in error: TENON_SIMULATE_HOSTS does not say where each of `world` ranks is. */
int tn_store_check_hosts(int32_t world, char *error, size_t error_bytes);

#endif
