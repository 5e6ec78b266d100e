/* Memory that all ranks map: the control file, and one segment for each mem_alloc.
 *
 * Rank 0 makes every file (memfd: no name in the file system, gone with its last user) and
 * passes it over an abstract unix socket, whose name the ranks find through the bootstrap.
 * A segment holds all ranks' parts one after another and has the same index on all ranks, so
 * that (index, offset) is an address for everyone. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm.h"

enum { PAGE = 4096, HUGE = 2 << 20, SKEW = 3 * 4096 + 320, SLICE_MS = 50, HELLO = 0x6f6c6c65 };
#define LAYOUT UINT64_C(0x73680003) /* changes whenever the shared layout in shm.h does */

/* What each rank says of itself before anything is shared. */
struct card {
    uint64_t host_id, layout;
    uint64_t pid_space; /* the namespace in which pid is its number; 0: not known */
    int32_t rank;       /* in the world */
    int32_t pid;
};

/* What goes over a socket. */
struct note {
    uint32_t hello;
    int32_t rank;          /* from a rank that connects */
    int32_t status, index; /* from rank 0, with a file */
    uint64_t bytes;
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static tn_status fail_late(struct shm *s, uint64_t deadline, const char *what)
{
    tn_status st = shm_poll(s, shm_now());
    if (st != TN_OK && st != TN_PENDING)
        return s->host->fail(s->host, TN_PEER, "shm: a rank of the job ended while this one was in %s", what);
    if (shm_now() >= deadline)
        return s->host->fail(s->host, TN_TIMEOUT, "shm: %s: not all ranks came before the deadline", what);
    return TN_OK;
}

/* ---- the bootstrap, made blocking ---- */

static tn_status tell(struct shm *s, const char *key, const void *data, uint32_t bytes, uint64_t deadline)
{
    for (;;) {
        tn_status st = s->bootstrap.put(s->bootstrap.ctx, key, data, bytes);
        if (st == TN_OK)
            return TN_OK;
        if (st != TN_PENDING)
            return s->host->fail(s->host, st, "shm: the bootstrap does not take \"%s\"", key);
        if ((st = fail_late(s, deadline, "init")) != TN_OK)
            return st;
        usleep(500);
    }
}

static tn_status ask(struct shm *s, const char *key, void *data, uint32_t bytes, uint32_t *got, uint64_t deadline)
{
    for (;;) {
        *got = bytes;
        tn_status st = s->bootstrap.get(s->bootstrap.ctx, key, data, got);
        if (st == TN_OK)
            return TN_OK;
        if (st != TN_PENDING)
            return s->host->fail(s->host, st, "shm: the bootstrap does not give \"%s\"", key);
        if ((st = fail_late(s, deadline, "init")) != TN_OK)
            return st;
        usleep(500);
    }
}

static const char *key_of(const struct shm *s, const char *what, int32_t number, char *key, size_t bytes)
{
    snprintf(key, bytes, "shm/%016" PRIx64 "/%s/%d", s->bootstrap.host_id, what, (int)number);
    return key;
}

static uint64_t pid_space(void)
{
    struct stat of;
    return stat("/proc/self/ns/pid", &of) == 0 ? (uint64_t)of.st_ino : 0;
}

/* Who is on this host; nobody asks about other hosts. */
static tn_status find_host(struct shm *s, uint64_t deadline)
{
    struct card mine = { .host_id = s->bootstrap.host_id,
                         .layout = LAYOUT,
                         .pid_space = pid_space(),
                         .rank = s->bootstrap.rank,
                         .pid = (int32_t)getpid() };
    char key[64];
    int32_t world = s->bootstrap.size;
    s->world = s->host->alloc(s->host, (uint64_t)s->n * sizeof *s->world);
    s->seats = s->host->alloc(s->host, (uint64_t)world * sizeof *s->seats);
    s->pids = s->host->alloc(s->host, (uint64_t)s->n * sizeof *s->pids);
    if (!s->world || !s->seats || !s->pids)
        return s->host->fail(s->host, TN_NO_MEMORY, "shm: no memory for %d ranks", (int)world);
    for (int32_t i = 0; i < world; i++)
        s->seats[i] = -1;
    tn_status st = tell(s, key_of(s, "card", s->rank, key, sizeof key), &mine, sizeof mine, deadline);
    for (int32_t r = 0; st == TN_OK && r < s->n; r++) {
        struct card card;
        uint32_t got;
        if ((st = ask(s, key_of(s, "card", r, key, sizeof key), &card, sizeof card, &got, deadline)) != TN_OK)
            return st;
        if (got != sizeof card || card.layout != LAYOUT || card.rank < 0 || card.rank >= world)
            return s->host->fail(s->host, TN_CONFLICT,
                                 "shm: a rank of this host runs another version of shm.so than rank %d",
                                 (int)s->bootstrap.rank);
        s->world[r] = card.rank;
        s->seats[card.rank] = r;
        s->pids[r] = card.pid_space && card.pid_space == mine.pid_space ? card.pid : 0;
    }
    return st;
}

/* A process that ended but which its parent has not asked for yet still takes signals; its descriptor tells. */
int shm_is_gone(const struct shm *s, int32_t seat)
{
    int32_t pid = s->pids[seat];
    if (!pid)
        return 0;
    if (kill(pid, 0) != 0)
        return errno == ESRCH;
#ifdef SYS_pidfd_open
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return errno == ESRCH;
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int has_ended = poll(&p, 1, 0) > 0;
    close(fd);
    return has_ended;
#else
    return 0;
#endif
}

/* ---- sockets ---- */

static socklen_t socket_name(struct sockaddr_un *to, const char *name, uint32_t bytes)
{
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    memcpy(to->sun_path + 1, name, bytes); /* the leading 0 makes it abstract: no file */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
}

static int is_our_user(int fd)
{
    struct ucred cred;
    socklen_t bytes = sizeof cred;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) == 0 && cred.uid == geteuid();
}

