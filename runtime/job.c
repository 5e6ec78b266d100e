/* Job: the flow. lower and bind are the figure of ARCHITECTURE.md, each as one flat function: what all
 * ranks of a pipeline have in common, and what each has of it. Each call is one arrow, and after each the program is
 * verified and shown to whoever watches. */
#include "job.h"

#include <string.h>

#include "passes/resolve.h"

/* Shows the program to whoever watches, or says what is wrong with it. 1: go on. */
static int show(struct tn_job *job, struct tn_program *p, const struct tn_plan *plan, const char *stage,
                const struct tn_watch *watch)
{
    for (size_t i = 0; i < p->n_errors; i++)
        tn_diag_add(&job->diag, (struct tn_where){ .file = job->manifest.path }, NULL, "after %s: %s", stage,
                    p->errors[i]);
    return p->n_errors == 0 && !(watch && watch->after(watch->ctx, stage, p, plan));
}

/* What happens after every arrow that changes the program. 1: go on. */
static int arrow(struct tn_job *job, struct tn_program *p, const char *stage, const struct tn_watch *watch)
{
    if (p->n_errors == 0)
        tn_program_verify(p, stage);
    return show(job, p, NULL, stage, watch);
}

static void build(struct tn_job *job, struct tn_program *p, int mode, int64_t batch, int64_t sequence)
{
    const struct tn_model *model = tn_instance_table(&job->model);
    struct tn_build what = { .struct_size = sizeof what,
                             .batch = batch,
                             .sequence = sequence,
                             .mode = mode == TN_PROGRAM_SAMPLE ? TN_BUILD_LOGITS : TN_BUILD_TRAIN,
                             .flags = mode != TN_PROGRAM_SAMPLE && job->settings.separate ? TN_BUILD_DOCUMENTS : 0 };
    p->actor = job->model.library.plugin->id;
    p->at_region = TN_REGION_FORWARD;
    if (model->build(job->model.self, p, &what) != TN_OK && p->n_errors == 0)
        tn_program_error(p, 0, "%s: %s", p->actor, tn_instance_message(&job->model));
    if (what.flags && p->n_errors == 0 && !tn_value_find(p, "start"))
        tn_program_error(p, 0, "[data] documents: %s takes no documents apart; use documents = joined", p->actor);
}

/* place or lower of every strategy in chain order; each is an arrow of its own. */
static int run_chain(struct tn_job *job, struct tn_program *p, const char *what, const struct tn_watch *watch)
{
    size_t problems = job->diag.count;
    for (uint32_t i = 0; i < job->n_chain; i++) {
        struct tn_instance *instance = &job->chain[i];
        const struct tn_strategy *strategy = tn_instance_table(instance);
        tn_status (*pass)(void *, struct tn_program *) = strcmp(what, "place") == 0 ? strategy->place : strategy->lower;
        p->actor = instance->library.plugin->id;
        p->insert_before = 0;
        if (pass && pass(instance->self, p) != TN_OK && p->n_errors == 0)
            tn_program_error(p, 0, "%s: %s", p->actor, tn_instance_message(instance));
        p->insert_before = 0;
        if (!arrow(job, p, tn_arena_printf(&p->arena, "%s:%s", what, p->actor), watch))
            return 0;
    }
    p->actor = "";
    return job->diag.count == problems; /* a pass may find that the manifest contradicts itself */
}

/* Before own stages, for all ranks of an axis make the same groups. */
static void note_channels(struct tn_job *job, const struct tn_program *p)
{
    TN_EACH_OP(p, op)
        if (p->ops[op].opcode == TN_OP_SEND || p->ops[op].opcode == TN_OP_RECV)
            job->channels[tn_attr_i(p, op, "axis", 0)] |= (uint8_t)(1u << tn_attr_i(p, op, "channel", 0));
}

void tn_job_schedule(struct tn_job *job, const struct tn_program *p, struct tn_program *flat, int32_t micro_batches)
{
    struct tn_slot *slots = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < job->n_chain; i++) {
        struct tn_instance *instance = &job->chain[i];
        const struct tn_strategy *strategy = tn_instance_table(instance);
        if (!strategy->schedule)
            continue;
        uint32_t cap = (uint32_t)micro_batches * 256;
        slots = tn_arena_alloc(&flat->arena, cap * sizeof *slots);
        if (strategy->schedule(instance->self, p, micro_batches, slots, cap, &n) != TN_OK)
            tn_program_error(flat, 0, "%s: %s", instance->library.plugin->id, tn_instance_message(instance));
        else if (n > cap)
            tn_program_error(flat, 0, "%s: a schedule of %u slots, where there is room for %u",
                             instance->library.plugin->id, n, cap);
    }
    if (flat->n_errors == 0)
        tn_schedule(p, flat, micro_batches, slots, n);
}

static void plan(struct tn_job *job, struct tn_compiled *c, const struct tn_plan *base)
{
    char error[512] = "";
    struct tn_machine device = { .device = tn_instance_table(&job->device), .device_self = job->device.self };
    int64_t scratch = tn_exec_scratch(&device, &c->flat, error, sizeof error);
    if (scratch < 0)
        tn_program_error(&c->flat, 0, "%s: %s", error, tn_instance_message(&job->device));
    else
        tn_plan_init(&c->plan, &c->flat, base, scratch);
    TN_EACH_OP(&c->flat, op) {
        double flops, bytes;
        tn_op_kind(c->flat.ops[op].opcode)->cost(&c->flat, op, &flops, &bytes);
        c->flops += flops;
    }
}

