/* Idx: what is written is read back, every wrong number is refused by its place, and no mutation of an index makes
 * the reader leave its files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "data/idx.h"
#include "scratch.h"

static int setup(void **state)
{
    scratch_open();
    return 0;
}

static int teardown(void **state)
{
    scratch_close();
    return 0;
}

/* Three documents: 1 2 3 | 4 5 | 6 7 8 9. */
static void write_small(const char *name, const char *dtype)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    struct tn_idx_writer *writer;
    char error[256];
    assert_int_equal(tn_idx_create(&writer, scratch_path(name), tn_idx_dtype(dtype, 0), error), 0);
    assert_int_equal(tn_idx_add(writer, ids, 2, error), 0);
    assert_int_equal(tn_idx_add(writer, ids + 2, 1, error), 0);
    assert_int_equal(tn_idx_end_document(writer, error), 0);
    assert_int_equal(tn_idx_end_document(writer, error), 0); /* an empty one is left out */
    assert_int_equal(tn_idx_add(writer, ids + 3, 2, error), 0);
    assert_int_equal(tn_idx_end_document(writer, error), 0);
    assert_int_equal(tn_idx_add(writer, ids + 5, 4, error), 0);
    assert_int_equal(tn_idx_publish(writer, error), 0);
}

static void test_round_trip(void **state)
{
    static const char *const dtypes[] = { "u8", "u16", "i32", "i64" };
    for (size_t d = 0; d < 4; d++) {
        struct tn_idx idx;
        struct tn_diag diag;
        int32_t tokens[9];
        write_small("x", dtypes[d]);
        tn_diag_init(&diag);
        assert_int_equal(tn_idx_open(&idx, scratch_path("x"), &diag, (struct tn_where){ 0 }), 0);
        assert_string_equal(idx.dtype->name, dtypes[d]);
        assert_int_equal(idx.tokens, 9);
        assert_int_equal(idx.sequences, 3);
        assert_int_equal(idx.documents, 3);
        assert_int_equal(idx.shortest, 2);
        assert_int_equal(idx.longest, 4);
        assert_int_equal(idx.n_runs, 1);
        for (int64_t first = 0; first < 9; first++) {
            assert_int_equal(tn_idx_read(&idx, first, 9 - first, 100, tokens), 0);
            for (int64_t i = 0; i < 9 - first; i++)
                assert_int_equal(tokens[i], first + i + 1);
        }
        tn_idx_close(&idx);
        tn_diag_finish(&diag);
    }
    assert_int_equal(access(scratch_path("x.bin"), F_OK), 0);
}

/* The bytes of the index, as the format says them. */
static void test_layout(void **state)
{
    size_t count;
    write_small("x", "u16");
    uint8_t *bytes = (uint8_t *)scratch_read("x.idx", &count);
    static const uint8_t expected[] = {
        'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0,  0, 0, 0, 0, 0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0,
        4,   0,   0,   0,   0,   0,   0,   0, 3, 0, 0,  0, 2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0,   0,   6,   0,   0,   0,   0,   0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        1,   0,   0,   0,   0,   0,   0,   0, 2, 0, 0,  0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
    };
    assert_int_equal(count, sizeof expected);
    assert_memory_equal(bytes, expected, sizeof expected);
    free(bytes);
}

/* Changes `size` bytes at `at` of x.idx to `value`, expects the message, and puts them back. */
static void refuse(size_t at, int64_t value, size_t size, const char *expected)
{
    size_t count;
    char *bytes = scratch_read("x.idx", &count);
    char saved[8];
    memcpy(saved, bytes + at, size);
    memcpy(bytes + at, &value, size);
    scratch_write("x.idx", bytes, count);
    struct tn_idx idx;
    struct tn_diag diag;
    tn_diag_init(&diag);
    assert_int_equal(tn_idx_open(&idx, scratch_path("x"), &diag, (struct tn_where){ 0 }), -1);
    assert_int_equal(diag.count, 1);
    const char *text = tn_diag_text(&diag, &diag.problems[0]);
    if (!strstr(text, expected))
        fail_msg("'%s' is not in: %s", expected, text);
    tn_diag_finish(&diag);
    memcpy(bytes + at, saved, size);
    scratch_write("x.idx", bytes, count);
    free(bytes);
}

