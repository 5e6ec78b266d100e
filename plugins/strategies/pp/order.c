/* pp: the order of micro-batches on one rank's stages.
 *
 *     gpipe        all forward, all backward                                       (Huang et al. 2019)
 *     1f1b         p - r - 1 forward, then one forward, one backward, then the rest (Narayanan et al. 2019)
 *     interleaved  1f1b over chunks: groups of p micro-batches go through the rank's first chunk, then its second, ..;
 *                  2(p - r - 1) + (v - 1) p forward before the first backward        (Narayanan et al. 2021)
 * zero-bubble 1f1b whose weight gradients are put off: rank r owes those of at most r micro-batches, and pays where
 *                  it would wait at the end (ZB-H1, Qi et al. 2024)
 *
 * Each stage sees its micro-batches in order, in every region, so that messages between two stages meet. */
#include "pp.h"

struct order {
    struct tn_slot *slots;
    uint32_t cap, n;
    int32_t ranks, rank, chunks, micro_batches;
};

static void slot(struct order *o, uint32_t region, int32_t chunk, int32_t micro)
{
    if (o->n < o->cap)
        o->slots[o->n] = (struct tn_slot){
            .struct_size = sizeof *o->slots, .region = region, .stage = chunk * o->ranks + o->rank, .micro = micro
        };
    o->n++;
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Warm-up forwards, one forward and one backward in turn, what is left. */
static void in_turn(struct order *o, int32_t warm)
{
    int32_t m = o->micro_batches;
    for (int32_t i = 0; i < warm; i++)
        slot(o, TN_REGION_FORWARD, 0, i);
    for (int32_t i = warm; i < m; i++) {
        slot(o, TN_REGION_FORWARD, 0, i);
        slot(o, TN_REGION_BACKWARD, 0, i - warm);
    }
    for (int32_t i = m - warm; i < m; i++)
        slot(o, TN_REGION_BACKWARD, 0, i);
}

static void zero_bubble(struct order *o, int32_t warm)
{
    int32_t m = o->micro_batches, done = 0;
    for (int32_t i = 0; i < warm; i++)
        slot(o, TN_REGION_FORWARD, 0, i);
    for (int32_t i = 0; i < m; i++) {
        if (i + warm < m)
            slot(o, TN_REGION_FORWARD, 0, i + warm);
        slot(o, TN_REGION_BACKWARD, 0, i);
        if (i >= o->rank)
            slot(o, TN_REGION_WEIGHT, 0, done++);
    }
    while (done < m)
        slot(o, TN_REGION_WEIGHT, 0, done++);
}

/* The k-th forward, or backward, of a rank. */
static void virtual_slot(struct order *o, uint32_t region, int32_t k)
{
    int32_t group = k / (o->ranks * o->chunks), within = k % (o->ranks * o->chunks), chunk = within / o->ranks;
    int32_t micro = group * o->ranks + within % o->ranks;
    if (micro < o->micro_batches)
        slot(o, region, region == TN_REGION_FORWARD ? chunk : o->chunks - 1 - chunk, micro);
}

/* The last group may be short: it is ordered as a whole one, and what it lacks is left out. Shifting later slots into
 * the gaps would make ranks wait for one another for ever. */
static void interleaved(struct order *o)
{
    int32_t groups = (o->micro_batches + o->ranks - 1) / o->ranks, total = groups * o->ranks * o->chunks;
    int32_t warm = least(2 * (o->ranks - o->rank - 1) + (o->chunks - 1) * o->ranks, total);
    for (int32_t k = 0; k < warm; k++)
        virtual_slot(o, TN_REGION_FORWARD, k);
    for (int32_t k = 0; k < total; k++) {
        if (k + warm < total)
            virtual_slot(o, TN_REGION_FORWARD, k + warm);
        virtual_slot(o, TN_REGION_BACKWARD, k);
    }
}

tn_status pp_schedule(void *self, const struct tn_program *program, int32_t micro_batches, struct tn_slot *slots,
                      uint32_t cap, uint32_t *n)
{
    const struct pp *pp = self;
    struct order o = { .slots = slots,
                       .cap = cap,
                       .ranks = pp->size,
                       .chunks = pp_stages(pp, pp->size) / pp->size,
                       .rank = pp->read->axis_coord(program, pp->read->axis_find(program, "pp")),
                       .micro_batches = micro_batches };
    int32_t ahead = least(o.ranks - o.rank - 1, micro_batches);
    switch (pp->schedule) {
    case PP_GPIPE: in_turn(&o, micro_batches); break;
    case PP_INTERLEAVED: interleaved(&o); break;
    case PP_ZERO_BUBBLE: zero_bubble(&o, ahead); break;
    default: in_turn(&o, ahead); break;
    }
    *n = o.n;
    return TN_OK;
}
