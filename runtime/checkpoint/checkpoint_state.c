/* State: the two small files of a checkpoint (checkpoint.h).
 *
 * state.json says where the run was; a run that resumes must draw the same data, so it must have the same seed, batch
 * and sequence. config.json describes the model under Hugging Face's keys, from the facts that the model tells and its
 * options, so that other tools can build it. */
#include "checkpoint/checkpoint_parts.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/input.h"

enum { STATE_VERSION = 1 };

static const char *const optimizer_name[] = { "adamw", "sgd" };

char *tn_checkpoint_state_text(const struct tn_job *job, const struct tn_progress *progress)
{
    const struct tn_settings *s = &job->settings;
    json_t *data = json_pack("{s:I, s:I, s:I}", "next_sequence", (json_int_t)(progress->step * s->batch), "batch",
                             (json_int_t)s->batch, "sequence", (json_int_t)s->sequence);
    json_t *root =
        json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:o}", "version", STATE_VERSION, "tenon", TENON_VERSION,
                  "step", (json_int_t)progress->step, "applied", (json_int_t)progress->applied, "skipped",
                  (json_int_t)progress->skipped, "skipped_in_row", (json_int_t)progress->skipped_in_row, "seed",
                  (json_int_t)s->seed, "optimizer", optimizer_name[s->optimizer], "data", data);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

static void set_fact(json_t *root, const struct tn_job *job, const char *key, const char *fact)
{
    int64_t value = job->facts.get(&job->facts, fact, -1);
    if (value >= 0)
        json_object_set_new(root, key, json_integer(value));
}

/* The options of the model's plugin as its manifest gives them; those with a key of Hugging Face's under it too. */
static void set_options(json_t *root, const struct tn_job *job)
{
    json_t *own = json_object();
    json_object_set_new(own, "plugin", json_string(job->model.library.plugin->id));
    for (uint32_t i = 0; i < job->model.options.count; i++) {
        const struct tn_option_value *value = &job->model.options.values[i];
        const char *key = value->option->key;
        if (value->s)
            json_object_set_new(own, key, json_string(value->s));
        if (strcmp(key, "family") == 0)
            json_object_set_new(root, "model_type", json_string(value->s));
        else if (strcmp(key, "tied") == 0 && strcmp(value->s, "auto") != 0)
            json_object_set_new(root, "tie_word_embeddings", json_boolean(strcmp(value->s, "true") == 0));
        else if (strcmp(key, "rope_theta") == 0)
            json_object_set_new(root, key, json_real(value->f));
        else if (strcmp(key, "norm_eps") == 0 && value->f > 0) {
            json_object_set_new(root, "rms_norm_eps", json_real(value->f));
            json_object_set_new(root, "layer_norm_epsilon", json_real(value->f));
        }
    }
    json_object_set_new(root, "tenon", own);
}

char *tn_checkpoint_config_text(const struct tn_job *job)
{
    static const struct {
        const char *key, *fact;
    } known[] = {
        { "num_hidden_layers", "layers" },
        { "hidden_size", "hidden" },
        { "num_attention_heads", "heads" },
        { "num_key_value_heads", "kv_heads" },
        { "head_dim", "head_dim" },
        { "intermediate_size", "mlp" },
        { "n_inner", "mlp" },
        { "vocab_size", "vocab" },
        { "max_position_embeddings", "positions" },
    };
    json_t *root = json_object();
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        set_fact(root, job, known[i].key, known[i].fact);
    json_object_set_new(root, "torch_dtype", json_string("float32"));
    set_options(root, job);
    char *text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return text;
}

/* A count that state.json must have. */
static int count_of(json_t *root, const char *key, int64_t *out)
{
    json_t *value = json_object_get(root, key);
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= 0 ? 0 : -1;
}

struct state {
    struct tn_progress done;
    int64_t version, seed, batch, sequence;
    const char *optimizer;
};

/* NULL, or what is wrong. */
static const char *parse(json_t *root, struct state *out)
{
    json_t *data = json_object_get(root, "data");
    const struct {
        json_t *in;
        const char *key;
        int64_t *to;
    } counts[] = {
        { root, "version", &out->version },
        { root, "step", &out->done.step },
        { root, "applied", &out->done.applied },
        { root, "skipped", &out->done.skipped },
        { root, "skipped_in_row", &out->done.skipped_in_row },
        { root, "seed", &out->seed },
        { data, "batch", &out->batch },
        { data, "sequence", &out->sequence },
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (count_of(counts[i].in, counts[i].key, counts[i].to))
            return counts[i].key;
    out->optimizer = json_string_value(json_object_get(root, "optimizer"));
    if (!out->optimizer)
        return "optimizer";
    if (out->done.applied + out->done.skipped != out->done.step)
        return "step (applied and skipped do not add up to it)";
    return NULL;
}

tn_status tn_checkpoint_state_read(const struct tn_job *job, const char *folder, struct tn_progress *progress,
                                   char *error, size_t error_bytes)
{
    const struct tn_settings *s = &job->settings;
    char path[4096];
    json_error_t problem;
    struct state state = { .version = 0 };
    snprintf(path, sizeof path, "%s/state.json", folder);
    json_t *root = tn_input_json(path, &problem);
    const char *wrong = root ? parse(root, &state) : problem.text;
    tn_status status = TN_INVALID;
    if (wrong)
        snprintf(error, error_bytes, "%s: %s%s", path, wrong, root ? " is missing or wrong" : "");
    else if (state.version != STATE_VERSION)
        snprintf(error, error_bytes, "%s: has version %lld; this tenon reads %d", path, (long long)state.version,
                 STATE_VERSION);
    else if (state.seed != s->seed || state.batch != s->batch || state.sequence != s->sequence)
        snprintf(error, error_bytes,
                 "%s: seed %lld, batch %lld and sequence %lld there are not %lld, %lld and %lld "
                 "here, so the data would be another; use the same, or start anew from it with [model] load",
                 path, (long long)state.seed, (long long)state.batch, (long long)state.sequence, (long long)s->seed,
                 (long long)s->batch, (long long)s->sequence);
    else if (strcmp(state.optimizer, optimizer_name[s->optimizer]) != 0)
        snprintf(error, error_bytes,
                 "%s: its optimizer is %s, not %s; use the same, or start anew from it with "
                 "[model] load",
                 path, state.optimizer, optimizer_name[s->optimizer]);
    else if (state.done.step > s->steps)
        snprintf(error, error_bytes,
                 "%s: is of step %lld, but [job] steps = %lld; raise it, or say [checkpoint] resume "
                 "= no",
                 path, (long long)state.done.step, (long long)s->steps);
    else
        status = TN_OK;
    *progress = state.done;
    json_decref(root);
    return status;
}