static void test_wrong_numbers(void **state)
{
    write_small("x", "u16");
    refuse(0, 'N', 1, "byte 0: does not begin with MMIDIDX");
    refuse(9, 2, 8, "byte 9: version is 2, expected 1");
    refuse(17, 6, 1, "byte 17: dtype code is 6, expected 1 (u8), 4 (i32), 5 (i64) or 8 (u16)");
    refuse(18, -1, 8, "byte 18: 18446744073709551615 sequences do not fit");
    refuse(18, INT64_MAX, 8, "byte 18: 9223372036854775807 sequences do not fit");
    refuse(18, 2, 8, "byte 26: 2 sequences and 4 document entries");
    refuse(26, 5, 8, "byte 26: 3 sequences and 5 document entries");
    refuse(26, -1, 8, "byte 26:");
    refuse(26, INT64_MAX / 8 + 5, 8, "byte 26:");
    refuse(34, -3, 4, "byte 34: sequence 0 has length -3");
    refuse(38, INT32_MAX, 4, "byte 54: sequence 1 lies at bytes [6, +4294967294)");
    refuse(38, 1, 4, "x.bin has 18 bytes, but the lengths");
    refuse(62, -2, 8, "byte 62: sequence 2 lies at bytes [-2, +8)");
    refuse(62, INT64_MAX, 8, "byte 62: sequence 2 lies at bytes");
    refuse(62, 11, 8, "byte 62: sequence 2 lies at bytes [11, +8)");
    refuse(70, 1, 8, "byte 70: document entry 0 is 1, expected 0");
    refuse(86, 0, 8, "byte 86: document entry 2 is 0, expected at least 1");
    refuse(86, 4, 8, "byte 86: document entry 2 is 4");
    refuse(94, 2, 8, "byte 94: document entry 3 is 2, expected 3");
}

static void check_open(const char *name, const char *expected)
{
    struct tn_idx idx;
    struct tn_diag diag;
    tn_diag_init(&diag);
    assert_int_equal(tn_idx_open(&idx, scratch_path(name), &diag, (struct tn_where){ 0 }), -1);
    const char *text = tn_diag_text(&diag, &diag.problems[0]);
    if (!strstr(text, expected))
        fail_msg("'%s' is not in: %s", expected, text);
    tn_diag_finish(&diag);
}

static void test_wrong_files(void **state)
{
    check_open("x", "x.idx: No such file");
    write_small("x", "u8");
    size_t count;
    char *bytes = scratch_read("x.idx", &count);
    for (size_t cut = 0; cut < count; cut++) {
        scratch_write("x.idx", bytes, cut);
        check_open("x", cut < 34 ? "less than its header of 34" : "byte ");
    }
    scratch_write("x.idx", bytes, count);
    free(bytes);
    scratch_text("x.bin", "12345678");
    check_open("x", "which has 8 bytes");
    scratch_text("x.bin", "1234567890");
    check_open("x", "has 10 bytes, but the lengths");
    unlink(scratch_path("x.bin"));
    check_open("x", "x.bin: No such file");
    mkdir(scratch_path("x.bin"), 0700);
    check_open("x", "x.bin is not a regular file");
}

/* Sequences in another order than they lie in: still read in the order of the index. */
static void test_runs(void **state)
{
    size_t count;
    write_small("x", "u16");
    char *bytes = scratch_read("x.idx", &count);
    static const int32_t lengths[] = { 4, 3, 2 };
    static const int64_t pointers[] = { 10, 0, 6 };
    memcpy(bytes + 34, lengths, sizeof lengths);
    memcpy(bytes + 46, pointers, sizeof pointers);
    scratch_write("x.idx", bytes, count);
    free(bytes);
    struct tn_idx idx;
    struct tn_diag diag;
    int32_t tokens[9];
    static const int32_t expected[] = { 6, 7, 8, 9, 1, 2, 3, 4, 5 };
    tn_diag_init(&diag);
    assert_int_equal(tn_idx_open(&idx, scratch_path("x"), &diag, (struct tn_where){ 0 }), 0);
    assert_int_equal(idx.n_runs, 2);
    for (int64_t first = 0; first < 9; first++)
        for (int64_t last = first; last < 9; last++) {
            assert_int_equal(tn_idx_read(&idx, first, last - first + 1, 10, tokens), 0);
            assert_memory_equal(tokens, expected + first, (size_t)(last - first + 1) * sizeof *tokens);
        }
    tn_idx_close(&idx);
    tn_diag_finish(&diag);
}

