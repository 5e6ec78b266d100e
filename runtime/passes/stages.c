/* Own stages: see passes.h. What stands between the stages becomes this rank's side of it:
 *
 *     y = stage_sum(x0, x1, ..)     =>  y = stage_sum(xr)         on the rank that makes xr, alone
 *     y = broadcast(x) root=r       =>  y = broadcast()           where x is not made here
 *     y = recv(x)                   =>  y = recv()                x gave it its type
 */
#include "passes/passes.h"
#include "passes/timeline.h"

/* Whether v is there on this rank: made by one of its ops, or by none. */
static int is_here(const struct tn_program *p, tn_value v)
{
    tn_op def = p->values[v].def;
    return !def || p->ops[def].linked;
}

static void take_side(struct tn_program *p, tn_op op, int32_t axis)
{
    struct tn_op_data *o = &p->ops[op];
    if (o->opcode == TN_OP_RECV || (o->opcode == TN_OP_BROADCAST && o->n_in && !is_here(p, o->in[0])))
        o->n_in = 0;
    if (o->opcode != TN_OP_STAGE_SUM)
        return;
    uint32_t mine = 0;
    while (mine < o->n_in && !is_here(p, o->in[mine]))
        mine++;
    if (mine == o->n_in) {
        tn_program_error(p, op, "no input is made by a stage of rank %d of axis %s", p->coord[axis],
                         p->mesh->axis[axis].name);
        return;
    }
    tn_set_input(p, op, 0, o->in[mine]);
    o->n_in = 1;
}

void tn_own_stages(struct tn_program *p)
{
    int32_t axis = tn_stage_axis(p->mesh);
    if (axis < 0 || p->mesh->axis[axis].size == 1)
        return;
    for (tn_op op = p->first, next; op; op = next) {
        next = p->ops[op].next;
        if (p->ops[op].stage >= 0 && p->ops[op].stage % p->mesh->axis[axis].size != p->coord[axis])
            tn_op_unlink(p, op);
    }
    TN_EACH_OP(p, op)
        take_side(p, op, axis);
}
