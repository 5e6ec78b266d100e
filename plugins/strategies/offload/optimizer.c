/* Optimizer state elsewhere.
 *
 * Requires: a resolved program. Establishes: states that an op of the step region updates in place are in the space
 * asked for, but for the update itself:
 *
 *     state m                                    state m space=host
 *                                                m.back = fetch m                        (some updates ahead)
 *     p', m' = adamw p m g ..              =>    p', m' = adamw p m.back g ..
 *                                                m.host = offload m' into m
 *
 * Preserves: all values, to the bit. At any time only the states of a few updates are on the device. */
#include "offload.h"

#include <stdio.h>
#include <string.h>

enum { MOST_AHEAD = 65 };

struct updates {
    const struct offload *o;
    struct tn_program *program;
    tn_op ahead[MOST_AHEAD]; /* the latest updates, a ring: fetches stand before the one `prefetch` updates ago */
    uint32_t n;
};

/* The output of op that is the new value of state `v`, its n-th state among the inputs; 0: none. */
static tn_value updated(const struct updates *u, const struct tn_op_info *op, const struct tn_value_info *state, uint32_t n)
{
    for (uint32_t i = 0; i < op->n_out; i++) {
        struct tn_value_info out;
        offload_value(u->o, u->program, op->out[i], &out);
        if (out.kind == TN_KIND_STATE && out.like == state->like && n-- == 0)
            return op->out[i];
    }
    return 0;
}

/* State v, input `index` of op, is fetched before `before` and brought back behind op. */
static void move_state(struct updates *u, tn_op op, uint32_t index, tn_value v, tn_value renewed, tn_op before)
{
    const struct offload *o = u->o;
    const struct tn_attr space[] = {TN_ATTR_I("space", o->optimizer)};
    struct tn_op_info info;
    struct tn_value_info state;
    char name[256];
    offload_op(o, u->program, op, &info);
    offload_value(o, u->program, v, &state);
    o->edit->set_space(u->program, v, o->optimizer);
    o->edit->at(u->program, info.region, info.layer, info.stage);
    o->edit->insert_before(u->program, before);
    snprintf(name, sizeof name, "%.240s.back", state.name);
    tn_value back = o->edit->op(u->program, TN_OP_FETCH, name, &v, 1, NULL, 0);
    o->edit->insert_before(u->program, o->read->op_next(u->program, op));
    snprintf(name, sizeof name, "%.240s.away", state.name);
    tn_value away = o->edit->op(u->program, TN_OP_OFFLOAD, name, (tn_value[]){renewed, v}, 2, space, 1);
    o->edit->insert_before(u->program, 0);
    if (!back || !away)
        return; /* said in the program */
    for (int32_t axis = 0; axis < o->read->axis_count(u->program); axis++)
        o->edit->place(u->program, back, axis, o->read->placement(u->program, v, axis));
    o->edit->set_kind(u->program, back, TN_KIND_STATE, state.like);
    o->edit->set_kind(u->program, away, TN_KIND_STATE, state.like);
    o->edit->set_input(u->program, op, index, back);
}

static void move_states_of(struct updates *u, tn_op op, tn_op first)
{
    struct tn_op_info info;
    struct tn_value_info state;
    uint32_t n = 0, prefetch = (uint32_t)u->o->prefetch, at = u->n;
    tn_op before = op;
    if (prefetch > 0)
        before = at >= prefetch ? u->ahead[(at - prefetch) % MOST_AHEAD] : first;
    offload_op(u->o, u->program, op, &info);
    for (uint32_t i = 0; i < info.n_in; i++) {
        offload_op(u->o, u->program, op, &info);
        if (!info.in[i])
            continue;
        offload_value(u->o, u->program, info.in[i], &state);
        tn_value renewed = state.kind == TN_KIND_STATE && !state.def && state.like ? updated(u, &info, &state, n) : 0;
        if (!renewed)
            continue;
        move_state(u, op, i, info.in[i], renewed, before);
        n++;
    }
    if (n > 0)
        u->ahead[u->n++ % MOST_AHEAD] = op;
}

tn_status offload_optimizer(const struct offload *o, struct tn_program *program)
{
    struct updates u = {.o = o, .program = program};
    tn_op first = 0, next;
    for (tn_op op = o->read->op_next(program, 0); op; op = next) {
        struct tn_op_info info;
        next = o->read->op_next(program, op); /* copies come behind op, and are none of its kind */
        offload_op(o, program, op, &info);
        if (info.region != TN_REGION_STEP)
            continue;
        first = first ? first : op;
        move_states_of(&u, op, first);
    }
    return TN_OK;
}
