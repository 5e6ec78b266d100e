/* tp and dp: what they refuse, who owns what, and the collectives that come out of resolve and
 * lower. Arguments: the folder of the plugins, the folder of the golden data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "small_job.h"

enum { LAYERS = 2 };

static const char *golden;
static struct small_job job;

#define WITH(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define SIZES(...) ((const int32_t[]){ __VA_ARGS__ })

static void open_job(const char *model, const char *const *overrides, const char *const *chain, const int32_t *sizes,
                     int32_t rank)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s/job.ini", golden, model);
    small_job_open(&job, path, overrides, chain, sizes, rank);
}

/* Opens the job and takes it through resolve, and lower if asked; the program must verify. */
static void compile(const char *model, const char *const *overrides, const char *const *chain, const int32_t *sizes,
                    int lower)
{
    open_job(model, overrides, chain, sizes, 0);
    assert_string_equal(small_job_problems(&job), "");
    small_job_train(&job);
    small_job_place(&job);
    small_job_resolve(&job);
    if (lower)
        small_job_lower(&job);
    tn_program_verify(&job.program, lower ? "lower" : "resolve");
    for (size_t n = 0; n < job.program.n_errors; n++)
        print_error("%s\n", job.program.errors[n]);
    assert_int_equal(job.program.n_errors, 0);
}

static int forward(uint32_t opcode)
{
    return small_job_count(&job, opcode, TN_REGION_FORWARD, -1);
}

static int backward(uint32_t opcode)
{
    return small_job_count(&job, opcode, TN_REGION_BACKWARD, -1);
}

static int step(uint32_t opcode, const char *axis) /* NULL: any or none */
{
    return small_job_count(&job, opcode, TN_REGION_STEP, axis ? tn_mesh_find(&job.mesh, axis) : -1);
}

static tn_value value_named(const char *name)
{
    tn_value v = tn_value_find(&job.program, name);
    if (!v)
        fail_msg("no value %s", name);
    return v;
}

static int64_t local_rows(const char *name)
{
    int64_t shape[TN_MAX_DIMS];
    int32_t rank;
    tn_local(&job.program, value_named(name), job.coord, &rank, shape, NULL);
    return shape[0];
}

static tn_placement placement(const char *name, const char *axis)
{
    return job.program.values[value_named(name)].place[tn_mesh_find(&job.mesh, axis)];
}

/* Beside the blocks: the embedding's sum, the loss's maximum and sums, the last norm's gradient. */
static void tp_costs_two_reductions_a_block_each_way(void **state)
{
    static const char *const models[] = { "gpt2", "llama" }, *const types[] = { "precision.compute=fp32",
                                                                                "precision.compute=bf16" };
    for (int m = 0; m < 4; m++) {
        compile(models[m / 2], WITH(types[m % 2]), WITH("tp"), SIZES(2), 1);
        assert_int_equal(forward(TN_OP_ALL_REDUCE), 2 * LAYERS + 3);
        assert_int_equal(backward(TN_OP_ALL_REDUCE), 2 * LAYERS + 1);
        assert_int_equal(step(TN_OP_ALL_REDUCE, "tp"), 1); /* the norm's sum of squares */
        assert_int_equal(forward(TN_OP_ALL_GATHER) + backward(TN_OP_ALL_GATHER), 0);
        assert_int_equal(forward(TN_OP_REDUCE_SCATTER) + backward(TN_OP_REDUCE_SCATTER), 0);
        small_job_close(&job);
    }
}

static void sequence_parallel_gathers_and_scatters(void **state)
{
    compile("llama", WITH("tp.sequence_parallel=on", "precision.compute=bf16"), WITH("tp"), SIZES(2), 0);
    assert_int_equal(placement("layers.0.attn.norm", "tp"), TN_SHARD(1));
    assert_int_equal(placement("layers.0.attn.residual", "tp"), TN_SHARD(1));
    assert_int_equal(placement("layers.1.mlp.norm", "tp"), TN_SHARD(1));
    assert_int_equal(forward(TN_OP_ALL_GATHER), 2 * LAYERS + 1);     /* + before the head */
    assert_int_equal(forward(TN_OP_REDUCE_SCATTER), 2 * LAYERS + 1); /* + the embedding */
    assert_int_equal(forward(TN_OP_ALL_REDUCE), 2);                  /* the loss */
    assert_int_equal(backward(TN_OP_ALL_GATHER), 2 * LAYERS + 1);
    assert_int_equal(backward(TN_OP_REDUCE_SCATTER), 2 * LAYERS + 1);
    assert_int_equal(backward(TN_OP_ALL_REDUCE), 0);
    assert_int_equal(step(TN_OP_ALL_REDUCE, "tp"), 2 * LAYERS + 1 + 1); /* norm weights, the norm */
    small_job_close(&job);
}

