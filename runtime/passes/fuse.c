/* Fuse: see passes.h. The rules, each where the inner result has no other user:
 *
 *     bias_add(linear(x, w), b)              =>  linear(x, w, b)
 *     r = add(a, b); y = norm(r, ..)         =>  r, y = add_norm(a, b, ..)       (r may have other users)
 *     add(g, norm_dx(..))                    =>  norm_dx(.., res: g)
 *     add(g, linear_dx(dy, w))               =>  linear_dx(dy, w, acc: g)        (g too: it is updated in place)
 */
#include "passes/passes.h"

#include <string.h>

struct fuser {
    struct tn_program *p;
    uint32_t *users; /* by value */
};

static void count_users(struct fuser *f)
{
    TN_EACH_OP(f->p, op)
        for (uint32_t i = 0; i < f->p->ops[op].n_in; i++)
            f->users[f->p->ops[op].in[i]]++;
}

/* The op that makes v, if it is of `opcode`, in the region of `user`, and v has no other user. */
static tn_op sole_maker(const struct fuser *f, tn_value v, uint32_t opcode, tn_op user)
{
    tn_op def = v ? f->p->values[v].def : 0;
    if (!def || f->p->ops[def].opcode != opcode || f->p->ops[def].region != f->p->ops[user].region ||
        f->users[v] != 1 || (f->p->values[v].flags & TN_VALUE_OUTPUT))
        return 0;
    return def;
}

/* `op` becomes what `inner` was, with `extra` as input number `at`; `inner` goes. */
static void absorb(struct fuser *f, tn_op op, tn_op inner, uint32_t at, tn_value extra)
{
    struct tn_program *p = f->p;
    struct tn_op_data *o = &p->ops[op], *i = &p->ops[inner];
    tn_value *in = tn_arena_alloc(&p->arena, (at + 2) * sizeof *in);
    memcpy(in, i->in, i->n_in * sizeof *in);
    in[at] = extra;
    o->opcode = i->opcode;
    o->in = in;
    o->n_in = at + 1;
    o->n_attrs = i->n_attrs;
    memcpy(o->attrs, i->attrs, sizeof o->attrs);
    tn_note_inputs(p, op);
    tn_op_unlink(p, inner);
}

static void fuse_bias(struct fuser *f, tn_op op)
{
    tn_op linear = sole_maker(f, f->p->ops[op].in[0], TN_OP_LINEAR, op);
    if (linear && f->p->ops[linear].n_in == 2)
        absorb(f, op, linear, 2, f->p->ops[op].in[1]);
}

static void fuse_gradient_sum(struct fuser *f, tn_op op)
{
    static const struct {
        uint32_t opcode, at;
    } kinds[] = { { TN_OP_LAYERNORM_DX, 5 }, { TN_OP_RMSNORM_DX, 4 }, { TN_OP_LINEAR_DX, 2 } };
    struct tn_program *p = f->p;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (uint32_t side = 0; side < 2; side++) {
            tn_value inner = p->ops[op].in[side], other = p->ops[op].in[1 - side];
            tn_op maker = sole_maker(f, inner, kinds[k].opcode, op);
            int in_place = kinds[k].opcode != TN_OP_LINEAR_DX ||
                           (f->users[other] == 1 && p->values[other].def &&
                            p->values[other].kind == TN_KIND_ACTIVATION && !(p->values[other].flags & TN_VALUE_OUTPUT));
            if (maker && in_place && p->ops[maker].n_in == kinds[k].at) {
                absorb(f, op, maker, kinds[k].at, other);
                return;
            }
        }
}

/* The norm moves up to the add: its other inputs are params, ready from the start. */
static void fuse_norm(struct fuser *f, tn_op norm, uint32_t fused)
{
    struct tn_program *p = f->p;
    tn_value r = p->ops[norm].in[0];
    tn_op add = p->values[r].def;
    if (!add || p->ops[add].opcode != TN_OP_ADD || p->ops[add].region != p->ops[norm].region)
        return;
    for (uint32_t i = 1; i < p->ops[norm].n_in; i++)
        if (p->values[p->ops[norm].in[i]].def)
            return;
    tn_value in[4] = { p->ops[add].in[0], p->ops[add].in[1], p->ops[norm].in[1] };
    uint32_t n_in = 3, n_out = p->ops[norm].n_out + 1;
    if (p->ops[norm].n_in > 2)
        in[n_in++] = p->ops[norm].in[2];
    tn_value out[4] = { r };
    memcpy(out + 1, p->ops[norm].out, p->ops[norm].n_out * sizeof *out);
    struct tn_op_data *o = &p->ops[add];
    o->opcode = fused;
    o->in = tn_arena_alloc(&p->arena, sizeof in);
    o->out = tn_arena_alloc(&p->arena, sizeof out);
    memcpy(o->in, in, sizeof in);
    memcpy(o->out, out, sizeof out);
    o->n_in = n_in;
    o->n_out = n_out;
    o->n_attrs = p->ops[norm].n_attrs;
    memcpy(o->attrs, p->ops[norm].attrs, sizeof o->attrs);
    for (uint32_t i = 0; i < n_out; i++) {
        p->values[out[i]].def = add;
        p->values[out[i]].def_index = i;
    }
    tn_note_inputs(p, add);
    tn_op_unlink(p, norm);
}

void tn_fuse(struct tn_program *p)
{
    struct fuser f = { .p = p, .users = tn_arena_alloc(&p->arena, ((size_t)p->n_values + 1) * sizeof(uint32_t)) };
    count_users(&f);
    for (tn_op op = p->first, next; op; op = next) {
        next = p->ops[op].next;
        switch (p->ops[op].opcode) {
        case TN_OP_BIAS_ADD: fuse_bias(&f, op); break;
        case TN_OP_ADD: fuse_gradient_sum(&f, op); break;
        default: break;
        }
    }
    for (tn_op op = p->first, next; op; op = next) {
        next = p->ops[op].next;
        switch (p->ops[op].opcode) {
        case TN_OP_LAYERNORM: fuse_norm(&f, op, TN_OP_ADD_LAYERNORM); break;
        case TN_OP_RMSNORM: fuse_norm(&f, op, TN_OP_ADD_RMSNORM); break;
        default: break;
        }
    }
}
