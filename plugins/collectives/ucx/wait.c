/* Progress and waiting.
 *
 * Everything happens inside ucx_advance: UCX's progress, what came in, what is done. A wait in one group advances all
 * others, which is what keeps groups from waiting for each other. A rank that waits polls for a while (shorter where
 * ranks share cores, and then it lets them run), and then sleeps on UCX's event descriptor; every 50 ms it looks at
 * the bootstrap. Peers see it sleep and send a signal with the next message. */
#include "backend.h"

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

enum {
    SLEEP_NS = 50 * 1000 * 1000,
    TEST_LOOK = 256 /* calls of test between two looks around */,
    ADVANCE_TURNS = 16,
    OWN_TURNS = 64 /* some microseconds before giving way, with a core for each rank */,
    ANSWER_NS = 150 * 1000 * 1000
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- requests ---- */

struct tn_request *ucx_request_new(struct tn_comm *c)
{
    struct backend *b = c->backend;
    struct tn_request *r = b->free_requests;
    if (r) {
        b->free_requests = r->next;
        return r;
    }
    r = b->host->alloc(b->host, sizeof *r);
    if (!r)
        return NULL;
    memset(r, 0, sizeof *r);
    r->made = b->made;
    b->made = r;
    return r;
}

void ucx_request_recycle(struct tn_request *r)
{
    struct backend *b = r->comm->backend;
    struct tn_request *made = r->made;
    memset(r, 0, sizeof *r);
    r->made = made;
    r->next = b->free_requests;
    b->free_requests = r;
}

/* Hands the outcome to the caller, who forgets the request. */
static tn_status end(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    const struct tn_host *host = c->backend->host;
    tn_status status = r->status;
    r->is_ended = 1;
    if (r->under_way == 0)
        ucx_request_recycle(r);
    return status == TN_OK ? TN_OK : host->fail(host, status, "%s", c->error_text);
}

/* ---- progress ---- */

static void settle_all(struct tn_comm *c)
{
    for (struct tn_request *r = c->first, *next; r && !c->failed; r = next) {
        next = r->next;
        ucx_op_settle(r);
    }
    for (struct tn_request *r = c->messages, *next; r && !c->failed; r = next) {
        next = r->next;
        ucx_p2p_settle(r);
    }
}

static void look_at_groups(struct backend *b)
{
    for (struct tn_comm *c = b->comms; c; c = c->next) {
        if (c->failed)
            continue;
        if (atomic_load_explicit(&c->is_aborted, memory_order_relaxed))
            ucx_comm_fail(c, c->first, TN_ABORTED, -1, "the group was aborted");
        else if (c->is_split)
            ucx_split_look(c, ucx_now());
    }
}

int ucx_advance(struct backend *b)
{
    int happened = 0;
    for (int turn = 0; turn < ADVANCE_TURNS; turn++) {
        unsigned worked = ucp_worker_progress(b->worker);
        int read = ucx_read_inbox(b);
        if (!worked && !read && !b->is_dirty)
            break;
        happened |= worked || read;
        if (b->is_dirty) {
            b->is_dirty = 0;
            for (struct tn_comm *c = b->comms; c; c = c->next)
                if (c->first || c->messages)
                    settle_all(c);
        }
        if (!worked)
            break;
    }
    look_at_groups(b);
    return happened;
}

/* ---- waiting ---- */

void ucx_sleep(struct backend *b, uint64_t until_ns)
{
    enum { POLL = 1 };
    uint64_t now = ucx_now();
    if (b->progress_mode == POLL || now >= until_ns) {
        sched_yield();
        return;
    }
    if (ucp_worker_arm(b->worker) != UCS_OK) /* something came in between */
        return;
    uint64_t ns = until_ns - now < SLEEP_NS ? until_ns - now : SLEEP_NS;
    struct pollfd fds[2] = { { b->event_fd, POLLIN, 0 }, { b->signal_fd, POLLIN, 0 } };
    struct timespec most = { 0, (long)ns };
    if (ppoll(fds, 2, &most, NULL) > 0 && fds[1].revents) {
        uint64_t count;
        if (read(b->signal_fd, &count, sizeof count) < 0)
            return; /* another took it */
    }
}

static void look_around(struct tn_request *r, uint64_t now)
{
    struct backend *b = r->comm->backend;
    tn_status status = ucx_poll(b, now);
    if (status == TN_PEER)
        ucx_gone(r);
    else if (b->has_dead && r->status == TN_PENDING)
        ucx_look_at_dead(b, now);
    if (r->status == TN_PENDING && r->waited_ns)
        ucx_ask(r, now);
}

static tn_status give_up(struct tn_request *r, uint64_t timeout_ns)
{
    struct tn_comm *c = r->comm;
    int32_t missing = ucx_missing(r, timeout_ns >= ANSWER_NS ? ANSWER_NS : 0);
    if (r->status != TN_PENDING)
        return end(r);
    if (missing >= 0)
        return ucx_error(c, r, TN_TIMEOUT, missing, "rank %d is missing after %.1f s", (int)missing,
                         (double)timeout_ns / 1e9);
    return ucx_error(c, r, TN_TIMEOUT, -1, "all members came, but it is not done after %.1f s",
                     (double)timeout_ns / 1e9);
}

tn_status ucx_wait(struct tn_request *r, uint64_t timeout_ns)
{
    struct backend *b = r->comm->backend;
    uint64_t began_ns = 0, active_ns = 0, end_ns = 0;
    for (uint32_t turn = 0; r->status == TN_PENDING; turn++) {
        int happened = ucx_advance(b);
        if (r->status != TN_PENDING)
            break;
        if (turn < OWN_TURNS && !b->is_crowded && b->spin_ns) {
            relax();
            continue;
        }
        uint64_t now = ucx_now();
        if (!began_ns) {
            began_ns = active_ns = now;
            r->waited_ns = r->waited_ns ? r->waited_ns : now;
            end_ns = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
        }
        if (happened)
            active_ns = now;
        look_around(r, now);
        if (r->status != TN_PENDING)
            break;
        if (now >= end_ns)
            return give_up(r, timeout_ns);
        if (happened)
            continue;
        if (now - active_ns >= b->spin_ns)
            ucx_sleep(b, end_ns);
        else
            sched_yield(); /* the peer may be waiting for this very core */
    }
    return end(r);
}

tn_status ucx_test(struct tn_request *r)
{
    struct backend *b = r->comm->backend;
    if (r->status == TN_PENDING)
        ucx_advance(b);
    if (r->status == TN_PENDING && ++b->tests % TEST_LOOK == 0)
        look_around(r, ucx_now());
    return r->status == TN_PENDING ? TN_PENDING : end(r);
}

void ucx_progress(void *self)
{
    ucx_advance(self);
}
