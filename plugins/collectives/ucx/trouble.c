/* Trouble: errors and their texts, who is missing, who is gone, members that call different things.
 *
 * Who is missing is asked only once a wait takes long: each member answers whether it has come to the collective in
 * question; one that does not answer is dead, stopped, cut off or busy elsewhere. That costs nothing as long as all goes
 * well, and names the cause rather than the neighbour that waits for it, too.
 *
 * Members that call different things: whoever sees a message that does not fit its operation tells all what it calls
 * itself, and so does everyone who hears that. Each compares with member 0, so all come to the same verdict. */
#include "backend.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    SPLIT_NS = 1000 * 1000 * 1000,
    DEAD_NS = 1000 * 1000 * 1000,
    PATIENCE_NS = 500 * 1000 * 1000,
    ASK_NS = 400 * 1000 * 1000,
    ANSWER_NS = 100 * 1000 * 1000
};

uint64_t ucx_request_bytes(const struct tn_request *r)
{
    int wide = r->op == TN_CALL_ALL_GATHER || r->op == TN_CALL_REDUCE_SCATTER || r->op == TN_CALL_ALL_TO_ALL;
    return r->count * r->esize * (wide ? (uint64_t)r->comm->n : 1);
}

/* ---- errors ---- */

static void keep_error(struct tn_comm *c, const struct tn_request *r, int32_t peer, const char *fmt, va_list args)
{
    int at = r ? snprintf(c->error_text, sizeof c->error_text,
                          "ucx: %s number %" PRIu64 " of group %s, %" PRIu64 " bytes: ", tn_call_name(r->op), r->number,
                          c->name, ucx_request_bytes(r))
               : snprintf(c->error_text, sizeof c->error_text, "ucx: group %s: ", c->name);
    vsnprintf(c->error_text + at, sizeof c->error_text - (size_t)at, fmt, args);
    c->error = (struct tn_comm_error){ .struct_size = sizeof c->error,
                                       .peer = peer,
                                       .op_number = r ? r->number : 0,
                                       .bytes = r ? ucx_request_bytes(r) : 0,
                                       .op = r ? tn_call_name(r->op) : "",
                                       .message = c->error_text };
}

tn_status ucx_error(struct tn_comm *c, const struct tn_request *r, tn_status status, int32_t peer, const char *fmt, ...)
{
    struct tn_request named = *r;
    va_list args;
    named.comm = c;
    va_start(args, fmt);
    keep_error(c, &named, peer, fmt, args);
    va_end(args);
    return c->backend->host->fail(c->backend->host, status, "%s", c->error_text);
}

static const char *blame_key(int32_t rank, char *key, size_t bytes)
{
    snprintf(key, bytes, "ucx/blames/%d", (int)rank);
    return key;
}

/* Whoever ends because of a death says so before, for it is gone then as well. */
static void say_blame(struct backend *b, int32_t peer)
{
    char key[48];
    if (!b->has_blamed)
        (void)b->bootstrap.put(b->bootstrap.ctx, blame_key(b->rank, key, sizeof key), &peer, sizeof peer);
    b->has_blamed = 1;
}

static int has_blamed(const struct backend *b, int32_t rank)
{
    char key[48];
    int32_t peer;
    uint32_t bytes = sizeof peer;
    return b->bootstrap.get(b->bootstrap.ctx, blame_key(rank, key, sizeof key), &peer, &bytes) == TN_OK;
}

static void end_list(struct tn_request *r, tn_status status)
{
    while (r) {
        struct tn_request *next = r->next;
        r->status = status;
        r->next = r->prev = NULL;
        while (r->held) {
            struct ucx_in *in = r->held;
            r->held = in->next;
            ucx_drop(in);
        }
        r = next;
    }
}

