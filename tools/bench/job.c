/* tenon bench comm --job: the collectives of one step of a job, on each backend (bench.h).
 *
 * The job is compiled as for a run, and its own executor walks the bound program: collectives start where they would
 * start and are waited for where they would be waited for. Only the device is another one: its kernels do nothing, or
 * keep the processor busy for as long as the job's device says that they take. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "job.h"

enum { MOST_TRAFFIC = TN_MAX_AXES * 8 };

/* ---- the device that computes nothing ---- */

struct tn_kernel {
    double seconds;
};

struct idle_device {
    const struct tn_device *real; /* for its cost */
    void *real_self;
    double scale; /* of modelled time; 0: none */
    struct tn_kernel *kernel;
    size_t n, cap;
    uint64_t unknown; /* kernels without a modelled time */
};

static tn_status idle_bind(void *self, const struct tn_op_desc *op, void *scratch, struct tn_kernel **kernel)
{
    struct idle_device *d = self;
    (void)scratch;
    double seconds = d->real->cost ? d->real->cost(d->real_self, op) : 0;
    d->unknown += !(seconds > 0);
    if (d->n == d->cap)
        return TN_NO_MEMORY;
    d->kernel[d->n].seconds = seconds > 0 ? seconds : 0;
    *kernel = &d->kernel[d->n++];
    return TN_OK;
}

