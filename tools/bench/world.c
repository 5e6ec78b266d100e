/* This process as a rank: what ranks tell each other beside what is measured (bench.h).
 *
 * It goes through the job's store, not through a backend: a backend under test may be slow, or wrong. Keys are written
 * once, so each exchange has one of its own. */
#include "bench.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tenon/host.h>

#include "base/log.h"
#include "ranks/store_wire.h"

enum { NAP_NS = 300 * 1000, PIECE_BYTES = TN_STORE_VALUE_MAX };

uint64_t bench_now_ns(void)
{
    return tn_now_ns();
}

void *bench_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) {
        tn_log(TN_LOG_ERROR, "no memory for %zu bytes", bytes);
        exit(TOOL_FAILED);
    }
    return memory;
}

const char *bench_advice(tn_status status)
{
    return status == TN_TIMEOUT ? "; if a rank is only slow, raise --timeout" : "";
}

void bench_die(const struct bench_world *w, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tn_vlog(TN_LOG_ERROR, NULL, fmt, args);
    va_end(args);
    fflush(stdout);
    (void)w;
    _exit(TOOL_FAILED); /* libraries of backends may hang when asked to end in good order now */
}

static void put(struct bench_world *w, const char *key, const void *data, size_t bytes)
{
    const struct tn_bootstrap *boot = &w->joined.bootstrap;
    tn_status status;
    while ((status = boot->put(boot->ctx, key, data, (uint32_t)bytes)) == TN_PENDING)
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    if (status != TN_OK)
        bench_die(w, "the ranks can no longer tell each other their results; use fewer iterations (-n)");
}

static void get(struct bench_world *w, const char *key, void *data, size_t bytes)
{
    const struct tn_bootstrap *boot = &w->joined.bootstrap;
    for (;;) {
        uint32_t got = (uint32_t)bytes;
        tn_status status = boot->get(boot->ctx, key, data, &got);
        if (status == TN_OK && got == bytes)
            return;
        if (status != TN_PENDING)
            bench_die(w, "the ranks run different versions, or were started with different arguments");
        const char *death = tn_store_death(w->joined.store, NULL);
        if (death)
            bench_die(w, "%s", death);
        if (tn_rank_interrupted())
            _exit(TOOL_FAILED);
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    }
}

void bench_gather(struct bench_world *w, const void *mine, size_t bytes, void *all)
{
    char key[64];
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        size_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        uint64_t number = w->next_key++;
        snprintf(key, sizeof key, "bench/%llu/%d", (unsigned long long)number, w->rank);
        if (w->rank != 0) {
            put(w, key, (const char *)mine + at, piece);
            continue;
        }
        memcpy((char *)all + at, (const char *)mine + at, piece);
        for (int32_t r = 1; r < w->n; r++) {
            snprintf(key, sizeof key, "bench/%llu/%d", (unsigned long long)number, r);
            get(w, key, (char *)all + (size_t)r * bytes + at, piece);
        }
    }
}

void bench_tell(struct bench_world *w, void *data, size_t bytes)
{
    char key[64];
    snprintf(key, sizeof key, "bench/%llu", (unsigned long long)w->next_key++);
    if (w->rank == 0)
        put(w, key, data, bytes);
    else
        get(w, key, data, bytes);
}
