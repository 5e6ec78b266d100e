/* Settings: the option tables of the core's own sections, and their values as one struct; see settings.h.
 *
 * What one key says about itself (type, range, choices) stands in its row. What holds between keys is checked in
 * `check_*`. The plugins named in rows are defaults of the manifest, the only place where the core knows an id. */
#include "config/settings.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define MANY 1e12 /* of steps, sequences, tokens: beyond any run */
#define SECOND 1e9
#define MIB 1048576.0
#define TIB (MIB * MIB)
#define COUNT(table) (uint32_t)(sizeof table / sizeof *table)

#define ROW(type, key, fallback, flags, lo, hi, choices, help)                                  \
    {                                                                                           \
        sizeof(struct tn_option), TN_OPT_##type, flags, 0, key, fallback, lo, hi, choices, help \
    }
#define INT(key, fallback, lo, hi, help) ROW(INT, key, fallback, 0, lo, hi, NULL, help)
#define FLOAT(key, fallback, lo, hi, help) ROW(FLOAT, key, fallback, 0, lo, hi, NULL, help)
#define BOOL(key, fallback, help) ROW(BOOL, key, fallback, 0, 0, 0, NULL, help)
#define ENUM(key, fallback, choices, help) ROW(ENUM, key, fallback, 0, 0, 0, choices, help)
#define STRING(key, fallback, flags, help) ROW(STRING, key, fallback, flags, 0, 0, NULL, help)
#define LIST(key, fallback, help) ROW(LIST, key, fallback, 0, 0, 0, NULL, help)

/* Choices stand in the order of the enums in settings.h. */
static const char *const sources[] = { "text", "tokens", NULL };
static const char *const documents[] = { "joined", "separate", NULL };
static const char *const optimizers[] = { "adamw", "sgd", NULL };
static const char *const lr_schedules[] = { "constant", "linear", "cosine", "wsd", NULL };
static const char *const resumes[] = { "no", "auto", NULL };
static const char *const computes[] = { "fp32", "bf16", NULL };

static const struct tn_option job_table[] = {
    INT("seed", "1", 0, 9007199254740991, "Seed of the initial parameters, of dropout and of the order of the data."),
    INT("steps", "100", 1, MANY, "Optimizer steps of the whole run."),
    INT("ranks", "0", 0, 1 << 20,
        "Processes to start where neither -n nor a launcher says; 0: as many as the strategies' sizes make."),
    INT("eval_every", "0", 0, MANY, "Steps between two validation losses; 0: only the first and the last one."),
    INT("eval_batches", "8", 1, MANY, "Batches that one validation loss is the mean of."),
    STRING("sample", NULL, 0, "Text that the trained model continues at the end; empty: no sample."),
    INT("sample_tokens", "200", 1, 1e6, "Tokens of the sample."),
    FLOAT("temperature", "0.8", 0, 100, "Temperature of the sample; 0 always takes the likeliest token."),
    INT("max_skipped", "10", 1, MANY, "Steps in a row with a gradient that is not finite that end the job."),
    BOOL("plugins_beside_manifest", "false", "Search the manifest's folder for plugins before all others."),
};

static const struct tn_option model_table[] = {
    STRING("plugin", "gpt", 0, "Model plugin: an id, or a path with a '/'."),
    STRING("load", NULL, 0,
           "Weights to start from: a checkpoint, or a file or folder of Hugging Face safetensors; empty: drawn from "
           "seed."),
};

