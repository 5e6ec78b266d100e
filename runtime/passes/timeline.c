/* Timeline: see timeline.h. Programs become short lists of events (work, start of a message, wait for one); then the
 * ranks take turns, each going on until it waits for a message that is not done. */
#include "passes/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORK, START, WAIT };

struct event {
    uint8_t kind;
    uint32_t slot, message; /* message: of this rank */
    double cost;
};

struct message {
    const char *name;
    uint64_t way; /* peer, channel, direction, and the how manieth */
    int32_t peer, micro;
    uint8_t channel, sends, started, done;
    uint32_t dtype, partner;
    int64_t elements;
    double started_at, done_at;
};

struct channel {
    uint32_t *message; /* in the order of the program */
    size_t n, cap, head;
    double free_at;
};

struct tn_timeline_rank {
    struct event *event;
    struct message *message;
    size_t n_events, cap_events, n_messages, cap_messages, at;
    struct channel channel[TN_MAX_CHANNELS];
    double clock;
};

int32_t tn_stage_axis(const struct tn_mesh *mesh)
{
    for (int32_t axis = 0; axis < mesh->n_axes; axis++)
        if (mesh->axis[axis].stages)
            return axis;
    return -1;
}

void tn_timeline_init(struct tn_timeline *t, int32_t ranks)
{
    *t = (struct tn_timeline){ .ranks = ranks };
    tn_arena_init(&t->memory);
    t->rank = tn_arena_alloc(&t->memory, (size_t)ranks * sizeof *t->rank);
}

void tn_timeline_finish(struct tn_timeline *t)
{
    tn_arena_finish(&t->memory);
    *t = (struct tn_timeline){ 0 };
}

/* from programs to events */

static void add_event(struct tn_timeline *t, struct tn_timeline_rank *r, struct event event)
{
    r->event = tn_arena_grow(&t->memory, r->event, sizeof *r->event, &r->cap_events, r->n_events + 1);
    r->event[r->n_events++] = event;
}

/* The slot of an op, a new one if it is not that of the op before. */
static uint32_t slot_of(struct tn_timeline *t, int32_t rank, const struct tn_op_data *o)
{
    struct tn_timeline_slot *last = t->n_slots ? &t->slot[t->n_slots - 1] : NULL;
    if (last && last->rank == rank && last->region == o->region && last->stage == o->stage && last->micro == o->micro)
        return (uint32_t)(t->n_slots - 1);
    t->slot = tn_arena_grow(&t->memory, t->slot, sizeof *t->slot, &t->cap_slots, t->n_slots + 1);
    t->slot[t->n_slots] = (struct tn_timeline_slot){
        .region = o->region, .rank = rank, .stage = o->stage, .micro = o->micro, .begin = -1
    };
    t->stages = o->stage >= t->stages ? o->stage + 1 : t->stages;
    t->micro_batches = o->micro >= t->micro_batches ? o->micro + 1 : t->micro_batches;
    return (uint32_t)t->n_slots++;
}

/* How many messages went this way before. */
static uint64_t count_way(const struct tn_timeline_rank *r, uint64_t way)
{
    for (size_t i = r->n_messages; i-- > 0;)
        if (r->message[i].way >> 32 == way)
            return (r->message[i].way & UINT32_MAX) + 1;
    return 0;
}

static uint64_t way_of(int32_t peer, uint32_t channel, int sends)
{
    return ((uint64_t)peer * TN_MAX_CHANNELS + channel) * 2 + (uint64_t)sends;
}

static uint32_t add_message(struct tn_timeline *t, struct tn_timeline_rank *r, const struct tn_program *p, tn_op op)
{
    const struct tn_op_data *o = &p->ops[op];
    int sends = o->opcode == TN_OP_SEND;
    tn_value v = sends ? o->in[0] : o->out[0];
    struct message m = { .name = tn_arena_strdup(&t->memory, o->name),
                         .peer = (int32_t)tn_attr_i(p, op, "peer", 0),
                         .micro = o->micro,
                         .channel = (uint8_t)tn_attr_i(p, op, "channel", 0),
                         .sends = (uint8_t)sends,
                         .dtype = p->values[v].dtype,
                         .elements = tn_local_elements(p, v) };
    uint64_t way = way_of(m.peer, m.channel, sends);
    m.way = way << 32 | count_way(r, way);
    struct channel *c = &r->channel[m.channel];
    c->message = tn_arena_grow(&t->memory, c->message, sizeof *c->message, &c->cap, c->n + 1);
    c->message[c->n++] = (uint32_t)r->n_messages;
    r->message = tn_arena_grow(&t->memory, r->message, sizeof *r->message, &r->cap_messages, r->n_messages + 1);
    r->message[r->n_messages] = m;
    return (uint32_t)r->n_messages++;
}

