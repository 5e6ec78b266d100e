/* Equivalence, one run: trains like `tenon run`, and says what a layout may not change.
 *
 *     run JOB.ini RECORD PARAMS write|compare [--set SECTION.KEY=VALUE]...
 *
 * `write`, on one rank: PARAMS.start and PARAMS.end get all parameters, whole, in the model's order. `compare`: each
 * rank compares its part of each with those files, so that every replica is looked at. RECORD gets JSON lines from
 * every rank, each in one write; matrix.py judges. At each step: rank, step, loss, norm. Before the first and after
 * the last one: rank, when, and
 *     elements   in its part of each parameter
 *     unequal    how many differ in a bit
 *     worst      largest distance beside the parameter's largest element, or beside steps x lr if that is more
 *     param      where that is
 *     rms        root mean square of all distances beside steps x lr
 * Numbers that may be NaN are strings. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "job.h"

enum { MOST_OVERRIDES = 64 };

struct args {
    const char *manifest, *record, *params;
    int compare;
    const char *overrides[MOST_OVERRIDES];
    size_t n_overrides;
};

struct witness {
    const struct args *args;
    int32_t rank;
    int record;    /* file descriptor, appends */
    double travel; /* how far the optimizer may have carried an element */
};

/* What a rank found at one time. */
struct finding {
    struct tn_buf elements;
    uint64_t unequal, n;
    double worst, squares;
    const char *param;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* One parameter: this rank's part of it, in the order of its memory. */
struct part {
    const struct tn_program *p;
    tn_value v;
    struct tn_walk walk;
    int64_t n;
    float *data;
};

static void part_init(struct part *part, const struct tn_exec *exec, const struct tn_program *p, tn_value v)
{
    *part = (struct part){ .p = p, .v = v };
    if (tn_walk_init(&part->walk, p, v) != TN_OK)
        fail(p->values[v].name);
    part->n = part->walk.count;
    part->data = malloc((size_t)part->n * sizeof *part->data + 1);
    if (!part->data || tn_exec_read(exec, v, part->data, (uint64_t)part->n * sizeof *part->data) != TN_OK)
        fail(p->values[v].name);
}

static void part_finish(struct part *part)
{
    tn_walk_finish(&part->walk);
    free(part->data);
}

static void compare_part(struct part *part, const float *whole, int64_t n_whole, double travel, struct finding *finding)
{
    double scale = travel, worst = 0;
    for (int64_t i = 0; i < n_whole; i++)
        scale = fmax(scale, fabs((double)whole[i]));
    for (int64_t i = 0; i < part->n; i++) {
        float want = whole[tn_walk_next(&part->walk)];
        double distance = fabs((double)part->data[i] - (double)want);
        finding->unequal += memcmp(&part->data[i], &want, sizeof want) != 0;
        if (!(distance <= worst)) /* a NaN stays */
            worst = distance;
        finding->squares += distance * distance;
    }
    finding->n += (uint64_t)part->n;
    worst = worst > 0 || isnan(worst) ? worst / scale : 0;
    if (!(worst <= finding->worst)) {
        finding->worst = worst;
        finding->param = part->p->values[part->v].name;
    }
}

static FILE *open_params(const struct witness *w, const char *what)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", w->args->params, what);
    FILE *file = fopen(path, w->args->compare ? "rb" : "wb");
    if (!file)
        fail(path);
    return file;
}

static void write_param(FILE *file, FILE *names, const struct part *part)
{
    int64_t n = tn_elements(part->p->values[part->v].shape, part->p->values[part->v].rank);
    if (part->n != n || fwrite(part->data, sizeof *part->data, (size_t)n, file) != (size_t)n ||
        fprintf(names, "%lld %s\n", (long long)n, part->p->values[part->v].name) < 0)
        fail("write");
}

/* On one rank: every parameter, whole, and their names and sizes. */
static void write_params(const struct witness *w, const struct tn_exec *exec, const struct tn_program *flat, FILE *file,
                         FILE *names, struct finding *finding)
{
    for (tn_value v = 1; v <= flat->n_values; v++) {
        struct part part;
        if (flat->values[v].kind != TN_KIND_PARAM || flat->values[v].def)
            continue;
        part_init(&part, exec, flat, v);
        tn_buf_printf(&finding->elements, finding->elements.length ? ", %lld" : "%lld", (long long)part.n);
        write_param(file, names, &part);
        part_finish(&part);
    }
}

/* In any layout: this rank's part of each, none of those that are another stage's; "w#1" is a copy of w. */
static void compare_params(const struct witness *w, const struct tn_exec *exec, const struct tn_program *flat,
                           FILE *file, FILE *names, struct finding *finding)
{
    char name[512], copy[520];
    long long n;
    while (fscanf(names, "%lld %511s\n", &n, name) == 2) {
        float *whole = malloc((size_t)n * sizeof *whole);
        if (!whole || fread(whole, sizeof *whole, (size_t)n, file) != (size_t)n)
            fail("read");
        struct part part = { 0 };
        snprintf(copy, sizeof copy, "%s#1", name);
        tn_value v = tn_value_find(flat, name) ? tn_value_find(flat, name) : tn_value_find(flat, copy);
        if (v) {
            part_init(&part, exec, flat, v);
            compare_part(&part, whole, n, w->travel, finding);
        }
        tn_buf_printf(&finding->elements, finding->elements.length ? ", %lld" : "%lld", (long long)part.n);
        if (v)
            part_finish(&part);
        free(whole);
    }
}

