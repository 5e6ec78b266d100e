/* hier: one backend over two others, the inner among the ranks of a host and the outer across hosts.
 *
 * A group inside a host goes to the inner one as it is, a group with one rank a host to the outer one; a group that
 * spans hosts with several ranks on some goes through both (pieces.c, stages.c). So a job that says backend = hier
 * needs not know which of its groups span. This file is the table, the instance's life, waiting, and errors. */
#include "hier.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A wait for one of several things is cut into slices, since the others may have to be led on: short ones for as long
 * as operations take, then a share of what was waited. */
enum {
    LOOK_NS = 50 * 1000 * 1000,
    BUSY_NS = 20 * 1000 * 1000,
    SHORTEST_NS = 50 * 1000,
    LONGEST_NS = 5 * 1000 * 1000,
    SHARE = 4
};
enum { HEAR_NS = 1000 * 1000 * 1000, HEAR_NAP_NS = 2 * 1000 * 1000, HOPS = 4 };

uint64_t hier_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the life of the backend ---- */

static tn_status open_side(const struct tn_host *host, const struct tn_backends_api *backends, const char *key,
                           struct side *side)
{
    const char *name = host->get_string(host, key);
    return backends->open(host, name, &side->table, &side->self);
}

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    if (next || next_self)
        return host->fail(host, TN_INVALID, "hier is a backend; the two that it stands on are [hier] inner and outer");
    const struct tn_backends_api *backends = host->get_api(host, "tn.backends/1");
    if (!backends)
        return host->fail(host, TN_INVALID, "hier needs a host that opens other backends (tn.backends/1)");
    struct hier *h = host->alloc(host, sizeof *h);
    if (!h)
        return host->fail(host, TN_NO_MEMORY, "no memory for a hier instance");
    memset(h, 0, sizeof *h);
    h->host = host;
    h->small_bytes = (uint64_t)host->get_int(host, "small");
    h->chunk_bytes = (uint64_t)host->get_int(host, "chunk");
    tn_status status = open_side(host, backends, "inner", &h->inner);
    if (status == TN_OK)
        status = open_side(host, backends, "outer", &h->outer);
    if (status != TN_OK) {
        host->release(host, h);
        return status;
    }
    *self = h;
    return TN_OK;
}

static void destroy(void *self)
{
    struct hier *h = self;
    if (!h)
        return;
    hier_forget(h);
    h->host->release(h->host, h);
}

static tn_status caps(void *self, struct tn_collective_caps *caps)
{
    struct hier *h = self;
    struct tn_collective_caps inner = { .struct_size = sizeof inner }, outer = { .struct_size = sizeof outer };
    tn_status status = h->inner.table->caps(h->inner.self, &inner);
    if (status == TN_OK)
        status = h->outer.table->caps(h->outer.self, &outer);
    struct tn_collective_caps have = {
        .struct_size = caps->struct_size < sizeof have ? caps->struct_size : (uint32_t)sizeof have,
        .in_place_peers = inner.in_place_peers,
        .dtypes = inner.dtypes & outer.dtypes,
        .needs_progress = 1,
        .host_memory = inner.host_memory & outer.host_memory,
        .device_memory = inner.device_memory & outer.device_memory,
        .one_host = outer.one_host,
        .nested_sums = 1,
    };
    if (!(have.dtypes >> TN_F32 & 1))
        have.dtypes &= ~(UINT64_C(1) << TN_BF16); /* its sums are made in fp32 */
    h->dtypes = have.dtypes;
    memcpy(caps, &have, have.struct_size);
    return status;
}

/* The core has connected the two below before. */
static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct hier *h = self;
    struct tn_collective_caps can = { .struct_size = sizeof can };
    memcpy(&h->bootstrap, bootstrap,
           bootstrap->struct_size < sizeof *bootstrap ? bootstrap->struct_size : sizeof *bootstrap);
    tn_status status = caps(h, &can);
    return status == TN_OK ? hier_say_host(h) : status;
}

static tn_status mem_alloc(void *self, uint64_t bytes, void **memory)
{
    const struct hier *h = self;
    return h->inner.table->mem_alloc(h->inner.self, bytes, memory);
}

static void mem_free(void *self, void *memory)
{
    const struct hier *h = self;
    h->inner.table->mem_free(h->inner.self, memory);
}

/* ---- errors ---- */

