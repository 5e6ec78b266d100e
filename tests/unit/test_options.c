/* Options: every type's good and bad texts, ranges, auto, required, tables older and newer than this host's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "config/options.h"

static const char *const colours[] = { "red", "green", "blue", NULL };

#define ROW(type, key, fallback, flags, lo, hi, choices)                                           \
    {                                                                                              \
        sizeof(struct tn_option), TN_OPT_##type, flags, 0, key, fallback, lo, hi, choices, "Help." \
    }

static const struct tn_option table[] = {
    ROW(INT, "int", "3", TN_OPT_AUTO, -5, 10, NULL),
    ROW(INT, "any", "0", 0, 0, 0, NULL),
    ROW(FLOAT, "float", "0.5", 0, 0, 1, NULL),
    ROW(FLOAT, "wide", "1", 0, 0, 0, NULL),
    ROW(BOOL, "bool", "true", 0, 0, 0, NULL),
    ROW(SIZE, "size", "auto", TN_OPT_AUTO, 1024, 1099511627776.0, NULL),
    ROW(DURATION, "duration", "2s", 0, 0, 0, NULL),
    ROW(ENUM, "enum", "green", 0, 0, 0, colours),
    ROW(STRING, "string", NULL, 0, 0, 0, NULL),
    ROW(LIST, "list", "a, b", 0, 0, 0, NULL),
};
enum { ROWS = sizeof table / sizeof *table };

struct state {
    struct tn_diag diag;
    struct tn_manifest m;
    struct tn_options options;
};

/* Reads `rows` with the overrides as the manifest. */
static void read_rows(struct state *s, const struct tn_option *rows, uint32_t count, uint32_t stride,
                      const char *const *sets, size_t n_sets)
{
    tn_diag_init(&s->diag);
    tn_manifest_init(&s->m, "/dev/null", sets, n_sets, &s->diag);
    tn_diag_finish(&s->diag); /* /dev/null is no manifest */
    tn_diag_init(&s->diag);
    s->m.readable = 1;
    tn_options_read(&s->options, &s->m, "s", rows, count, stride, &s->diag);
}

static void finish(struct state *s)
{
    tn_manifest_finish(&s->m);
    tn_diag_finish(&s->diag);
}

static const struct tn_option_value *good(struct state *s, const char *key, const char *text)
{
    char set[256];
    snprintf(set, sizeof set, "s.%s=%s", key, text);
    const char *const sets[] = { set };
    read_rows(s, table, ROWS, sizeof *table, sets, 1);
    if (s->diag.count)
        print_error("%s\n", tn_diag_text(&s->diag, s->diag.problems));
    assert_int_equal(s->diag.count, 0);
    const struct tn_option_value *value = tn_options_get(&s->options, key);
    assert_true(value->given);
    return value;
}

static void is_int(const char *key, const char *text, int64_t expected)
{
    struct state s;
    assert_true(good(&s, key, text)->i == expected);
    finish(&s);
}

static void is_float(const char *key, const char *text, double expected)
{
    struct state s;
    assert_true(good(&s, key, text)->f == expected);
    finish(&s);
}

static void is_bad(const char *key, const char *text, const char *what, const char *fix)
{
    struct state s;
    char set[256], said[512];
    snprintf(set, sizeof set, "s.%s=%s", key, text);
    const char *const sets[] = { set };
    read_rows(&s, table, ROWS, sizeof *table, sets, 1);
    snprintf(said, sizeof said, "--set: [s] %s: %s%s%s%s; %s", key, text, *text ? " " : "", "", what, fix);
    assert_int_equal(s.diag.count, 1);
    assert_string_equal(tn_diag_text(&s.diag, s.diag.problems), said);

    struct state fresh;
    read_rows(&fresh, table, ROWS, sizeof *table, NULL, 0);
    const struct tn_option_value *kept = tn_options_get(&s.options, key);
    assert_true(kept->i == tn_options_get(&fresh.options, key)->i); /* the default stays */
    assert_string_equal(kept->s, tn_options_get(&fresh.options, key)->s);
    finish(&fresh);
    finish(&s);
}

