/* BPE: words, merges, refused files; GPT-2's own vocabulary where it is at hand (TENON_SHARED_DATA). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "data/bpe.h"
#include "scratch.h"
#include "data/unicode.h"

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

/* The character that stands for a byte in a vocabulary file. */
static const char *shown(int byte)
{
    static char text[4];
    int hidden = 0;
    for (int i = 0; i <= byte; i++) {
        int itself = (i >= '!' && i <= '~') || (i >= 0xA1 && i != 0xAD);
        if (i == byte)
            text[tn_utf8_write(itself ? (uint32_t)i : (uint32_t)(256 + hidden), text)] = 0;
        hidden += !itself;
    }
    return text;
}

/* All bytes have their own number as id; `more` are further entries from 256 on. */
static void write_vocabulary(const char *more)
{
    FILE *file = fopen(scratch_path("v.json"), "w");
    fputs("{", file);
    for (int byte = 0; byte < 256; byte++)
        fprintf(file, "%s\"%s%s\": %d", byte ? ", " : "", byte == '"' || byte == '\\' ? "\\" : "", shown(byte), byte);
    fprintf(file, "%s}", more);
    fclose(file);
}

static struct tn_bpe *open_small(void)
{
    struct tn_bpe *bpe;
    char error[256] = "";
    write_vocabulary(", \"aa\": 256, \"aaaa\": 257, \"ab\": 258, \"\xC4\xA0"
                     "a\": 259, \"<end>\": 300");
    scratch_text("m", "#version: 0.2\na b\na a\n\naa aa\n\xC4\xA0 a\n");
    if (tn_bpe_open(&bpe, scratch_path("v.json"), scratch_path("m"), error) != 0)
        fail_msg("%s", error);
    return bpe;
}

static void check_ids(struct tn_bpe *bpe, const char *text, size_t bytes, const int32_t *expected, size_t count)
{
    struct tn_ids ids = { 0 };
    assert_int_equal(tn_bpe_encode(bpe, text, bytes, &ids), 0);
    assert_int_equal(ids.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ids.ids[i], expected[i]);
    free(ids.ids);
}

