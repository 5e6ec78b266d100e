/* Store server: one thread that serves all clients of a job by epoll; see store.h.
 *
 * Strangers are few, have little time, and the oldest yields to a new one, so that a port scanner can neither crash
 * nor stall a job. Deaths are told in the order in which they were first noticed. */
#include "ranks/store_server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SPARE_STRANGERS = 64, /* beyond one for each rank */
    SPARE_FDS = 64,
    EVENTS = 64,
    QUEUE_MAX = TN_STORE_TOTAL_MAX + TN_STORE_TOTAL_MAX / 4, /* a client that asked for everything at once */
};

static const uint64_t hello_ns = 5000000000u, reason_ns = 200000000u, accept_pause_ns = 100000000u;

static void note_death(struct tn_store_server *s, int32_t rank, const char *reason, int exact)
{
    struct tn_store_death *death = NULL;
    if (!s->members[rank].mourned) {
        s->members[rank].mourned = 1;
        death = &s->deaths[s->death_count++];
        *death = (struct tn_store_death){ .rank = rank, .due_ns = tn_now_ns() + s->reason_ns };
    }
    for (int32_t i = s->told; i < s->death_count && !death; i++)
        if (s->deaths[i].rank == rank && !s->deaths[i].exact)
            death = &s->deaths[i];
    if (!death)
        return;
    death->exact = exact;
    snprintf(death->reason, sizeof death->reason, "%s", reason);
}

static void wake(struct tn_store_server *s)
{
    uint64_t one = 1;
    ssize_t written = write(s->wake_fd, &one, sizeof one);
    (void)written;
}

void tn_store_bury(struct tn_store_server *s, int32_t rank, const char *reason)
{
    if (rank < 0 || rank >= s->world)
        return;
    pthread_mutex_lock(&s->lock);
    note_death(s, rank, reason, 1);
    pthread_mutex_unlock(&s->lock);
    wake(s);
}

void tn_store_expect_reasons(struct tn_store_server *s, uint64_t within_ns)
{
    pthread_mutex_lock(&s->lock);
    s->reason_ns = within_ns;
    pthread_mutex_unlock(&s->lock);
}

void tn_store_ended(struct tn_store_server *s, int32_t rank)
{
    if (rank < 0 || rank >= s->world)
        return;
    pthread_mutex_lock(&s->lock);
    if (!s->members[rank].left)
        note_death(s, rank, "ended before the job was done", 1);
    pthread_mutex_unlock(&s->lock);
    wake(s);
}

void tn_store_bury_missing(struct tn_store_server *s, const char *reason)
{
    pthread_mutex_lock(&s->lock);
    for (int32_t rank = 0; rank < s->world; rank++)
        if (!s->members[rank].joined)
            note_death(s, rank, reason, 1);
    pthread_mutex_unlock(&s->lock);
    wake(s);
}

void tn_store_queue(struct tn_store_server *s, struct tn_store_conn *conn, enum tn_wire_type type, int32_t number,
                    const void *key, size_t key_bytes, const void *data, size_t data_bytes)
{
    tn_wire_add(&conn->wire.out, type, number, key, key_bytes, data, data_bytes);
    if (conn->dirty)
        return;
    conn->dirty = 1;
    conn->next_dirty = s->dirty;
    s->dirty = conn;
}

void tn_store_queue_death(struct tn_store_server *s, struct tn_store_conn *conn, const struct tn_store_death *death)
{
    tn_store_queue(s, conn, TN_WIRE_DEATH, death->rank, NULL, 0, death->reason, strlen(death->reason));
}

void tn_store_unlink_stranger(struct tn_store_server *s, struct tn_store_conn *conn)
{
    *(conn->prev ? &conn->prev->next : &s->oldest) = conn->next;
    *(conn->next ? &conn->next->prev : &s->newest) = conn->prev;
    conn->prev = conn->next = NULL;
    s->strangers--;
}