static void say(const struct witness *w, const struct tn_buf *line)
{
    if (write(w->record, line->text, line->length) != (ssize_t)line->length)
        fail(w->args->record);
}

static void on_params(void *ctx, const struct tn_exec *exec, const struct tn_program *flat, int64_t step)
{
    const struct witness *w = ctx;
    struct finding finding = { .param = "" };
    struct tn_buf line;
    FILE *file = open_params(w, step == 0 ? "start" : "end"), *names = open_params(w, "names");
    tn_buf_init(&finding.elements);
    tn_buf_init(&line);
    (w->args->compare ? compare_params : write_params)(w, exec, flat, file, names, &finding);
    if (fclose(file) || fclose(names))
        fail(w->args->params);
    tn_buf_printf(&line, "{\"rank\": %d, \"when\": \"%s\", \"elements\": [%s], ", w->rank, step == 0 ? "start" : "end",
                  finding.elements.text);
    tn_buf_printf(&line, "\"unequal\": %llu, \"worst\": \"%.9g\", \"param\": \"%s\", \"rms\": \"%.9g\"}\n",
                  (unsigned long long)finding.unequal, finding.worst, finding.param,
                  sqrt(finding.squares / (double)(finding.n + !finding.n)) / w->travel);
    say(w, &line);
    tn_buf_finish(&line);
    tn_buf_finish(&finding.elements);
}

static void on_step(void *ctx, const struct tn_step_report *report)
{
    const struct witness *w = ctx;
    struct tn_buf line;
    tn_buf_init(&line);
    tn_buf_printf(&line, "{\"rank\": %d, \"step\": %lld, \"loss\": \"%.9g\", \"norm\": \"%.9g\"}\n", w->rank,
                  (long long)report->step, report->loss, report->grad_norm);
    say(w, &line);
    tn_buf_finish(&line);
}

static int train(const struct args *args, struct tn_job *job, struct tn_rank *rank)
{
    struct witness w = { .args = args,
                         .rank = rank ? rank->rank : 0,
                         .travel = job->settings.lr * (double)job->settings.steps,
                         .record = open(args->record, O_WRONLY | O_CREAT | O_APPEND, 0600) };
    const struct tn_observer observer = { .ctx = &w, .params = on_params, .step = on_step };
    if (w.record < 0)
        fail(args->record);
    int code = tn_job_train(job, rank, NULL, &observer);
    close(w.record);
    return code;
}

static int refuse(struct tn_job *job)
{
    tn_diag_print(&job->diag, stderr);
    tn_job_close(job);
    return 2;
}

static int run_rank(const struct args *args, int32_t me, int32_t world)
{
    struct tn_job job;
    struct tn_rank rank;
    char error[1024] = "";
    tn_log_setup(me, TN_LOG_WARN);
    if (tn_job_open(&job, args->manifest, args->overrides, args->n_overrides, world))
        return refuse(&job);
    if (tn_rank_init(&rank, (uint64_t)job.settings.comm_timeout_ns, error, sizeof error) != TN_OK) {
        tn_log(TN_LOG_ERROR, "%s", error);
        return 1;
    }
    int code = train(args, &job, &rank);
    tn_job_close(&job);
    if (code == 0)
        tn_rank_finish(&rank);
    return code;
}

static int run_local(const struct args *args, char **argv)
{
    struct tn_job job;
    tn_launch_hold_signals();
    if (tn_job_open(&job, args->manifest, args->overrides, args->n_overrides, 0))
        return refuse(&job);
    int32_t world = job.mesh.world;
    if (world > 1) {
        tn_job_close(&job);
        return tn_launch_local(world, argv);
    }
    tn_launch_alone();
    int code = train(args, &job, NULL);
    tn_job_close(&job);
    return code;
}

int main(int argc, char **argv)
{
    struct args args = { 0 };
    char error[512];
    int32_t rank = 0, world = 1;
    if (argc < 5) {
        fprintf(stderr, "usage: run JOB.ini RECORD PARAMS write|compare [--set SECTION.KEY=VALUE]...\n");
        return 2;
    }
    args.manifest = argv[1];
    args.record = argv[2];
    args.params = argv[3];
    args.compare = strcmp(argv[4], "compare") == 0;
    for (int i = 5; i + 1 < argc && args.n_overrides < MOST_OVERRIDES; i += 2)
        args.overrides[args.n_overrides++] = argv[i + 1];
    int joined = tn_launch_joined(&rank, &world, error, sizeof error);
    if (joined < 0) {
        fprintf(stderr, "%s\n", error);
        return 2;
    }
    return joined ? run_rank(&args, rank, world) : run_local(&args, argv);
}