/* Whether an op of the backward pass reads what a forward gather made, blocks merged or not. */
static int backward_reads_a_forward_gather(void)
{
    const struct tn_program *p = &job.program;
    TN_EACH_OP(p, op)
        for (uint32_t i = 0; p->ops[op].region == TN_REGION_BACKWARD && i < p->ops[op].n_in; i++) {
            tn_op made = p->values[p->ops[op].in[i]].def;
            if (made && p->ops[made].opcode == TN_OP_MERGE_BLOCKS)
                made = p->values[p->ops[made].in[0]].def;
            if (made && p->ops[made].opcode == TN_OP_ALL_GATHER && p->ops[made].region == TN_REGION_FORWARD)
                return 1;
        }
    return 0;
}

static void lower_gathers_again_instead_of_keeping(void **state)
{
    static const char *const models[] = { "gpt2", "llama" };
    for (int m = 0; m < 2; m++) {
        compile(models[m], WITH("tp.sequence_parallel=on"), WITH("tp"), SIZES(2), 0);
        int gathers = backward(TN_OP_ALL_GATHER), merges = backward(TN_OP_MERGE_BLOCKS);
        assert_true(backward_reads_a_forward_gather());
        small_job_close(&job);
        compile(models[m], WITH("tp.sequence_parallel=on"), WITH("tp"), SIZES(2), 1);
        assert_false(backward_reads_a_forward_gather());
        assert_int_equal(backward(TN_OP_ALL_GATHER), gathers + 2 * LAYERS + 1);
        assert_int_equal(backward(TN_OP_MERGE_BLOCKS), merges + 2 * LAYERS + 1);
        assert_int_equal(forward(TN_OP_ALL_GATHER), 2 * LAYERS + 1);
        small_job_close(&job);
    }
}

static void vocabulary_is_cut_unevenly(void **state)
{
    static const char *const vocab[] = { "gpt.vocab=61", "gpt.vocab=50257", "gpt.vocab=64" };
    static const int64_t rows[][2] = { { 31, 30 }, { 25152, 25105 }, { 32, 32 } };
    for (int n = 0; n < 3; n++)
        for (int32_t rank = 0; rank < 2; rank++) {
            open_job("gpt2", WITH(vocab[n]), WITH("tp"), SIZES(2), rank);
            small_job_train(&job);
            small_job_place(&job);
            assert_int_equal(local_rows("transformer.wte.weight"), rows[n][rank]);
            assert_int_equal(local_rows("transformer.wte.weight.adamw.m"), rows[n][rank]);
            small_job_close(&job);
        }
}

static void every_part_of_the_vocabulary_has_rows(void **state)
{
    for (int32_t size = 1; size <= 8; size *= 2)
        for (int64_t vocab = size; vocab < 2000; vocab += 1 + vocab / 7) {
            char override[32];
            int64_t sum = 0;
            snprintf(override, sizeof override, "gpt.vocab=%lld", (long long)vocab);
            for (int32_t rank = 0; rank < size; rank++) {
                open_job("gpt2", WITH(override, "gpt.heads=8", "gpt.kv_heads=8", "gpt.head_dim=4"), WITH("tp"),
                         SIZES(size), rank);
                small_job_train(&job);
                small_job_place(&job);
                assert_in_range(local_rows("transformer.wte.weight"), 1, vocab);
                sum += local_rows("transformer.wte.weight");
                small_job_close(&job);
            }
            assert_int_equal(sum, vocab);
        }
}

/* Four ranks on two key heads: the axis is factored, key heads are whole on the inner one. */
static void key_heads_fewer_than_ranks_factor_the_axis(void **state)
{
    compile("llama", NULL, WITH("tp"), SIZES(4), 1);
    assert_int_equal(job.mesh.n_axes, 2);
    assert_int_equal(job.mesh.axis[tn_mesh_find(&job.mesh, "tp_rep")].stride, 1);
    assert_int_equal(placement("model.layers.0.self_attn.q_proj.weight", "tp_rep"), TN_SHARD(0));
    assert_int_equal(placement("model.layers.0.self_attn.q_proj.weight", "tp_kv"), TN_SHARD(0));
    assert_int_equal(placement("model.layers.0.self_attn.k_proj.weight", "tp_rep"), TN_REPLICATE);
    assert_int_equal(placement("model.layers.0.self_attn.k_proj.weight", "tp_kv"), TN_SHARD(0));
    assert_int_equal(placement("model.layers.0.self_attn.o_proj.weight", "tp_rep"), TN_SHARD(1));
    assert_int_equal(forward(TN_OP_ALL_GATHER) + forward(TN_OP_REDUCE_SCATTER), 0);
    assert_int_equal(backward(TN_OP_ALL_GATHER) + backward(TN_OP_ALL_TO_ALL), 0);
    small_job_close(&job);
    compile("qwen", NULL, WITH("tp"), SIZES(2), 1); /* one key head: nothing to factor */
    assert_int_equal(job.mesh.n_axes, 1);
    assert_int_equal(placement("model.layers.0.self_attn.k_proj.weight", "tp"), TN_REPLICATE);
    assert_int_equal(placement("model.layers.0.self_attn.q_proj.weight", "tp"), TN_SHARD(0));
    small_job_close(&job);
}