void tn_store_close(struct tn_store_server *s, struct tn_store_conn *conn, const char *reason)
{
    if (conn->closed)
        return;
    conn->closed = 1;
    conn->next_closed = s->closed;
    s->closed = conn;
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, conn->wire.fd, NULL);
    if (conn->rank < 0) {
        tn_store_unlink_stranger(s, conn);
        return;
    }
    struct tn_store_member *member = &s->members[conn->rank];
    member->conn = NULL;
    pthread_mutex_lock(&s->lock);
    if (!member->left)
        note_death(s, conn->rank, reason ? reason : "is gone: its connection closed without goodbye", reason != NULL);
    if (--s->connected == 0)
        pthread_cond_broadcast(&s->emptied);
    pthread_mutex_unlock(&s->lock);
}

static void free_conn(struct tn_store_conn *conn)
{
    tn_wire_finish(&conn->wire);
    free(conn);
}

static void add_stranger(struct tn_store_server *s, int fd)
{
    struct tn_store_conn *conn = calloc(1, sizeof *conn);
    if (!conn) {
        close(fd);
        return;
    }
    if (s->strangers >= s->world + SPARE_STRANGERS)
        tn_store_close(s, s->oldest, NULL);
    conn->rank = -1;
    conn->deadline_ns = tn_now_ns() + hello_ns;
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = conn };
    if (tn_wire_init(&conn->wire, fd) < 0 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        free_conn(conn);
        return;
    }
    conn->prev = s->newest;
    *(s->newest ? &s->newest->next : &s->oldest) = conn;
    s->newest = conn;
    s->strangers++;
}

static void listen_for(struct tn_store_server *s, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = &s->listen_fd };
    epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->listen_fd, &event);
}

