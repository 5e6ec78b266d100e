/* pp.lower: what crosses between ranks is sent.
 *
 * Requires: a resolved program with stages, lowered by all others. Establishes: a value that another rank's stage uses
 * is sent by the stage that makes it and received there before that stage's first op of the region:
 *
 *     h = add a b          (stage 0)        h = add a b;  send h          (stage 0)
 *     n = rmsnorm h w      (stage 1)   =>   h.at1 = recv;  n = rmsnorm h.at1 w   (stage 1)
 *
 * Sends stand in the order in which values are made, receives of a region in the same order. The ranks' ring is
 * coloured: neighbouring links, and the two directions of a link, have different channels. So on each channel a rank
 * only sends to one other or only receives from one, in the order of micro-batches, and no order of slots can deadlock,
 * even with a backend that does one thing after another on each channel (tests/unit/test_pipeline.c).
 */
#include "pp.h"

#include <stdio.h>
#include <string.h>

struct crossing {
    const struct pp *pp;
    struct tn_program *program;
    int32_t axis;
};

static int same_rank(const struct crossing *c, int32_t a, int32_t b)
{
    return a % c->pp->size == b % c->pp->size;
}

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

/* The first user of v, after its maker, that is on another rank. */
static tn_op user_on(const struct crossing *c, tn_value v, int32_t maker, int32_t *stage)
{
    for (tn_op user = c->pp->read->user_next(c->program, v, 0); user;
         user = c->pp->read->user_next(c->program, v, user)) {
        struct tn_op_info info;
        pp_op(c->pp, c->program, user, &info);
        if (info.stage >= 0 && !same_rank(c, info.stage, maker) && info.opcode != TN_OP_STAGE_SUM &&
            info.opcode != TN_OP_BROADCAST && info.opcode != TN_OP_RECV) {
            *stage = info.stage;
            return user;
        }
    }
    return 0;
}

/* 1 to 6: by direction, and by the link from its earlier stage's rank on. In a ring of an odd size the last link has a
 * colour of its own. */
static int channel_of(const struct crossing *c, int32_t from, int32_t to)
{
    int32_t ranks = c->pp->size, link = (to > from ? from : to) % ranks;
    return (to > from ? 1 : 4) + (link == ranks - 1 && ranks % 2 ? 2 : link % 2);
}

static void use_there(const struct crossing *c, tn_value v, tn_value there, int32_t stage)
{
    for (tn_op user = c->pp->read->user_next(c->program, v, 0); user;
         user = c->pp->read->user_next(c->program, v, user)) {
        struct tn_op_info info;
        pp_op(c->pp, c->program, user, &info);
        for (uint32_t i = 0;
             info.stage >= 0 && same_rank(c, info.stage, stage) && info.opcode != TN_OP_RECV && i < info.n_in; i++)
            if (info.in[i] == v)
                c->pp->edit->set_input(c->program, user, i, there);
    }
}

/* 0: it cannot be. */
static int send_across(const struct crossing *c, tn_op maker, tn_value v, int32_t from, tn_op user, int32_t to)
{
    const struct tn_program_edit_api *edit = c->pp->edit;
    struct tn_op_info made, used;
    struct tn_value_info value;
    char name[256];
    pp_op(c->pp, c->program, maker, &made);
    pp_op(c->pp, c->program, user, &used);
    pp_value(c->pp, c->program, v, &value);
    const struct tn_attr channel = TN_ATTR_I("channel", channel_of(c, from, to));
    const struct tn_attr out[] = { TN_ATTR_I("axis", c->axis), TN_ATTR_I("peer", to % c->pp->size), channel };
    const struct tn_attr in[] = { TN_ATTR_I("axis", c->axis), TN_ATTR_I("peer", from % c->pp->size), channel };
    if (made.region == TN_REGION_FORWARD && to < from) {
        edit->error(c->program, user,
                    "it is on stage %d and uses %s, which a later stage, %d, makes in the forward pass", to, value.name,
                    from);
        return 0;
    }
    /* what the step region uses is complete only after the last micro-batch */
    int once = used.region == TN_REGION_STEP && made.region != TN_REGION_STEP;
    uint32_t region = used.region == TN_REGION_STEP ? TN_REGION_STEP : made.region;
    edit->at(c->program, region, made.layer, from);
    edit->insert_before(c->program,
                        once ? first_of(c, from, TN_REGION_STEP, maker) : c->pp->read->op_next(c->program, maker));
    snprintf(name, sizeof name, "%.230s.to%d", value.name, to);
    edit->op(c->program, TN_OP_SEND, name, &v, 1, out, 3);
    tn_op send = edit->last_op(c->program), first = first_of(c, to, region, send);
    edit->at(c->program, region, used.layer, to);
    edit->insert_before(c->program, first ? first : c->pp->read->op_next(c->program, send));
    snprintf(name, sizeof name, "%.230s.at%d", value.name, to);
    tn_value there = edit->op(c->program, TN_OP_RECV, name, &v, 1, in, 3);
    for (int32_t axis = 0; there && axis < c->pp->read->axis_count(c->program); axis++)
        edit->place(c->program, there, axis, c->pp->read->placement(c->program, v, axis));
    edit->insert_before(c->program, 0);
    if (there)
        use_there(c, v, there, to);
    return there != 0;
}

