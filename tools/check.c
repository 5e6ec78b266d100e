/* tenon check: what a manifest means, and every problem with it; launches nothing. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kinds.h"
#include "program/program_text.h"
#include "timeline.h"
#include "tool.h"

static void usage(FILE *out)
{
    fprintf(out,
            "usage: tenon check JOB.ini [--json] [--no-data] [-n RANKS] [--set SECTION.KEY=VALUE]...\n\n"
            "Shows the chain with its files, the mesh, memory per rank by category, communication per step by group\n"
            "and op, and what the run starts from; or all problems, and exits with 2.\n\n"
            "  --json      the same for programs\n"
            "  --no-data   [data] path is on another machine, and is not looked for\n");
}

/* Calls and bytes of one op on one axis in one step. */
struct traffic {
    int32_t axis;
    uint32_t opcode;
    int64_t calls;
    double bytes; /* moved per rank, as cost rules count */
};

/* What a strategy took care of in one micro-batch, and what another one has instead of it. */
struct care {
    const char *who, *what, *instead; /* instead: id of that one, or NULL */
    int64_t values;
    double bytes;
};

enum { MOST_TRAFFIC = TN_MAX_AXES * 8, MOST_CARES = 16 };

/* One kind of rank. */
struct rank_kind {
    int32_t rank; /* one of it */
    int64_t total[TN_SPACES], category[TN_SPACES][TN_MEM_COUNT];
    double flops;
    struct traffic traffic[MOST_TRAFFIC];
    size_t n_traffic;
    struct care care[MOST_CARES];
    size_t n_cares;
};

struct report {
    struct tn_job *job;
    uint32_t spaces; /* mask of those that some rank uses, but for the device */
    struct rank_kind kind[TOOL_MOST_KINDS];
    size_t n;
    int64_t params;
    struct tn_origin origin;
    struct tn_timeline timeline; /* of a job with stages */
    int32_t staged;              /* ranks that are in it; after all are compiled: whether it tells anything */
};

static void add_traffic(struct rank_kind *kind, const struct tn_program *p, tn_op op)
{
    int32_t axis = (int32_t)tn_attr_i(p, op, "axis", 0);
    double flops, bytes;
    tn_op_kind(p->ops[op].opcode)->cost(p, op, &flops, &bytes);
    size_t i = 0;
    while (i < kind->n_traffic && (kind->traffic[i].axis != axis || kind->traffic[i].opcode != p->ops[op].opcode))
        i++;
    if (i == MOST_TRAFFIC)
        return;
    if (i == kind->n_traffic)
        kind->traffic[kind->n_traffic++] = (struct traffic){ .axis = axis, .opcode = p->ops[op].opcode };
    kind->traffic[i].calls++;
    kind->traffic[i].bytes += bytes;
}

static const char *keep(struct tn_job *job, const char *text)
{
    return tn_arena_strdup(&job->manifest.arena, text);
}

static void add_claims(struct tn_job *job, struct rank_kind *kind, const struct tn_program *p)
{
    for (uint32_t i = 1; i <= p->n_claims; i++) {
        const struct tn_claimed *c = &p->claims[i];
        const char *instead = c->lost_to ? p->claims[c->lost_to].claim.who : NULL;
        size_t n = 0;
        while (n < kind->n_cares &&
               (strcmp(kind->care[n].who, c->claim.who) || strcmp(kind->care[n].what, c->claim.what) ||
                strcmp(kind->care[n].instead ? kind->care[n].instead : "", instead ? instead : "")))
            n++;
        if (n == MOST_CARES)
            return;
        if (n == kind->n_cares)
            kind->care[kind->n_cares++] = (struct care){ .who = keep(job, c->claim.who),
                                                         .what = keep(job, c->claim.what),
                                                         .instead = instead ? keep(job, instead) : NULL };
        kind->care[n].values++;
        kind->care[n].bytes += (double)tn_local_elements(p, c->v) * tn_dtype_bytes(p->values[c->v].dtype);
    }
}

static void measure(struct report *report, const struct tn_compiled *c, int32_t rank)
{
    struct rank_kind *kind = &report->kind[report->n++];
    *kind = (struct rank_kind){ .rank = rank, .flops = c->flops };
    kind->total[TN_SPACE_DEVICE] = tn_plan_bytes(&c->plan);
    memcpy(kind->category[TN_SPACE_DEVICE], c->plan.category_bytes, sizeof kind->category[0]);
    for (uint32_t space = TN_SPACE_HOST; space < TN_SPACES; space++) {
        kind->total[space] = tn_plan_away(&c->plan, space);
        memcpy(kind->category[space], c->plan.away[space].category_bytes, sizeof kind->category[space]);
    }
    add_claims(report->job, kind, &c->program);
    for (uint32_t space = TN_SPACE_HOST; space < TN_SPACES; space++)
        report->spaces |= (uint32_t)(kind->total[space] > 0) << space;
    TN_EACH_OP(&c->flat, op)
        if (tn_op_is_comm(c->flat.ops[op].opcode))
            add_traffic(kind, &c->flat, op);
}

