/* Parts: which tensors a checkpoint has, and where this rank's elements lie in them (checkpoint.h).
 *
 * The list of tensors is made from the program before it is scheduled, which is the same on all ranks; the parts are
 * the params and states of the flat one, found again by name. A value that the model stores as a slice of a larger
 * tensor (GPT-2's c_attn) is a part of that tensor, and its optimizer states are sliced alike. Further copies of a
 * value (w#1, of stages that share w) are parts of the same tensor. */
#include "checkpoint/checkpoint_parts.h"

#include <string.h>

const char *const tn_checkpoint_file[TN_CHECKPOINT_FILES] = { "model.safetensors", "optimizer.safetensors" };

static int is_kept(const struct tn_value_data *value)
{
    return (value->kind == TN_KIND_PARAM || value->kind == TN_KIND_STATE) && !value->def;
}

/* The param that a state belongs to; a param itself. */
static const struct tn_value_data *param_of(const struct tn_program *p, tn_value v)
{
    const struct tn_value_data *value = &p->values[v];
    return value->kind == TN_KIND_STATE && value->like ? &p->values[value->like] : value;
}

/* The name of the value that it is a copy of. */
static const char *copied_name(struct tn_stored *stored, const char *name)
{
    return strchr(name, '#') ? tn_arena_printf(&stored->arena, "%.*s", (int)strcspn(name, "#"), name) : name;
}

/* The tensor that `v` is stored in. States: the param's, with what their own name adds to the param's. */
static struct tn_stored_tensor tensor_of(struct tn_stored *stored, const struct tn_program *p, tn_value v)
{
    const struct tn_value_data *value = &p->values[v], *param = param_of(p, v);
    struct tn_stored_tensor t = { .name = copied_name(stored, value->name), .rank = value->rank };
    t.file = value->kind == TN_KIND_STATE ? TN_CHECKPOINT_OPTIMIZER : TN_CHECKPOINT_MODEL;
    memcpy(t.shape, value->shape, sizeof t.shape);
    if (!param->stored.name)
        return t;
    size_t length = strcspn(param->name, "#");
    int named_after = strncmp(t.name, param->name, length) == 0;
    const char *added = named_after ? t.name + length : t.name;
    t.name = tn_arena_printf(&stored->arena, "%s%s", param->stored.name, added);
    t.shape[param->stored.dim] = param->stored.full;
    return t;
}

/* Open addressing: a slot holds 1 + the tensor's index. */
struct table {
    uint32_t *slot, mask;
};

static uint32_t hash_name(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

static uint32_t find_or_add(struct tn_stored *stored, struct table *names, const struct tn_stored_tensor *t)
{
    uint32_t at = hash_name(t->name) & names->mask;
    for (; names->slot[at]; at = (at + 1) & names->mask)
        if (strcmp(stored->tensors[names->slot[at] - 1].name, t->name) == 0)
            return names->slot[at] - 1;
    stored->tensors[stored->n_tensors] = *t;
    names->slot[at] = ++stored->n_tensors;
    return stored->n_tensors - 1;
}

void tn_stored_init(struct tn_stored *stored, const struct tn_compiled *compiled)
{
    const struct tn_program *p = &compiled->program, *flat = &compiled->flat;
    memset(stored, 0, sizeof *stored);
    tn_arena_init(&stored->arena);
    stored->flat = flat;
    stored->tensors = tn_arena_alloc(&stored->arena, (p->n_values + 1) * sizeof *stored->tensors);
    stored->parts = tn_arena_alloc(&stored->arena, (p->n_values + 1) * sizeof *stored->parts);
    struct table names = { .mask = 1 };
    while (names.mask < 2 * p->n_values)
        names.mask = 2 * names.mask + 1;
    names.slot = tn_arena_alloc(&stored->arena, (names.mask + 1) * sizeof *names.slot);
    memset(names.slot, 0, (names.mask + 1) * sizeof *names.slot);
    for (tn_value v = 1; v <= p->n_values; v++) {
        const struct tn_value_data *value = &p->values[v];
        if (!is_kept(value))
            continue;
        struct tn_stored_tensor t = tensor_of(stored, p, v);
        uint32_t tensor = find_or_add(stored, &names, &t);
        const struct tn_value_data *param = param_of(p, v);
        tn_value here = tn_value_find(flat, value->name);
        stored->n_values++;
        if (here && is_kept(&flat->values[here]) && compiled->plan.offset[here] >= 0)
            stored->parts[stored->n_parts++] =
                (struct tn_stored_part){ .value = here,
                                         .tensor = tensor,
                                         .dim = param->stored.name ? param->stored.dim : 0,
                                         .offset = param->stored.name ? param->stored.offset : 0 };
    }
}

void tn_stored_finish(struct tn_stored *stored)
{
    tn_arena_finish(&stored->arena);
}

tn_status tn_runs_init(struct tn_runs *runs, const struct tn_stored *stored, uint32_t part)
{
    const struct tn_stored_part *at = &stored->parts[part];
    const struct tn_stored_tensor *t = &stored->tensors[at->tensor];
    const struct tn_value_data *value = &stored->flat->values[at->value];
    memset(runs, 0, sizeof *runs);
    runs->inner = 1;
    for (int32_t d = at->dim + 1; d < t->rank; d++)
        runs->inner *= t->shape[d];
    runs->row = t->rank ? value->shape[at->dim] * runs->inner : 1;
    runs->stored_row = t->rank ? t->shape[at->dim] * runs->inner : 1;
    runs->shift = at->offset * runs->inner;
    return tn_walk_init(&runs->walk, stored->flat, at->value);
}

/* A run of the value is cut where a row of its slice ends. */
int64_t tn_runs_next(struct tn_runs *runs, int64_t *local, int64_t *at)
{
    if (runs->left == 0) {
        if (runs->local == runs->walk.count)
            return 0;
        runs->left = tn_walk_run(&runs->walk, runs->walk.count - runs->local, &runs->element);
    }
    int64_t count = runs->left, within = runs->element % runs->row;
    if (runs->row != runs->stored_row && count > runs->row - within)
        count = runs->row - within;
    *local = runs->local;
    *at = runs->element / runs->row * runs->stored_row + runs->shift + within;
    runs->local += count;
    runs->element += count;
    runs->left -= count;
    return count;
}

void tn_runs_finish(struct tn_runs *runs)
{
    tn_walk_finish(&runs->walk);
}
