/* Golden: ten steps of tiny models on one rank against PyTorch's numbers (README.md says what the files hold).
 *
 * Each case goes the whole way from its job.ini to bound kernels; only the parameters and the batches come from
 * files. The optimizer's gradients, the values `<param>.g`, are flagged as outputs after the last pass that moves
 * ops, so that the planner keeps them readable to the end of the step.
 *
 * Bounds. u is the unit roundoff: 2^-24 in fp32, 2^-9 in bf16. A gradient is a sum of terms of both signs, each off by
 * some roundings, so its error is a share of the tensor's largest element, whatever the element's own size: tensors
 * are compared on the scale of their largest element in all ten steps (in one step the terms of all of a dozen elements
 * may cancel), and fused ones as a whole (the key third of GPT-2's c_attn.bias is zero but for rounding). Between a
 * parameter and the loss and back lie about 40 roundings to the compute type; as independent errors of u / sqrt(3) they
 * add up to 3.7 u, which is 0.7% in bf16 (and nothing beside 1e-5 in fp32). The root mean square is held to four times
 * that (some tensors have a dozen elements), the largest of some thousand elements to seven times; loss and norm
 * average over many such errors. In fp32 the bound is 1e-5, and the root mean square is held to a third of it.
 *
 * AdamW divides by the root of the mean square, so an element that is small beside its tensor moves by up to lr in a
 * direction that its noise helps to decide. After n steps of rate lr a parameter may be off by a share of n lr, and
 * its bound is a share of that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>

#include "job.h"
#include "checkpoint/safetensors.h"

/* Largest relative errors. */
struct bounds {
    double loss, norm, gradient, gradient_rms; /* gradients: of the tensor's largest element */
    double param;                              /* of steps x lr */
};

struct golden {
    const char *name, *compute;
    struct bounds bounds;
    char folder[1024];
    struct tn_job job;
    struct tn_compiled compiled;
    struct tn_machine machine;
    struct tn_exec *exec;
    struct tn_feed *feed;
    double *scale;   /* by value: the largest element of a param's gradients */
    double worst[5]; /* as in bounds, over all */
};

static const char *data_folder;

static const char *file_of(const struct golden *g, const char *file)
{
    static char path[2048];
    snprintf(path, sizeof path, "%s/%s", g->folder, file);
    return path;
}

/* files */

/* The whole tensor, of 4-byte elements. The caller frees it. */
static void *read_tensor(const struct tn_safetensors *file, const char *name, uint64_t *elements)
{
    char error[512];
    const struct tn_safetensors_entry *entry = tn_safetensors_find(file, name);
    if (!entry)
        fail_msg("the file has no %s", name);
    void *data = malloc(entry->bytes + 1);
    assert_non_null(data);
    if (tn_safetensors_read(file, entry, 0, entry->bytes, data, error, sizeof error) != TN_OK)
        fail_msg("%s", error);
    *elements = entry->bytes / 4;
    return data;
}

static struct tn_safetensors *open_file(const struct golden *g, const char *name)
{
    struct tn_safetensors *file = NULL;
    char error[512];
    if (tn_safetensors_open(&file, file_of(g, name), error, sizeof error) != TN_OK)
        fail_msg("%s", error);
    return file;
}

static double number_at(const json_t *record, const char *key, size_t step)
{
    const json_t *number = json_array_get(json_object_get(record, key), step);
    assert_non_null(number);
    return json_number_value(number);
}

/* What a file says of a parameter, cut out where the model keeps one third of a fused tensor. */
struct expected {
    float *data;
    int64_t n;
    double scale; /* largest element of the stored tensor */
};

static struct expected expect(const struct tn_safetensors *file, const struct tn_value_data *param)
{
    struct expected e = { .n = tn_elements(param->shape, param->rank) };
    uint64_t elements;
    float *whole = read_tensor(file, param->stored.name ? param->stored.name : param->name, &elements);
    for (uint64_t i = 0; i < elements; i++)
        e.scale = fmax(e.scale, fabs((double)whole[i]));
    e.data = whole;
    if (!param->stored.name) {
        assert_int_equal(elements, e.n);
        return e;
    }
    int32_t dim = param->stored.dim;
    int64_t outer = tn_elements(param->shape, dim), inner = e.n / outer / param->shape[dim], part = e.n / outer;
    assert_int_equal(elements, outer * param->stored.full * inner);
    e.data = malloc((size_t)e.n * sizeof *e.data);
    assert_non_null(e.data);
    for (int64_t o = 0; o < outer; o++)
        memcpy(e.data + o * part, whole + (o * param->stored.full + param->stored.offset) * inner,
               (size_t)part * sizeof *e.data);
    free(whole);
    return e;
}

/* from job.ini to kernels */

