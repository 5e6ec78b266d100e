/* Data: see data.h. Split, order of the samples, rows of a step; the tokens come from a source.
 *
 * The order of an epoch is a permutation p of the n samples: a balanced Feistel network (Luby and Rackoff 1988) over
 * the next even number of bits, whose round function is Philox keyed by the seed; where it leaves [0, n) it is
 * applied again until it comes back (cycle walking, Black and Rogaway 2002), at most four times on average. */
#include "data/data.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/host.h>

#include "base/log.h"
#include "base/philox.h"
#include "data/data_source.h"

#define ROUNDS 6
#define SHUFFLE_STREAM UINT64_C(0x7368756666000000) /* "shuff": its own part of the generator's counters */

struct tn_data {
    struct tn_source *source;
    int64_t sequence, batch;
    int shuffle, separate;
    uint64_t seed;
    struct {
        int64_t first, tokens, samples;
    } split[2];
    uint8_t *masked; /* one bit an id; NULL: none */
};

static uint64_t mix(const struct tn_data *data, uint64_t epoch, uint64_t round, uint64_t half)
{
    uint32_t out[4];
    tn_philox(data->seed, SHUFFLE_STREAM + epoch, round << 32 | half, out);
    return out[0];
}

static uint64_t permute(const struct tn_data *data, uint64_t epoch, uint64_t index, uint64_t count)
{
    unsigned half = 1;
    while (half < 32 && (UINT64_C(1) << (2 * half)) < count)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (mix(data, epoch, round, right) & mask);
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}

/* First token of row `row` of step `step`. */
static int64_t sample_start(const struct tn_data *data, int split, int64_t step, int64_t row)
{
    uint64_t count = (uint64_t)data->split[split].samples;
    uint64_t global = (uint64_t)step * (uint64_t)data->batch + (uint64_t)row;
    uint64_t sample = global % count;
    if (split == TN_SPLIT_TRAIN && data->shuffle)
        sample = permute(data, global / count, sample, count);
    return data->split[split].first + (int64_t)sample * data->sequence;
}

static int is_masked(const struct tn_data *data, int32_t id)
{
    return data->masked && data->masked[id >> 3] >> (id & 7) & 1;
}

static int begins_document(const struct tn_data *data, int64_t position)
{
    return data->source->document(data->source, position) == position;
}

void tn_data_starts(const struct tn_data *data, int split, int64_t step, int64_t first, int64_t rows, int32_t *starts)
{
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = sample_start(data, split, step, first + row);
        int32_t at = 0;
        for (int64_t i = 0; i < data->sequence; i++) {
            at = i > 0 && begins_document(data, start + i) ? (int32_t)i : at;
            *starts++ = at;
        }
    }
}

int tn_data_rows(const struct tn_data *data, int split, int64_t step, int64_t first, int64_t rows, int32_t *tokens,
                 int32_t *labels)
{
    assert(step >= 0 && first >= 0 && (rows == 0 || data->split[split].samples > 0));
    int64_t n = data->sequence;
    const struct tn_source *source = data->source;
    for (int64_t row = 0; row < rows; row++, tokens += n, labels += n) {
        int64_t start = sample_start(data, split, step, first + row);
        if (source->read(source, start, n, tokens) != 0 || source->read(source, start + n, 1, labels + n - 1) != 0)
            return -1;
        memcpy(labels, tokens + 1, (size_t)(n - 1) * sizeof *labels);
        for (int64_t i = 0; data->masked && i < n; i++)
            if (is_masked(data, labels[i]))
                labels[i] = -1;
        for (int64_t i = 0; data->separate && i < n; i++)
            if (begins_document(data, start + i + 1))
                labels[i] = -1;
    }
    return 0;
}

int64_t tn_data_tokens(const struct tn_data *data, int split)
{
    return data->split[split].tokens;
}

void tn_data_shape(const struct tn_data *data, int64_t *batch, int64_t *sequence)
{
    *batch = data->batch;
    *sequence = data->sequence;
}

/* Opening. */

static struct tn_where where_of(const struct tn_manifest *m, const char *key)
{
    return m ? tn_manifest_where(m, "data", key) : (struct tn_where){ .section = "data", .key = key };
}

