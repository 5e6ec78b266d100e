/* Inputs of an operation, and what must come out (bench.h).
 *
 * Inputs are small whole numbers that depend on the rank, the element and a seed, and repeat after a prime number of
 * elements: no cut in slices or pieces falls together with it. So sums are exact in every dtype (in bf16 from 256 on
 * they are rounded once, as the contract says), and every element of a result has one right value. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { PERIOD = 251, SPREAD = 5, POISON = 0xa5 };

static uint32_t width(uint32_t dtype)
{
    static const uint32_t bytes[] = {
#define TN_X(name, number, text, size) [number] = size,
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    };
    return bytes[dtype];
}

int bench_call_init(struct bench_call *call, int op, int place, uint32_t dtype, uint32_t red, int32_t root,
                    uint64_t bytes, int32_t rank, int32_t n)
{
    int is_cut = op == BENCH_ALL_GATHER || op == BENCH_REDUCE_SCATTER || op == BENCH_ALL_TO_ALL;
    *call =
        (struct bench_call){ .op = op, .place = place, .dtype = dtype, .red = red, .root = root, .rank = rank, .n = n };
    call->count = op == BENCH_BARRIER ? 0 : bytes / width(dtype) / (uint64_t)(is_cut ? n : 1);
    call->bytes = call->count * width(dtype) * (uint64_t)(is_cut ? n : 1);
    int has_two = op != BENCH_ALL_TO_ALL && op != BENCH_SEND_RECV && op != BENCH_BARRIER;
    return place == BENCH_OUT_OF_PLACE || has_two;
}

struct bench_buffers bench_call_buffers(const struct bench_call *call, char *send, char *recv)
{
    uint64_t part = call->count * width(call->dtype), mine = part * (uint64_t)call->rank;
    struct bench_buffers b = { send, recv, call->bytes, call->bytes };
    if (call->op == BENCH_ALL_GATHER)
        b.send_bytes = part;
    if (call->op == BENCH_REDUCE_SCATTER)
        b.recv_bytes = part;
    if (call->place == BENCH_IN_PLACE) { /* one buffer; the smaller is this rank's part of the larger */
        b.send = call->op == BENCH_ALL_GATHER ? recv + mine : recv;
        b.recv = call->op == BENCH_REDUCE_SCATTER ? recv + mine : recv;
    }
    return b;
}

/* ---- values ---- */

static int32_t value(uint32_t seed, int32_t rank, uint32_t at)
{
    uint32_t x = seed * 0x9e3779b9u ^ (uint32_t)rank * 0x85ebca6bu ^ at * 0xc2b2ae35u; /* mixed as murmur3 ends */
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return (int32_t)((x ^ x >> 16) % (2 * SPREAD + 1)) - SPREAD;
}

/* To nearest, ties to even. */
static uint16_t bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static void encode(uint32_t dtype, int64_t value_of, char *to)
{
    float f = (float)value_of;
    double d = (double)value_of;
    int32_t i = (int32_t)value_of;
    uint16_t half = bf16(f);
    switch (dtype) {
    case TN_F32: memcpy(to, &f, 4); break;
    case TN_F64: memcpy(to, &d, 8); break;
    case TN_BF16: memcpy(to, &half, 2); break;
    case TN_I32: memcpy(to, &i, 4); break;
    case TN_I64: memcpy(to, &value_of, 8); break;
    default: memcpy(to, &i, width(dtype)); /* only moved, never summed */
    }
}

struct table {
    char bytes[PERIOD * 8];
};

static void inputs_of(const struct bench_call *call, int32_t rank, struct table *t)
{
    for (uint32_t at = 0; at < PERIOD; at++)
        encode(call->dtype, value(call->seed, rank, at), t->bytes + at * width(call->dtype));
}

static void sums(const struct bench_call *call, struct table *t)
{
    for (uint32_t at = 0; at < PERIOD; at++) {
        int64_t result = value(call->seed, 0, at);
        for (int32_t r = 1; r < call->n; r++) {
            int32_t term = value(call->seed, r, at);
            result = call->red == TN_RED_SUM ? result + term : term > result ? term : result;
        }
        encode(call->dtype, result, t->bytes + at * width(call->dtype));
    }
}

/* Elements `first` and following of what the table repeats. */
static void write_part(const struct table *t, uint32_t bytes, uint64_t first, uint64_t count, char *to)
{
    uint64_t at = first % PERIOD;
    for (uint64_t i = 0; i < count;) {
        uint64_t run = PERIOD - at < count - i ? PERIOD - at : count - i;
        memcpy(to + i * bytes, t->bytes + at * bytes, run * bytes);
        i += run;
        at = 0;
    }
}

static uint64_t wrong_in(const struct table *t, uint32_t bytes, uint64_t first, uint64_t count, const char *have)
{
    uint64_t at = first % PERIOD, wrong = 0;
    for (uint64_t i = 0; i < count;) {
        uint64_t run = PERIOD - at < count - i ? PERIOD - at : count - i;
        if (memcmp(have + i * bytes, t->bytes + at * bytes, run * bytes) != 0)
            for (uint64_t k = 0; k < run; k++)
                wrong += memcmp(have + (i + k) * bytes, t->bytes + (at + k) * bytes, bytes) != 0;
        i += run;
        at = 0;
    }
    return wrong;
}

void bench_values_fill(const struct bench_call *call, char *send, char *recv)
{
    struct bench_buffers b = bench_call_buffers(call, send, recv);
    struct table t;
    memset(recv, POISON, call->bytes);
    inputs_of(call, call->rank, &t);
    if (call->op != BENCH_BROADCAST || call->rank == call->root || call->place == BENCH_OUT_OF_PLACE)
        write_part(&t, width(call->dtype), 0, b.send_bytes / width(call->dtype), b.send);
}

uint64_t bench_values_wrong(const struct bench_call *call, const char *send, const char *recv)
{
    struct bench_buffers b = bench_call_buffers(call, (char *)send, (char *)recv);
    uint32_t bytes = width(call->dtype);
    uint64_t wrong = 0;
    struct table t;
    switch (call->op) {
    case BENCH_ALL_REDUCE: sums(call, &t); return wrong_in(&t, bytes, 0, call->count, b.recv);
    case BENCH_REDUCE_SCATTER:
        sums(call, &t);
        return wrong_in(&t, bytes, call->count * (uint64_t)call->rank, call->count, b.recv);
    case BENCH_BROADCAST: inputs_of(call, call->root, &t); return wrong_in(&t, bytes, 0, call->count, b.recv);
    case BENCH_SEND_RECV:
        inputs_of(call, (call->rank + call->n - 1) % call->n, &t);
        return wrong_in(&t, bytes, 0, call->count, b.recv);
    case BENCH_ALL_GATHER:
    case BENCH_ALL_TO_ALL:
        for (int32_t r = 0; r < call->n; r++) {
            uint64_t first = call->op == BENCH_ALL_TO_ALL ? call->count * (uint64_t)call->rank : 0;
            inputs_of(call, r, &t);
            wrong += wrong_in(&t, bytes, first, call->count, b.recv + (uint64_t)r * call->count * bytes);
        }
        return wrong;
    default: return 0;
    }
}
