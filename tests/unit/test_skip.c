/* A step whose gradients are not finite changes nothing: no parameter, no optimizer state, on no rank, to the bit.
 * Cases are jobs (job_cases.h).
 *
 * After step 1 one rank gets an element of a parameter poisoned; after the steps that this spoils, it is restored and
 * everything is compared with what it was. The steps after those must go on as if nothing had been. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_cases.h"

enum { SPOILT = 2, STEPS = 6 };

static const struct {
    struct job_case job;
    int poisoned_rank;
    float poison;
    const char *param; /* part of its name */
} cases[] = {
    { { "one rank, NaN", 1, { "gpt.kv_heads=2" } }, 0, NAN, "q_proj" },
    { { "one rank, infinity, sgd", 1, { "optimizer.kind=sgd" } }, 0, INFINITY, "norm" },
    { { "one rank, bf16, micro-batches", 1, { "precision.compute=bf16", "data.micro_batches=4" } }, 0, NAN, "lm_head" },
    { { "one rank, no clipping", 1, { "optimizer.clip=0" } }, 0, NAN, "o_proj" },
    { { "tp = 2, the other rank's part", 2, { "strategies.chain=tp" } }, 1, NAN, "down_proj" },
    { { "dp = 2, one replica", 2, { "strategies.chain=dp" } }, 1, INFINITY, "k_proj" },
    { { "tp = 2, dp = 2", 4, { "strategies.chain=tp, dp", "tp.size=2", "dp.size=2" } }, 2, NAN, "up_proj" },
};
enum { CASES = sizeof cases / sizeof *cases };

static const char *const manifest =
    "[job]\nsteps = 6\nmax_skipped = 3\n[gpt]\nfamily = llama\nlayers = 2\nhidden = 64\nheads = 4\nvocab = 256\n"
    "[data]\npath = *.txt\nsequence = 32\nbatch = 8\nvalidation = 0\n[optimizer]\nschedule = constant\n"
    "[cpu]\nthreads = 1\n";

/* What the observer sees of a run. */
struct witness {
    int n, rank;
    const struct tn_exec *exec;
    const struct tn_program *flat;
    tn_value target;
    struct tn_arena memory;
    unsigned char **kept; /* by value: params and states before the spoilt steps */
    int failed;
};

static int lasts(const struct tn_value_data *value)
{
    return !value->def && (value->kind == TN_KIND_PARAM || value->kind == TN_KIND_STATE);
}

static uint64_t bytes_of(const struct witness *w, tn_value v)
{
    return (uint64_t)tn_local_elements(w->flat, v) * tn_dtype_bytes(w->flat->values[v].dtype);
}

static void complain(struct witness *w, int64_t step, const char *what)
{
    fprintf(stderr, "# rank %d, step %d: %s\n", w->rank, (int)step, what);
    w->failed = 1;
}

static void start(void *ctx, const struct tn_exec *exec, const struct tn_program *flat, int64_t step)
{
    struct witness *w = ctx;
    if (step > 0)
        return;
    w->exec = exec;
    w->flat = flat;
    w->kept = tn_arena_alloc(&w->memory, ((size_t)flat->n_values + 1) * sizeof *w->kept);
    for (tn_value v = 1; v <= flat->n_values; v++) {
        if (lasts(&flat->values[v]))
            w->kept[v] = tn_arena_alloc(&w->memory, bytes_of(w, v));
        if (flat->values[v].kind == TN_KIND_PARAM && !w->target && strstr(flat->values[v].name, cases[w->n].param))
            w->target = v;
    }
}

static void keep(struct witness *w)
{
    for (tn_value v = 1; v <= w->flat->n_values; v++)
        if (lasts(&w->flat->values[v]) && tn_exec_read(w->exec, v, w->kept[v], bytes_of(w, v)) != TN_OK)
            complain(w, 0, "cannot be read");
}

/* How many params and states differ from what was kept. */
static int changed(struct witness *w)
{
    int n = 0;
    for (tn_value v = 1; v <= w->flat->n_values; v++) {
        if (!lasts(&w->flat->values[v]))
            continue;
        unsigned char *now = malloc(bytes_of(w, v));
        if (!now || tn_exec_read(w->exec, v, now, bytes_of(w, v)) != TN_OK)
            abort();
        n += memcmp(now, w->kept[v], bytes_of(w, v)) != 0;
        free(now);
    }
    return n;
}

static void write_target(struct witness *w, float first)
{
    float *data = (float *)w->kept[w->target], before = data[0];
    if (w->rank != cases[w->n].poisoned_rank)
        return;
    data[0] = first;
    if (tn_exec_write(w->exec, w->target, data, bytes_of(w, w->target)) != TN_OK)
        complain(w, 0, "cannot be written");
    data[0] = before;
}

static void see_step(void *ctx, const struct tn_step_report *report)
{
    struct witness *w = ctx;
    int64_t step = report->step, spoilt = step - 1 < SPOILT ? step - 1 : SPOILT;
    if (report->skipped != spoilt)
        complain(w, step, "the number of skipped steps is wrong");
    if (step > 1 && step < 1 + SPOILT && isfinite(report->grad_norm))
        complain(w, step, "the poison did not reach this rank");
    if (step == 1) {
        keep(w);
        write_target(w, cases[w->n].poison);
    }
    if (step == 1 + SPOILT) {
        write_target(w, ((float *)w->kept[w->target])[0]);
        if (changed(w))
            complain(w, step, "a skipped step changed params or states");
    }
    if (step == 2 + SPOILT && (changed(w) == 0 || !isfinite(report->loss)))
        complain(w, step, "training did not go on");
}

static int train(int n, struct tn_job *job, struct tn_rank *rank)
{
    struct witness w = { .n = n, .rank = rank ? rank->rank : 0 };
    struct tn_observer observer = { .ctx = &w, .params = start, .step = see_step };
    tn_arena_init(&w.memory);
    int code = tn_job_train(job, rank, NULL, &observer) || w.failed;
    tn_arena_finish(&w.memory);
    return code;
}

static const struct job_case *at(int n)
{
    return &cases[n].job;
}

int main(int argc, char **argv)
{
    static const struct job_cases all = { .manifest = manifest,
                                          .line = "What was not done %d times need not be undone.\n",
                                          .n = CASES,
                                          .at = at,
                                          .train = train };
    return job_cases_main(&all, argc, argv);
}
