/* Launch, the rank's side: reads from the environment which rank this is and joins the job's store; see launch.h. */
#include "ranks/launch.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "ranks/launch_other.h"
#include "ranks/store_join.h"

#include <tenon/host.h>

enum { WORLD_MAX = 1 << 20, ADDRESS_MAX = 255 };

/* Where the store is, and who may use it. */
struct place {
    const char *addr;
    uint16_t port;
    char token[TN_STORE_TOKEN_MAX + 1];
    int launcher_serves;
    int by_pmix;    /* rank 0 serves where it can, and says through PMIx where */
    char said[384]; /* "addr port token" */
};

static volatile sig_atomic_t interrupts;

/* Unset: *value keeps what it has. -1: not a number in [min, max], text in error. */
static int read_number(const char *name, int32_t min, int32_t max, int32_t *value, char *error, size_t error_bytes)
{
    const char *text = getenv(name);
    if (!text)
        return 0;
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || number < min || number > max) {
        snprintf(error, error_bytes, "%s is \"%s\"; use a number from %d to %d", name, text, (int)min, (int)max);
        return -1;
    }
    *value = (int32_t)number;
    return 1;
}

/* LOCAL_RANK and LOCAL_WORLD_SIZE are found by exchange; here they are only held against the rest. */
static int check_local(int32_t world, char *error, size_t error_bytes)
{
    int32_t local_rank = 0, local_size = world;
    if (read_number("LOCAL_WORLD_SIZE", 1, world, &local_size, error, error_bytes) < 0)
        return -1;
    return read_number("LOCAL_RANK", 0, local_size - 1, &local_rank, error, error_bytes);
}

int tn_launch_joined(int32_t *rank, int32_t *world, char *error, size_t error_bytes)
{
    tn_launch_take_other();
    int has_rank = getenv("RANK") != NULL, has_world = getenv("WORLD_SIZE") != NULL;
    if (!has_rank && !has_world)
        return 0;
    if (!has_rank || !has_world) {
        snprintf(error, error_bytes, "%s is \"%s\" but %s is not set; set both to join a job, neither to start one",
                 has_rank ? "RANK" : "WORLD_SIZE", getenv(has_rank ? "RANK" : "WORLD_SIZE"),
                 has_rank ? "WORLD_SIZE" : "RANK");
        return -1;
    }
    if (read_number("WORLD_SIZE", 1, WORLD_MAX, world, error, error_bytes) < 0)
        return -1;
    if (read_number("RANK", 0, WORLD_MAX, rank, error, error_bytes) < 0)
        return -1;
    if (*rank >= *world) {
        snprintf(error, error_bytes, "RANK is %d but WORLD_SIZE is %d; use a RANK from 0 to %d", (int)*rank,
                 (int)*world, (int)*world - 1);
        return -1;
    }
    return check_local(*world, error, error_bytes) < 0 ? -1 : 1;
}

/* torchrun's own store may sit on MASTER_PORT; the next one is then ours. */
static int read_port(const struct place *place, int32_t *port, char *error, size_t error_bytes)
{
    int given = read_number("TENON_PORT", 1, 65535, port, error, error_bytes);
    if (given || (given = read_number("MASTER_PORT", 1, 65535, port, error, error_bytes)) < 0)
        return given;
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (given && !place->launcher_serves && agent && strcmp(agent, "True") == 0)
        *port = *port < 65535 ? *port + 1 : *port - 1;
    return given;
}

static int read_token(struct place *place, char *error, size_t error_bytes)
{
    const char *token = getenv("TENON_TOKEN");
    if (!token || !*token) {
        /* No secret: it keeps jobs apart that meet by accident. */
        snprintf(place->token, sizeof place->token, "%.64s:%u:%u", place->addr, (unsigned)place->port,
                 (unsigned)getuid());
        return 0;
    }
    if (strlen(token) > TN_STORE_TOKEN_MAX) {
        snprintf(error, error_bytes, "TENON_TOKEN has %zu bytes; use 1 to %d", strlen(token), TN_STORE_TOKEN_MAX);
        return -1;
    }
    snprintf(place->token, sizeof place->token, "%s", token);
    return 0;
}

