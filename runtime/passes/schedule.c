/* Schedule: see passes.h.
 *
 *     region backward                            backward micro=0:  grad.w@0 = linear_dw(x@0, dy@0)
 *       grad.w' = linear_dw(x, dy, grad.w)  =>   backward micro=1:  grad.w@1 = linear_dw(x@1, dy@1, grad.w@0)
 *     region step                                step:              g.w = sync(grad.w@1)
 *       g.w = sync(grad.w')
 *
 * The first micro-batch has nothing to add to, so that accumulators need no zeros. */
#include "passes/passes.h"
#include "passes/timeline.h"
#include "program/program_text.h"

#include <stdlib.h>
#include <string.h>

struct scheduler {
    const struct tn_program *p;
    struct tn_program *flat;
    int32_t micro_batches;
    int32_t stages;   /* the axis of stages if there are slots, or -1 */
    tn_value *once;   /* by value: its only copy */
    tn_value *micro;  /* by micro-batch and value */
    tn_value *root;   /* by value: the empty accumulator that its chain of updates starts at, or 0 */
    tn_value *latest; /* by root: the copy that holds what was accumulated so far */
    tn_value *used;   /* by value: 1 if an op has it among its inputs */
    uint32_t *runs;   /* by op: how often it ran */
};

int tn_op_is_comm(uint32_t opcode)
{
    switch (opcode) {
    case TN_OP_ALL_REDUCE:
    case TN_OP_ALL_GATHER:
    case TN_OP_REDUCE_SCATTER:
    case TN_OP_ALL_TO_ALL:
    case TN_OP_BROADCAST:
    case TN_OP_SEND:
    case TN_OP_RECV:
    case TN_OP_STAGE_SUM: return 1;
    default: return 0;
    }
}

int tn_op_is_copy(uint32_t opcode)
{
    return opcode == TN_OP_OFFLOAD || opcode == TN_OP_FETCH;
}

int tn_op_is_free(uint32_t opcode)
{
    return opcode == TN_OP_SYNC || opcode == TN_OP_VIEW || opcode == TN_OP_PACK;
}

static tn_value copy_value(struct scheduler *s, tn_value v, int32_t micro)
{
    const struct tn_value_data *from = &s->p->values[v];
    const char *name =
        micro < 0 || s->micro_batches == 1 ? from->name : tn_arena_printf(&s->flat->arena, "%s@%d", from->name, micro);
    tn_value copy = tn_value_new(s->flat, from->kind, name, from->dtype, from->rank, from->shape);
    struct tn_value_data *to = &s->flat->values[copy];
    const char *kept = to->name;
    *to = *from; /* strings stay the source program's, which outlives the flat one's passes */
    to->name = kept;
    to->def = 0;
    to->like = from->like ? s->once[from->like] : 0;
    to->grad_of = 0;
    return copy;
}

/* The copy of input v for an op of this region and micro-batch. */
static tn_value input_of(struct scheduler *s, tn_value v, uint32_t region, int32_t micro)
{
    if (v == 0)
        return 0;
    const struct tn_value_data *value = &s->p->values[v];
    if (s->root[v] == v || (s->root[v] && !tn_region_per_micro(region)))
        return s->latest[s->root[v]];
    int made_per_micro = value->def ? tn_region_per_micro(s->p->ops[value->def].region)
                                    : value->kind == TN_KIND_INPUT && value->rank > 0 && tn_region_per_micro(region);
    if (!made_per_micro) {
        if (!s->once[v])
            s->once[v] = copy_value(s, v, -1);
        return s->once[v];
    }
    tn_value *slot = &s->micro[(size_t)(micro < 0 ? s->micro_batches - 1 : micro) * (s->p->n_values + 1) + v];
    if (!*slot)
        *slot = copy_value(s, v, micro);
    return *slot;
}

static void copy_op(struct scheduler *s, tn_op op, int32_t micro)
{
    const struct tn_op_data *from = &s->p->ops[op];
    tn_value in[64], out[TN_OP_MOST_FIXED];
    tn_value *ins = from->n_in <= 64 ? in : tn_arena_alloc(&s->flat->arena, from->n_in * sizeof *ins);
    uint32_t n_in = from->n_in;
    for (uint32_t i = 0; i < n_in; i++)
        ins[i] = input_of(s, from->in[i], from->region, micro);
    while (n_in > 0 && ins[n_in - 1] == 0)
        n_in--;
    for (uint32_t i = 0; i < from->n_out; i++) {
        out[i] = copy_value(s, from->out[i], micro);
        if (micro >= 0)
            s->micro[(size_t)micro * (s->p->n_values + 1) + from->out[i]] = out[i];
        else
            s->once[from->out[i]] = out[i];
        if (s->root[from->out[i]])
            s->latest[s->root[from->out[i]]] = out[i];
    }
    s->flat->at_region = from->region;
    s->flat->at_layer = from->layer;
    s->flat->at_stage = from->stage;
    const char *name =
        micro < 0 || s->micro_batches == 1 ? from->name : tn_arena_printf(&s->flat->arena, "%s@%d", from->name, micro);
    tn_op copy = tn_op_raw(s->flat, from->opcode, name, ins, n_in, out, from->n_out, from->attrs, from->n_attrs);
    s->flat->ops[copy].micro = micro;
    s->flat->ops[copy].tag = from->tag;
    if (from->opcode == TN_OP_DROPOUT) { /* another mask for each micro-batch */
        const struct tn_attr attr = TN_ATTR_I("micro", micro < 0 ? 0 : micro);
        tn_attr_set(s->flat, copy, &attr);
    }
}

