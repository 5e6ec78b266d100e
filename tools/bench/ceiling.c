/* What the memory of the host gives, to hold the figures against (bench.h).
 *
 * An operation over shared memory cannot be faster than the cores can load and store the bytes that it must touch. The
 * ceiling is measured beside it, in a working set of the same size, as loads and stores of the same kind: in place,
 * from one half to the other with and without the cache, loads or stores alone. Of the ways that an operation could go
 * the best counts. So in small sizes it is a cache's, in large ones the memory's. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { HUGE = 2 << 20 };

typedef float vec __attribute__((vector_size(64), may_alias));

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif

/* Built for several levels of the processor, the best chosen at load time; before sanitizers are ready for it. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(IS_SANITIZED)
#define LEVELS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LEVELS
#endif

LEVELS static void update(char *memory, uint64_t bytes)
{
    vec *x = (vec *)memory;
    for (uint64_t i = 0; i < bytes / sizeof *x; i++)
        x[i] = x[i] + 1.0f;
    __asm__ volatile("" : : "r"(memory) : "memory");
}

LEVELS static void copy(char *to, const char *from, uint64_t bytes)
{
    vec *y = (vec *)to;
    const vec *x = (const vec *)from;
    for (uint64_t i = 0; i < bytes / sizeof *x; i++)
        y[i] = x[i];
    __asm__ volatile("" : : "r"(to) : "memory");
}

LEVELS static void load(const char *memory, uint64_t bytes)
{
    const vec *x = (const vec *)memory;
    vec sum[4] = { { 0 }, { 0 }, { 0 }, { 0 } };
    for (uint64_t i = 0; i + 4 <= bytes / sizeof *x; i += 4)
        for (int k = 0; k < 4; k++)
            sum[k] += x[i + (uint64_t)k];
    sum[0] += sum[1] + sum[2] + sum[3];
    __asm__ volatile("" : : "m"(sum[0]));
}

/* Stores that leave no copy in the cache. */
static void copy_past(char *to, const char *from, uint64_t bytes)
{
#if defined(__SSE2__)
    for (uint64_t at = 0; at < bytes; at += 16)
        _mm_stream_si128((__m128i *)(to + at), _mm_load_si128((const __m128i *)(from + at)));
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

/* Stores alone, likewise. */
static void store_past(char *to, uint64_t bytes)
{
#if defined(__SSE2__)
    for (uint64_t at = 0; at < bytes; at += 16)
        _mm_stream_si128((__m128i *)(to + at), _mm_setzero_si128());
    _mm_sfence();
#else
    memset(to, 0, bytes);
#endif
}

/* Fresh and in large pages where the system has some, as arenas of backends may be: look-ups of addresses cost time. */
void bench_ceiling_init(struct bench_ceiling *c, uint64_t bytes)
{
    *c = (struct bench_ceiling){ .bytes = bytes / 128 * 128, .mapped_bytes = bytes + HUGE };
    if (!c->bytes)
        return;
    c->mapping = mmap(NULL, c->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->mapping == MAP_FAILED) {
        *c = (struct bench_ceiling){ 0 };
        return;
    }
    c->memory = (char *)c->mapping + (HUGE - (uintptr_t)c->mapping % HUGE) % HUGE;
    madvise(c->mapping, c->mapped_bytes, MADV_HUGEPAGE);
    memset(c->memory, 0, c->bytes);
}

void bench_ceiling_finish(struct bench_ceiling *c)
{
    if (c->mapping)
        munmap(c->mapping, c->mapped_bytes);
    *c = (struct bench_ceiling){ 0 };
}

enum { UPDATE, COPY, COPY_PAST, LOAD, STORE_PAST };

int bench_ceiling_counts(const struct bench_call *call, int pass)
{
    if (call->op == BENCH_REDUCE_SCATTER)
        return pass != STORE_PAST; /* n loads for a store */
    if (call->op == BENCH_ALL_GATHER || call->op == BENCH_BROADCAST)
        return pass == COPY || pass == COPY_PAST || pass == STORE_PAST; /* n stores for a load */
    if (call->op == BENCH_ALL_REDUCE && call->place == BENCH_IN_PLACE)
        return pass == UPDATE;
    return pass == COPY || pass == COPY_PAST;
}

void bench_ceiling_pass(struct bench_ceiling *c, int pass)
{
    uint64_t half = c->bytes / 128 * 64;
    switch (pass) {
    case UPDATE: update(c->memory, c->bytes); break;
    case COPY: copy(c->memory + half, c->memory, half); break;
    case COPY_PAST: copy_past(c->memory + half, c->memory, half); break;
    case LOAD: load(c->memory, c->bytes); break;
    default: store_past(c->memory, c->bytes);
    }
}

uint64_t bench_ceiling_bytes(const struct bench_ceiling *c, int pass)
{
    return pass == UPDATE ? 2 * c->bytes : c->bytes;
}

/* n ranks, S bytes: all_reduce reads n S and writes n S; reduce_scatter reads n S and writes S; all_gather reads S and
 * writes n S, in place without the n own parts, S / n each; and so on. */
double bench_moved(const struct bench_call *call)
{
    double n = call->n, own = call->place == BENCH_IN_PLACE ? 1 : 0;
    switch (call->op) {
    case BENCH_ALL_REDUCE: return 2 * n;
    case BENCH_ALL_TO_ALL: return 2 * n;
    case BENCH_SEND_RECV: return 2 * n;
    case BENCH_REDUCE_SCATTER: return n + 1;
    case BENCH_ALL_GATHER: return n + 1 - own;
    case BENCH_BROADCAST: return n + 1 - own;
    default: return 0;
    }
}

double bench_bus_factor(int op, int32_t n)
{
    if (op == BENCH_ALL_REDUCE)
        return 2.0 * (n - 1) / n;
    if (op == BENCH_BROADCAST || op == BENCH_SEND_RECV)
        return 1;
    return (double)(n - 1) / n;
}

void bench_flush(const char *from, uint64_t bytes)
{
#if defined(__SSE2__)
    for (uint64_t at = 0; at < bytes; at += 64)
        _mm_clflush(from + at);
    _mm_mfence();
#else
    static char *other;
    enum { PUSHES_OUT = 128 << 20 };
    if (!other)
        other = malloc(PUSHES_OUT);
    if (other)
        memset(other, (int)bytes, PUSHES_OUT);
#endif
}
