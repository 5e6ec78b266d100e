/* mode = auto: the least that must run again for the plan to fit [device] memory.
 *
 * Cheap are ops whose inputs are kept anyway and which run again faster than a strategy behind this one would bring
 * what they make elsewhere and back; where none does, those that only pass over memory a few times (norms,
 * activations). The choice is the first of these that fits, each found by halving on copies of the program:
 *
 *     1. nothing runs again
 *     2. cheap ops of the first k layers, the fewest
 *     3. cheap ops of all layers, and strategies behind this one move what they can
 *     4. that, and everything in the first k layers, the fewest
 *
 * If nothing fits, all of 4 is done, and the check of the budget says how much is missing. Estimates are made at
 * nominal rates (plan.h), so that all ranks choose alike. */
#include "ckpt.h"

#include <stdio.h>
#include <string.h>

enum { CHEAP_PASSES = 8 }; /* over the bytes made, where nobody moves anything */

struct search {
    const struct ckpt *ckpt;
    const struct tn_program *program;
    struct ckpt_choice choice;
    uint8_t *cheap, *used; /* by op; by value: a backward op uses it */
    int64_t budget;
    int32_t layers;
    int moves; /* a strategy behind this one can take what is left */
};

static void value_info(const struct search *s, tn_value v, struct tn_value_info *info)
{
    *info = (struct tn_value_info){ .struct_size = sizeof *info };
    s->ckpt->read->value_info(s->program, v, info);
}

static void op_info(const struct search *s, tn_op op, struct tn_op_info *info)
{
    *info = (struct tn_op_info){ .struct_size = sizeof *info };
    s->ckpt->read->op_info(s->program, op, info);
}

static double bytes_of(const struct search *s, tn_value v)
{
    static const uint8_t size[] = {
#define TN_X(name, number, text, bytes) [number] = bytes,
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    };
    struct tn_value_info info;
    int64_t shape[TN_MAX_DIMS];
    value_info(s, v, &info);
    s->ckpt->read->local_shape(s->program, v, shape);
    double bytes = size[info.dtype];
    for (int32_t d = 0; d < info.rank; d++)
        bytes *= (double)shape[d];
    return bytes;
}

/* Whether v is there in the backward pass whatever runs again. */
static int is_kept(const struct search *s, tn_value v)
{
    struct tn_value_info info;
    value_info(s, v, &info);
    return !info.def || s->used[v];
}

static int is_cheap(const struct search *s, tn_op op)
{
    struct tn_op_info info;
    double bytes = 0;
    op_info(s, op, &info);
    for (uint32_t i = 0; i < info.n_in; i++)
        if (info.in[i] && !is_kept(s, info.in[i]))
            return 0;
    for (uint32_t i = 0; i < info.n_out; i++)
        bytes += s->used[info.out[i]] ? bytes_of(s, info.out[i]) : 0;
    double away = s->ckpt->plan->away(s->ckpt->host, (uint64_t)bytes);
    double limit = away >= 0 ? away : CHEAP_PASSES * bytes / TN_NOMINAL_BYTES;
    return bytes > 0 && s->ckpt->plan->seconds(s->program, op) < limit;
}

/* 0: there is no backward pass. */
static int mark(struct search *s)
{
    const struct tn_program_api *read = s->ckpt->read;
    struct tn_op_info info;
    int backward = 0;
    for (tn_op op = read->op_next(s->program, 0); op; op = read->op_next(s->program, op)) {
        op_info(s, op, &info);
        for (uint32_t i = 0; info.region == TN_REGION_BACKWARD && i < info.n_in; i++)
            s->used[info.in[i]] = 1;
        backward |= info.region == TN_REGION_BACKWARD;
    }
    for (tn_op op = read->op_next(s->program, 0); op && backward; op = read->op_next(s->program, op)) {
        op_info(s, op, &info);
        s->cheap[op] = info.region == TN_REGION_FORWARD && (uint8_t)is_cheap(s, op);
    }
    return backward;
}

static int fits(const struct search *s, int32_t some, int32_t full, uint32_t flags)
{
    struct tn_program *trial = s->ckpt->plan->copy(s->program);
    struct ckpt_choice choice = s->choice;
    choice.some = some;
    choice.full = full;
    choice.key = NULL;
    if (!trial)
        return 0;
    int64_t peak =
        ckpt_recompute(s->ckpt, trial, &choice) == TN_OK ? s->ckpt->plan->peak(s->ckpt->host, trial, flags) : -1;
    s->ckpt->plan->drop(trial);
    return peak >= 0 && peak <= s->budget;
}

/* The fewest layers that fit, where all do, or all of them. */
static int32_t fewest(const struct search *s, int is_full, uint32_t flags)
{
    int32_t low = 0, high = s->layers;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (is_full ? fits(s, s->layers, middle, flags) : fits(s, middle, 0, flags))
            high = middle;
        else
            low = middle;
    }
    return high;
}

static void choose(struct search *s)
{
    if (fits(s, 0, 0, TN_PEAK_UNAIDED))
        return;
    s->choice.some = s->layers;
    if (fits(s, s->layers, 0, TN_PEAK_UNAIDED))
        s->choice.some = fewest(s, 0, TN_PEAK_UNAIDED);
    else if (!s->moves || !fits(s, s->layers, 0, 0))
        s->choice.full = fewest(s, 1, 0);
}

tn_status ckpt_automatic(const struct ckpt *ckpt, struct tn_program *program)
{
    const struct tn_host *host = ckpt->host;
    struct search s = { .ckpt = ckpt, .program = program, .budget = ckpt->plan->budget(host) };
    tn_value values = 0;
    for (tn_value v = ckpt->read->value_next(program, 0); v; v = ckpt->read->value_next(program, v))
        values = v;
    for (tn_op op = ckpt->read->op_next(program, 0); op; op = ckpt->read->op_next(program, op))
        s.choice.most = op > s.choice.most ? op : s.choice.most;
    s.layers = (int32_t)ckpt->facts->get(host, "layers", 0);
    s.moves = ckpt->plan->away(host, 1 << 30) >= 0;
    s.cheap = host->alloc(host, (uint64_t)s.choice.most + 1);
    s.used = host->alloc(host, (uint64_t)values + 1);
    tn_status status = TN_OK;
    if (s.cheap && s.used) {
        memset(s.cheap, 0, (size_t)s.choice.most + 1);
        memset(s.used, 0, (size_t)values + 1);
        s.choice.cheap = s.cheap;
        if (mark(&s)) {
            choose(&s);
            s.choice.key = "mode";
            status = ckpt_recompute(ckpt, program, &s.choice);
        }
    } else {
        status = host->fail(host, TN_NO_MEMORY, "no memory to walk %u values", values);
    }
    host->release(host, s.used);
    host->release(host, s.cheap);
    return status;
}
