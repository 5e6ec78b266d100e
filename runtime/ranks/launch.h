/* Launch: how this process becomes a rank, or the parent of all ranks.
 *
 * `tenon run` without RANK in the environment starts one process a rank: itself again, with RANK, WORLD_SIZE,
 * LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (and TENON_TOKEN) set. With them it joins. So a rank
 * never knows which launcher started it, except that TENON_LAUNCHER says that the launcher serves the store. */
#ifndef TENON_LAUNCH_H
#define TENON_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "ranks/store.h"

struct tn_rank {
    int32_t rank, world;
    struct tn_store_server *server; /* in rank 0 where no launcher of ours serves; else NULL */
    struct tn_store *store;
    struct tn_bootstrap bootstrap;
};

/* 1 if the environment says which rank this is; 0 if not; -1 if it says so badly (text in error: which variable,
 * its value, what would work). */
int tn_launch_joined(int32_t *rank, int32_t *world, char *error, size_t error_bytes);
/* Holds back the signals that a launcher watches, for this thread and those it starts from now on. A process that may
 * become a launcher calls it before anything that starts threads: a plugin's thread would else take the signals. */
void tn_launch_hold_signals(void);
/* This process will launch nothing after all, and is the only rank itself: the first SIGINT or SIGTERM sets
 * tn_rank_interrupted. */
void tn_launch_alone(void);
/* Starts `world` ranks of this very command line, waits, passes signals on, ends all when one fails, and returns the
 * exit code: 0 if all ended with 0, else that of the first that failed (2 stays 2), 1 when one was killed. Nothing is
 * left running. Call it before the process has other threads. [main] */
int tn_launch_local(int32_t world, char **argv);
/* A new random secret for a job, as text. -1: the system gives no random numbers. */
enum { TN_LAUNCH_TOKEN_BYTES = 32 };
int tn_launch_token(char token[2 * TN_LAUNCH_TOKEN_BYTES + 1]);
/* Becomes the rank that the environment names: store, bootstrap. Failure: text in error; TN_INVALID: a variable is to
 * blame, which has a value that can never do. From here on the first
 * SIGINT or SIGTERM only sets the flag below, the second ends the process at once. [main] */
tn_status tn_rank_init(struct tn_rank *rank, uint64_t timeout_ns, char *error, size_t error_bytes);
/* Orderly: peers do not take it for a death. Where rank 0 serves the store it waits here for the others. A rank that
 * failed does not call it: it exits, and the others learn that. [main] */
void tn_rank_finish(struct tn_rank *rank);
/* Set once SIGINT or SIGTERM arrived in this rank: the step loop ends after the step. */
int tn_rank_interrupted(void);
/* From now on they set it; a second one ends the process. tn_rank_init does this. */
void tn_rank_watch_interrupts(void);

#endif