/* What can be no name and no address would else be looked up until the time is over: a name may yet come to be. */
static int check_address(const char *addr, char *error, size_t error_bytes)
{
    static const char may_have[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:_-%";
    if (!addr || (strlen(addr) <= ADDRESS_MAX && !addr[strspn(addr, may_have)]))
        return 0;
    snprintf(error, error_bytes, "MASTER_ADDR is \"%.80s\"; use the name of rank 0's host, or an address of it", addr);
    return -1;
}

static int read_place(int32_t world, struct place *place, char *error, size_t error_bytes)
{
    int32_t port = 0;
    place->launcher_serves = getenv("TENON_LAUNCHER") != NULL;
    place->addr = getenv("MASTER_ADDR");
    if (check_address(place->addr, error, error_bytes) < 0)
        return -1;
    int has_port = read_port(place, &port, error, error_bytes);
    if (has_port < 0)
        return -1;
    int has_addr = place->addr && *place->addr;
    place->by_pmix = !has_port && tn_pmix_active();
    if (place->by_pmix)
        return 0;
    if (world > 1 && (!has_addr || !has_port)) {
        snprintf(error, error_bytes, "WORLD_SIZE is %d but %s is not set; set it to %s", (int)world,
                 has_addr ? "MASTER_PORT" : "MASTER_ADDR", has_addr ? "a free port there" : "the host of rank 0");
        return -1;
    }
    if (!has_addr)
        place->addr = "127.0.0.1";
    place->port = (uint16_t)port;
    return read_token(place, error, error_bytes);
}

static void on_interrupt(int signal_number)
{
    if (interrupts) {
        signal(signal_number, SIG_DFL);
        raise(signal_number); /* blocked here, so taken on return */
    }
    interrupts = 1;
}

int tn_rank_interrupted(void)
{
    return interrupts;
}

/* A signal that the parent wants ignored (nohup, a shell's background job) stays ignored. */
void tn_rank_watch_interrupts(void)
{
    static const int signals[] = { SIGINT, SIGTERM };
    for (int i = 0; i < 2; i++) {
        struct sigaction action;
        if (sigaction(signals[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            continue;
        action = (struct sigaction){ .sa_handler = on_interrupt, .sa_flags = SA_RESTART };
        sigemptyset(&action.sa_mask);
        sigaction(signals[i], &action, NULL);
    }
}

static tn_status serve(struct tn_rank *rank, struct place *place, char *error, size_t error_bytes)
{
    char why[256];
    tn_status status =
        tn_store_serve(&rank->server, place->addr, &place->port, place->token, rank->world, why, sizeof why);
    if (status != TN_OK)
        snprintf(error, error_bytes,
                 "%s; MASTER_ADDR must be an address of rank 0's host and MASTER_PORT a free port there", why);
    return status;
}

/* An address of this host that others can reach: the first that is no loopback. */
static void own_address(char *text, size_t text_bytes)
{
    struct ifaddrs *all = NULL;
    snprintf(text, text_bytes, "127.0.0.1");
    if (getifaddrs(&all))
        return;
    for (const struct ifaddrs *at = all; at; at = at->ifa_next)
        if (at->ifa_addr && at->ifa_addr->sa_family == AF_INET && (at->ifa_flags & IFF_UP) &&
            !(at->ifa_flags & IFF_LOOPBACK) &&
            getnameinfo(at->ifa_addr, sizeof(struct sockaddr_in), text, (socklen_t)text_bytes, NULL, 0,
                        NI_NUMERICHOST) == 0)
            break;
    freeifaddrs(all);
}

static tn_status serve_by_pmix(struct tn_rank *rank, struct place *place, char *error, size_t error_bytes)
{
    char text[sizeof place->said];
    if (!place->addr || !*place->addr) {
        own_address(place->said, sizeof place->said);
        place->addr = place->said;
    }
    const char *token = getenv("TENON_TOKEN");
    if (token && *token) {
        if (read_token(place, error, error_bytes))
            return TN_INVALID;
    } else if (tn_launch_token(place->token)) {
        snprintf(error, error_bytes, "the system has no random numbers for the job's token");
        return TN_ERROR;
    }
    tn_status status = serve(rank, place, error, error_bytes);
    if (status != TN_OK)
        return status;
    snprintf(text, sizeof text, "%s %u %s", place->addr, (unsigned)place->port, place->token);
    return tn_pmix_say(text, error, error_bytes);
}

static tn_status hear_by_pmix(struct place *place, uint64_t timeout_ns, char *error, size_t error_bytes)
{
    char *rest = NULL;
    tn_status status = tn_pmix_hear(place->said, sizeof place->said, timeout_ns, error, error_bytes);
    if (status != TN_OK)
        return status;
    place->addr = strtok_r(place->said, " ", &rest);
    const char *port = strtok_r(NULL, " ", &rest), *token = strtok_r(NULL, " ", &rest);
    if (!place->addr || !port || !token) {
        snprintf(error, error_bytes,
                 "PMIx: rank 0 said something else than where the store is; is it another version of tenon?");
        return TN_ERROR;
    }
    place->port = (uint16_t)strtoul(port, NULL, 10);
    snprintf(place->token, sizeof place->token, "%s", token);
    return TN_OK;
}

/* `timeout_ns` after `began_ns`. */
static tn_status meet(struct tn_rank *rank, const struct place *place, uint64_t began_ns, uint64_t timeout_ns,
                      char *error, size_t error_bytes)
{
    uint64_t spent_ns = tn_now_ns() - began_ns;
    tn_status status =
        tn_store_bootstrap(rank->store, timeout_ns > spent_ns ? timeout_ns - spent_ns : 0, &rank->bootstrap);
    if (status == TN_PEER) {
        snprintf(error, error_bytes, "%s", tn_store_death(rank->store, NULL));
    } else if (status != TN_OK) {
        char missing[512];
        tn_store_missing(rank->store, missing, sizeof missing);
        snprintf(error, error_bytes, "after %.1f s not all of the %d ranks have joined at %s:%u; missing: %s",
                 (double)timeout_ns / 1e9, (int)rank->world, place->addr, (unsigned)place->port,
                 *missing ? missing : "not known");
    }
    return status;
}

static tn_status join(struct tn_rank *rank, struct place *place, uint64_t timeout_ns, char *error, size_t error_bytes)
{
    uint64_t began_ns = tn_now_ns();
    int serves = rank->rank == 0 && !place->launcher_serves;
    tn_status status = TN_OK;
    if (place->by_pmix)
        status = serves ? serve_by_pmix(rank, place, error, error_bytes)
                        : hear_by_pmix(place, timeout_ns, error, error_bytes);
    else if (serves)
        status = serve(rank, place, error, error_bytes);
    if (status != TN_OK)
        return status;
    status = tn_store_connect(&rank->store, place->addr, place->port, place->token, rank->rank, rank->world, timeout_ns,
                              error, error_bytes);
    if (status != TN_OK)
        return status;
    if (!place->launcher_serves)
        tn_store_served_by(rank->store, 0);
    return meet(rank, place, began_ns, timeout_ns, error, error_bytes);
}

tn_status tn_rank_init(struct tn_rank *rank, uint64_t timeout_ns, char *error, size_t error_bytes)
{
    struct place place = { 0 };
    *rank = (struct tn_rank){ 0 };
    int joined = tn_launch_joined(&rank->rank, &rank->world, error, error_bytes);
    if (joined == 0)
        snprintf(error, error_bytes, "this process is no rank: RANK and WORLD_SIZE are not set");
    if (joined <= 0 || read_place(rank->world, &place, error, error_bytes) < 0 ||
        tn_store_check_hosts(rank->world, error, error_bytes) < 0)
        return TN_INVALID;
    tn_status status = join(rank, &place, timeout_ns, error, error_bytes);
    if (status == TN_OK) {
        tn_rank_watch_interrupts();
        return TN_OK;
    }
    if (rank->server && status == TN_TIMEOUT)
        tn_store_bury_missing(rank->server, "has not joined in time");
    tn_store_drop(rank->store);
    tn_store_stop(rank->server);
    rank->store = NULL;
    rank->server = NULL;
    return status;
}

/* The others still need the store. A signal that comes while waiting ends the wait. */
static void await_others(const struct tn_rank *rank)
{
    int before = interrupts, empty = 0;
    for (int slice = 0; !empty && slice < 6000 && interrupts == before; slice++) {
        empty = tn_store_wait_empty(rank->server, 100000000u);
        if (slice == 100 && !empty)
            tn_log(TN_LOG_INFO, "done; waiting for the other ranks, which need the store that this one serves");
    }
}

void tn_rank_finish(struct tn_rank *rank)
{
    tn_store_goodbye(rank->store);
    if (rank->server)
        await_others(rank);
    tn_store_stop(rank->server);
    tn_pmix_finish();
    *rank = (struct tn_rank){ 0 };
}
