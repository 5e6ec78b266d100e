/* Executor: see exec.h. */
#include "run/exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "job.h"

#include <tenon/host.h>

/* A wait's slices. While other backends have operations under way, which peers may be waiting for, they are short at
 * first and then a share of what was waited. */
enum {
    WAIT_SLICE_NS = 100 * 1000 * 1000,
    SHORTEST_SLICE_NS = 50 * 1000,
    SHARED_SLICE_NS = 5 * 1000 * 1000,
    SHARE_OF_WAIT = 4
};

/* One op, ready to run. */
struct entry {
    struct tn_kernel *kernel; /* or NULL: communication, or a copy */
    struct tn_copy *copy;     /* or NULL */
    uint64_t ticket;          /* of the copy under way; 0: none is */
    uint32_t opcode;
    uint32_t dtype, red;
    uint64_t count;
    void *send, *recv;
    int32_t axis, carrier, peer;
    struct tn_comm *comm;
    struct tn_request *request; /* under way */
    const uint32_t *wait;       /* entries whose communication or copy must be done first */
    uint32_t n_waits;
    uint8_t opens, closes; /* first, last of communication that is started together */
    const char *name;      /* of the op, for messages */
};

struct tn_exec {
    struct tn_machine machine;
    struct tn_arena memory;
    const struct tn_plan *plan;
    struct entry *entry;
    uint32_t n_entries;
    uint32_t in_flight[TN_MOST_BACKENDS], all_in_flight;
    const uint32_t *final_wait; /* what the end of the step waits for */
    uint32_t n_final_waits;
};

/* Of a value on the device. */
static void *address(const struct tn_exec *exec, tn_value v)
{
    return exec->machine.arena + exec->plan->offset[v];
}

/* describing an op to the device */

struct described {
    struct tn_op_desc desc;
    struct tn_tensor tensor[2 * TN_OP_MOST_FIXED];
    const struct tn_tensor *ptr[2 * TN_OP_MOST_FIXED];
    struct tn_tensor *more; /* for variadic ops */
    const struct tn_tensor **more_ptr;
};

/* A zigzag cut leaves two runs of a dimension, or one, where a cut along a faster axis leaves a part of them. */
static void describe_runs(const struct tn_program *p, tn_value v, struct tn_tensor *tensor)
{
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        tn_placement place = p->values[v].place[axis];
        int32_t dim = TN_PLACE_DIM(place);
        if (TN_PLACE_KIND(place) != TN_PLACE_SHARD || TN_PLACE_ORDER(place) != TN_ORDER_ZIGZAG)
            continue;
        struct tn_spans runs = tn_local_spans(p, v, dim);
        tensor->run[dim] = runs.n > 0 ? runs.run[0].count : 0;
        tensor->first[dim] = runs.n > 0 ? runs.run[0].first : 0;
        tensor->second[dim] = runs.n > 1 ? runs.run[1].first : 0;
    }
}

static void describe_tensor(const struct tn_program *p, tn_value v, void *data, struct tn_tensor *tensor)
{
    const struct tn_value_data *value = &p->values[v];
    *tensor =
        (struct tn_tensor){ .struct_size = sizeof *tensor, .dtype = value->dtype, .space = value->space, .data = data };
    tn_local(p, v, p->coord, &tensor->rank, tensor->shape, tensor->offset);
    memcpy(tensor->global, value->shape, sizeof tensor->global);
    describe_runs(p, v, tensor);
}