static void idle_kernel_destroy(void *self, struct tn_kernel *kernel)
{
    (void)self, (void)kernel;
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* By the processor's time, not the clock's: ranks that share a core take turns, as with real kernels. */
static tn_status idle_launch(void *self, struct tn_kernel *kernel, struct tn_queue *queue)
{
    const struct idle_device *d = self;
    (void)queue;
    uint64_t ns = (uint64_t)(kernel->seconds * d->scale * 1e9);
    if (ns)
        for (uint64_t end = cpu_ns() + ns; cpu_ns() < end;)
            ;
    return TN_OK;
}

static tn_status idle_sync(void *self, struct tn_queue *queue)
{
    const struct idle_device *d = self;
    return d->real->queue_sync(d->real_self, queue);
}

static tn_status idle_copy(void *self, void *to, const void *from, uint64_t bytes, struct tn_queue *queue)
{
    const struct idle_device *d = self;
    return d->real->copy(d->real_self, to, from, bytes, queue);
}

static tn_status idle_event_create(void *self, struct tn_event **event)
{
    const struct idle_device *d = self;
    return d->real->event_create(d->real_self, event);
}

static void idle_event_destroy(void *self, struct tn_event *event)
{
    const struct idle_device *d = self;
    d->real->event_destroy(d->real_self, event);
}

static tn_status idle_event_record(void *self, struct tn_event *event, struct tn_queue *queue)
{
    const struct idle_device *d = self;
    return d->real->event_record(d->real_self, event, queue);
}

static tn_status idle_event_wait(void *self, struct tn_event *event, struct tn_queue *queue)
{
    const struct idle_device *d = self;
    return d->real->event_wait(d->real_self, event, queue);
}

/* What the executor calls; queues, events and copies are the real device's. */
static const struct tn_device idle_table = {
    .struct_size = sizeof(struct tn_device),
    .bind = idle_bind,
    .kernel_destroy = idle_kernel_destroy,
    .launch = idle_launch,
    .queue_sync = idle_sync,
    .copy = idle_copy,
    .event_create = idle_event_create,
    .event_destroy = idle_event_destroy,
    .event_record = idle_event_record,
    .event_wait = idle_event_wait,
};

/* ---- one backend: the whole job with it ---- */

struct entrant {
    const char *name;
    struct tn_job job;
    struct tn_compiled compiled;
    struct tn_machine machine;
    struct idle_device device;
    struct tn_exec *exec;
    struct bench_bootstrap bootstrap;
    struct tn_rank rank; /* the job's, with this backend's bootstrap */
    const struct tn_collective *table;
    struct tn_comm *world;
    struct tn_arena memory; /* of overrides */
};

struct replay {
    const struct bench_options *o;
    struct bench_world *w;
    struct entrant *entrant;
    int n;
};

static int is_part(const char *backend, const char *word, size_t length)
{
    for (const char *at = backend; at; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL)
        if (strcspn(at, "+") == length && strncmp(at, word, length) == 0)
            return 1;
    return 0;
}

/* Options of a backend that this job does not use would be problems of its manifest. */
static int concerns_another(const struct bench_options *o, int which, const char *override)
{
    size_t length = strcspn(override, ".");
    int others = 0;
    for (int i = 0; i < o->n_backends; i++)
        others |= i != which && is_part(o->backend[i], override, length);
    return others && !(o->n_backends && is_part(o->backend[which], override, length));
}

/* "verify+trace+shm": comm.backend = shm, comm.layers = verify, trace. Without --backends, as the manifest says. */
static size_t overrides_of(const struct bench_options *o, int which, struct entrant *e, const char **list)
{
    size_t n = 0;
    for (size_t i = 0; i < o->n_overrides; i++)
        if (!concerns_another(o, which, o->overrides[i]))
            list[n++] = o->overrides[i];
    if (!o->n_backends)
        return n;
    const char *at = o->backend[which], *layers = "";
    size_t length;
    for (; at[length = strcspn(at, "+")]; at += length + 1)
        layers = tn_arena_printf(&e->memory, "%s%s%s", layers, *layers ? ", " : "",
                                 bench_plugin_name(&e->memory, at, length));
    list[n++] = tn_arena_printf(&e->memory, "comm.backend=%s", bench_plugin_name(&e->memory, at, length));
    list[n++] = tn_arena_printf(&e->memory, "comm.layers=%s", layers);
    return n;
}

static size_t open_job(const struct bench_options *o, int which, struct entrant *e)
{
    const char *list[TOOL_MOST_OVERRIDES + 2];
    tn_arena_init(&e->memory);
    size_t n = overrides_of(o, which, e, list);
    return tn_job_open(&e->job, o->job, list, n, o->ranks);
}

static int n_entrants(const struct bench_options *o)
{
    return o->n_backends ? o->n_backends : 1;
}

int32_t bench_job_ranks(const struct bench_options *o)
{
    int32_t ranks = 0;
    for (int i = 0; i < n_entrants(o); i++) {
        struct entrant *e = bench_alloc(sizeof *e);
        size_t problems = open_job(o, i, e);
        ranks = problems ? 0 : e->job.mesh.world;
        tn_diag_print(&e->job.diag, stderr);
        tn_job_close(&e->job);
        tn_arena_finish(&e->memory);
        free(e);
        if (problems)
            return 0;
    }
    if (ranks == 1) {
        fprintf(stderr, "tenon bench: %s has one rank, which communicates with nobody; use -p\n", o->job);
        return 0;
    }
    return ranks;
}

/* A group of all ranks, for the barrier before each block of steps. */
static void meet(const struct bench_world *w, struct entrant *e)
{
    struct tn_backend *backend = &e->job.backend[e->machine.world_carrier];
    struct tn_instance *collective = tn_job_collective(backend);
    int32_t *ranks = bench_alloc((size_t)w->n * sizeof *ranks);
    for (int32_t r = 0; r < w->n; r++)
        ranks[r] = r;
    e->table = tn_instance_table(collective);
    tn_status status = e->table->comm_create(collective->self, "bench", ranks, w->n, w->timeout_ns, &e->world);
    if (status != TN_OK)
        bench_die(w, "%s: %s%s", e->name, tn_instance_message(collective), bench_advice(status));
    free(ranks);
}

static void start(struct bench_world *w, const struct bench_options *o, int which, struct entrant *e)
{
    char error[1024] = "";
    size_t problems = open_job(o, which, e);
    e->name = o->n_backends ? bench_label(&e->memory, o->backend[which]) : "as in the manifest";
    if (problems || tn_job_compile(&e->job, TN_PROGRAM_TRAIN, w->rank, 0, 0, NULL, NULL, &e->compiled) != TN_OK) {
        if (w->rank == 0)
            tn_diag_print(&e->job.diag, stderr);
        fflush(stderr);
        _Exit(TOOL_USAGE);
    }
    e->rank = w->joined;
    bench_bootstrap_init(&e->bootstrap, &w->joined.bootstrap, which);
    e->rank.bootstrap = e->bootstrap.table;
    uint64_t peak = 0, bytes = (uint64_t)tn_plan_bytes(&e->compiled.plan);
    tn_status status = tn_machine_agree(&e->job, &e->rank, bytes, &peak, error, sizeof error);
    if (status == TN_OK)
        status = tn_machine_init(&e->machine, &e->job, &e->rank, (int64_t)bytes, error, sizeof error);
    if (status == TN_OK)
        status = tn_machine_spaces(&e->machine, &e->job, tn_plan_away(&e->compiled.plan, TN_SPACE_HOST),
                                   tn_plan_away(&e->compiled.plan, TN_SPACE_DISK), error, sizeof error);
    if (status != TN_OK)
        bench_die(w, "%s: %s", e->name, error);
    e->device = (struct idle_device){ .real = e->machine.device,
                                      .real_self = e->machine.device_self,
                                      .cap = e->compiled.flat.n_ops + 1 };
    e->device.kernel = bench_alloc(e->device.cap * sizeof *e->device.kernel);
    struct tn_machine machine = e->machine;
    machine.device = &idle_table;
    machine.device_self = &e->device;
    e->exec = tn_exec_bind(&machine, &e->compiled.plan, error, sizeof error);
    if (!e->exec)
        bench_die(w, "%s: %s", e->name, error);
    meet(w, e);
}

/* A device may measure how fast it is whenever it is made. All backends, and all ranks, shall have the same model: that
 * of the first job, at rank 0's speed. */
static void share_model(struct bench_world *w, struct entrant *entrant, int n)
{
    double mine = tn_job_device(&entrant[0].job)->peak_flops_f32, first = mine;
    bench_tell(w, &first, sizeof first);
    double scale = mine > 0 && first > 0 ? mine / first : 1;
    struct idle_device *model = &entrant[0].device;
    for (size_t i = 0; i < model->n; i++)
        model->kernel[i].seconds *= scale;
    for (int k = 1; k < n; k++)
        if (entrant[k].device.n == model->n)
            memcpy(entrant[k].device.kernel, model->kernel, model->n * sizeof *model->kernel);
}

static void stop(struct entrant *e)
{
    e->table->comm_destroy(e->world);
    tn_exec_destroy(e->exec);
    tn_machine_finish(&e->machine, &e->job);
    tn_compiled_finish(&e->compiled);
    tn_job_close(&e->job);
    tn_arena_finish(&e->memory);
    free(e->device.kernel);
}

/* ---- as contestants: each backend; and, where compute is modelled, compute alone ---- */

static void barrier(struct replay *m, struct entrant *e)
{
    struct tn_request *r = NULL;
    tn_status status = e->table->barrier(e->world, NULL, &r);
    if (status == TN_OK && r)
        status = e->table->wait(r, m->w->timeout_ns);
    if (status != TN_OK)
        bench_die(m->w, "%s: barrier: %s%s", e->name, tn_machine_message(&e->job, e->machine.world_carrier),
                  bench_advice(status));
}

static void step(struct replay *m, int who)
{
    if (who == m->n) {
        struct idle_device *d = &m->entrant[0].device;
        for (size_t i = 0; i < d->n; i++)
            idle_launch(d, &d->kernel[i], NULL);
    } else if (tn_exec_step(m->entrant[who].exec) != TN_OK) {
        bench_die(m->w, "%s: the step failed", m->entrant[who].name);
    }
}

static void warm(void *ctx, int who, int64_t calls)
{
    struct replay *m = ctx;
    barrier(m, &m->entrant[who < m->n ? who : 0]);
    for (int64_t i = 0; i < calls && who < m->n; i++)
        step(m, who);
}

static void run(void *ctx, int who, struct bench_sample *samples, size_t calls)
{
    struct replay *m = ctx;
    uint64_t before = bench_now_ns();
    for (size_t i = 0; i < calls; i++) {
        step(m, who);
        uint64_t after = bench_now_ns();
        samples[i] = (struct bench_sample){ before, after - before };
        before = after;
    }
}

static void race(struct replay *m, double scale, struct bench_outcome *outcome)
{
    struct bench_race r = { .ctx = m,
                            .n = m->n,
                            .n_more = scale > 0,
                            .warm = warm,
                            .run = run,
                            .iterations = m->o->iterations,
                            .warmups = m->o->warmups,
                            .seconds = m->o->seconds };
    for (int i = 0; i < m->n; i++)
        m->entrant[i].device.scale = scale;
    bench_race_run(m->w, &r, outcome);
}

/* ---- output ---- */

/* Calls and bytes of one op on one axis. */
struct traffic {
    int32_t axis;
    uint32_t opcode;
    int64_t calls;
    double bytes;
};

static size_t count_traffic(const struct tn_program *flat, struct traffic *traffic)
{
    size_t n = 0;
    TN_EACH_OP(flat, op) {
        uint32_t opcode = flat->ops[op].opcode;
        int32_t axis = (int32_t)tn_attr_i(flat, op, "axis", 0);
        double flops, bytes;
        size_t i = 0;
        if (!tn_op_is_comm(opcode))
            continue;
        tn_op_kind(opcode)->cost(flat, op, &flops, &bytes);
        while (i < n && (traffic[i].axis != axis || traffic[i].opcode != opcode))
            i++;
        if (i == MOST_TRAFFIC)
            continue;
        if (i == n)
            traffic[n++] = (struct traffic){ .axis = axis, .opcode = opcode };
        traffic[i].calls++;
        traffic[i].bytes += bytes;
    }
    return n;
}

static json_t *traffic_json(const struct entrant *e)
{
    struct traffic traffic[MOST_TRAFFIC];
    size_t n = count_traffic(&e->compiled.flat, traffic);
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, json_pack("{s:s, s:s, s:I, s:f}", "axis", e->job.mesh.axis[traffic[i].axis].name,
                                             "op", tn_op_kind(traffic[i].opcode)->name, "calls",
                                             (json_int_t)traffic[i].calls, "bytes", traffic[i].bytes));
    return all;
}

