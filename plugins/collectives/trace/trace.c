/* trace: a layer that records every operation with its time, size, group and how long the rank waited for it.
 *
 * With option `file` each rank writes <file>.<rank>.jsonl, a line for each operation once it has ended (in a job of
 * several backends <file>.<backend>.<rank>.jsonl for each); without, a summary goes to stderr when the job ends.
 * Everything passes through to the backend below, untouched. It is also the smallest whole example of a collective
 * plugin: docs/writing-a-backend.md walks through it. */
#include <tenon/call.h>
#include <tenon/plugin.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { NAME_BYTES = 32, PATH_BYTES = 4096 };

struct total {
    uint64_t calls, bytes, wait_ns;
};

/* Outlives the groups of its name, for the summary. */
struct group {
    struct group *next;
    char name[NAME_BYTES];
    int32_t n;
    struct total totals[TN_CALLS];
};

struct trace {
    const struct tn_host *host;
    const struct tn_collective *next; /* the backend, or layer, below */
    void *next_self;
    int32_t rank;
    FILE *file;
    uint64_t began_ns;
    struct group *groups;
};

struct tn_comm {
    struct trace *trace;
    struct tn_comm *below;
    struct group *group;
    uint64_t calls; /* on this comm, of all kinds */
    struct tn_request *unused;
    struct tn_request *made; /* all requests, to be freed with the comm */
};

struct tn_request {
    struct tn_comm *comm;
    struct tn_request *below, *next_unused, *next_made;
    struct tn_call call;
    uint64_t number, began_ns, wait_ns;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the life of the layer ---- */

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    if (!next)
        return host->fail(host, TN_INVALID, "trace is a layer over a backend; use [comm] layers = trace");
    const char *file = host->get_string(host, "file");
    if (file && *file && file[strlen(file) - 1] == '/') {
        host->problem(host, "file", "is a folder; files in it would be hidden", "add the beginning of their names");
        return TN_INVALID;
    }
    struct trace *t = host->alloc(host, sizeof *t);
    if (!t)
        return host->fail(host, TN_NO_MEMORY, "no memory for the layer");
    *t = (struct trace){ .host = host, .next = next, .next_self = next_self, .began_ns = now_ns() };
    *self = t;
    return TN_OK;
}

static void summarize(const struct trace *t)
{
    for (const struct group *g = t->groups; g; g = g->next)
        for (uint32_t op = 0; op < TN_CALLS; op++) {
            const struct total *total = &g->totals[op];
            if (total->calls)
                fprintf(stderr, "trace: rank %d, group %s of %d, %s: %" PRIu64 " calls, %.3f MB, %.3f ms waited\n",
                        (int)t->rank, g->name, (int)g->n, tn_call_name(op), total->calls, (double)total->bytes / 1e6,
                        (double)total->wait_ns / 1e6);
        }
}

static void destroy(void *self)
{
    struct trace *t = self;
    if (!t)
        return;
    if (!t->file)
        summarize(t);
    else if (fclose(t->file) != 0)
        t->host->log(t->host, TN_LOG_WARN, "the trace is not whole: %s", strerror(errno));
    while (t->groups) {
        struct group *next = t->groups->next;
        t->host->release(t->host, t->groups);
        t->groups = next;
    }
    t->host->release(t->host, t);
}

static tn_status caps(void *self, struct tn_collective_caps *caps)
{
    const struct trace *t = self;
    return t->next->caps(t->next_self, caps);
}

/* "shm." in a job of several backends, whose traces must not write to one file; else "". */
static void name_backend(const struct tn_host *host, char *name, size_t bytes)
{
    const struct tn_facts_api *facts = host->get_api(host, "tn.facts/1");
    const struct tn_backends_api *backends = host->get_api(host, "tn.backends/1");
    *name = 0;
    if (facts && backends && facts->get(host, "backends", 1) > 1)
        snprintf(name, bytes, "%s.", backends->below(host));
}

static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct trace *t = self;
    t->rank = bootstrap->rank;
    const char *file = t->host->get_string(t->host, "file");
    char path[PATH_BYTES];
    if (file && *file) {
        char backend[NAME_BYTES];
        name_backend(t->host, backend, sizeof backend);
        snprintf(path, sizeof path, "%s.%s%d.jsonl", file, backend, (int)bootstrap->rank);
        t->file = fopen(path, "we");
        if (!t->file)
            return t->host->fail(t->host, TN_IO, "[trace] file: %s cannot be written: %s", path, strerror(errno));
    }
    return t->next->init(t->next_self, bootstrap, timeout_ns);
}

static tn_status mem_alloc(void *self, uint64_t bytes, void **memory)
{
    const struct trace *t = self;
    return t->next->mem_alloc(t->next_self, bytes, memory);
}

static void mem_free(void *self, void *memory)
{
    const struct trace *t = self;
    t->next->mem_free(t->next_self, memory);
}

/* ---- groups ---- */

static struct group *find_group(struct trace *t, const char *name, int32_t n)
{
    char kept[NAME_BYTES];
    snprintf(kept, sizeof kept, "%s", name ? name : "");
    for (struct group *g = t->groups; g; g = g->next)
        if (g->n == n && strcmp(g->name, kept) == 0)
            return g;
    struct group *g = t->host->alloc(t->host, sizeof *g);
    if (!g)
        return NULL;
    *g = (struct group){ .next = t->groups, .n = n };
    memcpy(g->name, kept, sizeof kept);
    t->groups = g;
    return g;
}

