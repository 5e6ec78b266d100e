/* Sample: text from the trained model, a token at a time. Runs the forward program over the last tokens, takes the
 * logits of the last position, and draws by Philox, so that every rank draws the same. */
#include "job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"

static float as_float(const void *data, uint32_t dtype, int64_t i)
{
    if (dtype == TN_F32)
        return ((const float *)data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16; /* bf16 */
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Gumbel's way (Gumbel 1954): the largest of logit / temperature + noise is a draw from the softmax. */
static int32_t draw(const void *logits, uint32_t dtype, int64_t vocab, double temperature, uint64_t key,
                    uint64_t number)
{
    int32_t best = 0;
    double most = -INFINITY;
    for (int64_t i = 0; i < vocab; i++) {
        double score = as_float(logits, dtype, i);
        if (temperature > 0) {
            uint32_t bits[4];
            tn_philox(key, number, (uint64_t)i, bits);
            score = score / temperature - log(-log(((double)bits[0] + 0.5) / 4294967296.0));
        }
        if (score > most) {
            most = score;
            best = (int32_t)i;
        }
    }
    return best;
}

/* The last `sequence` tokens at most, from the left, in every row. */
static int64_t lay_out(const int32_t *text, int64_t n, int64_t rows, int64_t sequence, int32_t *tokens)
{
    int64_t first = n > sequence ? n - sequence : 0, used = n - first;
    for (int64_t r = 0; r < rows; r++) {
        memset(tokens + r * sequence, 0, (size_t)sequence * sizeof *tokens);
        memcpy(tokens + r * sequence, text + first, (size_t)used * sizeof *tokens);
    }
    return used;
}

tn_status tn_sample(struct tn_exec *exec, struct tn_feed *feed, const struct tn_program *flat, int64_t seed,
                    double temperature, int32_t *text, int64_t n, int64_t number)
{
    tn_value output = 0;
    for (tn_value v = 1; v <= flat->n_values; v++)
        if (flat->values[v].flags & TN_VALUE_OUTPUT)
            output = v;
    if (!output || flat->values[output].rank != 3 || n < 1)
        return TN_INVALID;
    const struct tn_value_data *logits = &flat->values[output];
    int64_t rows = logits->shape[0], sequence = logits->shape[1], vocab = logits->shape[2];
    size_t row_bytes = (size_t)vocab * tn_dtype_bytes(logits->dtype), bytes = (size_t)(rows * sequence) * row_bytes;
    int32_t *tokens = malloc((size_t)(rows * sequence) * sizeof *tokens);
    unsigned char *host = malloc(bytes);
    tn_status status = tokens && host ? TN_OK : TN_NO_MEMORY;
    int64_t used = status == TN_OK ? lay_out(text, n, rows, sequence, tokens) : 0;
    if (status == TN_OK)
        status = tn_feed_rows(feed, tokens, NULL);
    if (status == TN_OK)
        status = tn_exec_step(exec);
    if (status == TN_OK)
        status = tn_exec_read(exec, output, host, bytes);
    if (status == TN_OK)
        text[n] = draw(host + (size_t)(used - 1) * row_bytes, logits->dtype, vocab, temperature, (uint64_t)seed,
                       (uint64_t)number);
    free(host);
    free(tokens);
    return status;
}
