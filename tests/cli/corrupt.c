/* A layer that is wrong on purpose: the second rank gets one element of each all_reduce changed. A benchmark that trusts
 * its backends would print a bandwidth for it all the same. It hands on everything else as it is. */
#include <string.h>

#include <tenon/collective.h>
#include <tenon/plugin.h>

/* One instance a process is enough for a test. */
static struct tn_collective table;
static const struct tn_collective *next_table;
static int32_t rank;

static tn_status create(const struct tn_host *host, const struct tn_collective *next, void *next_self, void **self)
{
    if (!next)
        return host->fail(host, TN_INVALID, "corrupt is a layer");
    next_table = next;
    *self = next_self;
    return TN_OK;
}

static void destroy(void *self)
{
    (void)self;
}

static tn_status init(void *self, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    rank = bootstrap->rank;
    return next_table->init(self, bootstrap, timeout_ns);
}

static tn_status caps(void *self, struct tn_collective_caps *out)
{
    return next_table->caps(self, out);
}

static tn_status mem_alloc(void *self, uint64_t bytes, void **memory)
{
    return next_table->mem_alloc(self, bytes, memory);
}

static void mem_free(void *self, void *memory)
{
    next_table->mem_free(self, memory);
}

static tn_status comm_create(void *self, const char *name, const int32_t *ranks, int32_t n, uint64_t timeout_ns,
                             struct tn_comm **comm)
{
    return next_table->comm_create(self, name, ranks, n, timeout_ns, comm);
}

static tn_status all_reduce(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype, uint32_t red,
                            struct tn_queue *q, struct tn_request **r)
{
    tn_status status = next_table->all_reduce(c, send, recv, count, dtype, red, q, r);
    if (status == TN_OK && *r)
        status = next_table->wait(*r, UINT64_MAX);
    *r = NULL;
    if (status == TN_OK && rank == 1 && count > 0)
        ((unsigned char *)recv)[count / 2 * 4] ^= 1;
    return status;
}

#define PASS(result, name, params, args)     \
    static result name params                \
    {                                        \
        return next_table->name args;        \
    }
PASS(void, comm_destroy, (struct tn_comm *c), (c))
PASS(void, comm_abort, (struct tn_comm *c), (c))
PASS(tn_status, all_gather, (struct tn_comm *c, const void *s, void *d, uint64_t n, uint32_t t, struct tn_queue *q,
                             struct tn_request **r), (c, s, d, n, t, q, r))
PASS(tn_status, reduce_scatter, (struct tn_comm *c, const void *s, void *d, uint64_t n, uint32_t t, uint32_t red,
                                 struct tn_queue *q, struct tn_request **r), (c, s, d, n, t, red, q, r))
PASS(tn_status, all_to_all, (struct tn_comm *c, const void *s, void *d, uint64_t n, uint32_t t, struct tn_queue *q,
                             struct tn_request **r), (c, s, d, n, t, q, r))
PASS(tn_status, broadcast, (struct tn_comm *c, const void *s, void *d, uint64_t n, uint32_t t, int32_t root,
                            struct tn_queue *q, struct tn_request **r), (c, s, d, n, t, root, q, r))
PASS(tn_status, send, (struct tn_comm *c, const void *s, uint64_t n, uint32_t t, int32_t to, struct tn_queue *q,
                       struct tn_request **r), (c, s, n, t, to, q, r))
PASS(tn_status, recv, (struct tn_comm *c, void *d, uint64_t n, uint32_t t, int32_t from, struct tn_queue *q,
                       struct tn_request **r), (c, d, n, t, from, q, r))
PASS(tn_status, barrier, (struct tn_comm *c, struct tn_queue *q, struct tn_request **r), (c, q, r))
PASS(tn_status, test, (struct tn_request *r), (r))
PASS(tn_status, wait, (struct tn_request *r, uint64_t timeout_ns), (r, timeout_ns))
PASS(void, progress, (void *self), (self))
PASS(tn_status, last_error, (struct tn_comm *c, struct tn_comm_error *error), (c, error))

static struct tn_collective table = {
    .struct_size = sizeof table, .create = create, .destroy = destroy, .caps = caps, .init = init,
    .mem_alloc = mem_alloc, .mem_free = mem_free, .comm_create = comm_create, .comm_destroy = comm_destroy,
    .comm_abort = comm_abort, .all_reduce = all_reduce, .all_gather = all_gather, .reduce_scatter = reduce_scatter,
    .all_to_all = all_to_all, .broadcast = broadcast, .send = send, .recv = recv, .barrier = barrier, .test = test,
    .wait = wait, .progress = progress, .last_error = last_error,
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    static const struct tn_plugin plugin = {
        TN_PLUGIN_BUILT,
        .min_host_minor = TN_ABI_MINOR,
        .kind = TN_PLUGIN_COLLECTIVE,
        .id = "corrupt",
        .version = "1.0.0",
        .summary = "Layer that spoils a sum, for tests.",
        .build_info = "",
        .table = &table,
    };
    (void)host;
    return &plugin;
}
