/* fault: a layer for tests that makes things go wrong, by seed: ranks that are slow, hang, die, or get wrong bytes.
 *
 * What happens to a call depends on the seed, the rank, the group's name and the call's number alone, so a run that
 * went wrong goes wrong again. Says so at the start, in a warning, since nobody must have it in a job unknowingly. */
#include <tenon/call.h>
#include <tenon/plugin.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_NS = 1000 * 1000 };

struct fault {
    const struct tn_host *host;
    const struct tn_collective *next;
    void *next_self;
    struct tn_bootstrap bootstrap;
    int64_t seed, only_rank, only_op, after, delay_ns;
    double delay, drop, corrupt, kill;
    int32_t rank;
};

struct tn_comm {
    struct fault *fault;
    struct tn_comm *below;
    uint64_t key; /* of its name */
    int32_t n;
    uint64_t calls;
    int is_silent; /* a call was dropped: this rank no longer takes part */
    int is_aborted;
    struct tn_request *unused, *made;
};

struct tn_request {
    struct tn_comm *comm;
    struct tn_request *below, *next_unused, *next_made; /* below NULL: dropped */
    char *corrupted;                                    /* where a bit is flipped once it is done; NULL: nowhere */
};

/* ---- chance ---- */

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15); /* SplitMix64 (Steele, Lea, Flood 2014) */
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t draw(const struct tn_comm *c, uint64_t what)
{
    const struct fault *f = c->fault;
    return mix(mix(mix((uint64_t)f->seed ^ c->key) + (uint64_t)f->rank) + c->calls * 8 + what);
}

static int happens(const struct tn_comm *c, uint64_t what, double chance)
{
    return (double)(draw(c, what) >> 11) * 0x1p-53 < chance;
}

/* ---- the life of the layer ---- */

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    if (!next)
        return host->fail(host, TN_INVALID, "fault is a layer over a backend; use [comm] layers = fault");
    struct fault *f = host->alloc(host, sizeof *f);
    if (!f)
        return host->fail(host, TN_NO_MEMORY, "no memory for the layer");
    *f = (struct fault){ .host = host, .next = next, .next_self = next_self };
    f->seed = host->get_int(host, "seed");
    f->only_rank = host->get_int(host, "rank");
    f->only_op = host->get_int(host, "op");
    f->after = host->get_int(host, "after");
    f->delay_ns = host->get_int(host, "delay_time");
    f->delay = host->get_float(host, "delay");
    f->drop = host->get_float(host, "drop");
    f->corrupt = host->get_float(host, "corrupt");
    f->kill = host->get_float(host, "kill");
    *self = f;
    return TN_OK;
}

static void destroy(void *self)
{
    struct fault *f = self;
    if (f)
        f->host->release(f->host, f);
}

static tn_status caps(void *self, struct tn_collective_caps *caps)
{
    const struct fault *f = self;
    return f->next->caps(f->next_self, caps);
}

static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct fault *f = self;
    memcpy(&f->bootstrap, bootstrap,
           bootstrap->struct_size < sizeof *bootstrap ? bootstrap->struct_size : sizeof *bootstrap);
    f->rank = bootstrap->rank;
    if (f->rank == 0)
        f->host->log(f->host, TN_LOG_WARN,
                     "faults are put into this job on purpose: seed %" PRId64
                     ", delay %g, drop %g, corrupt %g, kill %g; "
                     "take fault out of [comm] layers to be without",
                     f->seed, f->delay, f->drop, f->corrupt, f->kill);
    return f->next->init(f->next_self, bootstrap, timeout_ns);
}

static tn_status mem_alloc(void *self, uint64_t bytes, void **memory)
{
    const struct fault *f = self;
    return f->next->mem_alloc(f->next_self, bytes, memory);
}

static void mem_free(void *self, void *memory)
{
    const struct fault *f = self;
    f->next->mem_free(f->next_self, memory);
}

/* ---- groups ---- */