static void accept_all(struct tn_store_server *s)
{
    for (;;) {
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            add_stranger(s, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            /* Out of descriptors: the oldest stranger makes room; without a pause this would be a busy loop. */
            if (s->oldest)
                tn_store_close(s, s->oldest, NULL);
            s->accept_again_ns = tn_now_ns() + accept_pause_ns;
            listen_for(s, 0);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

static void on_readable(struct tn_store_server *s, struct tn_store_conn *conn)
{
    struct tn_frame frame;
    int got = tn_wire_fill(&conn->wire), more = 0;
    while (got > 0 && !conn->closed && (more = tn_wire_next(&conn->wire, &frame)) > 0)
        tn_store_on_frame(s, conn, &frame);
    if (got < 0)
        tn_store_close(s, conn, NULL);
    else if (more < 0)
        tn_store_close(s, conn, "sent the store something that is not a request");
}

static void flush_conn(struct tn_store_server *s, struct tn_store_conn *conn)
{
    if (conn->closed)
        return;
    int done = tn_wire_flush(&conn->wire);
    if (done < 0) {
        tn_store_close(s, conn, NULL);
    } else if (tn_wire_queued(&conn->wire) > QUEUE_MAX) {
        tn_store_close(s, conn, "stopped reading what it asked the store for");
    } else if (conn->wants_out != !done) {
        conn->wants_out = !done;
        struct epoll_event event = { .events = EPOLLIN | (done ? 0 : EPOLLOUT), .data.ptr = conn };
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, conn->wire.fd, &event);
    }
}

static void flush_dirty(struct tn_store_server *s)
{
    while (s->dirty) {
        struct tn_store_conn *conn = s->dirty;
        s->dirty = conn->next_dirty;
        conn->dirty = 0;
        flush_conn(s, conn);
    }
}

/* Tells the deaths whose reason is known or was awaited long enough. The highest rank first: rank 0 may host this
 * thread, and ends its process when it hears the news. */
static void tell_deaths(struct tn_store_server *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->told < s->death_count && (s->deaths[s->told].exact || s->deaths[s->told].due_ns <= tn_now_ns())) {
        const struct tn_store_death *death = &s->deaths[s->told++];
        for (int32_t rank = 0; rank < s->world; rank++) /* the list of dirty ones is last in, first out */
            if (s->members[rank].conn && rank != death->rank)
                tn_store_queue_death(s, s->members[rank].conn, death);
    }
    pthread_mutex_unlock(&s->lock);
}

static void look_at_clock(struct tn_store_server *s)
{
    uint64_t now = tn_now_ns();
    while (s->oldest && s->oldest->deadline_ns <= now)
        tn_store_close(s, s->oldest, NULL);
    if (s->accept_again_ns && s->accept_again_ns <= now) {
        s->accept_again_ns = 0;
        listen_for(s, EPOLLIN);
    }
}

static int next_timeout_ms(struct tn_store_server *s)
{
    uint64_t due = UINT64_MAX, now = tn_now_ns();
    if (s->oldest)
        due = s->oldest->deadline_ns;
    if (s->accept_again_ns && s->accept_again_ns < due)
        due = s->accept_again_ns;
    pthread_mutex_lock(&s->lock);
    if (s->told < s->death_count && s->deaths[s->told].due_ns < due)
        due = s->deaths[s->told].due_ns;
    pthread_mutex_unlock(&s->lock);
    if (due == UINT64_MAX)
        return -1;
    return due <= now ? 0 : (int)((due - now) / 1000000u) + 1;
}

static void free_closed(struct tn_store_server *s)
{
    while (s->closed) {
        struct tn_store_conn *conn = s->closed;
        s->closed = conn->next_closed;
        free_conn(conn);
    }
}

static int stopping(struct tn_store_server *s)
{
    pthread_mutex_lock(&s->lock);
    int stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return stop;
}

static void on_conn(struct tn_store_server *s, struct tn_store_conn *conn, uint32_t events)
{
    if (!conn->closed && (events & EPOLLOUT))
        flush_conn(s, conn);
    if (!conn->closed && (events & ~(uint32_t)EPOLLOUT))
        on_readable(s, conn);
}

static void on_event(struct tn_store_server *s, const struct epoll_event *event)
{
    uint64_t count;
    if (event->data.ptr == &s->listen_fd)
        accept_all(s);
    else if (event->data.ptr != &s->wake_fd)
        on_conn(s, event->data.ptr, event->events);
    else if (read(s->wake_fd, &count, sizeof count) < 0)
        return; /* taken already */
}

static void *serve(void *arg)
{
    struct tn_store_server *s = arg;
    struct epoll_event events[EVENTS];
    while (!stopping(s)) {
        int count = epoll_wait(s->epoll_fd, events, EVENTS, next_timeout_ms(s));
        for (int i = 0; i < count; i++)
            on_event(s, &events[i]);
        look_at_clock(s);
        tell_deaths(s);
        flush_dirty(s);
        free_closed(s);
    }
    tell_deaths(s);
    flush_dirty(s);
    return NULL;
}

/* A socket that listens on addr:*port, or -1 with the reason in error. */
/* TN_INVALID: this process can never listen there, as the address is not this host's or the port not its user's. */
static tn_status listen_on(const char *addr, uint16_t *port, int *listen_fd, char *error, size_t error_bytes)
{
    char service[8];
    struct addrinfo hints = { .ai_family = addr ? AF_UNSPEC : AF_INET,
                              .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE };
    struct addrinfo *found = NULL;
    snprintf(service, sizeof service, "%u", (unsigned)*port);
    int failed = getaddrinfo(addr, service, &hints, &found);
    if (failed) {
        snprintf(error, error_bytes, "cannot listen on %s: %s", addr, gai_strerror(failed));
        return failed == EAI_NONAME ? TN_INVALID : TN_IO;
    }
    int fd = -1, on = 1, why = 0;
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd < 0) {
            why = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        struct sockaddr_storage bound;
        socklen_t bytes = sizeof bound;
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 4096) == 0 &&
            getsockname(fd, (struct sockaddr *)&bound, &bytes) == 0) {
            *port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                      : ((struct sockaddr_in *)&bound)->sin_port);
            continue;
        }
        why = errno;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    *listen_fd = fd;
    if (fd >= 0)
        return TN_OK;
    snprintf(error, error_bytes, "cannot listen on %s:%u: %s", addr ? addr : "*", (unsigned)*port, strerror(why));
    return why == EADDRNOTAVAIL || why == EACCES ? TN_INVALID : TN_IO;
}

/* One descriptor a rank and some more. */
static int make_room(int32_t world, char *error, size_t error_bytes)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)world + SPARE_STRANGERS + SPARE_FDS;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= need)
        return 0;
    if (limit.rlim_max >= need) {
        limit.rlim_cur = need;
        if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
            return 0;
    }
    snprintf(error, error_bytes, "%d ranks need %llu open files, the limit is %llu; raise it with ulimit -n",
             (int)world, (unsigned long long)need, (unsigned long long)limit.rlim_max);
    return -1;
}

