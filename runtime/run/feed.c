/* Feed: writes a flat program's inputs before each step.
 *
 * Which rows and columns of the global batch this rank's part of an input holds follows from the input's placement,
 * worked out once. Micro-batch m holds rows m * batch .. of the global batch. */
#include "job.h"

#include <stdlib.h>
#include <string.h>

enum source { FEED_TOKENS, FEED_LABELS, FEED_POSITIONS, FEED_START, FEED_INDEX, FEED_LR, FEED_T, FEED_STEP };

struct fed {
    enum source source;
    tn_value value;
    int32_t *host;         /* where it is put together; NULL for a scalar */
    int64_t rows, columns; /* local */
    int64_t *row, *column; /* row: of the global batch; column: position in the sequence */
};

struct tn_feed {
    struct tn_arena memory;
    struct fed *fed;
    uint32_t n;
    int64_t sequence;
    const struct tn_exec *exec;
    const int32_t *starts; /* of the batch at hand; NULL: 0 */
};

/* "labels@3" is input labels of micro-batch 3; without '@' there is one micro-batch. */
static int is_input(const char *name, const char *base, int32_t *micro)
{
    size_t length = strlen(base);
    *micro = 0;
    if (strncmp(name, base, length) != 0 || (name[length] && name[length] != '@'))
        return 0;
    if (name[length] == '@')
        *micro = (int32_t)strtol(name + length + 1, NULL, 10);
    return 1;
}

/* Indices of [micro, batch, sequence] or [batch, sequence] as rows and columns of the global batch. */
static void find_indices(struct tn_feed *feed, const struct tn_program *p, tn_value v, int32_t micro, struct fed *fed)
{
    const struct tn_value_data *value = &p->values[v];
    int32_t first = value->rank - 2, rank;
    int64_t shape[TN_MAX_DIMS], batch = value->shape[first];
    tn_local(p, v, p->coord, &rank, shape, NULL);
    int64_t outer = first ? shape[0] : 1;
    fed->rows = outer * shape[first];
    fed->columns = shape[first + 1];
    fed->row = tn_arena_alloc(&feed->memory, (size_t)(outer * batch) * sizeof *fed->row);
    fed->column = tn_arena_alloc(&feed->memory, (size_t)value->shape[first + 1] * sizeof *fed->column);
    fed->host = tn_arena_alloc(&feed->memory, (size_t)(fed->rows * fed->columns) * sizeof *fed->host);
    tn_local_indices(p, v, first + 1, fed->column);
    tn_local_indices(p, v, first, fed->row);
    for (int64_t m = outer - 1; m >= 0; m--) /* from the last, as the first rows are the source */
        for (int64_t r = shape[first] - 1; r >= 0; r--)
            fed->row[m * shape[first] + r] = (first ? m : micro) * batch + fed->row[r];
    feed->sequence = value->shape[first + 1];
}

/* The index of each token that this rank has of a sequence: one row. */
static void find_index(struct tn_feed *feed, const struct tn_program *p, tn_value v, struct fed *fed)
{
    fed->rows = 1;
    fed->row = tn_arena_alloc(&feed->memory, sizeof *fed->row); /* row 0, where there are starts, is as good as any */
    fed->column = tn_arena_alloc(&feed->memory, (size_t)p->values[v].shape[0] * sizeof *fed->column);
    fed->columns = tn_local_indices(p, v, 0, fed->column);
    fed->host = tn_arena_alloc(&feed->memory, (size_t)fed->columns * sizeof *fed->host);
}

static void add(struct tn_feed *feed, const struct tn_program *p, tn_value v)
{
    static const struct {
        const char *name;
        enum source source;
        int32_t rank; /* at least */
    } known[] = {
        { "tokens", FEED_TOKENS, 2 },
        { "labels", FEED_LABELS, 2 },
        { "labels.step", FEED_LABELS, 2 },
        { "positions", FEED_POSITIONS, 2 },
        { "start", FEED_START, 2 },
        { "index", FEED_INDEX, 1 },
        { "lr", FEED_LR, 0 },
        { "t", FEED_T, 0 },
        { "step", FEED_STEP, 0 },
    };
    const struct tn_value_data *value = &p->values[v];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int32_t micro;
        if (!is_input(value->name, known[i].name, &micro) || value->rank < known[i].rank)
            continue;
        struct fed *fed = &feed->fed[feed->n++];
        *fed = (struct fed){ .source = known[i].source, .value = v };
        if (known[i].rank == 2)
            find_indices(feed, p, v, micro, fed);
        else if (known[i].rank == 1)
            find_index(feed, p, v, fed);
        return;
    }
}

struct tn_feed *tn_feed_new(const struct tn_exec *exec, const struct tn_program *flat)
{
    struct tn_feed *feed = calloc(1, sizeof *feed);
    if (!feed)
        return NULL;
    feed->exec = exec;
    tn_arena_init(&feed->memory);
    feed->fed = tn_arena_alloc(&feed->memory, ((size_t)flat->n_values + 1) * sizeof *feed->fed);
    for (tn_value v = 1; v <= flat->n_values; v++)
        if (flat->values[v].kind == TN_KIND_INPUT && !flat->values[v].def)
            add(feed, flat, v);
    return feed;
}

void tn_feed_destroy(struct tn_feed *feed)
{
    if (!feed)
        return;
    tn_arena_finish(&feed->memory);
    free(feed);
}

static int32_t element(const struct tn_feed *feed, const struct fed *fed, int64_t row, int64_t column,
                       const int32_t *from)
{
    int64_t at = row * feed->sequence + column;
    int32_t start = feed->starts ? feed->starts[at] : 0;
    switch (fed->source) {
    case FEED_START: return start;
    case FEED_POSITIONS: return (int32_t)column - start;
    case FEED_INDEX: return (int32_t)column;
    default: return from[at];
    }
}

static tn_status write_rows(const struct tn_feed *feed, const struct fed *fed, const int32_t *from)
{
    int32_t *to = fed->host;
    for (int64_t r = 0; r < fed->rows; r++)
        for (int64_t c = 0; c < fed->columns; c++)
            *to++ = element(feed, fed, fed->row[r], fed->column[c], from);
    return tn_exec_write(feed->exec, fed->value, fed->host, (uint64_t)(fed->rows * fed->columns) * sizeof *fed->host);
}

void tn_feed_starts(struct tn_feed *feed, const int32_t *starts)
{
    feed->starts = starts;
}

tn_status tn_feed_rows(struct tn_feed *feed, const int32_t *tokens, const int32_t *labels)
{
    tn_status status = TN_OK;
    for (uint32_t i = 0; i < feed->n && status == TN_OK; i++) {
        const struct fed *fed = &feed->fed[i];
        const int32_t *from = fed->source == FEED_TOKENS ? tokens : fed->source == FEED_LABELS ? labels : NULL;
        if (from || (fed->host && fed->source != FEED_TOKENS && fed->source != FEED_LABELS))
            status = write_rows(feed, fed, from);
    }
    return status;
}

tn_status tn_feed_step(struct tn_feed *feed, float lr, float t, float step)
{
    tn_status status = TN_OK;
    for (uint32_t i = 0; i < feed->n && status == TN_OK; i++) {
        const struct fed *fed = &feed->fed[i];
        const float value = fed->source == FEED_LR ? lr : fed->source == FEED_T ? t : step;
        if (!fed->host)
            status = tn_exec_write(feed->exec, fed->value, &value, sizeof value);
    }
    return status;
}