/* Ranks that give up say for whom they waited. Whoever that is may be waiting for somebody else, perhaps in another
 * group, where an earlier operation holds it up; from one to the next the chain leads to the rank that says nothing. */
static const char *blame_key(int32_t rank, char *key, size_t bytes)
{
    snprintf(key, bytes, "hier/blames/%d", (int)rank);
    return key;
}

static void say_blame(const struct tn_bootstrap *boot, int32_t peer)
{
    char key[48];
    (void)boot->put(boot->ctx, blame_key(boot->rank, key, sizeof key), &peer, sizeof peer);
}

static tn_status hear_blame(const struct tn_bootstrap *boot, int32_t rank, uint64_t until_ns, int32_t *blamed)
{
    char key[48];
    for (;;) {
        uint32_t bytes = sizeof *blamed;
        tn_status status = boot->get(boot->ctx, blame_key(rank, key, sizeof key), blamed, &bytes);
        if (status != TN_PENDING || hier_now() >= until_ns)
            return status;
        nanosleep(&(struct timespec){ .tv_nsec = HEAR_NAP_NS }, NULL);
    }
}

/* Where the backend below cannot tell for whom this rank waits: the first member that does not give up itself. */
static int32_t find_silent(const struct tn_comm *c, uint64_t until_ns)
{
    int32_t blamed;
    for (int32_t i = 0; i < c->n; i++)
        if (i != c->me && hear_blame(&c->hier->bootstrap, c->ranks[i], until_ns, &blamed) == TN_PENDING)
            return c->ranks[i];
    return -1;
}

/* Only for who gives up: it takes a while, and is said once. After a death whoever still speaks is not the one. */
static int32_t find_culprit(struct tn_comm *c, int32_t peer, int is_death)
{
    const struct tn_bootstrap *boot = &c->hier->bootstrap;
    uint64_t until_ns = hier_now() + HEAR_NS;
    if (peer == boot->rank) /* a neighbour only thought so, and this one came late to hear it */
        peer = -1;
    say_blame(boot, peer);
    for (int hop = 0; hop < HOPS && peer >= 0; hop++) {
        int32_t next = -1;
        if (hear_blame(boot, peer, until_ns, &next) != TN_OK)
            return peer;
        int is_circle = next == peer || next == boot->rank;
        if (is_circle && !is_death)
            return peer;
        peer = is_circle ? -1 : next;
    }
    return find_silent(c, until_ns);
}

static uint64_t bytes_of(const struct tn_request *r)
{
    int wide =
        r->call.op == TN_CALL_ALL_GATHER || r->call.op == TN_CALL_REDUCE_SCATTER || r->call.op == TN_CALL_ALL_TO_ALL;
    return r->call.count * r->esize * (wide ? (uint64_t)r->comm->n : 1);
}

static void keep_error(struct tn_comm *c, const struct tn_request *r, int32_t peer)
{
    c->error =
        (struct tn_comm_error){ .struct_size = sizeof c->error, .peer = peer, .op = "", .message = c->error_text };
    if (r) {
        c->error.op_number = r->number;
        c->error.bytes = bytes_of(r);
        c->error.op = tn_call_name(r->call.op);
    }
}

static void describe_wait(struct tn_comm *c, const char *more)
{
    char who[48] = "some rank is missing";
    if (c->error.peer >= 0)
        snprintf(who, sizeof who, "rank %d is missing", (int)c->error.peer);
    snprintf(c->error_text, sizeof c->error_text, "hier: %s number %" PRIu64 " of group %s, %" PRIu64 " bytes: %s%s",
             c->error.op, c->error.op_number, c->name, c->error.bytes, who, more);
}

/* What a backend below says of a group there. */
static void ask_below(const struct side *side, struct tn_comm *below, struct tn_comm_error *error)
{
    *error = (struct tn_comm_error){ .struct_size = sizeof *error, .peer = -1 };
    if (!side || !below || side->table->last_error(below, error) != TN_OK)
        *error = (struct tn_comm_error){ .struct_size = sizeof *error, .peer = -1 };
}

static void failed_key(const struct tn_comm *c, char *key, size_t bytes)
{
    snprintf(key, bytes, "hier/%016" PRIx64 "/failed", c->key);
}

