/* Requests: announce, compare, move.
 *
 * A collective is announced at once: an all_gather of 32 bytes a member, in a second group of the same members, so
 * that announcements and operations each keep one order on all members, however they interleave. An announced
 * collective starts when all members' announcements are here and equal and those before it have started. All members
 * see the same announcements, so all come to the same verdict. Nothing here blocks but wait. */
#include "verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SLICE_NS = 200 * 1000 }; /* of a wait, while other groups have announcements to look at */

/* ---- requests ---- */

struct tn_request *verify_request_new(struct tn_comm *c)
{
    struct tn_request *r = c->unused;
    uint64_t bytes = sizeof *r + (uint64_t)c->n * sizeof *r->all;
    if (r) {
        c->unused = r->next;
    } else {
        r = c->verify->host->alloc(c->verify->host, bytes);
        if (!r)
            return NULL;
        r->next_made = c->made;
        c->made = r;
    }
    struct tn_request *next_made = r->next_made;
    memset(r, 0, bytes);
    r->next_made = next_made;
    r->comm = c;
    return r;
}

void verify_recycle(struct tn_request *r)
{
    r->next = r->comm->unused;
    r->comm->unused = r;
}

/* One whose gathering failed may still be written to: it is not used again before its group is gone. */
static tn_status end(struct tn_request *r)
{
    tn_status status = r->status;
    if (status == TN_OK || !r->below)
        verify_recycle(r);
    return status;
}

/* ---- errors ---- */

static void keep_error(struct tn_comm *c, const struct tn_request *r, int32_t peer)
{
    c->has_error = 1;
    c->is_late = 0;
    c->error = (struct tn_comm_error){ .struct_size = sizeof c->error,
                                       .peer = peer,
                                       .op_number = r->mine.number,
                                       .bytes = r->mine.count * tn_call_dtype_bytes(r->mine.dtype),
                                       .op = tn_call_name(r->mine.op),
                                       .message = c->error_text };
}

/* The announcements could not be gathered (yet): what the backend says, in the words of the operation. */
static void describe_silence(struct tn_comm *c)
{
    struct tn_comm_error below = { .struct_size = sizeof below, .peer = -1 };
    if (c->verify->next->last_error(c->talk, &below) != TN_OK)
        below.message = NULL;
    char who[32] = "";
    if (below.peer >= 0)
        snprintf(who, sizeof who, "rank %d ", (int)below.peer);
    c->error.peer = below.peer;
    snprintf(c->error_text, sizeof c->error_text, "group %s, %s number %" PRIu64 ": %s%s (%s)", c->name, c->error.op,
             c->error.op_number, who, *who ? "has not announced it" : "not all members have announced it",
             below.message ? below.message : "no reason given");
}

/* A wait may be a slice of one that goes on, and a backend may take a while to say who is missing: it is asked when
 * somebody wants to know. */
static tn_status tell_silence(const struct tn_request *r, tn_status status)
{
    struct tn_comm *c = r->comm;
    keep_error(c, r, -1);
    c->is_late = status == TN_TIMEOUT;
    if (c->is_late)
        snprintf(c->error_text, sizeof c->error_text,
                 "group %s, %s number %" PRIu64 ": not all members have announced it", c->name, c->error.op,
                 r->mine.number);
    else
        describe_silence(c);
    return c->verify->host->fail(c->verify->host, status, "%s", c->error_text);
}

static void describe(const struct announcement *a, char *text, size_t bytes)
{
    int at = snprintf(text, bytes, "%s", tn_call_name(a->op));
    if (a->op == TN_CALL_BARRIER)
        return;
    if (a->op == TN_CALL_ALL_REDUCE || a->op == TN_CALL_REDUCE_SCATTER)
        at += snprintf(text + at, bytes - (size_t)at, " (%s)", a->red == TN_RED_MAX ? "max" : "sum");
    at += snprintf(text + at, bytes - (size_t)at, " of %" PRIu64 " %s", a->count, tn_call_dtype_name(a->dtype));
    if (a->op == TN_CALL_BROADCAST)
        snprintf(text + at, bytes - (size_t)at, " from member %d", (int)a->root);
}

/* Member `other` is the first whose announcement differs from member 0's. */
static tn_status tell_difference(const struct tn_request *r, int32_t other)
{
    struct tn_comm *c = r->comm;
    char first[128], second[128];
    describe(&r->all[0], first, sizeof first);
    describe(&r->all[other], second, sizeof second);
    keep_error(c, r, c->ranks[other]);
    snprintf(c->error_text, sizeof c->error_text,
             "group %s, collective number %" PRIu64 ": rank %d calls %s, but rank %d calls %s", c->name, r->mine.number,
             (int)c->ranks[other], second, (int)c->ranks[0], first);
    return c->verify->host->fail(c->verify->host, TN_CONFLICT, "%s", c->error_text);
}

/* ---- from announced to moving ---- */