static int count_params(void)
{
    int n = 0;
    for (tn_value v = 1; v <= job.program.n_values; v++)
        n += job.program.values[v].kind == TN_KIND_PARAM && !job.program.values[v].def;
    return n;
}

static void dp_reduces_each_gradient_once(void **state)
{
    compile("llama", WITH("dp.bucket=0"), WITH("dp"), SIZES(2), 1);
    assert_int_equal(placement("tokens", "dp"), TN_SHARD(0));
    assert_int_equal(placement("labels.step", "dp"), TN_SHARD(1));
    assert_int_equal(placement("lm_head.weight", "dp"), TN_REPLICATE);
    assert_int_equal(forward(TN_OP_ALL_REDUCE) + backward(TN_OP_ALL_REDUCE), 0);
    assert_int_equal(step(TN_OP_ALL_REDUCE, "dp"), count_params() + 1); /* + the loss */
    small_job_close(&job);
}

/* Members of buckets, in program order, must be complete one after another; returns how many there are. */
static int check_buckets(int64_t most_bytes)
{
    const struct tn_program *p = &job.program;
    int members = 0;
    int64_t last = 0;
    tn_program_renumber(&job.program);
    TN_EACH_OP(p, op) {
        const struct tn_op_data *o = &p->ops[op];
        int64_t bytes = 0;
        for (uint32_t i = 0; o->opcode == TN_OP_PACK && i < o->n_in; i++) {
            int64_t ready = p->ops[p->values[o->in[i]].def].order;
            assert_true(ready >= last);
            last = ready;
            bytes += 4 * tn_local_elements(p, o->in[i]);
            members++;
        }
        assert_true(bytes <= most_bytes);
    }
    return members;
}

static void buckets_join_gradients_as_they_complete(void **state)
{
    compile("llama", WITH("dp.bucket=32K"), WITH("dp"), SIZES(2), 1);
    int buckets = step(TN_OP_PACK, NULL), params = count_params();
    assert_in_range(buckets, 2, 6); /* of 76 KiB of gradients */
    assert_int_equal(check_buckets(32768), params);
    assert_int_equal(step(TN_OP_VIEW, NULL), params);
    assert_int_equal(step(TN_OP_ALL_REDUCE, "dp"), buckets + 1);
    small_job_close(&job);
    compile("llama", NULL, WITH("dp"), SIZES(2), 1); /* all fit into 4M */
    assert_int_equal(step(TN_OP_PACK, NULL), 1);
    small_job_close(&job);
}

static void sums_along_several_axes_are_joined_at_once(void **state)
{
    compile("llama", WITH("cp.bucket=0"), WITH("cp"), SIZES(2), 1);
    assert_int_equal(step(TN_OP_ALL_REDUCE, "cp"), count_params() + 1); /* + the loss */
    small_job_close(&job);
    for (int order = 0; order < 2; order++) {
        compile("llama", NULL, order ? WITH("cp", "dp") : WITH("dp", "cp"), SIZES(2, 2), 1);
        assert_int_equal(check_buckets(4 << 20), count_params());
        assert_int_equal(step(TN_OP_PACK, NULL), 1);
        assert_int_equal(step(TN_OP_ALL_REDUCE, "cp"), 2);
        assert_int_equal(step(TN_OP_ALL_REDUCE, "dp"), 2);
        small_job_close(&job);
    }
    /* the norms' weights have a way of their own: tp sums their gradients too */
    compile("llama", WITH("tp.sequence_parallel=on"), WITH("tp", "cp", "dp"), SIZES(2, 2, 2), 1);
    assert_int_equal(step(TN_OP_PACK, NULL), 2);
    assert_int_equal(step(TN_OP_ALL_REDUCE, "cp"), 3);
    assert_int_equal(step(TN_OP_ALL_REDUCE, "dp"), 3);
    assert_int_equal(step(TN_OP_ALL_REDUCE, "tp"), 2); /* and the norm of all gradients */
    small_job_close(&job);
}

