/* Result codes of every Tenon function that can fail.
 *
 * 0 is success, negatives are failures, TN_PENDING is neither: "not finished, ask again".
 * A failing function also sets one message through the host (host.h, fail), at the place
 * where the failure was decided. New codes are appended; numbers never change. */
#ifndef TENON_STATUS_H
#define TENON_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, number, text) */
#define TN_STATUS_LIST(X)               \
    X(PENDING, 1, "not finished yet")   \
    X(OK, 0, "ok")                      \
    X(ERROR, -1, "failed")              \
    X(INVALID, -2, "invalid argument")  \
    X(NOT_FOUND, -3, "not found")       \
    X(UNSUPPORTED, -4, "not supported") \
    X(NO_MEMORY, -5, "out of memory")   \
    X(CONFLICT, -6, "conflict")         \
    X(TIMEOUT, -7, "deadline passed")   \
    X(PEER, -8, "a peer failed")        \
    X(IO, -9, "input/output error")     \
    X(ABORTED, -10, "aborted")

enum {
#define TN_X(name, number, text) TN_##name = number,
    TN_STATUS_LIST(TN_X)
#undef TN_X
};

typedef int32_t tn_status;

#if defined(__GNUC__)
#define TN_MUST_USE __attribute__((warn_unused_result))
#define TN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define TN_MUST_USE
#define TN_PRINTF(fmt, args)
#endif

#ifdef __cplusplus
}
#endif
#endif