#define CHECK(bpe, text, ...)                                               \
    check_ids(bpe, text, sizeof text - 1, (const int32_t[]){ __VA_ARGS__ }, \
              sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

static void test_merges(void **state)
{
    struct tn_bpe *bpe = open_small();
    size_t bytes;
    CHECK(bpe, "aaaa", 257);
    CHECK(bpe, "aaaaaaa", 257, 256, 'a');
    CHECK(bpe, "aaab", 256, 258); /* "a b" comes first */
    CHECK(bpe, "a a  a", 'a', 259, ' ', 259);
    CHECK(bpe, "a1a", 'a', '1', 'a'); /* never across words */
    CHECK(bpe, "\xFF\x80\0", 0xFF, 0x80, 0);
    check_ids(bpe, "", 0, NULL, 0);
    assert_int_equal(tn_bpe_vocab(bpe), 301);
    assert_memory_equal(tn_bpe_token(bpe, 259, &bytes), " a", 2);
    assert_int_equal(bytes, 2);
    assert_null(tn_bpe_token(bpe, 299, &bytes));
    assert_null(tn_bpe_token(bpe, 301, &bytes));
    assert_null(tn_bpe_token(bpe, -1, &bytes));
    tn_bpe_close(bpe);
    tn_bpe_close(NULL);
}

static void refuse(const char *expected)
{
    struct tn_bpe *bpe;
    char error[256] = "";
    assert_int_equal(tn_bpe_open(&bpe, scratch_path("v.json"), scratch_path("m"), error), -1);
    assert_null(bpe);
    if (!strstr(error, expected))
        fail_msg("'%s' is not in: %s", expected, error);
}

static void test_refused_files(void **state)
{
    refuse("v.json");
    scratch_text("v.json", "[1]");
    refuse("not a JSON object");
    scratch_text("v.json", "{\"a\": 1,\n}");
    refuse("v.json:2:");
    scratch_text("v.json", "{\"a\": -1}");
    refuse("'a' has no id");
    scratch_text("v.json", "{\"a\": 1, \"b\": 1}");
    refuse("two tokens have the id 1");
    scratch_text("v.json", "{\"a\": 1}");
    refuse("has no token for byte 0");
    write_vocabulary("");
    refuse("cannot open");
    assert_int_equal(mkfifo(scratch_path("m"), 0600), 0);
    refuse("is a pipe or device, not a file");
    unlink(scratch_path("m"));
    scratch_text("m", "#version: 0.2\nab\n");
    refuse("m:2: expected two tokens");
    scratch_text("m", "a b c\n");
    refuse("m:1: expected two tokens");
    scratch_text("m", "\na b\n");
    refuse("m:2: the joined token");
    scratch_text("m", "zz b\n");
    refuse("m:1: the first token");
}

/* Encoding up to a cut and then the rest is the same as encoding all at once. */
static void test_cut(void **state)
{
    assert_int_equal(tn_bpe_cut("ab cd", 5), 2);
    assert_int_equal(tn_bpe_cut("ab  cd ", 7), 6);
    assert_int_equal(tn_bpe_cut("ab  ", 4), 2);
    assert_int_equal(tn_bpe_cut(" ab", 3), 0);
    assert_int_equal(tn_bpe_cut("abc", 3), 0);
    assert_int_equal(tn_bpe_cut("", 0), 0);
    assert_int_equal(tn_bpe_cut("\xE6\x97\xA5\n", 4), 3);
    assert_int_equal(tn_bpe_cut("\xE3\x80\x80\n", 4), 0); /* an ideographic space before the newline */
    assert_int_equal(tn_bpe_cut("\x80\n", 2), 1);
}

static void test_classes(void **state)
{
    static const struct {
        uint32_t code;
        int kind;
    } known[] = {
        { 'a', TN_CHAR_LETTER },  { '0', TN_CHAR_NUMBER },    { '_', TN_CHAR_OTHER },      { 0x85, TN_CHAR_SPACE },
        { 0xB2, TN_CHAR_NUMBER }, { 0x3B1, TN_CHAR_LETTER },  { 0x2167, TN_CHAR_NUMBER },  { 0x20AC, TN_CHAR_OTHER },
        { 0x301, TN_CHAR_OTHER }, { 0x4E00, TN_CHAR_LETTER }, { 0x10FFFF, TN_CHAR_OTHER }, { 0x1C, TN_CHAR_OTHER },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_int_equal(tn_char_class(known[i].code), known[i].kind);
}

/* A long word costs n log n. */
static void test_long_word(void **state)
{
    enum { N = 1 << 20 };
    struct tn_bpe *bpe = open_small();
    struct tn_ids ids = { 0 };
    char *text = malloc(N);
    memset(text, 'a', N);
    clock_t begin = clock();
    assert_int_equal(tn_bpe_encode(bpe, text, N, &ids), 0);
    assert_int_equal(ids.count, N / 4);
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 20);
    free(ids.ids);
    free(text);
    tn_bpe_close(bpe);
}

/* GPT-2's files, or a skipped test. */
static struct tn_bpe *open_gpt2(void)
{
    const char *folder = getenv("TENON_SHARED_DATA");
    char vocabulary[512], merges[512], error[256];
    struct tn_bpe *bpe = NULL;
    snprintf(vocabulary, sizeof vocabulary, "%s/gpt2-bpe/encoder.json", folder ? folder : "");
    snprintf(merges, sizeof merges, "%s/gpt2-bpe/vocab.bpe", folder ? folder : "");
    if (access(vocabulary, R_OK) != 0 || access(merges, R_OK) != 0) {
        print_message("skipped: no GPT-2 vocabulary at %s\n", vocabulary);
        skip();
    }
    if (tn_bpe_open(&bpe, vocabulary, merges, error) != 0)
        fail_msg("%s", error);
    return bpe;
}

/* Ids made with OpenAI's tiktoken from the same two files. */
static void test_gpt2_ids(void **state)
{
    struct tn_bpe *bpe = open_gpt2();
    assert_int_equal(tn_bpe_vocab(bpe), 50257);
    CHECK(bpe, "Hello world", 15496, 995);
    CHECK(bpe, "The cat's whiskers; they'll don't I'M 'S", 464, 3797, 338, 21060, 364, 26, 484, 1183, 836, 470, 314, 6,
          44, 705, 50);
    CHECK(bpe, " \n\n  x \t y  ", 220, 628, 220, 2124, 220, 197, 331, 220, 220);
    CHECK(bpe,
          "na\xC3\xAFve \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xE2\x85\xA7\xC2\xB2 \xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD"
          " \xE0\xA5\xA7\xE0\xA5\xA8\xE0\xA5\xA9 12345",
          2616, 38776, 10545, 245, 98, 17312, 105, 45739, 252, 2343, 227, 100, 31185, 50169, 235, 8582, 237, 121, 220,
          24231, 100, 24231, 101, 24231, 102, 17031, 2231);
    CHECK(bpe,
          "\xC2\xA0"
          "a\xE3\x80\x80"
          "b\xE2\x80\xA8\xC2\x85"
          "c",
          1849, 64, 5099, 222, 65, 447, 101, 126, 227, 66);
    CHECK(bpe, "aaaaaaaaaaaaaaaaaaaaaaaaaaa ====----", 24794, 24794, 24794, 24794, 24794, 24794, 46071, 796, 18604,
          650);
    tn_bpe_close(bpe);
}

static void check_round_trip(struct tn_bpe *bpe, const char *text, size_t bytes, size_t expected_ids)
{
    struct tn_ids ids = { 0 };
    size_t at = 0;
    assert_int_equal(tn_bpe_encode(bpe, text, bytes, &ids), 0);
    for (size_t i = 0; i < ids.count; i++) {
        size_t length;
        const char *token = tn_bpe_token(bpe, ids.ids[i], &length);
        assert_non_null(token);
        assert_true(length <= bytes - at);
        assert_memory_equal(token, text + at, length);
        at += length;
    }
    assert_int_equal(at, bytes);
    if (expected_ids)
        assert_int_equal(ids.count, expected_ids);
    free(ids.ids);
}

static void test_gpt2_round_trip(void **state)
{
    struct tn_bpe *bpe = open_gpt2();
    char path[512], noise[20000];
    static char text[1 << 21];
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof noise; i++) {
        seed = seed * 1664525 + 1013904223;
        noise[i] = (char)(seed >> 24);
    }
    check_round_trip(bpe, noise, sizeof noise, 0);
    snprintf(path, sizeof path, "%s/tinyshakespeare.txt", getenv("TENON_SHARED_DATA"));
    FILE *file = fopen(path, "rb");
    if (file) {
        size_t bytes = fread(text, 1, sizeof text, file);
        fclose(file);
        check_round_trip(bpe, text, bytes, 338025); /* the number that other tokenisers report as well */
    }
    tn_bpe_close(bpe);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_merges),   T(test_refused_files),   T(test_cut), T(test_classes), T(test_long_word),
        T(test_gpt2_ids), T(test_gpt2_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
