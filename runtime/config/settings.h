/* Settings: the core's own sections ([job] [model] [data] ...), typed.
 *
 * settings.c holds one option table a section; the manifest reference is printed from them. */
#ifndef TENON_SETTINGS_H
#define TENON_SETTINGS_H

#include "config/options.h"

enum { TN_OPTIMIZER_ADAMW, TN_OPTIMIZER_SGD };
enum { TN_LR_CONSTANT, TN_LR_LINEAR, TN_LR_COSINE, TN_LR_WSD };
enum { TN_DATA_TEXT, TN_DATA_TOKENS };
enum { TN_COMPUTE_FP32, TN_COMPUTE_BF16 };

struct tn_settings {
    /* [job] */
    int64_t seed, steps;  /* steps: optimizer steps of the whole run */
    int64_t ranks;        /* processes, where neither -n nor a launcher says; 0: not said */
    int64_t eval_every;   /* steps between validation losses; 0: only at the end */
    int64_t eval_batches; /* batches of each */
    const char *sample;   /* prompt to continue after training; "" none */
    int64_t sample_tokens;
    double temperature;          /* 0: always the likeliest */
    int64_t max_skipped;         /* non-finite steps in a row that end the job */
    int plugins_beside_manifest; /* search the manifest's folder for plugins */
    /* [model] */
    const char *model; /* plugin id or path */
    const char *load;  /* safetensors to start from: a file or folder; "" none */
    /* [data] */
    int64_t source;   /* TN_DATA_* */
    const char *path; /* text: a glob; tokens: prefix of .bin and .idx. Relative: to the manifest */
    int64_t sequence, batch, micro_batches; /* batch: sequences of a whole step over all ranks */
    double validation;                      /* share of the data kept for validation, from the end */
    int shuffle;
    int separate;              /* documents of a sequence see nothing of each other */
    const char *const *ignore; /* token ids whose prediction is masked in the loss */
    uint32_t n_ignore;
    /* [optimizer] */
    int64_t optimizer, lr_schedule;
    double lr, lr_min; /* lr_min: a share of lr, where linear, cosine and wsd end */
    int64_t warmup_steps;
    double decay_share;                                     /* of all steps, the last part, for wsd */
    double beta1, beta2, eps, weight_decay, momentum, clip; /* clip: 0 off */
    /* [precision] */
    int64_t compute; /* TN_COMPUTE_* */
    /* [device] */
    const char *device;      /* plugin id or path */
    const char *device_disk; /* folder for values on disk; "": a default */
    int64_t device_memory;   /* bytes a rank may use; -1: what the device says */
    /* [comm] */
    const char *backend;       /* plugin id or path */
    const char *const *layers; /* plugin ids or paths over the backend, the outermost first */
    uint32_t n_layers;
    int64_t comm_timeout_ns;
    /* [checkpoint] */
    const char *checkpoint_folder; /* "": none is written */
    int64_t checkpoint_every;      /* steps; 0: only after the last one */
    double checkpoint_minutes;     /* 0: steps alone decide */
    int64_t keep;                  /* 0: all */
    int resume;
    /* [strategies] */
    const char *const *chain; /* plugin ids or paths, in order */
    uint32_t n_chain;

    struct tn_options job, model_options, data, optimizer_options, precision, device_options, comm, checkpoint,
        strategies;
};

/* Reads all core sections; strings are the manifest's. */
void tn_settings_read(struct tn_settings *settings, struct tn_manifest *m, struct tn_diag *diag);
/* The backend that [comm.AXIS] names; "": none. */
const char *tn_settings_axis_backend(struct tn_manifest *m, const char *axis, struct tn_diag *diag);
/* Problems for sections [comm.AXIS] of axes that the mesh does not have. */
void tn_settings_check_axes(struct tn_manifest *m, const char *const *axes, size_t n_axes, struct tn_diag *diag);
/* Problems for entries that no table has used: unknown sections, sections of plugins that
 * the manifest does not name. Call last. `known`: sections of the loaded plugins. */
void tn_settings_unused(struct tn_manifest *m, const char *const *known, size_t n_known, struct tn_diag *diag);
/* The core's tables, for the reference page: NULL-name terminated. */
struct tn_settings_section {
    const char *name, *help;
    const struct tn_option *table;
    uint32_t count;
};
const struct tn_settings_section *tn_settings_sections(void);

#endif
