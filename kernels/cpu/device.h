/* The cpu device's instance, as its kernel families see it. Owned by device.c. */
#ifndef TENON_CPU_DEVICE_H
#define TENON_CPU_DEVICE_H

#include "kernel.h"

/* Levels of instructions that files of cpu_isa_sources (meson.build) are compiled for; each level includes those
 * before it. BASELINE is the compiler's default for the architecture and the only one outside x86-64. */
enum { CPU_BASELINE, CPU_AVX2, CPU_AVX512, CPU_AVX512_BF16, CPU_AMX, CPU_ISA_COUNT };

struct cpu_vec; /* vec.h: elementwise functions for one CPU level */

/* What probe measured, once (probe.c). */
struct cpu_peaks {
    int known;
    double flops_f32, flops_bf16, bytes_per_s;
};

struct cpu {
    const struct tn_host *host;
    int threads;               /* OpenMP threads of every parallel region */
    int isa;                   /* CPU_* that our own kernels use */
    const struct cpu_vec *vec; /* chosen once by CPU feature */
    void *engine, *stream;     /* dnnl_engine_t, dnnl_stream_t */
    struct cpu_peaks peaks;
    char name[128];
};

/* isa.c */
int cpu_isa_detect(void); /* the highest level that this processor has */
const char *cpu_isa_name(int isa);
int cpu_ranks_here(const struct cpu *cpu);   /* LOCAL_WORLD_SIZE; before ranks are started, all of the job's */
int cpu_threads_auto(const struct cpu *cpu); /* cores of the affinity mask / ranks here, at least 1 */

/* probe.c */
tn_status cpu_probe(struct cpu *cpu, struct tn_device_info *info);
double cpu_cost(struct cpu *cpu, const struct tn_op_desc *op);

#endif
