/* Store table: a chained hash table with an account of its memory; see store_table.h. */
#include "ranks/store_table.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void tn_store_table_init(struct tn_store_table *table, size_t limit)
{
    *table = (struct tn_store_table){ .limit = limit };
}

void tn_store_table_finish(struct tn_store_table *table)
{
    for (size_t i = 0; i < table->slot_count; i++) {
        struct tn_store_entry *next;
        for (struct tn_store_entry *entry = table->slots[i]; entry; entry = next) {
            next = entry->next;
            free(entry->waiting);
            free(entry->data);
            free(entry);
        }
    }
    free(table->slots);
    *table = (struct tn_store_table){ 0 };
}

static int account(struct tn_store_table *table, size_t bytes)
{
    if (bytes > table->limit - table->bytes)
        return -1;
    table->bytes += bytes;
    return 0;
}

/* Doubles the slots; a failure only leaves longer chains. */
static void spread(struct tn_store_table *table)
{
    size_t slot_count = table->slot_count ? table->slot_count * 2 : 64;
    struct tn_store_entry **slots = calloc(slot_count, sizeof(struct tn_store_entry *));
    if (!slots)
        return;
    for (size_t i = 0; i < table->slot_count; i++) {
        struct tn_store_entry *next;
        for (struct tn_store_entry *entry = table->slots[i]; entry; entry = next) {
            next = entry->next;
            struct tn_store_entry **slot = &slots[entry->hash & (slot_count - 1)];
            entry->next = *slot;
            *slot = entry;
        }
    }
    free(table->slots);
    table->slots = slots;
    table->slot_count = slot_count;
}

static struct tn_store_entry *make_entry(struct tn_store_table *table, uint64_t hash, const void *key, size_t key_bytes)
{
    if (table->count >= table->slot_count)
        spread(table);
    size_t bytes = sizeof(struct tn_store_entry) + key_bytes;
    if (table->slot_count == 0 || account(table, bytes) < 0)
        return NULL;
    struct tn_store_entry *entry = calloc(1, bytes);
    if (!entry) {
        table->bytes -= bytes;
        return NULL;
    }
    struct tn_store_entry **slot = &table->slots[hash & (table->slot_count - 1)];
    entry->hash = hash;
    entry->key_bytes = (uint32_t)key_bytes;
    memcpy(entry->key, key, key_bytes);
    entry->next = *slot;
    *slot = entry;
    table->count++;
    return entry;
}

struct tn_store_entry *tn_store_table_find(struct tn_store_table *table, const void *key, size_t key_bytes, int make)
{
    uint64_t hash = XXH3_64bits(key, key_bytes);
    if (table->slot_count > 0)
        for (struct tn_store_entry *e = table->slots[hash & (table->slot_count - 1)]; e; e = e->next)
            if (e->hash == hash && e->key_bytes == key_bytes && memcmp(e->key, key, key_bytes) == 0)
                return e;
    return make ? make_entry(table, hash, key, key_bytes) : NULL;
}

int tn_store_table_set(struct tn_store_table *table, struct tn_store_entry *entry, const void *data, size_t bytes)
{
    if (account(table, bytes) < 0)
        return -1;
    void *copy = malloc(bytes ? bytes : 1);
    if (!copy) {
        table->bytes -= bytes;
        return -1;
    }
    if (bytes > 0)
        memcpy(copy, data, bytes);
    entry->data = copy;
    entry->bytes = (uint32_t)bytes;
    entry->present = 1;
    return 0;
}

int tn_store_table_wait(struct tn_store_table *table, struct tn_store_entry *entry, int32_t rank)
{
    if (entry->waiting_count == entry->waiting_cap) {
        uint32_t cap = entry->waiting_cap ? entry->waiting_cap * 2 : 8;
        size_t more = (cap - entry->waiting_cap) * sizeof *entry->waiting;
        if (account(table, more) < 0)
            return -1;
        int32_t *waiting = realloc(entry->waiting, cap * sizeof *waiting);
        if (!waiting) {
            table->bytes -= more;
            return -1;
        }
        entry->waiting = waiting;
        entry->waiting_cap = cap;
    }
    entry->waiting[entry->waiting_count++] = rank;
    return 0;
}
