/* pp: params that two ranks use (tied embeddings).
 *
 * The later one gets a copy "w#1" with states of its own, and its gradients an accumulator of their own. Each rank
 * adds both gradients, in the same order, so that the copies stay equal to the bit; lower.c sees them cross. The norm
 * counts the first copy's gradient alone.
 *
 *     a' = linear_dw .. a   (stage 1)        a1' = linear_dw .. a1   (stage 1)
 *     a" = embedding_dw .. a' (stage 0)  =>  a0' = embedding_dw .. a0 (stage 0)
 *     g = sync a"                            g = sync (add a0' a1')  (stage 0), g1 = sync (add a0' a1')  (stage 1)
 */
#include "pp.h"

#include <stdio.h>

struct tie {
    struct staging *s;
    tn_value param, copy;
    tn_value sum, copy_sum; /* their gradients so far */
    int32_t stage, copy_stage;
};

/* v's copy: "v#1". */
static tn_value copy_value(const struct tie *t, tn_value v, tn_value like)
{
    struct tn_value_info info;
    char name[256];
    pp_value(t->s->pp, t->s->program, v, &info);
    snprintf(name, sizeof name, "%.240s#1", info.name);
    tn_value copy = t->s->pp->edit->value_copy(t->s->program, v, name);
    if (like)
        t->s->pp->edit->set_kind(t->s->program, copy, info.kind, like);
    return copy;
}

/* Uses of v by ops of the copy's rank, the step's not counted, become uses of `to`. */
static void use_instead(const struct tie *t, tn_value v, tn_value to)
{
    const struct tn_program_api *read = t->s->pp->read;
    for (tn_op user = read->user_next(t->s->program, v, 0); user; user = read->user_next(t->s->program, v, user)) {
        struct tn_op_info info;
        pp_op(t->s->pp, t->s->program, user, &info);
        for (uint32_t i = 0; i < info.n_in; i++)
            if (info.in[i] == v && (info.region == TN_REGION_FORWARD || info.region == TN_REGION_BACKWARD) &&
                pp_same_rank(t->s, t->s->stage[user], t->copy_stage))
                t->s->pp->edit->set_input(t->s->program, user, i, to);
    }
}

/* Uses by ops of the copy's rank become uses of the copy, those of a cast of a second cast. */
static void share_uses(const struct tie *t)
{
    const struct tn_program_api *read = t->s->pp->read;
    const struct tn_program_edit_api *edit = t->s->pp->edit;
    use_instead(t, t->param, t->copy);
    for (tn_op user = read->user_next(t->s->program, t->param, 0), next; user; user = next) {
        struct tn_op_info info, copied;
        struct tn_value_info cast;
        char name[256];
        next = read->user_next(t->s->program, t->param, user);
        pp_op(t->s->pp, t->s->program, user, &info);
        if (info.region != TN_REGION_PROLOGUE)
            continue;
        pp_value(t->s->pp, t->s->program, info.out[0], &cast);
        snprintf(name, sizeof name, "%.240s#1", cast.name);
        edit->at(t->s->program, TN_REGION_PROLOGUE, info.layer, t->copy_stage);
        edit->insert_before(t->s->program, read->op_next(t->s->program, user));
        tn_op copy = edit->op_copy(t->s->program, user, name);
        edit->insert_before(t->s->program, 0);
        edit->set_input(t->s->program, copy, 0, t->copy);
        pp_set_stage(t->s, copy, t->copy_stage);
        pp_op(t->s->pp, t->s->program, user, &info);
        pp_op(t->s->pp, t->s->program, copy, &copied);
        edit->set_kind(t->s->program, copied.out[0], cast.kind, t->copy);
        use_instead(t, info.out[0], copied.out[0]);
        if (!read->user_next(t->s->program, info.out[0], 0))
            edit->op_remove(t->s->program, user);
    }
}