/* `arena` NULL: no addresses. Memory of large ops is freed by undescribe. */
static int describe(const struct tn_program *p, tn_op op, const struct tn_plan *plan, unsigned char *arena,
                    struct described *d)
{
    const struct tn_op_data *o = &p->ops[op];
    uint32_t n = o->n_in + o->n_out;
    d->more = NULL;
    d->more_ptr = NULL;
    struct tn_tensor *tensor = d->tensor;
    const struct tn_tensor **ptr = d->ptr;
    if (n > 2 * TN_OP_MOST_FIXED) {
        tensor = d->more = malloc(n * sizeof *tensor);
        ptr = d->more_ptr = malloc(n * sizeof *ptr);
        if (!tensor || !ptr)
            return -1;
    }
    for (uint32_t i = 0; i < n; i++) {
        tn_value v = i < o->n_in ? o->in[i] : o->out[i - o->n_in];
        ptr[i] = v ? &tensor[i] : NULL;
        if (v)
            describe_tensor(p, v, arena ? arena + plan->offset[v] : NULL, &tensor[i]);
    }
    d->desc = (struct tn_op_desc){
        .struct_size = sizeof d->desc,
        .opcode = o->opcode,
        .name = tn_op_kind(o->opcode)->name,
        .n_in = o->n_in,
        .n_out = o->n_out,
        .in = ptr,
        .out = ptr + o->n_in,
        .attrs = o->attrs,
        .n_attrs = o->n_attrs,
        .attr_stride = sizeof(struct tn_attr),
    };
    return 0;
}

static void undescribe(struct described *d)
{
    free(d->more);
    free(d->more_ptr);
}

static int runs_on_device(uint32_t opcode)
{
    return !tn_op_is_comm(opcode) && !tn_op_is_copy(opcode) && !tn_op_is_free(opcode);
}

/* Equal for ops that the device cannot tell apart. */
static uint64_t hash_described(const struct tn_op_desc *d)
{
    uint64_t hash = XXH3_64bits_withSeed(&d->opcode, sizeof d->opcode, d->n_in);
    for (uint32_t i = 0; i < d->n_in + d->n_out; i++) {
        const struct tn_tensor *tensor = d->in[i]; /* outputs follow */
        hash = XXH3_64bits_withSeed(tensor, tensor ? sizeof *tensor : 0, hash);
    }
    for (uint32_t i = 0; i < d->n_attrs; i++) {
        const struct {
            int64_t i;
            double f;
        } value = { d->attrs[i].i, d->attrs[i].f };
        hash = XXH3_64bits_withSeed(d->attrs[i].key, strlen(d->attrs[i].key), hash);
        hash = XXH3_64bits_withSeed(&value, sizeof value, hash);
    }
    return hash ? hash : 1;
}

/* Hashes of what was asked already; the size is a power of two, at most half of it used. */
struct asked {
    uint64_t *slot;
    size_t size;
};

/* 1 if this is the first time. */
static int ask_once(struct asked *asked, uint64_t hash)
{
    size_t at = (size_t)hash & (asked->size - 1);
    while (asked->slot[at] && asked->slot[at] != hash)
        at = (at + 1) & (asked->size - 1);
    int first = asked->slot[at] == 0;
    asked->slot[at] = hash;
    return first;
}

static tn_status ask_device(const struct tn_machine *machine, const struct tn_op_desc *desc, uint64_t *bytes)
{
    tn_status status = machine->device->supports(machine->device_self, desc);
    return status == TN_OK ? machine->device->workspace(machine->device_self, desc, bytes) : status;
}

/* Layers and micro-batches are alike, and asking may be slow: a device may prepare a kernel to know. */
int64_t tn_exec_scratch(const struct tn_machine *machine, const struct tn_program *flat, char *error,
                        size_t error_bytes)
{
    uint64_t most = 0;
    struct asked asked = { .size = 64 };
    while (asked.size < 2 * ((size_t)flat->n_ops + 1))
        asked.size *= 2;
    asked.slot = calloc(asked.size, sizeof *asked.slot);
    if (!asked.slot) {
        snprintf(error, error_bytes, "out of memory");
        return -1;
    }
    TN_EACH_OP(flat, op) {
        if (!runs_on_device(flat->ops[op].opcode))
            continue;
        struct described d;
        uint64_t bytes = 0;
        tn_status status = describe(flat, op, NULL, NULL, &d) ? TN_NO_MEMORY : TN_OK;
        if (status == TN_OK && ask_once(&asked, hash_described(&d.desc)))
            status = ask_device(machine, &d.desc, &bytes);
        undescribe(&d);
        if (status != TN_OK) {
            const char *plugin = tn_op_kind(flat->ops[op].opcode)->plugin;
            snprintf(error, error_bytes, "the device has no kernel for %s = %s%s%s%s", flat->ops[op].name, d.desc.name,
                     plugin ? ", an op of " : "", plugin ? plugin : "",
                     plugin ? " that no strategy of the chain has replaced" : "");
            free(asked.slot);
            return -1;
        }
        most = bytes > most ? bytes : most;
    }
    free(asked.slot);
    return (int64_t)most;
}

