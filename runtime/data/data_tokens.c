/* Data, tokens: all sequences of a Megatron .bin/.idx pair in order, as one list. */
#include <stdlib.h>

#include "data/data_source.h"
#include "data/idx.h"

struct tokens {
    struct tn_source source;
    struct tn_idx idx;
    int64_t vocab;
    int64_t *starts; /* first token of each document; NULL: not asked for */
};

static int tokens_read(const struct tn_source *source, int64_t first, int64_t count, int32_t *tokens)
{
    const struct tokens *t = (const struct tokens *)source;
    return tn_idx_read(&t->idx, first, count, t->vocab, tokens);
}

/* The last document that starts at or before the token: those before it that start there too are empty. */
static int64_t tokens_document(const struct tn_source *source, int64_t position)
{
    const struct tokens *t = (const struct tokens *)source;
    int64_t low = 0, high = t->idx.documents;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (t->starts[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    return t->idx.documents > 0 ? t->starts[low] : 0;
}

static void tokens_close(struct tn_source *source)
{
    struct tokens *t = (struct tokens *)source;
    free(t->starts);
    tn_idx_close(&t->idx);
    free(t);
}

struct tn_source *tn_source_tokens(const char *path, const char *folder, int64_t vocab, int documents,
                                   struct tn_diag *diag, struct tn_where where)
{
    struct tokens *t = calloc(1, sizeof *t);
    const char *prefix =
        path[0] == '/' || !folder || !*folder ? path : tn_arena_printf(&diag->arena, "%s/%s", folder, path);
    if (!t) {
        tn_diag_add(diag, where, NULL, "out of memory");
        return NULL;
    }
    if (tn_idx_open(&t->idx, prefix, diag, where) != 0) {
        free(t);
        return NULL;
    }
    t->vocab = vocab;
    t->source = (struct tn_source){
        .tokens = t->idx.tokens, .read = tokens_read, .document = tokens_document, .close = tokens_close
    };
    if (documents && tn_idx_documents(&t->idx, prefix, &t->starts, diag, where) != 0) {
        tokens_close(&t->source);
        return NULL;
    }
    return &t->source;
}
