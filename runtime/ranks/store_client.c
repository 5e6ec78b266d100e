/* Store client: one rank's connection to the store; see store.h.
 *
 * Joining is synchronous; after that a thread of its own moves the bytes, so that put, get and poll never block
 * and news of a death arrives whatever the rank is doing. What was asked for is cached here. */
#include "ranks/store.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "ranks/store_join.h"
#include "ranks/store_table.h"
#include "ranks/store_wire.h"

#include <tenon/host.h>

enum { OUTBOX_MAX = 1024 * 1024 };

static const uint64_t goodbye_ns = 2000000000u, who_ns = 5000000000u;

struct death {
    int32_t rank;
    char text[256];
};

struct tn_store {
    struct tn_wire wire; /* the thread's */
    int wake_fd;
    pthread_t thread;
    int32_t rank, world;
    uint64_t host_id, job_id;
    char where[128]; /* the server's address, for messages */
    struct death *_Atomic death;

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t changed;
    struct tn_buf outbox;
    struct tn_store_table table; /* an entry without value: asked for */
    int32_t server_rank, local_rank, local_size;
    struct death *misnamed; /* the server's loss, told before it was known whose process served */
    int ready, lost, leaving, left, stop;
    int full; /* the server had no room for a key */
    int missing_known;
    char missing[1024];
};

static void wake(struct tn_store *store)
{
    uint64_t one = 1;
    ssize_t written = write(store->wake_fd, &one, sizeof one);
    (void)written;
}

/* The first death stands: later ones are mostly its consequences. Under the lock. */
static void learn_death(struct tn_store *store, int32_t rank, const char *reason, size_t reason_bytes)
{
    if (atomic_load_explicit(&store->death, memory_order_relaxed))
        return;
    struct death *death = malloc(sizeof *death);
    if (!death)
        return;
    char who[32] = "the launcher";
    if (rank >= 0)
        snprintf(who, sizeof who, "rank %d", (int)rank);
    death->rank = rank;
    snprintf(death->text, sizeof death->text, "%s %.*s", who, (int)reason_bytes, reason);
    atomic_store_explicit(&store->death, death, memory_order_release);
}

static void learn_loss(struct tn_store *store)
{
    char reason[192];
    int n = snprintf(reason, sizeof reason, "is gone: its store at %s closed the connection", store->where);
    store->lost = 1;
    if (!store->leaving)
        learn_death(store, store->server_rank, reason, (size_t)n);
}

static void learn_value(struct tn_store *store, const struct tn_frame *frame)
{
    struct tn_store_entry *entry = tn_store_table_find(&store->table, frame->key, frame->key_bytes, 1);
    if (!entry || (!entry->present && tn_store_table_set(&store->table, entry, frame->data, frame->data_bytes) < 0))
        store->full = 1;
}

static void on_frame(struct tn_store *store, const struct tn_frame *frame)
{
    switch (frame->type) {
    case TN_WIRE_READY:
        store->ready = 1;
        store->local_rank = frame->number;
        store->local_size = frame->data_bytes == 4 ? (int32_t)tn_wire_u32(frame->data) : 1;
        break;
    case TN_WIRE_VALUE: learn_value(store, frame); break;
    case TN_WIRE_FULL:
        if (!store->full)
            tn_log(TN_LOG_ERROR, "the store has no room for the key %.*s", (int)frame->key_bytes, frame->key);
        store->full = 1;
        break;
    case TN_WIRE_DEATH: learn_death(store, frame->number, frame->data, frame->data_bytes); break;
    case TN_WIRE_MISSING:
        snprintf(store->missing, sizeof store->missing, "%.*s", (int)frame->data_bytes, frame->data);
        store->missing_known = 1;
        break;
    case TN_WIRE_GOODBYE: store->left = 1; break;
    default: /* of a newer server: nothing that this one needs */ break;
    }
}

/* Takes what has arrived. 0: the connection is over. */
static int receive(struct tn_store *store, int readable)
{
    struct tn_frame frame;
    int alive = !readable || tn_wire_fill(&store->wire) >= 0, got;
    pthread_mutex_lock(&store->lock);
    while ((got = tn_wire_next(&store->wire, &frame)) > 0)
        on_frame(store, &frame);
    if (!alive || got < 0)
        learn_loss(store);
    pthread_cond_broadcast(&store->changed);
    alive = !store->lost;
    pthread_mutex_unlock(&store->lock);
    return alive;
}

/* Takes over what put and get left, once what was taken before is sent: so the outbox's limit holds. 0: time to end. */
static int collect(struct tn_store *store)
{
    pthread_mutex_lock(&store->lock);
    if (store->outbox.length > 0 && tn_wire_queued(&store->wire) == 0) {
        tn_buf_add(&store->wire.out, store->outbox.text, store->outbox.length);
        tn_buf_clear(&store->outbox);
    }
    int go_on = !store->stop;
    pthread_mutex_unlock(&store->lock);
    return go_on;
}

