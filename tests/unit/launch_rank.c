/* A job for the launch tests: `launch_rank WORLD BEHAVIOUR...` starts WORLD ranks of itself; rank r behaves as the
 * r-th word says, the last word holds for all further ranks.
 *
 *   ok       joins, exchanges a value with every rank, says goodbye
 *   wait     joins, waits for a death (told on stderr, exit 1) or an interrupt (exit 0)
 *   hang     joins, then heeds neither; exit:N joins and exits; bare:N exits without joining
 *   die:N    joins and takes signal N;  brood: starts a child that sleeps, then waits
 *   quit:N   joins, waits for an interrupt and exits with N;  late:N exits a second after it joined
 *   slow     joins, and leaves half a second after the others may have left */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "ranks/launch.h"

static void nap(void)
{
    nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
}

static uint64_t timeout_ns(void)
{
    const char *seconds = getenv("LAUNCH_RANK_TIMEOUT");
    return (uint64_t)(seconds ? atof(seconds) * 1e9 : 10e9);
}

/* One write a line: lines of several ranks must not mix. */
static void say(const char *fmt, int a, int b)
{
    char line[128];
    int n = snprintf(line, sizeof line, fmt, a, b);
    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        exit(9);
}

static int await_end(struct tn_rank *rank)
{
    while (!tn_rank_interrupted()) {
        const char *death = tn_store_death(rank->store, NULL);
        if (death) {
            fprintf(stderr, "rank %d heard: %s\n", (int)rank->rank, death);
            return 1;
        }
        nap();
    }
    say("rank %d interrupted %d\n", rank->rank, tn_rank_interrupted());
    tn_rank_finish(rank);
    return 0;
}

static int exchange(struct tn_rank *rank)
{
    struct tn_bootstrap *b = &rank->bootstrap;
    char key[32];
    snprintf(key, sizeof key, "test.%d", (int)rank->rank);
    if (b->put(b->ctx, key, &rank->rank, sizeof rank->rank) != TN_OK)
        return 1;
    for (int32_t other = 0; other < rank->world; other++) {
        int32_t value = -1;
        uint32_t bytes = sizeof value;
        tn_status status;
        snprintf(key, sizeof key, "test.%d", (int)other);
        while ((status = b->get(b->ctx, key, &value, &bytes)) == TN_PENDING)
            nap();
        if (status != TN_OK || value != other)
            return 1;
    }
    say("rank %d local %d\n", rank->rank, b->local_rank);
    return 0;
}

static int brood(struct tn_rank *rank)
{
    pid_t pid = fork();
    if (pid == 0) {
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(9);
    }
    say("rank %d child %d\n", rank->rank, pid);
    return await_end(rank);
}

static int behave(struct tn_rank *rank, const char *behaviour)
{
    const char *number = strchr(behaviour, ':');
    int n = number ? atoi(number + 1) : 0;
    if (strncmp(behaviour, "exit", 4) == 0)
        return n;
    if (strncmp(behaviour, "die", 3) == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        raise(n);
    }
    if (strncmp(behaviour, "late", 4) == 0) {
        for (int i = 0; i < 500; i++)
            nap();
        return n;
    }
    while (strncmp(behaviour, "quit", 4) == 0) {
        if (tn_rank_interrupted())
            return n;
        nap();
    }
    if (strcmp(behaviour, "hang") == 0)
        for (;;)
            nap();
    if (strcmp(behaviour, "wait") == 0)
        return await_end(rank);
    if (strcmp(behaviour, "brood") == 0)
        return brood(rank);
    int code = exchange(rank);
    for (int i = 0; strcmp(behaviour, "slow") == 0 && i < 250; i++)
        nap();
    const char *death = tn_store_death(rank->store, NULL);
    if (death) {
        fprintf(stderr, "rank %d heard: %s\n", (int)rank->rank, death);
        return 1;
    }
    tn_rank_finish(rank);
    return code;
}

int main(int argc, char **argv)
{
    struct tn_rank rank;
    char error[512];
    int32_t me, world;
    if (argc < 3)
        return 64;
    int joined = tn_launch_joined(&me, &world, error, sizeof error);
    if (joined < 0) {
        fprintf(stderr, "error: %s\n", error);
        return 2;
    }
    if (joined == 0)
        return tn_launch_local(atoi(argv[1]), argv);

    const char *behaviour = argv[me + 2 < argc ? me + 2 : argc - 1];
    say("rank %d pid %d\n", me, getpid());
    if (strncmp(behaviour, "bare:", 5) == 0)
        return atoi(behaviour + 5);
    tn_status status = tn_rank_init(&rank, timeout_ns(), error, sizeof error);
    if (status != TN_OK) {
        fprintf(stderr, "rank %d %s: %s\n", (int)me, status == TN_PEER ? "heard" : "error", error);
        return 1;
    }
    say("rank %d joined %d\n", me, rank.bootstrap.local_size);
    return behave(&rank, behaviour);
}
