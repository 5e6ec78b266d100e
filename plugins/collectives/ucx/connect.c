/* Connections: what this rank and the others say of themselves, the UCX context that fits, an endpoint for each peer.
 *
 * Ranks first put cards in the bootstrap: host, process, processors. They tell which transports can work before UCX
 * is asked to choose: no shared memory where ranks of one machine are in different network namespaces, and no reading
 * of a neighbour's memory (cma) where the system forbids it. Then each rank puts the address of its worker, and
 * endpoints are made when a group first needs them. */
#include "backend.h"

#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <ucs/config/global_opts.h>
#include <unistd.h>

enum {
    NAP_NS = 200 * 1000,
    ADDRESS_BYTES = 16384,
    FLUSH_NS = 1000 * 1000 * 1000,
    BROKEN_FLUSH_NS = 100 * 1000 * 1000,
    OWN_CORE_SPIN_US = 300,
    SHARED_CORE_SPIN_US = 50,
    WORD_BITS = 64
};

/* ---- through the bootstrap ---- */

static tn_status put_value(struct backend *b, const char *name, const void *data, uint32_t bytes)
{
    const struct tn_bootstrap *boot = &b->bootstrap;
    char key[64];
    snprintf(key, sizeof key, "ucx/%s/%d", name, (int)b->rank);
    tn_status status;
    while ((status = boot->put(boot->ctx, key, data, bytes)) == TN_PENDING)
        ;
    return status == TN_OK ? TN_OK : b->host->fail(b->host, status, "ucx: the bootstrap took no %s", name);
}

static tn_status get_value(struct backend *b, const char *name, int32_t rank, void *data, uint32_t *bytes,
                           uint64_t deadline_ns)
{
    const struct tn_bootstrap *boot = &b->bootstrap;
    uint32_t room = *bytes;
    char key[64];
    snprintf(key, sizeof key, "ucx/%s/%d", name, (int)rank);
    for (;;) {
        *bytes = room;
        tn_status status = boot->get(boot->ctx, key, data, bytes);
        if (status == TN_OK)
            return TN_OK;
        if (status != TN_PENDING)
            return b->host->fail(b->host, status, "ucx: the bootstrap gave no %s of rank %d", name, (int)rank);
        uint64_t now = ucx_now();
        if (boot->poll(boot->ctx) == TN_PEER)
            return b->host->fail(b->host, TN_PEER, "ucx: a rank died before rank %d gave its %s", (int)rank, name);
        if (now >= deadline_ns)
            return b->host->fail(b->host, TN_TIMEOUT, "ucx: rank %d gave no %s in time", (int)rank, name);
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    }
}

/* ---- cards ---- */

static uint64_t hash_of_machine(void)
{
    char id[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || !fgets(id, sizeof id, file))
        gethostname(id, sizeof id - 1);
    if (file)
        fclose(file);
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *p = id; *p && *p != '\n'; p++)
        h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    return h;
}

static void fill_card(struct backend *b, struct ucx_card *card)
{
    cpu_set_t set;
    *card = (struct ucx_card){ .host = b->bootstrap.host_id,
                               .machine = hash_of_machine(),
                               .pid = (int32_t)getpid(),
                               .probe = (uint64_t)(uintptr_t)&b->probe_word };
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int cpu = 0; cpu < (int)(sizeof card->cpus / 8 * WORD_BITS) && cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &set))
                card->cpus[cpu / WORD_BITS] |= UINT64_C(1) << cpu % WORD_BITS;
}

