/* gpt: its names are PyTorch's, its program is sound, and what does not fit is reported.
 * Arguments: the folder of the plugins, the folder of the golden data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/safetensors.h"
#include "small_job.h"

static const char *golden;
static struct small_job job;

static const char *golden_path(const char *name, const char *file)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s/%s", golden, name, file);
    return path;
}

static void open_case(const char *name, const char *const *overrides)
{
    small_job_open(&job, golden_path(name, "job.ini"), overrides, NULL, NULL, 0);
}

/* Elements of the tensor that the param is, or is a slice of; fails where shapes differ. */
static int64_t stored_elements(const struct tn_safetensors *file, const struct tn_value_data *param)
{
    const char *name = param->stored.name ? param->stored.name : param->name;
    const struct tn_safetensors_entry *entry = tn_safetensors_find(file, name);
    if (!entry)
        fail_msg("PyTorch's model has no %s", name);
    assert_int_equal(entry->rank, param->rank);
    for (int32_t d = 0; d < param->rank; d++) {
        int fused = param->stored.name && param->stored.dim == d;
        if (entry->shape[d] != (fused ? param->stored.full : param->shape[d]))
            fail_msg("%s: dimension %d differs", name, d);
        if (fused)
            assert_true(param->stored.offset + param->shape[d] <= param->stored.full);
    }
    return tn_elements(param->shape, param->rank);
}

static void names_and_shapes_are_those_of(const char *name)
{
    struct tn_safetensors *file;
    char error[256];
    int64_t ours = 0, theirs = 0;
    if (tn_safetensors_open(&file, golden_path(name, "initial.safetensors"), error, sizeof error) != TN_OK)
        fail_msg("%s", error);
    open_case(name, NULL);
    small_job_build(&job, TN_BUILD_TRAIN);
    for (tn_value v = 1; v <= job.program.n_values; v++)
        if (job.program.values[v].kind == TN_KIND_PARAM)
            ours += stored_elements(file, &job.program.values[v]);
    for (size_t n = 0; n < tn_safetensors_count(file); n++)
        theirs += (int64_t)tn_safetensors_at(file, n)->bytes / 4;
    assert_int_equal(ours, theirs);
    small_job_close(&job);
    tn_safetensors_close(file);
}

static void params_are_pytorchs(void **state)
{
    names_and_shapes_are_those_of("gpt2");
    names_and_shapes_are_those_of("llama");
    names_and_shapes_are_those_of("qwen");
}

static const struct tn_value_data *value_named(const char *name)
{
    tn_value v = tn_value_find(&job.program, name);
    if (!v)
        fail_msg("no value %s", name);
    return &job.program.values[v];
}

static void fused_attention_is_three_slices(void **state)
{
    open_case("gpt2", NULL);
    small_job_build(&job, TN_BUILD_TRAIN);
    const struct tn_value_data *k = value_named("transformer.h.1.attn.c_attn.weight.k");
    assert_string_equal(k->stored.name, "transformer.h.1.attn.c_attn.weight");
    assert_int_equal(k->stored.dim, 1);
    assert_int_equal(k->stored.offset, 32);
    assert_int_equal(k->stored.full, 96);
    assert_string_equal(k->dims[0], "embed");
    assert_string_equal(k->dims[1], "kv_heads");
    const struct tn_value_data *bias = value_named("transformer.h.0.attn.c_attn.bias.v");
    assert_int_equal(bias->stored.dim, 0);
    assert_int_equal(bias->stored.offset, 64);
    assert_true(bias->flags & TN_VALUE_NO_DECAY);
    small_job_close(&job);
}

static void strategies_find_what_they_need(void **state)
{
    open_case("llama", NULL);
    small_job_train(&job);
    assert_string_equal(value_named("model.embed_tokens.weight")->dims[0], "vocab");
    assert_string_equal(value_named("model.layers.0.self_attn.o_proj.weight")->dims[1], "heads");
    assert_string_equal(value_named("model.layers.0.mlp.down_proj.weight")->dims[1], "mlp");
    assert_string_equal(value_named("embed")->tag, "residual");
    assert_string_equal(value_named("layers.1.mlp.residual")->tag, "residual");
    assert_string_equal(value_named("layers.1.attn.norm")->tag, "norm");
    assert_string_equal(value_named("logits")->tag, "logits");
    assert_int_equal(value_named("layers.1.attn.q")->layer, 1);
    assert_int_equal(value_named("logits")->layer, -1);
    small_job_close(&job);
}

