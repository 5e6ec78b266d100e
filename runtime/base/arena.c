/* Arena: see arena.h. Blocks are chained, each at least twice the last up to a limit. */
#include "base/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, FIRST_BYTES = 16 << 10, MOST_BYTES = 4 << 20 };

struct tn_arena_block {
    struct tn_arena_block *older;
    size_t used, size;
    _Alignas(16) unsigned char data[];
};

void tn_arena_init(struct tn_arena *arena)
{
    arena->block = NULL;
}

void tn_arena_finish(struct tn_arena *arena)
{
    struct tn_arena_block *block = arena->block;
    while (block) {
        struct tn_arena_block *older = block->older;
        free(block);
        block = older;
    }
    arena->block = NULL;
}

static struct tn_arena_block *block_new(struct tn_arena_block *older, size_t bytes)
{
    size_t size = older ? 2 * older->size : FIRST_BYTES;
    if (size > MOST_BYTES)
        size = MOST_BYTES;
    if (size < bytes)
        size = bytes;
    struct tn_arena_block *block = calloc(1, sizeof *block + size);
    if (!block) {
        fprintf(stderr, "tenon: out of memory (%zu bytes for the job's description)\n", size);
        exit(1);
    }
    block->older = older;
    block->size = size;
    return block;
}

void *tn_arena_alloc(struct tn_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) {
        fprintf(stderr, "tenon: out of memory (%zu bytes for the job's description)\n", bytes);
        exit(1);
    }
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (!arena->block || arena->block->size - arena->block->used < bytes)
        arena->block = block_new(arena->block, bytes);
    void *memory = arena->block->data + arena->block->used;
    arena->block->used += bytes;
    return memory;
}

void *tn_arena_grow(struct tn_arena *arena, const void *array, size_t item_bytes, size_t *cap, size_t want)
{
    if (want <= *cap)
        return (void *)array;
    size_t grown = *cap ? *cap : 8;
    while (grown < want)
        grown *= 2;
    void *copy = tn_arena_alloc(arena, grown * item_bytes);
    if (array)
        memcpy(copy, array, *cap * item_bytes);
    *cap = grown;
    return copy;
}

void *tn_arena_copy(struct tn_arena *arena, const void *array, size_t bytes)
{
    return bytes ? memcpy(tn_arena_alloc(arena, bytes), array, bytes) : NULL;
}

char *tn_arena_strdup(struct tn_arena *arena, const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(tn_arena_alloc(arena, bytes), text, bytes);
}

char *tn_arena_printf(struct tn_arena *arena, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *text = tn_arena_alloc(arena, (size_t)length + 1);
    va_start(args, fmt);
    vsnprintf(text, (size_t)length + 1, fmt, args);
    va_end(args);
    return text;
}
