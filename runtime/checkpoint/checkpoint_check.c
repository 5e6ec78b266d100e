/* Check: what [checkpoint] and [model] load will meet, found before anything is launched (checkpoint.h).
 *
 * Reads headers and state.json alone, makes and changes nothing. Every problem goes to the job's list, at the key that
 * it is about. */
#include "checkpoint/checkpoint_parts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_MOST = 4096 };

struct place {
    struct tn_job *job;
    const char *section, *key;
};

static void report(void *ctx, const char *what)
{
    const struct place *place = ctx;
    tn_diag_add(&place->job->diag, tn_manifest_where(&place->job->manifest, place->section, place->key), NULL, "%s",
                what);
}

/* The folder itself, or the nearest one above it that is there, must be one that files can be made in. */
static void check_folder(struct place *place, const char *folder)
{
    char path[PATH_MOST], what[PATH_MOST + 300];
    struct stat info;
    snprintf(path, sizeof path, "%s", folder);
    while (stat(path, &info) && (errno == ENOENT || errno == ENOTDIR) && strrchr(path, '/') > path)
        *strrchr(path, '/') = 0;
    if (stat(path, &info)) {
        snprintf(what, sizeof what, "%s: %s", path, strerror(errno));
        report(place, what);
        return;
    }
    const char *why = !S_ISDIR(info.st_mode)      ? "is a file, and no folder can be made there"
                      : access(path, W_OK | X_OK) ? strerror(errno)
                                                  : NULL;
    if (!why)
        return;
    snprintf(what, sizeof what, "%s: %s", path, why);
    report(place, what);
}

static void check_resume(struct place *place, const struct tn_stored *stored, const char *folder,
                         struct tn_origin *origin)
{
    char error[2 * PATH_MOST], file[PATH_MOST + 64];
    snprintf(origin->path, sizeof origin->path, "%.4000s/latest", folder);
    tn_status status = tn_checkpoint_state_read(place->job, origin->path, &origin->progress, error, sizeof error);
    if (status != TN_OK) {
        report(place, error);
        return;
    }
    tn_checkpoint_compare(stored, TN_CHECKPOINT_MODEL, origin->path, report, place);
    snprintf(file, sizeof file, "%.4000s/%s", origin->path, tn_checkpoint_file[TN_CHECKPOINT_OPTIMIZER]);
    tn_checkpoint_compare(stored, TN_CHECKPOINT_OPTIMIZER, file, report, place);
}

void tn_checkpoint_check(struct tn_job *job, const struct tn_compiled *compiled, struct tn_origin *origin)
{
    const struct tn_settings *s = &job->settings;
    struct place folder_place = { job, "checkpoint", "folder" }, load_place = { job, "model", "load" };
    struct tn_stored stored;
    char folder[PATH_MOST] = "";
    *origin = (struct tn_origin){ .kind = TN_ORIGIN_SEED };
    if (!*s->checkpoint_folder && !*s->load)
        return;
    tn_stored_init(&stored, compiled);
    if (*s->checkpoint_folder) {
        tn_checkpoint_path(job, s->checkpoint_folder, folder, sizeof folder);
        check_folder(&folder_place, folder);
    }
    if (*folder && tn_checkpoint_resumes(job, folder)) {
        origin->kind = TN_ORIGIN_CHECKPOINT;
        check_resume(&folder_place, &stored, folder, origin);
    } else if (*s->load) {
        origin->kind = TN_ORIGIN_LOAD;
        tn_checkpoint_path(job, s->load, origin->path, sizeof origin->path);
        tn_checkpoint_compare(&stored, TN_CHECKPOINT_MODEL, origin->path, report, &load_place);
    }
    tn_stored_finish(&stored);
}