static void defaults(void **state)
{
    struct state s;
    read_rows(&s, table, ROWS, sizeof *table, NULL, 0);
    assert_int_equal(s.diag.count, 0);
    assert_int_equal(s.options.count, ROWS);
    assert_int_equal(tn_options_get(&s.options, "int")->i, 3);
    assert_int_equal(tn_options_get(&s.options, "size")->i, -1);
    assert_true(tn_options_get(&s.options, "duration")->i == 2000000000);
    assert_int_equal(tn_options_get(&s.options, "enum")->i, 1);
    assert_int_equal(tn_options_get(&s.options, "bool")->i, 1);
    assert_string_equal(tn_options_get(&s.options, "string")->s, "");
    assert_int_equal(tn_options_get(&s.options, "list")->list_count, 2);
    assert_string_equal(tn_options_get(&s.options, "list")->list[1], "b");
    assert_false(tn_options_get(&s.options, "list")->given);
    assert_null(tn_options_find(&s.options, "absent"));
    finish(&s);
}

static void ints(void **state)
{
    const char *fix = "use a whole number, -5 to 10, or auto", *any = "use a whole number";
    is_int("int", "-5", -5);
    is_int("int", "+7", 7);
    is_int("int", "auto", -1);
    is_int("any", "9223372036854775807", INT64_MAX);
    is_int("any", "-9223372036854775808", INT64_MIN);
    is_bad("int", "11", "is out of range", fix);
    is_bad("int", "-6", "is out of range", fix);
    is_bad("int", "1.0", "is not a whole number", fix);
    is_bad("int", "0x3", "is not a whole number", fix);
    is_bad("int", "3 4", "is not a whole number", fix);
    is_bad("int", " 3", "is not a whole number", fix);
    is_bad("int", "", "is empty", fix);
    is_bad("any", "auto", "is not a whole number", any);
    is_bad("any", "9223372036854775808", "is too large", any);
    is_bad("any", "-9223372036854775809", "is too large", any);
}

static void floats(void **state)
{
    const char *fix = "use a number such as 0.1 or 3e-4, 0 to 1", *wide = "use a number such as 0.1 or 3e-4";
    is_float("float", "1e-4", 1e-4);
    is_float("float", "1", 1);
    is_float("float", ".25", 0.25);
    is_float("wide", "-1e300", -1e300);
    is_bad("float", "1.0001", "is out of range", fix);
    is_bad("float", "-0.1", "is out of range", fix);
    is_bad("wide", "nan", "is not a number", wide);
    is_bad("wide", "inf", "is not a number", wide);
    is_bad("wide", "-infinity", "is not a number", wide);
    is_bad("wide", "0x1p3", "is not a number", wide);
    is_bad("wide", "1e999", "is too large", wide);
    is_bad("wide", "-1e999", "is too large", wide);
    is_bad("wide", "1e-999", "is too small", wide);
    is_bad("wide", "1,5", "is not a number", wide);
    is_bad("wide", "1e5x", "is not a number", wide);
    is_bad("wide", "1 # one", "is not a number",
           "use a number such as 0.1 or 3e-4 (a comment after a value starts with ';')");
}

static void bools(void **state)
{
    static const char *const words[] = { "false", "true", "off", "on", "no", "yes" };
    for (int i = 0; i < 6; i++)
        is_int("bool", words[i], i % 2);
    is_bad("bool", "1", "is neither true nor false", "use true or false");
    is_bad("bool", "True", "is neither true nor false", "use true or false");
}

