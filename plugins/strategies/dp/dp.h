/* dp: what its files share. */
#ifndef TENON_DP_H
#define TENON_DP_H

#include <tenon/ops.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

struct dp {
    const struct tn_host *host;
    const struct tn_facts_api *facts;
    const struct tn_program_api *read;
    const struct tn_program_edit_api *edit;
    int64_t bucket_bytes; /* 0: each gradient by itself */
    int64_t *shares;      /* of the batch, by rank of the axis; NULL: equal ones */
    int32_t n_shares;
};

/* bucket.c */
tn_status dp_lower(void *self, struct tn_program *program);

#endif