static int is_message(const struct tn_program *p, tn_op op, int32_t axis)
{
    return (p->ops[op].opcode == TN_OP_SEND || p->ops[op].opcode == TN_OP_RECV) && tn_attr_i(p, op, "axis", 0) == axis;
}

void tn_timeline_add(struct tn_timeline *t, int32_t rank, const struct tn_plan *plan)
{
    const struct tn_program *p = plan->p;
    struct tn_timeline_rank *r = &t->rank[rank];
    int32_t axis = tn_stage_axis(p->mesh);
    uint32_t *message_of = calloc((size_t)p->n_ops + 1, sizeof *message_of);
    TN_EACH_OP(p, op) {
        const struct tn_op_data *o = &p->ops[op];
        for (uint32_t w = plan->first_wait[o->order]; message_of && w < plan->first_wait[o->order + 1]; w++)
            if (is_message(p, plan->wait[w], axis))
                add_event(t, r, (struct event){ .kind = WAIT, .message = message_of[plan->wait[w]] });
        if (is_message(p, op, axis)) {
            uint32_t message = add_message(t, r, p, op);
            if (message_of)
                message_of[op] = message;
            add_event(t, r, (struct event){ .kind = START, .message = message });
        } else if (tn_region_per_micro(o->region) && o->stage >= 0 && !tn_op_is_comm(o->opcode)) {
            struct event work = { .kind = WORK, .slot = slot_of(t, rank, o) };
            double bytes;
            tn_op_kind(o->opcode)->cost(p, op, &work.cost, &bytes);
            add_event(t, r, work);
        }
    }
    free(message_of);
}

/* running them */

struct by_way {
    uint64_t way;
    uint32_t message;
};

static int compare_ways(const void *a, const void *b)
{
    const struct by_way *x = a, *y = b;
    return (x->way > y->way) - (x->way < y->way);
}

/* The other side of each message: the same number on the way back. */
static tn_status find_partners(struct tn_timeline *t, char *error, size_t error_bytes)
{
    struct by_way **sorted = tn_arena_alloc(&t->memory, (size_t)t->ranks * sizeof *sorted);
    for (int32_t i = 0; i < t->ranks; i++) {
        struct tn_timeline_rank *r = &t->rank[i];
        sorted[i] = tn_arena_alloc(&t->memory, (r->n_messages + 1) * sizeof **sorted);
        for (size_t k = 0; k < r->n_messages; k++)
            sorted[i][k] = (struct by_way){ r->message[k].way, (uint32_t)k };
        qsort(sorted[i], r->n_messages, sizeof **sorted, compare_ways);
    }
    for (int32_t i = 0; i < t->ranks; i++)
        for (size_t k = 0; k < t->rank[i].n_messages; k++) {
            struct message *m = &t->rank[i].message[k];
            struct tn_timeline_rank *other = &t->rank[m->peer];
            struct by_way key = { way_of(i, m->channel, !m->sends) << 32 | (m->way & UINT32_MAX), 0 };
            const struct by_way *found = bsearch(&key, sorted[m->peer], other->n_messages, sizeof key, compare_ways);
            const struct message *partner = found ? &other->message[found->message] : NULL;
            if (!partner || partner->dtype != m->dtype || partner->elements != m->elements ||
                partner->micro != m->micro) {
                snprintf(error, error_bytes,
                         "message %llu between ranks %d and %d on channel %u is %s on rank %d and %s on rank %d",
                         (unsigned long long)(m->way & UINT32_MAX), i, m->peer, m->channel, m->name, i,
                         partner ? partner->name : "none", m->peer);
                return TN_CONFLICT;
            }
            m->partner = found->message;
        }
    return TN_OK;
}

static double latest(double a, double b)
{
    return a > b ? a : b;
}

/* Whether a message may move now. */
static int is_ready(const struct tn_timeline_rank *r, const struct message *m, int in_order)
{
    const struct channel *c = &r->channel[m->channel];
    return m->started && !m->done && (!in_order || (c->head < c->n && &r->message[c->message[c->head]] == m));
}

/* Completes a message if both sides can. */
static int complete(struct tn_timeline *t, struct tn_timeline_rank *r, struct message *m, int in_order)
{
    struct tn_timeline_rank *other = &t->rank[m->peer];
    struct message *partner = &other->message[m->partner];
    if (!is_ready(r, m, in_order) || !is_ready(other, partner, in_order))
        return 0;
    struct channel *mine = &r->channel[m->channel], *theirs = &other->channel[m->channel];
    double at = latest(m->started_at, partner->started_at);
    if (in_order)
        at = latest(at, latest(mine->free_at, theirs->free_at));
    m->done = partner->done = 1;
    m->done_at = partner->done_at = at;
    mine->free_at = theirs->free_at = at;
    mine->head++;
    theirs->head++;
    return 1;
}