static tn_status wait_readable(struct shm *s, int fd, uint64_t deadline, const char *what)
{
    for (;;) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        int n = poll(&p, 1, SLICE_MS);
        if (n > 0)
            return TN_OK;
        if (n < 0 && errno != EINTR)
            return s->host->fail(s->host, TN_IO, "shm: poll: %s", strerror(errno));
        tn_status st = fail_late(s, deadline, what);
        if (st != TN_OK)
            return st;
    }
}

static tn_status send_note(struct shm *s, int fd, const struct note *note, int file)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = { (void *)note, sizeof *note };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
    if (file >= 0) {
        memset(&control, 0, sizeof control);
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &file, sizeof file);
    }
    ssize_t sent;
    do
        sent = sendmsg(fd, &msg, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)sizeof *note)
        return s->host->fail(s->host, TN_PEER, "shm: a rank went away: %s", strerror(errno));
    return TN_OK;
}

/* *file is -1 if the note came without one. */
static tn_status receive_note(struct shm *s, int fd, struct note *note, int *file, uint64_t deadline, const char *what)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = { note, sizeof *note };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    *file = -1;
    tn_status st = wait_readable(s, fd, deadline, what);
    if (st != TN_OK)
        return st;
    ssize_t got;
    do
        got = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof *note)
        return s->host->fail(s->host, TN_PEER, "shm: a rank went away in %s", what);
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(file, CMSG_DATA(c), sizeof *file);
    return TN_OK;
}

/* ---- joining ---- */

static tn_status make_control(struct shm *s)
{
    s->control_fd = memfd_create("tenon-shm-control", MFD_CLOEXEC);
    if (s->control_fd < 0)
        return s->host->fail(s->host, TN_IO, "shm: memfd_create: %s", strerror(errno));
    /* Sparse: a comm's block takes memory once it is used. */
    uint64_t bytes = s->control_bytes + (uint64_t)COMMS * shm_block_stride(s);
    if (ftruncate(s->control_fd, (off_t)bytes) != 0)
        return s->host->fail(s->host, TN_IO, "shm: control file of %" PRIu64 " bytes: %s", bytes, strerror(errno));
    return TN_OK;
}

static tn_status serve_one(struct shm *s, int listener, uint64_t deadline)
{
    tn_status st = wait_readable(s, listener, deadline, "init");
    if (st != TN_OK)
        return st;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EINTR || errno == ECONNABORTED
                   ? TN_PENDING
                   : s->host->fail(s->host, TN_IO, "shm: accept: %s", strerror(errno));
    struct note note;
    int none = -1;
    st = is_our_user(fd) ? receive_note(s, fd, &note, &none, deadline, "init") : TN_PENDING;
    if (none >= 0 && st == TN_OK)
        close(none);
    if (st != TN_OK || note.hello != HELLO || note.rank < 1 || note.rank >= s->n || s->sockets[note.rank] >= 0) {
        close(fd); /* a stranger */
        return TN_PENDING;
    }
    s->sockets[note.rank] = fd;
    struct note answer = { .hello = HELLO, .bytes = s->control_bytes };
    return send_note(s, fd, &answer, s->control_fd);
}