static const struct tn_option data_table[] = {
    ENUM("source", "text", sources, "text: files as bytes; tokens: a Megatron .bin with its .idx."),
    STRING("path", NULL, TN_OPT_REQUIRED,
           "text: a glob of files; tokens: the path without .bin. Relative to the manifest's folder."),
    INT("sequence", "256", 1, 1 << 24, "Tokens of one sequence."),
    INT("batch", "8", 1, 1 << 24, "Sequences of one step over all ranks and micro-batches."),
    INT("micro_batches", "1", 1, 1 << 20, "Parts that the batch is computed in, one after the other; divides batch."),
    FLOAT("validation", "0.05", 0, 0.9, "Share of the data, from its end, that is kept for validation."),
    BOOL("shuffle", "true", "Draw the sequences in an order that depends on the seed alone."),
    ENUM("documents", "joined", documents,
         "joined: a sequence is a run of tokens; separate: attention stays inside a "
         "document (a file, or as the .idx says), positions restart with it, and no token has another's first as its "
         "target."),
    LIST("ignore", NULL, "Token ids that the loss does not count as targets."),
};

static const struct tn_option optimizer_table[] = {
    ENUM("kind", "adamw", optimizers, "adamw (Loshchilov and Hutter 2019), or sgd with momentum."),
    FLOAT("lr", "1e-3", 0, 1000, "Learning rate at its highest."),
    ENUM("schedule", "cosine", lr_schedules, "How the rate falls after warm-up; wsd keeps it and falls at the end."),
    FLOAT("lr_min", "0.1", 0, 1, "Where linear, cosine and wsd end, as a share of lr."),
    INT("warmup_steps", "0", 0, MANY, "First steps, in which the rate grows from 0 to lr."),
    FLOAT("decay_share", "0.2", 0, 1, "Last part of all steps, in which wsd falls."),
    FLOAT("beta1", "0.9", 0, 0.999999, "adamw: decay of the mean of gradients."),
    FLOAT("beta2", "0.95", 0, 0.99999999, "adamw: decay of the mean of squares."),
    FLOAT("eps", "1e-8", 1e-30, 1, "adamw: added to the root of the mean of squares."),
    FLOAT("weight_decay", "0.1", 0, 100, "Decoupled weight decay, on matrices alone."),
    FLOAT("momentum", "0.9", 0, 0.999999, "sgd: share of the last update that is kept."),
    FLOAT("clip", "1.0", 0, 1e30, "Largest global norm of the gradient; 0: no clipping."),
};

static const struct tn_option precision_table[] = {
    ENUM("compute", "fp32", computes, "Type of activations and of matrix products; parameters and sums stay fp32."),
};

static const struct tn_option device_table[] = {
    STRING("plugin", "cpu", 0, "Device plugin: an id, or a path with a '/'."),
    ROW(SIZE, "memory", "auto", TN_OPT_AUTO, MIB, 1024 * TIB, NULL,
        "Memory that one rank may use; auto: the device says."),
    STRING(
        "disk", NULL, 0,
        "Folder for what strategies keep on disk during a run, in a file without a name; empty: TMPDIR, or /var/tmp."),
};

static const struct tn_option comm_table[] = {
    STRING("backend", "shm", 0, "Collective plugin: an id, or a path with a '/'."),
    LIST("layers", NULL, "Collective plugins over the backend, the outermost first, such as verify and trace."),
    ROW(DURATION, "timeout", "60s", 0, SECOND / 10, 86400 * SECOND, NULL,
        "How long a rank waits for the others before the job ends with a report."),
};

static const struct tn_option comm_axis_table[] = {
    STRING("backend", NULL, 0, "Collective plugin for the groups along this axis; empty: that of [comm]."),
};

static const struct tn_option checkpoint_table[] = {
    STRING("folder", NULL, 0, "Where checkpoints are written, relative to the manifest's folder; empty: none are."),
    INT("every", "0", 0, MANY, "Steps between two checkpoints; 0: only after the last step."),
    FLOAT("minutes", "0", 0, 1e6, "Minutes after which a checkpoint is due whatever the step; 0: only steps count."),
    INT("keep", "3", 0, 1e6, "Checkpoints that are kept, the latest ones; 0: all."),
    ENUM("resume", "auto", resumes,
         "auto: go on from the latest checkpoint in folder if there is one; no: start anew."),
};

static const struct tn_option strategies_table[] = {
    LIST("chain", NULL, "Strategy plugins (ids, or paths with a '/') in the order in which they are applied."),
};