static void print_head(const struct replay *m, const json_t *traffic)
{
    const struct entrant *e = &m->entrant[0];
    printf("# job %s: mesh", m->o->job);
    for (int32_t axis = 0; axis < e->job.mesh.n_axes; axis++)
        printf("%s %s %d", axis ? "," : "", e->job.mesh.axis[axis].name, e->job.mesh.axis[axis].size);
    printf("; communication of a step on rank 0:\n");
    for (size_t i = 0; i < json_array_size(traffic); i++) {
        const json_t *row = json_array_get(traffic, i);
        const char *op = json_string_value(json_object_get(row, "op"));
        printf("#   %-8s %-16s %6lld calls %12.2f MiB %s\n", json_string_value(json_object_get(row, "axis")), op,
               (long long)json_integer_value(json_object_get(row, "calls")),
               json_real_value(json_object_get(row, "bytes")) / 1048576.0, strcmp(op, "recv") ? "sent" : "received");
    }
}

struct row {
    struct bench_outcome alone, step;
    struct bench_interval alone_ratio, step_ratio;
    double hidden; /* share of the communication behind compute; negative: not known */
};

static void print_row(const struct replay *m, int which, const struct row *row)
{
    char hidden[16] = "-", alone[64] = "1", step_ratio[64] = "1";
    if (row->hidden >= 0)
        snprintf(hidden, sizeof hidden, "%.0f%%", 100 * row->hidden);
    if (which > 0) {
        snprintf(alone, sizeof alone, "%.2f [%.2f, %.2f]", row->alone_ratio.middle, row->alone_ratio.low,
                 row->alone_ratio.high);
        snprintf(step_ratio, sizeof step_ratio, "%.3f [%.3f, %.3f]", row->step_ratio.middle, row->step_ratio.low,
                 row->step_ratio.high);
    }
    printf("  %-20s %11.1f %11.1f  %-20s %11.1f %11.1f %7s  %s\n", m->entrant[which].name, row->alone.time_us,
           row->alone.p99_us, alone, row->step.time_us, row->step.p99_us, hidden, step_ratio);
}