static void free_server(struct tn_store_server *s)
{
    for (int32_t rank = 0; s->members && rank < s->world; rank++)
        if (s->members[rank].conn)
            free_conn(s->members[rank].conn);
    while (s->oldest) {
        struct tn_store_conn *conn = s->oldest;
        tn_store_unlink_stranger(s, conn);
        free_conn(conn);
    }
    free_closed(s);
    for (int i = 0; i < 3; i++) {
        int fd = i == 0 ? s->listen_fd : i == 1 ? s->epoll_fd : s->wake_fd;
        if (fd >= 0)
            close(fd);
    }
    tn_store_table_finish(&s->table);
    pthread_cond_destroy(&s->emptied);
    pthread_mutex_destroy(&s->lock);
    free(s->members);
    free(s->deaths);
    free(s);
}

static struct tn_store_server *new_server(const char *token, int32_t world)
{
    struct tn_store_server *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->listen_fd = s->epoll_fd = s->wake_fd = -1;
    s->world = world;
    s->reason_ns = reason_ns;
    s->token_bytes = strlen(token);
    memcpy(s->token, token, s->token_bytes);
    tn_store_table_init(&s->table, TN_STORE_TOTAL_MAX);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->emptied, &clock);
    pthread_condattr_destroy(&clock);
    s->members = calloc((size_t)world, sizeof *s->members);
    s->deaths = calloc((size_t)world, sizeof *s->deaths);
    if (s->members && s->deaths && getrandom(&s->job_id, sizeof s->job_id, 0) == (ssize_t)sizeof s->job_id)
        return s;
    free_server(s);
    return NULL;
}

/* The thread takes no signals: they are for the process's own threads. */
static int start_thread(struct tn_store_server *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&s->thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static int watch(struct tn_store_server *s)
{
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event on_listen = { .events = EPOLLIN, .data.ptr = &s->listen_fd };
    struct epoll_event on_wake = { .events = EPOLLIN, .data.ptr = &s->wake_fd };
    if (s->epoll_fd < 0 || s->wake_fd < 0 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->listen_fd, &on_listen) < 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &on_wake) < 0)
        return errno;
    return 0;
}

tn_status tn_store_serve(struct tn_store_server **server, const char *addr, uint16_t *port, const char *token,
                         int32_t world, char *error, size_t error_bytes)
{
    *server = NULL;
    size_t token_bytes = strlen(token);
    if (token_bytes == 0 || token_bytes > TN_STORE_TOKEN_MAX || world < 1) {
        snprintf(error, error_bytes, "the job's token has %zu bytes; use 1 to %d", token_bytes, TN_STORE_TOKEN_MAX);
        return TN_INVALID;
    }
    if (make_room(world, error, error_bytes) < 0)
        return TN_IO;
    struct tn_store_server *s = new_server(token, world);
    if (!s) {
        snprintf(error, error_bytes, "cannot serve the store: out of memory");
        return TN_NO_MEMORY;
    }
    tn_status status = listen_on(addr, port, &s->listen_fd, error, error_bytes);
    if (status != TN_OK)
        goto free;
    int failed = watch(s);
    if (!failed)
        failed = start_thread(s);
    if (failed) {
        snprintf(error, error_bytes, "cannot serve the store: %s", strerror(failed));
        status = TN_IO;
        goto free;
    }
    *server = s;
    return TN_OK;
free:
    free_server(s);
    return status;
}

int tn_store_wait_empty(struct tn_store_server *s, uint64_t timeout_ns)
{
    uint64_t until = tn_now_ns() + timeout_ns;
    struct timespec deadline = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    pthread_mutex_lock(&s->lock);
    while (s->connected > 0)
        if (pthread_cond_timedwait(&s->emptied, &s->lock, &deadline) == ETIMEDOUT)
            break;
    int empty = s->connected == 0;
    pthread_mutex_unlock(&s->lock);
    return empty;
}

void tn_store_stop(struct tn_store_server *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = 1;
    pthread_mutex_unlock(&s->lock);
    wake(s);
    pthread_join(s->thread, NULL);
    free_server(s);
}