tn_status verify_announce(struct tn_comm *c, const struct tn_call *what, struct tn_request **out)
{
    const struct verify *v = c->verify;
    if (c->failed)
        return v->host->fail(v->host, c->failed, "group %s has failed: %s", c->name, c->error_text);
    struct tn_request *r = verify_request_new(c);
    if (!r)
        return v->host->fail(v->host, TN_NO_MEMORY, "no memory for a request");
    r->call = *what;
    r->mine = (struct announcement){ .number = c->number,
                                     .count = what->count,
                                     .op = what->op,
                                     .dtype = what->dtype,
                                     .red = what->red,
                                     .root = what->peer };
    tn_status status = v->next->all_gather(c->talk, &r->mine, r->all, WORDS, TN_I32, NULL, &r->below);
    if (status != TN_OK) {
        r->below = NULL;
        verify_recycle(r);
        return tell_silence(r, status);
    }
    c->number++;
    *c->last = r;
    c->last = &r->next;
    *out = r;
    verify_advance(c->verify);
    return TN_OK;
}

static tn_status compare(const struct tn_request *r)
{
    for (int32_t i = 1; i < r->comm->n; i++)
        if (memcmp(&r->all[i], &r->all[0], sizeof r->all[0]) != 0)
            return tell_difference(r, i);
    return TN_OK;
}

/* ---- sums of results ---- */

static uint64_t result_bytes(const struct tn_request *r)
{
    const struct announcement *a = &r->mine;
    uint64_t blocks = a->op == TN_CALL_ALL_GATHER ? (uint64_t)r->comm->n : 1;
    int is_common = a->op == TN_CALL_ALL_REDUCE || a->op == TN_CALL_ALL_GATHER || a->op == TN_CALL_BROADCAST;
    return is_common ? blocks * a->count * tn_call_dtype_bytes(a->dtype) : 0;
}

/* Four streams of multiply and add, so that it keeps up with memory; any bit that differs shows. */
static uint64_t sum_of(const unsigned char *p, uint64_t bytes)
{
    uint64_t lane[4] = { 1, 2, 3, 4 }, word;
    uint64_t words = bytes / sizeof word;
    for (uint64_t i = 0; i < words; i++) {
        memcpy(&word, p + i * sizeof word, sizeof word);
        lane[i % 4] = (lane[i % 4] ^ word) * UINT64_C(0x9e3779b97f4a7c15) + 1;
        lane[i % 4] ^= lane[i % 4] >> 29;
    }
    for (uint64_t i = words * sizeof word; i < bytes; i++)
        lane[i % 4] = (lane[i % 4] ^ p[i]) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    return lane[0] ^ lane[1] * 3 ^ lane[2] * 5 ^ lane[3] * 7;
}

/* The first member whose sum is not that of most; -1: all are equal. */
static int32_t find_odd(const uint64_t *sums, int32_t n)
{
    int32_t most = 0, votes = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t same = 0;
        for (int32_t k = 0; k < n; k++)
            same += sums[k] == sums[i];
        if (same > votes) {
            most = i;
            votes = same;
        }
    }
    for (int32_t i = 0; i < n; i++)
        if (sums[i] != sums[most])
            return i;
    return -1;
}

static tn_status compare_sums(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    int32_t odd = find_odd((const uint64_t *)(const void *)r->all, c->n);
    if (odd < 0)
        return TN_OK;
    char what[128];
    describe(&r->mine, what, sizeof what);
    keep_error(c, r, c->ranks[odd]);
    snprintf(c->error_text, sizeof c->error_text,
             "group %s, collective number %" PRIu64
             ", %s: rank %d has another result than %s, though all must have the "
             "same",
             c->name, r->mine.number, what, (int)c->ranks[odd], c->n > 2 ? "the other ranks" : "its peer");
    c->failed = TN_CONFLICT;
    return c->verify->host->fail(c->verify->host, TN_CONFLICT, "%s", c->error_text);
}

/* Operations that ended are summed in their order, whenever each did; so the sums have one order on all members. */
static void advance_sums(struct tn_comm *c)
{
    const struct tn_collective *next = c->verify->next;
    while (c->moving) {
        struct tn_request *r = c->moving;
        tn_status status = r->below ? next->test(r->below) : TN_OK; /* NULL: wait has seen its end */
        if (status == TN_PENDING)
            return;
        r->below = NULL;
        c->moving = r->next;
        if (!c->moving)
            c->last_moving = &c->moving;
        if (status == TN_OK) {
            r->sum = sum_of(r->call.recv, result_bytes(r));
            status = next->all_gather(c->sums, &r->sum, r->all, 1, TN_I64, NULL, &r->below);
        }
        r->stage = status == TN_OK ? COMPARING : ENDED;
        r->status = status;
        if (status != TN_OK) {
            r->below = NULL;
            c->has_error = 0;
        }
    }
}

/* Ends all that is announced in a group: its members will not start it. Their gatherings stay under way. */
static void fail_announced(struct tn_comm *c, tn_status status)
{
    c->failed = status;
    for (struct tn_request *r = c->first; r; r = r->next) {
        r->stage = ENDED;
        r->status = status;
    }
    c->first = NULL;
    c->last = &c->first;
}

