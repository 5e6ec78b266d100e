/* The dtypes that safetensors files know, and Tenon's own where there is one. */
#ifndef TENON_SAFETENSORS_DTYPE_H
#define TENON_SAFETENSORS_DTYPE_H

#include <stdint.h>

struct tn_safetensors_dtype {
    const char *name;
    uint32_t bytes;
    uint32_t dtype; /* TN_*; 0: Tenon has none */
};

const struct tn_safetensors_dtype *tn_safetensors_dtype_by_name(const char *name); /* NULL if unknown */
const struct tn_safetensors_dtype *tn_safetensors_dtype_of(uint32_t dtype);        /* NULL if unknown */

#endif
