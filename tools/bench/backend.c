/* The backends under test: loading, starting, calling (bench.h).
 *
 * Several live in one process, side by side: each has the job's bootstrap with keys of its own, its own group and its
 * own memory. A name is an id or a path, with layers before it: "verify+trace+shm". */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum {
    KEY_BYTES = 256,
    ALIGNMENT = 64,
    SKEW = 320 /* so that send and recv do not meet in the same sets of the caches */
};

/* ---- loading ---- */

static int64_t no_fact(const struct tn_facts *facts, const char *name, int64_t missing)
{
    (void)facts, (void)name;
    return missing;
}

/* A path on the command line starts from where the command was given, not from a manifest. */
const char *bench_plugin_name(struct tn_arena *arena, const char *word, size_t length)
{
    const char *name = tn_arena_printf(arena, "%.*s", (int)length, word);
    char *absolute = strchr(name, '/') ? realpath(name, NULL) : NULL;
    name = absolute ? tn_arena_strdup(arena, absolute) : name;
    free(absolute);
    return name;
}

/* For tables and charts: "build/x/mine.so" is mine. */
const char *bench_label(struct tn_arena *arena, const char *text)
{
    const char *label = "";
    for (size_t length; *text; text += text[length] ? length + 1 : length) {
        length = strcspn(text, "+");
        const char *word = tn_arena_printf(arena, "%.*s", (int)length, text), *slash = strrchr(word, '/');
        size_t bytes = strlen(slash ? slash + 1 : word);
        bytes -= slash && bytes > 3 && strcmp(slash + 1 + bytes - 3, ".so") == 0 ? 3 : 0;
        label = tn_arena_printf(arena, "%s%s%.*s", label, *label ? "+" : "", (int)bytes, slash ? slash + 1 : word);
    }
    return label;
}

/* "verify+trace+shm": backend shm, layers verify, trace. */
static void read_name(struct tn_job *job, const char *text)
{
    struct tn_settings *s = &job->settings;
    struct tn_arena *arena = &job->manifest.arena;
    const char **layers = tn_arena_alloc(arena, (strlen(text) + 1) * sizeof *layers);
    size_t length;
    for (; text[length = strcspn(text, "+")]; text += length + 1)
        layers[s->n_layers++] = bench_plugin_name(arena, text, length);
    s->backend = bench_plugin_name(arena, text, length);
    s->layers = layers;
}

static size_t open_one(struct bench_backend *b, const struct bench_options *o, const char *text)
{
    struct tn_job *job = &b->job;
    job->facts.get = no_fact;
    tn_diag_init(&job->diag);
    tn_manifest_init(&job->manifest, o->manifest, o->overrides, o->n_overrides, &job->diag);
    b->name = bench_label(&job->manifest.arena, text);
    read_name(job, text);
    if (job->diag.count == 0)
        tn_job_open_backend(job);
    if (job->diag.count)
        return job->diag.count;
    struct tn_instance *outermost = tn_job_collective(&job->backend[0]);
    b->table = tn_instance_table(outermost);
    b->self = outermost->self;
    b->caps.struct_size = sizeof b->caps;
    b->table->caps(b->self, &b->caps);
    return 0;
}

static int reads(const struct tn_backend *backend, const char *section, size_t length)
{
    const char *id = backend->instance.library.plugin->id;
    int found = strlen(id) == length && strncmp(id, section, length) == 0;
    for (uint32_t i = 0; i < backend->n_layers; i++) {
        id = backend->layer[i].library.plugin->id;
        found |= strlen(id) == length && strncmp(id, section, length) == 0;
    }
    return found;
}

/* An option for none of them is a mistake, not a wish. A manifest may be that of a whole job. */
static size_t check_overrides(const struct bench_backends *b, const struct bench_options *o, int speaks)
{
    size_t problems = 0;
    for (size_t i = 0; i < o->n_overrides; i++) {
        size_t length = strcspn(o->overrides[i], ".");
        int found = 0;
        for (int k = 0; k < b->n; k++)
            for (uint32_t n = 0; n < b->backend[k].job.n_backends; n++)
                found |= reads(&b->backend[k].job.backend[n], o->overrides[i], length);
        problems += !found;
        if (!found && speaks)
            fprintf(stderr, "--set: [%.*s]: no backend of this run reads this section\n", (int)length, o->overrides[i]);
    }
    return problems;
}

size_t bench_backends_open(struct bench_backends *b, const struct bench_options *o, const char *fallback, int speaks)
{
    size_t problems = 0;
    *b = (struct bench_backends){ .n = o->n_backends ? o->n_backends : 1 };
    b->backend = bench_alloc((size_t)b->n * sizeof *b->backend);
    for (int i = 0; i < b->n && problems == 0; i++) {
        problems = open_one(&b->backend[i], o, o->n_backends ? o->backend[i] : fallback);
        if (speaks)
            tn_diag_print(&b->backend[i].job.diag, stderr);
    }
    return problems ? problems : check_overrides(b, o, speaks);
}

void bench_backends_close(struct bench_backends *b)
{
    for (int i = 0; i < b->n && b->backend[i].name; i++) { /* those that were looked at */
        tn_job_close_backends(&b->backend[i].job);
        tn_manifest_finish(&b->backend[i].job.manifest);
        tn_diag_finish(&b->backend[i].job.diag);
    }
    free(b->backend);
}