static const struct tn_settings_section sections[] = {
    { "job", "The run as a whole.", job_table, COUNT(job_table) },
    { "model", "Which model is trained; its own keys are in the section of its plugin.", model_table,
      COUNT(model_table) },
    { "data", "What it is trained on.", data_table, COUNT(data_table) },
    { "optimizer", "How parameters follow their gradients.", optimizer_table, COUNT(optimizer_table) },
    { "precision", "Types of numbers.", precision_table, COUNT(precision_table) },
    { "device", "Which processor computes.", device_table, COUNT(device_table) },
    { "comm", "How ranks communicate.", comm_table, COUNT(comm_table) },
    { "checkpoint", "What is kept of a run on disk.", checkpoint_table, COUNT(checkpoint_table) },
    { "strategies", "How the work is cut over the ranks; each strategy has a section of its own.", strategies_table,
      COUNT(strategies_table) },
    { "comm.AXIS", "How the groups along one axis of the mesh communicate, as in [comm.dp].", comm_axis_table,
      COUNT(comm_axis_table) },
    { NULL, NULL, NULL, 0 },
};
static const char axis_prefix[] = "comm.";

const struct tn_settings_section *tn_settings_sections(void)
{
    return sections;
}

/* ---- values ---- */

static int64_t whole(const struct tn_options *options, const char *key)
{
    return tn_options_get(options, key)->i;
}

static double number(const struct tn_options *options, const char *key)
{
    return tn_options_get(options, key)->f;
}

static const char *text(const struct tn_options *options, const char *key)
{
    return tn_options_get(options, key)->s;
}

static void take_job(struct tn_settings *s)
{
    const struct tn_options *job = &s->job;
    s->seed = whole(job, "seed");
    s->steps = whole(job, "steps");
    s->ranks = whole(job, "ranks");
    s->eval_every = whole(job, "eval_every");
    s->eval_batches = whole(job, "eval_batches");
    s->sample = text(job, "sample");
    s->sample_tokens = whole(job, "sample_tokens");
    s->temperature = number(job, "temperature");
    s->max_skipped = whole(job, "max_skipped");
    s->plugins_beside_manifest = (int)whole(job, "plugins_beside_manifest");
}

static void take_data(struct tn_settings *s)
{
    const struct tn_options *data = &s->data;
    s->source = whole(data, "source");
    s->path = text(data, "path");
    s->sequence = whole(data, "sequence");
    s->batch = whole(data, "batch");
    s->micro_batches = whole(data, "micro_batches");
    s->validation = number(data, "validation");
    s->shuffle = (int)whole(data, "shuffle");
    s->separate = (int)whole(data, "documents");
    s->ignore = tn_options_get(data, "ignore")->list;
    s->n_ignore = tn_options_get(data, "ignore")->list_count;
}

static void take_optimizer(struct tn_settings *s)
{
    const struct tn_options *optimizer = &s->optimizer_options;
    s->optimizer = whole(optimizer, "kind");
    s->lr_schedule = whole(optimizer, "schedule");
    s->lr = number(optimizer, "lr");
    s->lr_min = number(optimizer, "lr_min");
    s->warmup_steps = whole(optimizer, "warmup_steps");
    s->decay_share = number(optimizer, "decay_share");
    s->beta1 = number(optimizer, "beta1");
    s->beta2 = number(optimizer, "beta2");
    s->eps = number(optimizer, "eps");
    s->weight_decay = number(optimizer, "weight_decay");
    s->momentum = number(optimizer, "momentum");
    s->clip = number(optimizer, "clip");
}

