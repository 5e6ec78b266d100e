/* Store table: keys to values, and who waits for a value that is not there yet.
 *
 * The server's holds the job's values and the waiting ranks; a client's caches what it asked for. */
#ifndef TENON_STORE_TABLE_H
#define TENON_STORE_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct tn_store_entry {
    struct tn_store_entry *next;
    uint64_t hash;
    int32_t *waiting; /* ranks, in order of asking */
    uint32_t waiting_count, waiting_cap;
    int present; /* 0: asked for only */
    void *data;
    uint32_t bytes;
    uint32_t key_bytes;
    char key[];
};

struct tn_store_table {
    struct tn_store_entry **slots;
    size_t slot_count, count;
    size_t bytes; /* of all entries with their book-keeping; kept at or below limit */
    size_t limit;
};

void tn_store_table_init(struct tn_store_table *table, size_t limit);
void tn_store_table_finish(struct tn_store_table *table);
/* The key's entry; made, with no value, if `make`. NULL: not there, or no room. */
struct tn_store_entry *tn_store_table_find(struct tn_store_table *table, const void *key, size_t key_bytes, int make);
/* Gives the entry its value, once. -1: no room. */
int tn_store_table_set(struct tn_store_table *table, struct tn_store_entry *entry, const void *data, size_t bytes);
/* -1: no room. */
int tn_store_table_wait(struct tn_store_table *table, struct tn_store_entry *entry, int32_t rank);

#endif