/* ---- the bootstrap, with keys of its own for each backend ---- */

static const char *prefixed(const struct bench_bootstrap *boot, const char *key, char own[KEY_BYTES])
{
    snprintf(own, KEY_BYTES, "%s%s", boot->prefix, key);
    return own;
}

static tn_status put(void *ctx, const char *key, const void *data, uint32_t bytes)
{
    const struct bench_bootstrap *boot = ctx;
    char own[KEY_BYTES];
    return boot->real->put(boot->real->ctx, prefixed(boot, key, own), data, bytes);
}

static tn_status get(void *ctx, const char *key, void *data, uint32_t *bytes)
{
    const struct bench_bootstrap *boot = ctx;
    char own[KEY_BYTES];
    return boot->real->get(boot->real->ctx, prefixed(boot, key, own), data, bytes);
}

static tn_status poll_peers(void *ctx)
{
    const struct bench_bootstrap *boot = ctx;
    return boot->real->poll(boot->real->ctx);
}

void bench_bootstrap_init(struct bench_bootstrap *boot, const struct tn_bootstrap *real, int number)
{
    boot->table = *real;
    boot->real = real;
    boot->table.ctx = boot;
    boot->table.put = put;
    boot->table.get = get;
    boot->table.poll = poll_peers;
    boot->table.job_id = real->job_id + (uint64_t)number; /* what is named by it must not meet either */
    snprintf(boot->prefix, sizeof boot->prefix, "b%d/", number);
}

/* ---- start and end ---- */

static const char *message(struct bench_backend *b)
{
    return tn_instance_message(tn_job_collective(&b->job.backend[0]));
}

void bench_must(const struct bench_world *w, struct bench_backend *b, tn_status status, const char *what)
{
    if (status == TN_OK)
        return;
    const char *death = tn_store_death(w->joined.store, NULL);
    if (death)
        bench_die(w, "%s: %s: %s", b->name, what, death);
    bench_die(w, "%s: %s: %s%s", b->name, what, message(b), bench_advice(status));
}

void bench_backends_start(struct bench_backends *b, struct bench_world *w)
{
    int32_t *ranks = bench_alloc((size_t)w->n * sizeof *ranks);
    for (int32_t r = 0; r < w->n; r++)
        ranks[r] = r;
    for (int i = 0; i < b->n; i++) {
        struct bench_backend *backend = &b->backend[i];
        bench_bootstrap_init(&backend->bootstrap, &w->joined.bootstrap, i);
        for (uint32_t k = 0; k < backend->job.n_made; k++) {
            struct tn_backend *made = backend->job.made[k];
            tn_status status = tn_job_connect_backend(made, &backend->bootstrap.table, w->timeout_ns);
            if (status != TN_OK)
                bench_die(w, "%s: the ranks could not be connected: %s%s", backend->name,
                          tn_instance_message(tn_job_collective(made)), bench_advice(status));
        }
        bench_must(w, backend,
                   backend->table->comm_create(backend->self, "world", ranks, w->n, w->timeout_ns, &backend->comm),
                   "group of all ranks");
    }
    free(ranks);
}

static void release(struct bench_backend *b)
{
    if (b->memory && b->of_backend)
        b->table->mem_free(b->self, b->memory);
    else
        free(b->memory);
    b->memory = NULL;
}

void bench_backends_alloc(struct bench_backends *b, struct bench_world *w, uint64_t bytes, int from_heap)
{
    uint64_t each = (bytes + 4095) / 4096 * 4096 + SKEW;
    for (int i = 0; i < b->n; i++) {
        struct bench_backend *backend = &b->backend[i];
        void *memory = NULL;
        release(backend);
        backend->of_backend = backend->caps.in_place_peers && !from_heap;
        if (backend->of_backend)
            bench_must(w, backend, backend->table->mem_alloc(backend->self, 2 * each, &memory), "memory");
        else if (posix_memalign(&memory, ALIGNMENT, 2 * each) != 0)
            bench_die(w, "no memory for buffers of %llu bytes", (unsigned long long)bytes);
        else
            memset(memory, 0, 2 * each);
        backend->memory = memory;
        backend->send = backend->memory;
        backend->recv = backend->memory + each;
        backend->buffer_bytes = bytes;
    }
}

void bench_backends_stop(struct bench_backends *b)
{
    for (int i = 0; i < b->n; i++) {
        if (b->backend[i].comm)
            b->backend[i].table->comm_destroy(b->backend[i].comm);
        release(&b->backend[i]);
    }
}

/* ---- calls ---- */

void bench_wait(const struct bench_world *w, struct bench_backend *b, struct tn_request *r, const char *what)
{
    if (!r)
        return;
    tn_status status = b->table->test(r);
    if (status == TN_PENDING)
        status = b->table->wait(r, w->timeout_ns);
    if (status != TN_OK)
        bench_must(w, b, status, what);
}

void bench_barrier(const struct bench_world *w, struct bench_backend *b)
{
    struct tn_request *r = NULL;
    bench_must(w, b, b->table->barrier(b->comm, NULL, &r), "barrier");
    bench_wait(w, b, r, "barrier");
}