/* Whether somebody in the group has said why it failed. */
static int hear_failure(struct tn_comm *c, tn_status *status)
{
    const struct tn_bootstrap *boot = &c->hier->bootstrap;
    char key[64], text[384] = "";
    uint32_t bytes = sizeof text - 1;
    failed_key(c, key, sizeof key);
    if (boot->get(boot->ctx, key, text, &bytes) != TN_OK)
        return 0;
    char *message;
    *status = (tn_status)strtol(text, &message, 10);
    snprintf(c->error_text, sizeof c->error_text, "%s", *message ? message + 1 : "");
    return *status < 0;
}

static void say_failure(struct tn_comm *c, tn_status status)
{
    const struct tn_bootstrap *boot = &c->hier->bootstrap;
    char key[64], text[384];
    failed_key(c, key, sizeof key);
    int length = snprintf(text, sizeof text, "%d %.300s", (int)status, c->error_text);
    (void)boot->put(boot->ctx, key, text, (uint32_t)length + 1);
}

static void end_all(struct tn_comm *c, tn_status status)
{
    c->failed = status;
    for (struct tn_request *r = c->first; r; r = r->next)
        r->status = status;
    c->first = NULL;
    c->last = &c->first;
    for (int i = 0; i < WINDOW; i++) {
        c->pieces[i].is_busy = 0;
        c->pieces[i].below = NULL; /* what is under way stays so until the group is destroyed */
    }
    c->head = c->tail;
}

void hier_fail(struct tn_comm *c, const struct tn_request *r, const struct side *side, struct tn_comm *below,
               tn_status status)
{
    struct tn_comm_error error;
    ask_below(side, below, &error);
    c->is_late = 0;
    keep_error(c, r, error.peer);
    if (status == TN_PEER && r) {
        c->error.peer = find_culprit(c, error.peer, 1);
        describe_wait(c, ", and a rank of the job has died");
    } else if (hear_failure(c, &status)) {
        atomic_store(&c->aborted, status == TN_ABORTED);
    } else {
        if (error.message)
            snprintf(c->error_text, sizeof c->error_text, "hier: %s", error.message);
        else
            snprintf(c->error_text, sizeof c->error_text, "hier: group %s %s", c->name,
                     status == TN_ABORTED ? "was aborted"
                                          : "cannot go on: a backend below failed and does not say why");
        say_failure(c, status);
    }
    end_all(c, status);
    if (status == TN_ABORTED)
        hier_comm_abort(c);
}

/* A wait may be a slice of one that goes on: who is missing is asked when somebody wants to know. */
static void note_late(struct tn_comm *c, const struct tn_request *r, const struct side *side, struct tn_comm *below)
{
    keep_error(c, r, -1);
    describe_wait(c, "");
    c->is_late = 1;
    c->late_side = side;
    c->late_below = below;
    c->is_passed = r->side != NULL;
    c->is_message = r->call.op >= TN_CALL_SEND;
}

/* Of a message it is the other side, whomever that waits for. */
static void tell_late(struct tn_comm *c)
{
    struct tn_comm_error error;
    ask_below(c->late_side, c->late_below, &error);
    if (c->is_message)
        say_blame(&c->hier->bootstrap, error.peer);
    c->error.peer = c->is_message ? error.peer : find_culprit(c, error.peer, 0);
    if (c->is_passed)
        c->error.op_number = error.op_number;
    if (c->is_passed && error.message && c->error.peer == error.peer)
        snprintf(c->error_text, sizeof c->error_text, "%s", error.message);
    else
        describe_wait(c, "");
    c->is_late = 0;
}

static tn_status last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    uint32_t bytes = error->struct_size < sizeof c->error ? error->struct_size : (uint32_t)sizeof c->error;
    if (!c->error.message)
        return TN_NOT_FOUND;
    if (c->is_late)
        tell_late(c);
    memcpy(error, &c->error, bytes);
    error->struct_size = bytes;
    return TN_OK;
}

/* ---- operations ---- */

static tn_status check(struct tn_comm *c, const struct tn_call *a)
{
    const struct tn_host *host = c->hier->host;
    int reduces = a->op == TN_CALL_ALL_REDUCE || a->op == TN_CALL_REDUCE_SCATTER;
    if (!c->failed && atomic_load(&c->aborted))
        hier_fail(c, NULL, NULL, NULL, TN_ABORTED);
    if (c->failed)
        return host->fail(host, c->failed, "group %s has failed: %s", c->name, c->error_text);
    if (!tn_call_dtype_bytes(a->dtype) || (reduces && (!(c->hier->dtypes >> a->dtype & 1) || a->red > TN_RED_MAX)))
        return host->fail(host, TN_INVALID, "hier: %s of group %s: dtype %u, reduction %u are not possible",
                          tn_call_name(a->op), c->name, a->dtype, a->red);
    if (a->peer < 0 || a->peer >= c->n)
        return host->fail(host, TN_INVALID, "hier: %s of group %s: member %d of %d", tn_call_name(a->op), c->name,
                          (int)a->peer, (int)c->n);
    return TN_OK;
}