static void read_ignore(struct tn_data *data, const struct tn_settings *settings, int64_t vocab, struct tn_diag *diag,
                        struct tn_where where)
{
    if (settings->n_ignore == 0)
        return;
    data->masked = calloc(1, (size_t)(vocab / 8 + 1));
    if (!data->masked)
        tn_diag_add(diag, where, NULL, "out of memory");
    for (uint32_t i = 0; data->masked && i < settings->n_ignore; i++) {
        const char *text = settings->ignore[i];
        char *end;
        long long id = strtoll(text, &end, 10);
        if (end == text || *end || id < 0)
            continue; /* refused where the settings were read */
        if (id >= vocab)
            tn_diag_add(diag, where, "give ids of the vocabulary", "'%s' is no token id from 0 to %lld", text,
                        (long long)vocab - 1);
        else
            data->masked[id >> 3] |= (uint8_t)(1 << (id & 7));
    }
}

/* Consecutive samples share a token, so one more than they hold is needed. */
static int64_t samples_in(int64_t tokens, int64_t sequence)
{
    return tokens > 0 ? (tokens - 1) / sequence : 0;
}

static void divide(struct tn_data *data, double validation, struct tn_diag *diag, struct tn_where where)
{
    int64_t all = data->source->tokens, kept = (int64_t)((double)all * validation);
    if (kept > all)
        kept = all;
    if (samples_in(kept, data->sequence) == 0)
        kept = 0;
    for (int split = 0; split < 2; split++) {
        int64_t tokens = split == TN_SPLIT_TRAIN ? all - kept : kept;
        data->split[split].first = split == TN_SPLIT_TRAIN ? 0 : all - kept;
        data->split[split].tokens = tokens;
        data->split[split].samples = samples_in(tokens, data->sequence);
    }
    if (data->split[TN_SPLIT_TRAIN].samples < data->batch)
        tn_diag_add(diag, where, "give more data, or a smaller batch, sequence or validation",
                    "leaves %lld tokens to train on, and one batch of %lld sequences needs %lld x %lld + 1",
                    (long long)(all - kept), (long long)data->batch, (long long)data->batch, (long long)data->sequence);
}

void tn_data_open(struct tn_data **out, const struct tn_settings *settings, const struct tn_manifest *m, int64_t vocab,
                  struct tn_diag *diag)
{
    *out = NULL;
    size_t before = diag->count;
    struct tn_where where = where_of(m, "path");
    if (!settings->path || !*settings->path) {
        tn_diag_add(diag, where,
                    settings->source == TN_DATA_TEXT ? "give a glob such as /usr/include/**.h"
                                                     : "give the prefix of a .bin and .idx file",
                    "is empty");
        return;
    }
    assert(settings->sequence > 0 && settings->batch > 0);
    struct tn_data *data = calloc(1, sizeof *data);
    if (!data) {
        tn_diag_add(diag, where, NULL, "out of memory");
        return;
    }
    data->sequence = settings->sequence;
    data->batch = settings->batch;
    data->shuffle = settings->shuffle;
    data->separate = settings->separate;
    data->seed = (uint64_t)settings->seed;
    const char *folder = m ? m->folder : NULL;
    data->source = settings->source == TN_DATA_TEXT
                       ? tn_source_text(settings->path, folder, vocab, diag, where)
                       : tn_source_tokens(settings->path, folder, vocab, settings->separate, diag, where);
    if (data->source)
        divide(data, settings->validation, diag, where);
    read_ignore(data, settings, vocab, diag, where_of(m, "ignore"));
    if (diag->count == before) {
        *out = data;
        return;
    }
    tn_data_close(data);
}

void tn_data_warn(const struct tn_data *data, const struct tn_settings *settings)
{
    if (data && settings->validation > 0 && data->split[TN_SPLIT_VALIDATION].tokens == 0)
        tn_log(TN_LOG_WARN, "data: no validation: its share of %g is %lld tokens, and one row needs %lld",
               settings->validation, (long long)((double)data->source->tokens * settings->validation),
               (long long)data->sequence + 1);
}

void tn_data_close(struct tn_data *data)
{
    if (!data)
        return;
    if (data->source)
        data->source->close(data->source);
    free(data->masked);
    free(data);
}
