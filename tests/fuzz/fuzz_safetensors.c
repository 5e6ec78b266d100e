/* Fuzzing safetensors: JSON and, behind a 0x1e, data, made a file with a length in front that is right; with a 0x1f in
 * front the bytes are the file as they are. Beside crashes it looks for answers that cannot be: an entry outside of the
 * file, a gap, a size that is not its shape's, a refusal without a reason.
 *
 * The entry is libFuzzer's; see fuzz_manifest.c. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_dtype.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_exactly(int fd, const void *from, size_t bytes)
{
    assert(write(fd, from, bytes) == (ssize_t)bytes);
}

static size_t write_file(int fd, const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == 0x1f) {
        write_exactly(fd, data + 1, size - 1);
        return size - 1;
    }
    const uint8_t *cut = memchr(data, 0x1e, size);
    uint64_t header = cut ? (uint64_t)(cut - data) : size, rest = size - header - (cut != NULL);
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(header >> 8 * i);
    write_exactly(fd, length, sizeof length);
    write_exactly(fd, data, header);
    if (cut)
        write_exactly(fd, cut + 1, rest);
    return sizeof length + header + rest;
}

static void check_entry(const struct tn_safetensors *file, const struct tn_safetensors_entry *entry,
                        uint64_t file_bytes)
{
    char byte, error[600] = "";
    const struct tn_safetensors_dtype *dtype = tn_safetensors_dtype_by_name(entry->dtype_name);
    uint64_t bytes = dtype->bytes;
    for (int32_t d = 0; d < entry->rank; d++)
        bytes *= (uint64_t)entry->shape[d];
    assert(bytes == entry->bytes && entry->offset <= file_bytes && entry->bytes <= file_bytes - entry->offset);
    assert(tn_safetensors_find(file, entry->name) == entry);
    if (bytes > 0)
        assert(tn_safetensors_read(file, entry, bytes - 1, 1, &byte, error, sizeof error) == TN_OK);
    assert(tn_safetensors_read(file, entry, bytes, 1, &byte, error, sizeof error) == TN_INVALID && *error);
    assert(tn_safetensors_read(file, entry, UINT64_MAX, 2, &byte, error, sizeof error) == TN_INVALID);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tn_safetensors *file;
    char path[64], error[600] = "";
    int fd = memfd_create("safetensors", MFD_CLOEXEC);
    assert(fd >= 0);
    uint64_t file_bytes = write_file(fd, data, size), end = 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (tn_safetensors_open(&file, path, error, sizeof error) == TN_OK) {
        for (size_t i = 0; i < tn_safetensors_count(file); i++) {
            const struct tn_safetensors_entry *entry = tn_safetensors_at(file, i);
            assert(i == 0 || entry->offset == end);
            end = entry->offset + entry->bytes;
            check_entry(file, entry, file_bytes);
        }
        assert(tn_safetensors_count(file) == 0 || end == file_bytes);
        assert(!tn_safetensors_find(file, "no such tensor"));
        tn_safetensors_metadata(file, "format");
        tn_safetensors_close(file);
    } else {
        assert(!file && *error && strcspn(error, "\r\n\v\f\x1b") == strlen(error));
    }
    close(fd);
    return 0;
}