/* The whole operation by one backend. */
static tn_status pass(struct tn_request *r, const struct side *side, struct tn_comm *g, int32_t peer)
{
    struct tn_call what = r->call;
    what.peer = peer;
    what.queue = NULL;
    r->side = side;
    return tn_call_pass(side->table, g, &what, &r->below);
}

static int32_t *passed_by(const struct tn_request *r)
{
    struct hier *h = r->comm->hier;
    return &h->passed[r->side == &h->outer];
}

static struct tn_comm *passed_to(const struct tn_request *r)
{
    return r->side == &r->comm->hier->inner ? r->comm->down : r->comm->all;
}

static void keep_passed_error(const struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    struct tn_comm_error error;
    ask_below(r->side, passed_to(r), &error);
    c->is_late = 0;
    snprintf(c->error_text, sizeof c->error_text, "%s", error.message ? error.message : "no reason given");
    keep_error(c, r, error.peer);
    c->error.op_number = error.op_number;
}

static tn_status call(struct tn_comm *c, const struct tn_call *a, struct tn_request **out)
{
    const struct hier *h = c->hier;
    tn_status status = check(c, a);
    if (status != TN_OK)
        return status;
    struct tn_request *r = hier_request_new(c, a);
    if (!r)
        return h->host->fail(h->host, TN_NO_MEMORY, "hier: no memory for a request");
    int is_message = a->op == TN_CALL_SEND || a->op == TN_CALL_RECV, is_near = c->host[a->peer] == c->host[c->me];
    if (!c->only && !is_message) {
        hier_enqueue(r);
        hier_advance(c->hier);
        *out = r;
        return TN_OK;
    }
    if (c->only)
        status = pass(r, c->only, c->only == &h->inner ? c->down : c->all, a->peer);
    else
        status = is_near ? pass(r, &h->inner, c->down, c->local[a->peer]) : pass(r, &h->outer, c->all, a->peer);
    if (status != TN_OK) {
        keep_passed_error(r);
        hier_recycle(r);
        return status;
    }
    ++*passed_by(r);
    *out = r;
    return TN_OK;
}

TN_CALL_FUNCTIONS(call)

/* ---- test and wait ---- */

/* Failures that members of other hosts met, which the groups below do not show. */
static void look_around(struct hier *h, uint64_t now)
{
    if (now < h->next_look_ns)
        return;
    h->next_look_ns = now + LOOK_NS;
    for (struct tn_comm *c = h->comms; c; c = c->next) {
        tn_status status;
        if (c->failed || !c->first || !hear_failure(c, &status))
            continue;
        keep_error(c, c->first, -1);
        end_all(c, status);
        if (status == TN_ABORTED)
            hier_comm_abort(c);
    }
}

/* The final answer of a request. */
static tn_status finish(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    tn_status status = r->status;
    hier_recycle(r);
    return status == TN_OK ? TN_OK : c->hier->host->fail(c->hier->host, status, "%s", c->error_text);
}

static tn_status finish_passed(struct tn_request *r, tn_status status)
{
    if (status == TN_TIMEOUT)
        note_late(r->comm, r, r->side, passed_to(r));
    else if (status != TN_OK && status != TN_PENDING)
        keep_passed_error(r);
    if (status != TN_PENDING && status != TN_TIMEOUT) {
        --*passed_by(r);
        hier_recycle(r);
    }
    return status;
}

static tn_status test(struct tn_request *r)
{
    struct hier *h = r->comm->hier;
    hier_advance(h);
    if (r->side)
        return finish_passed(r, r->side->table->test(r->below));
    if (r->status == TN_PENDING)
        look_around(h, hier_now());
    return r->status == TN_PENDING ? TN_PENDING : finish(r);
}