static json_t *row_json(const struct replay *m, int which, const struct row *row, double compute_us)
{
    return json_pack("{s:s, s:s, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "op", "step",
                     "backend", m->entrant[which].name, "ranks", m->w->n, "iterations",
                     (json_int_t)row->alone.iterations, "alone_us", row->alone.time_us, "alone_p99_us",
                     row->alone.p99_us, "alone_ratio", row->alone_ratio.middle, "alone_ratio_low", row->alone_ratio.low,
                     "alone_ratio_high", row->alone_ratio.high, "step_us", row->step.time_us, "step_p99_us",
                     row->step.p99_us, "step_ratio", row->step_ratio.middle, "step_ratio_low", row->step_ratio.low,
                     "step_ratio_high", row->step_ratio.high, "compute_us", compute_us, "hidden_share",
                     row->hidden >= 0 ? json_real(row->hidden) : json_null());
}

/* What the others would make of the step, in words. */
static void print_gain(const struct replay *m, const struct row *rows, double compute_us)
{
    printf("# a step's compute alone, as modelled: %.1f us\n", compute_us);
    for (int i = 1; i < m->n; i++) {
        double percent = 100 * (rows[i].step_ratio.middle - 1);
        int is_clear = rows[i].step_ratio.low > 1 || rows[i].step_ratio.high < 1;
        if (is_clear)
            printf("# with %s in place of %s the step takes %.1f%% %s\n", m->entrant[i].name, m->entrant[0].name,
                   percent < 0 ? -percent : percent, percent < 0 ? "less" : "more");
        else
            printf("# with %s in place of %s the step takes the same, as far as this run can tell\n",
                   m->entrant[i].name, m->entrant[0].name);
    }
}

