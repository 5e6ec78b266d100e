/* Idx, writing: see idx.h. Tokens go to the .bin as they come; lengths and documents wait in memory for the .idx. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/idx.h"
#include "data/idx_format.h"

#define LONGEST ((int64_t)1 << 30) /* tokens of a sequence; lengths are i32 */

struct numbers {
    int64_t *items;
    size_t count, cap;
};

struct output {
    char *path, *partial; /* final and temporary name */
    FILE *file;
};

struct tn_idx_writer {
    const struct tn_idx_dtype *dtype;
    struct output bin, idx;
    struct numbers lengths, documents; /* of closed sequences; index of each document's first sequence */
    int64_t length;                    /* of the sequence under way */
};

static int fail(char *error, const char *verb, const char *path)
{
    snprintf(error, 256, "cannot %s %.180s: %s", verb, path, strerror(errno));
    return -1;
}

static int push(struct numbers *numbers, int64_t item, char *error)
{
    if (numbers->count == numbers->cap) {
        size_t cap = numbers->cap ? numbers->cap * 2 : 64;
        int64_t *grown = realloc(numbers->items, cap * sizeof *grown);
        if (!grown)
            return snprintf(error, 256, "out of memory"), -1;
        numbers->items = grown;
        numbers->cap = cap;
    }
    numbers->items[numbers->count++] = item;
    return 0;
}

static int output_open(struct output *output, const char *prefix, const char *suffix, char *error)
{
    if (asprintf(&output->path, "%s.%s", prefix, suffix) < 0)
        output->path = NULL;
    if (asprintf(&output->partial, "%s.%s.%ld.partial", prefix, suffix, (long)getpid()) < 0)
        output->partial = NULL;
    if (!output->path || !output->partial)
        return snprintf(error, 256, "out of memory"), -1;
    struct stat info;
    errno = EISDIR; /* which rename would say when all the work is done */
    if (stat(output->path, &info) != 0 || !S_ISDIR(info.st_mode))
        output->file = fopen(output->partial, "wbe");
    return output->file ? 0 : fail(error, "write", output->path);
}

/* Everything on the disk, and the file closed. */
static int output_complete(struct output *output, char *error)
{
    int bad = fflush(output->file) != 0 || fsync(fileno(output->file)) != 0;
    int reason = errno;
    if (fclose(output->file) != 0 && !bad) {
        bad = 1;
        reason = errno;
    }
    output->file = NULL;
    errno = reason;
    return bad ? fail(error, "write", output->path) : 0;
}

static void output_drop(struct output *output)
{
    if (output->file)
        fclose(output->file);
    if (output->partial)
        unlink(output->partial);
    free(output->path);
    free(output->partial);
}

int tn_idx_create(struct tn_idx_writer **writer, const char *prefix, const struct tn_idx_dtype *dtype, char *error)
{
    struct tn_idx_writer *w = calloc(1, sizeof *w);
    *writer = NULL;
    if (!w)
        return snprintf(error, 256, "out of memory"), -1;
    w->dtype = dtype;
    if (output_open(&w->bin, prefix, "bin", error) != 0 || output_open(&w->idx, prefix, "idx", error) != 0 ||
        push(&w->documents, 0, error) != 0) {
        tn_idx_discard(w);
        return -1;
    }
    *writer = w;
    return 0;
}

void tn_idx_discard(struct tn_idx_writer *w)
{
    if (!w)
        return;
    output_drop(&w->bin);
    output_drop(&w->idx);
    free(w->lengths.items);
    free(w->documents.items);
    free(w);
}

static int end_sequence(struct tn_idx_writer *w, char *error)
{
    int64_t length = w->length;
    w->length = 0;
    return length ? push(&w->lengths, length, error) : 0;
}

/* The little-endian form of a token; its first `size` bytes are those of any narrower type. */
static int put(FILE *file, int64_t number, size_t size)
{
    uint64_t bytes = htole64((uint64_t)number);
    return fwrite(&bytes, size, 1, file) == 1 ? 0 : -1;
}

int tn_idx_add(struct tn_idx_writer *w, const int32_t *tokens, size_t count, char *error)
{
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] > w->dtype->most)
            return snprintf(error, 256, "token %d does not fit in %s; use a wider --dtype", tokens[i], w->dtype->name),
                   -1;
        if (put(w->bin.file, tokens[i], (size_t)w->dtype->bytes) != 0)
            return fail(error, "write", w->bin.path);
        if (++w->length == LONGEST && end_sequence(w, error) != 0)
            return -1;
    }
    return 0;
}

int tn_idx_end_document(struct tn_idx_writer *w, char *error)
{
    if (end_sequence(w, error) != 0)
        return -1;
    int64_t sequences = (int64_t)w->lengths.count;
    return w->documents.items[w->documents.count - 1] == sequences ? 0 : push(&w->documents, sequences, error);
}

static int write_index(struct tn_idx_writer *w, char *error)
{
    FILE *file = w->idx.file;
    int bad = fwrite(IDX_MAGIC, IDX_MAGIC_BYTES, 1, file) != 1 || put(file, 1, 8) || put(file, w->dtype->code, 1) ||
              put(file, (int64_t)w->lengths.count, 8) || put(file, (int64_t)w->documents.count, 8);
    for (size_t i = 0; i < w->lengths.count && !bad; i++)
        bad = put(file, w->lengths.items[i], 4);
    int64_t offset = 0;
    for (size_t i = 0; i < w->lengths.count && !bad; i++) {
        bad = put(file, offset, 8);
        offset += w->lengths.items[i] * w->dtype->bytes;
    }
    for (size_t i = 0; i < w->documents.count && !bad; i++)
        bad = put(file, w->documents.items[i], 8);
    return bad ? fail(error, "write", w->idx.path) : 0;
}

int tn_idx_publish(struct tn_idx_writer *w, char *error)
{
    int done = -1;
    if (tn_idx_end_document(w, error) != 0 || write_index(w, error) != 0 || output_complete(&w->bin, error) != 0 ||
        output_complete(&w->idx, error) != 0)
        goto discard;
    if (rename(w->bin.partial, w->bin.path) != 0)
        fail(error, "write", w->bin.path);
    else if (rename(w->idx.partial, w->idx.path) != 0)
        fail(error, "write", w->idx.path);
    else
        done = 0;
discard:
    tn_idx_discard(w); /* unlinks only the temporary names, which are gone by now if all went well */
    return done;
}
