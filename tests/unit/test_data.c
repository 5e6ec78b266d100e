/* Data: globs, text, splits, the order of the samples, prefetch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

#include "data/data.h"
#include "data/find.h"
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

static struct tn_settings text_settings(const char *path)
{
    return (struct tn_settings){ .seed = 7,
                                 .source = TN_DATA_TEXT,
                                 .path = path,
                                 .sequence = 4,
                                 .batch = 2,
                                 .micro_batches = 1,
                                 .validation = 0,
                                 .shuffle = 0 };
}

/* Opens; fails the test with the problems if there are any. */
static struct tn_data *open_data(const struct tn_settings *settings, int64_t vocab)
{
    struct tn_manifest m = { .folder = scratch_folder, .path = "job.ini" };
    struct tn_diag diag;
    struct tn_data *data;
    tn_diag_init(&diag);
    tn_data_open(&data, settings, &m, vocab, &diag);
    tn_diag_print(&diag, stderr);
    assert_int_equal(diag.count, 0);
    assert_non_null(data);
    tn_diag_finish(&diag);
    return data;
}

/* Opening must give exactly one problem, with `expected` in its text. */
static void refuse(const struct tn_settings *settings, int64_t vocab, const char *expected)
{
    struct tn_manifest m = { .folder = scratch_folder, .path = "job.ini" };
    struct tn_diag diag;
    struct tn_data *data = (struct tn_data *)&m;
    tn_diag_init(&diag);
    tn_data_open(&data, settings, &m, vocab, &diag);
    assert_null(data);
    assert_int_equal(diag.count, 1);
    const char *text = tn_diag_text(&diag, &diag.problems[0]);
    if (!strstr(text, expected))
        fail_msg("'%s' is not in: %s", expected, text);
    tn_diag_finish(&diag);
}

/* A token file of the ids 0, 1, 2, ..., so that a row's first token says which sample it is. */
static void write_count(const char *name, int32_t count)
{
    struct tn_idx_writer *writer;
    char error[256];
    assert_int_equal(tn_idx_create(&writer, scratch_path(name), tn_idx_dtype("i32", 0), error), 0);
    for (int32_t i = 0; i < count; i++)
        assert_int_equal(tn_idx_add(writer, &i, 1, error), 0);
    assert_int_equal(tn_idx_publish(writer, error), 0);
}

static void check_found(const char *patterns, const char *expected)
{
    struct tn_arena arena;
    struct tn_diag diag;
    tn_arena_init(&arena);
    tn_diag_init(&diag);
    struct tn_files files = { .arena = &arena };
    tn_files_find_list(&files, patterns, scratch_folder, &diag, (struct tn_where){ 0 });
    tn_files_sort(&files);
    char found[1024] = "";
    for (size_t i = 0; i < files.count; i++) {
        strcat(found, files.items[i].path + strlen(scratch_folder) + 1);
        strcat(found, i + 1 < files.count ? " " : "");
    }
    assert_string_equal(found, expected);
    tn_diag_finish(&diag);
    tn_arena_finish(&arena);
}

static void test_find(void **state)
{
    static const char *const folders[] = { "a", "a/b", "a/b/c", ".hidden", "Z" };
    static const char *const names[] = { "a/1.h",       "a/2.c", "a/b/1.h", "a/b/c/x,y.h",
                                         ".hidden/1.h", "Z/1.h", "0.h",     "a/.dot.h" };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        mkdir(scratch_path(folders[i]), 0700);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        scratch_text(names[i], "x");
    assert_int_equal(symlink("..", scratch_path("a/up")), 0);
    assert_int_equal(symlink("nowhere", scratch_path("a/dangling.h")), 0);
    assert_int_equal(symlink("2.c", scratch_path("a/link.h")), 0);

    check_found("**.h", "0.h Z/1.h a/1.h a/b/1.h a/b/c/x,y.h a/link.h");
    check_found("**/1.h", "Z/1.h a/1.h a/b/1.h");
    check_found("a/**/c/**", "a/b/c/x,y.h");
    check_found("*/*.h", "Z/1.h a/1.h a/link.h");
    check_found("a//2.c", "a/2.c");
    check_found("a/.*.h", "a/.dot.h");
    check_found(" a/2.c , a/[12].?,", "a/1.h a/2.c");
    check_found("a/b/c/x\\,y.h", "a/b/c/x,y.h");
    check_found("no/such/**", "");
    check_found("**", "0.h Z/1.h a/1.h a/2.c a/b/1.h a/b/c/x,y.h a/link.h");
}

