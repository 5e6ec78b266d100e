/* Save: every rank writes its own elements at their places of the same files (checkpoint.h).
 *
 * A step stops only while this rank's part is copied to host memory. A thread then writes and fsyncs it, and after each
 * later step the ranks agree on how far all are: once all have written, rank 0 publishes the folder in a thread too. Of
 * ranks that hold the same elements one writes them. Nothing is published unless every rank's files are on the disk. */
#include "checkpoint/checkpoint_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { PATH_MOST = 4096, WAIT_SLICES = 200, WAIT_SLICE_NS = 2000000 };

/* What all ranks are at. */
enum phase { PHASE_IDLE, PHASE_WRITING, PHASE_PUBLISHING };
/* What this rank says of its thread; the largest of all ranks decides, so that nobody cleans up behind a failure while
 * another rank still writes. */
enum { THREAD_DONE, THREAD_FAILED, THREAD_BUSY };

struct file {
    struct tn_buf header;
    uint64_t *offset; /* by tensor: of its data in the file */
    uint64_t bytes;
};

struct tn_checkpoint {
    struct tn_checkpoint_of of;
    struct tn_stored stored;
    char folder[PATH_MOST]; /* "": only load was asked for */
    struct file files[TN_CHECKPOINT_FILES];
    unsigned char *writes; /* by part: this rank is the one that writes it */
    float **copy;          /* by part; NULL where another rank writes */
    struct tn_progress saving;
    int64_t last; /* step of the last checkpoint begun */
    double last_time;
    enum phase phase;
    pthread_t thread;
    int started;      /* there is a thread to join */
    atomic_int state; /* THREAD_* */
    char error[3 * PATH_MOST];
};

static int is_first(const struct tn_checkpoint *c)
{
    return !c->of.rank || c->of.rank->rank == 0;
}

/* opening */

static tn_status lay_out_file(struct tn_checkpoint *c, int which)
{
    const struct tn_stored *s = &c->stored;
    struct file *file = &c->files[which];
    struct tn_safetensors_item *items = calloc(s->n_tensors + 1, sizeof *items);
    uint64_t *offsets = calloc(s->n_tensors + 1, sizeof *offsets);
    static const char *const metadata[] = { "format", "pt", NULL };
    tn_status status = TN_NO_MEMORY;
    size_t n = 0;
    tn_buf_init(&file->header);
    file->offset = calloc(s->n_tensors + 1, sizeof *file->offset);
    if (!items || !offsets || !file->offset)
        goto done;
    for (uint32_t t = 0; t < s->n_tensors; t++)
        if (s->tensors[t].file == which)
            items[n++] = (struct tn_safetensors_item){
                .name = s->tensors[t].name, .dtype = TN_F32, .rank = s->tensors[t].rank, .shape = s->tensors[t].shape
            };
    status = tn_safetensors_layout(items, n, metadata, &file->header, offsets, &file->bytes, c->error, sizeof c->error);
    n = 0;
    for (uint32_t t = 0; t < s->n_tensors; t++)
        if (s->tensors[t].file == which)
            file->offset[t] = offsets[n++];
done:
    free(items);
    free(offsets);
    return status;
}

/* Whether this rank has the lowest coordinate, among those that hold it, on every axis where a part is the same on all.
 * `holder`: the first rank that holds it. */
static int writes_part(const struct tn_checkpoint *c, uint32_t part, int32_t holder)
{
    const struct tn_program *flat = c->stored.flat;
    const struct tn_value_data *value = &flat->values[c->stored.parts[part].value];
    int32_t first[TN_MAX_AXES];
    tn_mesh_coord(flat->mesh, holder, first);
    for (int32_t axis = 0; axis < flat->mesh->n_axes; axis++) {
        uint32_t kind = TN_PLACE_KIND(value->place[axis]);
        if (kind != TN_PLACE_SHARD && kind != TN_PLACE_FLAT && flat->coord[axis] != first[axis])
            return 0;
    }
    return 1;
}

