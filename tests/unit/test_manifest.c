/* Manifest: what is read, and that every problem is reported with its line. Each case writes a file and compares the
 * text that a user would see, with the file's name as "m". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "config/settings.h"

struct state {
    char folder[64], path[80];
    struct tn_diag diag;
    struct tn_manifest m;
    struct tn_buf said; /* all problems, the path shortened to "m" */
};

static void start(struct state *s)
{
    *s = (struct state){ 0 };
    strcpy(s->folder, "/tmp/tenon-manifest-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->path, sizeof s->path, "%s/m.ini", s->folder);
    tn_diag_init(&s->diag);
    tn_buf_init(&s->said);
}

static void finish(struct state *s)
{
    unlink(s->path);
    rmdir(s->path);
    assert_int_equal(rmdir(s->folder), 0);
    tn_manifest_finish(&s->m);
    tn_diag_finish(&s->diag);
    tn_buf_finish(&s->said);
}

static void write_file(const struct state *s, const char *text, size_t bytes)
{
    FILE *file = fopen(s->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void collect(struct state *s)
{
    for (size_t i = 0; i < s->diag.count; i++) {
        const char *line = tn_diag_text(&s->diag, &s->diag.problems[i]);
        size_t skip = strncmp(line, s->path, strlen(s->path)) == 0 ? strlen(s->path) : 0;
        tn_buf_printf(&s->said, "%s%s\n", skip ? "m" : "", line + skip);
    }
}

static void read_bytes(struct state *s, const char *text, size_t bytes, const char *const *sets, size_t n_sets)
{
    start(s);
    write_file(s, text, bytes);
    tn_manifest_init(&s->m, s->path, sets, n_sets, &s->diag);
    collect(s);
}

static void expect_said(const char *text, size_t bytes, const char *said)
{
    struct state s;
    read_bytes(&s, text, bytes, NULL, 0);
    assert_string_equal(s.said.text, said);
    finish(&s);
}
#define EXPECT_SAID(text, said) expect_said(text, sizeof text - 1, said)

static const char *value(const struct state *s, const char *section, const char *key)
{
    const struct tn_entry *entry = tn_manifest_find(&s->m, section, key);
    return entry ? entry->value : NULL;
}

static void reads_keys_and_places(void **state)
{
    static const char text[] = "\xef\xbb\xbf; comment\r\n[job]\r\nsteps = 10\r\n\r\n[tp] ; cut\n  size=2 ; two\n"
                               "\tnote = a=b # \xc3\xa9\nempty =\n# end\nlast: 1";
    struct state s;
    read_bytes(&s, text, sizeof text - 1, NULL, 0);
    assert_string_equal(s.said.text, "");
    assert_int_equal(s.m.count, 5);
    assert_int_equal(s.m.section_count, 2);
    assert_string_equal(value(&s, "job", "steps"), "10");
    assert_string_equal(value(&s, "tp", "size"), "2");
    assert_string_equal(value(&s, "tp", "note"), "a=b # \xc3\xa9");
    assert_string_equal(value(&s, "tp", "empty"), "");
    assert_string_equal(value(&s, "tp", "last"), "1");
    assert_null(value(&s, "job", "size"));
    assert_int_equal(tn_manifest_find(&s.m, "tp", "size")->where.line, 6);
    assert_string_equal(s.m.folder, s.folder);
    assert_int_equal(tn_manifest_where(&s.m, "tp", "absent").line, 5);
    assert_int_equal(tn_manifest_where(&s.m, "pp", "absent").line, 0);
    finish(&s);
}

static void reports_every_bad_line(void **state)
{
    EXPECT_SAID("lost = 1\n[job]\nsteps 5\n= 3\n[b\n[c] d\n[]\n[ e ]\n[ok]\na=1\n",
                "m:1: lost: the key belongs to no section; put a [section] line above it\n"
                "m:3: the line is no key and no section; write key = value, [section], or ; comment\n"
                "m:4: [job]: '' is not a key; use 1 to 48 characters before the '='\n"
                "m:5: the section's ']' is missing; write [name]\n"
                "m:6: text after the section's ']'; put it on a line of its own\n"
                "m:7: '' is not a section name; use 1 to 48 characters without spaces around them\n"
                "m:8: ' e ' is not a section name; use 1 to 48 characters without spaces around them\n");
    EXPECT_SAID("[a]\nlast line without end", "m:2: the line is no key and no section; write key = value, [section], "
                                              "or ; comment\n");
}

static void a_bad_line_is_reported_once(void **state)
{
    EXPECT_SAID("[a]\nlost\n\n; comment\n[b]\n",
                "m:2: the line is no key and no section; write key = value, [section], or ; comment\n");
}

static void an_indented_line_continues_nothing(void **state)
{
    EXPECT_SAID("[a]\nk = 1\n  more\n", "m:3: the line is no key and no section; write key = value, [section], or ; "
                                        "comment\n");
}

static void reports_duplicates(void **state)
{
    EXPECT_SAID("[a]\nk=1\n[b]\nk=2\nk=3\n[a]\nk=4\nj=5\n",
                "m:5: [b] k: the key was given before, in line 4; keep one of them\n"
                "m:6: [a]: the section was opened before, in line 1; move its keys there\n"
                "m:7: [a] k: the key was given before, in line 2; keep one of them\n");
}

static void reports_bytes_that_are_no_text(void **state)
{
    EXPECT_SAID("[a]\nk=caf\xe9\n; \xc0\x80\nz=\xed\xa0\x80\n",
                "m:2: byte 6 of the line (0xe9) is not UTF-8; save the file as UTF-8\n"
                "m:3: byte 3 of the line (0xc0) is not UTF-8; save the file as UTF-8\n"
                "m:4: byte 3 of the line (0xed) is not UTF-8; save the file as UTF-8\n");
    EXPECT_SAID("[a]\nk=1\0002\nj=a\rb\n", "m:2: byte 4 of the line is the control character 0x00; remove it\n"
                                           "m:3: byte 4 of the line is the control character 0x0d; remove it\n");
    EXPECT_SAID("\xff\xfe[\0a\0", "m: is UTF-16; save it as UTF-8\n");
}

static void reports_what_is_no_manifest(void **state)
{
    EXPECT_SAID("", "m: is empty; a manifest needs at least [data] with a path\n");
    EXPECT_SAID("; nothing\n", "m: has no section; a manifest needs at least [data] with a path\n");

    struct state s;
    start(&s);
    tn_manifest_init(&s.m, s.path, NULL, 0, &s.diag);
    collect(&s);
    assert_string_equal(s.said.text, "m: cannot be read: No such file or directory\n");
    finish(&s);

    start(&s);
    assert_int_equal(mkdir(s.path, 0700), 0);
    tn_manifest_init(&s.m, s.path, NULL, 0, &s.diag);
    collect(&s);
    assert_string_equal(s.said.text, "m: is a folder, not a file; give the path of a manifest\n");
    finish(&s);

    start(&s);
    assert_int_equal(mkfifo(s.path, 0600), 0);
    tn_manifest_init(&s.m, s.path, NULL, 0, &s.diag);
    collect(&s);
    assert_string_equal(s.said.text, "m: is a pipe or device, not a file; give the path of a manifest\n");
    finish(&s);
}

static void reports_an_unreadable_file(void **state)
{
    if (geteuid() == 0)
        skip(); /* root reads everything */
    struct state s;
    start(&s);
    write_file(&s, "[a]\n", 4);
    chmod(s.path, 0);
    tn_manifest_init(&s.m, s.path, NULL, 0, &s.diag);
    collect(&s);
    assert_string_equal(s.said.text, "m: cannot be read: Permission denied\n");
    finish(&s);
}

static void long_lines_are_whole(void **state)
{
    enum { LONG = 500000 };
    char *text = malloc(LONG + 32);
    strcpy(text, "[data]\npath=");
    memset(text + 12, 'x', LONG);
    strcpy(text + 12 + LONG, "\nb=2\n");
    struct state s;
    read_bytes(&s, text, strlen(text), NULL, 0);
    assert_string_equal(s.said.text, "");
    assert_int_equal(strlen(value(&s, "data", "path")), LONG);
    assert_int_equal(tn_manifest_find(&s.m, "data", "b")->where.line, 3);
    finish(&s);
    free(text);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What is far too large is refused at once; what is just below the limit ends in little time whatever it holds. */
static void large_files_end_quickly(void **state)
{
    size_t bytes = 10000000;
    char *text = malloc(bytes);
    memset(text, 'a', bytes);
    double began = seconds();
    expect_said(text, bytes, "m: has 10000000 bytes; a manifest has at most 1048576; is it a manifest?\n");

    for (size_t i = 0; i < TN_MANIFEST_MOST_BYTES; i += 8)
        snprintf(text + i, 9, i ? "%05zx=1" : "[a] ;   ", i / 8);
    for (size_t i = 7; i < TN_MANIFEST_MOST_BYTES; i += 8)
        text[i] = '\n';
    struct state s;
    read_bytes(&s, text, TN_MANIFEST_MOST_BYTES, NULL, 0);
    assert_non_null(strstr(s.said.text, "the file has more than 4096 keys; remove some"));
    assert_non_null(strstr(s.said.text, "too many problems; the rest of the file was not read"));
    finish(&s);

    srand(1);
    for (size_t i = 0; i < TN_MANIFEST_MOST_BYTES; i++)
        text[i] = (char)rand();
    read_bytes(&s, text, TN_MANIFEST_MOST_BYTES, NULL, 0);
    assert_in_range(s.diag.count, 20, 25);
    finish(&s);
    free(text);
    assert_true(seconds() - began < 5);
}

static void overrides_replace_and_add(void **state)
{
    static const char text[] = "[tp]\nsize=2\n";
    const char *const sets[] = { "tp.size=4", "comm.tp.backend=a=b", "dp.size=1", "tp.size=8" };
    struct state s;
    read_bytes(&s, text, sizeof text - 1, sets, 4);
    assert_string_equal(s.said.text, "");
    assert_int_equal(s.m.count, 3);
    assert_string_equal(value(&s, "tp", "size"), "8");
    assert_string_equal(value(&s, "comm.tp", "backend"), "a=b");
    assert_string_equal(value(&s, "dp", "size"), "1");
    tn_diag_add(&s.diag, tn_manifest_where(&s.m, "tp", "size"), NULL, "x");
    assert_string_equal(tn_diag_text(&s.diag, &s.diag.problems[0]), "--set: [tp] size: x");
    finish(&s);
}

static void overrides_must_name_a_key(void **state)
{
    const char *const bad[] = { "", "x", "tp=1", ".a=1", "tp.=1", "tp.x", "=a.b", "tp.x=\xff" };
    struct state s;
    read_bytes(&s, "[a]\n", 4, bad, 8);
    assert_int_equal(s.diag.count, 8);
    assert_int_equal(s.m.count, 0);
    assert_string_equal(tn_diag_text(&s.diag, &s.diag.problems[2]),
                        "--set: 'tp=1' names no key; use section.key=value, as in tp.size=2");
    finish(&s);
}

static uint64_t hash_of(const char *text)
{
    struct state s;
    read_bytes(&s, text, strlen(text), NULL, 0);
    uint64_t hash = s.m.hash;
    finish(&s);
    return hash;
}

static void hash_is_of_the_meaning(void **state)
{
    uint64_t hash = hash_of("[a]\nk=12\n");
    assert_true(hash == hash_of("; c\n[a]\r\n  k = 12 ; d\n"));
    assert_false(hash == hash_of("[a]\nk=13\n"));
    assert_false(hash == hash_of("[a]\nk1=2\n"));
    assert_false(hash == hash_of("[ak]\n=12\n"));
}

/* ---- the core's sections ---- */

static void settings_said(const char *text, const char *said)
{
    static const char *const plugins[] = { "tp", "gpt" };
    struct state s;
    struct tn_settings settings;
    start(&s);
    write_file(&s, text, strlen(text));
    tn_manifest_init(&s.m, s.path, NULL, 0, &s.diag);
    tn_settings_read(&settings, &s.m, &s.diag);
    tn_settings_unused(&s.m, plugins, 2, &s.diag);
    collect(&s);
    assert_string_equal(s.said.text, said);
    finish(&s);
}

static void settings_have_defaults(void **state)
{
    static const char text[] = "[data]\npath = *.txt\n[strategies]\nchain = tp, ./x/my.so\n[comm]\ntimeout=1.5s\n";
    struct state s;
    struct tn_settings settings;
    read_bytes(&s, text, sizeof text - 1, NULL, 0);
    tn_settings_read(&settings, &s.m, &s.diag);
    assert_int_equal(s.diag.count, 0);
    assert_int_equal(settings.seed, 1);
    assert_int_equal(settings.source, TN_DATA_TEXT);
    assert_string_equal(settings.path, "*.txt");
    assert_int_equal(settings.optimizer, TN_OPTIMIZER_ADAMW);
    assert_int_equal(settings.lr_schedule, TN_LR_COSINE);
    assert_int_equal(settings.compute, TN_COMPUTE_FP32);
    assert_true(settings.beta2 == 0.95);
    assert_int_equal(settings.device_memory, -1);
    assert_true(settings.comm_timeout_ns == 1500000000);
    assert_int_equal(settings.n_chain, 2);
    assert_string_equal(settings.chain[1], "./x/my.so");
    assert_string_equal(settings.sample, "");
    finish(&s);
}

static void settings_check_across_keys(void **state)
{
    settings_said("[data]\npath=x\nbatch=12\nmicro_batches=5\nignore=0, -1\n[job]\nsteps=10\n[optimizer]\n"
                  "warmup_steps=11\n",
                  "m:4: [data] micro_batches: 5 does not divide batch = 12; use 1, 2, 3, 4, 6 or 12\n"
                  "m:5: [data] ignore: -1 is not a token id; use ids from 0 on, with commas between\n"
                  "m:9: [optimizer] warmup_steps: 11 is more than [job] steps = 10; warm up for fewer steps\n");
    settings_said("[data]\npath=x\n[optimizer]\nschedule=wsd\nwarmup_steps=90\n",
                  "m:3: [optimizer] decay_share: warmup_steps = 90 and the last 0.2 of 100 steps overlap; lower one of "
                  "them\n");
}

static void settings_name_what_is_unknown(void **state)
{
    settings_said("[data]\npath=x\nbacth=3\n[gtp]\n[tp]\nsize=2\n[fsdp]\nlevel=full\n",
                  "m:3: [data] bacth: unknown key; did you mean batch?\n"
                  "m:4: [gtp]: nothing in this job reads this section; did you mean [gpt]?\n"
                  "m:7: [fsdp]: nothing in this job reads this section; name the plugin in this job, or remove the "
                  "section; sections here are [job] [model] [data] [optimizer] [precision] [device] [comm] "
                  "[checkpoint] [strategies] [tp] [gpt]\n");
    settings_said("[job]\n", "m: [data] path: is required and not given; text: a glob of files; tokens: the path "
                             "without .bin. Relative to the manifest's folder.\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_keys_and_places),       cmocka_unit_test(reports_every_bad_line),
        cmocka_unit_test(a_bad_line_is_reported_once), cmocka_unit_test(an_indented_line_continues_nothing),
        cmocka_unit_test(reports_duplicates),          cmocka_unit_test(reports_bytes_that_are_no_text),
        cmocka_unit_test(reports_what_is_no_manifest), cmocka_unit_test(reports_an_unreadable_file),
        cmocka_unit_test(long_lines_are_whole),        cmocka_unit_test(large_files_end_quickly),
        cmocka_unit_test(overrides_replace_and_add),   cmocka_unit_test(overrides_must_name_a_key),
        cmocka_unit_test(hash_is_of_the_meaning),      cmocka_unit_test(settings_have_defaults),
        cmocka_unit_test(settings_check_across_keys),  cmocka_unit_test(settings_name_what_is_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
