/* tenon data: what pack writes from text is what the text itself gives; what it refuses; what info prints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/bpe.h"
#include "data/data.h"
#include "scratch.h"

int tenon_data_main(int argc, char **argv);

static int setup(void **state)
{
    scratch_open();
    return chdir(scratch_folder);
}

static int teardown(void **state)
{
    scratch_close();
    return chdir("/");
}

static char out[4096], err[8192];

static void keep(const char *name, char *into, size_t room)
{
    char *text = scratch_read(name, NULL);
    snprintf(into, room, "%s", text);
    free(text);
}

/* Runs `tenon data WORDS...` (cut at spaces); its output is in `out` and `err`. */
static int data(const char *words)
{
    char text[512], *argv[32] = { "data" }, *save = NULL;
    int argc = 1;
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    int saved_out = scratch_capture(STDOUT_FILENO, ".out"), saved_err = scratch_capture(STDERR_FILENO, ".err");
    int result = tenon_data_main(argc, argv);
    scratch_restore(STDERR_FILENO, saved_err);
    scratch_restore(STDOUT_FILENO, saved_out);
    keep(".out", out, sizeof out);
    keep(".err", err, sizeof err);
    return result;
}

#define HAS(text, part)                                 \
    do {                                                \
        if (!strstr(text, part))                        \
            fail_msg("'%s' is not in: %s", part, text); \
    } while (0)

static void write_texts(void)
{
    mkdir("t", 0700);
    mkdir("t/deep", 0700);
    scratch_text("t/b.txt", "second file\n");
    scratch_text("t/a.txt", "first file\n");
    scratch_text("t/empty.txt", "");
    scratch_text("t/deep/c.txt", "a third \xFF one\n");
    scratch_text("t/not.c", "int main;");
}

/* All rows of one epoch, in order. */
static int32_t *read_all(int source, const char *path, int64_t *count)
{
    struct tn_settings settings = { .source = source, .path = path, .sequence = 1, .batch = 1 };
    struct tn_manifest m = { .folder = scratch_folder };
    struct tn_diag diag;
    struct tn_data *corpus;
    tn_diag_init(&diag);
    tn_data_open(&corpus, &settings, &m, 256, &diag);
    tn_diag_print(&diag, stderr);
    assert_non_null(corpus);
    *count = tn_data_tokens(corpus, TN_SPLIT_TRAIN) - 1;
    int32_t *tokens = calloc((size_t)*count, sizeof *tokens), label;
    for (int64_t step = 0; step < *count; step++)
        assert_int_equal(tn_data_rows(corpus, TN_SPLIT_TRAIN, step, 0, 1, tokens + step, &label), 0);
    tn_data_close(corpus);
    tn_diag_finish(&diag);
    return tokens;
}

static void test_bytes(void **state)
{
    write_texts();
    assert_int_equal(data("pack t/**.txt -o x"), 0);
    assert_string_equal(out, "x.bin, x.idx: 3 documents, 37 tokens of type u8\n");
    assert_string_equal(err, "");
    int64_t packed_count, text_count;
    int32_t *packed = read_all(TN_DATA_TOKENS, "x", &packed_count);
    int32_t *text = read_all(TN_DATA_TEXT, "t/**.txt", &text_count);
    assert_int_equal(packed_count, text_count);
    assert_memory_equal(packed, text, (size_t)text_count * sizeof *text);
    free(packed);
    free(text);
    assert_int_equal(data("info x"), 0);
    assert_string_equal(out, "tokens      37\ntype        u8\nlargest id  255\ndocuments   3\n"
                             "sequences   3, of 11 to 14 tokens\nbytes       37\n");
}

static void test_options(void **state)
{
    write_texts();
    assert_int_equal(data("pack t/b.txt t/a.txt t/a.txt --output x --dtype i32 --documents one --end-token 300"), 0);
    assert_string_equal(out, "x.bin, x.idx: 1 document, 24 tokens of type i32\n");
    assert_int_equal(data("info x"), 0);
    HAS(out, "largest id  300\ndocuments   1\n");
    assert_int_equal(data("pack t/b.txt -o x --end-token 300"), 0); /* over the old files */
    HAS(out, "1 document, 13 tokens of type u16");
    scratch_text("[a]*.txt", "odd name");
    assert_int_equal(data("pack -o y -- [a]*.txt"), 0);
    HAS(out, "8 tokens");
}

