/* Setup: from a manifest's path to plugins with options and a mesh (job.h).
 *
 * Every problem found on the way goes to job->diag and the rest is still looked at, so that one run of `tenon check`
 * shows all. Owns the order in which plugins are loaded: model first, for the facts that others ask. */
#include "job.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static int64_t job_fact(const struct tn_job *job, const char *name, int64_t missing)
{
    const struct tn_settings *s = &job->settings;
    if (strcmp(name, "world") == 0)
        return job->mesh.world ? job->mesh.world : missing;
    if (strcmp(name, "batch") == 0)
        return s->batch;
    if (strcmp(name, "micro_batches") == 0)
        return s->micro_batches;
    if (strcmp(name, "micro_batch") == 0)
        return s->micro_batches > 0 ? s->batch / s->micro_batches : missing;
    if (strcmp(name, "backends") == 0)
        return tn_job_used_backends(job);
    if (strcmp(name, "sequence") == 0)
        return s->sequence;
    return missing;
}

static int64_t get_fact(const struct tn_facts *facts, const char *name, int64_t missing)
{
    const struct tn_job *job = (const struct tn_job *)facts;
    const struct tn_model *model = job->model.self ? tn_instance_table(&job->model) : NULL;
    int64_t fact = model && model->fact ? model->fact(job->model.self, name, INT64_MIN) : INT64_MIN;
    return fact == INT64_MIN ? job_fact(job, name, missing) : fact;
}

void tn_job_load(struct tn_job *job, struct tn_instance *instance, const char *name, uint32_t kind, const char *section,
                 const char *key, struct tn_instance *next)
{
    struct tn_search search = { .manifest_folder = job->manifest.folder,
                                .beside_manifest = job->settings.plugins_beside_manifest };
    struct tn_library library;
    struct tn_load_error error;
    struct tn_where where = tn_manifest_where(&job->manifest, section, key);
    if (!*name) {
        tn_diag_add(&job->diag, where, "name a plugin, or remove the key for the default", "is empty");
        return;
    }
    if (tn_library_open(&library, name, kind, &search, &job->manifest.arena, &error) != TN_LOAD_OK) {
        tn_diag_add(&job->diag, where, NULL, "plugin %s: %s", name, error.text);
        return;
    }
    tn_instance_init(instance, &library, &job->manifest, &job->diag);
    instance->facts = &job->facts;
    if (kind == TN_PLUGIN_COLLECTIVE)
        instance->opener = &job->opener;
    size_t before = job->diag.count;
    if (instance->options.sound && tn_instance_create(instance, next, &error) != TN_LOAD_OK &&
        job->diag.count == before)
        tn_diag_add(&job->diag, where, NULL, "plugin %s: %s", name, error.text);
}

static void load_all(struct tn_job *job)
{
    const struct tn_settings *s = &job->settings;
    tn_job_load(job, &job->model, s->model, TN_PLUGIN_MODEL, "model", "plugin", NULL);
    tn_job_load(job, &job->device, s->device, TN_PLUGIN_DEVICE, "device", "plugin", NULL);
    tn_job_open_backend(job);
    for (uint32_t i = 0; i < s->n_chain; i++) {
        if (i == TN_MOST_CHAIN) {
            tn_diag_add(&job->diag, tn_manifest_where(&job->manifest, "strategies", "chain"), NULL,
                        "%u strategies; at most %d are possible", s->n_chain, TN_MOST_CHAIN);
            break;
        }
        tn_job_load(job, &job->chain[job->n_chain++], s->chain[i], TN_PLUGIN_STRATEGY, "strategies", "chain", NULL);
    }
}

static const char *id_of(const struct tn_instance *instance)
{
    return instance->library.plugin->id;
}

/* The option "size" of a strategy: its value, -1 for auto, 1 where it has none. */
static int64_t size_option(const struct tn_instance *strategy)
{
    const struct tn_option_value *size = tn_options_find(&strategy->options, "size");
    return size && size->option->type == TN_OPT_INT ? size->i : 1;
}

