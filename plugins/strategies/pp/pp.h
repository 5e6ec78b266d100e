/* pp: what its files share. */
#ifndef TENON_PP_H
#define TENON_PP_H

#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

enum { PP_MOST_LAYERS = 4096 };
enum { PP_GPIPE, PP_1F1B }; /* as the option's choices */

struct pp {
    const struct tn_host *host;
    const struct tn_facts_api *facts;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    int schedule;
    int32_t size;
    const char *const *layers; /* of each stage, as the manifest says; none: even */
    uint32_t n_layers;
};

enum { PP_ALL = -1, PP_NONE = -2, PP_MOST_STAGES = 1024 };

/* What place works with. */
struct staging {
    const struct pp *pp;
    struct tn_program *program;
    int32_t axis, size;
    int32_t first[PP_MOST_LAYERS + 1]; /* layer of each stage */
    int32_t *stage;                    /* by op */
    int seen_layer;                    /* of the forward ops so far */
};

/* First layer of each stage, and the number of layers behind the last: size + 1 numbers. 0 if they do not add up. */
int pp_cut(const struct pp *pp, int32_t size, int64_t layers, int32_t *first);
/* tied.c: a copy of each param that two stages use. */
void pp_copy_tied(struct staging *s);
/* place.c */
void pp_set_stage(struct staging *s, tn_op op, int32_t stage);
int32_t pp_stage_of_value(const struct staging *s, tn_value v); /* of the op that makes it; PP_NONE without one */
/* Stage of the first forward op that uses a param, through its cast; PP_NONE if none does. *last: of the last one. */
int32_t pp_stage_of_param(const struct staging *s, tn_value param, int32_t *last);
/* place.c, lower.c */
tn_status pp_place(void *self, struct tn_program *program);
tn_status pp_lower(void *self, struct tn_program *program);

static inline void pp_op(const struct pp *pp, const struct tn_program *program, tn_op op, struct tn_op_info *info)
{
    *info = (struct tn_op_info){.struct_size = sizeof *info};
    pp->read->op_info(program, op, info);
}

static inline void pp_value(const struct pp *pp, const struct tn_program *program, tn_value v, struct tn_value_info *info)
{
    *info = (struct tn_value_info){.struct_size = sizeof *info};
    pp->read->value_info(program, v, info);
}

#endif