static tn_status comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                             struct tn_comm **comm)
{
    struct fault *f = self;
    struct tn_comm *below = NULL;
    tn_status status = f->next->comm_create(f->next_self, name, ranks, n, timeout_ns, &below);
    if (status != TN_OK)
        return status;
    struct tn_comm *c = f->host->alloc(f->host, sizeof *c);
    if (!c) {
        f->next->comm_destroy(below);
        return f->host->fail(f->host, TN_NO_MEMORY, "no memory for a group of %d", (int)n);
    }
    *c = (struct tn_comm){ .fault = f, .below = below, .n = n };
    for (const char *at = name; at && *at; at++)
        c->key = mix(c->key ^ (unsigned char)*at);
    *comm = c;
    return TN_OK;
}

static void comm_destroy(struct tn_comm *c)
{
    if (!c)
        return;
    const struct fault *f = c->fault;
    f->next->comm_destroy(c->below);
    while (c->made) {
        struct tn_request *next = c->made->next_made;
        f->host->release(f->host, c->made);
        c->made = next;
    }
    f->host->release(f->host, c);
}

static void comm_abort(struct tn_comm *c)
{
    c->is_aborted = 1;
    c->fault->next->comm_abort(c->below);
}

/* ---- requests ---- */

static struct tn_request *request_new(struct tn_comm *c)
{
    const struct tn_host *host = c->fault->host;
    struct tn_request *r = c->unused, *next_made;
    if (r) {
        c->unused = r->next_unused;
        next_made = r->next_made;
    } else {
        r = host->alloc(host, sizeof *r);
        if (!r)
            return NULL;
        next_made = c->made;
        c->made = r;
    }
    *r = (struct tn_request){ .comm = c, .next_made = next_made };
    return r;
}

static tn_status end(struct tn_request *r, tn_status status)
{
    if (status == TN_OK && r->corrupted)
        *r->corrupted ^= 0x10;
    if (status != TN_PENDING && status != TN_TIMEOUT) {
        r->next_unused = r->comm->unused;
        r->comm->unused = r;
    }
    return status;
}

static uint64_t result_bytes(const struct tn_comm *c, const struct tn_call *what)
{
    uint64_t blocks = what->op == TN_CALL_ALL_GATHER || what->op == TN_CALL_ALL_TO_ALL ? (uint64_t)c->n : 1;
    return what->recv ? what->count * blocks * tn_call_dtype_bytes(what->dtype) : 0;
}

/* Before a call goes on: what goes wrong with it. *r is NULL without memory. Returns 1 if the call is dropped. */
static int strike(struct tn_comm *c, const struct tn_call *what, struct tn_request **r)
{
    const struct fault *f = c->fault;
    uint64_t bytes = result_bytes(c, what);
    int is_meant = (f->only_rank < 0 || f->only_rank == f->rank) &&
                   (f->only_op == TN_CALLS || f->only_op == what->op) && (int64_t)c->calls >= f->after;
    *r = request_new(c);
    if (!*r)
        return 0;
    if (is_meant && happens(c, 0, f->kill))
        raise(SIGKILL);
    if (is_meant && happens(c, 1, f->delay))
        nanosleep(&(struct timespec){ .tv_sec = f->delay_ns / 1000000000, .tv_nsec = f->delay_ns % 1000000000 }, NULL);
    if (is_meant && bytes && happens(c, 2, f->corrupt))
        (*r)->corrupted = (char *)what->recv + draw(c, 3) % bytes;
    if (is_meant && happens(c, 4, f->drop))
        c->is_silent = 1;
    c->calls++;
    return c->is_silent;
}

/* A dropped call ends only with its group or its peers. */
static tn_status look_at_dropped(struct tn_request *r)
{
    const struct fault *f = r->comm->fault;
    if (r->comm->is_aborted)
        return end(r, f->host->fail(f->host, TN_ABORTED, "fault: a call was dropped, and its group aborted"));
    if (f->bootstrap.poll(f->bootstrap.ctx) == TN_PEER)
        return end(r, f->host->fail(f->host, TN_PEER, "fault: a call was dropped, and a rank of the job has died"));
    return TN_PENDING;
}