/* Whether op adds to the param's gradient; *at: which input it adds to. */
static int accumulates(const struct tie *t, const struct tn_op_info *op, uint32_t *at)
{
    for (uint32_t i = 0; op->region == TN_REGION_BACKWARD && i < op->n_in; i++) {
        struct tn_value_info in;
        if (!op->in[i])
            continue;
        pp_value(t->s->pp, t->s->program, op->in[i], &in);
        *at = i;
        if (in.kind == TN_KIND_ACCUMULATOR && (in.like == t->param || in.like == t->copy))
            return 1;
    }
    return 0;
}

static void share_gradient(struct tie *t, tn_value acc)
{
    const struct tn_program_edit_api *edit = t->s->pp->edit;
    t->sum = acc;
    t->copy_sum = copy_value(t, acc, t->copy);
    for (tn_op op = t->s->pp->read->op_next(t->s->program, 0); op; op = t->s->pp->read->op_next(t->s->program, op)) {
        struct tn_op_info info;
        uint32_t at;
        pp_op(t->s->pp, t->s->program, op, &info);
        if (!accumulates(t, &info, &at))
            continue;
        int later = pp_same_rank(t->s, t->s->stage[op], t->copy_stage);
        edit->set_input(t->s->program, op, at, later ? t->copy_sum : t->sum);
        for (uint32_t i = 0; i < info.n_out; i++) {
            struct tn_value_info out;
            pp_value(t->s->pp, t->s->program, info.out[i], &out);
            if (out.kind != TN_KIND_ACCUMULATOR || out.like != t->param)
                continue;
            *(later ? &t->copy_sum : &t->sum) = info.out[i];
            if (later)
                edit->set_kind(t->s->program, info.out[i], TN_KIND_ACCUMULATOR, t->copy);
        }
    }
}

/* Both gradients added on `stage`, before `before`. */
static tn_value add_both(const struct tie *t, int32_t stage, tn_op before)
{
    const struct tn_program_edit_api *edit = t->s->pp->edit;
    struct tn_value_info param;
    char name[256];
    pp_value(t->s->pp, t->s->program, t->param, &param);
    snprintf(name, sizeof name, "%.230s.both%d", param.name, stage);
    const tn_value both[] = { t->sum, t->copy_sum };
    edit->at(t->s->program, TN_REGION_STEP, -1, stage);
    edit->insert_before(t->s->program, before);
    tn_value sum = edit->op(t->s->program, TN_OP_ADD, name, both, 2, NULL, 0);
    pp_set_stage(t->s, edit->last_op(t->s->program), stage);
    edit->insert_before(t->s->program, 0);
    return sum;
}

/* A second op like `op` right behind it, for the copy; returns it. */
static tn_op copy_op(const struct tie *t, tn_op op)
{
    const struct tn_program_edit_api *edit = t->s->pp->edit;
    struct tn_op_info info, copied;
    struct tn_value_info out;
    char name[256];
    pp_op(t->s->pp, t->s->program, op, &info);
    pp_value(t->s->pp, t->s->program, info.out[0], &out);
    snprintf(name, sizeof name, "%.240s#1", out.name);
    edit->at(t->s->program, TN_REGION_STEP, info.layer, t->copy_stage);
    edit->insert_before(t->s->program, t->s->pp->read->op_next(t->s->program, op));
    tn_op copy = edit->op_copy(t->s->program, op, name);
    edit->insert_before(t->s->program, 0);
    pp_op(t->s->pp, t->s->program, op, &info);
    pp_op(t->s->pp, t->s->program, copy, &copied);
    for (uint32_t i = 0; i < info.n_out; i++) {
        pp_value(t->s->pp, t->s->program, info.out[i], &out);
        edit->set_kind(t->s->program, copied.out[i], out.kind, t->copy);
    }
    pp_set_stage(t->s, copy, t->copy_stage);
    return copy;
}