static void sizes(void **state)
{
    const char *fix = "use a size such as 512K, 64M or 2G, 1K to 1T, or auto";
    is_int("size", "4M", 4 << 20);
    is_int("size", "2048", 2048);
    is_int("size", "2048B", 2048);
    is_int("size", "1.5K", 1536);
    is_int("size", "64 KiB", 65536);
    is_int("size", "1T", 1ll << 40);
    is_int("size", "auto", -1);
    is_bad("size", "1", "is out of range", fix);
    is_bad("size", "2T", "is out of range", fix);
    is_bad("size", "-4M", "is negative", fix);
    is_bad("size", "4m", "has an unknown unit", fix);
    is_bad("size", "4MM", "has an unknown unit", fix);
    is_bad("size", "M", "is not a number", fix);
    is_bad("size", "9223372036854775807K", "is too large", fix);
    is_bad("size", "99999999999999999999", "is too large", fix);
}

static void durations(void **state)
{
    const char *fix = "use a duration such as 250ms, 30s or 5m";
    is_int("duration", "250ms", 250000000);
    is_int("duration", "3m", 180000000000);
    is_int("duration", "0.5s", 500000000);
    is_int("duration", "7ns", 7);
    is_int("duration", "0", 0);
    is_bad("duration", "60", "has no unit", fix);
    is_bad("duration", "60sec", "has an unknown unit", fix);
    is_bad("duration", "9999999999h", "is too large", fix);
}

static void enums(void **state)
{
    is_int("enum", "blue", 2);
    is_bad("enum", "gren", "is not a choice", "did you mean green? Choices are red, green or blue");
    is_bad("enum", "RED", "is not a choice", "did you mean red? Choices are red, green or blue");
    is_bad("enum", "magenta", "is not a choice", "use red, green or blue");
    is_bad("enum", "", "is empty", "use red, green or blue");
}

static void lists(void **state)
{
    struct state s;
    const struct tn_option_value *value = good(&s, "list", " x ,y z,./a.so");
    assert_int_equal(value->list_count, 3);
    assert_string_equal(value->list[0], "x");
    assert_string_equal(value->list[1], "y z");
    finish(&s);
    assert_int_equal(good(&s, "list", "")->list_count, 0);
    finish(&s);
    is_bad("list", "a,,b", "has an empty item", "use items with one comma between two");
    is_bad("list", "a,", "has an empty item", "use items with one comma between two");
}

static void unknown_keys(void **state)
{
    static const char *const sets[] = { "s.flaot=1", "s.whatever_this_is=1" };
    struct state s;
    read_rows(&s, table, ROWS, sizeof *table, sets, 2);
    assert_int_equal(s.diag.count, 2);
    assert_string_equal(tn_diag_text(&s.diag, &s.diag.problems[0]),
                        "--set: [s] flaot: unknown key; did you mean float?");
    assert_string_equal(tn_diag_text(&s.diag, &s.diag.problems[1]),
                        "--set: [s] whatever_this_is: unknown key; known keys are int, any, float, wide, bool, size, "
                        "duration, enum, string, list");
    finish(&s);
}

static void required_keys(void **state)
{
    static const struct tn_option rows[] = { ROW(STRING, "path", NULL, TN_OPT_REQUIRED, 0, 0, NULL),
                                             ROW(INT, "n", NULL, TN_OPT_REQUIRED, 1, 9, NULL) };
    static const char *const sets[] = { "s.path=" };
    struct state s;
    read_rows(&s, rows, 2, sizeof *rows, sets, 1);
    assert_int_equal(s.diag.count, 2);
    assert_string_equal(tn_diag_text(&s.diag, &s.diag.problems[0]), "--set: [s] path: is empty; use a text");
    assert_string_equal(tn_diag_text(&s.diag, &s.diag.problems[1]), "--set: [s] n: is required and not given; Help.");
    finish(&s);
}

