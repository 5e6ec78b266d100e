/* cp, all-gather attention (Dubey et al. 2024, 3.3.2): keys and values of all ranks are gathered, and one block of
 * attention has this rank's queries. Backward gathers them again, unless told to keep them, and the gradients of all
 * keys are summed and scattered home.
 *
 *     k.all = all_gather k;  o = block(q, k.all, v.all)
 *     dq, dk.all, dv.all = block_dx(..);  dk = reduce_scatter dk.all
 *
 * A gather stands behind what makes its input, so that it runs beside what else is done there. Gathered keys lie rank
 * after rank, as their indices do; in no other order do they need to be. */
#include "cp.h"

/* More than one sequence: what is gathered along the second dimension comes as blocks. */
static int has_blocks(const struct lowering *l, tn_value v)
{
    int64_t shape[TN_MAX_DIMS];
    l->cp->read->local_shape(l->program, v, shape);
    return shape[0] > 1;
}

static tn_value gather(struct lowering *l, tn_value v, const char *name)
{
    const struct tn_attr attrs[] = { TN_ATTR_I("axis", l->axis), TN_ATTR_I("dim", 1) };
    const struct tn_attr blocks[] = { TN_ATTR_I("dim", 1), TN_ATTR_I("parts", l->size) };
    char merged[16] = { name[0], '.', 'a', 'l', 'l', 0 };
    int merges = has_blocks(l, v);
    tn_value all = cp_make(l, TN_OP_ALL_GATHER, merges ? name : merged, -1, &v, 1, attrs, 2);
    cp_place_like(l, all, v, TN_REPLICATE);
    if (!merges)
        return all;
    tn_value joined = cp_make(l, TN_OP_MERGE_BLOCKS, merged, -1, &all, 1, blocks, 2);
    cp_place_like(l, joined, v, TN_REPLICATE);
    return joined;
}

/* The op of the region at hand that makes v; 0 if another region does. */
static tn_op maker(const struct lowering *l, tn_value v)
{
    struct tn_value_info value;
    struct tn_op_info op;
    cp_value(l, v, &value);
    if (!value.def)
        return 0;
    cp_op(l, value.def, &op);
    return op.region == l->info.region ? value.def : 0;
}

/* New ops go behind the makers of `early` and of v, which may be made again only now; without any, before the op. */
static void go_behind(struct lowering *l, tn_value early, tn_value v)
{
    const struct tn_program_api *read = l->cp->read;
    tn_op behind = maker(l, early), own = maker(l, v);
    for (tn_op op = behind; op && op != l->op; op = read->op_next(l->program, op))
        if (op == own)
            behind = own;
    if (behind)
        l->cp->edit->insert_before(l->program, read->op_next(l->program, behind));
}

static tn_value gathered(struct lowering *l, tn_value v, const char *name, tn_value early)
{
    int known = v < l->n_values;
    if (known && l->gathered[v] && !l->cp->regather)
        return l->gathered[v];
    go_behind(l, early, v);
    tn_value all = gather(l, v, name);
    l->cp->edit->insert_before(l->program, l->op);
    if (known)
        l->gathered[v] = all;
    return all;
}

void cp_gather_forward(struct lowering *l)
{
    tn_value k = gathered(l, l->info.in[1], "k.gather", l->info.in[1]);
    tn_value v = gathered(l, l->info.in[2], "v.gather", l->info.in[2]);
    tn_value o = cp_block(l, -1, k, v, -1, 0, 0);
    tn_value lse = l->cp->edit->output(l->program, l->cp->edit->last_op(l->program), 1);
    cp_deliver(l, 0, o, "o");
    cp_deliver(l, 1, lse, "lse");
}

/* The sum over the ranks, each its own tokens' part; lies as `like`. */
static tn_value scatter(struct lowering *l, tn_value sum, tn_value like, const char *split, const char *name)
{
    const struct tn_attr attrs[] = { TN_ATTR_I("axis", l->axis), TN_ATTR_I("dim", 1), TN_ATTR_I("red", TN_RED_SUM) };
    const struct tn_attr blocks[] = { TN_ATTR_I("dim", 1), TN_ATTR_I("parts", l->size) };
    if (has_blocks(l, sum)) {
        tn_value dense = cp_make(l, TN_OP_SPLIT_BLOCKS, split, -1, &sum, 1, blocks, 2);
        cp_place_like(l, dense, sum, cp_cut(l, sum));
        sum = dense;
    }
    tn_value own = cp_make(l, TN_OP_REDUCE_SCATTER, name, -1, &sum, 1, attrs, 3);
    cp_place_like(l, own, sum, cp_cut(l, like));
    return own;
}

void cp_gather_backward(struct lowering *l)
{
    const struct tn_program_edit_api *edit = l->cp->edit;
    tn_value k = gathered(l, l->info.in[2], "k.gather", l->info.in[0]);
    tn_value v = gathered(l, l->info.in[3], "v.gather", l->info.in[0]);
    tn_value dq = cp_block_dx(l, -1, k, v, -1, 0);
    tn_op block = edit->last_op(l->program);
    tn_value dk = scatter(l, edit->output(l->program, block, 1), l->info.in[2], "dk.split", "dk.sum");
    tn_value dv = scatter(l, edit->output(l->program, block, 2), l->info.in[3], "dv.split", "dv.sum");
    cp_deliver(l, 0, dq, "dq");
    cp_deliver(l, 1, dk, "dk.home");
    cp_deliver(l, 2, dv, "dv.home");
}
