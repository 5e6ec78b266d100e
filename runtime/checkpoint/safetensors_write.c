/* safetensors: the writer. Lays out a header for a list of tensors; writes whole files. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_dtype.h"

static const struct tn_safetensors_dtype dtypes[] = {
    { "F64", 8, TN_F64 }, { "F32", 4, TN_F32 }, { "F16", 2, TN_F16 }, { "BF16", 2, TN_BF16 }, { "I64", 8, TN_I64 },
    { "I32", 4, TN_I32 }, { "I16", 2, 0 },      { "I8", 1, TN_I8 },   { "U8", 1, TN_U8 },     { "U64", 8, 0 },
    { "U32", 4, 0 },      { "U16", 2, 0 },      { "BOOL", 1, 0 },     { "F8_E4M3", 1, 0 },    { "F8_E5M2", 1, 0 },
};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

const struct tn_safetensors_dtype *tn_safetensors_dtype_by_name(const char *name)
{
    for (size_t n = 0; n < DTYPES; n++)
        if (strcmp(dtypes[n].name, name) == 0)
            return &dtypes[n];
    return NULL;
}

const struct tn_safetensors_dtype *tn_safetensors_dtype_of(uint32_t dtype)
{
    for (size_t n = 0; n < DTYPES; n++)
        if (dtypes[n].dtype == dtype && dtype != 0)
            return &dtypes[n];
    return NULL;
}

static uint64_t item_bytes(const struct tn_safetensors_item *item)
{
    const struct tn_safetensors_dtype *dtype = tn_safetensors_dtype_of(item->dtype);
    assert(dtype);
    uint64_t bytes = dtype->bytes;
    for (int32_t d = 0; d < item->rank; d++)
        bytes *= (uint64_t)item->shape[d];
    return bytes;
}

static json_t *metadata_object(const char *const *metadata)
{
    json_t *object = json_object();
    for (; metadata && metadata[0]; metadata += 2)
        json_object_set_new(object, metadata[0], json_string(metadata[1]));
    return object;
}

static json_t *item_object(const struct tn_safetensors_item *item, uint64_t begin)
{
    json_t *shape = json_array();
    for (int32_t d = 0; d < item->rank; d++)
        json_array_append_new(shape, json_integer(item->shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tn_safetensors_dtype_of(item->dtype)->name, "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + item_bytes(item)));
}

tn_status tn_safetensors_layout(const struct tn_safetensors_item *items, size_t n, const char *const *metadata,
                                struct tn_buf *header, uint64_t *offsets, uint64_t *file_bytes, char *error,
                                size_t error_bytes)
{
    json_t *root = json_object();
    tn_status status = TN_OK;
    uint64_t end = 0;
    if (metadata && metadata[0])
        json_object_set_new(root, "__metadata__", metadata_object(metadata));
    for (size_t i = 0; i < n && status == TN_OK; i++) {
        if (strcmp(items[i].name, "__metadata__") == 0 || json_object_get(root, items[i].name) ||
            json_object_set_new(root, items[i].name, item_object(&items[i], end)) != 0) {
            snprintf(error, error_bytes, "tensor %s cannot be stored: its name is taken, or no UTF-8", items[i].name);
            status = TN_INVALID;
        }
        offsets[i] = end;
        end += item_bytes(&items[i]);
    }
    char *text = status == TN_OK ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text)
        return status;
    uint64_t length = (strlen(text) + 7) / 8 * 8;
    unsigned char raw[8];
    for (int b = 0; b < 8; b++)
        raw[b] = (unsigned char)(length >> (8 * b));
    tn_buf_clear(header);
    tn_buf_add(header, (const char *)raw, sizeof raw);
    tn_buf_printf(header, "%-*s", (int)length, text);
    free(text);
    for (size_t i = 0; i < n; i++)
        offsets[i] += header->length;
    *file_bytes = header->length + end;
    return TN_OK;
}

static int write_all(int fd, const void *data, uint64_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t wrote = write(fd, at, bytes < (1u << 30) ? bytes : (1u << 30));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return -1;
        at += wrote;
        bytes -= (uint64_t)wrote;
    }
    return 0;
}

static int write_file(int fd, const struct tn_buf *header, const struct tn_safetensors_item *items, size_t n)
{
    if (write_all(fd, header->text, header->length) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (write_all(fd, items[i].data, item_bytes(&items[i])) != 0)
            return -1;
    return fsync(fd);
}

tn_status tn_safetensors_write(const char *path, const struct tn_safetensors_item *items, size_t n,
                               const char *const *metadata, char *error, size_t error_bytes)
{
    struct tn_buf header;
    tn_buf_init(&header);
    uint64_t *offsets = calloc(n + 1, sizeof *offsets), file_bytes;
    if (!offsets) {
        snprintf(error, error_bytes, "%s: no memory", path);
        return TN_NO_MEMORY;
    }
    tn_status status = tn_safetensors_layout(items, n, metadata, &header, offsets, &file_bytes, error, error_bytes);
    if (status == TN_OK) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        int failed = fd < 0 ? -1 : write_file(fd, &header, items, n);
        int why = errno;
        if (fd >= 0 && close(fd) != 0 && !failed) {
            failed = -1;
            why = errno;
        }
        if (failed) {
            snprintf(error, error_bytes, "%s: %s", path, strerror(why));
            status = TN_IO;
        }
    }
    free(offsets);
    tn_buf_finish(&header);
    return status;
}