static void test_find_absolute(void **state)
{
    char pattern[256];
    mkdir(scratch_path("d"), 0700);
    scratch_text("d/one.txt", "1");
    snprintf(pattern, sizeof pattern, "%s/**.txt", scratch_folder);
    check_found(pattern, "d/one.txt");
}

/* What may not be read is a problem, not left out. Root may read everything, so another user looks. */
static void test_find_unreadable(void **state)
{
    struct tn_arena arena;
    struct tn_diag diag;
    tn_arena_init(&arena);
    tn_diag_init(&diag);
    struct tn_files files = { .arena = &arena };
    scratch_text("a.txt", "1");
    scratch_text("b.txt", "1");
    mkdir(scratch_path("c"), 0700);
    chmod(scratch_folder, 0755);
    chmod(scratch_path("b.txt"), 0);
    chmod(scratch_path("c"), 0);
    int root = geteuid() == 0;
    if (root && seteuid(65534) != 0)
        skip();
    tn_files_find(&files, "**.txt", scratch_folder, &diag, (struct tn_where){ 0 });
    if (root && seteuid(0) != 0)
        abort();
    chmod(scratch_path("c"), 0700);
    assert_int_equal(files.count, 1);
    assert_int_equal(diag.count, 2);
    for (size_t i = 0; i < 2; i++)
        assert_non_null(strstr(diag.problems[i].what, "Permission denied"));
    tn_diag_finish(&diag);
    tn_arena_finish(&arena);
}

static void test_text_rows(void **state)
{
    scratch_text("b.txt", "fghij");
    scratch_text("a.txt", "abcde");
    scratch_text("aa.txt", "");
    scratch_write("c.txt", "\xff\0\nklmn", 7);
    struct tn_settings settings = text_settings("*.txt"); /* 17 tokens, 4 samples */
    struct tn_data *data = open_data(&settings, 256);
    int32_t tokens[16], labels[16];
    static const uint8_t all[] = "abcdefghij\xff\0\nklmn";
    assert_int_equal(tn_data_tokens(data, TN_SPLIT_TRAIN), 17);
    assert_int_equal(tn_data_tokens(data, TN_SPLIT_VALIDATION), 0);
    assert_int_equal(tn_data_rows(data, TN_SPLIT_TRAIN, 0, 0, 4, tokens, labels), 0);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(tokens[i], all[i]);
        assert_int_equal(labels[i], all[i + 1]);
    }
    /* Step 2 begins the second epoch. */
    assert_int_equal(tn_data_rows(data, TN_SPLIT_TRAIN, 2, 1, 1, tokens, labels), 0);
    assert_int_equal(tokens[0], 'e');
    tn_data_close(data);
}

/* Files are documents: "abc", "defgh", "", "ijklmnop" as four rows of four. */
static void test_documents_of_text(void **state)
{
    scratch_text("a.txt", "abc");
    scratch_text("b.txt", "defgh");
    scratch_text("c.txt", "");
    scratch_text("d.txt", "ijklmnopq");
    struct tn_settings settings = text_settings("*.txt");
    settings.separate = 1;
    struct tn_data *data = open_data(&settings, 256);
    int32_t tokens[16], labels[16], starts[16];
    static const int32_t begins[] = { 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    assert_int_equal(tn_data_rows(data, TN_SPLIT_TRAIN, 0, 0, 4, tokens, labels), 0);
    tn_data_starts(data, TN_SPLIT_TRAIN, 0, 0, 4, starts);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(tokens[i], 'a' + i);
        assert_int_equal(labels[i], i == 2 || i == 7 ? -1 : 'a' + i + 1);
        assert_int_equal(starts[i], begins[i]);
    }
    tn_data_close(data);
}