static void take_plugins(struct tn_settings *s)
{
    s->model = text(&s->model_options, "plugin");
    s->load = text(&s->model_options, "load");
    s->compute = whole(&s->precision, "compute");
    s->device = text(&s->device_options, "plugin");
    s->device_disk = text(&s->device_options, "disk");
    s->device_memory = whole(&s->device_options, "memory");
    s->backend = text(&s->comm, "backend");
    s->layers = tn_options_get(&s->comm, "layers")->list;
    s->n_layers = tn_options_get(&s->comm, "layers")->list_count;
    s->comm_timeout_ns = whole(&s->comm, "timeout");
    s->checkpoint_folder = text(&s->checkpoint, "folder");
    s->checkpoint_every = whole(&s->checkpoint, "every");
    s->checkpoint_minutes = number(&s->checkpoint, "minutes");
    s->keep = whole(&s->checkpoint, "keep");
    s->resume = (int)whole(&s->checkpoint, "resume");
    s->chain = tn_options_get(&s->strategies, "chain")->list;
    s->n_chain = tn_options_get(&s->strategies, "chain")->list_count;
}

/* ---- what holds between keys ---- */

/* The divisors of `number` nearest to `wanted`, as "use 1, 2, 4 or 8". */
static void print_divisors(int64_t of, int64_t wanted, struct tn_buf *out)
{
    enum { MOST = 6 };
    int64_t found[2 * MOST] = { 0 };
    int n = 0;
    for (int64_t d = wanted < of ? wanted : of; d >= 1 && n < MOST; d--)
        if (of % d == 0)
            found[n++] = d;
    for (int i = 0; i < n / 2; i++) {
        int64_t swap = found[i];
        found[i] = found[n - 1 - i];
        found[n - 1 - i] = swap;
    }
    for (int64_t d = wanted + 1, below = n; d <= of && n < below + MOST; d++)
        if (of % d == 0)
            found[n++] = d;
    tn_buf_printf(out, "use ");
    for (int i = 0; i < n; i++)
        tn_buf_printf(out, "%s%lld", i == 0 ? "" : i + 1 < n ? ", " : " or ", (long long)found[i]);
}

static void check_data(const struct tn_settings *s, const struct tn_manifest *m, struct tn_diag *diag)
{
    if (s->batch % s->micro_batches != 0) {
        struct tn_buf fix;
        tn_buf_init(&fix);
        print_divisors(s->batch, s->micro_batches, &fix);
        tn_diag_add(diag, tn_manifest_where(m, "data", "micro_batches"), fix.text, "%lld does not divide batch = %lld",
                    (long long)s->micro_batches, (long long)s->batch);
        tn_buf_finish(&fix);
    }
    for (uint32_t i = 0; i < s->n_ignore; i++) {
        char *end;
        long id = strtol(s->ignore[i], &end, 10);
        if (end == s->ignore[i] || *end || id < 0 || id > INT32_MAX)
            tn_diag_add(diag, tn_manifest_where(m, "data", "ignore"), "use ids from 0 on, with commas between",
                        "%.40s is not a token id", s->ignore[i]);
    }
}

static void check_optimizer(const struct tn_settings *s, const struct tn_manifest *m, struct tn_diag *diag)
{
    if (s->warmup_steps > s->steps)
        tn_diag_add(diag, tn_manifest_where(m, "optimizer", "warmup_steps"), "warm up for fewer steps",
                    "%lld is more than [job] steps = %lld", (long long)s->warmup_steps, (long long)s->steps);
    if (s->lr_schedule == TN_LR_WSD && s->steps - s->warmup_steps < s->decay_share * (double)s->steps)
        tn_diag_add(diag, tn_manifest_where(m, "optimizer", "decay_share"), "lower one of them",
                    "warmup_steps = %lld and the last %g of %lld steps overlap", (long long)s->warmup_steps,
                    s->decay_share, (long long)s->steps);
}

/* Whoever says when to save must not find out after days that nothing was. */
static void check_checkpoint(const struct tn_settings *s, const struct tn_manifest *m, struct tn_diag *diag)
{
    const char *key = s->checkpoint_every > 0 ? "every" : s->checkpoint_minutes > 0 ? "minutes" : NULL;
    if (key && !*s->checkpoint_folder)
        tn_diag_add(diag, tn_manifest_where(m, "checkpoint", key), "set [checkpoint] folder too, or remove it",
                    "nothing is saved without a folder");
}

