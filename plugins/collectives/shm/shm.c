/* shm: collectives among the ranks of one host, through memory that all of them map.
 *
 * This file is the plugin's table and an instance's life: create reads the options, init finds
 * the other ranks of the host and maps the control file, destroy leaves nothing. Where the world
 * spans hosts, those of other hosts take no part and no group may have one of them. The parts are listed in
 * shm.h, the protocol is explained in wait.c. */
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm.h"

enum {
    MAX_CPUS = 1024,
    DEFAULT_CACHE = 32 << 20,
    OWN_CORE_SPIN_US = 300,
    SHARED_CORE_SPIN_US = 50,
    PAUSES = 256 /* several microseconds */
};

uint64_t shm_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int shm_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    return (int)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void shm_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

tn_status shm_poll(struct shm *s, uint64_t now)
{
    if (now < s->next_poll_ns)
        return TN_OK;
    s->next_poll_ns = now + POLL_NS;
    return s->bootstrap.poll(s->bootstrap.ctx);
}

/* The largest cache that a core of this machine reaches. sysconf adds up those of all sockets and dies, which no core
 * reaches; so it is asked last. */
static uint64_t find_cache(void)
{
    uint64_t most = 0;
    for (int index = 0; index < 8; index++) {
        char path[80];
        unsigned long kib = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        FILE *file = fopen(path, "re");
        if (!file)
            break;
        if (fscanf(file, "%luK", &kib) == 1 && (uint64_t)kib << 10 > most)
            most = (uint64_t)kib << 10;
        fclose(file);
    }
    long bytes = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return most ? most : bytes > 0 ? (uint64_t)bytes : DEFAULT_CACHE;
}

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    if (next || next_self)
        return host->fail(host, TN_INVALID, "shm is a backend and takes no backend below it; use [comm] backend = shm");
    struct shm *s = host->alloc(host, sizeof *s);
    if (!s)
        return host->fail(host, TN_NO_MEMORY, "no memory for a shm instance");
    memset(s, 0, sizeof *s);
    s->host = host;
    s->control_fd = -1;
    s->spin_option_us = host->get_int(host, "spin_us");
    s->any_host = host->get_int(host, "any_host") != 0;
    s->kernels = shm_kernels_pick();
    s->cache_bytes = find_cache();
    *self = s;
    return TN_OK;
}

struct shm_pool {
    struct shm_pool *next;
    struct tn_request requests[RING];
};

static tn_status grow_requests(struct shm *s)
{
    struct shm_pool *pool = s->host->alloc(s->host, sizeof *pool);
    if (!pool)
        return TN_NO_MEMORY;
    pool->next = s->pools;
    s->pools = pool;
    for (int i = 0; i < RING; i++) {
        pool->requests[i].next = s->free_requests;
        s->free_requests = &pool->requests[i];
    }
    return TN_OK;
}

/* A pool grows only when more requests are under way than ever before. */
struct tn_request *shm_request_new(struct tn_comm *c)
{
    struct shm *s = c->shm;
    if (!s->free_requests && grow_requests(s) != TN_OK)
        return NULL;
    struct tn_request *r = s->free_requests;
    s->free_requests = r->next;
    memset(r, 0, sizeof *r);
    r->comm = c;
    r->status = TN_PENDING;
    return r;
}

static void destroy(void *self)
{
    struct shm *s = self;
    if (!s)
        return;
    for (uint32_t i = 0; i < SEGMENTS; i++)
        if (s->segments[i].base)
            shm_mem_free(s, s->segments[i].base + s->segments[i].mine);
    shm_disconnect(s);
    s->host->release(s->host, s->world);
    s->host->release(s->host, s->seats);
    s->host->release(s->host, s->pids);
    while (s->pools) {
        struct shm_pool *next = s->pools->next;
        s->host->release(s->host, s->pools);
        s->pools = next;
    }
    s->host->release(s->host, s);
}

static tn_status caps(void *self, struct tn_collective_caps *caps)
{
    const struct shm *s = self;
    struct tn_collective_caps have = {
        .in_place_peers = 1, .needs_progress = 1, .host_memory = 1, .one_host = !s->any_host
    };
    for (uint32_t d = 1; d < 64; d++)
        if (shm_can_reduce(d))
            have.dtypes |= UINT64_C(1) << d;
    have.struct_size = caps->struct_size < sizeof have ? caps->struct_size : (uint32_t)sizeof have;
    memcpy(caps, &have, have.struct_size);
    return TN_OK;
}

