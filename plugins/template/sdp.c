/* sdp: simple data parallelism, as a template for a strategy of your own.
 *
 * The smallest strategy that does something: it adds an axis to the mesh and says that inputs are cut along their
 * batch there. All else follows from the types: resolve sees that each gradient becomes a sum over the axis, and puts
 * the all-reduces in. Copy this file, rename `sdp`, and build it outside of Tenon's tree with nothing but the
 * installed headers:
 *
 *     cc -shared -fPIC -O2 -fvisibility=hidden -o sdp.so sdp.c
 *
 * A manifest uses it by its path, and gives it options in the section of its id:
 *
 *     [strategies]
 *     chain = ./sdp.so
 *     [sdp]
 *     size = 2
 */
#include <string.h>

#include <tenon/plugin.h>
#include <tenon/strategy.h>

/* Everything hangs on the instance: no globals, so that two instances work in one process. */
struct sdp {
    const struct tn_host *host;             /* the way back: messages, memory, options, larger tables */
    const struct tn_facts_api *facts;       /* sizes of the job and the model */
    const struct tn_program_api *read;      /* to read the program */
    const struct tn_program_edit_api *edit; /* to edit it */
};

/* The keys of section [sdp]. Tenon parses them, checks types and ranges, refuses unknown ones and prints this table in
 * `tenon plugin inspect`. A strategy with the key "size" and no `axes` function gets one axis of that size, named by
 * its id; "auto" takes the ranks that other strategies leave. */
static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_INT, TN_OPT_AUTO, 0, "size", "auto", 1, 1 << 20, NULL,
      "Ranks that share the batch; auto: all that other strategies leave." },
};

static tn_status create(const struct tn_host *host, void **self)
{
    struct sdp *sdp = host->alloc(host, sizeof *sdp);
    if (!sdp)
        return host->fail(host, TN_NO_MEMORY, "no memory for the strategy's instance");
    sdp->host = host;
    sdp->facts = host->get_api(host, "tn.facts/1");
    sdp->read = host->get_api(host, "tn.program/1");
    sdp->edit = host->get_api(host, "tn.program_edit/1");
    *self = sdp;
    return TN_OK;
}

static void destroy(void *self)
{
    struct sdp *sdp = self;
    if (sdp)
        sdp->host->release(sdp->host, sdp);
}

/* Before anything is built: what does not fit, and what would. Tenon adds file, line and section. */
static tn_status check(void *self, int32_t size)
{
    const struct sdp *sdp = self;
    if (sdp->facts->get(sdp->host, "micro_batch", size) % size != 0)
        sdp->host->problem(sdp->host, "size", "does not divide the sequences of a micro-batch",
                           "use a divisor of [data] batch / micro_batches");
    return TN_OK;
}

/* Who owns what. Values that a strategy says nothing about (here parameters and optimizer states) are whole on every
 * rank of the axis. */
static tn_status place(void *self, struct tn_program *program)
{
    const struct sdp *sdp = self;
    const int32_t axis = sdp->read->axis_find(program, "sdp");
    for (tn_value v = sdp->read->value_next(program, 0); v; v = sdp->read->value_next(program, v)) {
        struct tn_value_info info = { .struct_size = sizeof info };
        sdp->read->value_info(program, v, &info);
        for (int32_t dim = 0; info.kind == TN_KIND_INPUT && dim < info.rank; dim++)
            if (strcmp(info.dims[dim], "batch") == 0)
                sdp->edit->place(program, v, axis, TN_SHARD(dim));
    }
    return TN_OK;
}

/* What a strategy does not need stays NULL: here axes, lower and schedule. */
static const struct tn_strategy table = {
    .struct_size = sizeof(struct tn_strategy),
    .create = create,
    .destroy = destroy,
    .check = check,
    .place = place,
};

/* Tenon refuses to load the plugin where it cannot offer one of these, so that create need not look. */
static const char *const needs[] = { "tn.facts/1", "tn.program/1", "tn.program_edit/1", NULL };

static const struct tn_plugin plugin = {
    .magic = TN_PLUGIN_MAGIC,
    .struct_size = sizeof(struct tn_plugin),
    .abi_major = TN_ABI_MAJOR,
    .abi_minor = TN_ABI_MINOR,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_STRATEGY,
    .option_stride = sizeof(struct tn_option),
    .id = "sdp",
    .version = "0.1.0",
    .summary = "Simple data parallelism: the batch cut over ranks.",
    .build_info = "",
    .table = &table,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .needs = needs,
};

/* The one symbol of a plugin. No side effects: it may be called just to print the description. */
const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    (void)host;
    return &plugin;
}