/* The ranks along the axis of stages, first of all others. */
static void add_to_timeline(struct report *report, int32_t axis, int32_t rank, const struct tn_plan *plan)
{
    if (axis < 0 || report->job->mesh.axis[axis].size == 1 || !tool_is_first(report->job, rank, 1u << axis))
        return;
    if (!report->staged)
        tn_timeline_init(&report->timeline, report->job->mesh.axis[axis].size);
    tn_timeline_add(&report->timeline, report->staged++, plan);
}

/* Whether the timeline has all stages, and comes to its end. */
static int is_timed(struct report *report)
{
    char error[1024];
    return report->staged > 1 && report->staged == report->timeline.ranks &&
           tn_timeline_run(&report->timeline, 0, error, sizeof error) == TN_OK;
}

static void see_kind(void *ctx, int32_t rank, const struct tn_compiled *c)
{
    struct report *report = ctx;
    measure(report, c, rank);
    add_to_timeline(report, tn_stage_axis(&report->job->mesh), rank, &c->plan);
    report->params = 0;
    for (tn_value v = 1; v <= c->program.n_values; v++)
        if (c->program.values[v].kind == TN_KIND_PARAM && !c->program.values[v].def)
            report->params += tn_elements(c->program.values[v].shape, c->program.values[v].rank);
}

/* plain text */

