/* The suite's tests; each runs on every rank of a world. */
#ifndef TENON_CONFORMANCE_TESTS_H
#define TENON_CONFORMANCE_TESTS_H

#include "harness.h"

/* ops.c */
test_fn test_matrix, test_large, test_rounding, test_send_recv, test_early_recv, test_arguments;
/* async.c */
test_fn test_outstanding, test_grid, test_across_groups, test_ring_full, test_memory, test_random, test_wake;
/* failure.c */
test_fn test_timeout, test_abort, test_conflict, test_message_conflict, test_killed, test_killed_and_late,
    test_killed_while_busy, test_group_timeout;
/* life.c */
test_fn test_groups_without_leak;

#endif