static void residual_projections_start_smaller(void **state)
{
    open_case("gpt2", (const char *const[]){ "gpt.init_std=0.5", NULL });
    small_job_build(&job, TN_BUILD_TRAIN);
    const struct tn_value_data *fc = value_named("transformer.h.0.mlp.c_fc.weight");
    const struct tn_value_data *proj = value_named("transformer.h.0.mlp.c_proj.weight");
    assert_float_equal(fc->init_arg, 0.5, 1e-12);
    assert_float_equal(proj->init_arg, 0.25, 1e-12); /* two layers: / sqrt(4) */
    assert_int_equal(value_named("transformer.ln_f.weight")->init, TN_INIT_ONES);
    assert_int_equal(value_named("transformer.ln_f.bias")->init, TN_INIT_ZEROS);
    small_job_close(&job);
}

static void logits_program_has_no_loss(void **state)
{
    open_case("llama", (const char *const[]){ "gpt.dropout=0.1", NULL });
    small_job_build(&job, TN_BUILD_LOGITS);
    assert_int_equal(tn_value_find(&job.program, "labels"), 0);
    assert_int_equal(tn_value_find(&job.program, "loss"), 0);
    assert_int_equal(small_job_count(&job, TN_OP_DROPOUT, TN_REGION_FORWARD, -1), 0);
    const struct tn_value_data *logits = value_named("logits");
    assert_true(logits->flags & TN_VALUE_OUTPUT);
    assert_int_equal(logits->shape[2], 61);
    small_job_close(&job);
}

static void dropout_streams_differ(void **state)
{
    open_case("gpt2", (const char *const[]){ "gpt.dropout=0.1", NULL });
    small_job_build(&job, TN_BUILD_TRAIN);
    int64_t streams = 0;
    TN_EACH_OP(&job.program, op)
        if (job.program.ops[op].opcode == TN_OP_DROPOUT)
            streams |= 1 << tn_attr_i(&job.program, op, "stream", 40);
    assert_int_equal(streams, 0x1f); /* the embedding, and two in each of two layers */
    assert_int_equal(value_named("step")->kind, TN_KIND_INPUT);
    small_job_close(&job);
}

static int64_t fact(const char *name)
{
    const struct tn_model *table = tn_instance_table(&job.model);
    return table->fact(job.model.self, name, -7);
}

static void dimensions_follow_from_options(void **state)
{
    open_case("llama", (const char *const[]){ "gpt.hidden=64", "gpt.mlp=auto", "gpt.kv_heads=auto", "gpt.head_dim=auto",
                                              "gpt.positions=auto", NULL });
    assert_int_equal(fact("mlp"), 192); /* 8/3 64 = 170.7, up to a multiple of 32 */
    assert_int_equal(fact("kv_heads"), 4);
    assert_int_equal(fact("head_dim"), 16);
    assert_int_equal(fact("positions"), 16); /* the job's sequence */
    assert_int_equal(fact("layers"), 2);
    assert_int_equal(fact("colour"), -7);
    small_job_close(&job);
    open_case("gpt2", (const char *const[]){ "gpt.mlp=auto", "gpt.positions=auto", NULL });
    assert_int_equal(fact("mlp"), 128);
    assert_int_equal(fact("positions"), 1024);
    small_job_close(&job);
}

static void problem(const char *name, const char *const *overrides, const char *expected)
{
    open_case(name, overrides);
    const char *text = small_job_problems(&job);
    if (!strstr(text, expected))
        fail_msg("expected \"%s\" in \"%s\"", expected, text);
    small_job_close(&job);
}

static void problems_say_what_would_work(void **state)
{
    open_case("qwen", NULL);
    assert_string_equal(small_job_problems(&job), "");
    small_job_close(&job);
    problem("llama", (const char *const[]){ "gpt.kv_heads=3", NULL },
            "[gpt] kv_heads: 3 does not divide heads = 4; use 2 or 4");
    problem("llama", (const char *const[]){ "gpt.heads=5", "gpt.head_dim=auto", "gpt.kv_heads=1", NULL },
            "[gpt] heads: 5 does not divide hidden = 32; use 4 or 8, or set head_dim");
    problem("llama", (const char *const[]){ "gpt.head_dim=7", NULL }, "[gpt] head_dim: heads are 7 wide");
    problem("gpt2", (const char *const[]){ "data.sequence=17", NULL },
            "[gpt] positions: 16 is less than the sequence of 17");
    problem("gpt2", (const char *const[]){ "gpt.qk_norm=true", NULL }, "[gpt] qk_norm: is an option of llama");
    problem("gpt2", (const char *const[]){ "gpt.qkv_bias=true", "data.sequence=17", NULL }, "[gpt] qkv_bias: ");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(params_are_pytorchs),
        cmocka_unit_test(fused_attention_is_three_slices),
        cmocka_unit_test(strategies_find_what_they_need),
        cmocka_unit_test(residual_projections_start_smaller),
        cmocka_unit_test(logits_program_has_no_loss),
        cmocka_unit_test(dropout_streams_differ),
        cmocka_unit_test(dimensions_follow_from_options),
        cmocka_unit_test(problems_say_what_would_work),
    };
    if (argc != 3)
        return 2;
    small_job_plugins = argv[1];
    golden = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