/* Whether a neighbour's memory can be read: what the transport cma does. 0, or the error. */
static int try_reading(const struct ucx_card *card)
{
    uint64_t word = 0;
    struct iovec to = { &word, sizeof word }, from = { (void *)(uintptr_t)card->probe, sizeof word };
    return process_vm_readv(card->pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof word ? 0 : errno;
}

struct surroundings {
    int is_machine_split; /* ranks of one machine cannot share memory */
    int near, cores;
    int32_t unreadable; /* a neighbour; -1: none */
    int unreadable_errno;
};

static void judge_cards(struct backend *b, const struct ucx_card *cards, struct surroundings *s)
{
    uint64_t cpus[sizeof cards->cpus / 8] = { 0 };
    *s = (struct surroundings){ .unreadable = -1 };
    for (int32_t i = 0; i < b->n; i++) {
        b->peers[i] = (struct ucx_peer){
            .backend = b, .host = cards[i].host, .pid = cards[i].pid, .is_near = cards[i].host == cards[b->rank].host
        };
        for (int32_t k = 0; k < i; k++)
            s->is_machine_split |= cards[i].machine == cards[k].machine && cards[i].host != cards[k].host;
        if (!b->peers[i].is_near)
            continue;
        s->near++;
        for (size_t w = 0; w < sizeof cpus / 8; w++)
            cpus[w] |= cards[i].cpus[w];
    }
    for (size_t w = 0; w < sizeof cpus / 8; w++)
        s->cores += __builtin_popcountll(cpus[w]);
    for (int32_t i = 1; i < b->n; i++) {
        int32_t next = (b->rank + i) % b->n;
        if (!b->peers[next].is_near)
            continue;
        s->unreadable_errno = try_reading(&cards[next]);
        s->unreadable = s->unreadable_errno ? next : -1;
        break;
    }
}

/* ---- the context ---- */

/* Interfaces that are up, but for the loopback, which leads to another place in each namespace. */
static void list_devices(char *to, size_t bytes)
{
    struct ifaddrs *all = NULL;
    size_t at = 0;
    to[0] = 0;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        int is_ip = i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
        if (!is_ip || !(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK || strstr(to, i->ifa_name))
            continue;
        int more = snprintf(to + at, bytes - at, "%s%s", at ? "," : "", i->ifa_name);
        if (more < 0 || (size_t)more >= bytes - at)
            break;
        at += (size_t)more;
    }
    to[at] = 0;
    freeifaddrs(all);
}

static tn_status set(struct backend *b, ucp_config_t *config, const char *option, const char *name, const char *value)
{
    ucs_status_t result = ucp_config_modify(config, name, value);
    return result == UCS_OK ? TN_OK
                            : b->host->fail(b->host, TN_INVALID, "ucx: [ucx] %s: UCX does not take \"%s\" as %s: %s",
                                            option, value, name, ucs_status_string(result));
}

static tn_status choose_transports(struct backend *b, ucp_config_t *config, const struct surroundings *s)
{
    const char *given = b->host->get_string(b->host, "transports");
    char text[512];
    if (strcmp(given, "auto") != 0) {
        int is_list = given[0] != '^' && !strstr(given, "all");
        b->has_no_shared_memory = is_list && !strstr(given, "sm") && !strstr(given, "shm") && !strstr(given, "posix") &&
                                  !strstr(given, "sysv");
        snprintf(text, sizeof text, "%s%s", given, is_list && !strstr(given, "self") ? ",self" : "");
        return set(b, config, "transports", "TLS", text);
    }
    if (getenv("UCX_TLS"))
        return TN_OK;
    if (s->is_machine_split) {
        b->has_no_shared_memory = 1;
        b->host->log(b->host, TN_LOG_DEBUG, "ranks of this machine are in different namespaces: no shared memory");
        return set(b, config, "transports", "TLS", "^shm");
    }
    if (s->unreadable < 0)
        return TN_OK;
    b->host->log(
        b->host, TN_LOG_WARN,
        "the memory of rank %d (process %d) cannot be read: %s. Large messages are copied through shared memory "
        "instead, which is slower. Ranks of one user may read each other with kernel.yama.ptrace_scope = 0, "
        "or with CAP_SYS_PTRACE in a container",
        (int)s->unreadable, (int)b->peers[s->unreadable].pid, strerror(s->unreadable_errno));
    return set(b, config, "transports", "TLS", "^cma");
}

static tn_status choose_devices(struct backend *b, ucp_config_t *config, const struct surroundings *s)
{
    const char *given = b->host->get_string(b->host, "devices");
    char text[512];
    if (strcmp(given, "auto") != 0)
        return set(b, config, "devices", "NET_DEVICES", given);
    if (!s->is_machine_split || getenv("UCX_NET_DEVICES"))
        return TN_OK;
    list_devices(text, sizeof text);
    return *text ? set(b, config, "devices", "NET_DEVICES", text) : TN_OK;
}

static tn_status choose_keepalive(struct backend *b, ucp_config_t *config)
{
    char text[32];
    snprintf(text, sizeof text, "%.3fms", (double)b->host->get_int(b->host, "keepalive") / 1e6);
    static const char *const names[] = { "KEEPALIVE_INTERVAL", "TCP_KEEPIDLE", "TCP_KEEPINTVL" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tn_status status = set(b, config, "keepalive", names[i], text);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

static tn_status make_context(struct backend *b, const struct surroundings *s)
{
    static const char *const levels[] = { "fatal", "error", "warn", "info", "debug" };
    ucp_config_t *config;
    (void)ucs_global_opts_set_value("LOG_LEVEL", levels[b->host->get_int(b->host, "log")]);
    ucs_status_t result = ucp_config_read(NULL, NULL, &config);
    if (result != UCS_OK)
        return b->host->fail(b->host, TN_INVALID, "ucx: UCX cannot read its environment (UCX_...): %s",
                             ucs_status_string(result));
    tn_status status = choose_transports(b, config, s);
    if (status == TN_OK)
        status = choose_devices(b, config, s);
    if (status == TN_OK)
        status = choose_keepalive(b, config);
    ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                            .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                            .estimated_num_eps = (size_t)b->n };
    if (status == TN_OK) {
        result = ucp_init(&params, config, &b->context);
        if (result != UCS_OK)
            status = b->host->fail(b->host, TN_UNSUPPORTED,
                                   "ucx: UCX finds no transport (%s) with [ucx] transports = %s, devices = %s; "
                                   "`ucx_info -d` lists those of this host",
                                   ucs_status_string(result), b->host->get_string(b->host, "transports"),
                                   b->host->get_string(b->host, "devices"));
    }
    ucp_config_release(config);
    return status;
}

static tn_status make_worker(struct backend *b)
{
    ucp_worker_params_t params = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                   .thread_mode = UCS_THREAD_MODE_SINGLE };
    ucp_am_handler_param_t handler = { .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                                                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                       .flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
                                       .cb = ucx_arrived,
                                       .arg = b };
    ucp_address_t *address = NULL;
    size_t bytes = 0;
    ucs_status_t result = ucp_worker_create(b->context, &params, &b->worker);
    if (result == UCS_OK)
        result = ucp_worker_set_am_recv_handler(b->worker, &handler);
    if (result == UCS_OK)
        result = ucp_worker_get_efd(b->worker, &b->event_fd);
    if (result == UCS_OK)
        result = ucp_worker_get_address(b->worker, &address, &bytes);
    if (result != UCS_OK)
        return b->host->fail(b->host, TN_ERROR, "ucx: UCX gives no worker: %s%s", ucs_status_string(result),
                             result == UCS_ERR_NO_MEMORY ? "; is /dev/shm full (df /dev/shm)? [ucx] transports = tcp "
                                                           "does without it"
                                                         : "");
    tn_status status = bytes <= ADDRESS_BYTES ? put_value(b, "address", address, (uint32_t)bytes)
                                              : b->host->fail(b->host, TN_ERROR, "ucx: an address of %zu bytes", bytes);
    ucp_worker_release_address(b->worker, address);
    return status;
}

static void choose_waiting(struct backend *b, const struct surroundings *s)
{
    enum { AUTO, POLL, SLEEP };
    b->is_crowded = s->near > s->cores;
    int64_t us = b->spin_option_us >= 0 ? b->spin_option_us : b->is_crowded ? SHARED_CORE_SPIN_US : OWN_CORE_SPIN_US;
    b->spin_ns = b->progress_mode == POLL ? UINT64_MAX : b->progress_mode == SLEEP ? 0 : (uint64_t)us * 1000;
}

tn_status ucx_connect(struct backend *b, uint64_t deadline_ns)
{
    const struct tn_host *host = b->host;
    uint64_t n = (uint64_t)b->n;
    struct ucx_card *cards = host->alloc(host, n * sizeof *cards);
    b->peers = host->alloc(host, n * sizeof *b->peers);
    if (!cards || !b->peers) {
        host->release(host, cards);
        return host->fail(host, TN_NO_MEMORY, "ucx: no memory for %d ranks", (int)b->n);
    }
    memset(b->peers, 0, n * sizeof *b->peers);
    b->signal_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* for try_reading and cma, where Yama restricts it */
    fill_card(b, &cards[b->rank]);
    tn_status status = put_value(b, "card", &cards[b->rank], sizeof *cards);
    for (int32_t i = 0; i < b->n && status == TN_OK; i++) {
        uint32_t bytes = sizeof *cards;
        if (i != b->rank)
            status = get_value(b, "card", i, &cards[i], &bytes, deadline_ns);
    }
    struct surroundings s;
    if (status == TN_OK) {
        judge_cards(b, cards, &s);
        choose_waiting(b, &s);
        status = make_context(b, &s);
    }
    if (status == TN_OK)
        status = make_worker(b);
    host->release(host, cards);
    return status;
}

/* ---- endpoints ---- */

static void peer_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx_peer *peer = arg;
    (void)ep;
    ucx_peer_failed(peer->backend, (int32_t)(peer - peer->backend->peers), status);
}

