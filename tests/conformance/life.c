/* Conformance: what is made and destroyed again leaves nothing behind. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "life.h"
#include "tests.h"

int count_entries(const char *folder, const char *with)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (const struct dirent *e; d && (e = readdir(d));)
        n += strstr(e->d_name, with) != NULL;
    if (d)
        closedir(d);
    return n;
}

int count_lines(const char *file, const char *with)
{
    FILE *f = fopen(file, "r");
    char line[1024];
    int n = 0;
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, with) != NULL;
    if (f)
        fclose(f);
    return n;
}

static long resident_pages(void)
{
    long all, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &all, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident;
}

static void make_and_use(struct rank *r, const char *name, int turn)
{
    int32_t ranks[MAX_RANKS];
    for (int32_t i = 0; i < r->n; i++)
        ranks[i] = i;
    struct tn_comm *c;
    float x = (float)(r->rank + turn);
    struct tn_request *q;
    CHECK_STATUS(r, r->t->comm_create(r->self, name, ranks, r->n, SECONDS(10), &c), TN_OK);
    CHECK_STATUS(r, r->t->all_reduce(c, &x, &x, 1, TN_F32, TN_RED_SUM, NULL, &q), TN_OK);
    finish(r, q);
    CHECK(r, x == (float)(r->n * (r->n - 1) / 2 + r->n * turn)); /* nothing of the group before */
    r->t->comm_destroy(c);
}

/* A sanitizer keeps what is freed for a while, and looks for leaks itself. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_ALLOCATOR_OURS 0
#else
#define IS_ALLOCATOR_OURS 1
#endif

/* Of the process, which threads share: counted by one rank while the others wait. */
struct holdings {
    int fds, maps;
    long pages;
};

static struct holdings count_holdings(struct rank *r)
{
    struct holdings h = { 0 };
    meet(r);
    if (r->rank == 0)
        h = (struct holdings){ count_entries("/proc/self/fd", ""), count_lines("/proc/self/maps", ""),
                               resident_pages() };
    meet(r);
    return h;
}

void test_groups_without_leak(struct rank *r)
{
    struct holdings before = { 0 };
    for (int i = 0; i < r->groups; i++) {
        make_and_use(r, "passing", i);
        if (i == 20)
            before = count_holdings(r);
    }
    struct holdings after = count_holdings(r);
    CHECK(r, after.fds <= before.fds);
    if (!IS_ALLOCATOR_OURS)
        return;
    CHECK(r, after.maps <= before.maps + 2);
    check_that(r, after.pages <= before.pages + 256, __FILE__, __LINE__, "%ld pages more", after.pages - before.pages);
}
