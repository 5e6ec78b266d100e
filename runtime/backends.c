/* Backends: which collective backend serves which axis, and the layers over each (job.h).
 *
 * [comm] backend is the first; [comm.AXIS] may name others. A backend made of others opens them through
 * "tn.backends/1". Whoever names one gets the same instance, so that memory that one backend gave is known to all who
 * use it. Owns the instances and the order in which they can be connected. */
#include "job.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct tn_instance *tn_job_collective(struct tn_backend *backend)
{
    return backend->n_layers ? &backend->layer[0] : &backend->instance;
}

static int is_same(const struct tn_backend *backend, const char *path)
{
    const struct tn_library *library = &backend->instance.library;
    return library->plugin && strcmp(library->path, path) == 0;
}

static struct tn_backend *find(struct tn_job *job, const char *path)
{
    for (uint32_t i = 0; i < job->n_backends; i++)
        if (is_same(&job->backend[i], path))
            return &job->backend[i];
    return NULL;
}

static struct tn_backend *add(struct tn_job *job, struct tn_where where)
{
    if (job->n_backends < TN_MOST_BACKENDS) {
        struct tn_backend *backend = &job->backend[job->n_backends];
        backend->number = (int32_t)job->n_backends++;
        return backend;
    }
    tn_diag_add(&job->diag, where, "use fewer", "more than %d backends in one job", TN_MOST_BACKENDS);
    return NULL;
}

static void note_made(struct tn_job *job, struct tn_backend *backend)
{
    if (backend->instance.self)
        job->made[job->n_made++] = backend;
}

/* From the inside out. One over a backend that was not made has nothing to stand on. */
static void load_layers(struct tn_job *job, struct tn_backend *backend)
{
    const struct tn_settings *s = &job->settings;
    struct tn_instance *next = &backend->instance;
    backend->is_used = 1;
    backend->n_layers = s->n_layers <= TN_MOST_LAYERS ? s->n_layers : 0;
    for (uint32_t i = backend->n_layers; i-- > 0 && next->self; next = &backend->layer[i])
        tn_job_load(job, &backend->layer[i], s->layers[i], TN_PLUGIN_COLLECTIVE, "comm", "layers", next);
}

int32_t tn_job_used_backends(const struct tn_job *job)
{
    int32_t n = 0;
    for (uint32_t i = 0; i < job->n_backends; i++)
        n += job->backend[i].is_used;
    return n;
}

/* The file behind a name, opened; NULL after a problem. Files stay open, so opening one twice costs nothing. */
static const char *path_of(struct tn_job *job, const char *name, struct tn_load_error *error)
{
    struct tn_search search = { .manifest_folder = job->manifest.folder,
                                .beside_manifest = job->settings.plugins_beside_manifest };
    struct tn_library library;
    if (tn_library_open(&library, name, TN_PLUGIN_COLLECTIVE, &search, &job->manifest.arena, error) != TN_LOAD_OK)
        return NULL;
    return library.path;
}

/* ---- the bootstrap of one backend: two of a kind must not read each other's keys ---- */

enum { KEY_BYTES = 256 };

static const char *own_key(const struct tn_backend *backend, const char *key, char *own)
{
    snprintf(own, KEY_BYTES, "%d/%s", (int)backend->number, key);
    return own;
}

static tn_status put(void *ctx, const char *key, const void *data, uint32_t bytes)
{
    const struct tn_backend *backend = ctx;
    char own[KEY_BYTES];
    return backend->keys->put(backend->keys->ctx, own_key(backend, key, own), data, bytes);
}

static tn_status get(void *ctx, const char *key, void *data, uint32_t *bytes)
{
    const struct tn_backend *backend = ctx;
    char own[KEY_BYTES];
    return backend->keys->get(backend->keys->ctx, own_key(backend, key, own), data, bytes);
}

static tn_status look(void *ctx)
{
    const struct tn_backend *backend = ctx;
    return backend->keys->poll(backend->keys->ctx);
}

tn_status tn_job_connect_backend(struct tn_backend *backend, const struct tn_bootstrap *bootstrap, uint64_t timeout_ns)
{
    struct tn_instance *outermost = tn_job_collective(backend);
    const struct tn_collective *table = tn_instance_table(outermost);
    backend->keys = bootstrap;
    backend->bootstrap = *bootstrap;
    backend->bootstrap.ctx = backend;
    backend->bootstrap.put = put;
    backend->bootstrap.get = get;
    backend->bootstrap.poll = look;
    return table->init(outermost->self, &backend->bootstrap, timeout_ns);
}

