/* pp.place: a stage for every op.
 *
 * Requires: a program with gradients. Establishes: forward and backward ops have their layer's stage; what stands
 * before the first layer is with it, what stands behind the last with that; a param's casts and updates are where it is
 * used. The few values that all stages need are made by ops that all run (stage -1) from
 *     the norm     sumsq of each stage's gradients, then stage_sum
 *     outputs      broadcast from the stage that makes them
 * A param that two ranks use (tied embeddings) gets a second copy: tied.c.
 */
#include "pp.h"

#include <stdio.h>
#include <string.h>

static int32_t stage_of_layer(const struct staging *s, int32_t layer)
{
    int32_t stage = 0;
    while (stage + 1 < s->stages && layer >= s->first[stage + 1])
        stage++;
    return stage;
}

void pp_set_stage(struct staging *s, tn_op op, int32_t stage)
{
    s->stage[op] = stage;
    s->pp->edit->set_stage(s->program, op, stage);
}

int32_t pp_stage_of_value(const struct staging *s, tn_value v)
{
    struct tn_value_info info;
    pp_value(s->pp, s->program, v, &info);
    return info.def ? s->stage[info.def] : PP_NONE;
}

int32_t pp_stage_of_param(const struct staging *s, tn_value param, int32_t *last)
{
    *last = s->used_last[param];
    return s->used_first[param];
}

void pp_note_use(struct staging *s, tn_value v, int32_t stage)
{
    if (s->used_first[v] == PP_NONE || stage < s->used_first[v])
        s->used_first[v] = stage;
    if (s->used_last[v] == PP_NONE || stage > s->used_last[v])
        s->used_last[v] = stage;
}

/* Once, for to ask for the users of each param by itself takes too long in a deep model. */
static void note_uses(struct staging *s)
{
    for (tn_op op = s->pp->read->op_next(s->program, 0); op; op = s->pp->read->op_next(s->program, op)) {
        struct tn_op_info info, maker;
        pp_op(s->pp, s->program, op, &info);
        for (uint32_t i = 0; info.region == TN_REGION_FORWARD && i < info.n_in; i++) {
            struct tn_value_info value;
            pp_value(s->pp, s->program, info.in[i], &value);
            pp_note_use(s, info.in[i], s->stage[op]);
            if (!value.def)
                continue;
            pp_op(s->pp, s->program, value.def, &maker);
            if (maker.opcode == TN_OP_CAST && maker.region == TN_REGION_PROLOGUE)
                pp_note_use(s, maker.in[0], s->stage[op]);
        }
    }
}

static int32_t stage_of_compute(struct staging *s, const struct tn_op_info *op)
{
    if (op->layer >= 0) {
        s->seen_layer |= op->region == TN_REGION_FORWARD;
        return stage_of_layer(s, op->layer);
    }
    if (op->region == TN_REGION_FORWARD)
        return s->seen_layer ? s->stages - 1 : 0;
    if (op->source)
        return s->stage[op->source];
    for (uint32_t i = 0; i < op->n_in; i++)
        if (op->in[i] && pp_stage_of_value(s, op->in[i]) >= 0)
            return pp_stage_of_value(s, op->in[i]);
    return s->stages - 1;
}

static void place_compute(struct staging *s)
{
    s->seen_layer = 0;
    for (tn_op op = s->pp->read->op_next(s->program, 0); op; op = s->pp->read->op_next(s->program, op)) {
        struct tn_op_info info;
        pp_op(s->pp, s->program, op, &info);
        if (info.region == TN_REGION_FORWARD || info.region == TN_REGION_BACKWARD)
            pp_set_stage(s, op, stage_of_compute(s, &info));
    }
}

