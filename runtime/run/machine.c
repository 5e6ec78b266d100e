/* Machine: this process as one rank of the job, ready to bind programs (job.h). Owns the arena and communicators. */
#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { AGREE_SLICE_NS = 1000 * 1000 };

/* A rank that died is the reason, whatever a plugin made of it. */
static tn_status fail(const struct tn_machine *machine, struct tn_instance *instance, const char *what, char *error,
                      size_t error_bytes)
{
    const char *death = machine->store ? tn_store_death(machine->store, NULL) : NULL;
    snprintf(error, error_bytes, "%s: %s%s%s", what, tn_instance_message(instance), death ? "; " : "",
             death ? death : "");
    return TN_ERROR;
}

const char *tn_machine_message(struct tn_job *job, int32_t carrier)
{
    return tn_instance_message(tn_job_collective(&job->backend[carrier]));
}

/* The first that may reach all ranks: that of [comm], unless it ends at the host and the world does not. */
static int32_t find_world_carrier(const struct tn_machine *machine, const struct tn_job *job,
                                  const struct tn_bootstrap *bootstrap)
{
    for (int32_t i = 0; i < machine->n_carriers; i++) {
        struct tn_collective_caps caps = { .struct_size = sizeof caps };
        const struct tn_carrier *c = &machine->carrier[i];
        if (job->backend[i].is_used && c->table->caps(c->self, &caps) == TN_OK &&
            (!caps.one_host || bootstrap->local_size == bootstrap->size))
            return i;
    }
    return 0; /* and it says why not */
}

/* Each is connected once, those that others stand on first; through its layers where it has some. */
static tn_status init_backends(struct tn_machine *machine, struct tn_job *job, struct tn_rank *rank, char *error,
                               size_t error_bytes)
{
    machine->store = rank->store;
    machine->rank = rank->rank;
    machine->n_carriers = (int32_t)job->n_backends;
    for (uint32_t i = 0; i < job->n_backends; i++) {
        struct tn_instance *outermost = tn_job_collective(&job->backend[i]);
        machine->carrier[i] = (struct tn_carrier){ tn_instance_table(outermost), outermost->self };
    }
    for (uint32_t i = 0; i < job->n_made; i++)
        if (tn_job_connect_backend(job->made[i], &rank->bootstrap, machine->timeout_ns) != TN_OK)
            return fail(machine, tn_job_collective(job->made[i]), "the ranks could not be connected", error,
                        error_bytes);
    for (int32_t axis = 0; axis < job->mesh.n_axes; axis++)
        machine->axis_carrier[axis] = job->axis_backend[axis];
    machine->world_carrier = find_world_carrier(machine, job, &rank->bootstrap);
    return TN_OK;
}

/* A group a channel: messages of one never wait for those of another, whatever the backend does with its order. */
static tn_status create_channels(struct tn_machine *machine, struct tn_job *job, int32_t axis, const int32_t *ranks,
                                 char *error, size_t error_bytes)
{
    int32_t carrier = machine->axis_carrier[axis];
    const struct tn_carrier *c = &machine->carrier[carrier];
    for (int32_t channel = 0; channel < TN_MAX_CHANNELS; channel++)
        if ((channel == 0 || job->channels[axis] >> channel & 1) &&
            c->table->comm_create(c->self, job->mesh.axis[axis].name, ranks, job->mesh.axis[axis].size,
                                  machine->timeout_ns, &machine->comm[axis][channel]) != TN_OK)
            return fail(machine, tn_job_collective(&job->backend[carrier]), "a group of ranks could not be made", error,
                        error_bytes);
    return TN_OK;
}

