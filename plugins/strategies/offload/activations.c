/* Activations elsewhere.
 *
 * Requires: a resolved program, lowered by the strategies that decide what is kept. Establishes: each of the chosen
 * values is copied away as soon as it is made, and back before the backward pass uses it:
 *
 *     forward:  h = linear x w                  forward:  h = linear x w
 *               y = gelu h                                h.host = offload h
 *     backward: dh = gelu_dx dy h       =>                y = gelu h
 *                                               backward: h.back = fetch h.host        (`prefetch` layers ahead)
 *                                                         dh = gelu_dx dy h.back
 *
 * Preserves: all values, to the bit. The memory planner sees that h has no use after the forward pass. */
#include "offload.h"

#include <stdio.h>
#include <string.h>

enum { MOST_LAYERS = 4096 };

struct moving {
    const struct offload *o;
    struct tn_program *program;
    int32_t prefetch;
    tn_op first[MOST_LAYERS]; /* by layer: its first op in the backward region */
};

/* Ops that other strategies put ahead of the layer that they belong to. */
static int stands_elsewhere(uint32_t opcode)
{
    return opcode == TN_OP_ALL_GATHER || opcode == TN_OP_SEND || opcode == TN_OP_RECV || opcode == TN_OP_FETCH;
}

static void find_layers(struct moving *m)
{
    for (tn_op op = m->o->read->op_next(m->program, 0); op; op = m->o->read->op_next(m->program, op)) {
        struct tn_op_info info;
        offload_op(m->o, m->program, op, &info);
        if (info.region == TN_REGION_BACKWARD && info.layer >= 0 && info.layer < MOST_LAYERS && !m->first[info.layer] &&
            !stands_elsewhere(info.opcode))
            m->first[info.layer] = op;
    }
}

/* The first op of a stage's backward region. */
static tn_op first_of_stage(const struct moving *m, int32_t stage)
{
    for (tn_op op = m->o->read->op_next(m->program, 0); op; op = m->o->read->op_next(m->program, op)) {
        struct tn_op_info info;
        offload_op(m->o, m->program, op, &info);
        if (info.region == TN_REGION_BACKWARD && info.stage == stage)
            return op;
    }
    return 0;
}

/* Where the fetch for `user` goes: before the first op of the layer that is `prefetch` ahead in the backward pass. */
static tn_op ahead(const struct moving *m, tn_op user)
{
    struct tn_op_info info, there;
    offload_op(m->o, m->program, user, &info);
    int32_t layer = info.layer + m->prefetch;
    if (info.layer < 0 || m->prefetch == 0 || info.region != TN_REGION_BACKWARD)
        return user;
    tn_op first = layer < MOST_LAYERS ? m->first[layer] : 0;
    if (first) {
        offload_op(m->o, m->program, first, &there);
        if (there.stage == info.stage)
            return first;
    }
    return first_of_stage(m, info.stage);
}

static void use_copy(const struct moving *m, tn_value v, tn_value back, tn_op fetch)
{
    const struct tn_program_api *read = m->o->read;
    for (tn_op user = read->user_next(m->program, v, fetch); user; user = read->user_next(m->program, v, user)) {
        struct tn_op_info info;
        offload_op(m->o, m->program, user, &info);
        for (uint32_t i = 0; info.region != TN_REGION_FORWARD && i < info.n_in; i++)
            if (info.in[i] == v)
                m->o->edit->set_input(m->program, user, i, back);
    }
}

static void move_one(const struct moving *m, const struct candidate *c)
{
    const struct offload *o = m->o;
    const struct tn_attr space[] = { TN_ATTR_I("space", o->activations) };
    struct tn_op_info made, used;
    struct tn_value_info value;
    char name[256];
    offload_op(o, m->program, c->def, &made);
    offload_op(o, m->program, c->first, &used);
    offload_value(o, m->program, c->v, &value);
    o->edit->at(m->program, made.region, made.layer, made.stage);
    o->edit->insert_before(m->program, o->read->op_next(m->program, c->def));
    snprintf(name, sizeof name, "%.240s.away", value.name);
    tn_value away = o->edit->op(m->program, TN_OP_OFFLOAD, name, &c->v, 1, space, 1);
    o->edit->at(m->program, used.region, used.layer, used.stage);
    o->edit->insert_before(m->program, ahead(m, c->first));
    snprintf(name, sizeof name, "%.240s.back", value.name);
    tn_value back = away ? o->edit->op(m->program, TN_OP_FETCH, name, &away, 1, NULL, 0) : 0;
    o->edit->insert_before(m->program, 0);
    if (back)
        use_copy(m, c->v, back, o->edit->last_op(m->program));
}

/* Fetches before the same op stay in the order of the list, so the one that is needed first is put first. */
static const struct candidate *next_needed(const struct moved *moved, uint8_t *done, tn_op op)
{
    for (uint32_t i = 0; i < moved->n; i++)
        if (!done[i] && moved->list[i].first == op) {
            done[i] = 1;
            return &moved->list[i];
        }
    return NULL;
}

tn_status offload_move(const struct offload *o, struct tn_program *program, const struct moved *moved)
{
    uint32_t n = moved->n;
    const struct tn_host *host = o->host;
    if (n == 0)
        return TN_OK;
    struct moving *m = host->alloc(host, sizeof *m);
    uint8_t *done = host->alloc(host, n);
    tn_status status = TN_OK;
    if (m && done) {
        memset(done, 0, n);
        memset(m, 0, sizeof *m);
        m->o = o;
        m->program = program;
        m->prefetch = moved->prefetch;
        find_layers(m);
        for (tn_op op = o->read->op_next(program, 0); op; op = o->read->op_next(program, op))
            for (const struct candidate *c; (c = next_needed(moved, done, op));)
                move_one(m, c);
    } else {
        status = host->fail(host, TN_NO_MEMORY, "no memory to move %u activations", n);
    }
    host->release(host, done);
    host->release(host, m);
    return status;
}