static tn_status comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                             struct tn_comm **comm)
{
    struct trace *t = self;
    struct tn_comm *below = NULL;
    tn_status status = t->next->comm_create(t->next_self, name, ranks, n, timeout_ns, &below);
    if (status != TN_OK)
        return status;
    struct group *group = find_group(t, name, n);
    struct tn_comm *c = group ? t->host->alloc(t->host, sizeof *c) : NULL;
    if (!c) {
        t->next->comm_destroy(below);
        return t->host->fail(t->host, TN_NO_MEMORY, "no memory for a group of %d", (int)n);
    }
    *c = (struct tn_comm){ .trace = t, .below = below, .group = group };
    *comm = c;
    return TN_OK;
}

static void comm_destroy(struct tn_comm *c)
{
    if (!c)
        return;
    const struct trace *t = c->trace;
    t->next->comm_destroy(c->below);
    while (c->made) {
        struct tn_request *next = c->made->next_made;
        t->host->release(t->host, c->made);
        c->made = next;
    }
    t->host->release(t->host, c);
}

static void comm_abort(struct tn_comm *c)
{
    c->trace->next->comm_abort(c->below);
}

/* ---- requests ---- */

/* A request around that of the backend, with what is to be recorded. */
static struct tn_request *begin(struct tn_comm *c, const struct tn_call *what)
{
    const struct tn_host *host = c->trace->host;
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
    *r = (struct tn_request){
        .comm = c, .next_made = next_made, .call = *what, .number = c->calls++, .began_ns = now_ns()
    };
    return r;
}

static void recycle(struct tn_request *r)
{
    r->next_unused = r->comm->unused;
    r->comm->unused = r;
}

static void record(const struct tn_request *r, tn_status status, uint64_t took_ns)
{
    const struct trace *t = r->comm->trace;
    struct group *g = r->comm->group;
    const struct tn_call *call = &r->call;
    uint64_t bytes = call->count * tn_call_dtype_bytes(call->dtype);
    struct total *total = &g->totals[call->op];
    total->calls++;
    total->bytes += bytes;
    total->wait_ns += r->wait_ns;
    if (!t->file)
        return;
    fprintf(t->file, "{\"op\":\"%s\",\"group\":\"%s\",\"ranks\":%d,\"number\":%" PRIu64, tn_call_name(call->op),
            g->name, (int)g->n, r->number);
    if (call->op != TN_CALL_BARRIER)
        fprintf(t->file, ",\"dtype\":\"%s\",\"count\":%" PRIu64 ",\"bytes\":%" PRIu64, tn_call_dtype_name(call->dtype),
                call->count, bytes);
    if (call->op == TN_CALL_BROADCAST || call->op >= TN_CALL_SEND)
        fprintf(t->file, ",\"peer\":%d", (int)call->peer);
    fprintf(t->file, ",\"start_ns\":%" PRIu64 ",\"took_ns\":%" PRIu64 ",\"wait_ns\":%" PRIu64 ",\"status\":%d}\n",
            r->began_ns - t->began_ns, took_ns, r->wait_ns, (int)status);
}

static tn_status test(struct tn_request *r)
{
    tn_status status = r->comm->trace->next->test(r->below);
    if (status == TN_PENDING)
        return status;
    record(r, status, now_ns() - r->began_ns);
    recycle(r);
    return status;
}

static tn_status wait_for(struct tn_request *r, uint64_t timeout_ns)
{
    uint64_t began_ns = now_ns();
    tn_status status = r->comm->trace->next->wait(r->below, timeout_ns);
    uint64_t ended_ns = now_ns();
    r->wait_ns += ended_ns - began_ns;
    if (status == TN_TIMEOUT)
        return status;
    record(r, status, ended_ns - r->began_ns);
    recycle(r);
    return status;
}

static void progress(void *self)
{
    const struct trace *t = self;
    t->next->progress(t->next_self);
}

static tn_status last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    return c->trace->next->last_error(c->below, error);
}

/* ---- operations ---- */

/* Passes the operation on and keeps a request of its own around the backend's. */
static tn_status call(struct tn_comm *c, const struct tn_call *what, struct tn_request **out)
{
    struct tn_request *r = begin(c, what);
    if (!r)
        return c->trace->host->fail(c->trace->host, TN_NO_MEMORY, "no memory for a request");
    tn_status status = tn_call_pass(c->trace->next, c->below, what, &r->below);
    if (status == TN_OK)
        *out = r;
    else
        recycle(r);
    return status;
}

TN_CALL_FUNCTIONS(call)

static tn_status group_start(void *self)
{
    const struct trace *t = self;
    return t->next->group_start ? t->next->group_start(t->next_self) : TN_OK;
}

static tn_status group_end(void *self)
{
    const struct trace *t = self;
    return t->next->group_end ? t->next->group_end(t->next_self) : TN_OK;
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
    .comm_create = comm_create,
    .comm_destroy = comm_destroy,
    .comm_abort = comm_abort,
    TN_CALL_ENTRIES(call),
    .group_start = group_start,
    .group_end = group_end,
    .test = test,
    .wait = wait_for,
    .progress = progress,
    .last_error = last_error,
};

static const struct tn_option options[] = {
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_STRING,
      .key = "file",
      .help = "Each rank writes <file>.<rank>.jsonl, a line for each operation (<file>.<backend>.<rank>.jsonl where "
              "the job has several backends); empty: a summary on stderr at the end." },
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    static const struct tn_plugin plugin = {
        TN_PLUGIN_BUILT,
        .min_host_minor = TN_ABI_MINOR,
        .kind = TN_PLUGIN_COLLECTIVE,
        .id = "trace",
        .version = "0.1.0",
        .summary = "Layer that records every operation with its time, size, group and wait.",
        .build_info = __VERSION__,
        .table = &table,
        .options = options,
        .option_count = sizeof options / sizeof *options,
    };
    (void)host;
    return &plugin;
}