static tn_status create_comms(struct tn_machine *machine, struct tn_job *job, char *error, size_t error_bytes)
{
    int32_t coord[TN_MAX_AXES], ranks[4096];
    tn_mesh_coord(&job->mesh, machine->rank, coord);
    for (int32_t axis = 0; axis < job->mesh.n_axes; axis++) {
        int32_t size = job->mesh.axis[axis].size;
        if (size == 1)
            continue;
        if (size > (int32_t)(sizeof ranks / sizeof *ranks)) {
            snprintf(error, error_bytes, "axis %s has %d ranks; at most 4096 are possible", job->mesh.axis[axis].name,
                     size);
            return TN_UNSUPPORTED;
        }
        tn_mesh_group(&job->mesh, coord, axis, ranks);
        tn_status status = create_channels(machine, job, axis, ranks, error, error_bytes);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

/* The first backend whose memory peers read in place gives the arena; others take what is in it as plain memory. */
static int32_t find_arena_carrier(const struct tn_machine *machine, const struct tn_job *job)
{
    for (int32_t i = 0; i < machine->n_carriers; i++) {
        struct tn_collective_caps caps = { .struct_size = sizeof caps };
        if (job->backend[i].is_used && machine->carrier[i].table->caps(machine->carrier[i].self, &caps) == TN_OK &&
            caps.in_place_peers)
            return i;
    }
    return -1;
}

static tn_status allocate(struct tn_machine *machine, struct tn_job *job, int64_t bytes, char *error,
                          size_t error_bytes)
{
    void *memory = NULL;
    machine->arena_carrier = find_arena_carrier(machine, job);
    const struct tn_carrier *c = machine->arena_carrier >= 0 ? &machine->carrier[machine->arena_carrier] : NULL;
    tn_status status = c ? c->table->mem_alloc(c->self, (uint64_t)bytes, &memory)
                         : machine->device->mem_alloc(machine->device_self, TN_SPACE_DEVICE, (uint64_t)bytes, &memory);
    if (status != TN_OK)
        return fail(machine, c ? tn_job_collective(&job->backend[machine->arena_carrier]) : &job->device,
                    "no memory for the arena", error, error_bytes);
    machine->arena = memory;
    machine->arena_bytes = (uint64_t)bytes;
    return TN_OK;
}

static const char *disk_folder(struct tn_job *job)
{
    const char *named = job->settings.device_disk, *temporary = getenv("TMPDIR");
    if (*named)
        return *named == '/' ? named : tn_arena_printf(&job->manifest.arena, "%s/%s", job->manifest.folder, named);
    return temporary && *temporary ? temporary : "/var/tmp";
}

tn_status tn_machine_spaces(struct tn_machine *machine, struct tn_job *job, int64_t host_bytes, int64_t disk_bytes,
                            char *error, size_t error_bytes)
{
    const struct tn_copier_of of = { .device = machine->device,
                                     .device_self = machine->device_self,
                                     .host_bytes = host_bytes,
                                     .disk_bytes = disk_bytes,
                                     .folder = disk_folder(job) };
    if (host_bytes == 0 && disk_bytes == 0)
        return TN_OK;
    machine->copier = tn_copier_new(&of, error, error_bytes);
    return machine->copier ? TN_OK : TN_ERROR;
}

tn_status tn_machine_init(struct tn_machine *machine, struct tn_job *job, struct tn_rank *rank, int64_t arena_bytes,
                          char *error, size_t error_bytes)
{
    memset(machine, 0, sizeof *machine);
    machine->device = tn_instance_table(&job->device);
    machine->device_self = job->device.self;
    machine->mesh = &job->mesh;
    machine->timeout_ns = (uint64_t)job->settings.comm_timeout_ns;
    if (machine->device->queue_create(machine->device_self, &machine->queue) != TN_OK)
        return fail(machine, &job->device, "no queue", error, error_bytes);
    tn_status status = rank ? init_backends(machine, job, rank, error, error_bytes) : TN_OK;
    if (status == TN_OK)
        status = allocate(machine, job, arena_bytes, error, error_bytes);
    if (status == TN_OK && rank)
        status = create_comms(machine, job, error, error_bytes);
    return status;
}

void tn_machine_finish(struct tn_machine *machine, struct tn_job *job)
{
    for (int32_t axis = 0; axis < job->mesh.n_axes; axis++)
        for (int32_t channel = 0; channel < TN_MAX_CHANNELS; channel++)
            if (machine->comm[axis][channel])
                machine->carrier[machine->axis_carrier[axis]].table->comm_destroy(machine->comm[axis][channel]);
    tn_copier_destroy(machine->copier);
    if (machine->arena && machine->arena_carrier >= 0)
        machine->carrier[machine->arena_carrier].table->mem_free(machine->carrier[machine->arena_carrier].self,
                                                                 machine->arena);
    else if (machine->arena)
        machine->device->mem_free(machine->device_self, TN_SPACE_DEVICE, machine->arena, machine->arena_bytes);
    if (machine->queue)
        machine->device->queue_destroy(machine->device_self, machine->queue);
    memset(machine, 0, sizeof *machine);
}

/* What a rank says of itself before the first collective. */
struct statement {
    uint64_t plugins, manifest, bytes;
    int32_t world;
    char chain[256];
};

static void describe_chain(struct tn_instance *const *all, uint32_t n, char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < n && at < bytes; i++) {
        const struct tn_plugin *plugin = all[i]->library.plugin;
        at += (size_t)snprintf(text + at, bytes - at, "%s%s %s", at ? ", " : "", plugin->id, plugin->version);
    }
}

static tn_status get_statement(struct tn_rank *rank, int32_t of, uint64_t timeout_ns, struct statement *out)
{
    char key[32];
    snprintf(key, sizeof key, "job/%d", of);
    for (uint64_t began = tn_now_ns(); tn_now_ns() - began <= timeout_ns;) {
        uint32_t bytes = sizeof *out;
        tn_status status = rank->bootstrap.get(rank->bootstrap.ctx, key, out, &bytes);
        if (status != TN_PENDING)
            return status == TN_OK && bytes != sizeof *out ? TN_CONFLICT : status;
        if (tn_store_death(rank->store, NULL))
            return TN_PEER;
        nanosleep(&(struct timespec){ .tv_nsec = AGREE_SLICE_NS }, NULL);
    }
    return TN_TIMEOUT;
}

tn_status tn_machine_agree(struct tn_job *job, struct tn_rank *rank, uint64_t bytes, uint64_t *peak, char *error,
                           size_t error_bytes)
{
    struct tn_instance *all[TN_MOST_PLUGINS];
    uint32_t n = tn_job_plugins(job, all);
    struct statement mine = {
        .plugins = tn_chain_hash(all, n), .manifest = job->manifest.hash, .bytes = bytes, .world = job->mesh.world
    };
    describe_chain(all, n, mine.chain, sizeof mine.chain);
    char key[32];
    snprintf(key, sizeof key, "job/%d", rank->rank);
    tn_status status = rank->bootstrap.put(rank->bootstrap.ctx, key, &mine, sizeof mine);
    *peak = bytes;
    for (int32_t r = 0; r < rank->world && status == TN_OK; r++) {
        struct statement other;
        status = get_statement(rank, r, (uint64_t)job->settings.comm_timeout_ns, &other);
        if (status != TN_OK) {
            const char *death = tn_store_death(rank->store, NULL);
            snprintf(error, error_bytes, "rank %d has not said what it runs: %s", r,
                     death                   ? death
                     : status == TN_CONFLICT ? "it is another version of tenon"
                                             : "it did not arrive in time");
        } else if (other.plugins != mine.plugins || other.world != mine.world) {
            status = TN_CONFLICT;
            snprintf(error, error_bytes, "rank %d runs other plugins (%s) than rank %d (%s)", r, other.chain,
                     rank->rank, mine.chain);
        } else if (other.manifest != mine.manifest) {
            status = TN_CONFLICT;
            snprintf(error, error_bytes, "rank %d has another manifest than rank %d", r, rank->rank);
        } else if (other.bytes > *peak) {
            *peak = other.bytes;
        }
    }
    return status;
}
