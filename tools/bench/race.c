/* Contestants that take turns, and what their calls took (bench.h). */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_CALLS = 20, MOST_CALLS = 1000, START_UNIT_NS = 4 };

/* A sample as it travels: what the store holds of a whole run is limited. Starts wrap round after 17 s, which is longer
 * than the entries into one call are apart. */
struct packed {
    uint32_t start; /* START_UNIT_NS */
    float took_ns;  /* 0: this rank looked on */
};

/* Calls of the first `block` blocks. */
static size_t calls_before(size_t calls, size_t blocks, size_t block)
{
    return calls * block / blocks;
}

/* Seconds that a call of this contestant takes on this rank, roughly. */
static double try_one(const struct bench_race *race, int who)
{
    struct bench_sample sample;
    uint64_t spent_ns = 0, calls = 0;
    race->warm(race->ctx, who, 3);
    do {
        race->run(race->ctx, who, &sample, 1);
        spent_ns += sample.took_ns;
        calls++;
    } while (calls < 4); /* the same number on all ranks */
    return (double)spent_ns / (double)calls * 1e-9;
}

static int64_t find_calls(struct bench_world *w, const struct bench_race *race)
{
    double slowest = 0;
    for (int who = 0; who < race->n; who++) {
        double seconds = try_one(race, who);
        slowest = seconds > slowest ? seconds : slowest;
    }
    double fit = slowest > 0 ? race->seconds / slowest : MOST_CALLS;
    int64_t calls = fit < LEAST_CALLS ? LEAST_CALLS : fit > MOST_CALLS ? MOST_CALLS : (int64_t)fit;
    bench_tell(w, &calls, sizeof calls);
    return calls;
}

/* `all`: of every rank, one after another. */
static void digest(const struct bench_world *w, const struct packed *all, size_t calls, size_t blocks,
                   struct bench_outcome *outcome)
{
    double *took = bench_alloc(calls * sizeof *took), *skew = bench_alloc(calls * sizeof *skew);
    double *rate = bench_alloc(calls * sizeof *rate);
    for (size_t i = 0; i < calls; i++) {
        int32_t first = 0, last = 0; /* after rank 0's start */
        for (int32_t r = 0; r < w->n; r++) {
            const struct packed *sample = &all[(size_t)r * calls + i];
            if (!(sample->took_ns > 0))
                continue;
            int32_t after = (int32_t)(sample->start - all[i].start);
            first = after < first ? after : first;
            last = after > last ? after : last;
            took[i] = sample->took_ns * 1e-3 > took[i] ? sample->took_ns * 1e-3 : took[i];
            rate[i] += 1e9 / sample->took_ns;
        }
        skew[i] = ((double)last - first) * START_UNIT_NS * 1e-3;
    }
    *outcome = (struct bench_outcome){ .time_us = bench_median(took, calls),
                                       .p99_us = bench_percentile(took, calls, 99),
                                       .least_us = bench_percentile(took, calls, 0),
                                       .blocks = blocks,
                                       .skew_us = w->local_n == w->n ? bench_median(skew, calls) : -1,
                                       .rate = bench_median(rate, calls),
                                       .iterations = calls };
    for (size_t block = 0; block < blocks; block++) {
        size_t from = calls_before(calls, blocks, block);
        outcome->block_us[block] = bench_median(took + from, calls_before(calls, blocks, block + 1) - from);
    }
    free(took);
    free(skew);
    free(rate);
}

static void collect(struct bench_world *w, const struct bench_sample *mine, size_t calls, size_t blocks,
                    struct bench_outcome *outcome)
{
    struct packed *own = bench_alloc(calls * sizeof *own);
    struct packed *all = w->rank == 0 ? bench_alloc((size_t)w->n * calls * sizeof *all) : NULL;
    for (size_t i = 0; i < calls; i++)
        own[i] = (struct packed){ (uint32_t)(mine[i].start_ns / START_UNIT_NS), (float)mine[i].took_ns };
    bench_gather(w, own, calls * sizeof *own, all);
    if (w->rank == 0)
        digest(w, all, calls, blocks, outcome);
    free(own);
    free(all);
}

void bench_race_run(struct bench_world *w, const struct bench_race *race, struct bench_outcome *outcome)
{
    size_t calls = (size_t)(race->iterations ? race->iterations : find_calls(w, race));
    size_t blocks = calls < BENCH_BLOCKS ? calls : BENCH_BLOCKS;
    int n = race->n + race->n_more;
    struct bench_sample **mine = bench_alloc((size_t)n * sizeof *mine);
    for (int who = 0; who < n; who++)
        mine[who] = bench_alloc((who < race->n ? calls : blocks) * sizeof **mine);
    for (size_t block = 0; block < blocks; block++)
        for (int turn = 0; turn < n; turn++) {
            int who = (int)((block + (size_t)turn) % (size_t)n);
            int64_t before = block == 0 && race->warmups > 1 ? race->warmups : 1;
            size_t from = who < race->n ? calls_before(calls, blocks, block) : block;
            size_t to = who < race->n ? calls_before(calls, blocks, block + 1) : block + 1;
            race->warm(race->ctx, who, race->warmups ? before : 0);
            race->run(race->ctx, who, mine[who] + from, to - from);
        }
    for (int who = 0; who < n; who++) {
        collect(w, mine[who], who < race->n ? calls : blocks, blocks, &outcome[who]);
        free(mine[who]);
    }
    free(mine);
}
