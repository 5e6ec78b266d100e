/* Progress, waiting and failure; and the protocol that all of shm keeps.
 *
 * A comm's members share one block of memory: a slot for each (member, collective number
 * mod RING), a state for each collective number mod RING, channels for send and recv.
 *
 * A collective, seen from one rank (ops.c):
 *
 *   published  its slot is filled, then slot.seq := number + 1. The rank may go on computing.
 *   agreed     slot.seq of all members was seen. All descriptors are compared: all members see
 *              the same n descriptors and so come to the same verdict, TN_CONFLICT or go on.
 *   small      the payload is in the slots: each rank computes its own result from them. Done.
 *   direct     all buffers are in segments. Whoever passes by claims slices (compare-and-swap
 *              on state.parts), reads the members' inputs, writes the members' outputs and
 *              adds 1 to state.done. Done when state.done = all slices.
 *   staged     some buffer is private. The same, in rounds: a member with a private buffer
 *              copies a piece into its bounce area and adds 1 to state.ready; slices of a round
 *              can be claimed once all such members are ready for it; when state.done says
 *              that the round's slices are done, each copies its piece out and lays out the next.
 *              One staged collective at a time, in order, since the bounce area is one.
 *   done       in order of numbers, member.completed := number + 1.
 *
 * Why no buffer is touched too early or too late: inputs are written before seq (or ready),
 * which a worker reads before it reads them; a worker's writes come before its addition to
 * done, which the owner reads before it says done. A worker touches only slices it claimed,
 * and a collective with a claimed, unfinished slice is not done anywhere. Slot and state
 * number k are used again for k + RING only when all members' completed is above k, so nobody
 * reads or claims there any more; member 0 clears the state before its own seq.
 *
 * Sleeping: a rank sets bell.sleeping, looks at everything once more, and sleeps on bell.word.
 * Who makes a change (last to publish, last slice of a round, last to be ready, a message, a
 * failure) makes it before it reads bell.sleeping. All are sequentially consistent, so either
 * the sleeper sees the change or the maker sees the sleeper. A rank that dies anywhere leaves
 * at worst a claimed slice: the others' waits end by the bootstrap's word or by their timeout.
 *
 * A failure belongs to the whole comm and stays. A peer that holds a slice may write to the
 * output of a failed operation for that one slice longer: its contents are not defined, and its
 * memory must stay until comm_destroy.
 *
 * Calls marked [comm] come from one thread at a time for all comms of an instance: a wait in one
 * comm advances the others too, which is what keeps groups from waiting for each other. */
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm.h"

enum {
    TEST_POLL = 256, /* calls of test between two looks at the bootstrap */
    WRITING_MS = 100,
    PATIENCE_NS = 500 * 1000 * 1000
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

uint64_t shm_request_bytes(const struct tn_request *r)
{
    int wide = r->op == TN_CALL_ALL_GATHER || r->op == TN_CALL_REDUCE_SCATTER || r->op == TN_CALL_ALL_TO_ALL;
    return r->count * r->esize * (wide ? (uint64_t)r->comm->n : 1);
}

/* ---- errors ---- */

static void keep_error(struct tn_comm *c, int32_t peer, uint32_t op, uint64_t number, uint64_t bytes)
{
    c->error = (struct tn_comm_error){ sizeof c->error, peer, number, bytes, tn_call_name(op), c->error_text };
}

tn_status shm_error(struct tn_comm *c, tn_status status, int32_t peer, const struct tn_request *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->error_text, sizeof c->error_text, fmt, args);
    va_end(args);
    keep_error(c, peer, r->op, r->number, shm_request_bytes(r));
    return c->shm->host->fail(c->shm->host, status, "%s", c->error_text);
}

void shm_comm_fail(struct tn_comm *c, tn_status status, int32_t peer, const struct tn_request *r, const char *fmt, ...)
{
    struct shm_block *b = c->block;
    uint32_t whole = 0;
    if (!atomic_compare_exchange_strong(&b->failed, &whole, 1))
        return; /* the first failure is the one that matters */
    va_list args;
    va_start(args, fmt);
    vsnprintf(b->failed_text, sizeof b->failed_text, fmt, args);
    va_end(args);
    b->failed_peer = peer;
    b->failed_op = r ? (int32_t)r->op : -1;
    b->failed_number = r ? r->number : 0;
    b->failed_bytes = r ? shm_request_bytes(r) : 0;
    atomic_store(&b->failed, (uint32_t)-status);
    shm_ring_all(c, INT32_MAX);
}

