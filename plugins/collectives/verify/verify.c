/* verify: a layer that compares what the members of a group call before any data moves.
 *
 * Ranks that call different collectives, or the same one with another count, dtype, reduction or root, end with
 * TN_CONFLICT and a message that names the first rank that differs, whatever backend is below; without it many
 * backends hang, or mix up data. It costs one small all_gather for each collective, with option checksum another one
 * and a look at the result, which must be the same on all members. Messages (send, recv) and memory
 * pass through. */
#include "verify.h"

#include <stdio.h>
#include <string.h>

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    if (!next)
        return host->fail(host, TN_INVALID, "verify is a layer over a backend; use [comm] layers = verify");
    struct verify *v = host->alloc(host, sizeof *v);
    if (!v)
        return host->fail(host, TN_NO_MEMORY, "no memory for the layer");
    *v = (struct verify){ .host = host, .next = next, .next_self = next_self };
    v->checksum = host->get_int(host, "checksum") != 0;
    *self = v;
    return TN_OK;
}

static void destroy(void *self)
{
    struct verify *v = self;
    if (v)
        v->host->release(v->host, v);
}

static tn_status caps(void *self, struct tn_collective_caps *caps)
{
    const struct verify *v = self;
    tn_status status = v->next->caps(v->next_self, caps);
    if (TN_HAS(caps, needs_progress))
        caps->needs_progress = 1; /* to start what was announced */
    return status;
}

static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct verify *v = self;
    struct tn_collective_caps can = { .struct_size = sizeof can };
    tn_status status = v->next->caps(v->next_self, &can);
    v->dtypes = can.dtypes;
    if (status == TN_OK && v->checksum && !can.host_memory)
        return v->host->fail(v->host, TN_UNSUPPORTED,
                             "[verify] checksum: the buffers of this backend are not in host memory");
    return status == TN_OK ? v->next->init(v->next_self, bootstrap, timeout_ns) : status;
}

static tn_status mem_alloc(void *self, uint64_t bytes, void **memory)
{
    const struct verify *v = self;
    return v->next->mem_alloc(v->next_self, bytes, memory);
}

static void mem_free(void *self, void *memory)
{
    const struct verify *v = self;
    v->next->mem_free(v->next_self, memory);
}

/* ---- groups ---- */

static void free_comm(struct tn_comm *c)
{
    const struct verify *v = c->verify;
    if (c->sums)
        v->next->comm_destroy(c->sums);
    if (c->talk)
        v->next->comm_destroy(c->talk);
    if (c->data)
        v->next->comm_destroy(c->data);
    while (c->made) {
        struct tn_request *next = c->made->next_made;
        v->host->release(v->host, c->made);
        c->made = next;
    }
    v->host->release(v->host, c->ranks);
    v->host->release(v->host, c);
}

static struct tn_comm *new_comm(struct verify *v, const char *name, const int32_t *ranks, int32_t n)
{
    struct tn_comm *c = v->host->alloc(v->host, sizeof *c);
    if (!c)
        return NULL;
    *c = (struct tn_comm){ .verify = v, .n = n };
    c->last = &c->first;
    c->last_moving = &c->moving;
    snprintf(c->name, sizeof c->name, "%s", name ? name : "");
    c->ranks = v->host->alloc(v->host, (uint64_t)n * sizeof *ranks);
    if (!c->ranks) {
        free_comm(c);
        return NULL;
    }
    memcpy(c->ranks, ranks, (size_t)n * sizeof *ranks);
    return c;
}

static tn_status comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                             struct tn_comm **comm)
{
    struct verify *v = self;
    struct tn_comm *data = NULL;
    tn_status status = v->next->comm_create(v->next_self, name, ranks, n, timeout_ns, &data);
    if (status != TN_OK)
        return status;
    struct tn_comm *c = new_comm(v, name, ranks, n);
    if (!c) {
        v->next->comm_destroy(data);
        return v->host->fail(v->host, TN_NO_MEMORY, "no memory for a group of %d", (int)n);
    }
    c->data = data;
    status = v->next->comm_create(v->next_self, name, ranks, n, timeout_ns, &c->talk);
    if (status != TN_OK)
        c->talk = NULL;
    if (status == TN_OK && v->checksum) {
        status = v->next->comm_create(v->next_self, name, ranks, n, timeout_ns, &c->sums);
        if (status != TN_OK)
            c->sums = NULL;
    }
    if (status != TN_OK) {
        free_comm(c);
        return status;
    }
    c->next_comm = v->comms;
    v->comms = c;
    *comm = c;
    return TN_OK;
}