static tn_status serve(struct shm *s, uint64_t deadline)
{
    uint64_t salt = 0;
    if (getrandom(&salt, sizeof salt, 0) < 0)
        salt = shm_now();
    char name[80];
    uint32_t bytes =
        (uint32_t)snprintf(name, sizeof name, "tenon-shm-%016" PRIx64 "-%016" PRIx64, s->bootstrap.job_id, salt);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un at;
    socklen_t length = socket_name(&at, name, bytes);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, length) != 0 || listen(listener, s->n) != 0) {
        tn_status st = s->host->fail(s->host, TN_IO, "shm: socket for the ranks to meet: %s", strerror(errno));
        if (listener >= 0)
            close(listener);
        return st;
    }
    char key[64];
    tn_status st = tell(s, key_of(s, "root", 0, key, sizeof key), name, bytes, deadline);
    for (int32_t left = s->n - 1; st == TN_OK && left > 0;) {
        st = serve_one(s, listener, deadline);
        if (st == TN_OK)
            left--;
        else if (st == TN_PENDING)
            st = fail_late(s, deadline, "init");
    }
    close(listener);
    return st;
}

static tn_status join(struct shm *s, uint64_t deadline)
{
    char name[80], key[64];
    uint32_t bytes;
    tn_status st = ask(s, key_of(s, "root", 0, key, sizeof key), name, sizeof name, &bytes, deadline);
    if (st != TN_OK)
        return st;
    struct sockaddr_un at;
    socklen_t length = socket_name(&at, name, bytes);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return s->host->fail(s->host, TN_IO, "shm: socket: %s", strerror(errno));
    s->sockets[0] = fd;
    if (connect(fd, (struct sockaddr *)&at, length) != 0)
        return s->host->fail(s->host, TN_IO,
                             "shm: cannot reach rank %d: %s; are the ranks in different network "
                             "namespaces (containers)?",
                             (int)s->world[0], strerror(errno));
    if (!is_our_user(fd))
        return s->host->fail(s->host, TN_IO, "shm: rank %d belongs to another user", (int)s->world[0]);
    struct note note = { .hello = HELLO, .rank = s->rank };
    if ((st = send_note(s, fd, &note, -1)) != TN_OK)
        return st;
    if ((st = receive_note(s, fd, &note, &s->control_fd, deadline, "init")) != TN_OK)
        return st;
    if (note.hello != HELLO || s->control_fd < 0 || note.bytes != s->control_bytes)
        return s->host->fail(s->host, TN_CONFLICT, "shm: rank %d runs another version of shm.so", (int)s->world[0]);
    return TN_OK;
}

tn_status shm_connect(struct shm *s, uint64_t deadline)
{
    s->sockets = s->host->alloc(s->host, (uint64_t)s->n * sizeof *s->sockets);
    if (!s->sockets)
        return s->host->fail(s->host, TN_NO_MEMORY, "shm: no memory for %d ranks", (int)s->n);
    for (int32_t i = 0; i < s->n; i++)
        s->sockets[i] = -1;
    s->control_bytes = round_up(sizeof(struct shm_control) + (uint64_t)s->n * sizeof(struct shm_cell), PAGE);
    tn_status st = find_host(s, deadline);
    if (st == TN_OK && s->rank == 0)
        st = make_control(s);
    if (st == TN_OK)
        st = s->rank == 0 ? serve(s, deadline) : join(s, deadline);
    if (st != TN_OK)
        return st;
    void *map = mmap(NULL, s->control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->control_fd, 0);
    if (map == MAP_FAILED)
        return s->host->fail(s->host, TN_NO_MEMORY, "shm: mapping the control file: %s", strerror(errno));
    s->control = map;
    return TN_OK;
}

void shm_disconnect(struct shm *s)
{
    if (s->control)
        munmap(s->control, s->control_bytes);
    if (s->control_fd >= 0)
        close(s->control_fd);
    for (int32_t i = 0; s->sockets && i < s->n; i++)
        if (s->sockets[i] >= 0)
            close(s->sockets[i]);
    s->host->release(s->host, s->sockets);
}