static void test_refusals(void **state)
{
    write_texts();
    assert_int_equal(data("pack t/none* -o x"), 1);
    HAS(err, "no file matches 't/none*'");
    assert_int_equal(data("pack t -o x"), 1);
    HAS(err, "t is not a regular file");
    assert_int_equal(data("pack t/empty.txt -o x"), 1);
    HAS(err, "the input has no text");
    assert_int_equal(data("pack t/a.txt -o no/such/x"), 1);
    HAS(err, "No such file");
    assert_int_equal(data("pack t/a.txt -o x --end-token 256 --dtype u8"), 1);
    HAS(err, "ids up to 256 do not fit in u8");
    assert_int_equal(data("pack t/a.txt -o x --bpe none.json none.bpe"), 1);
    HAS(err, "none.json");
    assert_int_equal(access("x.bin", F_OK), -1);
    assert_int_equal(data("pack t/a.txt -o t/x"), 0);
    assert_int_equal(data("pack t/* -o t/x"), 1);
    HAS(err, "t/x.bin is both input and output");
    assert_int_equal(data("info none"), 1);
    HAS(err, "none.idx: No such file");
    scratch_text("t/x.idx", "MMIDIDX");
    assert_int_equal(data("info t/x"), 1);
    HAS(err, "less than its header");
}

static void test_usage(void **state)
{
    static const char *const wrong[] = {
        "",
        "pock",
        "pack",
        "pack a",
        "pack -o x",
        "pack a -o",
        "pack a -o x --dtype f32",
        "pack a -o x --documents two",
        "pack a -o x --end-token -1",
        "pack a -o x --end-token 1x",
        "pack a -o x --bpe v",
        "pack a -o x --what 1",
        "info",
        "info a b",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(data(wrong[i]), 2);
        HAS(err, "usage: tenon data pack");
        assert_string_equal(out, "");
    }
    assert_int_equal(data("--help"), 0);
    HAS(out, "usage: tenon data pack");
    assert_int_equal(data("pack --help"), 0);
    HAS(out, "usage: tenon data pack");
    assert_string_equal(err, "");
}

/* A text longer than one piece of reading: as if encoded at once. Needs GPT-2's files. */
static void test_bpe(void **state)
{
    const char *folder = getenv("TENON_SHARED_DATA");
    char vocabulary[300], merges[300], words[700], error[256];
    snprintf(vocabulary, sizeof vocabulary, "%s/gpt2-bpe/encoder.json", folder ? folder : "");
    snprintf(merges, sizeof merges, "%s/gpt2-bpe/vocab.bpe", folder ? folder : "");
    if (access(vocabulary, R_OK) != 0) {
        print_message("skipped: no GPT-2 vocabulary at %s\n", vocabulary);
        skip();
    }
    static const char *const pieces[] = {
        "the cat ", "\n\n", "  ", "didn't", " \xE3\x80\x80\n", "1234", "\xFF", "-- "
    };
    size_t room = 3 << 20, length = 0;
    char *text = malloc(room + 16);
    for (uint32_t seed = 7; length < room;) {
        seed = seed * 1664525 + 1013904223;
        const char *piece = pieces[seed >> 29];
        memcpy(text + length, piece, strlen(piece));
        length += strlen(piece);
    }
    scratch_write("long.txt", text, length);
    snprintf(words, sizeof words, "pack long.txt -o x --dtype i32 --bpe %s %s", vocabulary, merges);
    assert_int_equal(data(words), 0);
    struct tn_bpe *bpe;
    struct tn_ids ids = { 0 };
    size_t count;
    assert_int_equal(tn_bpe_open(&bpe, vocabulary, merges, error), 0);
    assert_int_equal(tn_bpe_encode(bpe, text, length, &ids), 0);
    char *packed = scratch_read("x.bin", &count);
    assert_int_equal(count, ids.count * 4);
    assert_memory_equal(packed, ids.ids, count);
    free(packed);
    free(ids.ids);
    free(text);
    tn_bpe_close(bpe);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_bytes), T(test_options), T(test_refusals), T(test_usage), T(test_bpe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
