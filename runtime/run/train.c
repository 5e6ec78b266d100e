/* Train: the run of one rank (job.h): compile, bind, the step loop, validation, the closing sample.
 *
 * Everything that is not a step is done before the first one or after the last. Rank 0 reports. Each step, the ranks
 * agree on whether to go on, so that an interrupt ends all of them after the same one. */
#include "job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"

/* A compiled program, bound. */
struct bound {
    struct tn_compiled compiled;
    struct tn_exec *exec;
    struct tn_feed *feed;
    tn_value loss, clip; /* outputs; 0: it has none */
    int ready;           /* compiled */
};

struct run {
    struct tn_job *job;
    struct tn_rank *rank; /* NULL: a world of one */
    struct tn_machine machine;
    struct bound train, eval, sample;
    struct tn_data *data;
    struct tn_prefetch *prefetch;
    struct tn_report *report; /* of rank 0 */
    const struct tn_observer *observer;
    uint64_t peak_bytes;
    struct tn_progress done;
    int interrupted; /* a rank was told to end, and all know */
    struct tn_checkpoint *checkpoint;
    int32_t *tokens, *labels; /* of one validation batch */
    int32_t *starts;          /* of the batch at hand, where documents are separate */
    struct tn_comm *all;      /* every rank of the world */
    float *vote;              /* one element that all can reduce */
};

static int is_first(const struct run *run)
{
    return !run->rank || run->rank->rank == 0;
}

/* What all ranks find alike, `tenon run` has refused before it started them; the rest is this rank's own to say. */
static int refuse(const struct run *run)
{
    tn_diag_print(&run->job->diag, stderr);
    return 2;
}

/* compiling and binding */

static tn_status compile(struct run *run, struct bound *b, int mode, int64_t batch, int64_t sequence)
{
    const struct tn_plan *base = mode == TN_PROGRAM_TRAIN ? NULL : &run->train.compiled.plan;
    tn_status status =
        tn_job_compile(run->job, mode, run->rank ? run->rank->rank : 0, batch, sequence, base, NULL, &b->compiled);
    b->ready = 1;
    return status;
}

/* Rows of the smallest batch that every rank has a part of. */
static int64_t sample_rows(const struct tn_program *p)
{
    int64_t rows = 1;
    tn_value tokens = tn_value_find(p, "tokens");
    for (int32_t axis = 0; tokens && axis < p->mesh->n_axes; axis++) {
        tn_placement place = p->values[tokens].place[axis];
        if (TN_PLACE_KIND(place) == TN_PLACE_SHARD && TN_PLACE_DIM(place) == 0)
            rows *= TN_PLACE_PARTS(place) ? p->parts[TN_PLACE_PARTS(place)].sum : p->mesh->axis[axis].size;
    }
    return rows;
}

static int wants_sample(const struct run *run)
{
    return run->job->settings.sample[0] != 0 && run->job->settings.sample_tokens > 0;
}

static tn_status compile_all(struct run *run)
{
    tn_status status = compile(run, &run->train, TN_PROGRAM_TRAIN, 0, 0);
    if (status == TN_OK && tn_data_tokens(run->data, TN_SPLIT_VALIDATION) > 0)
        status = compile(run, &run->eval, TN_PROGRAM_EVAL, 0, 0);
    if (status == TN_OK && wants_sample(run))
        status = compile(run, &run->sample, TN_PROGRAM_SAMPLE, sample_rows(&run->train.compiled.program),
                         run->job->settings.sequence);
    if (status == TN_OK && run->job->diag.count == 0)
        tn_job_check_budget(run->job, run->rank ? run->rank->rank : 0, &run->train.compiled.plan);
    return run->job->diag.count ? TN_INVALID : status;
}

static int64_t arena_bytes(const struct run *run)
{
    int64_t most = 0;
    const struct bound *all[] = { &run->train, &run->eval, &run->sample };
    for (size_t i = 0; i < 3; i++)
        if (all[i]->ready && tn_plan_bytes(&all[i]->compiled.plan) > most)
            most = tn_plan_bytes(&all[i]->compiled.plan);
    return most;
}