/* Sizes of the chain: one may be auto and takes what the others leave of the ranks given. */
static void size_chain(struct tn_job *job)
{
    int64_t product = 1;
    int32_t automatic = -1;
    int known = 1; /* one that was refused for something else says no size */
    for (uint32_t i = 0; i < job->n_chain; i++) {
        int64_t size = size_option(&job->chain[i]);
        known &= job->chain[i].self != NULL;
        if (size > 0)
            product = size > INT32_MAX ? INT64_MAX : product * size;
        else if (automatic < 0)
            automatic = (int32_t)i;
        else if (strcmp(id_of(&job->chain[automatic]), id_of(&job->chain[i])) != 0) /* named twice: refused by itself */
            tn_diag_add(&job->diag, tn_manifest_where(&job->manifest, id_of(&job->chain[i]), "size"), NULL,
                        "is auto, and so is that of %s; only one strategy may say auto, so give a number here",
                        id_of(&job->chain[automatic]));
        job->chain_size[i] = size > 0 ? (int32_t)(size < INT32_MAX ? size : INT32_MAX) : 1;
        if (product > INT32_MAX) {
            tn_diag_add(&job->diag, tn_manifest_where(&job->manifest, "strategies", "chain"), NULL,
                        "the sizes of all strategies multiply to more ranks than are possible");
            return;
        }
    }
    int64_t given = job->ranks_given ? job->ranks_given : product;
    struct tn_where where = tn_manifest_where(&job->manifest, "strategies", "chain");
    if (automatic >= 0 && given % product == 0 && given / product >= 1)
        job->chain_size[automatic] = (int32_t)(given / product);
    else if (!known)
        return;
    else if (automatic >= 0)
        tn_diag_add(&job->diag, where, NULL,
                    "%lld ranks do not divide by %lld, the product of the sizes given; use a multiple of it",
                    (long long)given, (long long)product);
    else if (job->ranks_given && given != product)
        tn_diag_add(&job->diag, where, NULL,
                    "the sizes of the strategies make %lld ranks, but %lld are given; use -n %lld or change a size%s",
                    (long long)product, (long long)given, (long long)product,
                    job->n_chain ? "" : " (the chain is empty)");
}

static void add_axis(struct tn_job *job, const struct tn_instance *strategy, const char *name, int32_t size)
{
    const char *id = strategy->library.plugin->id;
    struct tn_where where = tn_manifest_where(&job->manifest, "strategies", "chain");
    if (tn_mesh_find(&job->mesh, name) >= 0 && strcmp(job->mesh.axis[tn_mesh_find(&job->mesh, name)].owner, id) == 0)
        return; /* named twice, which is refused by itself */
    if (tn_mesh_find(&job->mesh, name) >= 0)
        tn_diag_add(&job->diag, where, NULL, "%s adds an axis %s, but %s has one already", id, name,
                    job->mesh.axis[tn_mesh_find(&job->mesh, name)].owner);
    else if (size < 1 || tn_mesh_add(&job->mesh, tn_arena_strdup(&job->manifest.arena, name), size, id))
        tn_diag_add(&job->diag, where, NULL,
                    "%s adds an axis %s of %d ranks; at most %d axes of at least one are possible", id, name, size,
                    TN_MAX_AXES);
}

static void lay_out_mesh(struct tn_job *job)
{
    job->mesh = (struct tn_mesh){ .world = 1 };
    for (uint32_t i = 0; i < job->n_chain; i++) {
        struct tn_instance *instance = &job->chain[i];
        const struct tn_strategy *strategy = instance->self ? tn_instance_table(instance) : NULL;
        if (!strategy)
            continue;
        if (!strategy->axes) {
            if (tn_options_find(&instance->options, "size"))
                add_axis(job, instance, instance->library.plugin->id, job->chain_size[i]);
            continue;
        }
        struct tn_axis axes[2 * TN_MAX_AXES] = { 0 }; /* room for a longer struct of a newer plugin */
        int32_t n = 0;
        if (strategy->axes(instance->self, job->chain_size[i], axes, TN_MAX_AXES, &n) != TN_OK)
            tn_diag_add(&job->diag, tn_manifest_where(&job->manifest, "strategies", "chain"), NULL, "%s: %s",
                        instance->library.plugin->id, tn_instance_message(instance));
        uint32_t stride = axes[0].struct_size <= 2 * sizeof *axes ? axes[0].struct_size : 0;
        for (int32_t a = 0; a < n && a < TN_MAX_AXES; a++) {
            const struct tn_axis *axis = (const struct tn_axis *)((const char *)axes + (size_t)a * stride);
            add_axis(job, instance, axis->name, axis->size);
            if (TN_HAS(axis, kind) && axis->kind == TN_AXIS_STAGES && job->mesh.n_axes > 0)
                job->mesh.axis[job->mesh.n_axes - 1].stages = 1;
        }
    }
}

static void check_plugins(struct tn_job *job)
{
    struct tn_instance *chain[TN_MOST_CHAIN];
    uint32_t n = 0;
    const struct tn_model *model = job->model.self ? tn_instance_table(&job->model) : NULL;
    if (model && model->check && model->check(job->model.self) != TN_OK)
        tn_diag_add(&job->diag, tn_manifest_where(&job->manifest, "model", "plugin"), NULL, "%s",
                    tn_instance_message(&job->model));
    for (uint32_t i = 0; i < job->n_chain; i++) {
        struct tn_instance *instance = &job->chain[i];
        const struct tn_strategy *strategy = instance->self ? tn_instance_table(instance) : NULL;
        if (!strategy)
            continue;
        chain[n++] = instance;
        if (strategy->check && strategy->check(instance->self, job->chain_size[i]) != TN_OK)
            tn_diag_add(&job->diag, tn_manifest_where(&job->manifest, "strategies", "chain"), NULL, "%s: %s",
                        instance->library.plugin->id, tn_instance_message(instance));
    }
    tn_chain_check(chain, n, &job->diag);
}

