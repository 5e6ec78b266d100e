/* Small job: see small_job.h. */
#include "small_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char *small_job_plugins = ".";

static int64_t setting(const struct small_job *job, const char *key, int64_t missing)
{
    const struct tn_entry *entry = tn_manifest_find(&job->manifest, "data", key);
    return entry ? atoll(entry->value) : missing;
}

static const struct tn_model *model_table(const struct small_job *job)
{
    return tn_instance_table(&job->model);
}

static int64_t facts_get(const struct tn_facts *facts, const char *name, int64_t missing)
{
    const struct small_job *job = (const struct small_job *)((const char *)facts - offsetof(struct small_job, facts));
    int64_t batch = setting(job, "batch", 8), micro_batches = setting(job, "micro_batches", 1);
    if (strcmp(name, "world") == 0)
        return job->mesh.world;
    if (strcmp(name, "sequence") == 0)
        return setting(job, "sequence", 16);
    if (strcmp(name, "batch") == 0)
        return batch;
    if (strcmp(name, "micro_batches") == 0)
        return micro_batches;
    if (strcmp(name, "micro_batch") == 0)
        return batch / micro_batches;
    return job->model.self ? model_table(job)->fact(job->model.self, name, missing) : missing;
}

static void open_plugin(struct small_job *job, struct tn_instance *instance, const char *kind, const char *name)
{
    struct tn_search search = { 0 };
    struct tn_load_error error = { 0 };
    const char *path = tn_arena_printf(&job->arena, "%s/%s/%s.so", small_job_plugins, kind, name);
    struct tn_library library;
    if (tn_library_open(&library, path, 0, &search, &job->arena, &error) != TN_LOAD_OK)
        fail_msg("%s", error.text);
    tn_instance_init(instance, &library, &job->manifest, &job->diag);
    instance->facts = &job->facts;
    if (tn_instance_create(instance, NULL, &error) != TN_LOAD_OK)
        fail_msg("%s", error.text);
}

static void add_axes(struct small_job *job, const struct tn_instance *instance, int32_t size)
{
    const struct tn_strategy *table = tn_instance_table(instance);
    struct tn_axis axes[TN_MAX_AXES] = {
        { .struct_size = sizeof(struct tn_axis), .size = size, .name = instance->library.plugin->id }
    };
    int32_t n = 1;
    if (table->axes)
        assert_int_equal(table->axes(instance->self, size, axes, TN_MAX_AXES, &n), TN_OK);
    for (int32_t a = 0; a < n; a++)
        assert_int_equal(tn_mesh_add(&job->mesh, axes[a].name, axes[a].size, instance->library.plugin->id), 0);
}

void small_job_open(struct small_job *job, const char *manifest_path, const char *const *overrides,
                    const char *const *strategies, const int32_t *sizes, int32_t rank)
{
    size_t n_overrides = 0;
    memset(job, 0, sizeof *job);
    while (overrides && overrides[n_overrides])
        n_overrides++;
    tn_diag_init(&job->diag);
    tn_arena_init(&job->arena);
    tn_manifest_init(&job->manifest, manifest_path, overrides, n_overrides, &job->diag);
    job->facts.get = facts_get;
    job->mesh.world = 1;
    open_plugin(job, &job->model, "models", "gpt");
    for (; strategies && strategies[job->n]; job->n++) {
        open_plugin(job, &job->strategy[job->n], "strategies", strategies[job->n]);
        job->size[job->n] = sizes[job->n];
        add_axes(job, &job->strategy[job->n], sizes[job->n]);
    }
    tn_mesh_coord(&job->mesh, rank, job->coord);
    tn_program_init(&job->program, &job->mesh, job->coord);
}

void small_job_close(struct small_job *job)
{
    tn_program_finish(&job->program);
    for (int i = 0; i < job->n; i++)
        tn_instance_destroy(&job->strategy[i]);
    tn_instance_destroy(&job->model);
    tn_manifest_finish(&job->manifest);
    tn_arena_finish(&job->arena);
    tn_diag_finish(&job->diag);
}

const char *small_job_problems(struct small_job *job)
{
    assert_int_equal(model_table(job)->check(job->model.self), TN_OK);
    for (int i = 0; i < job->n; i++) {
        const struct tn_strategy *table = tn_instance_table(&job->strategy[i]);
        if (table->check)
            assert_int_equal(table->check(job->strategy[i].self, job->size[i]), TN_OK);
    }
    FILE *out = fmemopen(job->text, sizeof job->text, "w");
    assert_non_null(out);
    tn_diag_print(&job->diag, out);
    fclose(out);
    return job->text;
}

static void expect_no_errors(const struct small_job *job)
{
    for (size_t n = 0; n < job->program.n_errors; n++)
        print_error("%s\n", job->program.errors[n]);
    assert_int_equal(job->program.n_errors, 0);
}

void small_job_build(struct small_job *job, uint32_t mode)
{
    int64_t micro_batches = setting(job, "micro_batches", 1);
    const struct tn_build build = { .struct_size = sizeof build,
                                    .mode = mode,
                                    .sequence = setting(job, "sequence", 16),
                                    .batch = setting(job, "batch", 8) / micro_batches };
    if (model_table(job)->build(job->model.self, &job->program, &build) != TN_OK)
        fail_msg("%s", tn_instance_message(&job->model));
    expect_no_errors(job);
}

void small_job_train(struct small_job *job)
{
    small_job_build(job, TN_BUILD_TRAIN);
    job->settings.weight_decay = 0.1;
    const struct tn_entry *compute = tn_manifest_find(&job->manifest, "precision", "compute");
    tn_precision(&job->program, compute && strcmp(compute->value, "bf16") == 0 ? TN_BF16 : TN_F32);
    tn_objective(&job->program, setting(job, "micro_batches", 1));
    tn_autodiff(&job->program);
    tn_optimizer(&job->program, &job->settings);
    expect_no_errors(job);
}

void small_job_place(struct small_job *job)
{
    for (int i = 0; i < job->n; i++) {
        const struct tn_strategy *table = tn_instance_table(&job->strategy[i]);
        job->program.actor = job->strategy[i].library.plugin->id;
        if (table->place && table->place(job->strategy[i].self, &job->program) != TN_OK)
            fail_msg("%s", tn_instance_message(&job->strategy[i]));
    }
    expect_no_errors(job);
}

void small_job_resolve(struct small_job *job)
{
    tn_resolve(&job->program);
    expect_no_errors(job);
}

void small_job_lower(struct small_job *job)
{
    for (int i = 0; i < job->n; i++) {
        const struct tn_strategy *table = tn_instance_table(&job->strategy[i]);
        job->program.actor = job->strategy[i].library.plugin->id;
        if (table->lower && table->lower(job->strategy[i].self, &job->program) != TN_OK)
            fail_msg("%s", tn_instance_message(&job->strategy[i]));
    }
    expect_no_errors(job);
}

int small_job_count(const struct small_job *job, uint32_t opcode, uint32_t region, int32_t axis)
{
    int count = 0;
    TN_EACH_OP(&job->program, op)
        count += job->program.ops[op].opcode == opcode && job->program.ops[op].region == region &&
                 (axis < 0 || tn_attr_i(&job->program, op, "axis", -1) == axis);
    return count;
}