/* UCX's shared memory transports do not watch their peers, and would be left out where that is asked for; within a
 * host the bootstrap learns of a death at once. */
static int is_watched(const struct backend *b, int32_t rank)
{
    return !b->peers[rank].is_near || b->has_no_shared_memory;
}

tn_status ucx_reach(struct backend *b, int32_t rank, uint64_t deadline_ns)
{
    struct ucx_peer *peer = &b->peers[rank];
    uint32_t bytes = ADDRESS_BYTES;
    if (peer->ep)
        return TN_OK;
    char *address = b->host->alloc(b->host, bytes);
    if (!address)
        return b->host->fail(b->host, TN_NO_MEMORY, "ucx: no memory for an address");
    tn_status status = get_value(b, "address", rank, address, &bytes, deadline_ns);
    if (status == TN_OK) {
        ucp_ep_params_t params = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
            .address = (const ucp_address_t *)address,
            .err_mode = !is_watched(b, rank) ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER,
            .err_handler = { .cb = peer_failed, .arg = peer },
        };
        ucs_status_t result = ucp_ep_create(b->worker, &params, &peer->ep);
        if (result != UCS_OK) {
            peer->ep = NULL;
            status = b->host->fail(b->host, TN_ERROR,
                                   "ucx: no way from rank %d to rank %d: %s; [ucx] transports and devices must be such "
                                   "that both have one in common (`ucx_info -d`)",
                                   (int)b->rank, (int)rank, ucs_status_string(result));
        }
    }
    b->host->release(b->host, address);
    return status;
}

