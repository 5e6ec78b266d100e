/* Load: a checkpoint, or the files of Hugging Face, into this rank's params and states (checkpoint.h).
 *
 * A path is a .safetensors file, or a folder with model.safetensors or model.safetensors.index.json, or with `latest`
 * in it. Everything is compared by name and shape before the first value is written: what is missing, surplus or
 * misshapen is refused with its name. Files made from the bare model lack the first word of the names ("transformer.",
 * "model."). Stored are fp32, bf16 or fp16; params are fp32. */
#include "checkpoint/checkpoint_parts.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/input.h"
#include "base/log.h"

enum { PATH_MOST = 4096, MOST_FILES = 4096, MOST_SAID = 10 };

struct source {
    struct tn_safetensors **files;
    size_t n;
    char error[2 * PATH_MOST];
    void (*each)(void *ctx, const char *what); /* NULL: the first problem ends it */
    void *ctx;
    int said;
};

struct found {
    const struct tn_safetensors *file;
    const struct tn_safetensors_entry *entry;
};

static tn_status __attribute__((format(printf, 2, 3))) refuse(struct source *source, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(source->error, sizeof source->error, fmt, args);
    va_end(args);
    tn_safetensors_printable(source->error);
    return TN_INVALID;
}

/* One of several problems: says it and goes on, up to a few, where all are wanted. */
static tn_status say(struct source *source, tn_status status)
{
    if (status != TN_INVALID || !source->each)
        return status;
    source->each(source->ctx, source->error);
    source->error[0] = 0;
    return ++source->said < MOST_SAID ? TN_OK : status;
}

/* opening */

static tn_status add_file(struct source *source, const char *path)
{
    if (source->n == MOST_FILES)
        return refuse(source, "%s: more than %d files", path, MOST_FILES);
    tn_status status = tn_safetensors_open(&source->files[source->n], path, source->error, sizeof source->error);
    source->n += status == TN_OK;
    return status;
}

static int name_is_new(json_t *map, const char *until, const char *file)
{
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        if (strcmp(name, until) == 0)
            return 1;
        if (json_is_string(value) && strcmp(json_string_value(value), file) == 0)
            return 0;
    }
    return 1;
}

/* Every tensor of weight_map must be in its file; what else the files hold is found to be surplus later. */
static tn_status check_map(struct source *source, const char *path, json_t *map)
{
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        size_t i = 0;
        while (i < source->n && !tn_safetensors_find(source->files[i], name))
            i++;
        if (i == source->n)
            return refuse(source, "%s: tensor %s is not in %s", path, name, json_string_value(value));
    }
    return TN_OK;
}

static tn_status open_index(struct source *source, const char *folder, const char *path)
{
    json_error_t problem;
    json_t *root = tn_input_json(path, &problem), *value;
    json_t *map = json_object_get(root, "weight_map");
    tn_status status = TN_OK;
    const char *name;
    char file[2 * PATH_MOST];
    if (!json_is_object(map))
        status = refuse(source, "%s: %s", path, root ? "there is no weight_map in it" : problem.text);
    json_object_foreach(map, name, value)
    {
        const char *in = json_string_value(value);
        if (!in || strchr(in, '/')) {
            status = refuse(source, "%s: tensor %s is in no file of this folder", path, name);
        } else if (name_is_new(map, name, in)) {
            snprintf(file, sizeof file, "%s/%s", folder, in);
            status = add_file(source, file);
        }
        if (status != TN_OK)
            break;
    }
    if (status == TN_OK)
        status = check_map(source, path, map);
    json_decref(root);
    return status;
}

static tn_status open_source(struct source *source, const char *path)
{
    char inside[PATH_MOST];
    const char *const folders[] = { "", "/latest" };
    size_t length = strlen(path);
    source->files = calloc(MOST_FILES, sizeof *source->files);
    if (!source->files)
        return TN_NO_MEMORY;
    if (length > 12 && strcmp(path + length - 12, ".safetensors") == 0)
        return add_file(source, path);
    for (int i = 0; i < 2; i++) {
        char folder[PATH_MOST];
        snprintf(folder, sizeof folder, "%.4000s%s", path, folders[i]);
        snprintf(inside, sizeof inside, "%.4000s/%s", folder, tn_checkpoint_file[TN_CHECKPOINT_MODEL]);
        if (access(inside, F_OK) == 0)
            return add_file(source, inside);
        snprintf(inside, sizeof inside, "%.4000s/model.safetensors.index.json", folder);
        if (access(inside, F_OK) == 0)
            return open_index(source, folder, inside);
    }
    return refuse(source, "%s: there is no model.safetensors, model.safetensors.index.json or latest in it", path);
}