/* Asks who holds what only where not every rank holds a part of everything (stages). */
static tn_status choose_writers(struct tn_checkpoint *c)
{
    const struct tn_program *p = &c->of.compiled->program;
    const struct tn_stored *s = &c->stored;
    tn_status status = TN_OK;
    uint32_t part = 0;
    c->writes = calloc(s->n_parts + 1, 1);
    c->copy = calloc(s->n_parts + 1, sizeof *c->copy);
    if (!c->writes || !c->copy)
        return TN_NO_MEMORY;
    int some_alone = c->of.most(c->of.ctx, s->n_parts < s->n_values, &status) > 0;
    for (tn_value v = 1; v <= p->n_values && status == TN_OK; v++) {
        const struct tn_value_data *value = &p->values[v];
        if ((value->kind != TN_KIND_PARAM && value->kind != TN_KIND_STATE) || value->def)
            continue;
        int here = part < s->n_parts && strcmp(s->flat->values[s->parts[part].value].name, value->name) == 0;
        int32_t holder = 0, me = c->of.rank ? c->of.rank->rank : 0;
        if (some_alone)
            holder = -(int32_t)c->of.most(c->of.ctx, here ? (float)-me : -16777216.0f, &status);
        if (here && status == TN_OK) /* a copy, w#1, is as w is, which some rank holds */
            c->writes[part] = !strchr(value->name, '#') && writes_part(c, part, holder);
        part += (uint32_t)here;
    }
    return status;
}

/* Written once here, so that the first save does not wait for the system to find the pages. */
static tn_status allocate_copies(struct tn_checkpoint *c)
{
    for (uint32_t i = 0; i < c->stored.n_parts; i++) {
        size_t n = (size_t)tn_local_elements(c->stored.flat, c->stored.parts[i].value);
        if (!c->writes[i] || n == 0)
            continue;
        c->copy[i] = malloc(n * sizeof **c->copy);
        if (!c->copy[i])
            return TN_NO_MEMORY;
        memset(c->copy[i], 1, n * sizeof **c->copy); /* zeros might be left to the system */
    }
    return TN_OK;
}

/* Nobody writes before rank 0 has made the folder and removed what a killed run left in it. */
static tn_status open_folder(struct tn_checkpoint *c)
{
    tn_status status = TN_OK;
    for (int which = 0; which < TN_CHECKPOINT_FILES && status == TN_OK; which++)
        status = lay_out_file(c, which);
    if (status == TN_OK && is_first(c))
        status = tn_checkpoint_folder_prepare(c->folder, c->error, sizeof c->error);
    if (status != TN_OK)
        tn_log(TN_LOG_ERROR, "%s", *c->error ? c->error : "checkpoint: out of memory");
    tn_status vote = TN_OK;
    if (c->of.most(c->of.ctx, status != TN_OK, &vote) > 0 || vote != TN_OK)
        return status != TN_OK ? status : TN_IO;
    status = choose_writers(c);
    if (status == TN_OK)
        status = allocate_copies(c);
    if (status == TN_NO_MEMORY)
        tn_log(TN_LOG_ERROR, "checkpoint: out of memory for the host's copy of params and states");
    return status;
}

/* The ranks must go on from the same step: a folder that is not shared shows here. */
static tn_status agree_on_step(struct tn_checkpoint *c, const struct tn_progress *progress)
{
    tn_status status = TN_OK;
    float mine = (float)(progress->step % 16777213);
    float most = c->of.most(c->of.ctx, mine, &status), least = -c->of.most(c->of.ctx, -mine, &status);
    if (status == TN_OK && most != least) {
        tn_log(TN_LOG_ERROR,
               "checkpoint: this rank goes on from step %lld, another one not; [checkpoint] folder must "
               "be the same on all ranks",
               (long long)progress->step);
        return TN_CONFLICT;
    }
    return status;
}

static tn_status restore(struct tn_checkpoint *c, struct tn_progress *progress)
{
    const struct tn_settings *s = &c->of.job->settings;
    char path[PATH_MOST], latest[PATH_MOST + 8];
    tn_status status = TN_OK;
    int resume = 0;
    snprintf(latest, sizeof latest, "%s/latest", c->folder);
    if (*c->folder && tn_checkpoint_resumes(c->of.job, c->folder)) {
        resume = 1;
        status = tn_checkpoint_state_read(c->of.job, latest, progress, c->error, sizeof c->error);
        if (status != TN_OK)
            tn_log(TN_LOG_ERROR, "%s", c->error);
        else
            status = tn_checkpoint_load(&c->stored, c->of.exec, latest, 1);
    } else if (*s->load) {
        tn_checkpoint_path(c->of.job, s->load, path, sizeof path);
        status = tn_checkpoint_load(&c->stored, c->of.exec, path, 0);
    }
    if (status == TN_OK && resume && is_first(c))
        tn_log(TN_LOG_INFO, "resumed from %s at step %lld", latest, (long long)progress->step);
    return status;
}