static tn_status outcome(const struct tn_job *job, const struct tn_program *p, size_t problems)
{
    return p->n_errors || job->diag.count > problems ? TN_INVALID : TN_OK;
}

/* Up to what every rank of a pipeline would have of it. */
static tn_status lower(struct tn_job *job, int mode, int64_t batch, int64_t sequence, const struct tn_watch *watch,
                       struct tn_program *p, int *goes_on)
{
    const struct tn_settings *s = &job->settings;
    size_t problems = job->diag.count;
    *goes_on = 0;
    job->trial_scratch = 0;
    if (mode != TN_PROGRAM_SAMPLE) {
        batch = s->batch / s->micro_batches;
        sequence = s->sequence;
    }
    build(job, p, mode, batch, sequence);
    if (!arrow(job, p, "model", watch))
        goto end;

    if (s->compute == TN_COMPUTE_BF16)
        tn_precision(p, TN_BF16);
    if (mode != TN_PROGRAM_SAMPLE)
        tn_objective(p, s->micro_batches);
    if (mode == TN_PROGRAM_TRAIN) {
        tn_autodiff(p);
        tn_optimizer(p, s);
    }
    if (!arrow(job, p, "grad", watch))
        goto end;

    if (!run_chain(job, p, "place", watch))
        goto end;

    tn_resolve(p);
    if (!arrow(job, p, "resolve", watch))
        goto end;

    if (!run_chain(job, p, "lower", watch))
        goto end;
    note_channels(job, p);
    *goes_on = 1;
end:
    return outcome(job, p, problems);
}

/* From there to what this rank runs. */
static tn_status bind(struct tn_job *job, const struct tn_plan *base, const struct tn_watch *watch,
                      struct tn_compiled *c)
{
    struct tn_program *p = &c->program;
    size_t problems = job->diag.count;
    tn_own_stages(p);
    tn_fuse(p);
    if (!arrow(job, p, "lower", watch))
        goto end;

    tn_job_schedule(job, p, &c->flat, c->micro_batches);
    if (!arrow(job, &c->flat, "schedule", watch))
        goto end;

    plan(job, c, base);
    show(job, &c->flat, &c->plan, "bound", watch); /* the program is as it was */
end:
    return p->n_errors ? TN_INVALID : outcome(job, &c->flat, problems);
}

static void begin(const struct tn_job *job, int mode, int32_t rank, struct tn_compiled *c)
{
    memset(c, 0, sizeof *c);
    tn_mesh_coord(&job->mesh, rank, c->coord);
    c->micro_batches = mode == TN_PROGRAM_SAMPLE ? 1 : (int32_t)job->settings.micro_batches;
    tn_program_init(&c->flat, &job->mesh, c->coord);
}

tn_status tn_job_compile(struct tn_job *job, int mode, int32_t rank, int64_t batch, int64_t sequence,
                         const struct tn_plan *base, const struct tn_watch *watch, struct tn_compiled *c)
{
    int goes_on;
    begin(job, mode, rank, c);
    tn_program_init(&c->program, &job->mesh, c->coord);
    tn_status status = lower(job, mode, batch, sequence, watch, &c->program, &goes_on);
    return goes_on ? bind(job, base, watch, c) : status;
}

/* Whether the program is what a rank at `coord` would have as well: it differs from its own on axes of stages alone,
 * and nothing in the program, nor what a strategy did with it, comes from where on them a rank is. */
static int serves(const struct tn_lowered *lowered, const int32_t *coord)
{
    const struct tn_program *p = &lowered->program;
    uint32_t differ = 0, stages = 0, comes_from = p->coord_read;
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        differ |= (uint32_t)(coord[axis] != lowered->coord[axis]) << axis;
        stages |= (uint32_t)(p->mesh->axis[axis].stages != 0) << axis;
        for (tn_value v = 1; v <= p->n_values; v++) {
            uint32_t kind = TN_PLACE_KIND(p->values[v].place[axis]);
            comes_from |= (uint32_t)(kind == TN_PLACE_SHARD || kind == TN_PLACE_FLAT) << axis;
        }
    }
    return (differ & ~(stages & ~comes_from)) == 0;
}

tn_status tn_job_compile_next(struct tn_job *job, int mode, int32_t rank, struct tn_lowered *lowered,
                              struct tn_compiled *c)
{
    struct tn_program *p = &lowered->program;
    begin(job, mode, rank, c);
    if (!lowered->is_done || !serves(lowered, c->coord)) {
        tn_lowered_finish(lowered);
        memcpy(lowered->coord, c->coord, sizeof c->coord);
        tn_program_init(p, &job->mesh, lowered->coord);
        tn_status status = lower(job, mode, 0, 0, NULL, p, &lowered->is_done);
        if (!lowered->is_done)
            return status;
    }
    tn_program_copy_as(&c->program, p, c->coord);
    return bind(job, NULL, NULL, c);
}

void tn_lowered_finish(struct tn_lowered *lowered)
{
    tn_program_finish(&lowered->program);
    lowered->is_done = 0;
}

void tn_compiled_finish(struct tn_compiled *compiled)
{
    tn_plan_finish(&compiled->plan);
    tn_program_finish(&compiled->flat);
    tn_program_finish(&compiled->program);
}