/* Sends what the socket takes, once, so that a rank that always has more to send still hears what comes. What to poll
 * for; 0: time to end. A broken connection shows when it is read. */
static short send_out(struct tn_store *store)
{
    if (!collect(store))
        return 0;
    if (tn_wire_queued(&store->wire) == 0 || tn_wire_flush(&store->wire) < 0)
        return POLLIN;
    return POLLIN | POLLOUT;
}

static void *converse(void *arg)
{
    struct tn_store *store = arg;
    short events;
    int readable = 0; /* joining may have read more than its answer */
    while (receive(store, readable) && (events = send_out(store)) != 0) {
        struct pollfd fds[2] = { { .fd = store->wire.fd, .events = events },
                                 { .fd = store->wake_fd, .events = POLLIN } };
        uint64_t count;
        if (poll(fds, 2, -1) > 0 && fds[1].revents && read(store->wake_fd, &count, sizeof count) < 0)
            continue;
        readable = (fds[0].revents & ~POLLOUT) != 0; /* a broken connection shows here too */
    }
    return NULL;
}

/* The thread takes no signals: they are for the rank's own threads. */
static int start_thread(struct tn_store *store)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&store->thread, NULL, converse, store);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static struct tn_store *new_store(int32_t rank, int32_t world)
{
    struct tn_store *store = calloc(1, sizeof *store);
    if (!store)
        return NULL;
    store->rank = rank;
    store->world = world;
    store->host_id = tn_store_host_id(rank);
    store->server_rank = -1;
    store->wire.fd = -1;
    tn_buf_init(&store->wire.out);
    store->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tn_buf_init(&store->outbox);
    tn_store_table_init(&store->table, TN_STORE_TOTAL_MAX + TN_STORE_TOTAL_MAX / 4);
    pthread_mutex_init(&store->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&store->changed, &clock);
    pthread_condattr_destroy(&clock);
    return store;
}

static void free_store(struct tn_store *store)
{
    tn_wire_finish(&store->wire);
    if (store->wake_fd >= 0)
        close(store->wake_fd);
    tn_buf_finish(&store->outbox);
    tn_store_table_finish(&store->table);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->lock);
    free(atomic_load(&store->death));
    free(store->misnamed);
    free(store);
}

tn_status tn_store_connect(struct tn_store **out, const char *addr, uint16_t port, const char *token, int32_t rank,
                           int32_t world, uint64_t timeout_ns, char *error, size_t error_bytes)
{
    *out = NULL;
    struct tn_store *store = new_store(rank, world);
    if (!store || store->wake_fd < 0) {
        snprintf(error, error_bytes, "cannot connect to the store: %s", strerror(errno));
        if (store)
            free_store(store);
        return TN_NO_MEMORY;
    }
    struct tn_join join = { .addr = addr,
                            .port = port,
                            .token = token,
                            .rank = rank,
                            .world = world,
                            .host_id = store->host_id,
                            .deadline_ns = tn_now_ns() + timeout_ns };
    snprintf(store->where, sizeof store->where, "%s:%u", addr, (unsigned)port);
    tn_status status = tn_store_join(&join, &store->wire, &store->job_id, error, error_bytes);
    int failed = status == TN_OK ? start_thread(store) : 0;
    if (failed) {
        snprintf(error, error_bytes, "cannot start the store's thread: %s", strerror(failed));
        status = TN_IO;
    }
    if (status != TN_OK)
        free_store(store);
    else
        *out = store;
    return status;
}

void tn_store_served_by(struct tn_store *store, int32_t rank)
{
    pthread_mutex_lock(&store->lock);
    store->server_rank = rank;
    struct death *death = atomic_load(&store->death);
    if (store->lost && death && death->rank < 0 && !store->misnamed) {
        store->misnamed = death;
        atomic_store(&store->death, NULL);
        learn_loss(store);
    }
    pthread_mutex_unlock(&store->lock);
}

/* Queues a request; TN_PENDING: too many are queued already. Under the lock. */
static tn_status ask(struct tn_store *store, enum tn_wire_type type, const char *key, size_t key_bytes,
                     const void *data, uint32_t bytes)
{
    if (store->lost)
        return TN_PEER;
    if (store->full)
        return TN_NO_MEMORY;
    if (store->outbox.length > OUTBOX_MAX)
        return TN_PENDING;
    tn_wire_add(&store->outbox, type, 0, key, key_bytes, data, bytes);
    wake(store);
    return TN_OK;
}

