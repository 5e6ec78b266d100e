/* safetensors: the reader. Parses and checks the header, then gives entries and their bytes.
 *
 * A file is valid only if (github.com/huggingface/safetensors, format section): its header is
 * an object without duplicate keys; each entry's size is that of its shape and dtype; sorted
 * by offset, the entries tile the data without a gap; and the file ends where they end. */
#include "checkpoint/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/arena.h"
#include "base/input.h"
#include "checkpoint/safetensors_dtype.h"

enum { HEADER_MOST = 100000000, RANK_MOST = 64 };

struct tn_safetensors {
    struct tn_arena arena;
    int fd;
    const char *path;
    json_t *metadata; /* borrowed from header; may be NULL */
    json_t *header;
    struct tn_safetensors_entry *entries; /* by offset */
    struct tn_safetensors_entry **by_name;
    size_t count;
};

/* Where a message goes while one file is being read. */
struct report {
    const char *path;
    char *error;
    size_t bytes;
};

void tn_safetensors_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

static tn_status __attribute__((format(printf, 3, 4)))
refuse(const struct report *r, tn_status status, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    tn_safetensors_printable(text);
    snprintf(r->error, r->bytes, "%s: %s", r->path, text);
    return status;
}

static tn_status read_exactly(int fd, void *to, uint64_t bytes, uint64_t offset, const struct report *r)
{
    char *at = to;
    while (bytes > 0) {
        ssize_t got = pread(fd, at, bytes < (1u << 30) ? bytes : (1u << 30), (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return refuse(r, TN_IO, "%s", strerror(errno));
        if (got == 0)
            return refuse(r, TN_IO, "the file ends at byte %" PRIu64 ", in the middle of what was to be read", offset);
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return TN_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct tn_safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    const struct tn_safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Shape of one entry, and the bytes that it and the dtype make. */
static tn_status parse_shape(struct tn_safetensors *f, struct tn_safetensors_entry *entry, const json_t *shape,
                             uint64_t *bytes, const struct report *r)
{
    size_t rank = json_array_size(shape);
    if (!json_is_array(shape) || rank > RANK_MOST)
        return refuse(r, TN_INVALID, "tensor %s: shape is no list of at most %d sizes", entry->name, RANK_MOST);
    int64_t *sizes = tn_arena_alloc(&f->arena, sizeof *sizes * (rank + 1));
    for (size_t d = 0; d < rank; d++) {
        const json_t *size = json_array_get(shape, d);
        sizes[d] = json_integer_value(size);
        if (!json_is_integer(size) || sizes[d] < 0)
            return refuse(r, TN_INVALID, "tensor %s: size %zu of its shape is no whole number >= 0", entry->name, d);
        if (__builtin_mul_overflow(*bytes, (uint64_t)sizes[d], bytes))
            return refuse(r, TN_INVALID, "tensor %s: its shape has more elements than a file can hold", entry->name);
    }
    entry->rank = (int32_t)rank;
    entry->shape = sizes;
    return TN_OK;
}

static tn_status parse_entry(struct tn_safetensors *f, struct tn_safetensors_entry *entry, const json_t *value,
                             const struct report *r)
{
    const json_t *dtype = json_object_get(value, "dtype"), *offsets = json_object_get(value, "data_offsets");
    if (!json_is_string(dtype))
        return refuse(r, TN_INVALID, "tensor %s: no dtype", entry->name);
    const struct tn_safetensors_dtype *known = tn_safetensors_dtype_by_name(json_string_value(dtype));
    if (!known)
        return refuse(r, TN_INVALID, "tensor %s: unknown dtype %.40s", entry->name, json_string_value(dtype));
    entry->dtype_name = known->name;
    entry->dtype = known->dtype;
    uint64_t bytes = known->bytes;
    tn_status status = parse_shape(f, entry, json_object_get(value, "shape"), &bytes, r);
    if (status != TN_OK)
        return status;

    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return refuse(r, TN_INVALID, "tensor %s: data_offsets is no pair of whole numbers", entry->name);
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin)
        return refuse(r, TN_INVALID, "tensor %s: data_offsets run from %" PRId64 " to %" PRId64, entry->name, begin,
                      end);
    entry->offset = (uint64_t)begin;
    entry->bytes = (uint64_t)(end - begin);
    if (entry->bytes != bytes)
        return refuse(r, TN_INVALID, "tensor %s: %" PRIu64 " bytes of data, but its shape and dtype make %" PRIu64,
                      entry->name, entry->bytes, bytes);
    return TN_OK;
}

static tn_status check_metadata(const json_t *metadata, const struct report *r)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return refuse(r, TN_INVALID, "__metadata__ is no object");
    json_object_foreach((json_t *)metadata, key, value) if (!json_is_string(value)) return refuse(
        r, TN_INVALID, "__metadata__: the value of %.80s is no string", key);
    return TN_OK;
}

static tn_status parse_entries(struct tn_safetensors *f, const struct report *r)
{
    const char *name;
    json_t *value;
    size_t most = json_object_size(f->header);
    f->entries = tn_arena_alloc(&f->arena, sizeof *f->entries * (most + 1));
    json_object_foreach(f->header, name, value)
    {
        tn_status status;
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(value, r);
            f->metadata = value;
        } else {
            f->entries[f->count].name = name;
            status = json_is_object(value) ? parse_entry(f, &f->entries[f->count++], value, r)
                                           : refuse(r, TN_INVALID, "tensor %.200s: no object describes it", name);
        }
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

/* Sorted by offset, each entry must begin where the one before ended; makes offsets those of the file. */
static tn_status check_tiling(struct tn_safetensors *f, uint64_t data_start, uint64_t file_bytes,
                              const struct report *r)
{
    qsort(f->entries, f->count, sizeof *f->entries, by_offset);
    uint64_t end = 0;
    for (size_t n = 0; n < f->count; n++) {
        struct tn_safetensors_entry *entry = &f->entries[n];
        if (entry->offset != end)
            return refuse(r, TN_INVALID,
                          "tensor %s: data begins at %" PRIu64 ", but the data before it ends at %" PRIu64, entry->name,
                          entry->offset, end);
        end += entry->bytes;
        entry->offset += data_start;
    }
    if (end != file_bytes - data_start)
        return refuse(r, TN_INVALID, "%" PRIu64 " bytes of data follow the header, but the tensors have %" PRIu64,
                      file_bytes - data_start, end);
    return TN_OK;
}

static void index_names(struct tn_safetensors *f)
{
    f->by_name = tn_arena_alloc(&f->arena, sizeof *f->by_name * (f->count + 1));
    for (size_t n = 0; n < f->count; n++)
        f->by_name[n] = &f->entries[n];
    qsort(f->by_name, f->count, sizeof *f->by_name, by_name);
}

static tn_status read_header(struct tn_safetensors *f, uint64_t length, const struct report *r)
{
    char *text = malloc(length + 1);
    if (!text)
        return refuse(r, TN_NO_MEMORY, "no memory for a header of %" PRIu64 " bytes", length);
    tn_status status = read_exactly(f->fd, text, length, 8, r);
    if (status == TN_OK && text[0] != '{')
        status = refuse(r, TN_INVALID, "the header does not start with {");
    if (status == TN_OK) {
        json_error_t problem;
        f->header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
        if (!f->header)
            status =
                refuse(r, TN_INVALID, "the header is no valid JSON: %s at byte %d", problem.text, problem.position);
    }
    free(text);
    return status;
}

static tn_status load(struct tn_safetensors *f, const struct report *r)
{
    struct stat info;
    const char *why;
    f->fd = tn_input_open(f->path, &why);
    if (f->fd < 0)
        return refuse(r, errno == ENOENT ? TN_NOT_FOUND : errno ? TN_IO : TN_INVALID, "%s", why);
    if (fstat(f->fd, &info) != 0)
        return refuse(r, TN_IO, "%s", strerror(errno));
    uint64_t file_bytes = (uint64_t)info.st_size;
    unsigned char raw[8];
    if (file_bytes < sizeof raw)
        return refuse(r, TN_INVALID, "%" PRIu64 " bytes are too few for a safetensors file", file_bytes);
    tn_status status = read_exactly(f->fd, raw, sizeof raw, 0, r);
    if (status != TN_OK)
        return status;
    uint64_t length = 0;
    for (int n = 7; n >= 0; n--)
        length = length << 8 | raw[n];
    if (length < 2 || length > HEADER_MOST || length > file_bytes - sizeof raw)
        return refuse(r, TN_INVALID, "a header of %" PRIu64 " bytes cannot be in a file of %" PRIu64, length,
                      file_bytes);
    status = read_header(f, length, r);
    if (status == TN_OK)
        status = parse_entries(f, r);
    if (status == TN_OK)
        status = check_tiling(f, sizeof raw + length, file_bytes, r);
    if (status == TN_OK)
        index_names(f);
    return status;
}

tn_status tn_safetensors_open(struct tn_safetensors **file, const char *path, char *error, size_t error_bytes)
{
    const struct report r = { path, error, error_bytes };
    *file = NULL;
    struct tn_safetensors *f = calloc(1, sizeof *f);
    if (!f)
        return refuse(&r, TN_NO_MEMORY, "no memory");
    tn_arena_init(&f->arena);
    f->fd = -1;
    f->path = tn_arena_strdup(&f->arena, path);
    tn_status status = load(f, &r);
    if (status != TN_OK) {
        tn_safetensors_close(f);
        return status;
    }
    *file = f;
    return TN_OK;
}

void tn_safetensors_close(struct tn_safetensors *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    json_decref(f->header);
    tn_arena_finish(&f->arena);
    free(f);
}

size_t tn_safetensors_count(const struct tn_safetensors *f)
{
    return f->count;
}

const struct tn_safetensors_entry *tn_safetensors_at(const struct tn_safetensors *f, size_t index)
{
    return index < f->count ? &f->entries[index] : NULL;
}

const struct tn_safetensors_entry *tn_safetensors_find(const struct tn_safetensors *f, const char *name)
{
    const struct tn_safetensors_entry key = { .name = name }, *pointer = &key;
    struct tn_safetensors_entry **found = bsearch(&pointer, f->by_name, f->count, sizeof *f->by_name, by_name);
    return found ? *found : NULL;
}

const char *tn_safetensors_metadata(const struct tn_safetensors *f, const char *key)
{
    return f->metadata ? json_string_value(json_object_get(f->metadata, key)) : NULL;
}

tn_status tn_safetensors_read(const struct tn_safetensors *f, const struct tn_safetensors_entry *entry, uint64_t start,
                              uint64_t bytes, void *to, char *error, size_t error_bytes)
{
    const struct report r = { f->path, error, error_bytes };
    if (start > entry->bytes || bytes > entry->bytes - start)
        return refuse(&r, TN_INVALID, "tensor %s has %" PRIu64 " bytes; %" PRIu64 " from %" PRIu64 " were asked for",
                      entry->name, entry->bytes, bytes, start);
    return read_exactly(f->fd, to, bytes, entry->offset + start, &r);
}