static void compare(const struct replay *m, const struct bench_outcome *alone, const struct bench_outcome *steps,
                    int has_model, struct row *rows)
{
    double compute_us = steps[m->n].time_us;
    for (int i = 0; i < m->n; i++) {
        struct row *row = &rows[i];
        row->alone = alone[i];
        row->step = steps[i];
        row->alone_ratio = bench_ratio(alone[i].block_us, alone[0].block_us, alone[i].blocks);
        row->step_ratio = bench_ratio(steps[i].block_us, steps[0].block_us, steps[i].blocks);
        double exposed = steps[i].time_us - compute_us;
        row->hidden = 1 - exposed / alone[i].time_us;
        row->hidden = !has_model ? -1 : row->hidden < 0 ? 0 : row->hidden > 1 ? 1 : row->hidden;
    }
}

static int report(struct replay *m, json_t *about, const struct bench_outcome *alone, const struct bench_outcome *steps)
{
    struct row rows[BENCH_MOST_BACKENDS] = { 0 };
    int has_model = m->entrant[0].device.unknown < m->entrant[0].device.n;
    json_t *results = json_array(), *traffic = traffic_json(&m->entrant[0]);
    int is_table = !m->o->json && !m->o->csv;
    compare(m, alone, steps, has_model, rows);
    if (is_table) {
        print_head(m, traffic);
        printf("#\n# %-20s %11s %11s  %-20s %11s %11s %7s  %s\n", "backend", "alone", "p99", "ratio", "step", "p99",
               "hidden", "ratio");
        printf("# %-20s %11s %11s  %-20s %11s %11s\n", "", "(us)", "(us)", "[95% interval]", "(us)", "(us)");
    }
    for (int i = 0; i < m->n; i++) {
        if (is_table)
            print_row(m, i, &rows[i]);
        json_array_append_new(results, row_json(m, i, &rows[i], steps[m->n].time_us));
    }
    if (is_table && has_model)
        print_gain(m, rows, steps[m->n].time_us);
    json_t *more = json_pack("{s:s, s:o}", "job", m->o->job, "communication", traffic);
    int failed = bench_output(m->o, about, results, more, NULL);
    json_decref(more);
    json_decref(results);
    return failed ? TOOL_FAILED : TOOL_DONE;
}

int bench_job_run(const struct bench_options *o, struct bench_world *w)
{
    struct bench_outcome alone[BENCH_MOST_BACKENDS + 1] = { 0 }, steps[BENCH_MOST_BACKENDS + 1] = { 0 };
    struct replay m = { .o = o, .w = w, .n = n_entrants(o) };
    int code = TOOL_DONE;
    m.entrant = bench_alloc((size_t)m.n * sizeof *m.entrant);
    for (int i = 0; i < m.n; i++)
        start(w, o, i, &m.entrant[i]);
    share_model(w, m.entrant, m.n);
    json_t *about = bench_about(o, w);
    for (int i = 0; i < m.n && about; i++)
        bench_about_add(about, m.entrant[i].name, &m.entrant[i].job);
    if (w->rank == 0 && !o->json && !o->csv)
        bench_about_print(about, stdout);
    race(&m, 0, alone);
    race(&m, o->compute, steps);
    if (w->rank == 0)
        code = report(&m, about, alone, steps);
    bench_tell(w, &code, sizeof code);
    for (int i = 0; i < m.n; i++)
        stop(&m.entrant[i]);
    free(m.entrant);
    json_decref(about);
    return code;
}