static void advance_comm(struct tn_comm *c)
{
    const struct tn_collective *next = c->verify->next;
    while (c->first) {
        struct tn_request *r = c->first;
        tn_status status = r->below ? next->test(r->below) : TN_OK; /* NULL: wait has seen its end */
        if (status == TN_PENDING)
            return;
        r->below = NULL;
        if (status != TN_OK) {
            fail_announced(c, tell_silence(r, status));
            return;
        }
        status = compare(r);
        if (status != TN_OK) {
            fail_announced(c, status);
            return;
        }
        c->first = r->next;
        if (!c->first)
            c->last = &c->first;
        r->status = tn_call_pass(next, c->data, &r->call, &r->below);
        r->stage = r->status == TN_OK ? MOVING : ENDED;
        r->is_compared = c->sums && result_bytes(r) > 0;
        if (r->status != TN_OK) {
            r->below = NULL;
            c->has_error = 0;
        } else if (r->is_compared) {
            r->next = NULL;
            *c->last_moving = r;
            c->last_moving = &r->next;
        }
    }
}

void verify_advance(struct verify *v)
{
    for (struct tn_comm *c = v->comms; c; c = c->next_comm) {
        advance_comm(c);
        advance_sums(c);
    }
}

/* ---- test and wait ---- */

/* What the backend said of the operation itself. */
static tn_status finish(struct tn_request *r, tn_status status)
{
    if (status != TN_OK)
        r->comm->has_error = 0;
    if (status != TN_PENDING && status != TN_TIMEOUT)
        verify_recycle(r);
    return status;
}

static tn_status finish_compared(struct tn_request *r)
{
    tn_status status = compare_sums(r);
    verify_recycle(r);
    return status;
}

tn_status verify_test(struct tn_request *r)
{
    verify_advance(r->comm->verify);
    if (r->stage == ENDED)
        return end(r);
    if (r->stage == ANNOUNCED || (r->stage == MOVING && r->is_compared))
        return TN_PENDING;
    tn_status status = r->comm->verify->next->test(r->below);
    if (r->stage == COMPARING && status == TN_OK)
        return finish_compared(r);
    return finish(r, status);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int others_announced(const struct tn_request *r)
{
    for (const struct tn_comm *c = r->comm->verify->comms; c; c = c->next_comm)
        if ((c->first && (c != r->comm || r->stage != ANNOUNCED)) || (c->moving && (c != r->comm || !r->is_compared)))
            return 1;
    return 0;
}

/* The oldest operation that is to be summed has ended. */
static void end_moving(struct tn_request *r, tn_status status)
{
    struct tn_comm *c = r->comm;
    r->below = NULL;
    if (status == TN_OK)
        return; /* advance_sums goes on with it */
    c->moving = r->next;
    if (!c->moving)
        c->last_moving = &c->moving;
    c->has_error = 0;
    r->stage = ENDED;
    r->status = status;
}

tn_status verify_wait(struct tn_request *r, uint64_t timeout_ns)
{
    const struct tn_collective *next = r->comm->verify->next;
    uint64_t began_ns = now_ns();
    for (;;) {
        verify_advance(r->comm->verify);
        if (r->stage == ENDED)
            return end(r);
        uint64_t spent_ns = now_ns() - began_ns, left_ns = spent_ns < timeout_ns ? timeout_ns - spent_ns : 0;
        int sliced = left_ns > SLICE_NS && others_announced(r);
        uint64_t slice_ns = sliced ? SLICE_NS : left_ns;
        if (r->stage == COMPARING || (r->stage == MOVING && !r->is_compared)) {
            tn_status status = next->wait(r->below, slice_ns);
            if (r->stage == COMPARING && status == TN_OK)
                return finish_compared(r);
            if (status != TN_TIMEOUT || !sliced)
                return finish(r, status);
            continue;
        }
        if (r->stage == MOVING) { /* those before it are summed before it */
            struct tn_request *before = r->comm->moving;
            tn_status status = next->wait(before->below, slice_ns);
            if (status == TN_TIMEOUT && !sliced)
                return finish(r, status);
            if (status != TN_TIMEOUT)
                end_moving(before, status);
            continue;
        }
        struct tn_request *head = r->comm->first;
        tn_status status = next->wait(head->below, slice_ns);
        if (status == TN_OK) {
            head->below = NULL;
        } else if (status != TN_TIMEOUT) {
            head->below = NULL;
            fail_announced(r->comm, tell_silence(head, status));
        } else if (!sliced) {
            return tell_silence(r, TN_TIMEOUT);
        }
    }
}

tn_status verify_last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    if (!c->has_error)
        return c->verify->next->last_error(c->data, error);
    if (c->is_late)
        describe_silence(c);
    c->is_late = 0;
    uint32_t bytes = error->struct_size < sizeof c->error ? error->struct_size : (uint32_t)sizeof c->error;
    memcpy(error, &c->error, bytes);
    error->struct_size = bytes;
    return TN_OK;
}