/* Documents of several sequences, empty ones among them: tokens 0 1 2 | 3 | 4 .. 8 in rows of four. */
static void test_documents_of_tokens(void **state)
{
    static const int lengths[] = { 3, 0, 1, 5 };
    struct tn_idx_writer *writer;
    char error[256];
    int32_t token = 0;
    assert_int_equal(tn_idx_create(&writer, scratch_path("d"), tn_idx_dtype("i32", 0), error), 0);
    for (int d = 0; d < 4; d++) {
        for (int i = 0; i < lengths[d]; i++, token++)
            assert_int_equal(tn_idx_add(writer, &token, 1, error), 0);
        assert_int_equal(tn_idx_end_document(writer, error), 0);
    }
    assert_int_equal(tn_idx_publish(writer, error), 0);
    struct tn_settings settings = text_settings("d");
    settings.source = TN_DATA_TOKENS;
    settings.separate = 1;
    struct tn_data *data = open_data(&settings, 256);
    int32_t tokens[8], labels[8], starts[8];
    static const int32_t begins[] = { 0, 0, 0, 3, 0, 0, 0, 0 }, next[] = { 1, 2, -1, -1, 5, 6, 7, 8 };
    assert_int_equal(tn_data_rows(data, TN_SPLIT_TRAIN, 0, 0, 2, tokens, labels), 0);
    tn_data_starts(data, TN_SPLIT_TRAIN, 0, 0, 2, starts);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(tokens[i], i);
        assert_int_equal(labels[i], next[i]);
        assert_int_equal(starts[i], begins[i]);
    }
    tn_data_close(data);
}

static void test_ignore(void **state)
{
    scratch_text("a.txt", "a\nb\nc\nd\ne\nf");
    static const char *const ignore[] = { "10", "99" }, *const bad[] = { "256" };
    struct tn_settings settings = text_settings("a.txt");
    settings.ignore = ignore;
    settings.n_ignore = 2;
    struct tn_data *data = open_data(&settings, 256);
    int32_t tokens[4], labels[4];
    assert_int_equal(tn_data_rows(data, TN_SPLIT_TRAIN, 0, 0, 1, tokens, labels), 0);
    static const int32_t expected[] = { -1, 'b', -1, -1 };
    assert_memory_equal(labels, expected, sizeof expected);
    assert_int_equal(tokens[1], '\n');
    tn_data_close(data);
    settings.n_ignore = 1;
    settings.ignore = bad;
    refuse(&settings, 256, "'256' is no token id from 0 to 255");
}

static void test_refusals(void **state)
{
    scratch_text("a.txt", "12345678");
    struct tn_settings settings = text_settings("a.txt");
    refuse(&settings, 256, "leaves 8 tokens to train on, and one batch of 2 sequences needs 2 x 4 + 1");
    settings.path = "none-*.txt";
    refuse(&settings, 256, "[data] path: no file matches 'none-*.txt'");
    settings.path = "";
    refuse(&settings, 256, "is empty");
    settings.path = " , ";
    refuse(&settings, 256, "is empty");
    scratch_text("a.txt", "123456789");
    settings.path = "a.txt";
    refuse(&settings, 255, "vocabulary of 255");
    struct tn_data *data = open_data(&settings, 256);
    tn_data_close(data);
    tn_data_close(NULL);
}

/* A file that shrinks or goes is an error of the read, never a signal. */
static void test_vanishing(void **state)
{
    scratch_text("a.txt", "123456789");
    struct tn_settings settings = text_settings("a.txt");
    struct tn_data *data = open_data(&settings, 256);
    int32_t tokens[8], labels[8];
    int saved = scratch_capture(STDERR_FILENO, "log");
    scratch_text("a.txt", "123456");
    int shrunk = tn_data_rows(data, TN_SPLIT_TRAIN, 0, 0, 2, tokens, labels);
    unlink(scratch_path("a.txt"));
    int gone = tn_data_rows(data, TN_SPLIT_TRAIN, 0, 0, 2, tokens, labels);
    mkfifo(scratch_path("a.txt"), 0600);
    int pipe = tn_data_rows(data, TN_SPLIT_TRAIN, 0, 0, 2, tokens, labels);
    scratch_restore(STDERR_FILENO, saved);
    char *log = scratch_read("log", NULL);
    assert_int_equal(shrunk, -1);
    assert_int_equal(gone, -1);
    assert_int_equal(pipe, -1);
    assert_non_null(strstr(log, "a.txt ends at byte 6; it had 9 bytes"));
    assert_non_null(strstr(log, "cannot open"));
    free(log);
    tn_data_close(data);
}

