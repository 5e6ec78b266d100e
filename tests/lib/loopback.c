/* The loopback bootstrap (loopback.h). Keys are appended and never removed: a row is claimed by
 * a counter, filled, and then marked as valid, so that a rank killed in the middle blocks nobody. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "loopback.h"

enum { ROWS = 4096, KEY_BYTES = 96, DATA_BYTES = 400, WORDS = 1024 };

struct row {
    _Atomic uint32_t is_valid;
    uint32_t bytes;
    char key[KEY_BYTES];
    unsigned char data[DATA_BYTES];
};

struct loopback {
    int32_t n;
    uint64_t job_id;
    char hosts[64];
    _Atomic uint32_t died, rows;
    _Atomic uint64_t words[WORDS];
    struct row table[ROWS];
};

struct loopback *loopback_create(int32_t n)
{
    static _Atomic uint64_t jobs;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    struct loopback *lb = mmap(NULL, sizeof *lb, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (lb == MAP_FAILED)
        return NULL;
    lb->n = n;
    lb->job_id = (uint64_t)t.tv_sec << 32 ^ (uint64_t)t.tv_nsec ^ (uint64_t)getpid() << 20 ^ atomic_fetch_add(&jobs, 1);
    return lb;
}

struct loopback *loopback_open(const char *path, int32_t n)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    struct loopback *lb = MAP_FAILED;
    if (ftruncate(fd, sizeof *lb) == 0)
        lb = mmap(NULL, sizeof *lb, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct stat of;
    int known = fstat(fd, &of) == 0;
    close(fd);
    if (lb == MAP_FAILED)
        return NULL;
    lb->n = n; /* all ranks write the same */
    lb->job_id = known ? (uint64_t)of.st_ino : 1;
    return lb;
}

void loopback_destroy(struct loopback *lb)
{
    if (lb)
        munmap(lb, sizeof *lb);
}

void loopback_died(struct loopback *lb, int32_t rank)
{
    (void)rank;
    atomic_store(&lb->died, 1);
}

uint64_t loopback_job_id(const struct loopback *lb)
{
    return lb->job_id;
}

_Atomic uint64_t *loopback_words(struct loopback *lb, uint32_t *count)
{
    *count = WORDS;
    return lb->words;
}

static tn_status put(void *ctx, const char *key, const void *data, uint32_t bytes)
{
    struct loopback *lb = ctx;
    if (strlen(key) >= KEY_BYTES || bytes > DATA_BYTES)
        return TN_INVALID;
    uint32_t at = atomic_fetch_add(&lb->rows, 1);
    if (at >= ROWS)
        return TN_NO_MEMORY;
    struct row *row = &lb->table[at];
    strcpy(row->key, key);
    memcpy(row->data, data, bytes);
    row->bytes = bytes;
    atomic_store(&row->is_valid, 1);
    return TN_OK;
}

static tn_status get(void *ctx, const char *key, void *data, uint32_t *bytes)
{
    struct loopback *lb = ctx;
    uint32_t rows = atomic_load(&lb->rows);
    for (uint32_t i = 0; i < rows && i < ROWS; i++) {
        const struct row *row = &lb->table[i];
        if (!atomic_load(&row->is_valid) || strcmp(row->key, key) != 0)
            continue;
        memcpy(data, row->data, *bytes < row->bytes ? *bytes : row->bytes);
        *bytes = row->bytes;
        return TN_OK;
    }
    return TN_PENDING;
}

static tn_status look(void *ctx)
{
    struct loopback *lb = ctx;
    return atomic_load(&lb->died) ? TN_PEER : TN_OK;
}

void loopback_hosts(struct loopback *lb, const char *hosts)
{
    snprintf(lb->hosts, sizeof lb->hosts, "%s", hosts ? hosts : "");
}

static char host_of(const struct loopback *lb, int32_t rank)
{
    int number = atoi(lb->hosts);
    if (number > 0)
        return (char)('a' + rank * number / lb->n);
    return rank < (int32_t)strlen(lb->hosts) ? lb->hosts[rank] : 1;
}

struct tn_bootstrap loopback_bootstrap(struct loopback *lb, int32_t rank)
{
    int32_t local_rank = 0, local_size = 0;
    for (int32_t r = 0; r < lb->n; r++) {
        local_rank += r < rank && host_of(lb, r) == host_of(lb, rank);
        local_size += host_of(lb, r) == host_of(lb, rank);
    }
    return (struct tn_bootstrap){ .struct_size = sizeof(struct tn_bootstrap),
                                  .rank = rank,
                                  .size = lb->n,
                                  .local_rank = local_rank,
                                  .local_size = local_size,
                                  .host_id = (uint64_t)host_of(lb, rank),
                                  .job_id = lb->job_id,
                                  .ctx = lb,
                                  .put = put,
                                  .get = get,
                                  .poll = look };
}