/* Goes on until the rank waits; whether it did anything. */
static int advance(struct tn_timeline *t, struct tn_timeline_rank *r, int in_order)
{
    size_t began = r->at;
    for (; r->at < r->n_events; r->at++) {
        const struct event *e = &r->event[r->at];
        struct message *m = &r->message[e->message];
        if (e->kind == WORK) {
            struct tn_timeline_slot *slot = &t->slot[e->slot];
            slot->begin = slot->begin < 0 ? r->clock : slot->begin;
            r->clock += e->cost;
            slot->end = r->clock;
            slot->work += e->cost;
        } else if (e->kind == START) {
            m->started = 1;
            m->started_at = r->clock;
            complete(t, r, m, in_order);
        } else if (m->done) {
            r->clock = latest(r->clock, m->done_at);
        } else {
            break;
        }
    }
    return r->at > began;
}

/* The messages at the heads of all channels. */
static int complete_heads(struct tn_timeline *t)
{
    int moved = 0;
    for (int32_t i = 0; i < t->ranks; i++)
        for (int k = 0; k < TN_MAX_CHANNELS; k++) {
            struct channel *c = &t->rank[i].channel[k];
            while (c->head < c->n && complete(t, &t->rank[i], &t->rank[i].message[c->message[c->head]], 1))
                moved = 1;
        }
    return moved;
}

static void reset(struct tn_timeline *t)
{
    for (size_t i = 0; i < t->n_slots; i++)
        t->slot[i].begin = -1, t->slot[i].end = t->slot[i].work = 0;
    for (int32_t i = 0; i < t->ranks; i++) {
        struct tn_timeline_rank *r = &t->rank[i];
        r->clock = 0;
        r->at = 0;
        for (size_t k = 0; k < r->n_messages; k++)
            r->message[k].started = r->message[k].done = 0;
        for (int k = 0; k < TN_MAX_CHANNELS; k++)
            r->channel[k].head = 0, r->channel[k].free_at = 0;
    }
    t->end = 0;
}

/* What each rank that has not come to its end waits for. */
static tn_status explain(const struct tn_timeline *t, char *error, size_t error_bytes)
{
    size_t at = 0;
    for (int32_t i = 0; i < t->ranks; i++) {
        const struct tn_timeline_rank *r = &t->rank[i];
        if (r->at == r->n_events || at >= error_bytes)
            continue;
        const struct message *m = &r->message[r->event[r->at].message];
        at += (size_t)snprintf(error + at, error_bytes - at, "%srank %d waits for ever for %s %s rank %d",
                               at ? "; " : "", i, m->name, m->sends ? "to" : "from", m->peer);
    }
    return at ? TN_TIMEOUT : TN_OK;
}

tn_status tn_timeline_run(struct tn_timeline *t, int in_order, char *error, size_t error_bytes)
{
    int moved = 1;
    reset(t);
    tn_status status = find_partners(t, error, error_bytes);
    while (status == TN_OK && moved) {
        moved = 0;
        for (int32_t i = 0; i < t->ranks; i++)
            moved |= advance(t, &t->rank[i], in_order);
        if (in_order)
            moved |= complete_heads(t);
    }
    for (size_t i = 0; i < t->n_slots; i++)
        t->end = latest(t->end, t->slot[i].end);
    return status == TN_OK ? explain(t, error, error_bytes) : status;
}

struct tn_bubble tn_timeline_bubble(const struct tn_timeline *t)
{
    double work[5] = { 0 }, all = 0, most = 0;
    double *busy = calloc((size_t)t->ranks + 1, sizeof *busy);
    for (size_t i = 0; busy && i < t->n_slots; i++) {
        const struct tn_timeline_slot *s = &t->slot[i];
        work[s->region] += s->work;
        all += s->work;
        busy[s->rank] += s->work;
        most = latest(most, busy[s->rank]);
    }
    free(busy);
    if (!(t->end > 0) || t->ranks < 1)
        return (struct tn_bubble){ 0 };
    double mean = all / t->ranks, chunks = (double)t->stages / t->ranks;
    double x = (t->ranks - 1) * (all - 2 * work[TN_REGION_WEIGHT]) / (chunks * t->micro_batches * all);
    return (struct tn_bubble){ .idle = 1 - mean / t->end,
                               .bubble = 1 - most / t->end,
                               .unequal = (most - mean) / t->end,
                               .formula = x / (1 + x) };
}