tn_status tn_checkpoint_open(struct tn_checkpoint **checkpoint, const struct tn_checkpoint_of *of,
                             struct tn_progress *progress)
{
    const struct tn_settings *s = &of->job->settings;
    *checkpoint = NULL;
    if (!*s->checkpoint_folder && !*s->load)
        return TN_OK;
    struct tn_checkpoint *c = calloc(1, sizeof *c);
    if (!c)
        return TN_NO_MEMORY;
    *checkpoint = c;
    c->of = *of;
    tn_stored_init(&c->stored, of->compiled);
    if (*s->checkpoint_folder)
        tn_checkpoint_path(of->job, s->checkpoint_folder, c->folder, sizeof c->folder);
    tn_status status = restore(c, progress), vote = TN_OK;
    if (of->most(of->ctx, status != TN_OK, &vote) > 0 || vote != TN_OK)
        return status != TN_OK ? status : TN_IO;
    status = agree_on_step(c, progress);
    if (status == TN_OK && *c->folder)
        status = open_folder(c);
    c->last = progress->step;
    c->last_time = tn_now_s();
    return status;
}

/* the thread: writing */

static int fail(struct tn_checkpoint *c, const char *path)
{
    snprintf(c->error, sizeof c->error, "checkpoint of step %lld: %s: %s", (long long)c->saving.step, path,
             strerror(errno));
    return -1;
}

static int write_at(int fd, const void *data, uint64_t bytes, uint64_t at)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t wrote = pwrite(fd, from, bytes < (1u << 30) ? bytes : (1u << 30), (off_t)at);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            errno = wrote ? errno : ENOSPC;
            return -1;
        }
        from += wrote;
        at += (uint64_t)wrote;
        bytes -= (uint64_t)wrote;
    }
    return 0;
}

static int write_part(const struct tn_checkpoint *c, const struct file *file, int fd, uint32_t part)
{
    uint64_t start = file->offset[c->stored.parts[part].tensor];
    struct tn_runs runs;
    int64_t local, at, count;
    int failed = tn_runs_init(&runs, &c->stored, part) != TN_OK;
    if (failed)
        errno = ENOMEM;
    while (!failed && (count = tn_runs_next(&runs, &local, &at)) > 0)
        failed = write_at(fd, c->copy[part] + local, (uint64_t)count * sizeof **c->copy,
                          start + (uint64_t)at * sizeof **c->copy);
    int why = errno;
    tn_runs_finish(&runs);
    errno = why;
    return failed ? -1 : 0;
}

static int write_tensors(struct tn_checkpoint *c, const char *folder, int which)
{
    const struct file *file = &c->files[which];
    char path[2 * PATH_MOST];
    snprintf(path, sizeof path, "%s/%s", folder, tn_checkpoint_file[which]);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    int failed = fd < 0;
    if (!failed && is_first(c))
        failed = ftruncate(fd, (off_t)file->bytes) || write_at(fd, file->header.text, file->header.length, 0);
    for (uint32_t i = 0; i < c->stored.n_parts && !failed; i++)
        if (c->copy[i] && c->stored.tensors[c->stored.parts[i].tensor].file == which)
            failed = write_part(c, file, fd, i);
    if (!failed)
        failed = fsync(fd);
    int result = failed ? fail(c, path) : 0;
    if (fd >= 0 && close(fd) && !failed)
        result = fail(c, path);
    return result;
}

/* Frees the text. */
static int write_text(struct tn_checkpoint *c, const char *folder, const char *name, char *text)
{
    char path[2 * PATH_MOST];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = text ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (!text)
        errno = ENOMEM;
    int failed = fd < 0 || write_at(fd, text, strlen(text), 0) || fsync(fd);
    int result = failed ? fail(c, path) : 0;
    if (fd >= 0 && close(fd) && !failed)
        result = fail(c, path);
    free(text);
    return result;
}

static void *write_all(void *argument)
{
    struct tn_checkpoint *c = argument;
    char folder[PATH_MOST];
    tn_checkpoint_temporary(c->folder, c->saving.step, folder, sizeof folder);
    int failed = mkdir(folder, 0777) && errno != EEXIST ? fail(c, folder) : 0;
    for (int which = 0; which < TN_CHECKPOINT_FILES && !failed; which++)
        failed = write_tensors(c, folder, which);
    if (!failed && is_first(c))
        failed = write_text(c, folder, "config.json", tn_checkpoint_config_text(c->of.job)) ||
                 write_text(c, folder, "state.json", tn_checkpoint_state_text(c->of.job, &c->saving));
    atomic_store(&c->state, failed ? THREAD_FAILED : THREAD_DONE);
    return NULL;
}

static void *publish(void *argument)
{
    struct tn_checkpoint *c = argument;
    tn_status status =
        tn_checkpoint_publish(c->folder, c->saving.step, c->of.job->settings.keep, c->error, sizeof c->error);
    atomic_store(&c->state, status == TN_OK ? THREAD_DONE : THREAD_FAILED);
    return NULL;
}