static tn_status test(struct tn_request *r)
{
    return r->below ? end(r, r->comm->fault->next->test(r->below)) : look_at_dropped(r);
}

static tn_status wait_for(struct tn_request *r, uint64_t timeout_ns)
{
    const struct fault *f = r->comm->fault;
    if (r->below)
        return end(r, f->next->wait(r->below, timeout_ns));
    for (uint64_t waited_ns = 0; waited_ns < timeout_ns; waited_ns += SLICE_NS) {
        tn_status status = look_at_dropped(r);
        if (status != TN_PENDING)
            return status;
        f->next->progress(f->next_self);
        nanosleep(&(struct timespec){ .tv_nsec = SLICE_NS }, NULL);
    }
    return f->host->fail(f->host, TN_TIMEOUT, "fault: a call of this rank was dropped");
}

static void progress(void *self)
{
    const struct fault *f = self;
    f->next->progress(f->next_self);
}

static tn_status last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    return c->fault->next->last_error(c->below, error);
}

/* ---- operations ---- */

/* Passes the operation on, unless it is dropped. */
static tn_status call(struct tn_comm *c, const struct tn_call *what, struct tn_request **out)
{
    const struct fault *f = c->fault;
    struct tn_request *r;
    int is_dropped = strike(c, what, &r);
    if (!r)
        return f->host->fail(f->host, TN_NO_MEMORY, "no memory for a request");
    tn_status status = is_dropped ? TN_OK : tn_call_pass(f->next, c->below, what, &r->below);
    if (status == TN_OK)
        *out = r;
    else
        (void)end(r, status);
    return status;
}

TN_CALL_FUNCTIONS(call)

/* ---- what the loader reads ---- */

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
    .test = test,
    .wait = wait_for,
    .progress = progress,
    .last_error = last_error,
};

static const char *const op_choices[] = {
#define TN_X(name, text) text,
    TN_CALL_LIST(TN_X)
#undef TN_X
        "any",
    NULL
};

#define OPTION(type_, key_, fallback_, lo, hi, help_)                                                        \
    {                                                                                                        \
        .struct_size = sizeof(struct tn_option), .type = TN_OPT_##type_, .key = key_, .fallback = fallback_, \
        .min = lo, .max = hi, .help = help_                                                                  \
    }

static const struct tn_option options[] = {
    OPTION(INT, "seed", "1", 0, 9007199254740991, "What goes wrong, and when, follows from it."),
    OPTION(FLOAT, "delay", "0", 0, 1, "Share of calls before which the rank sleeps."),
    OPTION(DURATION, "delay_time", "1ms", 0, 60e9, "How long it sleeps."),
    OPTION(FLOAT, "drop", "0", 0, 1,
           "Share of calls from which on the rank takes no part in the group, as one that hangs."),
    OPTION(FLOAT, "corrupt", "0", 0, 1, "Share of calls in whose result a bit is flipped."),
    OPTION(FLOAT, "kill", "0", 0, 1, "Share of calls in which the rank is killed."),
    OPTION(INT, "rank", "-1", -1, 1 << 20, "Only this rank; -1: any."),
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_ENUM,
      .key = "op",
      .fallback = "any",
      .choices = op_choices,
      .help = "Only this operation." },
    OPTION(INT, "after", "0", 0, 1e12, "Calls of a group before which nothing goes wrong."),
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    static const struct tn_plugin plugin = {
        TN_PLUGIN_BUILT,
        .min_host_minor = TN_ABI_MINOR,
        .kind = TN_PLUGIN_COLLECTIVE,
        .id = "fault",
        .version = "0.1.0",
        .summary = "Layer for tests that delays, drops, corrupts or kills by seed.",
        .build_info = __VERSION__,
        .table = &table,
        .options = options,
        .option_count = sizeof options / sizeof *options,
    };
    (void)host;
    return &plugin;
}
