/* State: the two small files of a checkpoint (checkpoint.h).
 *
 * state.json says where the run was; a run that resumes must draw the same data, so it must have the same seed, batch
 * and sequence. config.json describes the model under Hugging Face's keys, from the facts that the model tells and its
 * options, so that other tools can build it. */
#include "checkpoint_parts.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { STATE_VERSION = 1 };

static const char *const optimizer_name[] = { "adamw", "sgd" };

char *tn_checkpoint_state_text(const struct tn_job *job, const struct tn_progress *progress)
{
    const struct tn_settings *s = &job->settings;
    json_t *root = json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:{s:I, s:I, s:I}}", "version", STATE_VERSION, "tenon",
                             TENON_VERSION, "step", (json_int_t)progress->step, "applied", (json_int_t)progress->applied,
                             "skipped", (json_int_t)progress->skipped, "skipped_in_row",
                             (json_int_t)progress->skipped_in_row, "seed", (json_int_t)s->seed, "optimizer",
                             optimizer_name[s->optimizer], "data", "next_sequence",
                             (json_int_t)(progress->step * s->batch), "batch", (json_int_t)s->batch, "sequence",
                             (json_int_t)s->sequence);
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
    static const struct { const char *key, *fact; } known[] = {
        { "num_hidden_layers", "layers" }, { "hidden_size", "hidden" }, { "num_attention_heads", "heads" },
        { "num_key_value_heads", "kv_heads" }, { "head_dim", "head_dim" }, { "intermediate_size", "mlp" },
        { "n_inner", "mlp" }, { "vocab_size", "vocab" }, { "max_position_embeddings", "positions" },
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

tn_status tn_checkpoint_state_read(const struct tn_job *job, const char *folder, struct tn_progress *progress,
                                   char *error, size_t error_bytes)
{
    const struct tn_settings *s = &job->settings;
    char path[4096];
    json_error_t problem;
    int64_t version, seed, batch, sequence;
    snprintf(path, sizeof path, "%s/state.json", folder);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    json_t *data = json_object_get(root, "data");
    const char *optimizer = json_string_value(json_object_get(root, "optimizer"));
    tn_status status = TN_INVALID;
    if (!root)
        snprintf(error, error_bytes, "%s: %s", path, problem.text);
    else if (count_of(root, "version", &version) || version != STATE_VERSION)
        snprintf(error, error_bytes, "%s: this tenon reads version %d of it only", path, STATE_VERSION);
    else if (count_of(root, "step", &progress->step) || count_of(root, "applied", &progress->applied) ||
             count_of(root, "skipped", &progress->skipped) || count_of(root, "skipped_in_row", &progress->skipped_in_row) ||
             count_of(root, "seed", &seed) || count_of(data, "batch", &batch) || count_of(data, "sequence", &sequence) ||
             !optimizer)
        snprintf(error, error_bytes, "%s: step, applied, skipped, skipped_in_row, seed, optimizer, data.batch or "
                 "data.sequence is missing or bad", path);
    else if (progress->applied + progress->skipped != progress->step)
        snprintf(error, error_bytes, "%s: applied and skipped do not add up to step", path);
    else if (seed != s->seed || batch != s->batch || sequence != s->sequence)
        snprintf(error, error_bytes, "%s: seed %lld, batch %lld and sequence %lld there are not %lld, %lld and %lld here, so the "
                 "data would be another; use the same, or start anew from it with [model] load", path, (long long)seed,
                 (long long)batch, (long long)sequence, (long long)s->seed, (long long)s->batch, (long long)s->sequence);
    else if (strcmp(optimizer, optimizer_name[s->optimizer]) != 0)
        snprintf(error, error_bytes, "%s: its optimizer is %s, not %s; use the same, or start anew from it with [model] load",
                 path, optimizer, optimizer_name[s->optimizer]);
    else
        status = TN_OK;
    json_decref(root);
    return status;
}
