/* Fuzzing the manifest: any bytes as a file, with overrides behind a 0x1f, read through the core's tables and one
 * that has every type of option. Beside crashes, it looks for answers that cannot be: see check_*.
 *
 * The entry is libFuzzer's. driver.c calls it as an ordinary test; the target tests/fuzz/fuzz_manifest is clang's. */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "config/settings.h"

enum { MOST_OVERRIDES = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const choices[] = { "one", "two", "three", NULL };

#define ROW(type, key, fallback, flags, lo, hi, list)                                           \
    {                                                                                           \
        sizeof(struct tn_option), TN_OPT_##type, flags, 0, key, fallback, lo, hi, list, "Help." \
    }
static const struct tn_option table[] = {
    ROW(INT, "int", "1", TN_OPT_AUTO, -10, 10, NULL), ROW(INT, "required", NULL, TN_OPT_REQUIRED, 0, 0, NULL),
    ROW(FLOAT, "float", "0.5", 0, 0, 1, NULL),        ROW(FLOAT, "wide", "0.5", 0, 0, 0, NULL),
    ROW(BOOL, "bool", "no", 0, 0, 0, NULL),           ROW(SIZE, "size", "1K", 0, 1024, 1e12, NULL),
    ROW(SIZE, "any_size", "0", 0, 0, 0, NULL),        ROW(DURATION, "duration", "1s", 0, 0, 0, NULL),
    ROW(ENUM, "enum", "two", 0, 0, 0, choices),       ROW(STRING, "string", NULL, 0, 0, 0, NULL),
    ROW(LIST, "list", NULL, 0, 0, 0, NULL),
};
enum { ROWS = sizeof table / sizeof *table };

static void check_manifest(const struct tn_manifest *m)
{
    assert(m->count <= TN_MANIFEST_MOST_KEYS + MOST_OVERRIDES);
    for (size_t i = 0; i < m->count; i++) {
        const struct tn_entry *entry = &m->entries[i];
        assert(*entry->section && *entry->key && entry->value);
        assert(strcspn(entry->value, "\r\n") == strlen(entry->value));
        if (m->count < 500) /* each key stands once */
            assert(tn_manifest_find(m, entry->section, entry->key) == entry);
    }
}

static void check_options(const struct tn_options *options)
{
    assert(options->count == ROWS);
    for (uint32_t i = 0; i < options->count; i++) {
        const struct tn_option_value *value = &options->values[i];
        const struct tn_option *option = value->option;
        assert(value->s);
        assert(isfinite(value->f));
        if (strcmp(value->s, "auto") != 0 && (option->min != 0 || option->max != 0)) {
            double number = option->type == TN_OPT_FLOAT ? value->f : (double)value->i;
            assert(number >= option->min && number <= option->max);
        }
        if (option->type == TN_OPT_BOOL)
            assert(value->i == 0 || value->i == 1);
        if (option->type == TN_OPT_ENUM)
            assert(value->i >= 0 && value->i < 3);
        if (option->type == TN_OPT_SIZE || option->type == TN_OPT_DURATION)
            assert(value->i >= 0);
        for (uint32_t k = 0; k < value->list_count; k++)
            assert(*value->list[k]);
    }
}

static void check_settings(const struct tn_settings *settings)
{
    assert(settings->steps >= 1 && settings->batch >= 1 && settings->micro_batches >= 1 && settings->sequence >= 1);
    assert(settings->lr_schedule >= TN_LR_CONSTANT && settings->lr_schedule <= TN_LR_WSD);
    assert(settings->model && settings->device && settings->backend && settings->sample && settings->path);
}

/* Every problem is one line of text. */
static void check_problems(struct tn_diag *diag)
{
    for (size_t i = 0; i < diag->count; i++) {
        const char *line = tn_diag_text(diag, &diag->problems[i]);
        assert(*line && strcspn(line, "\r\n\v\f\x1b") == strlen(line));
    }
}

static size_t cut_overrides(const uint8_t *data, size_t size, char *texts[MOST_OVERRIDES])
{
    size_t count = 0;
    for (size_t at = 0; at < size && count < MOST_OVERRIDES; count++) {
        const uint8_t *end = memchr(data + at, 0x1f, size - at);
        size_t length = end ? (size_t)(end - data) - at : size - at;
        texts[count] = strndup((const char *)data + at, length);
        at += length + 1;
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = memchr(data, 0x1f, size);
    size_t file_bytes = cut ? (size_t)(cut - data) : size;
    char *overrides[MOST_OVERRIDES], path[64];
    size_t n = cut ? cut_overrides(cut + 1, size - file_bytes - 1, overrides) : 0;
    int fd = memfd_create("manifest", MFD_CLOEXEC);
    assert(fd >= 0 && write(fd, data, file_bytes) == (ssize_t)file_bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);

    struct tn_diag diag;
    struct tn_manifest m;
    struct tn_settings settings;
    struct tn_options options;
    const char *const known[] = { "s" };
    tn_diag_init(&diag);
    tn_manifest_init(&m, path, (const char *const *)overrides, n, &diag);
    check_manifest(&m);
    tn_settings_read(&settings, &m, &diag);
    tn_options_read(&options, &m, "s", table, ROWS, sizeof *table, &diag);
    tn_settings_unused(&m, known, 1, &diag);
    check_options(&options);
    check_settings(&settings);
    check_problems(&diag);
    tn_manifest_finish(&m);
    tn_diag_finish(&diag);
    close(fd);
    for (size_t i = 0; i < n; i++)
        free(overrides[i]);
    return 0;
}
