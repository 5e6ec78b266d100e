/* Copier: see copier.h.
 *
 * Host memory is plain memory of the device's host space. The file is made without a name (O_TMPFILE, or unlinked at
 * once), so that nothing is left of it however the process ends, and its blocks are reserved before the first step.
 * It is written and read past the page cache where the file system allows (O_DIRECT): what is kept on disk to save
 * memory must not fill memory. Such transfers are whole blocks from an aligned buffer, hence the one in between. */
#include "run/copier.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenon/host.h>

#include "base/log.h"
#include "passes/plan.h"

enum { RING = 64, BUFFER_BYTES = 1 << 20 };

struct tn_copier {
    const struct tn_device *device;
    void *device_self;
    struct tn_queue *queue; /* of the thread */
    unsigned char *host, *buffer;
    int64_t host_bytes, disk_bytes;
    char folder[1024];
    int file;
    pthread_t thread;
    int started;

    pthread_mutex_t lock;
    pthread_cond_t work, done;
    const struct tn_copy *ring[RING];
    uint64_t asked, finished; /* tickets: how many were started, how many are done */
    int stop, told;
    tn_status status;
    char error[1536];
};

/* the file */

static int open_unnamed(const char *folder, int direct)
{
    int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | direct, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return file;
    char path[1100];
    snprintf(path, sizeof path, "%s/.tenon-XXXXXX", folder);
    file = mkostemp(path, O_CLOEXEC | direct);
    if (file >= 0)
        unlink(path);
    return file;
}

/* All blocks now, so that a full disk is found before the first step. */
static int reserve(int file, int64_t bytes)
{
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error like others */
    int failed = fallocate(file, 0, 0, bytes) != 0;
    if (failed && errno == EOPNOTSUPP)
        failed = ftruncate(file, bytes) != 0;
    int why = errno;
    signal(SIGXFSZ, before);
    errno = why;
    return failed;
}

static tn_status open_file(struct tn_copier *c, char *error, size_t error_bytes)
{
    c->file = open_unnamed(c->folder, O_DIRECT);
    if (c->file < 0 && errno == EINVAL) /* a file system without */
        c->file = open_unnamed(c->folder, 0);
    if (c->file < 0) {
        snprintf(error, error_bytes,
                 "no file in %s for %lld bytes off the device: %s; [device] disk names another folder", c->folder,
                 (long long)c->disk_bytes, strerror(errno));
        return TN_IO;
    }
    if (reserve(c->file, c->disk_bytes)) {
        snprintf(
            error, error_bytes,
            "no room in %s for %lld bytes off the device: %s; name another folder with [device] disk, or keep more "
            "on the device or in host memory",
            c->folder, (long long)c->disk_bytes, strerror(errno));
        return TN_IO;
    }
    return TN_OK;
}

/* the thread */

static tn_status fail(struct tn_copier *c, const struct tn_copy *copy, const char *why)
{
    const char *what = copy->way == TN_COPY_OUT ? "could not be written to" : "could not be read from";
    unsigned long long bytes = copy->bytes;
    if (copy->space == TN_SPACE_DISK)
        snprintf(c->error, sizeof c->error, "%s (%llu bytes) %s disk in %s: %s", copy->name, bytes, what, c->folder,
                 why);
    else
        snprintf(c->error, sizeof c->error, "%s (%llu bytes) %s host memory: %s", copy->name, bytes, what, why);
    return TN_IO;
}

static tn_status move_bytes(struct tn_copier *c, void *to, const void *from, uint64_t bytes)
{
    tn_status status = c->device->copy(c->device_self, to, from, bytes, c->queue);
    return status == TN_OK ? c->device->queue_sync(c->device_self, c->queue) : status;
}

