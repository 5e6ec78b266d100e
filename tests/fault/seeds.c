/* Seeded faults: many short runs of four ranks, in each of which something goes wrong (or not) by seed; none may hang.
 *
 *     seeds FIRST COUNT FAULT.so BACKEND.so [VERIFY.so]
 *
 * By turns the ranks are slow (then all must come out right), one hangs, one is killed, or gets a flipped bit. Each run
 * ends with right results, or with an error in time on every rank that lives; nothing is left behind. Prints how many
 * runs ended how. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "harness.h"

enum { RANKS = 4, CALLS = 12, COUNT = 700 };
enum { SLOW, HANG, KILL, FLIP, KINDS };
enum { ALL_RIGHT, ERROR, WRONG_VALUE, OUTCOMES };

static int kind;
static _Atomic uint64_t (*ends)[OUTCOMES]; /* ranks by kind and outcome; all processes map it */

static const char *const settings[KINDS] = {
    "delay=0.2 delay_time=2ms",
    "delay=0.05 drop=0.01",
    "delay=0.05 kill=0.01",
    "corrupt=0.02",
};

/* One collective; the elements are small whole numbers, so sums are exact. */
static tn_status one_call(struct rank *r, int call, float *x, float *all, int *is_right)
{
    struct tn_request *q = NULL;
    tn_status status;
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(r->rank + call + i % 5);
    if (call % 3 == 0)
        status = r->t->all_reduce(r->world, x, x, COUNT, TN_F32, TN_RED_SUM, NULL, &q);
    else if (call % 3 == 1)
        status = r->t->all_gather(r->world, x, all, COUNT, TN_F32, NULL, &q);
    else
        status = r->t->broadcast(r->world, x, x, COUNT, TN_F32, call % r->n, NULL, &q);
    if (status == TN_OK)
        status = r->t->wait(q, SECONDS(kind == HANG ? 0.4 : 60));
    for (int i = 0; i < COUNT && status == TN_OK; i++) {
        float mine = (float)(call + i % 5);
        if (call % 3 == 0)
            *is_right &= x[i] == mine * (float)r->n + (float)(r->n * (r->n - 1) / 2);
        else if (call % 3 == 2)
            *is_right &= x[i] == mine + (float)(call % r->n);
        for (int32_t m = 0; call % 3 == 1 && m < r->n; m++)
            *is_right &= all[m * COUNT + i] == mine + (float)m;
    }
    return status;
}

static void run(struct rank *r)
{
    float *x = malloc(COUNT * sizeof *x), *all = malloc((size_t)(COUNT * r->n) * sizeof *all);
    int is_right = 1;
    tn_status status = TN_OK;
    meet(r); /* all have made their groups */
    for (int call = 0; call < CALLS && status == TN_OK; call++)
        status = one_call(r, call, x, all, &is_right);
    if (status != TN_OK) {
        CHECK(r, *r->host.message);
        r->t->comm_abort(r->world);
    }
    CHECK(r, kind != SLOW || status == TN_OK);
    CHECK(r, kind == FLIP || is_right);
    atomic_fetch_add(&ends[kind][status != TN_OK ? ERROR : is_right ? ALL_RIGHT : WRONG_VALUE], 1);
    free(x); /* an operation of an aborted group is over once all have left it: destroy below */
    free(all);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    int64_t first = atoll(argv[1]), count = atoll(argv[2]);
    struct world w = { .limit_s = 200, .expect_killed = ANY_RANK };
    const struct tn_plugin *fault = plainhost_load(argv[3], TN_PLUGIN_COLLECTIVE);
    const struct tn_plugin *backend = plainhost_load(argv[4], TN_PLUGIN_COLLECTIVE);
    w.plugin = fault;
    w.below[w.n_below++] = backend;
    if (argc > 5) {
        w.plugin = plainhost_load(argv[5], TN_PLUGIN_COLLECTIVE);
        w.below[0] = fault;
        w.below[w.n_below++] = backend;
    }
    ends = mmap(NULL, KINDS * sizeof *ends, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!w.plugin || !fault || !backend || ends == MAP_FAILED)
        return 1;
    int failed = 0;
    for (int64_t seed = first; seed < first + count; seed++) {
        char overrides[128], name[48];
        kind = (int)(seed % KINDS);
        snprintf(overrides, sizeof overrides, "seed=%" PRId64 " %s checksum=true", seed, settings[kind]);
        snprintf(name, sizeof name, "seed %" PRId64, seed);
        w.overrides = overrides;
        failed += world_run(&w, name, RANKS, run) > 0;
    }
    static const char *const names[KINDS] = { "slow", "hang", "kill", "flip" };
    for (int k = 0; k < KINDS; k++)
        printf("%s: ranks that ended right %" PRIu64 ", with an error %" PRIu64 ", with wrong values %" PRIu64 "\n",
               names[k], ends[k][ALL_RIGHT], ends[k][ERROR], ends[k][WRONG_VALUE]);
    printf("%" PRId64 " runs, %d failed\n", count, failed);
    return failed > 0;
}