/* FLOPs of each layer, and of what stands before the first and behind the last; then the cut of these. */
static tn_status cut_by_cost(struct staging *s)
{
    const struct tn_host *host = s->pp->host;
    double *cost = host->alloc(host, (uint64_t)s->layers * sizeof *cost), before = 0, after = 0;
    if (!cost)
        return TN_NO_MEMORY;
    memset(cost, 0, (size_t)s->layers * sizeof *cost);
    for (tn_op op = s->pp->read->op_next(s->program, 0); op; op = s->pp->read->op_next(s->program, op)) {
        struct tn_op_info info;
        double flops, bytes;
        pp_op(s->pp, s->program, op, &info);
        if (info.region != TN_REGION_FORWARD && info.region != TN_REGION_BACKWARD)
            continue;
        s->pp->read->op_cost(s->program, op, &flops, &bytes);
        *(info.layer >= 0 ? &cost[info.layer] : s->stage[op] == 0 ? &before : &after) += flops;
    }
    tn_status status = pp_cut_by_cost(host, cost, s->layers, before, after, s->stages, s->first);
    host->release(host, cost);
    return status;
}

/* Casts and updates are with their param; what is left is made everywhere, or by a stage's values. */
static void place_rest(struct staging *s)
{
    for (tn_op op = s->pp->read->op_next(s->program, 0); op; op = s->pp->read->op_next(s->program, op)) {
        struct tn_op_info info;
        struct tn_value_info out = { 0 };
        pp_op(s->pp, s->program, op, &info);
        if (info.region != TN_REGION_PROLOGUE && info.region != TN_REGION_STEP)
            continue;
        if (info.n_out)
            pp_value(s->pp, s->program, info.out[0], &out);
        int32_t stage = PP_ALL, last;
        if (out.like)
            stage = pp_stage_of_param(s, out.like, &last);
        else if (info.region == TN_REGION_STEP && info.n_in && pp_stage_of_value(s, info.in[0]) >= 0 &&
                 info.opcode != TN_OP_SUMSQ)
            stage = pp_stage_of_value(s, info.in[0]);
        pp_set_stage(s, op, stage == PP_NONE ? PP_ALL : stage);
    }
}

/* sumsq of those of op's inputs that ops of the rank's stages make; 0 if there are none. group: room for all inputs. */
static tn_value sum_of_rank(struct staging *s, tn_op op, int32_t rank, tn_value *group)
{
    const struct tn_program_edit_api *edit = s->pp->edit;
    struct tn_op_info info;
    char name[64];
    uint32_t n = 0;
    pp_op(s->pp, s->program, op, &info);
    for (uint32_t i = 0; i < info.n_in; i++)
        if (pp_same_rank(s, pp_stage_of_value(s, info.in[i]), rank))
            group[n++] = info.in[i];
    if (n == 0)
        return 0;
    edit->at(s->program, TN_REGION_STEP, -1, rank);
    snprintf(name, sizeof name, "grad.sumsq.stage%d", rank);
    return edit->op(s->program, TN_OP_SUMSQ, name, group, n, NULL, 0);
}

/* The norm's sum over all gradients becomes one sum a rank and their sum. */
static tn_status split_norm(struct staging *s, tn_op op)
{
    const struct tn_host *host = s->pp->host;
    const struct tn_program_edit_api *edit = s->pp->edit;
    struct tn_op_info info;
    uint32_t n_terms = 0;
    pp_op(s->pp, s->program, op, &info);
    tn_value *group = host->alloc(host, ((uint64_t)info.n_in + (uint64_t)s->ranks) * sizeof *group);
    if (!group)
        return TN_NO_MEMORY;
    tn_value *terms = group + info.n_in;
    edit->insert_before(s->program, op);
    for (int32_t rank = 0; rank < s->ranks; rank++) {
        tn_value term = sum_of_rank(s, op, rank, group);
        if (term)
            terms[n_terms++] = term;
    }
    const struct tn_attr axis = TN_ATTR_I("axis", s->axis);
    edit->at(s->program, TN_REGION_STEP, -1, PP_ALL);
    tn_value sum = edit->op(s->program, TN_OP_STAGE_SUM, "grad.sumsq.all", terms, n_terms, &axis, 1);
    edit->insert_before(s->program, 0);
    pp_op(s->pp, s->program, op, &info);
    edit->replace_uses(s->program, info.out[0], sum, 0);
    edit->op_remove(s->program, op);
    host->release(host, group);
    return TN_OK;
}

