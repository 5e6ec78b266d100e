/* Store join: connect, say hello, read the answer; see store_join.h. */
#include "ranks/store_join.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const uint64_t try_ns = 5000000000u, pause_min_ns = 2000000u, pause_max_ns = 200000000u;

static int wait_for(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = tn_now_ns();
        struct pollfd one = { .fd = fd, .events = events };
        int ready = poll(&one, 1, now < deadline_ns ? (int)((deadline_ns - now) / 1000000u) + 1 : 0);
        if (ready > 0)
            return 1;
        if (ready == 0)
            return 0;
        if (errno != EINTR)
            return -1;
    }
}

/* One address. The descriptor, or -1 with errno. */
static int connect_to(const struct addrinfo *a, uint64_t deadline_ns)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0)
        return -1;
    int why = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (why == EINPROGRESS) {
        socklen_t bytes = sizeof why;
        if (wait_for(fd, POLLOUT, deadline_ns) <= 0)
            why = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes) < 0)
            why = errno;
    }
    if (why == 0)
        return fd;
    close(fd);
    errno = why;
    return -1;
}

static int reach(const struct tn_join *join, uint64_t deadline_ns, char *why, size_t why_bytes)
{
    char service[8];
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *found = NULL;
    snprintf(service, sizeof service, "%u", (unsigned)join->port);
    int failed = getaddrinfo(join->addr, service, &hints, &found);
    if (failed) {
        snprintf(why, why_bytes, "%s", gai_strerror(failed));
        return -1;
    }
    int fd = -1;
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
        fd = connect_to(a, deadline_ns);
    if (fd < 0)
        snprintf(why, why_bytes, "%s", strerror(errno));
    freeaddrinfo(found);
    return fd;
}

static int say_hello(const struct tn_join *join, struct tn_wire *wire)
{
    char hello[TN_WIRE_HELLO_BYTES];
    tn_wire_put_u32(hello, TN_WIRE_VERSION);
    tn_wire_put_u32(hello + 4, (uint32_t)join->world);
    tn_wire_put_u64(hello + 8, join->host_id);
    tn_wire_greet(&wire->out);
    tn_wire_add(&wire->out, TN_WIRE_HELLO, join->rank, join->token, strlen(join->token), hello, sizeof hello);
    return tn_wire_flush(wire);
}

/* TN_PENDING: no answer, with the reason in why; else final. */
static tn_status read_answer(const struct tn_join *join, struct tn_wire *wire, uint64_t deadline_ns, uint64_t *job_id,
                             char *why, size_t why_bytes)
{
    struct tn_frame frame;
    int got;
    while ((got = tn_wire_next(wire, &frame)) == 0) {
        if (wait_for(wire->fd, POLLIN, deadline_ns) <= 0) {
            snprintf(why, why_bytes, "it accepted the connection but did not answer");
            return TN_PENDING;
        }
        if (tn_wire_fill(wire) < 0) {
            snprintf(why, why_bytes, "it closed the connection without an answer");
            return TN_PENDING;
        }
    }
    if (got > 0 && frame.type == TN_WIRE_WELCOME && frame.data_bytes == 8) {
        *job_id = tn_wire_u64(frame.data);
        return TN_OK;
    }
    if (got > 0 && frame.type == TN_WIRE_REFUSED) {
        snprintf(why, why_bytes, "%.*s", (int)frame.data_bytes, frame.data);
        return frame.number < 0 ? frame.number : TN_ERROR;
    }
    if (got > 0 && frame.type == TN_WIRE_HELLO) {
        /* Trying a local port where nobody listens can by chance connect a socket to itself. */
        snprintf(why, why_bytes, "%s", strerror(ECONNREFUSED));
        return TN_PENDING;
    }
    snprintf(why, why_bytes, "it is not a Tenon store; is the port taken by another program?");
    return TN_CONFLICT;
}