/* What other stages send to this one. */
static int is_arrival(const struct scheduler *s, tn_op op)
{
    return s->p->ops[op].opcode == TN_OP_RECV && tn_region_per_micro(s->p->ops[op].region) &&
           tn_attr_i(s->p, op, "axis", 0) == s->stages;
}

/* stage -1: of all stages. `all`: those of no stage as well. */
static void run_region(struct scheduler *s, uint32_t region, int32_t stage, int all, int32_t micro)
{
    TN_EACH_OP(s->p, op) {
        const struct tn_op_data *o = &s->p->ops[op];
        if (o->region != region || (o->stage < 0 ? !all : stage >= 0 && o->stage != stage) || is_arrival(s, op))
            continue;
        copy_op(s, op, micro);
        s->runs[op]++;
    }
}

static void start_arrivals(struct scheduler *s, const struct tn_slot *slot)
{
    TN_EACH_OP(s->p, op) {
        const struct tn_op_data *o = &s->p->ops[op];
        if (o->region != slot->region || o->stage != slot->stage || !is_arrival(s, op))
            continue;
        copy_op(s, op, slot->micro);
        s->runs[op]++;
    }
}

/* What a slot needs of other stages is under way while the slot before it runs. All of it stays in the order of the
 * slots, in which the others send it. */
static void run_slots(struct scheduler *s, const struct tn_slot *slots, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t later = i + 1;
        while (later < n && (slots[later].region != slots[i].region || slots[later].micro != slots[i].micro))
            later++;
        if (i == 0)
            start_arrivals(s, &slots[i]);
        if (i + 1 < n)
            start_arrivals(s, &slots[i + 1]);
        run_region(s, slots[i].region, slots[i].stage, later == n, slots[i].micro);
    }
}

static void run_in_turn(struct scheduler *s)
{
    for (int32_t m = 0; m < s->micro_batches; m++) {
        run_region(s, TN_REGION_FORWARD, -1, 1, m);
        run_region(s, TN_REGION_BACKWARD, -1, 1, m);
        run_region(s, TN_REGION_WEIGHT, -1, 1, m);
    }
}

/* A plugin's slots might leave something out. */
static void check_runs(const struct scheduler *s)
{
    TN_EACH_OP(s->p, op) {
        const struct tn_op_data *o = &s->p->ops[op];
        if (!tn_region_per_micro(o->region) || s->runs[op] == (uint32_t)s->micro_batches)
            continue;
        tn_program_error(s->flat, 0,
                         "the schedule runs region %s of stage %d %u times (%s), for %d micro-batches; it needs a slot "
                         "for each",
                         tn_region_name(o->region), o->stage, s->runs[op], o->name, s->micro_batches);
        return;
    }
}

/* Chains of in-place updates that start at an accumulator. */
static void find_roots(struct scheduler *s)
{
    for (tn_value v = 1; v <= s->p->n_values; v++)
        if (s->p->values[v].kind == TN_KIND_ACCUMULATOR && !s->p->values[v].def)
            s->root[v] = v;
    TN_EACH_OP(s->p, op) {
        const struct tn_op_data *o = &s->p->ops[op];
        const struct tn_op_kind *kind = tn_op_kind(o->opcode);
        for (uint32_t i = 0; tn_region_per_micro(o->region) && i < o->n_out; i++)
            if (kind->must_alias[i] >= 0 && (uint32_t)kind->must_alias[i] < o->n_in &&
                s->root[o->in[kind->must_alias[i]]])
                s->root[o->out[i]] = s->root[o->in[kind->must_alias[i]]];
    }
}

/* Each op of a micro-batch once for each, with what it makes. */
static void reserve(const struct scheduler *s)
{
    size_t values = s->p->n_values, ops = 0;
    TN_EACH_OP(s->p, op) {
        const struct tn_op_data *o = &s->p->ops[op];
        size_t times = tn_region_per_micro(o->region) ? (size_t)s->micro_batches : 1;
        values += times * o->n_out;
        ops += times;
    }
    tn_program_reserve(s->flat, values, ops);
}

