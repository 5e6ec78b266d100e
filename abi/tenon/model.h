/* The model table: builds the forward program of one micro-batch, global shapes, fp32. */
#ifndef TENON_MODEL_H
#define TENON_MODEL_H

#include <tenon/program_edit.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What to build for. */
struct tn_build {
    uint32_t struct_size;
    uint32_t mode;    /* TN_BUILD_* */
    int64_t batch;    /* sequences in one micro-batch, over all ranks */
    int64_t sequence; /* tokens in each */
    uint32_t flags;   /* TN_BUILD_DOCUMENTS */
    uint32_t reserved;
};
enum {
    TN_BUILD_TRAIN = 1, /* inputs tokens, labels, positions; the loss flagged TN_VALUE_LOSS */
    TN_BUILD_LOGITS = 2 /* inputs tokens, positions; logits [batch, sequence, vocab] flagged
                           TN_VALUE_OUTPUT */
};

enum {
    TN_BUILD_DOCUMENTS = 1 /* a sequence holds several documents, which see nothing of each other: one more input,
                              start i32 [batch, sequence], is the index in the sequence of the first token of each
                              token's document, before which attention looks at no key; positions count from there */
};

/* The inputs are i32 [batch, sequence] with dims "batch", "sequence". A label below 0 is
 * masked: it adds nothing to the loss and counts as no target token. The loss is the sum
 * over the target tokens, fp32; the runtime divides by their number. */
struct tn_model {
    uint32_t struct_size;

    tn_status (*create)(const struct tn_host *host, void **self); /* [main] */
    void (*destroy)(void *self);                                  /* accepts NULL */

    /* [main] The model's dimensions by name, from its options alone (see tn.facts/1). */
    int64_t (*fact)(void *self, const char *name, int64_t missing);

    /* [main] Reports every problem with its options (host->problem). */
    tn_status (*check)(void *self);

    /* [main] Adds params, inputs and forward ops to the empty program. */
    tn_status (*build)(void *self, struct tn_program *program, const struct tn_build *build);
};

#ifdef __cplusplus
}
#endif
#endif
