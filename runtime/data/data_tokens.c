/* Data, tokens: all sequences of a Megatron .bin/.idx pair in order, as one list. */
#include <stdlib.h>

#include "data/data_source.h"
#include "data/idx.h"

struct tokens {
    struct tn_source source;
    struct tn_idx idx;
    int64_t vocab;
};

static int tokens_read(const struct tn_source *source, int64_t first, int64_t count, int32_t *tokens)
{
    const struct tokens *t = (const struct tokens *)source;
    return tn_idx_read(&t->idx, first, count, t->vocab, tokens);
}

static void tokens_close(struct tn_source *source)
{
    struct tokens *t = (struct tokens *)source;
    tn_idx_close(&t->idx);
    free(t);
}

struct tn_source *tn_source_tokens(const char *path, const char *folder, int64_t vocab, struct tn_diag *diag,
                                   struct tn_where where)
{
    struct tokens *t = calloc(1, sizeof *t);
    const char *prefix = path[0] == '/' || !folder || !*folder ? path
                                                               : tn_arena_printf(&diag->arena, "%s/%s", folder, path);
    if (!t) {
        tn_diag_add(diag, where, NULL, "out of memory");
        return NULL;
    }
    if (tn_idx_open(&t->idx, prefix, diag, where) != 0) {
        free(t);
        return NULL;
    }
    t->vocab = vocab;
    t->source = (struct tn_source){ .tokens = t->idx.tokens, .read = tokens_read, .close = tokens_close };
    return &t->source;
}