/* sync and update of the param, once more for the copy. */
static void share_step(const struct tie *t)
{
    const struct tn_program_edit_api *edit = t->s->pp->edit;
    const struct tn_program_api *read = t->s->pp->read;
    tn_value g = 0, copy_g = 0;
    for (tn_op op = read->op_next(t->s->program, 0), next; op; op = next) {
        struct tn_op_info info;
        struct tn_value_info out;
        next = read->op_next(t->s->program, op);
        pp_op(t->s->pp, t->s->program, op, &info);
        if (info.region != TN_REGION_STEP || info.n_out == 0)
            continue;
        pp_value(t->s->pp, t->s->program, info.out[0], &out);
        if (out.like != t->param)
            continue;
        tn_op copy = copy_op(t, op);
        pp_op(t->s->pp, t->s->program, op, &info);
        if (info.opcode == TN_OP_SYNC) {
            g = info.out[0];
            copy_g = edit->output(t->s->program, copy, 0);
            tn_value both = add_both(t, t->stage, op), copy_both = add_both(t, t->copy_stage, op);
            edit->set_input(t->s->program, op, 0, both);
            edit->set_input(t->s->program, copy, 0, copy_both);
            continue;
        }
        for (uint32_t i = 0; i < info.n_in; i++) {
            struct tn_value_info in;
            pp_value(t->s->pp, t->s->program, info.in[i], &in);
            if (info.in[i] == t->param)
                edit->set_input(t->s->program, copy, i, t->copy);
            else if (info.in[i] == g)
                edit->set_input(t->s->program, copy, i, copy_g);
            else if (in.kind == TN_KIND_STATE)
                edit->set_input(t->s->program, copy, i, copy_value(t, info.in[i], t->copy));
        }
    }
}

/* What lies between the first and the last user has no copy of its own. */
static int only_two(const struct tie *t)
{
    const struct tn_program_api *read = t->s->pp->read;
    for (tn_op user = read->user_next(t->s->program, t->param, 0); user;
         user = read->user_next(t->s->program, t->param, user)) {
        struct tn_op_info info;
        pp_op(t->s->pp, t->s->program, user, &info);
        int32_t stage = t->s->stage[user];
        if (info.region != TN_REGION_FORWARD || pp_same_rank(t->s, stage, t->stage) ||
            pp_same_rank(t->s, stage, t->copy_stage))
            continue;
        struct tn_value_info param;
        pp_value(t->s->pp, t->s->program, t->param, &param);
        t->s->pp->edit->error(t->s->program, user,
                              "stages %d, %d and %d use param %s; pp can share one between two ranks", t->stage, stage,
                              t->copy_stage, param.name);
        return 0;
    }
    return 1;
}

static tn_value accumulator_of(const struct staging *s, tn_value param)
{
    for (tn_value v = s->pp->read->value_next(s->program, 0); v; v = s->pp->read->value_next(s->program, v)) {
        struct tn_value_info info;
        pp_value(s->pp, s->program, v, &info);
        if (info.kind == TN_KIND_ACCUMULATOR && !info.def && info.like == param)
            return v;
    }
    return 0;
}

void pp_copy_tied(struct staging *s)
{
    tn_value last_value = 0;
    for (tn_value v = s->pp->read->value_next(s->program, 0); v; v = s->pp->read->value_next(s->program, v))
        last_value = v;
    for (tn_value v = s->pp->read->value_next(s->program, 0); v && v <= last_value;
         v = s->pp->read->value_next(s->program, v)) {
        struct tn_value_info info;
        struct tie t = { .s = s, .param = v };
        pp_value(s->pp, s->program, v, &info);
        if (info.kind != TN_KIND_PARAM || info.def)
            continue;
        t.stage = pp_stage_of_param(s, v, &t.copy_stage);
        if (t.stage < 0 || pp_same_rank(s, t.stage, t.copy_stage) || !only_two(&t))
            continue;
        t.copy = copy_value(&t, v, 0);
        pp_note_use(s, t.copy, t.copy_stage);
        share_uses(&t);
        tn_value acc = accumulator_of(s, v);
        if (acc) {
            share_gradient(&t, acc);
            share_step(&t);
        }
    }
}