/* Called after each arrow: "lower" is the last one whose program the planner will see. */
static int keep_gradients(void *ctx, const char *stage, const struct tn_program *p, const struct tn_plan *plan)
{
    if (strcmp(stage, "lower") != 0)
        return 0;
    TN_EACH_OP(p, op)
        if (p->ops[op].opcode == TN_OP_SYNC)
            p->values[p->ops[op].out[0]].flags |= TN_VALUE_OUTPUT;
    return 0;
}

static void open_golden(struct golden *g)
{
    char error[1024] = "", compute[64];
    const struct tn_watch watch = { .after = keep_gradients };
    snprintf(g->folder, sizeof g->folder, "%s/%s", data_folder, g->name);
    snprintf(compute, sizeof compute, "precision.compute=%s", g->compute);
    size_t problems = tn_job_open(&g->job, file_of(g, "job.ini"), (const char *const[]){ compute }, 1, 1);
    if (problems || tn_job_compile(&g->job, TN_PROGRAM_TRAIN, 0, 0, 0, NULL, &watch, &g->compiled) != TN_OK) {
        tn_diag_print(&g->job.diag, stderr);
        fail_msg("%s does not compile", g->name);
    }
    if (tn_machine_init(&g->machine, &g->job, NULL, tn_plan_bytes(&g->compiled.plan), error, sizeof error) != TN_OK)
        fail_msg("%s", error);
    memset(g->machine.arena, 0xff, g->machine.arena_bytes); /* what nobody writes is a NaN */
    g->exec = tn_exec_bind(&g->machine, &g->compiled.plan, error, sizeof error);
    if (!g->exec)
        fail_msg("%s", error);
    g->feed = tn_feed_new(g->exec, &g->compiled.flat);
    assert_non_null(g->feed);
    assert_int_equal(tn_init_params(g->exec, &g->compiled.flat, 0), TN_OK);
}

static void close_golden(struct golden *g)
{
    free(g->scale);
    tn_feed_destroy(g->feed);
    tn_exec_destroy(g->exec);
    tn_compiled_finish(&g->compiled);
    tn_machine_finish(&g->machine, &g->job);
    tn_job_close(&g->job);
}

static int is_param(const struct tn_program *p, tn_value v)
{
    return p->values[v].kind == TN_KIND_PARAM && !p->values[v].def;
}

static void load_params(const struct golden *g)
{
    const struct tn_program *p = &g->compiled.flat;
    struct tn_safetensors *file = open_file(g, "initial.safetensors");
    size_t taken = 0;
    for (tn_value v = 1; v <= p->n_values; v++) {
        if (!is_param(p, v))
            continue;
        struct expected e = expect(file, &p->values[v]);
        assert_int_equal(tn_exec_write(g->exec, v, e.data, (uint64_t)e.n * sizeof *e.data), TN_OK);
        free(e.data);
        taken += !p->values[v].stored.name || p->values[v].stored.offset == 0;
    }
    assert_int_equal(taken, tn_safetensors_count(file)); /* the model has no fewer parameters than PyTorch's */
    tn_safetensors_close(file);
}

/* comparing */

static void hold(struct golden *g, int which, double error, double bound, const char *what, int64_t step)
{
    g->worst[which] = fmax(g->worst[which], error);
    if (!(error <= bound)) /* a NaN must fail too */
        fail_msg("%s in %s, step %lld: %s is off by %.3g; the bound is %.3g", g->name, g->compute, (long long)step,
                 what, error, bound);
}

static float *read_value(const struct golden *g, tn_value v, int64_t n)
{
    assert_int_not_equal(v, 0);
    float *data = malloc((size_t)n * sizeof *data);
    assert_non_null(data);
    assert_int_equal(tn_exec_read(g->exec, v, data, (uint64_t)n * sizeof *data), TN_OK);
    return data;
}

/* Largest and root mean square distance. */
static void distance(const float *a, const float *b, int64_t n, double *most, double *rms)
{
    double sum = 0;
    *most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= *most))
            *most = d;
        sum += d * d;
    }
    *rms = sqrt(sum / (double)n);
}

static struct tn_safetensors *open_gradients(const struct golden *g, int64_t step)
{
    char name[64];
    snprintf(name, sizeof name, "grad_%lld.safetensors", (long long)step);
    return open_file(g, name);
}

static void find_scales(struct golden *g)
{
    const struct tn_program *p = &g->compiled.flat;
    g->scale = calloc((size_t)p->n_values + 1, sizeof *g->scale);
    assert_non_null(g->scale);
    for (int64_t step = 1; step <= g->job.settings.steps; step++) {
        struct tn_safetensors *file = open_gradients(g, step);
        for (tn_value v = 1; v <= p->n_values; v++) {
            if (!is_param(p, v))
                continue;
            struct expected e = expect(file, &p->values[v]);
            g->scale[v] = fmax(g->scale[v], e.scale);
            free(e.data);
        }
        tn_safetensors_close(file);
    }
}