/* binding */

static tn_status bind_comm(struct tn_exec *exec, tn_op op, struct entry *e)
{
    const struct tn_program *p = exec->plan->p;
    const struct tn_op_data *o = &p->ops[op];
    tn_value in = o->n_in ? o->in[0] : 0, out = o->n_out ? o->out[0] : 0;
    tn_value counted = o->opcode == TN_OP_REDUCE_SCATTER || !in ? out : in;
    e->opcode = o->opcode;
    e->axis = (int32_t)tn_attr_i(p, op, "axis", 0);
    e->carrier = exec->machine.axis_carrier[e->axis];
    e->red = (uint32_t)tn_attr_i(p, op, "red", TN_RED_SUM);
    e->peer = (int32_t)tn_attr_i(p, op, o->opcode == TN_OP_BROADCAST ? "root" : "peer", 0);
    e->dtype = p->values[counted].dtype;
    e->count = (uint64_t)tn_local_elements(p, counted);
    if ((o->opcode == TN_OP_ALL_GATHER || o->opcode == TN_OP_REDUCE_SCATTER) && tn_attr_i(p, op, "dim", -1) < 0)
        e->count = (uint64_t)tn_flat_part(p, counted, e->axis);
    if (o->opcode == TN_OP_ALL_TO_ALL)
        e->count /= (uint64_t)p->mesh->axis[e->axis].size;
    e->send = in ? address(exec, in) : NULL;
    e->recv = out ? address(exec, out) : NULL;
    e->comm = exec->machine.comm[e->axis][tn_attr_i(p, op, "channel", 0)];
    return e->comm ? TN_OK : TN_INVALID;
}

static tn_status bind_kernel(struct tn_exec *exec, tn_op op, struct entry *e)
{
    struct described d;
    const struct tn_machine *m = &exec->machine;
    void *scratch = m->arena + exec->plan->persistent_bytes + exec->plan->transient_bytes;
    tn_status status = describe(exec->plan->p, op, exec->plan, m->arena, &d) ? TN_NO_MEMORY : TN_OK;
    if (status == TN_OK)
        status = m->device->bind(m->device_self, &d.desc, scratch, &e->kernel);
    undescribe(&d);
    return status;
}

static tn_status bind_copy(struct tn_exec *exec, tn_op op, struct entry *e)
{
    const struct tn_machine *m = &exec->machine;
    const struct tn_program *p = exec->plan->p;
    const struct tn_op_data *o = &p->ops[op];
    int out = o->opcode == TN_OP_OFFLOAD;
    tn_value here = out ? o->in[0] : o->out[0], there = out ? o->out[0] : o->in[0];
    struct tn_event *event = NULL;
    tn_status status = m->copier ? m->device->event_create(m->device_self, &event) : TN_INVALID;
    e->copy = tn_arena_alloc(&exec->memory, sizeof *e->copy);
    *e->copy = (struct tn_copy){
        .way = out ? TN_COPY_OUT : TN_COPY_IN,
        .space = p->values[there].space,
        .device = address(exec, here),
        .offset = exec->plan->offset[there],
        .event = event,
        .name = e->name,
        .bytes = (uint64_t)(tn_local_elements(p, here) * tn_dtype_bytes(p->values[here].dtype)),
    };
    return status;
}

/* The plan's waits name ops; the step wants entries. */
static const uint32_t *bind_waits(struct tn_exec *exec, const uint32_t *entry_of, int64_t order, uint32_t *n)
{
    const struct tn_plan *plan = exec->plan;
    uint32_t first = plan->first_wait[order], count = plan->first_wait[order + 1] - first;
    uint32_t *wait = tn_arena_alloc(&exec->memory, (count + 1) * sizeof *wait);
    for (uint32_t i = 0; i < count; i++)
        wait[i] = entry_of[plan->wait[first + i]];
    *n = count;
    return wait;
}

