/* Launchers of others, as seen from a rank that they started: their variables in our words, and PMIx. */
#ifndef TENON_LAUNCH_OTHER_H
#define TENON_LAUNCH_OTHER_H

#include <stddef.h>
#include <stdint.h>

#include <tenon/status.h>

/* Where RANK and WORLD_SIZE are not set but a launcher of others started this process: sets them, LOCAL_RANK,
 * LOCAL_WORLD_SIZE, and MASTER_ADDR and MASTER_PORT unless they are set or PMIx will tell (below). Sets nothing where
 * nobody else did, or where it started a single process, which is free to start ranks itself. [main] */
void tn_launch_take_other(void);

/* PMIx (pmix.org): the protocol between launchers and what they start. Without the library, or outside such a launcher,
 * init says 0 and nothing else may be called. */
int tn_pmix_init(int32_t *rank, int32_t *world, int32_t *local_world); /* 1: this process is that rank */
int tn_pmix_active(void);
/* Rank 0 says `text`; all others wait for it, up to the time-out. Failure: why, in error. [main] */
tn_status tn_pmix_say(const char *text, char *error, size_t error_bytes);
tn_status tn_pmix_hear(char *text, size_t text_bytes, uint64_t timeout_ns, char *error, size_t error_bytes);
void tn_pmix_finish(void); /* an orderly end */

#endif
