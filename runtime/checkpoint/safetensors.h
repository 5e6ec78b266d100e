/* safetensors: reads and writes the file format of checkpoints and golden data.
 *
 * u64 length, JSON header, data. The reader takes only files whose header says exactly where
 * every byte belongs; nothing it returns points outside the file. Data is read by offset
 * (pread), so that a file cut short behind our back is an error and not a signal. */
#ifndef TENON_SAFETENSORS_H
#define TENON_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include <tenon/status.h>
#include <tenon/value.h>

#include "base/buf.h"

struct tn_safetensors; /* an open file */

struct tn_safetensors_entry {
    const char *name;
    const char *dtype_name; /* as the file says it: "BF16" */
    uint32_t dtype;         /* TN_*; 0 for those that Tenon has no use for */
    int32_t rank;
    const int64_t *shape;
    uint64_t offset; /* of its first byte in the file */
    uint64_t bytes;
};

/* On failure *file stays NULL and error says why, with the path. */
tn_status tn_safetensors_open(struct tn_safetensors **file, const char *path, char *error, size_t error_bytes);
void tn_safetensors_close(struct tn_safetensors *file); /* accepts NULL */
/* Entries in the order of their data. All strings and arrays live as long as the file is open. */
size_t tn_safetensors_count(const struct tn_safetensors *file);
const struct tn_safetensors_entry *tn_safetensors_at(const struct tn_safetensors *file, size_t index);
/* NULL if there is none of that name. */
const struct tn_safetensors_entry *tn_safetensors_find(const struct tn_safetensors *file, const char *name);
const char *tn_safetensors_metadata(const struct tn_safetensors *file, const char *key);
/* Copies `bytes` bytes of the tensor's data, from byte `start` of it. */
tn_status tn_safetensors_read(const struct tn_safetensors *file, const struct tn_safetensors_entry *entry,
                              uint64_t start, uint64_t bytes, void *to, char *error, size_t error_bytes);
/* Control characters become '?': names come from files, and messages go to terminals. */
void tn_safetensors_printable(char *text);

/* A tensor to write. */
struct tn_safetensors_item {
    const char *name; /* UTF-8 */
    uint32_t dtype;
    int32_t rank;
    const int64_t *shape;
    const void *data; /* not needed by tn_safetensors_layout */
};

/* The first bytes of a file with these items, in their order (wider dtypes first keeps all aligned), and where the
 * data of each goes: offsets[i] from the start of the file, *file_bytes long in all. metadata: pairs of key and value,
 * NULL-terminated, or NULL. This is what ranks need that write their slices into one file. */
tn_status tn_safetensors_layout(const struct tn_safetensors_item *items, size_t n, const char *const *metadata,
                                struct tn_buf *header, uint64_t *offsets, uint64_t *file_bytes, char *error,
                                size_t error_bytes);
/* Writes a whole file (replacing one of that name); it is on the disk when this returns. */
tn_status tn_safetensors_write(const char *path, const struct tn_safetensors_item *items, size_t n,
                               const char *const *metadata, char *error, size_t error_bytes);

#endif
