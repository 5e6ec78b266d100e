/* Copier: what went to host memory or to disk comes back, in the order in which it was asked for; and what is said
 * where it cannot go. On the cpu device. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "cpu_harness.h"
#include "run/copier.h"
#include "scratch.h"

enum { MIB = 1 << 20 };

static struct harness harness;
static char error[2048];

static struct tn_copier *open_copier(int64_t host, int64_t disk, const char *folder)
{
    const struct tn_copier_of of = {
        .device = harness.device, .device_self = harness.self, .host_bytes = host, .disk_bytes = disk, .folder = folder
    };
    error[0] = 0;
    return tn_copier_new(&of, error, sizeof error);
}

static void fill(unsigned char *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 12));
}

/* Files that have a name in the folder. */
static int scratch_count(void)
{
    DIR *folder = opendir(scratch_folder);
    int n = -2; /* . and .. */
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* Sizes that are no blocks, and more than the buffer that disk transfers go through. */
static void what_goes_comes_back(void **state)
{
    static const size_t sizes[] = { 4, 4095, 4096, 70001, 3 * MIB + 20 };
    struct tn_copier *copier = open_copier(4 * MIB, 4 * MIB, scratch_folder);
    unsigned char *data = malloc(4 * MIB), *same = malloc(4 * MIB);
    assert_non_null(copier);
    assert_int_equal(scratch_count(), 0); /* nothing that could be left behind */
    for (uint32_t space = TN_SPACE_HOST; space <= TN_SPACE_DISK; space++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct tn_copy out = {
                .way = TN_COPY_OUT, .space = space, .device = data, .offset = 8192, .bytes = sizes[i], .name = "x"
            };
            struct tn_copy in = {
                .way = TN_COPY_IN, .space = space, .device = same, .offset = 8192, .bytes = sizes[i], .name = "x"
            };
            fill(data, sizes[i], (unsigned)i);
            memset(same, 0xee, 4 * MIB);
            tn_copier_start(copier, &out);
            assert_int_equal(tn_copier_wait(copier, tn_copier_start(copier, &in)), TN_OK);
            assert_memory_equal(data, same, sizes[i]);
            assert_int_equal(same[sizes[i]], 0xee); /* not a byte more */
        }
    tn_copier_destroy(copier);
    free(data);
    free(same);
    assert_int_equal(scratch_count(), 0);
}

/* More at once than the ring holds; each overwrites what the one before it wrote. */
static void copies_are_done_in_order(void **state)
{
    enum { N = 300 };
    struct tn_copier *copier = open_copier(4096, 0, NULL);
    static struct tn_copy out[N], in[N];
    static unsigned char from[N][64], to[N][64];
    uint64_t ticket = 0;
    assert_non_null(copier);
    for (unsigned i = 0; i < N; i++) {
        fill(from[i], 64, i);
        out[i] = (struct tn_copy){
            .way = TN_COPY_OUT, .space = TN_SPACE_HOST, .device = from[i], .offset = 64, .bytes = 64
        };
        in[i] =
            (struct tn_copy){ .way = TN_COPY_IN, .space = TN_SPACE_HOST, .device = to[i], .offset = 64, .bytes = 64 };
        tn_copier_start(copier, &out[i]);
        uint64_t next = tn_copier_start(copier, &in[i]);
        assert_true(next > ticket);
        ticket = next;
    }
    assert_int_equal(tn_copier_wait(copier, ticket), TN_OK);
    assert_memory_equal(from, to, sizeof from);
    assert_int_equal(tn_copier_wait(copier, 1), TN_OK); /* long done */
    tn_copier_destroy(copier);
}

static void what_is_under_way_is_done_before_the_end(void **state)
{
    struct tn_copier *copier = open_copier(MIB, 0, NULL);
    static unsigned char data[MIB];
    const struct tn_copy out = { .way = TN_COPY_OUT, .space = TN_SPACE_HOST, .device = data, .bytes = MIB };
    for (int i = 0; i < 20; i++)
        tn_copier_start(copier, &out);
    tn_copier_destroy(copier);
    tn_copier_destroy(NULL);
}

static void no_folder_and_no_room_are_told_before_the_first_step(void **state)
{
    assert_null(open_copier(0, MIB, "/nowhere/at/all"));
    assert_non_null(strstr(error,
                           "no file in /nowhere/at/all for 1048576 bytes off the device: No such file or directory; "
                           "[device] disk names another folder"));
    assert_null(open_copier(0, (int64_t)1 << 60, scratch_folder));
    assert_non_null(strstr(error, "for 1152921504606846976 bytes off the device: "));
    assert_non_null(
        strstr(error, "; name another folder with [device] disk, or keep more on the device or in host memory"));
    assert_int_equal(scratch_count(), 0);
}

/* The disk fails later on, here by a limit. All that follows fails too, and the reason is said once. */
static void a_failure_is_told_once_and_ends_what_follows(void **state)
{
    struct tn_copier *copier = open_copier(4096, MIB, scratch_folder);
    static unsigned char data[8192], kept[64];
    const struct rlimit before = { RLIM_INFINITY, RLIM_INFINITY }, limit = { 4096, RLIM_INFINITY };
    const struct tn_copy out = {
        .way = TN_COPY_OUT, .space = TN_SPACE_DISK, .device = data, .offset = 8192, .bytes = 5000, .name = "h.7.away"
    };
    const struct tn_copy in = {
        .way = TN_COPY_IN, .space = TN_SPACE_HOST, .device = kept, .bytes = 64, .name = "other"
    };
    assert_non_null(copier);
    memset(kept, 0x11, sizeof kept);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int saved = scratch_capture(2, "log");
    uint64_t first = tn_copier_start(copier, &out), second = tn_copier_start(copier, &in);
    tn_status one = tn_copier_wait(copier, first), two = tn_copier_wait(copier, second);
    scratch_restore(2, saved);
    setrlimit(RLIMIT_FSIZE, &before);
    char *log = scratch_read("log", NULL);
    assert_int_equal(one, TN_IO);
    assert_int_equal(two, TN_IO);
    assert_int_equal(kept[0], 0x11);
    const char *said = strstr(log, "h.7.away (5000 bytes) could not be written to disk in ");
    assert_non_null(said);
    assert_non_null(strstr(said, ": File too large"));
    assert_null(strstr(said + sizeof "h.7.away (5000 bytes) could not", "could not"));
    free(log);
    tn_copier_destroy(copier);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_comes_back),
        cmocka_unit_test(copies_are_done_in_order),
        cmocka_unit_test(what_is_under_way_is_done_before_the_end),
        cmocka_unit_test(no_folder_and_no_room_are_told_before_the_first_step),
        cmocka_unit_test(a_failure_is_told_once_and_ends_what_follows),
    };
    scratch_open();
    harness_open(&harness, 1, 0);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    harness_close(&harness);
    scratch_close();
    return failed;
}