/* Communication of one group that stands one behind the other and waits for nothing between is given to the backend
 * together (a unit of fsdp). */
static void find_groups(struct tn_exec *exec)
{
    struct entry *e = exec->entry;
    for (uint32_t first = 0, end; first < exec->n_entries; first = end) {
        end = first + 1;
        if (!e[first].comm || !exec->machine.carrier[e[first].carrier].table->group_start)
            continue;
        while (!e[first].kernel && end < exec->n_entries && !e[end].kernel && e[end].comm == e[first].comm &&
               e[end].n_waits == 0)
            end++;
        e[first].opens = e[end - 1].closes = end - first > 1;
    }
}

struct tn_exec *tn_exec_bind(const struct tn_machine *machine, const struct tn_plan *plan, char *error,
                             size_t error_bytes)
{
    const struct tn_program *p = plan->p;
    struct tn_exec *exec = calloc(1, sizeof *exec);
    uint32_t *entry_of = calloc((size_t)p->n_ops + 1, sizeof *entry_of);
    if (!exec || !entry_of) {
        snprintf(error, error_bytes, "out of memory");
        free(exec);
        free(entry_of);
        return NULL;
    }
    exec->machine = *machine;
    exec->plan = plan;
    tn_arena_init(&exec->memory);
    exec->entry = tn_arena_alloc(&exec->memory, ((size_t)p->n_ops + 1) * sizeof *exec->entry);
    TN_EACH_OP(p, op) {
        if (tn_op_is_free(p->ops[op].opcode))
            continue;
        struct entry *e = &exec->entry[exec->n_entries];
        entry_of[op] = exec->n_entries++;
        e->name = p->ops[op].name;
        e->wait = bind_waits(exec, entry_of, p->ops[op].order, &e->n_waits);
        int comm = tn_op_is_comm(p->ops[op].opcode), copy = tn_op_is_copy(p->ops[op].opcode);
        if ((comm ? bind_comm(exec, op, e) : copy ? bind_copy(exec, op, e) : bind_kernel(exec, op, e)) != TN_OK) {
            snprintf(error, error_bytes,
                     comm ? "%s = %s: its axis has a single rank, with nobody to talk to"
                          : "the device cannot run %s = %s",
                     e->name, tn_op_kind(p->ops[op].opcode)->name);
            free(entry_of);
            tn_exec_destroy(exec);
            return NULL;
        }
    }
    int64_t end = p->last ? p->ops[p->last].order + 1 : 0;
    exec->final_wait = bind_waits(exec, entry_of, end, &exec->n_final_waits);
    free(entry_of);
    find_groups(exec);
    return exec;
}

void tn_exec_destroy(struct tn_exec *exec)
{
    if (!exec)
        return;
    const struct tn_machine *m = &exec->machine;
    for (uint32_t i = 0; i < exec->n_entries; i++) {
        const struct entry *e = &exec->entry[i];
        if (e->kernel)
            m->device->kernel_destroy(m->device_self, e->kernel);
        if (e->copy && e->copy->event)
            m->device->event_destroy(m->device_self, e->copy->event);
    }
    tn_arena_finish(&exec->memory);
    free(exec);
}

/* Wherever the value is. */
static tn_status exchange(const struct tn_exec *exec, tn_value v, uint32_t way, void *host, uint64_t bytes)
{
    const struct tn_machine *m = &exec->machine;
    const struct tn_value_data *value = &exec->plan->p->values[v];
    if (value->space != TN_SPACE_DEVICE) {
        const struct tn_copy copy = { .way = way,
                                      .space = value->space,
                                      .device = host,
                                      .offset = exec->plan->offset[v],
                                      .bytes = bytes,
                                      .name = value->name };
        return m->copier ? tn_copier_wait(m->copier, tn_copier_start(m->copier, &copy)) : TN_INVALID;
    }
    void *here = address(exec, v);
    tn_status status = m->device->copy(m->device_self, way == TN_COPY_OUT ? here : host,
                                       way == TN_COPY_OUT ? host : here, bytes, m->queue);
    return status == TN_OK ? m->device->queue_sync(m->device_self, m->queue) : status;
}

