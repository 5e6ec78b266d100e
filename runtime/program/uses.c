/* Uses: which ops read a value, without a walk through the program.
 *
 * Every value has a chain of ops. Each op that has the value among its inputs is in it; so may ops be that had it once,
 * or that were removed, and an op may be in it twice: who follows a chain looks at the op. So a chain needs care only
 * where an input is set, all of which is done here or by the making of an op. Which of two ops comes first says
 * their `order`, which link_before in program.c keeps. */
#include "program/program.h"

struct use {
    tn_op op;
    uint32_t next; /* number in use, 0: the last one */
};

struct tn_uses {
    uint32_t *first; /* by value: number in use, 0: nobody */
    struct use *use; /* [1 .. n] */
    uint32_t n;
    size_t cap_first, cap;
};

void tn_uses_init(struct tn_program *p)
{
    p->uses = tn_arena_alloc(&p->arena, sizeof *p->uses);
}

void tn_uses_copy(struct tn_program *copy, const struct tn_program *p)
{
    struct tn_uses *uses = tn_arena_alloc(&copy->arena, sizeof *uses);
    *uses = *p->uses;
    uses->first = tn_arena_copy(&copy->arena, uses->first, uses->cap_first * sizeof *uses->first);
    uses->use = tn_arena_copy(&copy->arena, uses->use, uses->cap * sizeof *uses->use);
    copy->uses = uses;
}

static uint32_t first_use(const struct tn_program *p, tn_value v)
{
    return v < p->uses->cap_first ? p->uses->first[v] : 0;
}

static void note(struct tn_program *p, tn_op op, tn_value v)
{
    struct tn_uses *uses = p->uses;
    if (!v || v > p->n_values)
        return;
    uses->first = tn_arena_grow(&p->arena, uses->first, sizeof *uses->first, &uses->cap_first, p->n_values + 1);
    uses->use = tn_arena_grow(&p->arena, uses->use, sizeof *uses->use, &uses->cap, uses->n + 2);
    uses->use[++uses->n] = (struct use){ .op = op, .next = uses->first[v] };
    uses->first[v] = uses->n;
}

void tn_note_inputs(struct tn_program *p, tn_op op)
{
    for (uint32_t i = 0; i < p->ops[op].n_in; i++)
        note(p, op, p->ops[op].in[i]);
}

void tn_set_input(struct tn_program *p, tn_op op, uint32_t i, tn_value v)
{
    p->ops[op].in[i] = v;
    note(p, op, v);
}

/* How many inputs of an op of the program behind `after`, 0: behind v's maker, are v. */
static uint32_t reads(const struct tn_program *p, tn_op op, tn_value v, tn_op after)
{
    const struct tn_op_data *o = &p->ops[op];
    uint32_t n = 0;
    if (!after && p->values[v].def && p->ops[p->values[v].def].linked)
        after = p->values[v].def;
    if (!o->linked || (after && o->order <= p->ops[after].order))
        return 0;
    for (uint32_t i = 0; i < o->n_in; i++)
        n += o->in[i] == v;
    return n;
}

tn_op tn_user_next(const struct tn_program *p, tn_value v, tn_op after)
{
    tn_op next = 0;
    for (uint32_t u = first_use(p, v); u; u = p->uses->use[u].next) {
        tn_op op = p->uses->use[u].op;
        if (reads(p, op, v, after) && (!next || p->ops[op].order < p->ops[next].order))
            next = op;
    }
    return next;
}

tn_op tn_only_user(const struct tn_program *p, tn_value v)
{
    tn_op user = 0;
    for (uint32_t u = first_use(p, v); u; u = p->uses->use[u].next) {
        tn_op op = p->uses->use[u].op;
        uint32_t n = op == user ? 0 : reads(p, op, v, 0);
        if (n > 1 || (n && user))
            return 0;
        user = n ? op : user;
    }
    return user;
}

void tn_replace_uses(struct tn_program *p, tn_value from, tn_value to, tn_op after)
{
    for (uint32_t u = first_use(p, from), next; u; u = next) {
        tn_op op = p->uses->use[u].op;
        next = p->uses->use[u].next;
        if (!reads(p, op, from, after))
            continue;
        for (uint32_t i = 0; i < p->ops[op].n_in; i++)
            if (p->ops[op].in[i] == from)
                tn_set_input(p, op, i, to);
    }
}