static tn_status try_once(const struct tn_join *join, struct tn_wire *wire, uint64_t *job_id, char *why,
                          size_t why_bytes)
{
    uint64_t deadline_ns = tn_now_ns() + try_ns;
    if (deadline_ns > join->deadline_ns)
        deadline_ns = join->deadline_ns;
    int fd = reach(join, deadline_ns, why, why_bytes);
    if (fd < 0)
        return TN_PENDING;
    tn_status status = TN_PENDING;
    if (tn_wire_init(wire, fd) < 0) {
        snprintf(why, why_bytes, "out of memory");
        status = TN_NO_MEMORY;
    } else if (say_hello(join, wire) < 0) {
        snprintf(why, why_bytes, "%s", strerror(errno));
    } else {
        status = read_answer(join, wire, deadline_ns, job_id, why, why_bytes);
    }
    if (status != TN_OK)
        tn_wire_finish(wire);
    return status;
}

tn_status tn_store_join(const struct tn_join *join, struct tn_wire *wire, uint64_t *job_id, char *error,
                        size_t error_bytes)
{
    char why[256];
    uint64_t began_ns = tn_now_ns(), pause_ns = pause_min_ns;
    if (strlen(join->token) > TN_STORE_TOKEN_MAX) {
        snprintf(error, error_bytes, "the job's token has %zu bytes; use 1 to %d", strlen(join->token),
                 TN_STORE_TOKEN_MAX);
        return TN_INVALID;
    }
    for (;;) {
        tn_status status = try_once(join, wire, job_id, why, sizeof why);
        if (status == TN_OK)
            return TN_OK;
        if (status != TN_PENDING) {
            snprintf(error, error_bytes, "the store at %s:%u refuses rank %d: %s", join->addr, (unsigned)join->port,
                     (int)join->rank, why);
            return status;
        }
        if (tn_now_ns() + pause_ns >= join->deadline_ns) {
            snprintf(error, error_bytes, "no store answered at %s:%u within %.1f s (%s); is rank 0 running there?",
                     join->addr, (unsigned)join->port, (double)(tn_now_ns() - began_ns) / 1e9, why);
            return TN_TIMEOUT;
        }
        nanosleep(&(struct timespec){ 0, (long)pause_ns }, NULL);
        pause_ns = pause_ns * 2 < pause_max_ns ? pause_ns * 2 : pause_max_ns;
    }
}

int tn_store_check_hosts(int32_t world, char *error, size_t error_bytes)
{
    const char *simulated = getenv("TENON_SIMULATE_HOSTS");
    if (!simulated || !*simulated || strlen(simulated) >= (size_t)world)
        return 0;
    snprintf(error, error_bytes, "TENON_SIMULATE_HOSTS is \"%s\" for %d ranks; give each a letter, as in %s", simulated,
             (int)world,
             world == 2   ? "ab"
             : world == 3 ? "aab"
                          : "aabb");
    return -1;
}

/* The kernel's boot names the host; the namespaces say which of its processes see each other. */
uint64_t tn_store_host_id(int32_t rank)
{
    const char *simulated = getenv("TENON_SIMULATE_HOSTS");
    static const char *const spaces[] = { "/proc/self/ns/net", "/proc/self/ns/ipc", "/proc/self/ns/pid" };
    struct {
        char boot[64];
        uint64_t space[3][2];
        uint64_t simulated;
    } host;
    memset(&host, 0, sizeof host);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || !fgets(host.boot, sizeof host.boot, file))
        gethostname(host.boot, sizeof host.boot - 1);
    if (file)
        fclose(file);
    for (int i = 0; i < 3; i++) {
        struct stat space;
        if (stat(spaces[i], &space) == 0) {
            host.space[i][0] = (uint64_t)space.st_dev;
            host.space[i][1] = (uint64_t)space.st_ino;
        }
    }
    if (simulated && rank < (int32_t)strlen(simulated))
        host.simulated = (unsigned char)simulated[rank];
    return XXH3_64bits(&host, sizeof host);
}