/* All of it, over short transfers. 0, or errno. */
static int transfer(struct tn_copier *c, int out, int64_t offset, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        ssize_t n = out ? pwrite(c->file, c->buffer + at, bytes - at, offset + (int64_t)at)
                        : pread(c->file, c->buffer + at, bytes - at, offset + (int64_t)at);
        if (n < 0 && errno != EINTR)
            return errno;
        if (n == 0)
            return EIO;
        at += n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

static tn_status copy_disk(struct tn_copier *c, const struct tn_copy *copy)
{
    unsigned char *device = copy->device;
    int out = copy->way == TN_COPY_OUT;
    for (uint64_t at = 0; at < copy->bytes;) {
        uint64_t bytes = copy->bytes - at < BUFFER_BYTES ? copy->bytes - at : BUFFER_BYTES;
        uint64_t blocks = (bytes + TN_DISK_BLOCK - 1) / TN_DISK_BLOCK * TN_DISK_BLOCK;
        if (out && move_bytes(c, c->buffer, device + at, bytes) != TN_OK)
            return fail(c, copy, "the device could not copy");
        int wrong = transfer(c, out, copy->offset + (int64_t)at, blocks);
        if (wrong)
            return fail(c, copy, strerror(wrong));
        if (!out && move_bytes(c, device + at, c->buffer, bytes) != TN_OK)
            return fail(c, copy, "the device could not copy");
        at += bytes;
    }
    return TN_OK;
}

static tn_status run_copy(struct tn_copier *c, const struct tn_copy *copy)
{
    if (copy->event && c->device->event_wait(c->device_self, copy->event, c->queue) != TN_OK)
        return fail(c, copy, "the device could not wait");
    if (copy->space == TN_SPACE_DISK)
        return copy_disk(c, copy);
    void *host = c->host + copy->offset;
    int out = copy->way == TN_COPY_OUT;
    tn_status status = move_bytes(c, out ? host : copy->device, out ? copy->device : host, copy->bytes);
    return status == TN_OK ? TN_OK : fail(c, copy, "the device could not copy");
}

static void *serve(void *ctx)
{
    struct tn_copier *c = ctx;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->finished == c->asked && !c->stop)
            pthread_cond_wait(&c->work, &c->lock);
        if (c->finished == c->asked)
            break;
        const struct tn_copy *copy = c->ring[c->finished % RING];
        tn_status status = c->status;
        pthread_mutex_unlock(&c->lock);
        if (status == TN_OK)
            status = run_copy(c, copy);
        pthread_mutex_lock(&c->lock);
        c->status = status;
        c->finished++;
        pthread_cond_signal(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* the executor's side */

uint64_t tn_copier_start(struct tn_copier *c, const struct tn_copy *copy)
{
    pthread_mutex_lock(&c->lock);
    while (c->asked - c->finished == RING)
        pthread_cond_wait(&c->done, &c->lock);
    c->ring[c->asked % RING] = copy;
    uint64_t ticket = ++c->asked;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
    return ticket;
}

tn_status tn_copier_wait(struct tn_copier *c, uint64_t ticket)
{
    pthread_mutex_lock(&c->lock);
    while (c->finished < ticket)
        pthread_cond_wait(&c->done, &c->lock);
    tn_status status = c->status;
    int tell = status != TN_OK && !c->told;
    c->told |= tell;
    pthread_mutex_unlock(&c->lock);
    if (tell)
        tn_log(TN_LOG_ERROR, "%s", c->error);
    return status;
}

/* life */

static tn_status start_thread(struct tn_copier *c, char *error, size_t error_bytes)
{
    sigset_t all, before;
    sigfillset(&all); /* signals are the main thread's; and SIGXFSZ must not end the process */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&c->thread, NULL, serve, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        snprintf(error, error_bytes, "no thread for copies off the device: %s", strerror(failed));
        return TN_ERROR;
    }
    c->started = 1;
    return TN_OK;
}

static tn_status open_spaces(struct tn_copier *c, char *error, size_t error_bytes)
{
    void *memory = NULL;
    if (c->device->queue_create(c->device_self, &c->queue) != TN_OK) {
        snprintf(error, error_bytes, "the device has no queue for copies");
        return TN_ERROR;
    }
    if (c->host_bytes > 0 &&
        c->device->mem_alloc(c->device_self, TN_SPACE_HOST, (uint64_t)c->host_bytes, &memory) != TN_OK) {
        snprintf(error, error_bytes, "no host memory for %lld bytes off the device", (long long)c->host_bytes);
        return TN_NO_MEMORY;
    }
    c->host = memory;
    if (c->disk_bytes == 0)
        return TN_OK;
    c->buffer = aligned_alloc(TN_DISK_BLOCK, BUFFER_BYTES);
    if (!c->buffer) {
        snprintf(error, error_bytes, "out of memory");
        return TN_NO_MEMORY;
    }
    memset(c->buffer, 0, BUFFER_BYTES);
    return open_file(c, error, error_bytes);
}

struct tn_copier *tn_copier_new(const struct tn_copier_of *of, char *error, size_t error_bytes)
{
    struct tn_copier *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(error, error_bytes, "out of memory");
        return NULL;
    }
    c->device = of->device;
    c->device_self = of->device_self;
    c->host_bytes = of->host_bytes;
    c->disk_bytes = of->disk_bytes;
    c->file = -1;
    snprintf(c->folder, sizeof c->folder, "%s", of->folder ? of->folder : "");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->done, NULL);
    tn_status status = open_spaces(c, error, error_bytes);
    if (status == TN_OK)
        status = start_thread(c, error, error_bytes);
    if (status == TN_OK)
        return c;
    tn_copier_destroy(c);
    return NULL;
}

void tn_copier_destroy(struct tn_copier *c)
{
    if (!c)
        return;
    if (c->started) {
        pthread_mutex_lock(&c->lock);
        c->stop = 1;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    if (c->file >= 0)
        close(c->file);
    if (c->host)
        c->device->mem_free(c->device_self, TN_SPACE_HOST, c->host, (uint64_t)c->host_bytes);
    if (c->queue)
        c->device->queue_destroy(c->device_self, c->queue);
    free(c->buffer);
    pthread_cond_destroy(&c->done);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