uint32_t tn_job_plugins(struct tn_job *job, struct tn_instance *all[TN_MOST_PLUGINS])
{
    uint32_t n = 0;
    all[n++] = &job->model;
    all[n++] = &job->device;
    for (uint32_t b = 0; b < job->n_backends; b++) {
        all[n++] = &job->backend[b].instance;
        for (uint32_t i = 0; i < job->backend[b].n_layers; i++)
            all[n++] = &job->backend[b].layer[i];
    }
    for (uint32_t i = 0; i < job->n_chain; i++)
        all[n++] = &job->chain[i];
    return n;
}

static void check_sections(struct tn_job *job)
{
    struct tn_instance *all[TN_MOST_PLUGINS];
    const char *known[TN_MOST_PLUGINS];
    uint32_t n = tn_job_plugins(job, all);
    for (uint32_t i = 0; i < n; i++) {
        if (!all[i]->library.plugin)
            return; /* one that did not load may read any section */
        known[i] = all[i]->library.plugin->id;
    }
    tn_settings_unused(&job->manifest, known, n, &job->diag);
}

/* Asks the device for the first `bytes` of what it says of itself. */
static void probe(struct tn_job *job, size_t bytes)
{
    const struct tn_device *device = job->device.self ? tn_instance_table(&job->device) : NULL;
    job->device_info.struct_size = (uint32_t)bytes;
    if (device && device->probe && device->probe(job->device.self, &job->device_info) != TN_OK)
        tn_diag_add(&job->diag, tn_manifest_where(&job->manifest, "device", "plugin"), NULL, "%s",
                    tn_instance_message(&job->device));
}

const struct tn_device_info *tn_job_device(struct tn_job *job)
{
    if (job->device_info.struct_size < sizeof job->device_info)
        probe(job, sizeof job->device_info);
    return &job->device_info;
}

size_t tn_job_open(struct tn_job *job, const char *path, const char *const *overrides, size_t n_overrides,
                   int32_t ranks)
{
    memset(job, 0, sizeof *job);
    job->facts.get = get_fact;
    job->facts.trials = &tn_job_trials;
    tn_diag_init(&job->diag);
    tn_manifest_init(&job->manifest, path, overrides, n_overrides, &job->diag);
    if (!job->manifest.readable && job->diag.count)
        return job->diag.count; /* nothing can be said of what it means */
    tn_settings_read(&job->settings, &job->manifest, &job->diag);
    job->ranks_given = ranks ? ranks : (int32_t)job->settings.ranks;
    load_all(job);
    size_chain(job);
    lay_out_mesh(job);
    tn_job_open_axis_backends(job);
    probe(job, offsetof(struct tn_device_info, peak_flops_f32));
    check_plugins(job);
    check_sections(job);
    return job->diag.count;
}

void tn_job_check_data(struct tn_job *job)
{
    const struct tn_settings *s = &job->settings;
    struct tn_data *data;
    if (!s->path || !*s->path || s->batch < 1 || s->sequence < 1)
        return; /* said where the settings were read */
    int64_t vocab = job->model.self ? job->facts.get(&job->facts, "vocab", 0) : INT32_MAX;
    tn_data_open(&data, s, &job->manifest, vocab, &job->diag);
    tn_data_warn(data, s);
    tn_data_close(data);
}

void tn_job_close(struct tn_job *job)
{
    for (uint32_t i = 0; i < job->n_chain; i++)
        tn_instance_destroy(&job->chain[i]);
    tn_job_close_backends(job);
    tn_instance_destroy(&job->device);
    tn_instance_destroy(&job->model);
    tn_manifest_finish(&job->manifest);
    tn_diag_finish(&job->diag);
}

int64_t tn_job_budget(const struct tn_job *job)
{
    return job->settings.device_memory > 0 ? job->settings.device_memory : (int64_t)job->device_info.memory_bytes;
}

void tn_job_check_budget(struct tn_job *job, int32_t rank, const struct tn_plan *plan)
{
    int64_t need = tn_plan_bytes(plan), have = tn_job_budget(job);
    if (have > 0 && need > have)
        tn_diag_add(
            &job->diag, tn_manifest_where(&job->manifest, "device", "memory"),
            "use a smaller [data] batch or more micro_batches, keep fewer activations or states on the device, or "
            "spread the "
            "model over more ranks",
            "rank %d needs %.1f MiB (params %.1f, gradients %.1f, optimizer %.1f, activations %.1f, buffers %.1f), "
            "but may use %.1f MiB",
            rank, (double)need / 1048576.0, (double)plan->category_bytes[TN_MEM_PARAMS] / 1048576.0,
            (double)plan->category_bytes[TN_MEM_GRADIENTS] / 1048576.0,
            (double)plan->category_bytes[TN_MEM_OPTIMIZER] / 1048576.0,
            (double)plan->category_bytes[TN_MEM_ACTIVATIONS] / 1048576.0,
            (double)plan->category_bytes[TN_MEM_BUFFERS] / 1048576.0, (double)have / 1048576.0);
}
