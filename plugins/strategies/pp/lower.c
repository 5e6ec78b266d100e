/* pp.lower: what crosses between stages is sent.
 *
 * Requires: a resolved program with stages, lowered by all others. Establishes: a value that another stage uses is sent
 * by the stage that makes it and received there before that stage's first op of the region:
 *
 *     h = add a b          (stage 0)        h = add a b;  send h          (stage 0)
 *     n = rmsnorm h w      (stage 1)   =>   h.at1 = recv;  n = rmsnorm h.at1 w   (stage 1)
 *
 * Sends stand in the order in which values are made, receives of a region in the same order, and neither blocks, so that
 * no order of stages can deadlock.
 */
#include "pp.h"

#include <stdio.h>
#include <string.h>

struct crossing {
    const struct pp *pp;
    struct tn_program *program;
    int32_t axis;
};

/* The first op of a stage in a region behind `after`: receives go before it. */
static tn_op first_of(const struct crossing *c, int32_t stage, uint32_t region, tn_op after)
{
    for (tn_op op = c->pp->read->op_next(c->program, after); op; op = c->pp->read->op_next(c->program, op)) {
        struct tn_op_info info;
        pp_op(c->pp, c->program, op, &info);
        if (info.stage == stage && info.region == region && info.opcode != TN_OP_RECV)
            return op;
    }
    return 0;
}

/* The first user of v on `stage` after its maker, if it is not the maker's own. */
static tn_op user_on(const struct crossing *c, tn_value v, int32_t maker, int32_t *stage)
{
    for (tn_op user = c->pp->read->user_next(c->program, v, 0); user; user = c->pp->read->user_next(c->program, v, user)) {
        struct tn_op_info info;
        pp_op(c->pp, c->program, user, &info);
        if (info.stage >= 0 && info.stage != maker && info.opcode != TN_OP_STAGE_SUM && info.opcode != TN_OP_BROADCAST &&
            info.opcode != TN_OP_RECV) {
            *stage = info.stage;
            return user;
        }
    }
    return 0;
}

static void use_there(const struct crossing *c, tn_value v, tn_value there, int32_t stage)
{
    for (tn_op user = c->pp->read->user_next(c->program, v, 0); user; user = c->pp->read->user_next(c->program, v, user)) {
        struct tn_op_info info;
        pp_op(c->pp, c->program, user, &info);
        for (uint32_t i = 0; info.stage == stage && info.opcode != TN_OP_RECV && i < info.n_in; i++)
            if (info.in[i] == v)
                c->pp->edit->set_input(c->program, user, i, there);
    }
}

static void send_across(const struct crossing *c, tn_op maker, tn_value v, int32_t from, tn_op user, int32_t to)
{
    const struct tn_program_edit_api *edit = c->pp->edit;
    struct tn_op_info made, used;
    struct tn_value_info value;
    char name[256];
    pp_op(c->pp, c->program, maker, &made);
    pp_op(c->pp, c->program, user, &used);
    pp_value(c->pp, c->program, v, &value);
    const struct tn_attr out[] = {TN_ATTR_I("axis", c->axis), TN_ATTR_I("peer", to)};
    const struct tn_attr in[] = {TN_ATTR_I("axis", c->axis), TN_ATTR_I("peer", from)};
    /* what the step region uses is complete only after the last micro-batch */
    int once = used.region == TN_REGION_STEP && made.region != TN_REGION_STEP;
    edit->at(c->program, used.region == TN_REGION_STEP ? TN_REGION_STEP : made.region, made.layer, from);
    edit->insert_before(c->program, once ? first_of(c, from, TN_REGION_STEP, maker) : c->pp->read->op_next(c->program, maker));
    snprintf(name, sizeof name, "%.230s.to%d", value.name, to);
    edit->op(c->program, TN_OP_SEND, name, &v, 1, out, 2);
    edit->at(c->program, used.region, used.layer, to);
    edit->insert_before(c->program, first_of(c, to, used.region, c->pp->edit->last_op(c->program)));
    snprintf(name, sizeof name, "%.230s.at%d", value.name, to);
    tn_value there = edit->op(c->program, TN_OP_RECV, name, &v, 1, in, 2);
    for (int32_t axis = 0; there && axis < c->pp->read->axis_count(c->program); axis++)
        edit->place(c->program, there, axis, c->pp->read->placement(c->program, v, axis));
    edit->insert_before(c->program, 0);
    if (there)
        use_there(c, v, there, to);
}

tn_status pp_lower(void *self, struct tn_program *program)
{
    const struct pp *pp = self;
    struct crossing c = {.pp = pp, .program = program, .axis = pp->read->axis_find(program, "pp")};
    if (c.axis < 0 || pp->read->axis_size(program, c.axis) == 1)
        return TN_OK;
    for (tn_op op = pp->read->op_next(program, 0); op; op = pp->read->op_next(program, op)) {
        struct tn_op_info info;
        pp_op(pp, program, op, &info);
        for (uint32_t i = 0; info.stage >= 0 && i < info.n_out; i++) {
            int32_t to;
            tn_op user;
            while ((user = user_on(&c, info.out[i], info.stage, &to)))
                send_across(&c, op, info.out[i], info.stage, user, to);
            pp_op(pp, program, op, &info);
        }
    }
    return TN_OK;
}