void shm_comm_abort(struct tn_comm *c)
{
    shm_comm_fail(c, TN_ABORTED, -1, NULL, "group %s was aborted by rank %d", c->name, (int)c->ranks[c->me]);
}

/* The comm's failure as this rank's error. */
static tn_status take_failure(struct tn_comm *c)
{
    const struct shm_block *b = c->block;
    memcpy(c->error_text, b->failed_text, sizeof c->error_text);
    keep_error(c, b->failed_peer, (uint32_t)b->failed_op, b->failed_number, b->failed_bytes);
    return -(tn_status)atomic_load(&b->failed);
}

tn_status shm_failure(struct tn_comm *c)
{
    if (atomic_load(&c->block->failed) < 2)
        return TN_OK;
    tn_status st = take_failure(c);
    return c->shm->host->fail(c->shm->host, st, "%s", c->error_text);
}

static void end_flow(struct tn_comm *c, struct shm_flow *flow, tn_status status)
{
    for (struct tn_request *r = flow->head; r; r = flow->head) {
        flow->head = r->next;
        r->status = status;
        c->n_flows--;
    }
    flow->tail = NULL;
}

static void end_all(struct tn_comm *c, tn_status status)
{
    for (; c->head < c->next; c->head++) {
        struct tn_request **r = &c->ring[c->head % RING];
        if (*r)
            (*r)->status = status;
        *r = NULL;
    }
    for (int32_t i = 0; i < c->n; i++) {
        end_flow(c, &c->sends[i], status);
        end_flow(c, &c->recvs[i], status);
    }
}

/* ---- bells ---- */

static struct shm_bell *bell_of(struct tn_comm *c, int32_t member)
{
    return &c->shm->control->cells[c->seats[member]].bell;
}

void shm_ring(struct tn_comm *c, int32_t member)
{
    struct shm_bell *bell = bell_of(c, member);
    if (!atomic_load(&bell->sleeping) || !atomic_exchange(&bell->sleeping, 0))
        return;
    atomic_fetch_add(&bell->word, 1);
    shm_futex_wake(&bell->word);
}

void shm_ring_all(struct tn_comm *c, int32_t limit)
{
    for (int32_t i = 1; i <= c->n && limit > 0; i++) {
        int32_t m = c->me + i < c->n ? c->me + i : c->me + i - c->n;
        if (!atomic_load(&bell_of(c, m)->sleeping))
            continue;
        shm_ring(c, m);
        limit--;
    }
}

static void sleep_on_bell(struct tn_request *r, uint64_t ns)
{
    struct shm *s = r->comm->shm;
    struct shm_bell *bell = &s->control->cells[s->rank].bell;
    uint32_t seen = atomic_load(&bell->word);
    atomic_store(&bell->sleeping, 1);
    shm_advance(s, -1);
    if (r->status == TN_PENDING)
        shm_futex_wait(&bell->word, seen, ns);
    atomic_store(&bell->sleeping, 0);
}

/* ---- progress and waiting ---- */

void shm_activate(struct tn_comm *c)
{
    if (c->is_active)
        return;
    c->is_active = 1;
    c->next_active = c->shm->active;
    c->shm->active = c;
}

static void advance_comm(struct tn_comm *c, int budget)
{
    if (atomic_load(&c->block->failed) >= 2) {
        end_all(c, take_failure(c));
        return;
    }
    if (c->head < c->next)
        shm_ops_advance(c, budget);
    if (c->n_flows)
        shm_p2p_advance(c);
}

void shm_advance(struct shm *s, int budget)
{
    for (struct tn_comm **at = &s->active; *at;) {
        struct tn_comm *c = *at;
        advance_comm(c, budget);
        if (c->head < c->next || c->n_flows) {
            at = &c->next_active;
        } else {
            *at = c->next_active;
            c->is_active = 0;
        }
    }
}

static tn_status finish(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    tn_status st = r->status;
    r->next = c->shm->free_requests;
    c->shm->free_requests = r;
    return st == TN_OK ? TN_OK : c->shm->host->fail(c->shm->host, st, "%s", c->error_text);
}