static tn_status put(void *ctx, const char *key, const void *data, uint32_t bytes)
{
    struct tn_store *store = ctx;
    size_t key_bytes = strlen(key);
    if (key_bytes > TN_STORE_KEY_MAX || bytes > TN_STORE_VALUE_MAX)
        return TN_INVALID;
    pthread_mutex_lock(&store->lock);
    tn_status status = ask(store, TN_WIRE_PUT, key, key_bytes, data, bytes);
    pthread_mutex_unlock(&store->lock);
    return status;
}

static tn_status get(void *ctx, const char *key, void *data, uint32_t *bytes)
{
    struct tn_store *store = ctx;
    size_t key_bytes = strlen(key);
    if (key_bytes > TN_STORE_KEY_MAX)
        return TN_INVALID;
    tn_status status = TN_PENDING;
    pthread_mutex_lock(&store->lock);
    struct tn_store_entry *entry = tn_store_table_find(&store->table, key, key_bytes, 0);
    if (entry && entry->present) {
        uint32_t room = *bytes;
        *bytes = entry->bytes;
        if (room > 0)
            memcpy(data, entry->data, entry->bytes < room ? entry->bytes : room);
        status = TN_OK;
    } else if (atomic_load_explicit(&store->death, memory_order_acquire)) {
        status = TN_PEER;
    } else if (!entry) {
        status = ask(store, TN_WIRE_GET, key, key_bytes, NULL, 0);
        if (status == TN_OK)
            status = tn_store_table_find(&store->table, key, key_bytes, 1) ? TN_PENDING : TN_NO_MEMORY;
    } else if (store->full) {
        status = TN_NO_MEMORY;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

static tn_status poll_death(void *ctx)
{
    struct tn_store *store = ctx;
    return atomic_load_explicit(&store->death, memory_order_acquire) ? TN_PEER : TN_OK;
}

/* Waits under the lock until *flag, the loss of the server, a death if one counts, or the deadline. */
static void await(struct tn_store *store, const int *flag, int death_counts, uint64_t timeout_ns)
{
    uint64_t until = tn_now_ns() + timeout_ns;
    struct timespec deadline = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    while (!*flag && !store->lost && !(death_counts && atomic_load(&store->death)))
        if (pthread_cond_timedwait(&store->changed, &store->lock, &deadline) == ETIMEDOUT)
            return;
}

tn_status tn_store_bootstrap(struct tn_store *store, uint64_t timeout_ns, struct tn_bootstrap *bootstrap)
{
    pthread_mutex_lock(&store->lock);
    await(store, &store->ready, 1, timeout_ns);
    int ready = store->ready;
    *bootstrap = (struct tn_bootstrap){
        .struct_size = sizeof *bootstrap,
        .rank = store->rank,
        .size = store->world,
        .local_rank = store->local_rank,
        .local_size = store->local_size,
        .host_id = store->host_id,
        .job_id = store->job_id,
        .ctx = store,
        .put = put,
        .get = get,
        .poll = poll_death,
    };
    pthread_mutex_unlock(&store->lock);
    if (poll_death(store) == TN_PEER)
        return TN_PEER;
    return ready ? TN_OK : TN_TIMEOUT;
}

void tn_store_missing(struct tn_store *store, char *ranks, size_t ranks_bytes)
{
    pthread_mutex_lock(&store->lock);
    store->missing_known = 0;
    if (ask(store, TN_WIRE_WHO, NULL, 0, NULL, 0) == TN_OK)
        await(store, &store->missing_known, 0, who_ns);
    snprintf(ranks, ranks_bytes, "%s", store->missing_known ? store->missing : "");
    pthread_mutex_unlock(&store->lock);
}

const char *tn_store_death(struct tn_store *store, int32_t *rank)
{
    const struct death *death = atomic_load_explicit(&store->death, memory_order_acquire);
    if (death && rank)
        *rank = death->rank;
    return death ? death->text : NULL;
}

static void end(struct tn_store *store)
{
    pthread_mutex_lock(&store->lock);
    store->leaving = 1;
    store->stop = 1;
    pthread_mutex_unlock(&store->lock);
    wake(store);
    pthread_join(store->thread, NULL);
    free_store(store);
}

void tn_store_goodbye(struct tn_store *store)
{
    if (!store)
        return;
    pthread_mutex_lock(&store->lock);
    store->leaving = 1;
    if (!store->lost) {
        /* Awaits the answer: closing with bytes unread would reset the connection and could swallow the goodbye. */
        tn_wire_add(&store->outbox, TN_WIRE_GOODBYE, 0, NULL, 0, NULL, 0);
        wake(store);
        await(store, &store->left, 0, goodbye_ns);
    }
    pthread_mutex_unlock(&store->lock);
    end(store);
}

void tn_store_drop(struct tn_store *store)
{
    if (store)
        end(store);
}
