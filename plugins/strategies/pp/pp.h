/* pp: what its files share. Stage s runs on rank s % p of the axis; with several chunks a rank has several stages. */
#ifndef TENON_PP_H
#define TENON_PP_H

#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

enum { PP_MOST_LAYERS = 4096, PP_MOST_RANKS = 1024, PP_MOST_CHUNKS = 64 };
enum { PP_GPIPE, PP_1F1B, PP_INTERLEAVED, PP_ZERO_BUBBLE }; /* as the option's choices */
enum { PP_ALL = -1, PP_NONE = -2 };                         /* instead of a stage: all run it; none does */

struct pp {
    const struct tn_host *host;
    const struct tn_facts_api *facts;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    int schedule;
    int32_t size;              /* ranks of the axis */
    int32_t chunks;            /* stages of each rank, as asked for; -1: auto */
    const char *const *layers; /* of each stage, as the manifest says; none: even */
    uint32_t n_layers;
};

/* What place works with. */
struct staging {
    const struct pp *pp;
    struct tn_program *program;
    int32_t axis, ranks, stages, layers;
    int32_t first[PP_MOST_LAYERS + 1]; /* layer of each stage */
    int32_t *stage;                    /* by op */
    int32_t *used_first,
        *used_last; /* by value: stages of the first and last forward op that uses it, through a cast too */
    int seen_layer; /* of the forward ops so far */
};

/* Stages in all. */
int32_t pp_stages(const struct pp *pp, int32_t size);

/* cut.c: first layer of each stage, and the number of layers behind the last: stages + 1 numbers. 0 if they do not add
 * up. By cost it is even, until pp_cut_by_cost makes it so. */
int pp_cut(const struct pp *pp, int32_t stages, int64_t layers, int32_t *first);
int pp_is_by_cost(const struct pp *pp);
/* Stages of costs as equal as whole layers allow. before, after: cost of what stands before the first layer and behind
 * the last one. */
tn_status pp_cut_by_cost(const struct tn_host *host, const double *cost, int32_t layers, double before, double after,
                         int32_t stages, int32_t *first);

/* order.c */
tn_status pp_schedule(void *self, const struct tn_program *program, int32_t micro_batches, struct tn_slot *slots,
                      uint32_t cap, uint32_t *n);

/* tied.c: a copy of each param that two ranks use. */
void pp_copy_tied(struct staging *s);

/* place.c */
void pp_set_stage(struct staging *s, tn_op op, int32_t stage);
int32_t pp_stage_of_value(const struct staging *s, tn_value v); /* of the op that makes it; PP_NONE without one */
/* Stage of the first forward op that uses a param, through its cast; PP_NONE if none does. *last: of the last one. */
int32_t pp_stage_of_param(const struct staging *s, tn_value param, int32_t *last);
void pp_note_use(struct staging *s, tn_value v, int32_t stage);
static inline int pp_same_rank(const struct staging *s, int32_t a, int32_t b)
{
    return a >= 0 && b >= 0 && a % s->ranks == b % s->ranks;
}
tn_status pp_place(void *self, struct tn_program *program);

/* lower.c, weight.c */
tn_status pp_lower(void *self, struct tn_program *program);
tn_status pp_put_off_weights(const struct pp *pp, struct tn_program *program);

static inline void pp_op(const struct pp *pp, const struct tn_program *program, tn_op op, struct tn_op_info *info)
{
    *info = (struct tn_op_info){ .struct_size = sizeof *info };
    pp->read->op_info(program, op, info);
}

static inline void pp_value(const struct pp *pp, const struct tn_program *program, tn_value v,
                            struct tn_value_info *info)
{
    *info = (struct tn_value_info){ .struct_size = sizeof *info };
    pp->read->value_info(program, v, info);
}

#endif