static tn_status give_up(struct tn_request *r, const struct piece *p)
{
    struct tn_comm *c = r->comm;
    note_late(c, r, p ? p->side : NULL, p ? hier_comm_of(p) : NULL);
    return c->hier->host->fail(c->hier->host, TN_TIMEOUT, "%s", c->error_text);
}

static uint64_t slice_of(uint64_t spent_ns, uint64_t left_ns, int is_alone)
{
    uint64_t slice_ns = spent_ns < BUSY_NS ? 0 : spent_ns / SHARE;
    slice_ns = slice_ns < SHORTEST_NS ? SHORTEST_NS : slice_ns < LONGEST_NS ? slice_ns : LONGEST_NS;
    if (is_alone)
        slice_ns = LOOK_NS;
    return slice_ns < left_ns ? slice_ns : left_ns;
}

static void progress(void *self)
{
    struct hier *h = self;
    h->inner.table->progress(h->inner.self);
    if (h->outer.self != h->inner.self)
        h->outer.table->progress(h->outer.self);
    hier_advance(h);
}

/* Waits for the one thing that a piece, or a passed operation, waits for, while others go on between. */
static tn_status wait_for(struct tn_request *r, uint64_t timeout_ns)
{
    struct hier *h = r->comm->hier;
    uint64_t began_ns = hier_now(), now_ns = began_ns;
    for (;; now_ns = hier_now()) {
        hier_advance(h);
        if (!r->side && r->status != TN_PENDING)
            return finish(r);
        uint64_t spent_ns = now_ns - began_ns, left_ns = spent_ns < timeout_ns ? timeout_ns - spent_ns : 0;
        int waiting = hier_all_waiting(h) + h->passed[0] + h->passed[1];
        if (r->side) {
            uint64_t slice_ns = waiting > *passed_by(r) ? slice_of(spent_ns, left_ns, 0) : left_ns;
            tn_status status = r->side->table->wait(r->below, slice_ns);
            if (status != TN_TIMEOUT || slice_ns == left_ns)
                return finish_passed(r, status);
            progress(h);
            continue;
        }
        look_around(h, now_ns);
        if (r->status != TN_PENDING)
            return finish(r);
        struct piece *p = hier_waiting(r->comm);
        uint64_t slice_ns = slice_of(spent_ns, left_ns, waiting == 1);
        tn_status status = p ? p->side->table->wait(p->below, slice_ns) : TN_TIMEOUT;
        if (status == TN_OK)
            p->below = NULL;
        else if (status != TN_TIMEOUT) {
            p->below = NULL;
            hier_fail(r->comm, p->op, p->side, hier_comm_of(p), status);
        } else if (slice_ns == left_ns)
            return give_up(r, p);
        else if (waiting > 1)
            progress(h);
    }
}

/* ---- what the loader reads ---- */

static const struct tn_collective table = {
    .struct_size = sizeof(struct tn_collective),
    .create = create,
    .destroy = destroy,
    .caps = caps,
    .init = init,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .comm_create = hier_comm_create,
    .comm_destroy = hier_comm_destroy,
    .comm_abort = hier_comm_abort,
    TN_CALL_ENTRIES(call),
    .test = test,
    .wait = wait_for,
    .progress = progress,
    .last_error = last_error,
};

static const struct tn_option options[] = {
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_STRING,
      .key = "inner",
      .fallback = "shm",
      .help = "Backend among the ranks of one host; its options are in its own section." },
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_STRING,
      .key = "outer",
      .fallback = "ucx",
      .help = "Backend across hosts, likewise." },
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_SIZE,
      .key = "small",
      .fallback = "16K",
      .min = 0,
      .max = 1073741824,
      .help =
          "Up to this size an all_reduce goes whole through the first rank of each host, which takes fewer messages." },
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_SIZE,
      .key = "chunk",
      .fallback = "4M",
      .min = 4096,
      .max = 1073741824,
      .help = "Size of the pieces of a large operation: while one is between hosts, the next is inside." },
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    static const struct tn_plugin plugin = {
        TN_PLUGIN_BUILT,
        .min_host_minor = TN_ABI_MINOR,
        .kind = TN_PLUGIN_COLLECTIVE,
        .id = "hier",
        .version = "0.1.0",
        .summary = "Backend over two others: one inside a host, one across hosts.",
        .build_info = __VERSION__,
        .table = &table,
        .options = options,
        .option_count = sizeof options / sizeof *options,
    };
    (void)host;
    return &plugin;
}