/* By value: 1 if an op of another rank uses it; so that few values are looked at. */
static void mark_crossings(const struct crossing *c, const int32_t *made_at, uint8_t *crosses)
{
    for (tn_op op = c->pp->read->op_next(c->program, 0); op; op = c->pp->read->op_next(c->program, op)) {
        struct tn_op_info info;
        pp_op(c->pp, c->program, op, &info);
        for (uint32_t i = 0; info.stage >= 0 && i < info.n_in; i++)
            crosses[info.in[i]] |= made_at[info.in[i]] >= 0 && !same_rank(c, made_at[info.in[i]], info.stage);
    }
}

static void send_all(const struct crossing *c, const uint8_t *crosses, tn_value values)
{
    for (tn_op op = c->pp->read->op_next(c->program, 0); op; op = c->pp->read->op_next(c->program, op)) {
        struct tn_op_info info;
        pp_op(c->pp, c->program, op, &info);
        for (uint32_t i = 0; info.stage >= 0 && i < info.n_out; i++) {
            int32_t to;
            tn_op user;
            int sent = info.out[i] <= values && crosses[info.out[i]];
            while (sent && (user = user_on(c, info.out[i], info.stage, &to)))
                sent = send_across(c, op, info.out[i], info.stage, user, to);
            pp_op(c->pp, c->program, op, &info);
        }
    }
}

tn_status pp_lower(void *self, struct tn_program *program)
{
    const struct pp *pp = self;
    struct crossing c = { .pp = pp, .program = program, .axis = pp->read->axis_find(program, "pp") };
    if (c.axis < 0 || pp->read->axis_size(program, c.axis) == 1)
        return TN_OK;
    tn_value values = 0;
    for (tn_value v = pp->read->value_next(program, 0); v; v = pp->read->value_next(program, v))
        values = v;
    int32_t *made_at = pp->host->alloc(pp->host, ((uint64_t)values + 1) * (sizeof *made_at + 1));
    if (!made_at)
        return pp->host->fail(pp->host, TN_NO_MEMORY, "no memory for what crosses between the stages");
    uint8_t *crosses = (uint8_t *)(made_at + values + 1);
    memset(crosses, 0, (size_t)values + 1);
    for (tn_value v = 0; v <= values; v++)
        made_at[v] = PP_NONE;
    for (tn_op op = pp->read->op_next(program, 0); op; op = pp->read->op_next(program, op)) {
        struct tn_op_info info;
        pp_op(pp, program, op, &info);
        for (uint32_t i = 0; i < info.n_out; i++)
            made_at[info.out[i]] = info.stage;
    }
    mark_crossings(&c, made_at, crosses);
    send_all(&c, crosses, values);
    pp->host->release(pp->host, made_at);
    if (pp->schedule == PP_ZERO_BUBBLE && pp_put_off_weights(pp, program) != TN_OK)
        return pp->host->fail(pp->host, TN_NO_MEMORY, "no memory to put weight gradients off");
    return TN_OK;
}