void ucx_comm_fail(struct tn_comm *c, const struct tn_request *r, tn_status status, int32_t peer, const char *fmt, ...)
{
    if (c->failed)
        return;
    va_list args;
    va_start(args, fmt);
    keep_error(c, r, peer, fmt, args);
    va_end(args);
    c->failed = status;
    c->backend->is_broken = 1;
    if (status == TN_PEER)
        say_blame(c->backend, peer);
    end_list(c->first, status);
    end_list(c->messages, status);
    c->first = c->last = c->messages = c->owner = NULL;
    memset(c->bucket, 0, sizeof c->bucket);
    for (int32_t i = 0; i < c->n; i++)
        c->flows[i].waiting = NULL;
}

tn_status ucx_failure(struct tn_comm *c)
{
    if (atomic_load_explicit(&c->is_aborted, memory_order_relaxed))
        ucx_comm_fail(c, NULL, TN_ABORTED, -1, "the group was aborted");
    return c->failed ? c->backend->host->fail(c->backend->host, c->failed, "%s", c->error_text) : TN_OK;
}

tn_status ucx_last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    uint32_t bytes = error->struct_size < sizeof c->error ? error->struct_size : (uint32_t)sizeof c->error;
    if (!c->error.message)
        return TN_NOT_FOUND;
    memcpy(error, &c->error, bytes);
    error->struct_size = bytes;
    return TN_OK;
}

/* ---- who is missing ---- */

static struct ucx_head notice(const struct tn_comm *c, int kind, uint64_t number, uint32_t piece)
{
    return (struct ucx_head){
        .key = c->key, .turn = c->turn, .kind = (uint16_t)kind, .from = c->me, .piece = piece, .number = number
    };
}

static void tell_all(struct tn_comm *c, struct ucx_head head)
{
    for (int32_t i = 0; i < c->n; i++)
        if (i != c->me && !c->backend->peers[c->ranks[i]].is_dead)
            ucx_say(c, NULL, i, head, NULL, 0);
}

void ucx_answer(struct tn_comm *c, const struct ucx_head *h)
{
    if (h->number == c->asked)
        c->answers[h->from] = (struct ucx_answer){ c->round, h->piece != 0 };
}

static void ask_all(struct tn_comm *c, uint64_t number, uint64_t now)
{
    if (c->asked != number || !c->round) {
        memset(c->answers, 0, (size_t)c->n * sizeof *c->answers);
        c->round = 0;
    }
    c->asked = number;
    c->asked_ns = now;
    c->round++;
    tell_all(c, notice(c, KIND_ASK, number, 0));
}

void ucx_ask(struct tn_request *r, uint64_t now)
{
    struct tn_comm *c = r->comm;
    int is_new = !c->round || c->asked != r->number;
    if (r->op < TN_CALL_SEND && now - (is_new ? r->waited_ns : c->asked_ns) >= ASK_NS)
        ask_all(c, r->number, now);
}

static int is_gone(const struct backend *b, int32_t rank)
{
    const struct ucx_peer *p = &b->peers[rank];
    return p->is_dead || (p->is_near && kill(p->pid, 0) < 0 && errno == ESRCH);
}

/* Of several the one that ended without having blamed another. */
static int32_t first_gone(const struct tn_comm *c)
{
    int32_t gone = -1;
    for (int32_t i = 0; i < c->n; i++) {
        if (i == c->me || !is_gone(c->backend, c->ranks[i]))
            continue;
        if (!has_blamed(c->backend, c->ranks[i]))
            return c->ranks[i];
        gone = gone < 0 ? c->ranks[i] : gone;
    }
    return gone;
}

/* A member that does not answer before one that says it has not come: that one may be waiting, elsewhere, for the first.
 * The answers to the round before this one count, while those to this one are on their way. */
static int32_t first_absent(const struct tn_comm *c, int are_late)
{
    int32_t absent = -1;
    for (int32_t i = 0; i < c->n; i++) {
        if (i == c->me)
            continue;
        if (c->answers[i].round + (are_late ? 0 : 1) < c->round)
            return c->ranks[i];
        if (!c->answers[i].is_there && absent < 0)
            absent = c->ranks[i];
    }
    return absent;
}