tn_status tn_exec_write(const struct tn_exec *exec, tn_value v, const void *from, uint64_t bytes)
{
    return exchange(exec, v, TN_COPY_OUT, (void *)from, bytes);
}

tn_status tn_exec_read(const struct tn_exec *exec, tn_value v, void *to, uint64_t bytes)
{
    return exchange(exec, v, TN_COPY_IN, to, bytes);
}

/* the step */

static tn_status start(struct tn_exec *exec, struct entry *e)
{
    const struct tn_collective *b = exec->machine.carrier[e->carrier].table;
    struct tn_comm *c = e->comm;
    struct tn_queue *q = exec->machine.queue;
    switch (e->opcode) {
    case TN_OP_STAGE_SUM:
    case TN_OP_ALL_REDUCE: return b->all_reduce(c, e->send, e->recv, e->count, e->dtype, e->red, q, &e->request);
    case TN_OP_ALL_GATHER: return b->all_gather(c, e->send, e->recv, e->count, e->dtype, q, &e->request);
    case TN_OP_REDUCE_SCATTER:
        return b->reduce_scatter(c, e->send, e->recv, e->count, e->dtype, e->red, q, &e->request);
    case TN_OP_ALL_TO_ALL: return b->all_to_all(c, e->send, e->recv, e->count, e->dtype, q, &e->request);
    case TN_OP_BROADCAST: return b->broadcast(c, e->send, e->recv, e->count, e->dtype, e->peer, q, &e->request);
    case TN_OP_SEND: return b->send(c, e->send, e->count, e->dtype, e->peer, q, &e->request);
    default: return b->recv(c, e->recv, e->count, e->dtype, e->peer, q, &e->request);
    }
}

/* "all_reduce h.0.attn.o.all_reduce.tp (4096 elements) on tp [0 1]": which op of which group. */
static void name_op(const struct tn_exec *exec, const struct entry *e, struct tn_buf *buf)
{
    const struct tn_mesh *mesh = exec->machine.mesh;
    int32_t coord[TN_MAX_AXES], size = mesh->axis[e->axis].size;
    int32_t *ranks = malloc((size_t)size * sizeof *ranks);
    tn_buf_printf(buf, "%s %s (%llu elements) on %s [", tn_op_kind(e->opcode)->name, e->name,
                  (unsigned long long)e->count, mesh->axis[e->axis].name);
    tn_mesh_coord(mesh, exec->machine.rank, coord);
    if (ranks)
        tn_mesh_group(mesh, coord, e->axis, ranks);
    for (int32_t i = 0; ranks && i < size; i++)
        tn_buf_printf(buf, i ? " %d" : "%d", ranks[i]);
    tn_buf_printf(buf, "]");
    free(ranks);
}

static tn_status explain(struct tn_exec *exec, struct entry *e, tn_status status)
{
    struct tn_comm_error error = { .struct_size = sizeof error, .peer = -1 };
    const char *death = exec->machine.store ? tn_store_death(exec->machine.store, NULL) : NULL;
    struct tn_buf buf;
    tn_buf_init(&buf);
    name_op(exec, e, &buf);
    const struct tn_collective *b = exec->machine.carrier[e->carrier].table;
    if (b->last_error)
        b->last_error(e->comm, &error);
    if (death)
        tn_log(TN_LOG_ERROR, "%s cannot finish: %s", buf.text, death);
    else if (status == TN_TIMEOUT && error.peer >= 0)
        tn_log(TN_LOG_ERROR, "%s: rank %d did not arrive within %.0f s", buf.text, error.peer,
               (double)exec->machine.timeout_ns * 1e-9);
    else if (status == TN_TIMEOUT)
        tn_log(TN_LOG_ERROR, "%s: some rank did not arrive within %.0f s", buf.text,
               (double)exec->machine.timeout_ns * 1e-9);
    else
        tn_log(TN_LOG_ERROR, "%s failed: %s", buf.text,
               error.message && *error.message ? error.message : "no reason given by the backend");
    tn_buf_finish(&buf);
    return status;
}