static void test_validation(void **state)
{
    write_count("v", 100);
    struct tn_settings settings = text_settings("v");
    settings.source = TN_DATA_TOKENS;
    settings.validation = 0.25;
    settings.shuffle = 1;
    struct tn_data *data = open_data(&settings, 100);
    assert_int_equal(tn_data_tokens(data, TN_SPLIT_TRAIN), 75);
    assert_int_equal(tn_data_tokens(data, TN_SPLIT_VALIDATION), 25);
    int32_t tokens[4], labels[4];
    for (int64_t row = 0; row < 20; row++) { /* 6 samples, in order, wrapping */
        assert_int_equal(tn_data_rows(data, TN_SPLIT_VALIDATION, row / 2, row % 2, 1, tokens, labels), 0);
        assert_int_equal(tokens[0], 75 + row % 6 * 4);
        assert_int_equal(labels[3], tokens[0] + 4);
    }
    tn_data_close(data);
    settings.validation = 0.04; /* 4 tokens: no row */
    int saved = scratch_capture(STDERR_FILENO, "log");
    data = open_data(&settings, 100);
    tn_data_warn(data, &settings);
    scratch_restore(STDERR_FILENO, saved);
    char *log = scratch_read("log", NULL);
    assert_non_null(strstr(log, "no validation"));
    free(log);
    assert_int_equal(tn_data_tokens(data, TN_SPLIT_VALIDATION), 0);
    assert_int_equal(tn_data_tokens(data, TN_SPLIT_TRAIN), 100);
    tn_data_close(data);
}

/* Samples of one epoch in order of use, as sample numbers. */
static void epoch_order(int64_t seed, int32_t samples, int64_t epoch, int32_t *order)
{
    struct tn_settings settings = text_settings("p");
    settings.source = TN_DATA_TOKENS;
    settings.shuffle = 1;
    settings.seed = seed;
    settings.sequence = 1;
    settings.batch = 1;
    struct tn_data *data = open_data(&settings, INT32_MAX);
    int32_t label;
    for (int32_t i = 0; i < samples; i++)
        assert_int_equal(tn_data_rows(data, TN_SPLIT_TRAIN, epoch * samples + i, 0, 1, &order[i], &label), 0);
    tn_data_close(data);
}

static void check_permutation(int32_t samples, int64_t epoch)
{
    int32_t *order = calloc((size_t)samples, sizeof *order);
    char *seen = calloc((size_t)samples, 1);
    epoch_order(1, samples, epoch, order);
    for (int32_t i = 0; i < samples; i++) {
        assert_in_range(order[i], 0, samples - 1);
        assert_false(seen[order[i]]);
        seen[order[i]] = 1;
    }
    free(seen);
    free(order);
}

static void test_shuffle_is_a_permutation(void **state)
{
    static const int32_t sizes[] = { 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 257, 1000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        write_count("p", sizes[i] + 1);
        for (int64_t epoch = 0; epoch < 3; epoch++)
            check_permutation(sizes[i], epoch);
    }
}

/* Another seed or epoch is another order; the mean step between neighbours is a third of the range, as in a random
 * order (two per cent is more than three deviations at this size). */
static void test_shuffle_mixes(void **state)
{
    enum { N = 2000 };
    static int32_t first[N], epoch[N], seed[N], again[N];
    write_count("p", N + 1);
    epoch_order(1, N, 0, first);
    epoch_order(1, N, 0, again);
    epoch_order(1, N, 1, epoch);
    epoch_order(2, N, 0, seed);
    assert_memory_equal(first, again, sizeof first);
    int same_epoch = 0, same_seed = 0;
    double distance = 0;
    for (int i = 0; i < N; i++) {
        same_epoch += first[i] == epoch[i];
        same_seed += first[i] == seed[i];
        distance += i ? abs(first[i] - first[i - 1]) : 0;
    }
    assert_in_range(same_epoch, 0, 8);
    assert_in_range(same_seed, 0, 8);
    assert_true(distance / (N - 1) / N > 0.313 && distance / (N - 1) / N < 0.353);
}

/* Any cut of the batch into calls gives the same rows. */
static void test_rows_do_not_depend_on_the_cut(void **state)
{
    write_count("p", 101);
    struct tn_settings settings = text_settings("p");
    settings.source = TN_DATA_TOKENS;
    settings.shuffle = 1;
    settings.batch = 12;
    struct tn_data *data = open_data(&settings, 1000);
    int32_t whole[48], labels[48], part[48], part_labels[48];
    for (int64_t step = 0; step < 7; step++) {
        assert_int_equal(tn_data_rows(data, TN_SPLIT_TRAIN, step, 0, 12, whole, labels), 0);
        for (int64_t ranks = 2; ranks <= 4; ranks++)
            for (int64_t rank = 0, rows = 12 / ranks; rank < ranks; rank++)
                assert_int_equal(tn_data_rows(data, TN_SPLIT_TRAIN, step, rank * rows, rows, part + rank * rows * 4,
                                              part_labels + rank * rows * 4),
                                 0);
        assert_memory_equal(whole, part, sizeof whole);
        assert_memory_equal(labels, part_labels, sizeof labels);
    }
    tn_data_close(data);
}

