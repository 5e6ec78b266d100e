/* Prefetch: see data.h. A thread that reads the batch of the next step while this one is computed.
 *
 * Two slots, used in turn: the caller holds one, the thread fills the other. A slot is `ready` from when the thread
 * has filled it until the caller asks for the step after it. */
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/host.h>

#include "base/log.h"
#include "data/data.h"
#include "data/data_source.h"

struct slot {
    int32_t *tokens, *labels;
    int ready;
};

struct tn_prefetch {
    const struct tn_data *data;
    int64_t batch, first_step;
    int64_t next; /* the step that the caller asks for next; the caller's alone */
    struct slot slots[2];
    int stop, failed;
    pthread_mutex_t lock; /* of ready, stop and failed */
    pthread_cond_t changed;
    pthread_t thread;
};

/* Waits until `slot` may be filled. 0 when it is time to end. */
static int wait_for_room(struct tn_prefetch *p, const struct slot *slot)
{
    pthread_mutex_lock(&p->lock);
    while (slot->ready && !p->stop)
        pthread_cond_wait(&p->changed, &p->lock);
    int go_on = !p->stop;
    pthread_mutex_unlock(&p->lock);
    return go_on;
}

static void *read_ahead(void *argument)
{
    struct tn_prefetch *p = argument;
    for (int64_t step = p->first_step; wait_for_room(p, &p->slots[step & 1]); step++) {
        struct slot *slot = &p->slots[step & 1];
        int bad = tn_data_rows(p->data, TN_SPLIT_TRAIN, step, 0, p->batch, slot->tokens, slot->labels) != 0;
        pthread_mutex_lock(&p->lock);
        slot->ready = !bad;
        p->failed = bad;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        if (bad)
            break;
    }
    return NULL;
}

/* Signals are the main thread's: none may be delivered here. */
static int start_thread(struct tn_prefetch *p)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&p->thread, NULL, read_ahead, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void release(struct tn_prefetch *p)
{
    for (int i = 0; i < 2; i++) {
        free(p->slots[i].tokens);
        free(p->slots[i].labels);
    }
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int tn_prefetch_start(struct tn_prefetch **prefetch, const struct tn_data *data, int64_t first_step)
{
    *prefetch = NULL;
    struct tn_prefetch *p = calloc(1, sizeof *p);
    if (!p) {
        tn_log(TN_LOG_ERROR, "data: out of memory for the prefetch");
        return -1;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    int64_t sequence;
    tn_data_shape(data, &p->batch, &sequence);
    p->data = data;
    p->first_step = p->next = first_step;
    int missing = 0;
    for (int i = 0; i < 2; i++) {
        p->slots[i].tokens = calloc((size_t)p->batch, (size_t)sequence * sizeof(int32_t));
        p->slots[i].labels = calloc((size_t)p->batch, (size_t)sequence * sizeof(int32_t));
        missing |= !p->slots[i].tokens || !p->slots[i].labels;
    }
    int error = missing ? 0 : start_thread(p);
    if (missing || error) {
        tn_log(TN_LOG_ERROR, "data: cannot start the prefetch: %s", missing ? "out of memory" : strerror(error));
        release(p);
        return -1;
    }
    *prefetch = p;
    return 0;
}

int tn_prefetch_next(struct tn_prefetch *p, int64_t step, const int32_t **tokens, const int32_t **labels)
{
    assert(step == p->next);
    struct slot *slot = &p->slots[step & 1];
    pthread_mutex_lock(&p->lock);
    if (step > p->first_step) {
        p->slots[(step - 1) & 1].ready = 0;
        pthread_cond_broadcast(&p->changed);
    }
    while (!slot->ready && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    int ready = slot->ready;
    pthread_mutex_unlock(&p->lock);
    *tokens = ready ? slot->tokens : NULL;
    *labels = ready ? slot->labels : NULL;
    if (!ready)
        return -1;
    p->next++;
    return 0;
}

void tn_prefetch_stop(struct tn_prefetch *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    release(p);
}