void tn_settings_read(struct tn_settings *settings, struct tn_manifest *m, struct tn_diag *diag)
{
    *settings = (struct tn_settings){ 0 };
    struct tn_options *const into[] = {
        &settings->job,        &settings->model_options,  &settings->data, &settings->optimizer_options,
        &settings->precision,  &settings->device_options, &settings->comm, &settings->checkpoint,
        &settings->strategies,
    };
    for (size_t i = 0; i < COUNT(into); i++)
        tn_options_read(into[i], m, sections[i].name, sections[i].table, sections[i].count, sizeof(struct tn_option),
                        diag);
    take_job(settings);
    take_data(settings);
    take_optimizer(settings);
    take_plugins(settings);
    check_data(settings, m, diag);
    check_optimizer(settings, m, diag);
    check_checkpoint(settings, m, diag);
}

/* ---- [comm.AXIS] ---- */

const char *tn_settings_axis_backend(struct tn_manifest *m, const char *axis, struct tn_diag *diag)
{
    struct tn_options options;
    tn_options_read(&options, m, tn_arena_printf(&m->arena, "%s%s", axis_prefix, axis), comm_axis_table,
                    COUNT(comm_axis_table), sizeof(struct tn_option), diag);
    return text(&options, "backend");
}

void tn_settings_check_axes(struct tn_manifest *m, const char *const *axes, size_t n_axes, struct tn_diag *diag)
{
    struct tn_buf fix;
    tn_buf_init(&fix);
    for (size_t i = 0; i < m->section_count; i++) {
        const struct tn_section *section = &m->sections[i];
        size_t known = 0;
        if (strncmp(section->name, axis_prefix, sizeof axis_prefix - 1) != 0)
            continue;
        while (known < n_axes && strcmp(axes[known], section->name + sizeof axis_prefix - 1) != 0)
            known++;
        if (known < n_axes)
            continue;
        tn_buf_clear(&fix);
        tn_buf_printf(&fix, n_axes ? "the axes here are " : "no strategy of this job has one");
        for (size_t k = 0; k < n_axes; k++)
            tn_buf_printf(&fix, "%s%s", k == 0 ? "" : k + 1 < n_axes ? ", " : " and ", axes[k]);
        tn_diag_add(diag, section->where, fix.text, "the mesh has no axis %.40s",
                    section->name + sizeof axis_prefix - 1);
    }
    tn_buf_finish(&fix);
}

/* ---- sections nobody reads ---- */

static int names_has(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return 1;
    return 0;
}

void tn_settings_unused(struct tn_manifest *m, const char *const *known, size_t n_known, struct tn_diag *diag)
{
    size_t count = 0;
    const char **names = tn_arena_alloc(&m->arena, (n_known + COUNT(sections)) * sizeof *names);
    for (size_t i = 0; sections[i].name; i++)
        if (strncmp(sections[i].name, axis_prefix, sizeof axis_prefix - 1) != 0)
            names[count++] = sections[i].name;
    for (size_t i = 0; i < n_known; i++)
        names[count++] = known[i];
    struct tn_buf fix;
    tn_buf_init(&fix);
    for (size_t i = 0; i < m->section_count; i++) {
        const struct tn_section *section = &m->sections[i];
        if (names_has(names, count, section->name) || strncmp(section->name, axis_prefix, sizeof axis_prefix - 1) == 0)
            continue; /* tn_settings_check_axes has looked at the latter */
        const char *nearest = tn_nearest(section->name, names, count);
        tn_buf_clear(&fix);
        if (nearest)
            tn_buf_printf(&fix, "did you mean [%s]?", nearest);
        else
            tn_buf_printf(&fix, "name the plugin in this job, or remove the section; sections here are ");
        for (size_t k = 0; !nearest && k < count; k++)
            tn_buf_printf(&fix, "%s[%s]", k ? " " : "", names[k]);
        tn_diag_add(diag, section->where, fix.text, "nothing in this job reads this section");
    }
    tn_buf_finish(&fix);
}