/* The order is part of what a seed means: it must not change between versions. */
static void test_shuffle_is_pinned(void **state)
{
    int32_t order[10];
    write_count("p", 11);
    epoch_order(42, 10, 0, order);
    static const int32_t expected[10] = { 6, 8, 0, 4, 2, 5, 7, 1, 9, 3 };
    assert_memory_equal(order, expected, sizeof order);
}

static void test_prefetch(void **state)
{
    write_count("p", 1001);
    struct tn_settings settings = text_settings("p");
    settings.source = TN_DATA_TOKENS;
    settings.shuffle = 1;
    struct tn_data *data = open_data(&settings, 2000);
    for (int64_t first = 0; first < 4; first += 3) {
        struct tn_prefetch *prefetch;
        assert_int_equal(tn_prefetch_start(&prefetch, data, first), 0);
        for (int64_t step = first; step < first + 200; step++) {
            const int32_t *tokens, *labels;
            int32_t want[8], want_labels[8];
            assert_int_equal(tn_prefetch_next(prefetch, step, &tokens, &labels), 0);
            assert_int_equal(tn_data_rows(data, TN_SPLIT_TRAIN, step, 0, 2, want, want_labels), 0);
            assert_memory_equal(tokens, want, sizeof want);
            assert_memory_equal(labels, want_labels, sizeof want_labels);
        }
        tn_prefetch_stop(prefetch);
    }
    struct tn_prefetch *unused;
    assert_int_equal(tn_prefetch_start(&unused, data, 5), 0);
    tn_prefetch_stop(unused);
    tn_prefetch_stop(NULL);
    tn_data_close(data);
}

static void test_prefetch_passes_errors_on(void **state)
{
    scratch_text("a.txt", "123456789");
    struct tn_settings settings = text_settings("a.txt");
    struct tn_data *data = open_data(&settings, 256);
    struct tn_prefetch *prefetch;
    const int32_t *tokens, *labels;
    int saved = scratch_capture(STDERR_FILENO, "log");
    unlink(scratch_path("a.txt"));
    assert_int_equal(tn_prefetch_start(&prefetch, data, 0), 0);
    int first = tn_prefetch_next(prefetch, 0, &tokens, &labels);
    int second = tn_prefetch_next(prefetch, 0, &tokens, &labels);
    tn_prefetch_stop(prefetch);
    scratch_restore(STDERR_FILENO, saved);
    assert_int_equal(first, -1);
    assert_int_equal(second, -1);
    assert_null(tokens);
    assert_null(labels);
    tn_data_close(data);
}

static void *read_rows(void *argument)
{
    const struct tn_data *data = argument;
    int32_t tokens[8], labels[8];
    for (int64_t step = 0; step < 300; step++)
        if (tn_data_rows(data, TN_SPLIT_TRAIN, step, 0, 2, tokens, labels) != 0 || labels[0] != tokens[1])
            return argument;
    return NULL;
}

static void test_rows_from_many_threads(void **state)
{
    scratch_text("a.txt", "the quick brown fox jumps over the lazy dog and comes back");
    scratch_text("b.txt", "to see whether the dog has moved in the mean time");
    struct tn_settings settings = text_settings("*.txt");
    struct tn_data *data = open_data(&settings, 256);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_rows, data), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    tn_data_close(data);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_find),
        T(test_find_absolute),
        T(test_find_unreadable),
        T(test_text_rows),
        T(test_ignore),
        T(test_documents_of_text),
        T(test_documents_of_tokens),
        T(test_refusals),
        T(test_vanishing),
        T(test_validation),
        T(test_shuffle_is_a_permutation),
        T(test_shuffle_mixes),
        T(test_rows_do_not_depend_on_the_cut),
        T(test_shuffle_is_pinned),
        T(test_prefetch),
        T(test_prefetch_passes_errors_on),
        T(test_rows_from_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
