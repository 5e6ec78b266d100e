/* cp: what its files share: the instance, and helpers to write ops with. */
#ifndef TENON_CP_H
#define TENON_CP_H

#include <tenon/op_register.h>
#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

enum { CP_RING, CP_ALL_GATHER, CP_ALL_TO_ALL };       /* as the option's choices */
enum { CP_ZIGZAG_AUTO, CP_ZIGZAG_ON, CP_ZIGZAG_OFF }; /* likewise */

struct cp {
    const struct tn_host *host;
    const struct tn_facts_api *facts;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    uint32_t attention, attention_dx; /* opcodes of cp.attention and its gradient */
    int method, zigzag, regather;
    uint64_t bucket_bytes; /* of gradients that are reduced together; 0: each by itself */
};

/* What lower works with: one op at hand, and the indices that its blocks need. */
struct lowering {
    const struct cp *cp;
    struct tn_program *program;
    int32_t axis, size, rank;
    int64_t part;       /* tokens of a sequence on one rank */
    tn_value all;       /* indices of all ranks' tokens, rank after rank */
    tn_value *by_rank;  /* those of one rank; 0: not made yet */
    tn_value *gathered; /* by value: itself of all ranks, as the forward pass has it; 0: none */
    uint64_t n_values;

    tn_op op; /* being replaced */
    struct tn_op_info info;
    char name[200]; /* of what it makes */
    uint32_t dtype; /* of q */
    double scale;
    int64_t head_dim, causal;
};

void cp_op(const struct lowering *l, tn_op op, struct tn_op_info *info);
void cp_value(const struct lowering *l, tn_value v, struct tn_value_info *info);
/* An op named after the one being replaced, where new ops go. */
tn_value cp_make(struct lowering *l, uint32_t opcode, const char *suffix, int32_t number, const tn_value *in,
                 uint32_t n_in, const struct tn_attr *attrs, uint32_t n_attrs);
/* v lies as `like` does, but for the axis of cp: `own`. */
void cp_place_like(const struct lowering *l, tn_value v, tn_value like, tn_placement own);
/* The cut of v on the axis of cp. */
tn_placement cp_cut(const struct lowering *l, tn_value v);
/* Indices of the tokens of one rank. */
tn_value cp_index(struct lowering *l, int32_t rank);
/* One block of attention, of keys of `rank`, or of all with -1. `share`: of its pairs that see each other. */
tn_value cp_block(struct lowering *l, int32_t number, tn_value k, tn_value v, int32_t rank, tn_value o, tn_value lse);
/* Its gradients; dq is added to what is given. */
tn_value cp_block_dx(struct lowering *l, int32_t number, tn_value k, tn_value v, int32_t rank, tn_value dq);
double cp_share(const struct lowering *l, int32_t keys_of);
/* What an output was becomes `with`, cast to q's dtype where that is another. */
void cp_deliver(struct lowering *l, uint32_t output, tn_value with, const char *suffix);

/* check.c */
tn_status cp_check(void *self, int32_t size);
/* place.c */
tn_status cp_place(void *self, struct tn_program *program);
const char *cp_rows(const struct tn_op_call *call, int32_t axis);
/* lower.c */
tn_status cp_lower(void *self, struct tn_program *program);
/* ring.c, gather.c: replace the op at hand. */
void cp_ring_forward(struct lowering *l);
void cp_ring_backward(struct lowering *l);
void cp_gather_forward(struct lowering *l);
void cp_gather_backward(struct lowering *l);

static inline int cp_is_zigzag(const struct cp *cp)
{
    return cp->zigzag == CP_ZIGZAG_ON || (cp->zigzag == CP_ZIGZAG_AUTO && cp->method != CP_ALL_TO_ALL);
}

#endif
