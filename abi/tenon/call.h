/* A call of a collective as one value, for backends and layers that treat all operations alike.
 *
 * The table has a function for each operation; most plugins do the same with all. This is code for the inside of a
 * plugin, and no part of what crosses between it and the host:
 *
 *     static tn_status call(struct tn_comm *c, const struct tn_call *what, struct tn_request **r) { ... }
 *     TN_CALL_FUNCTIONS(call)
 *     static const struct tn_collective table = { ..., TN_CALL_ENTRIES(call), ... };
 *
 * and a layer hands a call on by tn_call_pass. */
#ifndef TENON_CALL_H
#define TENON_CALL_H

#include <stddef.h>

#include <tenon/collective.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, text); messages are the last two */
#define TN_CALL_LIST(X)                 \
    X(ALL_REDUCE, "all_reduce")         \
    X(ALL_GATHER, "all_gather")         \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALL_TO_ALL, "all_to_all")         \
    X(BROADCAST, "broadcast")           \
    X(BARRIER, "barrier")               \
    X(SEND, "send")                     \
    X(RECV, "recv")

/* clang-format off */
enum {
#define TN_X(name, text) TN_CALL_##name,
    TN_CALL_LIST(TN_X)
#undef TN_X
    TN_CALLS
};
/* clang-format on */

struct tn_call {
    uint32_t op; /* TN_CALL_* */
    uint32_t dtype, red;
    int32_t peer; /* a member: the root of a broadcast, the other side of a message; else 0 */
    uint64_t count;
    const void *send; /* NULL: the operation has none */
    void *recv;
    struct tn_queue *queue;
};

static inline const char *tn_call_name(uint32_t op)
{
    switch (op) {
#define TN_X(name, text) \
    case TN_CALL_##name: return text;
        TN_CALL_LIST(TN_X)
#undef TN_X
    default: return "an unknown operation";
    }
}

static inline const char *tn_call_dtype_name(uint32_t dtype)
{
    switch (dtype) {
#define TN_X(name, number, text, bytes) \
    case number: return text;
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    default: return "unknown dtype";
    }
}

static inline uint32_t tn_call_dtype_bytes(uint32_t dtype) /* 0: no such dtype */
{
    switch (dtype) {
#define TN_X(name, number, text, bytes) \
    case number: return bytes;
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    default: return 0;
    }
}

/* The same call of another plugin's table, on its own group. */
static inline tn_status tn_call_pass(const struct tn_collective *t, struct tn_comm *c, const struct tn_call *a,
                                     struct tn_request **r)
{
    switch (a->op) {
    case TN_CALL_ALL_REDUCE: return t->all_reduce(c, a->send, a->recv, a->count, a->dtype, a->red, a->queue, r);
    case TN_CALL_ALL_GATHER: return t->all_gather(c, a->send, a->recv, a->count, a->dtype, a->queue, r);
    case TN_CALL_REDUCE_SCATTER: return t->reduce_scatter(c, a->send, a->recv, a->count, a->dtype, a->red, a->queue, r);
    case TN_CALL_ALL_TO_ALL: return t->all_to_all(c, a->send, a->recv, a->count, a->dtype, a->queue, r);
    case TN_CALL_BROADCAST: return t->broadcast(c, a->send, a->recv, a->count, a->dtype, a->peer, a->queue, r);
    case TN_CALL_BARRIER: return t->barrier(c, a->queue, r);
    case TN_CALL_SEND: return t->send(c, a->send, a->count, a->dtype, a->peer, a->queue, r);
    case TN_CALL_RECV: return t->recv(c, a->recv, a->count, a->dtype, a->peer, a->queue, r);
    default: return TN_INVALID;
    }
}

#define TN_CALL_ENTRIES(call)                                                                                  \
    .all_reduce = call##_all_reduce, .all_gather = call##_all_gather, .reduce_scatter = call##_reduce_scatter, \
    .all_to_all = call##_all_to_all, .broadcast = call##_broadcast, .send = call##_send, .recv = call##_recv,  \
    .barrier = call##_barrier

/* call_all_reduce to call_barrier, each of which is `call` with its own arguments. */
#define TN_CALL_FUNCTION(call, name, OP, red, peer, count, dtype, send, recv, ...)                            \
    static tn_status call##_##name(struct tn_comm *c, __VA_ARGS__, struct tn_queue *q, struct tn_request **r) \
    {                                                                                                         \
        const struct tn_call what = { TN_CALL_##OP, dtype, red, peer, count, send, recv, q };                 \
        return call(c, &what, r);                                                                             \
    }
#define TN_CALL_FUNCTIONS(call)                                                                                      \
    TN_CALL_FUNCTION(call, all_reduce, ALL_REDUCE, red, 0, n, dtype, in, out, const void *in, void *out, uint64_t n, \
                     uint32_t dtype, uint32_t red)                                                                   \
    TN_CALL_FUNCTION(call, all_gather, ALL_GATHER, 0, 0, n, dtype, in, out, const void *in, void *out, uint64_t n,   \
                     uint32_t dtype)                                                                                 \
    TN_CALL_FUNCTION(call, reduce_scatter, REDUCE_SCATTER, red, 0, n, dtype, in, out, const void *in, void *out,     \
                     uint64_t n, uint32_t dtype, uint32_t red)                                                       \
    TN_CALL_FUNCTION(call, all_to_all, ALL_TO_ALL, 0, 0, n, dtype, in, out, const void *in, void *out, uint64_t n,   \
                     uint32_t dtype)                                                                                 \
    TN_CALL_FUNCTION(call, broadcast, BROADCAST, 0, root, n, dtype, in, out, const void *in, void *out, uint64_t n,  \
                     uint32_t dtype, int32_t root)                                                                   \
    TN_CALL_FUNCTION(call, send, SEND, 0, to, n, dtype, in, NULL, const void *in, uint64_t n, uint32_t dtype,        \
                     int32_t to)                                                                                     \
    TN_CALL_FUNCTION(call, recv, RECV, 0, from, n, dtype, NULL, out, void *out, uint64_t n, uint32_t dtype,          \
                     int32_t from)                                                                                   \
    static tn_status call##_barrier(struct tn_comm *c, struct tn_queue *q, struct tn_request **r)                    \
    {                                                                                                                \
        const struct tn_call what = { TN_CALL_BARRIER, TN_U8, 0, 0, 0, NULL, NULL, q };                              \
        return call(c, &what, r);                                                                                    \
    }

#ifdef __cplusplus
}
#endif
#endif