/* Signals are the main thread's. */
static void start(struct tn_checkpoint *c, void *(*body)(void *))
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&c->state, THREAD_BUSY);
    int error = pthread_create(&c->thread, NULL, body, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    c->started = error == 0;
    if (error) {
        snprintf(c->error, sizeof c->error, "checkpoint: no thread to write it: %s", strerror(error));
        atomic_store(&c->state, THREAD_FAILED);
    }
}

static void join(struct tn_checkpoint *c)
{
    if (c->started)
        pthread_join(c->thread, NULL);
    c->started = 0;
}

/* between steps */

/* Takes all ranks on to the next phase once every rank is done with this one. */
static tn_status poll(struct tn_checkpoint *c)
{
    tn_status status = TN_OK;
    if (c->phase == PHASE_IDLE)
        return TN_OK;
    float slowest = c->of.most(c->of.ctx, (float)atomic_load(&c->state), &status);
    if (status != TN_OK || slowest == THREAD_BUSY)
        return status;
    if (slowest == THREAD_FAILED) {
        tn_log(TN_LOG_ERROR, "%s; no checkpoint of step %lld was made",
               atomic_load(&c->state) == THREAD_FAILED ? c->error : "checkpoint: another rank could not write its part",
               (long long)c->saving.step);
        return TN_IO;
    }
    join(c);
    c->phase = c->phase == PHASE_WRITING ? PHASE_PUBLISHING : PHASE_IDLE;
    if (c->phase == PHASE_PUBLISHING && is_first(c))
        start(c, publish);
    return TN_OK;
}

/* Ranks that are done wait for the others in short turns, so that a slow disk is not taken for a lost rank. */
static tn_status wait_until_idle(struct tn_checkpoint *c)
{
    tn_status status = TN_OK;
    while (c->phase != PHASE_IDLE && status == TN_OK) {
        for (int i = 0; i < WAIT_SLICES && atomic_load(&c->state) == THREAD_BUSY; i++)
            nanosleep(&(struct timespec){ .tv_nsec = WAIT_SLICE_NS }, NULL);
        status = poll(c);
    }
    return status;
}

static tn_status save(struct tn_checkpoint *c, const struct tn_progress *progress)
{
    tn_status status = wait_until_idle(c);
    for (uint32_t i = 0; i < c->stored.n_parts && status == TN_OK; i++) {
        tn_value v = c->stored.parts[i].value;
        uint64_t bytes = (uint64_t)tn_local_elements(c->stored.flat, v) * sizeof **c->copy;
        if (c->copy[i])
            status = tn_exec_read(c->of.exec, v, c->copy[i], bytes);
    }
    if (status != TN_OK)
        return status;
    c->saving = *progress;
    c->last = progress->step;
    c->last_time = tn_now_s();
    c->phase = PHASE_WRITING;
    start(c, write_all);
    return TN_OK;
}

tn_status tn_checkpoint_step(struct tn_checkpoint *c, const struct tn_progress *progress, double *stall_ms)
{
    *stall_ms = 0;
    if (!c || !*c->folder)
        return TN_OK;
    const struct tn_settings *s = &c->of.job->settings;
    double begun = tn_now_s();
    tn_status status = poll(c);
    int due = s->checkpoint_every > 0 && progress->step % s->checkpoint_every == 0;
    if (!due && s->checkpoint_minutes > 0 && status == TN_OK)
        due =
            c->of.most(c->of.ctx, is_first(c) && tn_now_s() - c->last_time >= s->checkpoint_minutes * 60, &status) > 0;
    if (!due || status != TN_OK)
        return status;
    status = save(c, progress);
    *stall_ms = (tn_now_s() - begun) * 1e3;
    return status;
}

tn_status tn_checkpoint_end(struct tn_checkpoint *c, const struct tn_progress *progress)
{
    if (!c || !*c->folder)
        return TN_OK;
    tn_status status = c->last == progress->step ? TN_OK : save(c, progress);
    return status == TN_OK ? wait_until_idle(c) : status;
}

void tn_checkpoint_close(struct tn_checkpoint *c)
{
    char path[PATH_MOST];
    if (!c)
        return;
    join(c);
    if (c->phase == PHASE_WRITING && is_first(c)) {
        tn_checkpoint_temporary(c->folder, c->saving.step, path, sizeof path);
        tn_checkpoint_remove(path);
    }
    for (uint32_t i = 0; c->copy && i < c->stored.n_parts; i++)
        free(c->copy[i]);
    free(c->copy);
    free(c->writes);
    for (int which = 0; which < TN_CHECKPOINT_FILES; which++) {
        if (c->files[which].offset)
            tn_buf_finish(&c->files[which].header);
        free(c->files[which].offset);
    }
    tn_stored_finish(&c->stored);
    free(c);
}