static int64_t away_bytes(const struct run *run, uint32_t space)
{
    int64_t most = 0;
    const struct bound *all[] = { &run->train, &run->eval, &run->sample };
    for (size_t i = 0; i < 3; i++)
        if (all[i]->ready && tn_plan_away(&all[i]->compiled.plan, space) > most)
            most = tn_plan_away(&all[i]->compiled.plan, space);
    return most;
}

/* An output is called by what it was before resolve made it whole, and how. */
static tn_value find_output(const struct tn_program *flat, const char *name)
{
    for (tn_value v = 1; v <= flat->n_values; v++)
        if ((flat->values[v].flags & TN_VALUE_OUTPUT) && strncmp(flat->values[v].name, name, strlen(name)) == 0)
            return v;
    return 0;
}

static tn_status bind(struct run *run, struct bound *b, char *error, size_t error_bytes)
{
    if (!b->ready)
        return TN_OK;
    b->exec = tn_exec_bind(&run->machine, &b->compiled.plan, error, error_bytes);
    b->feed = b->exec ? tn_feed_new(b->exec, &b->compiled.flat) : NULL;
    b->loss = find_output(&b->compiled.flat, "loss.mean");
    b->clip = find_output(&b->compiled.flat, "grad.clip");
    return b->feed ? TN_OK : TN_ERROR;
}

static void unbind(struct bound *b)
{
    tn_feed_destroy(b->feed);
    tn_exec_destroy(b->exec);
    if (b->ready)
        tn_compiled_finish(&b->compiled);
}

static const struct tn_carrier *vote_carrier(const struct run *run)
{
    return &run->machine.carrier[run->machine.world_carrier];
}

static tn_status create_vote(struct run *run, char *error, size_t error_bytes)
{
    const struct tn_carrier *b = vote_carrier(run);
    if (!run->rank)
        return TN_OK;
    int32_t world = run->rank->world, *ranks = malloc((size_t)world * sizeof *ranks);
    void *memory = NULL;
    for (int32_t r = 0; ranks && r < world; r++)
        ranks[r] = r;
    tn_status status = ranks ? b->table->mem_alloc(b->self, 64, &memory) : TN_NO_MEMORY;
    run->vote = memory;
    if (status == TN_OK)
        status = b->table->comm_create(b->self, "world", ranks, world, run->machine.timeout_ns, &run->all);
    if (status != TN_OK)
        snprintf(error, error_bytes, "the group of all ranks could not be made: %s",
                 tn_machine_message(run->job, run->machine.world_carrier));
    free(ranks);
    return status;
}

static tn_status prepare(struct run *run, char *error, size_t error_bytes)
{
    int64_t bytes = arena_bytes(run);
    run->peak_bytes = (uint64_t)bytes;
    tn_status status = TN_OK;
    if (run->rank)
        status = tn_machine_agree(run->job, run->rank, (uint64_t)bytes, &run->peak_bytes, error, error_bytes);
    if (status == TN_OK)
        status = tn_machine_init(&run->machine, run->job, run->rank, bytes, error, error_bytes);
    if (status == TN_OK)
        status = tn_machine_spaces(&run->machine, run->job, away_bytes(run, TN_SPACE_HOST),
                                   away_bytes(run, TN_SPACE_DISK), error, error_bytes);
    if (status == TN_OK)
        status = create_vote(run, error, error_bytes);
    if (status == TN_OK)
        status = bind(run, &run->train, error, error_bytes);
    if (status == TN_OK)
        status = bind(run, &run->eval, error, error_bytes);
    if (status == TN_OK)
        status = bind(run, &run->sample, error, error_bytes);
    if (status == TN_OK)
        status = tn_init_params(run->train.exec, &run->train.compiled.flat, run->job->settings.seed);
    return status;
}

