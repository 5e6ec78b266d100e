/* Who is missing, which MPI does not say. A rank that gives up says so in the bootstrap, and after it for whom it
 * waited: a member that says nothing is the missing one; where all give up, one of them waited in another group, and
 * tells. Each rank says it once: a time-out ends a job. Only who has given up comes here. */
#include "backend.h"

#include <stdio.h>
#include <time.h>

enum { NAP_NS = 2 * 1000 * 1000 };
#define HEAR_NS UINT64_C(600000000) /* for the others to give up as well; hier over this waits a little longer */

static const char *key_of(const char *what, int32_t rank, char *key, size_t bytes)
{
    snprintf(key, bytes, "mpi/%s/%d", what, (int)rank);
    return key;
}

static void say(const struct backend *b, const char *what, int32_t rank, uint64_t until_ns)
{
    const struct tn_bootstrap *boot = &b->bootstrap;
    char key[48];
    key_of(what, b->rank, key, sizeof key);
    while (boot->put(boot->ctx, key, &rank, sizeof rank) == TN_PENDING && mpi_now() < until_ns)
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

/* TN_PENDING: that rank has not said it in time. */
static tn_status hear(const struct backend *b, const char *what, int32_t of, uint64_t until_ns, int32_t *rank)
{
    const struct tn_bootstrap *boot = &b->bootstrap;
    char key[48];
    key_of(what, of, key, sizeof key);
    for (;;) {
        uint32_t bytes = sizeof *rank;
        tn_status status = boot->get(boot->ctx, key, rank, &bytes);
        if (status != TN_PENDING || mpi_now() >= until_ns)
            return status;
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    }
}

/* Whoever does not even hear itself can tell nothing of others; nor can who goes on and gives up again, for what the
 * bootstrap was told stays. */
int32_t mpi_find_missing(const struct tn_comm *c)
{
    struct backend *b = c->backend;
    if (b->has_given_up++)
        return -1;
    uint64_t until_ns = mpi_now() + HEAR_NS;
    int32_t missing = -1, blamed = -1;
    say(b, "late", -1, until_ns);
    tn_status status = hear(b, "late", b->rank, until_ns, &blamed);
    for (int32_t i = 0; i < c->n && status == TN_OK; i++) {
        status = i == c->me ? TN_OK : hear(b, "late", c->ranks[i], until_ns, &blamed);
        missing = status == TN_PENDING ? c->ranks[i] : -1;
    }
    until_ns += HEAR_NS;
    say(b, "blames", missing, until_ns);
    for (int32_t i = 0; i < c->n && status == TN_OK && missing < 0; i++)
        if (i != c->me && hear(b, "blames", c->ranks[i], until_ns, &blamed) == TN_OK && blamed != b->rank)
            missing = blamed;
    return missing;
}