tn_status shm_gather(struct shm *s, uint64_t deadline, const char *what)
{
    if (s->is_broken)
        return s->host->fail(s->host, TN_ABORTED, "shm: %s after a failure in which ranks lost step", what);
    uint32_t goal = (uint32_t)s->n * ++s->gatherings;
    _Atomic uint32_t *arrived = &s->control->arrived;
    if (atomic_fetch_add(arrived, 1) + 1 == goal)
        shm_futex_wake(arrived);
    for (;;) {
        uint32_t seen = atomic_load(arrived);
        if ((int32_t)(seen - goal) >= 0)
            return TN_OK;
        shm_futex_wait(arrived, seen, POLL_NS);
        tn_status st = fail_late(s, deadline, what);
        if (st != TN_OK) {
            s->is_broken = 1;
            return st;
        }
    }
}

/* ---- mem_alloc ---- */

/* What all ranks work out alike from the cells once all have asked. */
struct layout {
    uint64_t bytes, mine;
    int32_t index;
};

/* Equal offsets of all ranks' parts would meet in the same sets of every cache, and a sum reads
 * just those together: each part starts a little further on than the one before. */
static uint64_t skew(int32_t rank)
{
    return (uint64_t)(rank % 64) * SKEW;
}

static uint64_t part_bytes(int32_t rank, uint64_t asked)
{
    return round_up(skew(rank) + (asked ? asked : 1), asked >= HUGE ? HUGE : PAGE);
}

static tn_status lay_out(struct shm *s, struct layout *l)
{
    uint64_t used[SEGMENTS / 64] = { 0 };
    *l = (struct layout){ 0 };
    for (int32_t r = 0; r < s->n; r++) {
        const struct shm_cell *cell = &s->control->cells[r];
        if (r == s->rank)
            l->mine = l->bytes + skew(r);
        if (cell->bytes >= UINT64_C(1) << 46 || (l->bytes += part_bytes(r, cell->bytes)) >= UINT64_C(1) << 46)
            return s->host->fail(s->host, TN_NO_MEMORY, "shm: %" PRIu64 " bytes asked for by rank %d", cell->bytes,
                                 (int)s->world[r]);
        for (int i = 0; i < SEGMENTS / 64; i++)
            used[i] |= cell->used[i];
    }
    for (l->index = 0; l->index < SEGMENTS; l->index++)
        if (!(used[l->index / 64] >> (l->index % 64) & 1))
            return TN_OK;
    return s->host->fail(s->host, TN_NO_MEMORY, "shm: more than %d pieces of shared memory at a time", SEGMENTS);
}

static int make_segment(const struct layout *l)
{
    int fd = memfd_create("tenon-shm", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)l->bytes) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Rank 0 makes the file and passes it on; a failure is passed on as well. */
static tn_status share_segment(struct shm *s, const struct layout *l, int *fd, uint64_t deadline)
{
    struct note note = { .hello = HELLO, .index = l->index, .bytes = l->bytes };
    if (s->rank != 0) {
        tn_status st = receive_note(s, s->sockets[0], &note, fd, deadline, "mem_alloc");
        if (st == TN_OK && (note.status != 0 || *fd < 0))
            return s->host->fail(s->host, TN_NO_MEMORY,
                                 "shm: rank %d cannot make %" PRIu64 " bytes of shared memory: "
                                 "%s",
                                 (int)s->world[0], l->bytes, strerror(note.status));
        return st;
    }
    *fd = make_segment(l);
    note.status = *fd < 0 ? errno : 0;
    for (int32_t r = 1; r < s->n; r++) {
        tn_status st = send_note(s, s->sockets[r], &note, *fd);
        if (st != TN_OK)
            return st;
    }
    if (*fd < 0)
        return s->host->fail(s->host, TN_NO_MEMORY, "shm: %" PRIu64 " bytes of shared memory: %s", l->bytes,
                             strerror(note.status));
    return TN_OK;
}

