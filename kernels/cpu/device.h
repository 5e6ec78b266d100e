/* The cpu device's instance, as its kernel families see it. Owned by device.c. */
#ifndef TENON_CPU_DEVICE_H
#define TENON_CPU_DEVICE_H

#include "kernel.h"

struct cpu_vec; /* vec.h: elementwise functions for one CPU level */

struct cpu {
    const struct tn_host *host;
    int threads;               /* OpenMP threads of every parallel region */
    const struct cpu_vec *vec; /* chosen once by CPU feature */
    void *engine, *stream;     /* dnnl_engine_t, dnnl_stream_t */
};

#endif