static int have_all_answered(const struct tn_comm *c)
{
    for (int32_t i = 0; i < c->n; i++)
        if (i != c->me && c->answers[i].round < c->round)
            return 0;
    return 1;
}

int32_t ucx_missing(struct tn_request *r, uint64_t patience_ns)
{
    struct tn_comm *c = r->comm;
    uint64_t now = ucx_now(), until_ns = now + patience_ns;
    if (r->op >= TN_CALL_SEND)
        return c->ranks[r->peer];
    int32_t gone = first_gone(c);
    if (gone >= 0)
        return gone;
    if (patience_ns) {
        ask_all(c, r->number, now);
        while (r->status == TN_PENDING && gone < 0 && !have_all_answered(c) && ucx_now() < until_ns) {
            if (!ucx_advance(c->backend))
                ucx_sleep(c->backend, until_ns);
            gone = first_gone(c); /* a lost connection shows once something was sent over it */
        }
        return r->status != TN_PENDING ? -1 : gone >= 0 ? gone : first_absent(c, 1);
    }
    if (!c->round || c->asked != r->number || (c->round == 1 && now - c->asked_ns < ANSWER_NS))
        return -1;
    return first_absent(c, now - c->asked_ns >= ANSWER_NS);
}

/* ---- who is gone ---- */

void ucx_peer_failed(struct backend *b, int32_t rank, ucs_status_t status)
{
    struct ucx_peer *peer = &b->peers[rank];
    if (peer->is_dead)
        return;
    peer->is_dead = 1;
    peer->why = status;
    b->has_dead = 1;
    b->dead_ns = ucx_now();
}

static int32_t member_of(const struct tn_comm *c, int32_t rank)
{
    int32_t m = 0;
    while (m < c->n && c->ranks[m] != rank)
        m++;
    return m;
}

void ucx_gone(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    ucx_advance(c->backend); /* what a rank sent before it ended still counts */
    int32_t rank = r->status == TN_PENDING ? ucx_missing(r, PATIENCE_NS) : -1;
    if (r->status != TN_PENDING)
        return;
    struct ucx_head head = notice(c, KIND_FAILED, r->number, rank < 0 ? (uint32_t)c->n : (uint32_t)member_of(c, rank));
    tell_all(c, head);
    if (rank >= 0)
        ucx_comm_fail(c, r, TN_PEER, rank, "rank %d is missing, and a rank of the job has died", (int)rank);
    else
        ucx_comm_fail(c, r, TN_PEER, -1, "a rank of the job has died");
}

void ucx_failed_there(struct tn_comm *c, const struct ucx_head *h)
{
    const struct tn_request *r = ucx_op_find(c, h->number);
    int32_t rank = h->piece < (uint32_t)c->n ? c->ranks[h->piece] : -1;
    if (rank < 0 || !is_gone(c->backend, rank)) { /* the other may have taken one that is late for the one that died */
        int32_t gone = first_gone(c);
        rank = gone >= 0 ? gone : rank == c->backend->rank ? -1 : rank;
    }
    if (rank >= 0)
        ucx_comm_fail(c, r ? r : c->first, TN_PEER, rank, "rank %d is missing, and a rank of the job has died",
                      (int)rank);
    else
        ucx_comm_fail(c, r ? r : c->first, TN_PEER, -1, "rank %d says that a rank of the job has died",
                      (int)c->ranks[h->from]);
}

