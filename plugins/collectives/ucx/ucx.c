/* ucx: collectives over UCX, within a host by shared memory and across hosts by what network there is.
 *
 * This file is the plugin's table and options, the life of an instance, and memory. The parts are listed in
 * backend.h; how a message becomes an operation is told in wire.c and ops.c. */
#include "backend.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_NS = 50 * 1000 * 1000, ALIGNMENT = 4096 };

uint64_t ucx_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

tn_status ucx_poll(struct backend *b, uint64_t now)
{
    if (now < b->next_poll_ns)
        return TN_OK;
    b->next_poll_ns = now + POLL_NS;
    for (struct tn_comm *c = b->comms; c; c = c->next)
        ucx_comm_look(c);
    return b->bootstrap.poll(b->bootstrap.ctx);
}

/* ---- an instance ---- */

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    if (next || next_self)
        return host->fail(host, TN_INVALID, "ucx is a backend and takes no backend below it; use [comm] backend = ucx");
    struct backend *b = host->alloc(host, sizeof *b);
    if (!b)
        return host->fail(host, TN_NO_MEMORY, "no memory for a ucx instance");
    memset(b, 0, sizeof *b);
    b->host = host;
    b->kernels = ucx_kernels_pick();
    b->signal_fd = b->event_fd = -1;
    b->inbox_last = &b->inbox;
    b->eager_bytes = (uint64_t)host->get_int(host, "eager");
    b->small_bytes = (uint64_t)host->get_int(host, "small");
    b->segment_bytes = (uint64_t)host->get_int(host, "segment");
    b->ring_bytes = (uint64_t)host->get_int(host, "ring");
    b->direct_ranks = (int32_t)host->get_int(host, "direct");
    b->spin_option_us = host->get_int(host, "spin_us");
    b->progress_mode = (int)host->get_int(host, "progress");
    *self = b;
    return TN_OK;
}

static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct backend *b = self;
    uint64_t now = ucx_now();
    memcpy(&b->bootstrap, bootstrap,
           bootstrap->struct_size < sizeof *bootstrap ? bootstrap->struct_size : sizeof *bootstrap);
    b->rank = bootstrap->rank;
    b->n = bootstrap->size;
    return ucx_connect(b, timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns);
}

static void destroy(void *self)
{
    struct backend *b = self;
    if (!b)
        return;
    const struct tn_host *host = b->host;
    ucx_disconnect(b);
    while (b->comms) {
        struct tn_comm *c = b->comms;
        b->comms = c->next;
        ucx_comm_free(c);
    }
    while (b->made) {
        struct tn_request *made = b->made->made;
        host->release(host, b->made);
        b->made = made;
    }
    while (b->made_groups) {
        struct ucx_made *next = b->made_groups->next;
        host->release(host, b->made_groups);
        b->made_groups = next;
    }
    while (b->joining) {
        struct ucx_joining *next = b->joining->next;
        host->release(host, b->joining);
        b->joining = next;
    }
    host->release(host, b);
}

static tn_status caps(void *self, struct tn_collective_caps *caps)
{
    struct tn_collective_caps have = { .needs_progress = 1, .host_memory = 1 };
    (void)self;
    for (uint32_t d = 1; d < 64; d++)
        if (ucx_can_reduce(d))
            have.dtypes |= UINT64_C(1) << d;
    have.struct_size = caps->struct_size < sizeof have ? caps->struct_size : (uint32_t)sizeof have;
    memcpy(caps, &have, have.struct_size);
    return TN_OK;
}

/* ---- memory: known to UCX once and for all, so that a network card need not be told of it for each message ---- */

static tn_status mem_alloc(void *self, uint64_t bytes, void **memory)
{
    struct backend *b = self;
    if (posix_memalign(memory, ALIGNMENT, bytes ? bytes : 1) != 0)
        return b->host->fail(b->host, TN_NO_MEMORY, "ucx: no memory for %" PRIu64 " bytes", bytes);
    memset(*memory, 0, bytes);
    if (b->n_memories == MEMORIES || !bytes)
        return TN_OK;
    ucp_mem_map_params_t params = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                    .address = *memory,
                                    .length = bytes };
    struct ucx_memory m = { .base = *memory, .bytes = bytes };
    if (ucp_mem_map(b->context, &params, &m.handle) == UCS_OK)
        b->memories[b->n_memories++] = m;
    return TN_OK;
}