/* Why the vote is not coming to an end. */
static void explain_vote(struct run *run, tn_status status)
{
    struct tn_comm_error error = { .struct_size = sizeof error, .peer = -1 };
    const char *death = tn_store_death(run->rank->store, NULL),
               *what = "all_reduce of the vote between steps on all ranks";
    if (vote_carrier(run)->table->last_error)
        vote_carrier(run)->table->last_error(run->all, &error);
    if (death)
        tn_log(TN_LOG_ERROR, "%s cannot finish: %s", what, death);
    else if (status == TN_TIMEOUT && error.peer >= 0)
        tn_log(TN_LOG_ERROR, "%s: rank %d did not arrive within %.0f s", what, error.peer,
               (double)run->machine.timeout_ns * 1e-9);
    else
        tn_log(TN_LOG_ERROR, "%s failed: %s", what,
               error.message && *error.message ? error.message : "a rank is missing");
}

/* The largest of what all ranks say. */
static float most(void *ctx, float mine, tn_status *status)
{
    struct run *run = ctx;
    if (!run->rank || *status != TN_OK)
        return mine;
    const struct tn_collective *b = vote_carrier(run)->table;
    struct tn_request *request = NULL;
    double began = tn_now_s();
    *run->vote = mine;
    *status = b->all_reduce(run->all, run->vote, run->vote, 1, TN_F32, TN_RED_MAX, run->machine.queue, &request);
    while (request && *status == TN_OK && (*status = b->wait(request, 100000000)) == TN_TIMEOUT)
        if (!tn_store_death(run->rank->store, NULL) && (tn_now_s() - began) * 1e9 < (double)run->machine.timeout_ns)
            *status = TN_OK;
    if (*status < 0)
        explain_vote(run, *status);
    return *run->vote;
}

/* Asked before each batch and each token drawn, so that an interrupt ends all ranks between the same two. */
static int goes_on(struct run *run, tn_status *status)
{
    if (*status != TN_OK || run->interrupted)
        return 0;
    run->interrupted = most(run, (float)tn_rank_interrupted(), status) > 0;
    if (run->interrupted && is_first(run))
        tn_log(TN_LOG_WARN, "interrupted after step %lld", (long long)run->done.step);
    return *status == TN_OK && !run->interrupted;
}

/* validation and sample */

static void feed_starts(struct run *run, struct bound *b, int split, int64_t step)
{
    const struct tn_settings *s = &run->job->settings;
    if (s->separate)
        tn_data_starts(run->data, split, step, 0, s->batch, run->starts);
    tn_feed_starts(b->feed, s->separate ? run->starts : NULL);
}

static tn_status validate(struct run *run, int64_t step)
{
    const struct tn_settings *s = &run->job->settings;
    double sum = 0;
    tn_status status = TN_OK;
    if (!run->eval.exec)
        return TN_OK;
    for (int64_t i = 0; i < s->eval_batches && goes_on(run, &status); i++) {
        float loss = 0;
        if (tn_data_rows(run->data, TN_SPLIT_VALIDATION, i, 0, s->batch, run->tokens, run->labels))
            return TN_IO;
        feed_starts(run, &run->eval, TN_SPLIT_VALIDATION, i);
        status = tn_feed_rows(run->eval.feed, run->tokens, run->labels);
        if (status == TN_OK)
            status = tn_exec_step(run->eval.exec);
        if (status == TN_OK)
            status = tn_exec_read(run->eval.exec, run->eval.loss, &loss, sizeof loss);
        sum += loss;
    }
    if (status == TN_OK && !run->interrupted && run->report)
        tn_report_validation(run->report, step, sum / (double)s->eval_batches);
    return status;
}