static void test_vocabulary(void **state)
{
    write_small("x", "i32");
    struct tn_idx idx;
    struct tn_diag diag;
    int32_t tokens[9], token = -7;
    tn_diag_init(&diag);
    assert_int_equal(tn_idx_open(&idx, scratch_path("x"), &diag, (struct tn_where){ 0 }), 0);
    int saved = scratch_capture(STDERR_FILENO, "log");
    int beyond = tn_idx_read(&idx, 2, 5, 7, tokens);
    FILE *file = fopen(scratch_path("x.bin"), "r+b");
    fseek(file, 4, SEEK_SET);
    fwrite(&token, 4, 1, file);
    fclose(file);
    int negative = tn_idx_read(&idx, 0, 2, 7, tokens);
    if (truncate(scratch_path("x.bin"), 8) != 0)
        abort();
    int shorter = tn_idx_read(&idx, 2, 2, 7, tokens);
    scratch_restore(STDERR_FILENO, saved);
    char *log = scratch_read("log", NULL);
    assert_int_equal(beyond, -1);
    assert_int_equal(negative, -1);
    assert_int_equal(shorter, -1);
    assert_non_null(strstr(log, "token 6 (byte 24) is 7; the model's vocabulary ends at 6"));
    assert_non_null(strstr(log, "token 1 (byte 4) is -7"));
    assert_non_null(strstr(log, "at byte 8: it has become shorter"));
    free(log);
    tn_idx_close(&idx);
    tn_diag_finish(&diag);
}

static void test_write_errors(void **state)
{
    struct tn_idx_writer *writer;
    char error[256];
    int32_t big = 300;
    assert_int_equal(tn_idx_create(&writer, scratch_path("no/x"), tn_idx_dtype("u8", 0), error), -1);
    assert_null(writer);
    assert_non_null(strstr(error, "No such file"));
    assert_int_equal(tn_idx_create(&writer, scratch_path("x"), tn_idx_dtype("u8", 0), error), 0);
    assert_int_equal(tn_idx_add(writer, &big, 1, error), -1);
    assert_non_null(strstr(error, "token 300 does not fit in u8"));
    tn_idx_discard(writer);
    tn_idx_discard(NULL);
    assert_int_equal(rmdir(scratch_folder), 0); /* nothing is left */
    mkdir(scratch_folder, 0700);
    assert_null(tn_idx_dtype("f32", 0));
}

/* Random changes of a good index: refused with a message, or read without harm (the sanitizers watch). */
static void test_mutations(void **state)
{
    size_t count;
    uint64_t seed = 12345;
    int accepted = 0, refused = 0, wrong = 0;
    write_small("x", "u16");
    char *good = scratch_read("x.idx", &count), *bytes = malloc(count);
    clock_t begin = clock();
    int log = scratch_capture(STDERR_FILENO, "log");
    for (int round = 0; round < 4000 && clock() - begin < 2 * CLOCKS_PER_SEC; round++) {
        memcpy(bytes, good, count);
        for (int change = 0; change <= round % 3; change++) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            size_t at = (seed >> 33) % count;
            bytes[at] = seed >> 20 & 1 ? (char)(seed >> 24) : (char)(bytes[at] + (seed >> 21 & 1 ? 1 : -1));
        }
        scratch_write("x.idx", bytes, count);
        struct tn_idx idx;
        struct tn_diag diag;
        tn_diag_init(&diag);
        if (tn_idx_open(&idx, scratch_path("x"), &diag, (struct tn_where){ 0 }) == 0) {
            int32_t tokens[32];
            int64_t size = idx.tokens;
            accepted++;
            if (size > 0 && size <= 32 && tn_idx_read(&idx, 0, size, INT32_MAX, tokens) != 0)
                size = -1;
            wrong += size < 0 || size > 32;
            tn_idx_close(&idx);
        } else {
            refused++;
            wrong += diag.count != 1;
        }
        tn_diag_finish(&diag);
    }
    scratch_restore(STDERR_FILENO, log);
    print_message("%d changed indexes refused, %d read\n", refused, accepted);
    assert_int_equal(wrong, 0);
    assert_true(refused > 10 * accepted);
    free(bytes);
    free(good);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_round_trip), T(test_layout),     T(test_wrong_numbers), T(test_wrong_files),
        T(test_runs),       T(test_vocabulary), T(test_write_errors),  T(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
