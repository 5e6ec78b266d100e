/* Data source: one corpus as a single long list of tokens; inside the data part only.
 *
 * data.c splits and samples what a source gives; data_text.c and data_tokens.c are the two sources. */
#ifndef TENON_DATA_SOURCE_H
#define TENON_DATA_SOURCE_H

#include <stdint.h>

#include "base/diag.h"

struct tn_source {
    int64_t tokens;
    /* Tokens [first, first + count), which exist. Any thread. 0, or -1 with a message logged. */
    int (*read)(const struct tn_source *source, int64_t first, int64_t count, int32_t *tokens);
    /* The first token of the document that holds token `position`. */
    int64_t (*document)(const struct tn_source *source, int64_t position);
    void (*close)(struct tn_source *source);
};

/* `path` as in [data]; a relative one starts in `folder`. NULL with problems at `where`. */
struct tn_source *tn_source_text(const char *path, const char *folder, int64_t vocab, struct tn_diag *diag,
                                 struct tn_where where);
/* documents 0: document will not be asked for. */
struct tn_source *tn_source_tokens(const char *path, const char *folder, int64_t vocab, int documents,
                                   struct tn_diag *diag, struct tn_where where);

/* For prefetch.c: sequences of a step, and their length. */
struct tn_data;
void tn_data_shape(const struct tn_data *data, int64_t *batch, int64_t *sequence);

#endif