/* What the host reads is broadcast from the stage that makes it. */
static void share_output(struct staging *s, tn_op op, tn_value v)
{
    const struct tn_program_edit_api *edit = s->pp->edit;
    struct tn_op_info info;
    struct tn_value_info out;
    char name[256];
    pp_op(s->pp, s->program, op, &info);
    pp_value(s->pp, s->program, v, &out);
    const struct tn_attr attrs[] = { TN_ATTR_I("axis", s->axis), TN_ATTR_I("root", s->stage[op] % s->ranks) };
    edit->at(s->program, info.region, info.layer, PP_ALL);
    edit->insert_before(s->program, s->pp->read->op_next(s->program, op));
    snprintf(name, sizeof name, "%.240s.shared", out.name);
    tn_value shared = edit->op(s->program, TN_OP_BROADCAST, name, &v, 1, attrs, 2);
    edit->insert_before(s->program, 0);
    edit->set_flags(s->program, shared, TN_VALUE_OUTPUT);
    edit->clear_flags(s->program, v, TN_VALUE_OUTPUT);
}

static tn_status share(struct staging *s)
{
    tn_status status = TN_OK;
    const struct tn_program_api *read = s->pp->read;
    for (tn_op op = read->op_next(s->program, 0), next; op; op = next) {
        struct tn_op_info info;
        next = read->op_next(s->program, op);
        pp_op(s->pp, s->program, op, &info);
        if (info.opcode == TN_OP_SUMSQ) {
            status = split_norm(s, op);
            if (status != TN_OK)
                break;
            continue;
        }
        for (uint32_t i = 0; s->stage[op] >= 0 && i < info.n_out; i++) {
            struct tn_value_info out;
            pp_op(s->pp, s->program, op, &info);
            pp_value(s->pp, s->program, info.out[i], &out);
            if (out.flags & TN_VALUE_OUTPUT)
                share_output(s, op, info.out[i]);
        }
    }
    return status;
}

static tn_status place_all(struct staging *s)
{
    place_compute(s);
    if (pp_is_by_cost(s->pp)) {
        tn_status status = cut_by_cost(s);
        if (status != TN_OK)
            return status;
        place_compute(s);
    }
    note_uses(s);
    pp_copy_tied(s);
    place_rest(s);
    return share(s);
}

tn_status pp_place(void *self, struct tn_program *program)
{
    const struct pp *pp = self;
    const struct tn_program_api *read = pp->read;
    int32_t axis = read->axis_find(program, "pp"), stages = pp_stages(pp, pp->size);
    int64_t layers = pp->facts->get(pp->host, "layers", 0);
    if (axis < 0)
        return pp->host->fail(pp->host, TN_ERROR, "the mesh has no axis pp");
    if (read->axis_size(program, axis) == 1)
        return TN_OK;
    tn_op last = 0, values = 0;
    for (tn_op op = read->op_next(program, 0); op; op = read->op_next(program, op))
        last = op > last ? op : last;
    for (tn_value v = read->value_next(program, 0); v; v = read->value_next(program, v))
        values = v;
    struct staging *s = pp->host->alloc(pp->host, sizeof *s);
    uint64_t room = 4 * (uint64_t)values + 64; /* copies of shared params add a few values and ops each */
    int32_t *stage = pp->host->alloc(pp->host, ((uint64_t)last + 3 * room + 1) * sizeof *stage);
    tn_status status = s && stage ? TN_OK : TN_NO_MEMORY;
    if (status == TN_OK) {
        *s = (struct staging){ .pp = pp,
                               .program = program,
                               .axis = axis,
                               .ranks = pp->size,
                               .stages = stages,
                               .layers = (int32_t)layers,
                               .stage = stage + 2 * room,
                               .used_first = stage,
                               .used_last = stage + room };
        for (uint64_t i = 0; i < 2 * room; i++)
            stage[i] = PP_NONE;
        status = pp_cut(pp, stages, layers, s->first) ? place_all(s) : TN_INVALID;
    }
    pp->host->release(pp->host, stage);
    pp->host->release(pp->host, s);
    if (status != TN_OK)
        return pp->host->fail(pp->host, status,
                              status == TN_INVALID ? "the layers do not add up" : "no memory for the stages");
    return TN_OK;
}
