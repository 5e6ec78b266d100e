/* Arena: many small allocations that are freed at once.
 *
 * Programs, plans and manifests live in one each. Memory is zeroed and 16-byte aligned.
 * Running out of memory here ends the process with a message: these arenas hold
 * descriptions (megabytes at most), never tensors. */
#ifndef TENON_BASE_ARENA_H
#define TENON_BASE_ARENA_H

#include <stdarg.h>
#include <stddef.h>

struct tn_arena {
    struct tn_arena_block *block;
};

void tn_arena_init(struct tn_arena *arena);
void tn_arena_finish(struct tn_arena *arena);
void *tn_arena_alloc(struct tn_arena *arena, size_t bytes);
/* A copy of the array that is at least `want` long; *cap grows by doubling. */
void *tn_arena_grow(struct tn_arena *arena, const void *array, size_t item_bytes, size_t *cap, size_t want);
/* NULL for no bytes. */
void *tn_arena_copy(struct tn_arena *arena, const void *array, size_t bytes);
char *tn_arena_strdup(struct tn_arena *arena, const char *text);
char *tn_arena_printf(struct tn_arena *arena, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