/* ---- tn.backends/1 ---- */

static tn_status open_for(const struct tn_opener *opener, struct tn_instance *by, const char *name,
                          struct tn_instance **found)
{
    struct tn_job *job = (struct tn_job *)((char *)opener - offsetof(struct tn_job, opener));
    const struct tn_host *host = &by->host;
    struct tn_load_error error;
    if (by->next)
        return host->fail(host, TN_INVALID, "a layer stands over one backend; it opens no other");
    const char *path = path_of(job, name, &error);
    if (!path)
        return host->fail(host, TN_NOT_FOUND, "backend %s: %s", name, error.text);
    struct tn_backend *lower = find(job, path);
    if (lower && !lower->instance.self)
        return host->fail(host, TN_CONFLICT, "backend %s stands on this one, or could not be made; name another", name);
    if (!lower) {
        size_t before = job->diag.count;
        lower = add(job, tn_manifest_where(&job->manifest, by->library.plugin->id, NULL));
        if (!lower)
            return host->fail(host, TN_INVALID, "more than %d backends in one job", TN_MOST_BACKENDS);
        tn_job_load(job, &lower->instance, name, TN_PLUGIN_COLLECTIVE, by->library.plugin->id, NULL, NULL);
        note_made(job, lower);
        if (!lower->instance.self)
            return host->fail(host, TN_ERROR, "backend %s could not be made%s", name,
                              job->diag.count > before ? "" : ", and nothing says why");
    }
    *found = &lower->instance;
    return TN_OK;
}

/* ---- the manifest's ---- */

/* That of [section] backend; made, with its layers, unless it is there already. */
static struct tn_backend *open_named(struct tn_job *job, const char *name, const char *section)
{
    struct tn_where where = tn_manifest_where(&job->manifest, section, "backend");
    struct tn_load_error error;
    const char *path = path_of(job, name, &error);
    struct tn_backend *backend = path ? find(job, path) : NULL;
    if (!backend) {
        backend = add(job, where);
        if (!backend)
            return NULL;
        tn_job_load(job, &backend->instance, name, TN_PLUGIN_COLLECTIVE, section, "backend", NULL);
        note_made(job, backend);
    }
    if (!backend->is_used)
        load_layers(job, backend);
    return backend;
}

void tn_job_open_backend(struct tn_job *job)
{
    const struct tn_settings *s = &job->settings;
    job->opener.open = open_for;
    if (s->n_layers > TN_MOST_LAYERS)
        tn_diag_add(&job->diag, tn_manifest_where(&job->manifest, "comm", "layers"), NULL,
                    "%u layers; at most %d are possible", s->n_layers, TN_MOST_LAYERS);
    open_named(job, s->backend, "comm");
}

static int chain_is_whole(const struct tn_job *job)
{
    for (uint32_t i = 0; i < job->n_chain; i++)
        if (!job->chain[i].self)
            return 0;
    return 1;
}

void tn_job_open_axis_backends(struct tn_job *job)
{
    const char *axes[TN_MAX_AXES];
    for (int32_t axis = 0; axis < job->mesh.n_axes; axis++) {
        axes[axis] = job->mesh.axis[axis].name;
        const char *name = tn_settings_axis_backend(&job->manifest, axes[axis], &job->diag);
        const char *section = tn_arena_printf(&job->manifest.arena, "comm.%s", axes[axis]);
        struct tn_backend *backend = *name ? open_named(job, name, section) : &job->backend[0];
        job->axis_backend[axis] = backend ? (int32_t)(backend - job->backend) : 0;
    }
    if (chain_is_whole(job))
        tn_settings_check_axes(&job->manifest, axes, (size_t)job->mesh.n_axes, &job->diag);
}

/* Those that stand on others go first: the order of making, backwards. */
void tn_job_close_backends(struct tn_job *job)
{
    for (uint32_t i = job->n_made; i-- > 0;) {
        for (uint32_t k = 0; k < job->made[i]->n_layers; k++)
            tn_instance_destroy(&job->made[i]->layer[k]);
        tn_instance_destroy(&job->made[i]->instance);
    }
}
