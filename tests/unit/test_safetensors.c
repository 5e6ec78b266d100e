/* safetensors: files that must be taken, and one broken file for each rule of the format. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/safetensors.h"

static char path[64];
static char error[256];

static int set_up(void **state)
{
    strcpy(path, "/tmp/tenon-safetensors-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int tear_down(void **state)
{
    return unlink(path);
}

static void write_raw(uint64_t length, const char *header, size_t header_bytes, size_t data_bytes)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    for (int b = 0; b < 8; b++)
        fputc((int)(length >> (8 * b) & 0xff), out);
    fwrite(header, 1, header_bytes, out);
    for (size_t n = 0; n < data_bytes; n++)
        fputc((int)(n & 0xff), out);
    assert_int_equal(fclose(out), 0);
}

/* Expects a file of this header and that many bytes of data to be refused for a reason that contains `why`. */
static void refused(const char *header, size_t data_bytes, const char *why)
{
    struct tn_safetensors *file;
    write_raw(strlen(header), header, strlen(header), data_bytes);
    if (tn_safetensors_open(&file, path, error, sizeof error) == TN_OK)
        fail_msg("taken: %s", header);
    assert_null(file);
    if (!strstr(error, why) || strncmp(error, path, strlen(path)) != 0)
        fail_msg("%s: the message is \"%s\", without \"%s\"", header, error, why);
}

static void taken(const char *header, size_t data_bytes)
{
    struct tn_safetensors *file;
    write_raw(strlen(header), header, strlen(header), data_bytes);
    if (tn_safetensors_open(&file, path, error, sizeof error) != TN_OK)
        fail_msg("%s", error);
    tn_safetensors_close(file);
}

static void writes_what_it_reads(void **state)
{
    const float matrix[] = { 1, 2, 3, 4, 5, 6 }, scalar = 7;
    const int32_t ids[] = { -1, 60 };
    const int64_t matrix_shape[] = { 2, 3 }, ids_shape[] = { 2 }, none_shape[] = { 0, 5 };
    const struct tn_safetensors_item items[] = { { "h.0.weight", TN_F32, 2, matrix_shape, matrix },
                                                 { "scalar", TN_F32, 0, NULL, &scalar },
                                                 { "none \"quoted\" \xc3\xa9", TN_BF16, 2, none_shape, NULL },
                                                 { "ids", TN_I32, 1, ids_shape, ids } };
    const char *const metadata[] = { "format", "pt", "step", "10", NULL };
    assert_int_equal(tn_safetensors_write(path, items, 4, metadata, error, sizeof error), TN_OK);

    struct tn_safetensors *file;
    assert_int_equal(tn_safetensors_open(&file, path, error, sizeof error), TN_OK);
    assert_int_equal(tn_safetensors_count(file), 4);
    assert_string_equal(tn_safetensors_metadata(file, "step"), "10");
    assert_null(tn_safetensors_metadata(file, "other"));
    assert_null(tn_safetensors_find(file, "h.0.weigh"));
    const struct tn_safetensors_entry *entry = tn_safetensors_find(file, "h.0.weight");
    assert_non_null(entry);
    assert_int_equal(entry->dtype, TN_F32);
    assert_int_equal(entry->rank, 2);
    assert_int_equal(entry->shape[1], 3);
    assert_int_equal(entry->offset % 8, 0);
    float row[3];
    assert_int_equal(tn_safetensors_read(file, entry, 12, 12, row, error, sizeof error), TN_OK);
    assert_memory_equal(row, matrix + 3, sizeof row);
    assert_int_equal(tn_safetensors_read(file, entry, 16, 12, row, error, sizeof error), TN_INVALID);
    assert_int_equal(tn_safetensors_read(file, entry, UINT64_MAX, 2, row, error, sizeof error), TN_INVALID);
    entry = tn_safetensors_find(file, "none \"quoted\" \xc3\xa9");
    assert_non_null(entry);
    assert_int_equal(entry->bytes, 0);
    assert_string_equal(entry->dtype_name, "BF16");
    entry = tn_safetensors_find(file, "ids");
    int32_t got[2];
    assert_int_equal(tn_safetensors_read(file, entry, 0, 8, got, error, sizeof error), TN_OK);
    assert_memory_equal(got, ids, sizeof got);
    tn_safetensors_close(file);
}