static double mib(int64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static void print_plugin(const char *role, const struct tn_instance *instance)
{
    const struct tn_plugin *plugin = instance->library.plugin;
    printf("  %-10s %-8s %-8s %s\n", role, plugin->id, plugin->version, instance->library.path);
}

static void print_plugins(const struct tn_job *job)
{
    printf("plugins\n");
    print_plugin("model", &job->model);
    print_plugin("device", &job->device);
    for (uint32_t b = 0; b < job->n_backends; b++) {
        print_plugin("backend", &job->backend[b].instance);
        for (uint32_t i = 0; i < job->backend[b].n_layers; i++)
            print_plugin("layer", &job->backend[b].layer[i]);
    }
    for (uint32_t i = 0; i < job->n_chain; i++)
        print_plugin("strategy", &job->chain[i]);
}

/* Whether axes differ in what they communicate by. */
static int differ_in_backend(const struct tn_job *job)
{
    for (int32_t axis = 0; axis < job->mesh.n_axes; axis++)
        if (job->axis_backend[axis] != 0)
            return 1;
    return 0;
}

static const char *backend_of(const struct tn_job *job, int32_t axis)
{
    return job->backend[job->axis_backend[axis]].instance.library.plugin->id;
}

static void print_mesh(const struct tn_job *job)
{
    printf("mesh (first axis fastest), world %d\n", job->mesh.world);
    for (int32_t axis = 0; axis < job->mesh.n_axes; axis++) {
        int32_t size = job->mesh.axis[axis].size, stride = job->mesh.axis[axis].stride;
        printf("  %-8s %4d ranks, first group [", job->mesh.axis[axis].name, size);
        for (int32_t i = 0; i < size && i < 8; i++)
            printf(i ? " %d" : "%d", i * stride);
        printf(size > 8 ? " ..]" : "]");
        if (differ_in_backend(job))
            printf(", by %s", backend_of(job, axis));
        putchar('\n');
    }
}

static void print_space(const struct report *report, uint32_t space)
{
    printf("  %-8s", "rank");
    for (int c = 0; c < TN_MEM_COUNT; c++)
        printf(" %12s", tn_category_name[c]);
    printf(" %12s\n", space == TN_SPACE_DEVICE ? "peak" : tn_space_names[space]);
    for (size_t i = 0; i < report->n; i++) {
        printf("  %-8d", report->kind[i].rank);
        for (int c = 0; c < TN_MEM_COUNT; c++)
            printf(" %12.2f", mib(report->kind[i].category[space][c]));
        printf(" %12.2f\n", mib(report->kind[i].total[space]));
    }
}

static void print_memory(const struct report *report)
{
    printf("memory per rank, MiB (budget %.1f)\n", mib(tn_job_budget(report->job)));
    print_space(report, TN_SPACE_DEVICE);
    printf("  each category at its own highest; peak is the arena, exact\n");
    for (uint32_t space = TN_SPACE_HOST; space < TN_SPACES; space++)
        if (report->spaces >> space & 1) {
            printf("beside the device, MiB\n");
            print_space(report, space);
        }
}

static void print_claims(const struct report *report)
{
    const struct rank_kind *kind = &report->kind[0];
    if (kind->n_cares)
        printf("activations of a micro-batch of rank %d that are not kept on the device\n", kind->rank);
    for (size_t i = 0; i < kind->n_cares; i++) {
        const struct care *care = &kind->care[i];
        printf("  %-8s %-12s %5lld values %12.2f MiB", care->who, care->what, (long long)care->values,
               care->bytes / 1048576.0);
        printf(care->instead ? ", left to %s, which has claimed them before\n" : "%s\n",
               care->instead ? care->instead : "");
    }
}

static void print_traffic(const struct report *report)
{
    const struct rank_kind *kind = &report->kind[0];
    printf("communication per step and rank\n");
    if (kind->n_traffic == 0)
        printf("  none\n");
    for (size_t i = 0; i < kind->n_traffic; i++) {
        const struct traffic *traffic = &kind->traffic[i];
        printf("  %-8s %-16s %6lld calls %12.2f MiB %s\n", report->job->mesh.axis[traffic->axis].name,
               tn_op_kind(traffic->opcode)->name, (long long)traffic->calls, traffic->bytes / 1048576.0,
               traffic->opcode == TN_OP_RECV ? "received" : "sent");
    }
}

static void print_origin(const struct report *report)
{
    const struct tn_origin *origin = &report->origin;
    if (origin->kind == TN_ORIGIN_CHECKPOINT)
        printf("starts from %s, at step %lld\n", origin->path, (long long)origin->progress.step);
    else if (origin->kind == TN_ORIGIN_LOAD)
        printf("starts from the weights of %s\n", origin->path);
    else
        printf("starts from seed %lld\n", (long long)report->job->settings.seed);
}

static void print_report(const struct report *report)
{
    print_plugins(report->job);
    print_mesh(report->job);
    printf("model: %.2f M params, %.2f GFLOP a step and rank\n", (double)report->params * 1e-6,
           report->kind[0].flops * 1e-9);
    if (report->staged) {
        printf("pipeline: ");
        tool_print_bubble(&report->timeline, stdout);
    }
    print_memory(report);
    print_claims(report);
    print_traffic(report);
    print_origin(report);
}

/* JSON */

static json_t *plugin_json(const char *role, const struct tn_instance *instance)
{
    const struct tn_plugin *plugin = instance->library.plugin;
    return json_pack("{s:s, s:s, s:s, s:s}", "role", role, "id", plugin->id, "version", plugin->version, "path",
                     instance->library.path);
}

static json_t *space_json(const struct rank_kind *kind, uint32_t space)
{
    json_t *memory = json_object();
    for (int c = 0; c < TN_MEM_COUNT; c++)
        json_object_set_new(memory, tn_category_name[c], json_integer(kind->category[space][c]));
    json_object_set_new(memory, "peak", json_integer(kind->total[space]));
    return memory;
}

static json_t *claims_json(const struct rank_kind *kind)
{
    json_t *claims = json_array();
    for (size_t i = 0; i < kind->n_cares; i++) {
        const struct care *care = &kind->care[i];
        json_array_append_new(claims,
                              json_pack("{s:s, s:s, s:I, s:f, s:s?}", "who", care->who, "what", care->what, "values",
                                        (json_int_t)care->values, "bytes", care->bytes, "left_to", care->instead));
    }
    return claims;
}

static json_t *rank_json(const struct report *report, const struct rank_kind *kind)
{
    json_t *traffic = json_array();
    for (size_t i = 0; i < kind->n_traffic; i++)
        json_array_append_new(traffic, json_pack("{s:s, s:s, s:I, s:f}", "axis",
                                                 report->job->mesh.axis[kind->traffic[i].axis].name, "op",
                                                 tn_op_kind(kind->traffic[i].opcode)->name, "calls",
                                                 (json_int_t)kind->traffic[i].calls, "bytes", kind->traffic[i].bytes));
    json_t *rank = json_pack("{s:i, s:f, s:o, s:o, s:o}", "rank", kind->rank, "flops", kind->flops, "memory_bytes",
                             space_json(kind, TN_SPACE_DEVICE), "claims", claims_json(kind), "communication", traffic);
    for (uint32_t space = TN_SPACE_HOST; space < TN_SPACES; space++) {
        char key[32];
        snprintf(key, sizeof key, "%s_bytes", tn_space_names[space]);
        json_object_set_new(rank, key, space_json(kind, space));
    }
    return rank;
}

static json_t *origin_json(const struct tn_origin *origin)
{
    static const char *const kinds[] = { "seed", "load", "checkpoint" };
    json_t *json = json_pack("{s:s}", "from", kinds[origin->kind]);
    if (origin->kind != TN_ORIGIN_SEED)
        json_object_set_new(json, "path", json_string(origin->path));
    if (origin->kind == TN_ORIGIN_CHECKPOINT)
        json_object_set_new(json, "step", json_integer(origin->progress.step));
    return json;
}

static void print_json(const struct report *report)
{
    struct tn_job *job = report->job;
    json_t *problems = json_array(), *plugins = json_array(), *mesh = json_array(), *ranks = json_array();
    for (size_t i = 0; i < job->diag.count; i++)
        json_array_append_new(problems, json_string(tn_diag_text(&job->diag, &job->diag.problems[i])));
    if (job->diag.count == 0) {
        json_array_append_new(plugins, plugin_json("model", &job->model));
        json_array_append_new(plugins, plugin_json("device", &job->device));
        for (uint32_t b = 0; b < job->n_backends; b++) {
            json_array_append_new(plugins, plugin_json("backend", &job->backend[b].instance));
            for (uint32_t i = 0; i < job->backend[b].n_layers; i++)
                json_array_append_new(plugins, plugin_json("layer", &job->backend[b].layer[i]));
        }
        for (uint32_t i = 0; i < job->n_chain; i++)
            json_array_append_new(plugins, plugin_json("strategy", &job->chain[i]));
    }
    for (int32_t axis = 0; axis < job->mesh.n_axes; axis++)
        json_array_append_new(mesh, json_pack("{s:s, s:i, s:i, s:s?}", "axis", job->mesh.axis[axis].name, "size",
                                              job->mesh.axis[axis].size, "stride", job->mesh.axis[axis].stride,
                                              "backend", job->diag.count == 0 ? backend_of(job, axis) : NULL));
    for (size_t i = 0; i < report->n; i++)
        json_array_append_new(ranks, rank_json(report, &report->kind[i]));
    json_t *all =
        json_pack("{s:o, s:o, s:i, s:o, s:I, s:I, s:o, s:o}", "problems", problems, "plugins", plugins, "world",
                  job->mesh.world, "mesh", mesh, "params", (json_int_t)report->params, "budget_bytes",
                  (json_int_t)tn_job_budget(job), "ranks", ranks, "start", origin_json(&report->origin));
    if (report->staged) {
        struct tn_bubble b = tn_timeline_bubble(&report->timeline);
        json_object_set_new(all, "pipeline",
                            json_pack("{s:f, s:f, s:f, s:f}", "idle", b.idle, "bubble", b.bubble, "formula", b.formula,
                                      "unequal", b.unequal));
    }
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
}

int tenon_check_main(int argc, char **argv)
{
    struct tool_args args = { 0 };
    int json = 0, data = 1;
    for (int i = 1; i < argc; i++) {
        int taken = 0;
        if (tool_is_help(argv[i])) {
            usage(stdout);
            return tool_printed(TOOL_DONE);
        } else if (strcmp(argv[i], "--json") == 0)
            json = 1;
        else if (strcmp(argv[i], "--no-data") == 0)
            data = 0;
        else if ((taken = tool_arg(&args, argc, argv, &i)) == 0)
            return tool_unknown("check", argv[i], (const char *[]){ "--json", "--no-data", NULL });
        if (taken < 0)
            return TOOL_USAGE;
    }
    if (!args.manifest) {
        usage(stderr);
        return TOOL_USAGE;
    }
    struct tn_job job;
    struct report *report = calloc(1, sizeof *report);
    if (!report)
        return TOOL_FAILED;
    report->job = &job;
    tn_job_open(&job, args.manifest, args.overrides, args.n_overrides, args.ranks);
    int can_build = job.diag.count == 0;
    if (data)
        tn_job_check_data(&job);
    if (can_build)
        tool_compile_kinds(&job, &report->origin, see_kind, report);
    report->staged = is_timed(report);
    int code = job.diag.count ? TOOL_USAGE : TOOL_DONE;
    if (json)
        print_json(report);
    else if (job.diag.count == 0)
        print_report(report);
    else
        tn_diag_print(&job.diag, stderr);
    tn_job_close(&job);
    tn_timeline_finish(&report->timeline);
    free(report);
    return tool_printed(code);
}