/* How many processors all ranks together may use: binding each rank to its own core is as good
 * as not binding any. */
static int32_t count_cores(const struct shm *s)
{
    int32_t cores = 0;
    for (int word = 0; word < MAX_CPUS / 64; word++) {
        uint64_t any = 0;
        for (int32_t r = 0; r < s->n; r++)
            any |= s->control->cells[r].cpus[word];
        cores += __builtin_popcountll(any);
    }
    return cores > 0 ? cores : 1;
}

static void tell_cpus(struct shm *s)
{
    union {
        uint64_t words[MAX_CPUS / 64];
        unsigned long mask[MAX_CPUS / 8 / sizeof(unsigned long)];
    } cpus;
    memset(&cpus, 0, sizeof cpus);
    if (syscall(SYS_sched_getaffinity, 0, sizeof cpus, &cpus) < 0)
        cpus.words[0] = 1;
    memcpy(s->control->cells[s->rank].cpus, cpus.words, sizeof cpus.words);
}

static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct shm *s = self;
    if (s->control)
        return s->host->fail(s->host, TN_INVALID, "shm: init called twice");
    uint64_t now = shm_now();
    uint64_t deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    memcpy(&s->bootstrap, bootstrap,
           bootstrap->struct_size < sizeof *bootstrap ? bootstrap->struct_size : sizeof *bootstrap);
    if (s->any_host) {
        s->bootstrap.local_rank = s->bootstrap.rank;
        s->bootstrap.local_size = s->bootstrap.size;
        s->bootstrap.host_id = 0;
    }
    s->rank = s->bootstrap.local_rank;
    s->n = s->bootstrap.local_size;
    s->timeout_ns = timeout_ns;
    tn_status st = grow_requests(s);
    if (st != TN_OK)
        return s->host->fail(s->host, st, "shm: no memory for requests");
    if ((st = shm_connect(s, deadline)) != TN_OK)
        return st;
    tell_cpus(s);
    if ((st = shm_gather(s, deadline, "init")) != TN_OK)
        return st;
    s->cores = count_cores(s);
    s->workers = s->n < s->cores ? s->n : s->cores;
    s->pauses = s->n <= s->cores ? PAUSES : 0;
    int64_t automatic = s->n <= s->cores ? OWN_CORE_SPIN_US : SHARED_CORE_SPIN_US;
    s->spin_ns = (uint64_t)(s->spin_option_us < 0 ? automatic : s->spin_option_us) * 1000u;
    s->host->log(s->host, TN_LOG_DEBUG, "%d ranks on %d cores, %s kernels", (int)s->n, (int)s->cores, s->kernels->name);
    return TN_OK;
}

TN_CALL_FUNCTIONS(shm_call)

static const struct tn_collective table = {
    .struct_size = sizeof(struct tn_collective),
    .create = create,
    .destroy = destroy,
    .caps = caps,
    .init = init,
    .mem_alloc = shm_mem_alloc,
    .mem_free = shm_mem_free,
    .comm_create = shm_comm_create,
    .comm_destroy = shm_comm_destroy,
    .comm_abort = shm_comm_abort,
    TN_CALL_ENTRIES(shm_call),
    .test = shm_test,
    .wait = shm_wait,
    .progress = shm_progress,
    .last_error = shm_last_error,
};

static const struct tn_option options[] = {
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_INT,
      .flags = TN_OPT_AUTO,
      .key = "spin_us",
      .fallback = "auto",
      .min = 0,
      .max = 1000000,
      .help = "Microseconds that a waiting rank stays awake, giving way to others, before it sleeps; auto: 300 while "
              "the ranks have a core each, else 50." },
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_BOOL,
      .key = "any_host",
      .fallback = "false",
      .help = "Takes ranks of other hosts for ranks of this one. Only for tests in which hosts are simulated." },
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    static const struct tn_plugin plugin = {
        TN_PLUGIN_BUILT,
        .min_host_minor = TN_ABI_MINOR,
        .kind = TN_PLUGIN_COLLECTIVE,
        .id = "shm",
        .version = "0.1.0",
        .summary = "Collectives among the ranks of one host through shared memory.",
        .build_info = __VERSION__,
        .table = &table,
        .options = options,
        .option_count = sizeof options / sizeof *options,
    };
    (void)host;
    return &plugin;
}
