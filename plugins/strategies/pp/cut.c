/* pp: which layers each stage gets. Even, by the manifest's list, or by cost.
 *
 * By cost, the largest stage is as small as can be; among the cuts that reach this, the one whose stages are most alike
 * (least sum of squares) is taken, so that no stage is emptied for the sake of another. */
#include "pp.h"

#include <stdlib.h>
#include <string.h>

int32_t pp_stages(const struct pp *pp, int32_t size)
{
    int32_t chunks = pp->chunks > 0 ? pp->chunks : pp->schedule == PP_INTERLEAVED ? 2 : 1;
    return size > 1 ? size * chunks : 1;
}

int pp_is_by_cost(const struct pp *pp)
{
    return pp->n_layers == 1 && strcmp(pp->layers[0], "cost") == 0;
}

int pp_cut(const struct pp *pp, int32_t stages, int64_t layers, int32_t *first)
{
    int listed = pp->n_layers > 0 && !pp_is_by_cost(pp);
    first[0] = 0;
    for (int32_t stage = 0; stage < stages; stage++) {
        int64_t count = layers / stages + (stage < layers % stages);
        if (listed)
            count = stage < (int32_t)pp->n_layers ? strtoll(pp->layers[stage], NULL, 10) : 0;
        if (count < 1 || first[stage] + count > layers)
            return 0;
        first[stage + 1] = first[stage] + (int32_t)count;
    }
    return first[stages] == layers && (!listed || (int32_t)pp->n_layers == stages);
}

struct costs {
    const double *sum; /* sum[l]: cost of the layers before l */
    double before, after;
    int32_t layers, stages;
};

/* Cost of `stage` if it has layers [from, to). */
static double stage_cost(const struct costs *c, int32_t stage, int32_t from, int32_t to)
{
    return c->sum[to] - c->sum[from] + (stage == 0 ? c->before : 0) + (stage == c->stages - 1 ? c->after : 0);
}

/* Whether stages of at most `most` each can take all layers, each at least one. */
static int fits(const struct costs *c, double most)
{
    int32_t at = 0;
    for (int32_t stage = 0; stage < c->stages; stage++) {
        int32_t left = c->stages - stage - 1, to = at + 1;
        if (stage_cost(c, stage, at, to) > most)
            return 0;
        while (to < c->layers - left && stage_cost(c, stage, at, to + 1) <= most)
            to++;
        at = to;
    }
    return at == c->layers;
}

static double least_most(const struct costs *c)
{
    double low = 0, high = c->sum[c->layers] + c->before + c->after;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        *(fits(c, middle) ? &high : &low) = middle;
    }
    return high;
}

/* least[l]: smallest sum of squares of the stages so far if they end before layer l; from: where the last one began. */
static void most_alike(const struct costs *c, double most, double *least, double *next, int32_t *from)
{
    for (int32_t l = 0; l <= c->layers; l++)
        least[l] = l == 0 ? 0 : -1; /* -1: cannot be */
    for (int32_t stage = 0; stage < c->stages; stage++) {
        for (int32_t to = 0; to <= c->layers; to++) {
            next[to] = -1;
            for (int32_t at = to - 1; at >= stage; at--) {
                double cost = stage_cost(c, stage, at, to);
                if (cost > most)
                    break;
                if (least[at] >= 0 && (next[to] < 0 || least[at] + cost * cost < next[to])) {
                    next[to] = least[at] + cost * cost;
                    from[(int64_t)stage * (c->layers + 1) + to] = at;
                }
            }
        }
        memcpy(least, next, ((size_t)c->layers + 1) * sizeof *least);
    }
}

tn_status pp_cut_by_cost(const struct tn_host *host, const double *cost, int32_t layers, double before, double after,
                         int32_t stages, int32_t *first)
{
    uint64_t row = (uint64_t)layers + 1;
    double *sum = host->alloc(host, 3 * row * sizeof *sum);
    int32_t *from = host->alloc(host, row * (uint64_t)stages * sizeof *from);
    if (sum && from) {
        struct costs c = { sum, before, after, layers, stages };
        sum[0] = 0;
        for (int32_t l = 0; l < layers; l++)
            sum[l + 1] = sum[l] + cost[l];
        most_alike(&c, least_most(&c) * (1 + 1e-9), sum + row, sum + 2 * row, from);
        first[stages] = layers;
        for (int32_t stage = stages - 1; stage >= 0; stage--)
            first[stage] = from[(uint64_t)stage * row + (uint64_t)first[stage + 1]];
    }
    tn_status status = sum && from ? TN_OK : TN_NO_MEMORY;
    host->release(host, sum);
    host->release(host, from);
    return status;
}
