/* The plan: what a strategy may ask before it decides (api "tn.plan/1").
 *
 * A strategy that is to meet a budget tries its choices on copies: copy, edit the copy by the calls of
 * program_edit.h, ask for its peak, drop it. All calls are [main], in lower. */
#ifndef TENON_PLAN_API_H
#define TENON_PLAN_API_H

#include <tenon/program_edit.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TN_PEAK_UNAIDED = 1 /* strategies behind the caller move no activation that they were not told to */ };

/* The rates that estimates are made with. They are the same everywhere, so that all ranks of a job decide alike. */
#define TN_NOMINAL_FLOPS 100e9    /* FLOPs a second, of a processor ... */
#define TN_NOMINAL_BYTES 10e9     /* ... that reads and writes so many bytes of its memory, */
#define TN_NOMINAL_HOST_BYTES 5e9 /* copies so many to and from host memory, */
#define TN_NOMINAL_DISK_BYTES 1e9 /* and so many to and from disk */

struct tn_plan_api {
    uint32_t struct_size;

    /* Bytes of the device that a rank may use; 0: not known. */
    int64_t (*budget)(const struct tn_host *host);

    /* The same program with the same ids, to be dropped. On axes of parts it is that of the rank with most to do,
     * which is the same one for all that ask. */
    struct tn_program *(*copy)(const struct tn_program *p);
    void (*drop)(struct tn_program *copy);
    /* Bytes of the device that the copy takes at its peak, exactly: it goes through the strategies behind the
     * caller, schedule and plan. May be asked once of a copy, which is good for nothing else afterwards. flags:
     * TN_PEAK_*. Negative: it cannot be planned. */
    int64_t (*peak)(const struct tn_host *host, struct tn_program *copy, uint32_t flags);

    /* Seconds that an op takes by its FLOPs and bytes at the nominal rates. */
    double (*seconds)(const struct tn_program *p, tn_op op);
    /* Seconds that strategies behind the caller would take to bring so many bytes elsewhere and back, at the nominal
     * rates; negative: none can. */
    double (*away)(const struct tn_host *host, uint64_t bytes);
    /* 1: p is on a trial of TN_PEAK_UNAIDED. What a strategy with `away` (strategy.h) has to look at. */
    int32_t (*unaided)(const struct tn_program *p);
};

#ifdef __cplusplus
}
#endif
#endif