static void close_source(struct source *source)
{
    for (size_t i = 0; i < source->n; i++)
        tn_safetensors_close(source->files[i]);
    free(source->files);
}

/* comparing */

static struct found find_exact(const struct source *source, const char *name)
{
    for (size_t i = 0; i < source->n; i++) {
        const struct tn_safetensors_entry *entry = tn_safetensors_find(source->files[i], name);
        if (entry)
            return (struct found){ source->files[i], entry };
    }
    return (struct found){ NULL, NULL };
}

static struct found find(const struct source *source, const char *name)
{
    struct found f = find_exact(source, name);
    const char *dot = strchr(name, '.');
    return f.entry || !dot ? f : find_exact(source, dot + 1);
}

static void shape_text(char *text, size_t bytes, int32_t rank, const int64_t *shape)
{
    size_t at = 0;
    text[0] = 0;
    for (int32_t d = 0; d < rank && at < bytes; d++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%lld", d ? ", " : "", (long long)shape[d]);
}

static tn_status check_tensor(struct source *source, const char *path, const struct tn_stored_tensor *t,
                              const struct tn_safetensors_entry *entry)
{
    char is[160], wants[160];
    if (!entry)
        return refuse(source, "%s: tensor %s is missing", path, t->name);
    if (entry->rank != t->rank || memcmp(entry->shape, t->shape, (size_t)t->rank * sizeof *t->shape) != 0) {
        shape_text(is, sizeof is, entry->rank, entry->shape);
        shape_text(wants, sizeof wants, t->rank, t->shape);
        return refuse(source, "%s: tensor %s has shape [%s]; this model has [%s]", path, entry->name, is, wants);
    }
    if (entry->dtype != TN_F32 && entry->dtype != TN_BF16 && entry->dtype != TN_F16)
        return refuse(source, "%s: tensor %s is %s; F32, BF16 and F16 can be read", path, entry->name,
                      entry->dtype_name);
    return TN_OK;
}

/* Buffers that older files of Hugging Face hold beside the params. */
static int is_buffer(const char *name)
{
    static const char *const suffixes[] = { ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq" };
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t length = strlen(name), end = strlen(suffixes[i]);
        if (length >= end && strcmp(name + length - end, suffixes[i]) == 0)
            return 1;
    }
    return 0;
}

static int same_bytes(const struct found *a, const struct found *b)
{
    enum { CHUNK = 1 << 16 };
    static char left[CHUNK], right[CHUNK];
    char error[64];
    for (uint64_t at = 0; at < a->entry->bytes; at += CHUNK) {
        uint64_t n = a->entry->bytes - at < CHUNK ? a->entry->bytes - at : CHUNK;
        if (tn_safetensors_read(a->file, a->entry, at, n, left, error, sizeof error) != TN_OK ||
            tn_safetensors_read(b->file, b->entry, at, n, right, error, sizeof error) != TN_OK ||
            memcmp(left, right, n) != 0)
            return 0;
    }
    return 1;
}

/* The head of a model that ties it to its embedding may be stored once more. */
static int is_tied_head(const struct found *f, const struct found *wanted, uint32_t n)
{
    for (uint32_t t = 0; strcmp(f->entry->name, "lm_head.weight") == 0 && t < n; t++) {
        const struct tn_safetensors_entry *other = wanted[t].entry;
        if (other && other->dtype == f->entry->dtype && other->rank == 2 && f->entry->rank == 2 &&
            memcmp(other->shape, f->entry->shape, 2 * sizeof *other->shape) == 0 && same_bytes(f, &wanted[t]))
            return 1;
    }
    return 0;
}

static int by_address(const void *a, const void *b)
{
    const struct found *left = a, *right = b;
    return left->entry < right->entry ? -1 : left->entry > right->entry;
}

/* `wanted` is found in the order of addresses. */
static tn_status check_surplus(struct source *source, const char *path, const struct found *wanted, uint32_t n)
{
    for (size_t i = 0; i < source->n; i++)
        for (size_t k = 0; k < tn_safetensors_count(source->files[i]); k++) {
            struct found f = { source->files[i], tn_safetensors_at(source->files[i], k) };
            if (bsearch(&f, wanted, n, sizeof *wanted, by_address) || is_buffer(f.entry->name) ||
                is_tied_head(&f, wanted, n))
                continue;
            tn_status status = say(source, refuse(source, "%s: this model has no tensor %s", path, f.entry->name));
            if (status != TN_OK)
                return status;
        }
    return TN_OK;
}

/* Finds every tensor of `file`; found[t] for those of it. */
static tn_status match(struct source *source, const struct tn_stored *stored, int file, const char *path,
                       struct found *found)
{
    struct found *sorted = calloc(stored->n_tensors + 1, sizeof *sorted);
    tn_status status = sorted ? TN_OK : TN_NO_MEMORY;
    uint32_t n = 0;
    for (uint32_t t = 0; t < stored->n_tensors && status == TN_OK; t++) {
        if (stored->tensors[t].file != file)
            continue;
        found[t] = find(source, stored->tensors[t].name);
        status = say(source, check_tensor(source, path, &stored->tensors[t], found[t].entry));
        sorted[n++] = found[t];
    }
    if (status == TN_OK) {
        qsort(sorted, n, sizeof *sorted, by_address);
        status = check_surplus(source, path, sorted, n);
    }
    free(sorted);
    return status;
}

/* reading */

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static float from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff, wide;
    float value;
    if (exponent == 0) { /* zero and subnormals: fraction * 2^-24 */
        value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    wide = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Elements [at, at + count) of the tensor as fp32; they are read behind `to` and spread forwards. */
static tn_status read_run(struct source *source, const struct found *f, int64_t at, int64_t count, float *to)
{
    uint64_t size = f->entry->dtype == TN_F32 ? 4 : 2;
    unsigned char *raw = (unsigned char *)to + (uint64_t)count * (4 - size);
    tn_status status = tn_safetensors_read(f->file, f->entry, (uint64_t)at * size, (uint64_t)count * size, raw,
                                           source->error, sizeof source->error);
    for (int64_t i = 0; size == 2 && status == TN_OK && i < count; i++) {
        uint16_t bits = (uint16_t)(raw[2 * i] | raw[2 * i + 1] << 8);
        to[i] = f->entry->dtype == TN_BF16 ? from_bf16(bits) : from_f16(bits);
    }
    return status;
}

static tn_status fill(struct source *source, const struct tn_stored *stored, const struct tn_exec *exec, uint32_t part,
                      const struct found *f)
{
    tn_value v = stored->parts[part].value;
    int64_t n = tn_local_elements(stored->flat, v), local, at, count;
    float *data = malloc((size_t)(n + 1) * sizeof *data);
    struct tn_runs runs;
    tn_status status = tn_runs_init(&runs, stored, part);
    if (!data)
        status = TN_NO_MEMORY;
    while (status == TN_OK && (count = tn_runs_next(&runs, &local, &at)) > 0)
        status = read_run(source, f, at, count, data + local);
    tn_runs_finish(&runs);
    if (status == TN_OK && n > 0)
        status = tn_exec_write(exec, v, data, (uint64_t)n * sizeof *data);
    free(data);
    return status;
}

static tn_status load_file(const struct tn_stored *stored, const struct tn_exec *exec, int file, const char *path)
{
    struct source source = { .n = 0 };
    struct found *found = calloc(stored->n_tensors + 1, sizeof *found);
    tn_status status = found ? open_source(&source, path) : TN_NO_MEMORY;
    if (status == TN_OK)
        status = match(&source, stored, file, path, found);
    for (uint32_t i = 0; i < stored->n_parts && status == TN_OK; i++)
        if (stored->tensors[stored->parts[i].tensor].file == file)
            status = fill(&source, stored, exec, i, &found[stored->parts[i].tensor]);
    if (status != TN_OK)
        tn_log(TN_LOG_ERROR, "%s", *source.error ? source.error : "checkpoint: out of memory while loading");
    close_source(&source);
    free(found);
    return status;
}

void tn_checkpoint_compare(const struct tn_stored *stored, int file, const char *path,
                           void (*each)(void *ctx, const char *what), void *ctx)
{
    struct source source = { .each = each, .ctx = ctx };
    struct found *found = calloc(stored->n_tensors + 1, sizeof *found);
    tn_status status = found ? open_source(&source, path) : TN_NO_MEMORY;
    if (status == TN_OK)
        status = match(&source, stored, file, path, found);
    if (status != TN_OK && source.said < MOST_SAID)
        each(ctx, *source.error ? source.error : "out of memory while comparing");
    close_source(&source);
    free(found);
}

tn_status tn_checkpoint_load(const struct tn_stored *stored, const struct tn_exec *exec, const char *path, int resume)
{
    char file[PATH_MOST];
    tn_status status = load_file(stored, exec, TN_CHECKPOINT_MODEL, path);
    snprintf(file, sizeof file, "%.4000s/%s", path, tn_checkpoint_file[TN_CHECKPOINT_OPTIMIZER]);
    return status == TN_OK && resume ? load_file(stored, exec, TN_CHECKPOINT_OPTIMIZER, file) : status;
}
