/* cp, ring attention (Liu et al. 2023): keys and values go from rank to rank, and each rank continues its softmax with
 * those that it has at the time, while the next ones are under way.
 *
 *     send k to r+1;  k1 = recv from r-1;  o = block(q, k, v)           o of own keys
 *     send k1;        k2 = recv;           o = block(q, k1, v1, o)      .. and of rank r-1's
 *
 * Backward goes around once more, with o and lse of all keys. Each block's dk and dv are added to what has come from
 * the rank before, one hop behind the keys, and go home with a last hop. A message is waited for where it is first
 * used: keys behind the block before, gradients behind the block that is added to them.
 *
 * Blocks that no query of this rank may see are left out. */
#include "cp.h"

#include <stddef.h>

enum { KEYS = 1, VALUES, KEY_GRADIENTS, VALUE_GRADIENTS }; /* channels: messages of one do not wait for another's */

static tn_value pass_on(struct lowering *l, tn_value v, const char *sent, const char *received, int32_t number,
                        int channel)
{
    const struct tn_attr to[] = { TN_ATTR_I("axis", l->axis), TN_ATTR_I("peer", (l->rank + 1) % l->size),
                                  TN_ATTR_I("channel", channel) };
    const struct tn_attr from[] = { TN_ATTR_I("axis", l->axis), TN_ATTR_I("peer", (l->rank + l->size - 1) % l->size),
                                    TN_ATTR_I("channel", channel) };
    cp_make(l, TN_OP_SEND, sent, number, &v, 1, to, 3);
    tn_value got = cp_make(l, TN_OP_RECV, received, number, &v, 1, from, 3);
    cp_place_like(l, got, v, cp_cut(l, v));
    return got;
}

/* The rank whose keys are here at a step. */
static int32_t owner(const struct lowering *l, int32_t step)
{
    return (l->rank - step + l->size) % l->size;
}

void cp_ring_forward(struct lowering *l)
{
    tn_value k = l->info.in[1], v = l->info.in[2], o = 0, lse = 0;
    for (int32_t step = 0; step < l->size; step++) {
        tn_value next_k = 0, next_v = 0;
        if (step + 1 < l->size) {
            next_k = pass_on(l, k, "k.send", "k", step + 1, KEYS);
            next_v = pass_on(l, v, "v.send", "v", step + 1, VALUES);
        }
        if (cp_share(l, owner(l, step)) > 0) {
            o = cp_block(l, step, k, v, owner(l, step), o, lse);
            lse = l->cp->edit->output(l->program, l->cp->edit->last_op(l->program), 1);
        }
        k = next_k;
        v = next_v;
    }
    cp_deliver(l, 0, o, "o");
    cp_deliver(l, 1, lse, "lse");
}

/* Gradients of keys that are here, those of this rank's queries added, to the next rank. */
static tn_value pass_gradient(struct lowering *l, tn_value own, tn_value come, int32_t step, int values)
{
    const char *sum = values ? "dv.sum" : "dk.sum", *sent = values ? "dv.send" : "dk.send", *got = values ? "dv" : "dk";
    const tn_value in[] = { own, come };
    tn_value all = own ? own : come;
    if (own && come)
        all = cp_make(l, TN_OP_ACCUMULATE, sum, step, in, 2, NULL, 0);
    return pass_on(l, all, sent, got, step + 1, values ? VALUE_GRADIENTS : KEY_GRADIENTS);
}

void cp_ring_backward(struct lowering *l)
{
    const struct tn_program_edit_api *edit = l->cp->edit;
    tn_value k = l->info.in[2], v = l->info.in[3], dq = 0, dk = 0, dv = 0;
    for (int32_t step = 0; step < l->size; step++) {
        tn_value next_k = 0, next_v = 0, own_dk = 0, own_dv = 0;
        if (step + 1 < l->size) {
            next_k = pass_on(l, k, "k.send", "k", step + 1, KEYS);
            next_v = pass_on(l, v, "v.send", "v", step + 1, VALUES);
        }
        if (cp_share(l, owner(l, step)) > 0) {
            dq = cp_block_dx(l, step, k, v, owner(l, step), dq);
            tn_op block = edit->last_op(l->program);
            own_dk = edit->output(l->program, block, 1);
            own_dv = edit->output(l->program, block, 2);
        }
        dk = pass_gradient(l, own_dk, dk, step, 0);
        dv = pass_gradient(l, own_dv, dv, step, 1);
        k = next_k;
        v = next_v;
    }
    cp_deliver(l, 0, dq, "dq");
    cp_deliver(l, 1, dk, "dk.home");
    cp_deliver(l, 2, dv, "dv.home");
}