/* At a multiple of HUGE, as huge pages need: the file's offsets are cut at such multiples. */
static char *map_aligned(int fd, uint64_t bytes)
{
    char *room = mmap(NULL, bytes + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    char *base = room + (HUGE - (uintptr_t)room % HUGE) % HUGE;
    char *map = mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (map == MAP_FAILED) {
        munmap(room, bytes + HUGE);
        return MAP_FAILED;
    }
    uint64_t end = round_up(bytes, PAGE); /* what is left of the room on both sides */
    if (base > room)
        munmap(room, (size_t)(base - room));
    munmap(base + end, (size_t)(room + bytes + HUGE - (base + end)));
    return map;
}

/* Systems give shared memory small pages unless told otherwise, and products over them lose much of their time to
 * look-ups of addresses. Asking for the pages one by one works whatever the system's default (Linux 6.1); where it does
 * not, small ones remain. */
static void use_huge_pages(char *part, uint64_t bytes)
{
    enum { COLLAPSE = 25 }; /* MADV_COLLAPSE of newer headers */
    char *from = part + (HUGE - (uintptr_t)part % HUGE) % HUGE;
    uint64_t whole = bytes > (uint64_t)(from - part) ? (bytes - (uint64_t)(from - part)) / HUGE * HUGE : 0;
    if (whole < 2 * HUGE)
        return;
    for (uint64_t at = 0; at < whole; at += HUGE)
        ((volatile char *)from)[at] = 0; /* a page must be there to grow */
    int saved = errno;
    (void)madvise(from, whole, COLLAPSE);
    errno = saved;
}

static tn_status map_segment(struct shm *s, const struct layout *l, int fd, uint64_t asked)
{
    char *base = map_aligned(fd, l->bytes);
    if (base == MAP_FAILED)
        return s->host->fail(s->host, TN_NO_MEMORY, "shm: mapping %" PRIu64 " bytes: %s", l->bytes, strerror(errno));
    madvise(base, l->bytes, MADV_HUGEPAGE); /* where the system allows it */
    use_huge_pages(base + l->mine - skew(s->rank), part_bytes(s->rank, asked));
    madvise(base, l->bytes, MADV_DONTDUMP);
    s->segments[l->index] = (struct shm_segment){ base, l->bytes, l->mine, part_bytes(s->rank, asked) - skew(s->rank) };
    if ((uint32_t)l->index >= s->n_segments)
        s->n_segments = (uint32_t)l->index + 1;
    return TN_OK;
}

static tn_status check_mapped(struct shm *s)
{
    for (int32_t r = 0; r < s->n; r++)
        if (s->control->cells[r].status != TN_OK)
            return s->host->fail(s->host, TN_NO_MEMORY, "shm: rank %d could not map the memory", (int)s->world[r]);
    return TN_OK;
}

tn_status shm_mem_alloc(void *self, uint64_t bytes, void **memory)
{
    struct shm *s = self;
    if (!s->control)
        return s->host->fail(s->host, TN_INVALID, "shm: mem_alloc before init");
    uint64_t now = shm_now();
    uint64_t deadline = s->timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + s->timeout_ns;
    struct shm_cell *cell = &s->control->cells[s->rank];
    cell->bytes = bytes;
    memset(cell->used, 0, sizeof cell->used);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        if (s->segments[i].base)
            cell->used[i / 64] |= UINT64_C(1) << (i % 64);
    tn_status st = shm_gather(s, deadline, "mem_alloc");
    if (st != TN_OK)
        return st;
    struct layout l = { 0 };
    if ((st = lay_out(s, &l)) != TN_OK)
        return st; /* on all ranks alike */
    int fd = -1;
    st = share_segment(s, &l, &fd, deadline);
    if (st == TN_OK)
        st = map_segment(s, &l, fd, bytes);
    if (fd >= 0)
        close(fd);
    cell->status = st;
    tn_status met = shm_gather(s, deadline, "mem_alloc");
    if (st == TN_OK && met == TN_OK)
        met = check_mapped(s);
    if (st == TN_OK && met != TN_OK) {
        shm_mem_free(s, s->segments[l.index].base + l.mine);
        st = met;
    }
    if (st == TN_OK)
        *memory = s->segments[l.index].base + l.mine;
    return st;
}

void shm_mem_free(void *self, void *memory)
{
    struct shm *s = self;
    for (uint32_t i = 0; memory && i < s->n_segments; i++) {
        struct shm_segment *g = &s->segments[i];
        if (!g->base || g->base + g->mine != (char *)memory)
            continue;
        munmap(g->base, g->bytes);
        g->base = NULL;
        return;
    }
}

/* ---- addresses ---- */

uint64_t shm_locate(const struct shm *s, const void *p, uint64_t bytes)
{
    for (uint32_t i = 0; i < s->n_segments; i++) {
        const struct shm_segment *g = &s->segments[i];
        uint64_t at = (uint64_t)((uintptr_t)p - (uintptr_t)g->base);
        if (g->base && at >= g->mine && at - g->mine < g->mine_bytes && bytes <= g->mine_bytes - (at - g->mine))
            return (uint64_t)i << LOC_SEGMENT_SHIFT | at;
    }
    return LOC_PRIVATE;
}

char *shm_at(const struct shm *s, uint64_t loc)
{
    return s->segments[loc >> LOC_SEGMENT_SHIFT].base + (loc & ((UINT64_C(1) << LOC_SEGMENT_SHIFT) - 1));
}