static void find_used(struct scheduler *s)
{
    TN_EACH_OP(s->p, op)
        for (uint32_t i = 0; i < s->p->ops[op].n_in; i++)
            s->used[s->p->ops[op].in[i]] = 1;
}

static int may_hoist(uint32_t opcode)
{
    if (opcode == TN_OP_SEND || opcode == TN_OP_RECV)
        return 0; /* messages between two ranks keep their order */
    return tn_op_is_comm(opcode) || tn_op_is_free(opcode) || opcode == TN_OP_SPLIT_BLOCKS;
}

static int may_wait_for(uint32_t region)
{
    return region == TN_REGION_BACKWARD || region == TN_REGION_WEIGHT;
}

/* Communication of the step region starts as soon as the last op it needs has run. */
static void hoist(struct tn_program *flat)
{
    int64_t n = 0, *turn = calloc((size_t)flat->n_ops + 1, sizeof *turn); /* by op: of what it starts with, from 1 */
    uint8_t *hoisted = calloc((size_t)flat->n_ops + 1, 1);
    if (!turn || !hoisted)
        goto end; /* later, not wrong */
    TN_EACH_OP(flat, op)
        turn[op] = ++n;
    for (tn_op op = flat->first, next; op; op = next) {
        const struct tn_op_data *o = &flat->ops[op];
        next = o->next;
        if (o->region != TN_REGION_STEP || !may_hoist(o->opcode))
            continue;
        tn_op anchor = 0;
        for (uint32_t i = 0; i < o->n_in; i++) {
            tn_op def = o->in[i] ? flat->values[o->in[i]].def : 0;
            if (def && (!anchor || turn[def] >= turn[anchor]))
                anchor = def;
        }
        if (!anchor || (!may_wait_for(flat->ops[anchor].region) && !hoisted[anchor]))
            continue;
        tn_op before = flat->ops[anchor].next;
        while (before && hoisted[before])
            before = flat->ops[before].next;
        if (before == op)
            before = next;
        tn_op_move(flat, op, before);
        turn[op] = turn[anchor];
        hoisted[op] = 1;
    }
end:
    free(hoisted);
    free(turn);
}

/* Slots come from a plugin: each must name a micro-batch region and a micro-batch that there is. */
static int slots_fit(struct tn_program *flat, int32_t micro_batches, const struct tn_slot *slots, uint32_t n_slots)
{
    for (uint32_t i = 0; slots && i < n_slots; i++)
        if (!tn_region_per_micro(slots[i].region) || slots[i].micro < 0 || slots[i].micro >= micro_batches ||
            slots[i].stage < 0) {
            tn_program_error(flat, 0,
                             "slot %u of the schedule is region %u, stage %d, micro-batch %d; regions are forward, "
                             "backward and weight, micro-batches 0 to %d",
                             i, slots[i].region, slots[i].stage, slots[i].micro, micro_batches - 1);
            return 0;
        }
    return 1;
}

void tn_schedule(const struct tn_program *p, struct tn_program *flat, int32_t micro_batches,
                 const struct tn_slot *slots, uint32_t n_slots)
{
    size_t n = (size_t)p->n_values + 1;
    memcpy(flat->parts, p->parts, sizeof flat->parts);
    flat->n_parts = p->n_parts;
    if (!slots_fit(flat, micro_batches, slots, n_slots))
        return;
    struct scheduler s = {
        .p = p, .flat = flat, .micro_batches = micro_batches, .stages = slots ? tn_stage_axis(p->mesh) : -1
    };
    tn_value *tables = calloc(n * (size_t)(micro_batches + 4) + p->n_ops + 1, sizeof *tables);
    if (!tables) {
        tn_program_error(flat, 0, "out of memory for %d micro-batches", micro_batches);
        return;
    }
    s.once = tables;
    s.root = tables + n;
    s.latest = tables + 2 * n;
    s.used = tables + 3 * n;
    s.micro = tables + 4 * n;
    s.runs = s.micro + n * (size_t)micro_batches;
    reserve(&s);
    find_roots(&s);
    find_used(&s);
    for (tn_value v = 1; v <= p->n_values; v++) /* persistent memory of this rank's ops, in the order of the model */
        if (s.used[v] && !p->values[v].def &&
            (p->values[v].kind == TN_KIND_PARAM || p->values[v].kind == TN_KIND_STATE))
            s.once[v] = copy_value(&s, v, -1);
    run_region(&s, TN_REGION_PROLOGUE, -1, 1, -1);
    if (slots)
        run_slots(&s, slots, n_slots);
    else
        run_in_turn(&s);
    run_region(&s, TN_REGION_STEP, -1, 1, -1);
    check_runs(&s);
    free(tables);
    hoist(flat);
}