static void lays_out_what_it_writes(void **state)
{
    const int64_t shape[] = { 3 };
    const float values[] = { 1, 2, 3 };
    const struct tn_safetensors_item items[] = { { "a", TN_F32, 1, shape, values }, { "b", TN_F32, 1, shape, values } };
    struct tn_buf header;
    uint64_t offsets[2], bytes;
    tn_buf_init(&header);
    assert_int_equal(tn_safetensors_layout(items, 2, NULL, &header, offsets, &bytes, error, sizeof error), TN_OK);
    assert_int_equal(tn_safetensors_write(path, items, 2, NULL, error, sizeof error), TN_OK);
    struct tn_safetensors *file;
    assert_int_equal(tn_safetensors_open(&file, path, error, sizeof error), TN_OK);
    for (size_t n = 0; n < 2; n++)
        assert_int_equal(tn_safetensors_at(file, n)->offset, offsets[n]);
    assert_null(tn_safetensors_at(file, 2));
    assert_int_equal(offsets[1] + 12, bytes);
    tn_safetensors_close(file);
    tn_buf_finish(&header);
}

static void refuses_names_it_cannot_store(void **state)
{
    const float value = 1;
    const struct tn_safetensors_item twice[] = { { "a", TN_F32, 0, NULL, &value }, { "a", TN_F32, 0, NULL, &value } };
    const struct tn_safetensors_item bytes = { "\xff", TN_F32, 0, NULL, &value };
    const struct tn_safetensors_item reserved = { "__metadata__", TN_F32, 0, NULL, &value };
    assert_int_equal(tn_safetensors_write(path, twice, 2, NULL, error, sizeof error), TN_INVALID);
    assert_int_equal(tn_safetensors_write(path, &bytes, 1, NULL, error, sizeof error), TN_INVALID);
    assert_int_equal(tn_safetensors_write(path, &reserved, 1, NULL, error, sizeof error), TN_INVALID);
    assert_int_equal(tn_safetensors_write("/nowhere/x", twice, 1, NULL, error, sizeof error), TN_IO);
}

static void takes_what_the_format_allows(void **state)
{
    taken("{}", 0);
    taken("{}    ", 0);
    taken("{\"__metadata__\":{\"a\":\"b\"}}", 0);
    taken("{\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8);
    taken("{\"z\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,0]}}", 0);
    taken("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
          "\"a\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]}}",
          3);
    taken("{\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[1,1]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
          "\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
          3);
}

static void refuses_bad_headers(void **state)
{
    refused(" {}", 0, "start with {");
    refused("{", 0, "cannot be");
    refused("{]", 0, "no valid JSON");
    refused("{} x", 0, "no valid JSON");
    refused("{\"\xff\":1}", 0, "no valid JSON");
    refused("{\"a\":1}", 0, "no object");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "no string");
    refused("{\"__metadata__\":[]}", 0, "no object");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
            "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
            1, "uplicate");
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "no dtype");
    refused("{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "unknown dtype");
    refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "whole number");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "whole number");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1, "no valid JSON");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "more elements");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "more elements");
}

static void refuses_data_that_does_not_fit(void **state)
{
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "no pair");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "no pair");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "run from 1 to 0");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, "run from -1");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "make 8");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, "1 bytes of data");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3, "3 bytes of data");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "begins at 1");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
            3, "begins at 1");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
            5, "begins at 3");
}

static void refuses_bad_lengths(void **state)
{
    struct tn_safetensors *file;
    static const uint64_t lengths[] = { 0, 1, 3, 100, 100000001, UINT64_MAX, UINT64_MAX - 7 };
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
        write_raw(lengths[n], "{}", 2, 0);
        assert_int_equal(tn_safetensors_open(&file, path, error, sizeof error), TN_INVALID);
        assert_non_null(strstr(error, "cannot be"));
    }
    assert_int_equal(truncate(path, 7), 0);
    assert_int_equal(tn_safetensors_open(&file, path, error, sizeof error), TN_INVALID);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(tn_safetensors_open(&file, path, error, sizeof error), TN_INVALID);
    assert_int_equal(tn_safetensors_open(&file, "/nowhere/x", error, sizeof error), TN_NOT_FOUND);
    assert_int_equal(tn_safetensors_open(&file, "/tmp", error, sizeof error), TN_INVALID);
}

static void survives_a_file_cut_short(void **state)
{
    const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[9000],\"data_offsets\":[0,9000]}}";
    struct tn_safetensors *file;
    static unsigned char data[9000];
    write_raw(strlen(header), header, strlen(header), 9000);
    assert_int_equal(tn_safetensors_open(&file, path, error, sizeof error), TN_OK);
    assert_int_equal(truncate(path, 200), 0);
    assert_int_equal(tn_safetensors_read(file, tn_safetensors_at(file, 0), 0, 9000, data, error, sizeof error), TN_IO);
    assert_non_null(strstr(error, "ends at byte 200"));
    tn_safetensors_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_what_it_reads),          cmocka_unit_test(lays_out_what_it_writes),
        cmocka_unit_test(refuses_names_it_cannot_store), cmocka_unit_test(takes_what_the_format_allows),
        cmocka_unit_test(refuses_bad_headers),           cmocka_unit_test(refuses_data_that_does_not_fit),
        cmocka_unit_test(refuses_bad_lengths),           cmocka_unit_test(survives_a_file_cut_short),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
