/* Optimizer state elsewhere, and with it the fp32 params that only it and a cast need.
 *
 * Requires: a resolved program. Establishes: states that an op of the step region updates in place are in the space
 * asked for, but for the update itself:
 *
 *     state m                                    state m space=host
 *                                                m.back = fetch m                        (some updates ahead)
 *     p', m' = adamw p m g ..              =>    p', m' = adamw p m.back g ..
 *                                                m.host = offload m' into m
 *
 * So are params of which the forward pass uses a cast made in the prologue; they are fetched for that as well.
 * Preserves: all values, to the bit. At any time only the states of a few updates are on the device. */
#include "offload.h"

#include <stdio.h>
#include <string.h>

enum { MOST_AHEAD = 65 };

/* Ops of one kind in program order, the latest few: a fetch stands before the one that is `prefetch` ago. */
struct row {
    tn_op first, latest[MOST_AHEAD];
    uint32_t n;
};

struct updates {
    const struct offload *o;
    struct tn_program *program;
    struct row step, prologue;
};

static tn_op ahead(const struct updates *u, const struct row *row, tn_op op)
{
    uint32_t prefetch = (uint32_t)u->o->prefetch;
    if (prefetch == 0)
        return op;
    return row->n >= prefetch ? row->latest[(row->n - prefetch) % MOST_AHEAD] : row->first;
}

/* The output of op that is the new value of its n-th input of this kind; 0: none. */
static tn_value updated(const struct updates *u, const struct tn_op_info *op, uint32_t kind, tn_value like, uint32_t n)
{
    for (uint32_t i = 0; i < op->n_out; i++) {
        struct tn_value_info out;
        offload_value(u->o, u->program, op->out[i], &out);
        if (out.kind == kind && out.like == like && n-- == 0)
            return op->out[i];
    }
    return 0;
}

/* Whether v is a param that nothing uses but casts of the prologue (one at least) and its update. */
static int is_master(const struct updates *u, tn_value v, const struct tn_value_info *info)
{
    const struct tn_program_api *read = u->o->read;
    int casts = 0;
    if (info->kind != TN_KIND_PARAM || info->def)
        return 0;
    for (tn_op user = read->user_next(u->program, v, 0); user; user = read->user_next(u->program, v, user)) {
        struct tn_op_info op;
        offload_op(u->o, u->program, user, &op);
        int is_cast = op.region == TN_REGION_PROLOGUE && (op.opcode == TN_OP_CAST || op.opcode == TN_OP_FETCH);
        if (!is_cast && (op.region != TN_REGION_STEP || !updated(u, &op, TN_KIND_PARAM, v, 0)))
            return 0;
        casts += is_cast;
    }
    return casts > 0;
}

/* Input `index` of op, v, is fetched before `before`. */
static void fetch(const struct updates *u, tn_op op, uint32_t index, tn_value v, tn_op before, const char *suffix)
{
    const struct offload *o = u->o;
    struct tn_op_info info;
    struct tn_value_info value;
    char name[256];
    offload_op(o, u->program, op, &info);
    offload_value(o, u->program, v, &value);
    o->edit->set_space(u->program, v, o->optimizer);
    o->edit->at(u->program, info.region, info.layer, info.stage);
    o->edit->insert_before(u->program, before);
    snprintf(name, sizeof name, "%.230s.%s", value.name, suffix);
    tn_value back = o->edit->op(u->program, TN_OP_FETCH, name, &v, 1, NULL, 0);
    o->edit->insert_before(u->program, 0);
    if (!back)
        return; /* said in the program */
    for (int32_t axis = 0; axis < o->read->axis_count(u->program); axis++)
        o->edit->place(u->program, back, axis, o->read->placement(u->program, v, axis));
    o->edit->set_kind(u->program, back, value.kind, value.kind == TN_KIND_PARAM ? v : value.like);
    o->edit->set_input(u->program, op, index, back);
}

/* v's new value goes back behind op. */
static void store(const struct updates *u, tn_op op, tn_value renewed, tn_value v)
{
    const struct offload *o = u->o;
    const struct tn_attr space[] = { TN_ATTR_I("space", o->optimizer) };
    struct tn_op_info info;
    struct tn_value_info value;
    char name[256];
    offload_op(o, u->program, op, &info);
    offload_value(o, u->program, v, &value);
    o->edit->at(u->program, info.region, info.layer, info.stage);
    o->edit->insert_before(u->program, o->read->op_next(u->program, op));
    snprintf(name, sizeof name, "%.240s.away", value.name);
    tn_value away = o->edit->op(u->program, TN_OP_OFFLOAD, name, (tn_value[]){ renewed, v }, 2, space, 1);
    o->edit->insert_before(u->program, 0);
    if (away)
        o->edit->set_kind(u->program, away, value.kind, value.kind == TN_KIND_PARAM ? v : value.like);
}

static void move_update(struct updates *u, tn_op op)
{
    tn_op before = ahead(u, &u->step, op);
    struct tn_op_info info;
    uint32_t states = 0;
    offload_op(u->o, u->program, op, &info);
    for (uint32_t i = 0; i < info.n_in; i++) {
        struct tn_value_info value;
        tn_value v = info.in[i], renewed = 0;
        if (!v)
            continue;
        offload_value(u->o, u->program, v, &value);
        if (value.kind == TN_KIND_STATE && !value.def && value.like)
            renewed = updated(u, &info, TN_KIND_STATE, value.like, states);
        else if (is_master(u, v, &value))
            renewed = updated(u, &info, TN_KIND_PARAM, v, 0);
        if (!renewed)
            continue;
        states += value.kind == TN_KIND_STATE;
        fetch(u, op, i, v, before, "back");
        store(u, op, renewed, v);
        offload_op(u->o, u->program, op, &info);
    }
    if (states > 0)
        u->step.latest[u->step.n++ % MOST_AHEAD] = op;
}

static void move_cast(struct updates *u, tn_op op)
{
    struct tn_op_info info;
    struct tn_value_info value;
    offload_op(u->o, u->program, op, &info);
    offload_value(u->o, u->program, info.in[0], &value);
    if (info.opcode != TN_OP_CAST || !is_master(u, info.in[0], &value))
        return;
    fetch(u, op, 0, info.in[0], ahead(u, &u->prologue, op), "cast.back");
    u->prologue.latest[u->prologue.n++ % MOST_AHEAD] = op;
}

tn_status offload_optimizer(const struct offload *o, struct tn_program *program)
{
    struct updates u = { .o = o, .program = program };
    tn_op next;
    for (tn_op op = o->read->op_next(program, 0); op; op = next) {
        struct tn_op_info info;
        next = o->read->op_next(program, op); /* copies come behind op, and are none of its kind */
        offload_op(o, program, op, &info);
        struct row *row = info.region == TN_REGION_PROLOGUE ? &u.prologue : &u.step;
        if (info.region != TN_REGION_PROLOGUE && info.region != TN_REGION_STEP)
            continue;
        row->first = row->first ? row->first : op;
        if (info.region == TN_REGION_STEP)
            move_update(&u, op);
        else
            move_cast(&u, op);
    }
    return TN_OK;
}