static void mem_free(void *self, void *memory)
{
    struct backend *b = self;
    for (uint32_t i = 0; i < b->n_memories; i++)
        if (b->memories[i].base == memory) {
            ucp_mem_unmap(b->context, b->memories[i].handle);
            b->memories[i] = b->memories[--b->n_memories];
            break;
        }
    free(memory);
}

ucp_mem_h ucx_memory_of(const struct backend *b, const void *p, uint64_t bytes)
{
    const char *at = p;
    for (uint32_t i = 0; i < b->n_memories; i++) {
        const struct ucx_memory *m = &b->memories[i];
        if (at >= m->base && at + bytes <= m->base + m->bytes)
            return m->handle;
    }
    return NULL;
}

/* ---- the table ---- */

TN_CALL_FUNCTIONS(ucx_call)

static const struct tn_collective table = {
    .struct_size = sizeof(struct tn_collective),
    .create = create,
    .destroy = destroy,
    .caps = caps,
    .init = init,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .comm_create = ucx_comm_create,
    .comm_destroy = ucx_comm_destroy,
    .comm_abort = ucx_comm_abort,
    TN_CALL_ENTRIES(ucx_call),
    .test = ucx_test,
    .wait = ucx_wait,
    .progress = ucx_progress,
    .last_error = ucx_last_error,
};

static const char *const progress_modes[] = { "auto", "poll", "sleep", NULL };
static const char *const log_levels[] = { "fatal", "error", "warn", "info", "debug", NULL };

#define OPTION(name, kind, fallback_, ...)                                                                  \
    {                                                                                                       \
        .struct_size = sizeof(struct tn_option), .type = TN_OPT_##kind, .key = name, .fallback = fallback_, \
        __VA_ARGS__                                                                                         \
    }

static const struct tn_option options[] = {
    OPTION("transports", STRING, "auto",
           .help = "What UCX may use, as in UCX_TLS: tcp; ^cma for all but that. auto: "
                   "UCX_TLS if set, else all that work between these ranks."),
    OPTION("devices", STRING, "auto",
           .help = "Network interfaces, as in UCX_NET_DEVICES: eth0; mlx5_0:1. auto: "
                   "UCX_NET_DEVICES if set, else all."),
    OPTION("eager", SIZE, "8K", .min = 0, .max = 1 << 20,
           .help = "Messages up to this size are sent at once as active "
                   "messages; larger ones are fetched by who receives them, straight into place."),
    OPTION("small", SIZE, "8K", .min = 0, .max = 1 << 20,
           .help = "An all_reduce up to this size sends everything to all "
                   "and every rank adds; a larger one is cut in parts that one rank each adds."),
    OPTION("segment", SIZE, "512K", .min = 4096, .max = 1 << 30,
           .help = "Reductions move their parts in pieces of this "
                   "size; scratch memory is two for each rank of the group."),
    OPTION("direct", INT, "16", .min = 1, .max = 65536,
           .help = "In larger groups than this, small operations go by "
                   "recursive doubling instead of from each rank to all."),
    OPTION("ring", SIZE, "64K", .min = 0, .max = 1 << 30,
           .help = "From this size for each rank, an all_gather of a group "
                   "that spans hosts goes round a ring."),
    OPTION("progress", ENUM, "auto", .choices = progress_modes,
           .help = "How a rank waits: poll keeps its core busy, "
                   "sleep gives it up at once, auto polls for spin_us and then sleeps."),
    OPTION("spin_us", INT, "auto", .flags = TN_OPT_AUTO, .min = 0, .max = 1000000,
           .help = "Microseconds of polling "
                   "before a waiting rank sleeps; auto: 300 where each rank has a core, else 50."),
    OPTION("keepalive", DURATION, "2s", .min = 1e8, .max = 3.6e12,
           .help = "A silent connection is asked for a sign of "
                   "life so often, and is given up after a few answers are missed."),
    OPTION("log", ENUM, "fatal", .choices = log_levels, .help = "What UCX itself writes to stdout."),
};

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    static const struct tn_plugin plugin = {
        TN_PLUGIN_BUILT,
        .min_host_minor = TN_ABI_MINOR,
        .kind = TN_PLUGIN_COLLECTIVE,
        .id = "ucx",
        .version = "0.1.0",
        .summary = "Collectives over UCX: shared memory within a host, the network across hosts.",
        .build_info = __VERSION__ ", UCX " TEXT(UCP_API_MAJOR) "." TEXT(UCP_API_MINOR),
        .table = &table,
        .options = options,
        .option_count = sizeof options / sizeof *options,
    };
    (void)host;
    return &plugin;
}