static int32_t missing_rank(const struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    int32_t member = r->op >= TN_CALL_SEND ? r->root : shm_ops_missing(c, r);
    return member < 0 ? -1 : c->ranks[member];
}

static void describe(const struct tn_request *r, int32_t missing, char *to, size_t bytes)
{
    char who[64] = "a member stopped in the middle";
    if (missing >= 0)
        snprintf(who, sizeof who, "rank %d is missing", (int)missing);
    snprintf(to, bytes, "%s number %" PRIu64 " of group %s, %" PRIu64 " bytes: %s", tn_call_name(r->op), r->number,
             r->comm->name, shm_request_bytes(r), who);
}

static tn_status give_up(struct tn_request *r, uint64_t timeout_ns)
{
    char text[256];
    int32_t missing = missing_rank(r);
    describe(r, missing, text, sizeof text);
    return shm_error(r->comm, TN_TIMEOUT, missing, r, "%s after %.1f s", text, (double)timeout_ns / 1e9);
}

/* The member whose process has ended with its part undone. One that is late runs on. */
static int32_t gone_rank(const struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    for (int32_t i = 0; i < c->n; i++) {
        int is_awaited =
            r->op >= TN_CALL_SEND ? i == r->root : atomic_load(&c->block->members[i].completed) <= r->number;
        if (i != c->me && is_awaited && shm_is_gone(c->shm, c->seats[i]))
            return c->ranks[i];
    }
    return -1;
}

/* A death somewhere in the job. While the members live it may be none of this group's business: whoever is late has a
 * moment to come, so that it is not named for the one that died. */
static void check_peers(struct tn_request *r, uint64_t now)
{
    tn_status st = shm_poll(r->comm->shm, now);
    if (st == TN_OK || st == TN_PENDING)
        return;
    shm_advance(r->comm->shm, -1); /* what a rank left in order before it ended still counts */
    if (r->status != TN_PENDING)
        return;
    char text[256];
    int32_t missing = gone_rank(r);
    r->told_ns = r->told_ns ? r->told_ns : now;
    if (missing < 0 && now - r->told_ns < PATIENCE_NS)
        return;
    if (missing < 0)
        missing = missing_rank(r);
    describe(r, missing, text, sizeof text);
    shm_comm_fail(r->comm, TN_PEER, missing, r, "%s, and a rank of the job has died", text);
    shm_advance(r->comm->shm, 0);
    for (int turn = 0; r->status == TN_PENDING && turn < WRITING_MS; turn++) { /* another member is writing it down */
        usleep(1000);
        shm_advance(r->comm->shm, 0);
    }
    if (r->status == TN_PENDING) { /* that one died over it */
        atomic_store(&r->comm->block->failed, (uint32_t)-TN_PEER);
        shm_advance(r->comm->shm, 0);
    }
}

tn_status shm_wait(struct tn_request *r, uint64_t timeout_ns)
{
    struct shm *s = r->comm->shm;
    uint64_t start = 0, end = 0;
    for (uint32_t turn = 0;; turn++) {
        if (r->status == TN_PENDING)
            shm_advance(s, -1);
        if (r->status != TN_PENDING)
            return finish(r);
        if (turn < s->pauses) {
            relax();
            continue;
        }
        uint64_t now = shm_now();
        if (!start) {
            start = now;
            end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
        }
        check_peers(r, now);
        if (r->status != TN_PENDING)
            return finish(r);
        if (now >= end)
            return give_up(r, timeout_ns);
        if (now - start >= s->spin_ns)
            sleep_on_bell(r, end - now < POLL_NS ? end - now : POLL_NS);
        else
            sched_yield(); /* the peer may be waiting for this very core */
    }
}

tn_status shm_test(struct tn_request *r)
{
    struct shm *s = r->comm->shm;
    if (r->status == TN_PENDING)
        shm_advance(s, 1);
    if (r->status == TN_PENDING && ++s->tests % TEST_POLL == 0)
        check_peers(r, shm_now());
    return r->status == TN_PENDING ? TN_PENDING : finish(r);
}

void shm_progress(void *self)
{
    shm_advance(self, 1);
}

tn_status shm_last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    uint32_t bytes = error->struct_size < sizeof c->error ? error->struct_size : (uint32_t)sizeof c->error;
    if (!c->error.message)
        return TN_NOT_FOUND;
    memcpy(error, &c->error, bytes);
    error->struct_size = bytes;
    return TN_OK;
}
