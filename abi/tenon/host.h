/* The host table: a plugin's only way back into Tenon.
 *
 * One is made for each plugin instance and given to its create; it lives as long as the
 * instance. Plugins link nothing of ours. All functions are callable from any thread
 * unless marked [main]. Strings returned live as long as the instance. */
#ifndef TENON_HOST_H
#define TENON_HOST_H

#include <tenon/status.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TN_LOG_DEBUG = 0, TN_LOG_INFO = 1, TN_LOG_WARN = 2, TN_LOG_ERROR = 3 };

struct tn_host {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor; /* negotiated: the lower of both sides */
    void *ctx;                     /* the host's; never touched by a plugin */

    /* [any] A line on stderr, prefixed with rank and plugin. */
    void (*log)(const struct tn_host *host, int32_t level, const char *fmt, ...) TN_PRINTF(3, 4);

    /* [any] Sets the failure message of the call under way and returns `status`, so that
     * `return host->fail(host, TN_INVALID, "...")` is the whole idiom. */
    tn_status (*fail)(const struct tn_host *host, tn_status status, const char *fmt, ...) TN_PRINTF(3, 4);

    /* [main] Reports one problem with a key of the plugin's manifest section, in create or check,
     * or, where only the program tells, in a pass; the host adds file, line and section. `what` says what is wrong,
     * `fix` what would work. Any number may be reported; the job does not start if there is one. */
    void (*problem)(const struct tn_host *host, const char *key, const char *what, const char *fix);

    /* [any] Memory for the instance; NULL when exhausted. release(NULL) is nothing. */
    void *(*alloc)(const struct tn_host *host, uint64_t bytes);
    void (*release)(const struct tn_host *host, void *memory);

    /* [main] Typed values of the plugin's options. The key must be in its table and of that
     * type (sizes, durations and bools are ints; an enum is its index among the choices). */
    int64_t (*get_int)(const struct tn_host *host, const char *key);
    double (*get_float)(const struct tn_host *host, const char *key);
    const char *(*get_string)(const struct tn_host *host, const char *key);
    /* Sets *items to an array of strings, returns their number. */
    uint32_t (*get_list)(const struct tn_host *host, const char *key, const char *const **items);

    /* [any] A larger table by id and revision ("tn.program/1", "tn.facts/1"); NULL if this
     * host has none of that name. */
    const void *(*get_api)(const struct tn_host *host, const char *id);
};

/* "tn.facts/1": what is known of the job before anything is built. */
struct tn_facts_api {
    uint32_t struct_size;
    /* [main] The model's dimensions by name (layers, hidden, heads, kv_heads, head_dim, mlp,
     * vocab) and the job's (world, batch, micro_batches, micro_batch, sequence, and backends, those in use);
     * `missing` if there is none of that name. */
    int64_t (*get)(const struct tn_host *host, const char *name, int64_t missing);
};

#ifdef __cplusplus
}
#endif
#endif
