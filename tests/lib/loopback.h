/* A bootstrap for ranks that a test forks or starts as threads: a small table of keys in
 * anonymous memory, which the ranks inherit. No network, no file. */
#ifndef TENON_TESTS_LOOPBACK_H
#define TENON_TESTS_LOOPBACK_H

#include <tenon/collective.h>

struct loopback;

/* NULL when memory is exhausted. Call before the ranks start. */
struct loopback *loopback_create(int32_t n);
/* The same for ranks that somebody else starts: they meet in a file, empty at first. NULL: it cannot be opened. */
struct loopback *loopback_open(const char *path, int32_t n);
void loopback_destroy(struct loopback *lb);
/* Simulated hosts: a letter for each rank ("aab": the first two share one), or how many there are, with neighbours on
 * one, as launchers place them ("2"). NULL: one host. Call before the ranks start. */
void loopback_hosts(struct loopback *lb, const char *hosts);
/* The table for one rank; it points into *lb. */
struct tn_bootstrap loopback_bootstrap(struct loopback *lb, int32_t rank);
/* From now on poll says TN_PEER in all ranks. */
void loopback_died(struct loopback *lb, int32_t rank);
uint64_t loopback_job_id(const struct loopback *lb);
/* Words that the ranks of a test may share as they like (atomically). */
_Atomic uint64_t *loopback_words(struct loopback *lb, uint32_t *count);

#endif