/* ---- the end ---- */

static void finish_request(struct backend *b, ucs_status_ptr_t request, uint64_t until_ns)
{
    if (!UCS_PTR_IS_PTR(request))
        return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && ucx_now() < until_ns)
        if (!ucp_worker_progress(b->worker))
            sched_yield();
    ucp_request_free(request);
}

/* What was sent last may still be on its way out. */
static void close_endpoints(struct backend *b)
{
    uint64_t until_ns = ucx_now() + (b->is_broken ? BROKEN_FLUSH_NS : FLUSH_NS);
    if (!b->is_broken)
        finish_request(b, ucp_worker_flush_nbx(b->worker, &(ucp_request_param_t){ 0 }), until_ns);
    for (int32_t i = 0; i < b->n; i++) {
        struct ucx_peer *peer = &b->peers[i];
        if (peer->flush)
            ucp_request_free(peer->flush);
        if (!peer->ep)
            continue;
        int by_force = is_watched(b, i) && (b->is_broken || peer->is_dead);
        ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                      .flags = by_force ? UCP_EP_CLOSE_FLAG_FORCE : 0 };
        if (by_force || (!peer->is_dead && !b->is_broken))
            finish_request(b, ucp_ep_close_nbx(peer->ep, &param), until_ns);
        peer->ep = NULL;
    }
}

void ucx_disconnect(struct backend *b)
{
    if (b->worker) {
        close_endpoints(b);
        ucx_wire_drop(b);
        ucp_worker_destroy(b->worker); /* calls back for what it gives up */
    }
    ucx_wire_finish(b);
    while (b->n_memories > 0) {
        struct ucx_memory *m = &b->memories[--b->n_memories];
        if (m->handle)
            ucp_mem_unmap(b->context, m->handle);
    }
    if (b->context)
        ucp_cleanup(b->context);
    if (b->signal_fd >= 0)
        close(b->signal_fd);
    b->host->release(b->host, b->peers);
    b->worker = NULL;
    b->context = NULL;
    b->peers = NULL;
}