/* A plugin of a later ABI has longer rows, one of an earlier ABI shorter ones. */
static void rows_of_other_sizes(void **state)
{
    struct later {
        struct tn_option row;
        const char *more;
    } later[2] = { { ROW(INT, "a", "1", 0, 0, 5, NULL), "x" }, { ROW(INT, "b", "2", 0, 0, 5, NULL), "y" } };
    struct state s;
    later[0].row.struct_size = later[1].row.struct_size = sizeof *later;
    read_rows(&s, &later[0].row, 2, sizeof *later, NULL, 0);
    assert_int_equal(s.diag.count, 0);
    assert_int_equal(tn_options_get(&s.options, "b")->i, 2);
    finish(&s);

    enum { SHORT = offsetof(struct tn_option, min) };
    char earlier[2 * SHORT];
    for (int i = 0; i < 2; i++) {
        struct tn_option row = ROW(INT, i ? "b" : "a", "70", 0, 0, 5, NULL);
        row.struct_size = SHORT;
        memcpy(earlier + i * SHORT, &row, SHORT);
    }
    read_rows(&s, (const struct tn_option *)earlier, 2, SHORT, NULL, 0);
    assert_int_equal(s.diag.count, 0); /* no range: 70 is fine */
    assert_int_equal(tn_options_get(&s.options, "b")->i, 70);
    finish(&s);

    uint32_t too_large = sizeof(struct tn_option); /* a row ends where the next one starts, whatever it claims */
    memcpy(earlier, &too_large, sizeof too_large);
    read_rows(&s, (const struct tn_option *)earlier, 2, SHORT, NULL, 0);
    assert_int_equal(s.diag.count, 0);
    assert_true(tn_options_get(&s.options, "a")->option->min == 0);
    assert_null(tn_options_get(&s.options, "a")->option->choices);
    finish(&s);
}

static void faults_of_the_table(void **state)
{
    struct tn_option rows[] = { ROW(INT, NULL, "1", 0, 0, 0, NULL), ROW(ENUM, "e", "x", 0, 0, 0, NULL),
                                ROW(INT, "n", "77", 0, 0, 5, NULL), ROW(FLOAT, "f", "x", 0, 0, 0, NULL) };
    struct state s;
    rows[0].type = 99;
    read_rows(&s, rows, 4, sizeof *rows, NULL, 0);
    assert_int_equal(s.diag.count, 4);
    assert_string_equal(s.diag.problems[1].what, "row 1 of its options has no key, no type or no choices");
    assert_string_equal(s.diag.problems[2].what, "the default '77' is out of range");
    assert_string_equal(s.diag.problems[3].what, "the default 'x' is not a number");
    finish(&s);
    read_rows(&s, rows, 4, 0, NULL, 0);
    assert_int_equal(s.options.count, 0);
    finish(&s);
}

static void nearest(void **state)
{
    static const char *const names[] = { "size", "sequence_parallel", "mode", "k" };
    assert_string_equal(tn_nearest("sise", names, 4), "size");
    assert_string_equal(tn_nearest("sizes", names, 4), "size");
    assert_string_equal(tn_nearest("seqence_paralel", names, 4), "sequence_parallel");
    assert_string_equal(tn_nearest("mdoe", names, 4), "mode");
    assert_null(tn_nearest("overlap", names, 4));
    assert_null(tn_nearest("", names, 4));
    assert_null(tn_nearest("xy", names, 4));
    assert_null(tn_nearest("an_endless_name_that_nobody_would_ever_take_for_a_key_of_a_table", names, 4));
}

static void reference(void **state)
{
    struct tn_buf out;
    tn_buf_init(&out);
    tn_options_describe(table, ROWS, sizeof *table, &out);
    assert_non_null(strstr(out.text, "  size                 size     default auto; 1K to 1T; or auto\n      Help.\n"));
    assert_non_null(strstr(out.text, "  enum                 enum     default green; red, green or blue\n"));
    assert_non_null(strstr(out.text, "  float                float    default 0.5; 0 to 1\n"));
    tn_buf_finish(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(ints),
        cmocka_unit_test(floats),
        cmocka_unit_test(bools),
        cmocka_unit_test(sizes),
        cmocka_unit_test(durations),
        cmocka_unit_test(enums),
        cmocka_unit_test(lists),
        cmocka_unit_test(unknown_keys),
        cmocka_unit_test(required_keys),
        cmocka_unit_test(rows_of_other_sizes),
        cmocka_unit_test(faults_of_the_table),
        cmocka_unit_test(nearest),
        cmocka_unit_test(reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