static void compare_gradients(struct golden *g, int64_t step)
{
    const struct tn_program *p = &g->compiled.flat;
    char name[256];
    struct tn_safetensors *file = open_gradients(g, step);
    for (tn_value v = 1; v <= p->n_values; v++) {
        if (!is_param(p, v))
            continue;
        struct expected e = expect(file, &p->values[v]);
        double most, rms;
        snprintf(name, sizeof name, "%s.g", p->values[v].name);
        float *got = read_value(g, tn_value_find(p, name), e.n);
        distance(got, e.data, e.n, &most, &rms);
        hold(g, 2, most / g->scale[v], g->bounds.gradient, name, step);
        hold(g, 3, rms / g->scale[v], g->bounds.gradient_rms, name, step);
        free(got);
        free(e.data);
    }
    tn_safetensors_close(file);
}

static void compare_params(struct golden *g)
{
    const struct tn_program *p = &g->compiled.flat;
    struct tn_safetensors *file = open_file(g, "final.safetensors");
    for (tn_value v = 1; v <= p->n_values; v++) {
        if (!is_param(p, v))
            continue;
        struct expected e = expect(file, &p->values[v]);
        double most, rms;
        float *got = read_value(g, v, e.n);
        distance(got, e.data, e.n, &most, &rms);
        hold(g, 4, most / ((double)g->job.settings.steps * g->job.settings.lr), g->bounds.param, p->values[v].name,
             g->job.settings.steps);
        free(got);
        free(e.data);
    }
    tn_safetensors_close(file);
}

static void run_step(struct golden *g, int64_t step, const int32_t *tokens, const int32_t *labels, const json_t *record)
{
    const struct tn_program *p = &g->compiled.flat;
    assert_int_equal(tn_feed_rows(g->feed, tokens, labels), TN_OK);
    assert_int_equal(tn_feed_step(g->feed, (float)tn_lr_at(&g->job.settings, step), (float)(step + 1), (float)step),
                     TN_OK);
    assert_int_equal(tn_exec_step(g->exec), TN_OK);
    float *loss = read_value(g, tn_value_find(p, "loss.mean"), 1);
    float *clip = read_value(g, tn_value_find(p, "grad.clip"), 4);
    double loss_want = number_at(record, "loss", (size_t)step);
    double norm_want = number_at(record, "grad_norm", (size_t)step);
    hold(g, 0, fabs((double)loss[0] / loss_want - 1), g->bounds.loss, "the loss", step + 1);
    hold(g, 1, fabs((double)clip[1] / norm_want - 1), g->bounds.norm, "the gradient's norm", step + 1);
    free(clip);
    free(loss);
}

static void test_case(void **state)
{
    struct golden *g = *state;
    open_golden(g);
    load_params(g);
    find_scales(g);
    struct tn_safetensors *batches = open_file(g, "batches.safetensors");
    json_t *record = json_load_file(file_of(g, "steps.json"), 0, NULL);
    uint64_t n, per_step = (uint64_t)(g->job.settings.batch * g->job.settings.sequence);
    int32_t *tokens = read_tensor(batches, "tokens", &n), *labels = read_tensor(batches, "labels", &n);
    assert_non_null(record);
    assert_int_equal(n, per_step * (uint64_t)g->job.settings.steps);
    for (int64_t step = 0; step < g->job.settings.steps; step++) {
        run_step(g, step, tokens + (uint64_t)step * per_step, labels + (uint64_t)step * per_step, record);
        compare_gradients(g, step + 1);
    }
    compare_params(g);
    print_message("%s %s: worst loss %.2g, norm %.2g, gradient %.2g (rms %.2g), parameter %.2g\n", g->name, g->compute,
                  g->worst[0], g->worst[1], g->worst[2], g->worst[3], g->worst[4]);
    free(labels);
    free(tokens);
    json_decref(record);
    tn_safetensors_close(batches);
    close_golden(g);
}

int main(int argc, char **argv)
{
    const struct bounds fp32 = { 1e-5, 1e-5, 1e-5, 3e-6, 1e-3 }, bf16 = { 1e-3, 1e-2, 5e-2, 3e-2, 1 };
    struct golden g[] = {
        { .name = "gpt2", .compute = "fp32", .bounds = fp32 },  { .name = "llama", .compute = "fp32", .bounds = fp32 },
        { .name = "qwen", .compute = "fp32", .bounds = fp32 },  { .name = "gpt2", .compute = "bf16", .bounds = bf16 },
        { .name = "llama", .compute = "bf16", .bounds = bf16 }, { .name = "qwen", .compute = "bf16", .bounds = bf16 },
    };
    struct CMUnitTest tests[sizeof g / sizeof *g];
    data_folder = argc > 1 ? argv[1] : ".";
    for (size_t i = 0; i < sizeof g / sizeof *g; i++)
        tests[i] = (struct CMUnitTest){ .name = i < 3 ? "matches PyTorch in fp32" : "stays near it in bf16",
                                        .test_func = test_case,
                                        .initial_state = &g[i] };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