/* A lost connection may be that of a rank which has done all its part and left; so operations have a moment to end. */
void ucx_look_at_dead(struct backend *b, uint64_t now)
{
    if (now - b->dead_ns < DEAD_NS)
        return;
    for (struct tn_comm *c = b->comms; c; c = c->next)
        for (int32_t i = 0; i < c->n && !c->failed; i++) {
            const struct ucx_peer *peer = &b->peers[c->ranks[i]];
            const struct tn_request *r = c->first ? c->first : c->messages;
            if (!peer->is_dead || !r || (!c->first && r->peer != i))
                continue;
            const char *hint = peer->is_near ? "; if it lives, its memory may be closed to this one (ptrace): try "
                                               "[ucx] transports = ^cma"
                                             : "";
            ucx_comm_fail(c, r, TN_PEER, c->ranks[i], "the connection to rank %d is lost (%s)%s", (int)c->ranks[i],
                          ucs_status_string(peer->why), hint);
        }
}

/* ---- members that disagree ---- */

static void tell_own_call(struct tn_comm *c)
{
    const struct ucx_call *mine = &c->past[c->split_at % BUCKETS];
    if (c->has_told || c->split_at >= c->number || c->split_at + BUCKETS <= c->number)
        return;
    struct ucx_head head = notice(c, KIND_CONFLICT, c->split_at, 0);
    head.what = mine->what;
    head.count = mine->count;
    head.root = mine->root;
    c->has_told = 1;
    c->calls[c->me] = *mine;
    tell_all(c, head);
}

void ucx_split(struct tn_comm *c, uint64_t number)
{
    if (!c->is_split) {
        c->is_split = 1;
        c->split_at = number;
        c->split_ns = ucx_now();
    }
    tell_own_call(c);
}

void ucx_split_told(struct tn_comm *c, const struct ucx_head *h)
{
    ucx_split(c, h->number);
    if (h->number == c->split_at)
        c->calls[h->from] = (struct ucx_call){ 1, h->what, h->root, h->count };
}

static void describe(const struct ucx_call *call, char *text, size_t bytes)
{
    uint32_t op = call->what & 0xff, dtype = call->what >> 8 & 0xff, red = call->what >> 16;
    if (op == TN_CALL_BARRIER)
        snprintf(text, bytes, "barrier");
    else if (op == TN_CALL_BROADCAST)
        snprintf(text, bytes, "broadcast of %" PRIu64 " %s from member %d", call->count, tn_call_dtype_name(dtype),
                 (int)call->root);
    else
        snprintf(text, bytes, "%s of %" PRIu64 " %s%s", tn_call_name(op), call->count, tn_call_dtype_name(dtype),
                 op != TN_CALL_ALL_REDUCE && op != TN_CALL_REDUCE_SCATTER ? ""
                 : red == TN_RED_MAX                                      ? " (max)"
                                                                          : " (sum)");
}

static int do_differ(const struct ucx_call *x, const struct ucx_call *y)
{
    return x->is_known && y->is_known && (x->what != y->what || x->count != y->count || x->root != y->root);
}

void ucx_split_look(struct tn_comm *c, uint64_t now)
{
    int is_late = now - c->split_ns > SPLIT_NS;
    int32_t first = 0, other = 1;
    while (other < c->n && !do_differ(&c->calls[first], &c->calls[other]) && (is_late || c->calls[other].is_known))
        other++;
    if (!is_late && (other == c->n || !do_differ(&c->calls[first], &c->calls[other])))
        return;
    for (; is_late && first < c->n; first++) { /* with what is known by now */
        for (other = 0; other < c->n && !do_differ(&c->calls[first], &c->calls[other]); other++)
            ;
        if (other < c->n)
            break;
    }
    const struct tn_request *r = ucx_op_find(c, c->split_at);
    if (first >= c->n || other >= c->n) {
        ucx_comm_fail(c, r ? r : c->first, TN_CONFLICT, -1, "members call different things");
        return;
    }
    char ours[96], theirs[96];
    describe(&c->calls[first], ours, sizeof ours);
    describe(&c->calls[other], theirs, sizeof theirs);
    ucx_comm_fail(c, r ? r : c->first, TN_CONFLICT, c->ranks[other], "rank %d calls %s, rank %d calls %s",
                  (int)c->ranks[first], ours, (int)c->ranks[other], theirs);
}
