/* Idx, reading: see idx.h. The layout (little-endian, unaligned, so read by memcpy):
 *
 *     "MMIDIDX\0\0"  u64 version  u8 dtype  u64 sequences  u64 document entries      34 bytes
 *     i32 length[sequences]  i64 byte pointer[sequences]  i64 first sequence of each document, and the end
 *
 * The index is streamed once, in blocks; all that stays in memory are the runs. */
#include "data/idx.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenon/host.h>

#include "base/log.h"
#include "data/idx_format.h"

#define BLOCK 2048 /* numbers of an array read at once */

/* While one index is checked. */
struct check {
    struct tn_idx *idx;
    struct tn_diag *diag;
    struct tn_where where;
    const char *path;
    int fd;
    int64_t bytes; /* of the .idx */
    int64_t entries;
};

const struct tn_idx_dtype *tn_idx_dtype(const char *name, int code)
{
    static const struct tn_idx_dtype known[] = {
        { "u8", 1, 1, UINT8_MAX },
        { "i32", 4, 4, INT32_MAX },
        { "i64", 5, 8, INT64_MAX },
        { "u16", 8, 2, UINT16_MAX },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (name ? strcmp(name, known[i].name) == 0 : code == known[i].code)
            return &known[i];
    return NULL;
}

static int64_t get_i64(const uint8_t *bytes)
{
    uint64_t number;
    memcpy(&number, bytes, sizeof number);
    return (int64_t)le64toh(number);
}

static int32_t get_i32(const uint8_t *bytes)
{
    uint32_t number;
    memcpy(&number, bytes, sizeof number);
    return (int32_t)le32toh(number);
}

/* All `count` bytes at `offset`: 0; -1 at the file's end (errno 0) or on an error. */
static int read_all(int fd, void *into, size_t count, int64_t offset)
{
    for (size_t done = 0; done < count;) {
        ssize_t got = pread(fd, (char *)into + done, count - done, offset + (int64_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got < 0 ? errno : 0;
            return -1;
        }
        done += (size_t)got;
    }
    return 0;
}

__attribute__((format(printf, 3, 4))) static int wrong(const struct check *c, const char *fix, const char *what, ...)
{
    va_list args;
    char *line = NULL;
    va_start(args, what);
    int length = vasprintf(&line, what, args);
    va_end(args);
    tn_diag_add(c->diag, c->where, fix, "%s", length < 0 ? "out of memory" : line);
    if (length >= 0)
        free(line);
    return -1;
}

static int read_index(const struct check *c, void *into, size_t count, int64_t offset)
{
    if (read_all(c->fd, into, count, offset) == 0)
        return 0;
    return wrong(c, NULL, "%s: cannot read byte %lld: %s", c->path, (long long)offset,
                 errno ? strerror(errno) : "the file ends before it");
}

static int check_header(struct check *c)
{
    uint8_t header[IDX_HEADER];
    if (c->bytes < IDX_HEADER)
        return wrong(c, "give the prefix of a Megatron indexed dataset",
                     "%s: has %lld bytes, less than its header of %d", c->path, (long long)c->bytes, IDX_HEADER);
    if (read_index(c, header, sizeof header, 0) != 0)
        return -1;
    if (memcmp(header, IDX_MAGIC, IDX_MAGIC_BYTES) != 0)
        return wrong(c, "give the prefix of a Megatron indexed dataset",
                     "%s: byte 0: does not begin with MMIDIDX; this is no index", c->path);
    int64_t version = get_i64(header + IDX_AT_VERSION);
    if (version != 1)
        return wrong(c, "write it again with version 1", "%s: byte %d: version is %llu, expected 1", c->path,
                     IDX_AT_VERSION, (unsigned long long)version);
    c->idx->dtype = tn_idx_dtype(NULL, header[IDX_AT_DTYPE]);
    if (!c->idx->dtype)
        return wrong(c, "write it again as one of them",
                     "%s: byte %d: dtype code is %d, expected 1 (u8), 4 (i32), 5 (i64) or 8 (u16)", c->path,
                     IDX_AT_DTYPE, header[IDX_AT_DTYPE]);
    int64_t sequences = get_i64(header + IDX_AT_SEQUENCES), entries = get_i64(header + IDX_AT_ENTRIES);
    int64_t rest = c->bytes - IDX_HEADER;
    if (sequences < 0 || sequences > rest / 12)
        return wrong(c, NULL, "%s: byte %d: %llu sequences do not fit in the file's %lld bytes", c->path,
                     IDX_AT_SEQUENCES, (unsigned long long)sequences, (long long)c->bytes);
    rest -= sequences * 12;
    if (entries < 1 || entries > rest / 8 || entries * 8 != rest)
        return wrong(c, NULL,
                     "%s: byte %d: %lld sequences and %llu document entries make %lld + 8 x %llu bytes, not %lld",
                     c->path, IDX_AT_ENTRIES, (long long)sequences, (unsigned long long)entries,
                     (long long)(c->bytes - rest), (unsigned long long)entries, (long long)c->bytes);
    c->idx->sequences = sequences;
    c->idx->documents = entries - 1;
    c->entries = entries;
    return 0;
}

/* Sequence `i`, which has `length` tokens at byte `offset` of the .bin. */
static int add_sequence(struct check *c, int64_t i, int64_t length, int64_t offset)
{
    struct tn_idx *idx = c->idx;
    int64_t bytes = length * idx->dtype->bytes;
    if (length < 0)
        return wrong(c, NULL, "%s: byte %lld: sequence %lld has length %lld", c->path, (long long)IDX_LENGTH(i),
                     (long long)i, (long long)length);
    if (offset < 0 || offset > idx->bin_bytes || bytes > idx->bin_bytes - offset)
        return wrong(c, NULL, "%s: byte %lld: sequence %lld lies at bytes [%lld, +%lld) of %s, which has %lld bytes",
                     c->path, (long long)IDX_POINTER(idx->sequences, i), (long long)i, (long long)offset,
                     (long long)bytes, idx->bin_path, (long long)idx->bin_bytes);
    idx->shortest = i == 0 || length < idx->shortest ? length : idx->shortest;
    idx->longest = length > idx->longest ? length : idx->longest;
    const struct tn_idx_run *last = idx->n_runs ? &idx->runs[idx->n_runs - 1] : NULL;
    if (length > 0 && (!last || last->offset + (idx->tokens - last->first) * idx->dtype->bytes != offset)) {
        if (idx->n_runs == idx->cap_runs) {
            size_t cap = idx->cap_runs ? idx->cap_runs * 2 : 4;
            struct tn_idx_run *grown = realloc(idx->runs, cap * sizeof *grown);
            if (!grown)
                return wrong(c, NULL, "%s: out of memory for its %lld sequences", c->path, (long long)idx->sequences);
            idx->runs = grown;
            idx->cap_runs = cap;
        }
        idx->runs[idx->n_runs++] = (struct tn_idx_run){ idx->tokens, offset };
    }
    /* A crafted index may repeat one long sequence very often; the sum is checked against the .bin at the end. */
    idx->tokens += length;
    return idx->tokens <= INT64_MAX / 16 ? 0 : wrong(c, NULL, "%s: holds more than 2^59 tokens", c->path);
}

static int check_sequences(struct check *c)
{
    uint8_t lengths[BLOCK * 4], pointers[BLOCK * 8];
    int64_t sequences = c->idx->sequences;
    for (int64_t i = 0; i < sequences; i += BLOCK) {
        size_t count = (size_t)(sequences - i < BLOCK ? sequences - i : BLOCK);
        if (read_index(c, lengths, count * 4, IDX_LENGTH(i)) != 0 ||
            read_index(c, pointers, count * 8, IDX_POINTER(sequences, i)) != 0)
            return -1;
        for (size_t j = 0; j < count; j++)
            if (add_sequence(c, i + (int64_t)j, get_i32(lengths + j * 4), get_i64(pointers + j * 8)) != 0)
                return -1;
    }
    struct tn_idx *idx = c->idx;
    if (idx->tokens * idx->dtype->bytes != idx->bin_bytes)
        return wrong(c, "give two files that were written together",
                     "%s has %lld bytes, but the lengths in %s add up to %lld tokens of %d bytes", idx->bin_path,
                     (long long)idx->bin_bytes, c->path, (long long)idx->tokens, idx->dtype->bytes);
    return 0;
}

/* The document entries: from 0, never falling, to the number of sequences. */
static int check_documents(struct check *c)
{
    uint8_t block[BLOCK * 8];
    int64_t sequences = c->idx->sequences, before = 0;
    for (int64_t i = 0; i < c->entries; i += BLOCK) {
        size_t count = (size_t)(c->entries - i < BLOCK ? c->entries - i : BLOCK);
        if (read_index(c, block, count * 8, IDX_DOCUMENT(sequences, i)) != 0)
            return -1;
        for (size_t j = 0; j < count; j++) {
            int64_t number = i + (int64_t)j, entry = get_i64(block + j * 8);
            int last = number == c->entries - 1;
            if (entry < before || entry > sequences || (number == 0 && entry != 0) || (last && entry != sequences))
                return wrong(c, NULL, "%s: byte %lld: document entry %lld is %lld, expected %s%lld", c->path,
                             (long long)IDX_DOCUMENT(sequences, number), (long long)number, (long long)entry,
                             number == 0 || last ? "" : "at least ",
                             (long long)(number == 0 ? 0
                                         : last      ? sequences
                                                     : before));
            before = entry;
        }
    }
    return 0;
}

/* A regular file's descriptor and size; -1 with a problem. */
static int open_file(struct check *c, const char *path, int64_t *bytes)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0) {
        wrong(c, "give the prefix that PREFIX.bin and PREFIX.idx share", "cannot open %s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        wrong(c, "give the prefix that PREFIX.bin and PREFIX.idx share", "%s is not a regular file", path);
    } else {
        *bytes = info.st_size;
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

int tn_idx_open(struct tn_idx *idx, const char *prefix, struct tn_diag *diag, struct tn_where where)
{
    *idx = (struct tn_idx){ .bin = -1 };
    char *path = NULL;
    struct check c = { .idx = idx, .diag = diag, .where = where, .fd = -1 };
    int done = -1;
    if (asprintf(&path, "%s.idx", prefix) < 0)
        path = NULL;
    if (asprintf(&idx->bin_path, "%s.bin", prefix) < 0)
        idx->bin_path = NULL;
    if (!path || !idx->bin_path) {
        wrong(&c, NULL, "out of memory");
        goto close_index;
    }
    c.path = path;
    c.fd = open_file(&c, path, &c.bytes);
    idx->bin = open_file(&c, idx->bin_path, &idx->bin_bytes);
    if (c.fd >= 0 && idx->bin >= 0 && check_header(&c) == 0 && check_sequences(&c) == 0 && check_documents(&c) == 0)
        done = 0;
close_index:
    if (c.fd >= 0)
        close(c.fd);
    free(path);
    if (done != 0)
        tn_idx_close(idx);
    return done;
}

/* Documents name their first sequence, never falling; the tokens before it are the lengths of all earlier ones. */
static int find_starts(const struct check *c, int64_t *starts)
{
    uint8_t entries[BLOCK * 8], lengths[BLOCK * 4];
    int64_t sequence = 0, tokens = 0, sequences = c->idx->sequences;
    for (int64_t d = 0; d < c->idx->documents; d++) {
        size_t left = (size_t)(c->idx->documents - d < BLOCK ? c->idx->documents - d : BLOCK);
        if (d % BLOCK == 0 && read_index(c, entries, left * 8, IDX_DOCUMENT(sequences, d)) != 0)
            return -1;
        for (int64_t first = get_i64(entries + d % BLOCK * 8); sequence < first; sequence++) {
            size_t more = (size_t)(sequences - sequence < BLOCK ? sequences - sequence : BLOCK);
            if (sequence % BLOCK == 0 && read_index(c, lengths, more * 4, IDX_LENGTH(sequence)) != 0)
                return -1;
            tokens += get_i32(lengths + sequence % BLOCK * 4);
        }
        starts[d] = tokens;
    }
    return 0;
}

int tn_idx_documents(const struct tn_idx *idx, const char *prefix, int64_t **starts, struct tn_diag *diag,
                     struct tn_where where)
{
    struct check c = { .idx = (struct tn_idx *)idx, .diag = diag, .where = where, .fd = -1 };
    char *path = NULL;
    int done = -1;
    *starts = malloc((size_t)(idx->documents + 1) * sizeof **starts);
    if (!*starts || asprintf(&path, "%s.idx", prefix) < 0) {
        wrong(&c, NULL, "out of memory for %lld documents", (long long)idx->documents);
        path = NULL;
        goto end;
    }
    c.path = path;
    c.fd = open_file(&c, path, &c.bytes);
    if (c.fd >= 0)
        done = find_starts(&c, *starts);
end:
    if (c.fd >= 0)
        close(c.fd);
    free(path);
    if (done != 0) {
        free(*starts);
        *starts = NULL;
    }
    return done;
}

void tn_idx_close(struct tn_idx *idx)
{
    if (idx->bin >= 0)
        close(idx->bin);
    free(idx->bin_path);
    free(idx->runs);
    *idx = (struct tn_idx){ .bin = -1 };
}

static int64_t token_of(const uint8_t *bytes, int size)
{
    uint16_t half;
    switch (size) {
    case 1: return *bytes;
    case 2: memcpy(&half, bytes, sizeof half); return le16toh(half);
    case 4: return get_i32(bytes);
    default: return get_i64(bytes);
    }
}

/* `count` tokens of one run, from byte `offset`; `position` is the first one's, for messages. */
static int read_run(const struct tn_idx *idx, int64_t offset, int64_t position, int64_t count, int64_t vocab,
                    int32_t *tokens)
{
    uint8_t block[8192];
    int size = idx->dtype->bytes;
    for (int64_t done = 0; done < count;) {
        int64_t most = (int64_t)sizeof block / size, take = count - done < most ? count - done : most;
        if (read_all(idx->bin, block, (size_t)(take * size), offset + done * size) != 0) {
            tn_log(TN_LOG_ERROR, "data: cannot read %s at byte %lld: %s", idx->bin_path,
                   (long long)(offset + done * size), errno ? strerror(errno) : "it has become shorter");
            return -1;
        }
        for (int64_t i = 0; i < take; i++) {
            int64_t token = token_of(block + i * size, size);
            if (token < 0 || token >= vocab) {
                tn_log(TN_LOG_ERROR, "data: %s: token %lld (byte %lld) is %lld; the model's vocabulary ends at %lld",
                       idx->bin_path, (long long)(position + done + i), (long long)(offset + (done + i) * size),
                       (long long)token, (long long)vocab - 1);
                return -1;
            }
            tokens[done + i] = (int32_t)token;
        }
        done += take;
    }
    return 0;
}

int tn_idx_read(const struct tn_idx *idx, int64_t first, int64_t count, int64_t vocab, int32_t *tokens)
{
    size_t low = 0, high = idx->n_runs;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (idx->runs[middle].first <= first)
            low = middle;
        else
            high = middle;
    }
    for (int64_t done = 0; done < count; low++) {
        const struct tn_idx_run *run = &idx->runs[low];
        int64_t inside = first + done - run->first;
        int64_t end = low + 1 < idx->n_runs ? run[1].first : idx->tokens;
        int64_t here = end - (first + done), take = here < count - done ? here : count - done;
        int64_t offset = run->offset + inside * idx->dtype->bytes;
        if (read_run(idx, offset, first + done, take, vocab, tokens + done) != 0)
            return -1;
        done += take;
    }
    return 0;
}