static tn_status print_sample(struct run *run)
{
    const struct tn_settings *s = &run->job->settings;
    if (!run->sample.exec)
        return TN_OK;
    int64_t n_prompt = (int64_t)strlen(s->sample);
    int32_t *tokens = malloc((size_t)(n_prompt + s->sample_tokens) * sizeof *tokens);
    char *text = malloc((size_t)s->sample_tokens);
    tn_status status = tokens && text ? TN_OK : TN_NO_MEMORY;
    for (int64_t i = 0; status == TN_OK && i < n_prompt; i++)
        tokens[i] = (unsigned char)s->sample[i];
    for (int64_t i = 0; i < s->sample_tokens && goes_on(run, &status); i++) {
        status = tn_sample(run->sample.exec, run->sample.feed, &run->sample.compiled.flat, s->seed, s->temperature,
                           tokens, n_prompt + i, i);
        if (status == TN_OK)
            text[i] = (char)tokens[n_prompt + i];
    }
    if (status == TN_OK && !run->interrupted && run->report)
        tn_report_sample(run->report, s->sample, text, (size_t)s->sample_tokens);
    free(text);
    free(tokens);
    return status;
}

/* the steps */

static void report_step(struct run *run, int64_t step, float loss, const float clip[4], double lr, double took)
{
    const struct tn_settings *s = &run->job->settings;
    const struct tn_device_info *info = &run->job->device_info; /* speeds: where something is reported */
    double peak = s->compute == TN_COMPUTE_BF16 ? info->peak_flops_bf16 : info->peak_flops_f32;
    struct tn_step_report report = {
        .step = step + 1,
        .steps = s->steps,
        .loss = loss,
        .grad_norm = clip[1],
        .lr = lr,
        .tokens = s->batch * s->sequence,
        .step_ms = took * 1e3,
        .tokens_per_s = (double)(s->batch * s->sequence) / took,
        .mfu = peak > 0 ? run->train.compiled.flops / took / peak : -1,
        .mem_peak_bytes = run->peak_bytes,
        .skipped = run->done.skipped,
    };
    if (run->report)
        tn_report_step(run->report, &report);
    if (run->observer && run->observer->step)
        run->observer->step(run->observer->ctx, &report);
}

static tn_status train_step(struct run *run, int64_t step)
{
    const struct tn_settings *s = &run->job->settings;
    struct bound *b = &run->train;
    const int32_t *tokens, *labels;
    float loss = NAN, clip[4] = { 0 };
    double lr = tn_lr_at(s, step), began = tn_now_s();
    if (tn_prefetch_next(run->prefetch, step, &tokens, &labels))
        return TN_IO;
    feed_starts(run, b, TN_SPLIT_TRAIN, step);
    tn_status status = tn_feed_rows(b->feed, tokens, labels);
    if (status == TN_OK)
        status = tn_feed_step(b->feed, (float)lr, (float)(run->done.applied + 1), (float)step);
    if (status == TN_OK)
        status = tn_exec_step(b->exec);
    if (status == TN_OK)
        status = tn_exec_read(b->exec, b->loss, &loss, sizeof loss);
    if (status == TN_OK)
        status = tn_exec_read(b->exec, b->clip, clip, sizeof clip);
    if (status != TN_OK)
        return status;
    int skip = clip[2] != 0;
    run->done.step = step + 1;
    run->done.skipped += skip;
    run->done.applied += !skip;
    run->done.skipped_in_row = skip ? run->done.skipped_in_row + 1 : 0;
    report_step(run, step, loss, clip, lr, tn_now_s() - began);
    if (run->done.skipped_in_row >= s->max_skipped) {
        if (is_first(run))
            tn_log(TN_LOG_ERROR,
                   "%lld steps in a row had a gradient that is not finite; lower [optimizer] lr, or raise [job] "
                   "max_skipped",
                   (long long)run->done.skipped_in_row);
        return TN_ERROR;
    }
    return TN_OK;
}

static void show_params(struct run *run, int64_t step)
{
    if (run->observer && run->observer->params)
        run->observer->params(run->observer->ctx, run->train.exec, &run->train.compiled.flat, step);
}