static void comm_destroy(struct tn_comm *c)
{
    if (!c)
        return;
    struct tn_comm **at = &c->verify->comms;
    while (*at != c)
        at = &(*at)->next_comm;
    *at = c->next_comm;
    free_comm(c);
}

static void comm_abort(struct tn_comm *c)
{
    if (c->sums)
        c->verify->next->comm_abort(c->sums);
    c->verify->next->comm_abort(c->talk);
    c->verify->next->comm_abort(c->data);
}

/* ---- operations ---- */

/* A call that the backend would refuse is refused before it is announced. */
static tn_status check_call(const struct tn_comm *c, const struct tn_call *a)
{
    const struct tn_host *host = c->verify->host;
    const char *name = tn_call_name(a->op);
    int reduces = a->op == TN_CALL_ALL_REDUCE || a->op == TN_CALL_REDUCE_SCATTER;
    if (!tn_call_dtype_bytes(a->dtype))
        return host->fail(host, TN_INVALID, "group %s, %s: there is no dtype %u", c->name, name, a->dtype);
    if (reduces && !(c->verify->dtypes >> a->dtype & 1))
        return host->fail(host, TN_UNSUPPORTED, "group %s, %s: the backend does not reduce %s", c->name, name,
                          tn_call_dtype_name(a->dtype));
    if (reduces && a->red > TN_RED_MAX)
        return host->fail(host, TN_INVALID, "group %s, %s: there is no reduction %u", c->name, name, a->red);
    if (a->peer < 0 || a->peer >= c->n)
        return host->fail(host, TN_INVALID, "group %s, %s: root %d in a group of %d", c->name, name, (int)a->peer,
                          (int)c->n);
    return TN_OK;
}

/* Only two ranks know of a message; the backend compares what they say. */
static tn_status message(struct tn_comm *c, const struct tn_call *what, struct tn_request **out)
{
    const struct verify *v = c->verify;
    struct tn_request *r = verify_request_new(c);
    if (!r)
        return v->host->fail(v->host, TN_NO_MEMORY, "no memory for a request");
    tn_status status = tn_call_pass(v->next, c->data, what, &r->below);
    if (status != TN_OK) {
        c->has_error = 0;
        verify_recycle(r);
        return status;
    }
    r->stage = MOVING;
    *out = r;
    return TN_OK;
}

static tn_status call(struct tn_comm *c, const struct tn_call *what, struct tn_request **r)
{
    if (what->op == TN_CALL_SEND || what->op == TN_CALL_RECV)
        return message(c, what, r);
    tn_status status = check_call(c, what);
    return status == TN_OK ? verify_announce(c, what, r) : status;
}

TN_CALL_FUNCTIONS(call)

static void progress(void *self)
{
    struct verify *v = self;
    verify_advance(v);
    v->next->progress(v->next_self);
}

static const struct tn_collective table = {
    .struct_size = sizeof(struct tn_collective),
    .create = create,
    .destroy = destroy,
    .caps = caps,
    .init = init,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .comm_create = comm_create,
    .comm_destroy = comm_destroy,
    .comm_abort = comm_abort,
    TN_CALL_ENTRIES(call),
    .test = verify_test,
    .wait = verify_wait,
    .progress = progress,
    .last_error = verify_last_error,
};

static const struct tn_option options[] = {
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_BOOL,
      .key = "checksum",
      .fallback = "false",
      .help =
          "Also compares what all_reduce, all_gather and broadcast gave the members, which must be the same bytes." },
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    static const struct tn_plugin plugin = {
        TN_PLUGIN_BUILT,
        .min_host_minor = TN_ABI_MINOR,
        .kind = TN_PLUGIN_COLLECTIVE,
        .id = "verify",
        .version = "0.1.0",
        .summary = "Layer that names the rank whose collective differs from the others', before data moves.",
        .build_info = __VERSION__,
        .table = &table,
        .options = options,
        .option_count = sizeof options / sizeof *options,
    };
    (void)host;
    return &plugin;
}