/* Each view shows the part of the bucket where pack put its member, in the member's type. */
static void views_are_where_pack_puts_them(void **state)
{
    /* 18 columns of q a rank: sizes that are no multiple of the alignment */
    compile("gpt2", WITH("dp.bucket=16K", "gpt.hidden=36", "gpt.head_dim=9"), WITH("tp", "dp"), SIZES(2, 2), 1);
    const struct tn_program *p = &job.program;
    int views = 0;
    TN_EACH_OP(p, op) {
        const struct tn_op_data *view = &p->ops[op];
        if (view->opcode != TN_OP_VIEW)
            continue;
        const struct tn_op_data *sum = &p->ops[p->values[view->in[0]].def];
        const struct tn_op_data *pack = &p->ops[p->values[sum->in[0]].def];
        int64_t offset = 0;
        uint32_t i = 0;
        for (; pack->in[i] != view->in[1]; i++)
            offset += (tn_local_elements(p, pack->in[i]) + 15) / 16 * 16;
        assert_int_equal(tn_attr_i(p, op, "offset", -1), offset);
        assert_int_equal(tn_local_elements(p, view->out[0]), tn_local_elements(p, view->in[1]));
        views++;
    }
    assert_true(views > 20);
    small_job_close(&job);
}

static void shares_cut_the_batch_unevenly(void **state)
{
    for (int32_t rank = 0; rank < 2; rank++) {
        open_job("llama", WITH("dp.shares=3, 1", "data.batch=8", "data.micro_batches=2"), WITH("dp"), SIZES(2), rank);
        assert_string_equal(small_job_problems(&job), "");
        small_job_train(&job);
        small_job_place(&job);
        small_job_resolve(&job);
        assert_int_equal(local_rows("tokens"), rank == 0 ? 3 : 1);
        assert_int_equal(local_rows("layers.1.mlp.residual"), rank == 0 ? 3 : 1);
        small_job_close(&job);
    }
}

static void refused(const char *model, const char *const *overrides, const char *strategy, int32_t size,
                    const char *expected)
{
    open_job(model, overrides, WITH(strategy), &size, 0);
    const char *text = small_job_problems(&job);
    if (!strstr(text, expected))
        fail_msg("expected \"%s\" in \"%s\"", expected, text);
    small_job_close(&job);
}

static void problems_say_what_would_work(void **state)
{
    refused("gpt2", WITH("gpt.hidden=64", "gpt.heads=8", "gpt.kv_heads=8"), "tp", 3,
            "[tp] size: 3 does not divide heads = 8; use 1, 2, 4 or 8");
    refused("llama", WITH("gpt.mlp=50"), "tp", 4, "[tp] size: 4 does not divide mlp = 50; use 1 or 2");
    refused("llama", WITH("gpt.heads=6", "gpt.kv_heads=2"), "tp", 3,
            "[tp] size: 3 and kv_heads = 2 do not divide each other; use 1, 2 or 6");
    refused("llama", WITH("data.sequence=15", "tp.sequence_parallel=on"), "tp", 2,
            "[tp] sequence_parallel: the sequence of 15 tokens does not divide by size = 2; use off, or a [data] "
            "sequence such as 16");
    refused("llama", NULL, "dp", 3, "[dp] size: 3 does not divide the 4 sequences of a micro-batch");
    refused("llama", WITH("dp.shares=5, 3"), "dp", 2, "[dp] shares: a micro-batch of 4 sequences does not divide in 8");
    refused("llama", WITH("dp.shares=1, 2, 1"), "dp", 2, "[dp] shares: 3 shares for 2 ranks; give 2");
    refused("llama", WITH("dp.shares=1, x"), "dp", 2, "[dp] shares: item 2 is no whole number");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tp_costs_two_reductions_a_block_each_way),
        cmocka_unit_test(sequence_parallel_gathers_and_scatters),
        cmocka_unit_test(lower_gathers_again_instead_of_keeping),
        cmocka_unit_test(vocabulary_is_cut_unevenly),
        cmocka_unit_test(every_part_of_the_vocabulary_has_rows),
        cmocka_unit_test(key_heads_fewer_than_ranks_factor_the_axis),
        cmocka_unit_test(dp_reduces_each_gradient_once),
        cmocka_unit_test(buckets_join_gradients_as_they_complete),
        cmocka_unit_test(sums_along_several_axes_are_joined_at_once),
        cmocka_unit_test(views_are_where_pack_puts_them),
        cmocka_unit_test(shares_cut_the_batch_unevenly),
        cmocka_unit_test(problems_say_what_would_work),
    };
    if (argc != 3)
        return 2;
    small_job_plugins = argv[1];
    golden = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