static tn_status run_steps(struct run *run)
{
    const struct tn_settings *s = &run->job->settings;
    int64_t step = run->done.step;
    show_params(run, step);
    tn_status status = validate(run, step);
    while (step < s->steps && goes_on(run, &status)) {
        status = train_step(run, step++);
        double stall_ms = 0;
        if (status == TN_OK)
            status = tn_checkpoint_step(run->checkpoint, &run->done, &stall_ms);
        if (stall_ms > 0 && run->report)
            tn_report_checkpoint(run->report, step, stall_ms);
        if (status == TN_OK && s->eval_every > 0 && step % s->eval_every == 0 && step < s->steps)
            status = validate(run, step);
    }
    show_params(run, step);
    if (status == TN_OK)
        status = tn_checkpoint_end(run->checkpoint, &run->done);
    if (status == TN_OK && !run->interrupted)
        status = validate(run, step);
    if (status == TN_OK && !run->interrupted)
        status = print_sample(run);
    return status == TN_OK && run->interrupted ? TN_ABORTED : status;
}

static int open_data(struct run *run)
{
    const struct tn_settings *s = &run->job->settings;
    tn_data_open(&run->data, s, &run->job->manifest, run->job->facts.get(&run->job->facts, "vocab", 0),
                 &run->job->diag);
    if (run->rank && run->rank->server) /* else our launcher has looked before */
        tn_data_warn(run->data, s);
    size_t n = (size_t)(s->batch * s->sequence);
    run->tokens = malloc(n * sizeof *run->tokens);
    run->labels = malloc(n * sizeof *run->labels);
    run->starts = malloc(n * sizeof *run->starts);
    return run->data && run->tokens && run->labels && run->starts ? 0 : -1;
}

static tn_status open_checkpoint(struct run *run)
{
    const struct tn_checkpoint_of of = { .job = run->job,
                                         .rank = run->rank,
                                         .exec = run->train.exec,
                                         .compiled = &run->train.compiled,
                                         .most = most,
                                         .ctx = run };
    return tn_checkpoint_open(&run->checkpoint, &of, &run->done);
}

static void finish(struct run *run)
{
    tn_checkpoint_close(run->checkpoint);
    if (run->all)
        vote_carrier(run)->table->comm_destroy(run->all);
    if (run->vote)
        vote_carrier(run)->table->mem_free(vote_carrier(run)->self, run->vote);
    tn_prefetch_stop(run->prefetch);
    unbind(&run->sample);
    unbind(&run->eval);
    unbind(&run->train);
    if (run->machine.device)
        tn_machine_finish(&run->machine, run->job);
    tn_data_close(run->data);
    free(run->tokens);
    free(run->labels);
    free(run->starts);
}

int tn_job_train(struct tn_job *job, struct tn_rank *rank, const char *metrics, const struct tn_observer *observer)
{
    struct run run = { .job = job, .rank = rank, .observer = observer };
    char error[1024] = "";
    int code = 1;
    if (open_data(&run) || compile_all(&run) != TN_OK) {
        code = refuse(&run);
        goto done;
    }
    if (prepare(&run, error, sizeof error) != TN_OK) {
        tn_log(TN_LOG_ERROR, "%s", *error ? error : "the parameters could not be set up");
        goto done;
    }
    if (open_checkpoint(&run) != TN_OK)
        goto done; /* it has said why */
    if (tn_prefetch_start(&run.prefetch, run.data, run.done.step) ||
        (is_first(&run) && tn_report_open(&run.report, metrics, run.done.step, error))) {
        tn_log(TN_LOG_ERROR, "%s", *error ? error : "the data could not be read");
        goto done;
    }
    if (run.report)
        tn_job_device(run.job); /* for MFU; it must not measure within a step */
    tn_status status = run_steps(&run);
    code = status == TN_OK ? 0 : 1;
    if (tn_report_close(run.report, error)) {
        tn_log(TN_LOG_ERROR, "%s", error);
        code = 1;
    }
done:
    finish(&run);
    return code;
}
