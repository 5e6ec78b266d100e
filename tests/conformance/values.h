/* What ranks send, and what must come out: known to every rank by formula. */
#ifndef TENON_CONFORMANCE_VALUES_H
#define TENON_CONFORMANCE_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include <tenon/value.h>

enum { FILL_INTEGERS, FILL_ROUNDING }; /* sums exact in every dtype; sums that round */

uint32_t dtype_bytes(uint32_t dtype);
const char *dtype_name(uint32_t dtype);
/* Whether the suite knows the dtype's sums; 0: it is only copied. */
int value_is_reduced(uint32_t dtype);
/* How many of `count` elements behind each other, given or reduced, have to be drawn: from there on they repeat. */
uint64_t value_drawn(uint32_t dtype, int fill, uint64_t count);
/* Element `index` of what `rank` gives. */
void value_store(void *to, uint32_t dtype, int fill, int32_t rank, uint64_t index, uint64_t salt);
/* The reduction of element `index` over ranks 0 to n-1 (`ranks` maps them; NULL: themselves). */
void value_reduce(void *to, uint32_t dtype, uint32_t red, int fill, const int32_t *ranks, int32_t n, uint64_t index,
                  uint64_t salt);
/* How far the stored result may be from the true sum, by the rounding of fp32 and of the dtype. */
int value_is_near(const void *result, uint32_t dtype, int fill, const int32_t *ranks, int32_t n, uint64_t index,
                  uint64_t salt);
uint64_t hash_bytes(const void *data, size_t bytes);

#endif