/* Advances what is under way in other backends than `but`; -1: in all. */
static void progress(struct tn_exec *exec, int32_t but)
{
    for (int32_t i = 0; i < exec->machine.n_carriers; i++)
        if (exec->in_flight[i] && i != but)
            exec->machine.carrier[i].table->progress(exec->machine.carrier[i].self);
}

static tn_status finish(struct tn_exec *exec, struct entry *e)
{
    const struct tn_collective *b = exec->machine.carrier[e->carrier].table;
    uint64_t begun = 0, slice = WAIT_SLICE_NS;
    if (e->ticket) {
        uint64_t ticket = e->ticket;
        e->ticket = 0;
        return tn_copier_wait(exec->machine.copier, ticket);
    }
    if (!e->request)
        return TN_OK;
    int others = exec->all_in_flight > exec->in_flight[e->carrier];
    if (others)
        slice = SHORTEST_SLICE_NS;
    tn_status status = b->test(e->request);
    while (status == TN_PENDING || status == TN_TIMEOUT) {
        status = b->wait(e->request, slice);
        if (status != TN_TIMEOUT && status != TN_PENDING)
            break;
        uint64_t now = tn_now_ns();
        begun = begun ? begun : now;
        if (others) {
            progress(exec, e->carrier);
            slice = (now - begun) / SHARE_OF_WAIT;
            slice = slice < SHORTEST_SLICE_NS ? SHORTEST_SLICE_NS : slice < SHARED_SLICE_NS ? slice : SHARED_SLICE_NS;
        }
        if (exec->machine.store && tn_store_death(exec->machine.store, NULL))
            status = TN_PEER;
        else if (now - begun > exec->machine.timeout_ns)
            return explain(exec, e, TN_TIMEOUT);
    }
    if (status != TN_OK)
        return explain(exec, e, status);
    e->request = NULL;
    exec->in_flight[e->carrier]--;
    exec->all_in_flight--;
    return TN_OK;
}

static tn_status start_copy(struct tn_exec *exec, struct entry *e)
{
    const struct tn_machine *m = &exec->machine;
    tn_status status = m->device->event_record(m->device_self, e->copy->event, m->queue);
    if (status != TN_OK)
        tn_log(TN_LOG_ERROR, "%s: the device could not note where the copy may start", e->name);
    else
        e->ticket = tn_copier_start(m->copier, e->copy);
    return status;
}

static tn_status finish_all(struct tn_exec *exec, const uint32_t *wait, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        tn_status status = finish(exec, &exec->entry[wait[i]]);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

tn_status tn_exec_step(struct tn_exec *exec)
{
    const struct tn_machine *m = &exec->machine;
    for (uint32_t i = 0; i < exec->n_entries; i++) {
        struct entry *e = &exec->entry[i];
        tn_status status = finish_all(exec, e->wait, e->n_waits);
        if (status != TN_OK)
            return status;
        if (e->kernel) {
            status = m->device->launch(m->device_self, e->kernel, m->queue);
            if (status != TN_OK) {
                tn_log(TN_LOG_ERROR, "%s failed on the device", e->name);
                return status;
            }
            if (exec->all_in_flight)
                progress(exec, -1);
            continue;
        }
        if (e->copy) {
            if ((status = start_copy(exec, e)) != TN_OK)
                return status;
            continue;
        }
        const struct tn_carrier *c = &m->carrier[e->carrier];
        if (e->opens)
            status = c->table->group_start(c->self);
        if (status >= 0)
            status = start(exec, e);
        if (status >= 0 && e->closes)
            status = c->table->group_end(c->self);
        if (status < 0)
            return explain(exec, e, status);
        exec->in_flight[e->carrier] += e->request != NULL;
        exec->all_in_flight += e->request != NULL;
    }
    tn_status status = finish_all(exec, exec->final_wait, exec->n_final_waits);
    return status == TN_OK ? m->device->queue_sync(m->device_self, m->queue) : status;
}
