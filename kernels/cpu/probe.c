/* What the processor reaches, for MFU and the cost model: measured on first use, then kept.
 *
 * The peak of each dtype is that of oneDNN products that stay in the cache, the memory figure that of a copy that does
 * not; together they take under 100 ms. Each thread computes its own products and its best one counts, by the time
 * that it had a core, so that others who keep the cores busy do not lower it: MFU compares with what the cores can
 * do. */
#include <omp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <oneapi/dnnl/dnnl.h>

#include "device.h"

enum { SIDE = 256, MATRIX_BYTES = SIDE * SIDE * 4, COPY_BYTES = 32 << 20, ARGS = 4 };
static const double GEMM_SECONDS = 0.02, COPY_SECONDS = 0.03;
static const double LAUNCH_SECONDS = 2e-6; /* of any op, in the cost model */

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    return seconds(CLOCK_MONOTONIC);
}

/* A product of SIDE x SIDE matrices by one thread, whose scratch is given: oneDNN's own would be mapped anew in each
 * call, which takes a good part of so short a product. NULL where oneDNN has none of that dtype. */
static dnnl_primitive_t make_product(struct cpu *cpu, const dnnl_memory_desc_t *md, dnnl_memory_desc_t *scratch)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t primitive = NULL;
    omp_set_num_threads(1);
    if (dnnl_primitive_attr_create(&attr) == dnnl_success &&
        dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
        dnnl_matmul_desc_init(&desc, md, md, NULL, md) == dnnl_success &&
        dnnl_primitive_desc_create(&pd, &desc, attr, cpu->engine, NULL) == dnnl_success) {
        *scratch = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        if (dnnl_primitive_create(&primitive, pd) != dnnl_success)
            primitive = NULL;
    }
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    omp_set_num_threads(cpu->threads);
    return primitive;
}

/* Best rate of the calling thread within the time given. */
static double repeat_product(struct cpu *cpu, dnnl_primitive_t primitive, const dnnl_memory_desc_t *md,
                             const dnnl_memory_desc_t *scratch, char *memory)
{
    static const int arg_ids[ARGS] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD };
    dnnl_exec_arg_t args[ARGS] = { { 0, NULL } };
    double best = 0, start = now();
    int ok = 1;
    for (int n = 0; n < ARGS && ok; n++) {
        args[n].arg = arg_ids[n];
        ok = dnnl_memory_create(&args[n].memory, n == ARGS - 1 ? scratch : md, cpu->engine,
                                memory + n * MATRIX_BYTES) == dnnl_success;
    }
    for (int n = 0; ok && (n < 4 || now() - start < GEMM_SECONDS); n++) {
        double before = seconds(CLOCK_THREAD_CPUTIME_ID);
        ok = dnnl_primitive_execute(primitive, cpu->stream, ARGS, args) == dnnl_success;
        double rate = 2.0 * SIDE * SIDE * SIDE / (seconds(CLOCK_THREAD_CPUTIME_ID) - before);
        best = rate > best ? rate : best;
    }
    for (int n = 0; n < ARGS; n++)
        dnnl_memory_destroy(args[n].memory);
    return best;
}

/* Sum over the threads. */
static double measure_flops(struct cpu *cpu, dnnl_data_type_t dtype)
{
    dnnl_memory_desc_t md, scratch;
    dnnl_dims_t dims = { SIDE, SIDE };
    double sum = 0;
    if (dnnl_memory_desc_init_by_tag(&md, 2, dims, dtype, dnnl_ab) != dnnl_success)
        return 0;
    dnnl_primitive_t primitive = make_product(cpu, &md, &scratch);
    size_t each = primitive ? 3 * MATRIX_BYTES + (dnnl_memory_desc_get_size(&scratch) + 63) / 64 * 64 : 0;
    size_t bytes = (size_t)cpu->threads * each;
    char *memory = primitive ? aligned_alloc(64, bytes) : NULL;
    if (memory) {
        memset(memory, 0, bytes);
#pragma omp parallel num_threads(cpu->threads) reduction(+ : sum)
        sum += repeat_product(cpu, primitive, &md, &scratch, memory + (size_t)omp_get_thread_num() * each);
    }
    free(memory);
    dnnl_primitive_destroy(primitive);
    return sum;
}

static double measure_memory(struct cpu *cpu, char *memory)
{
    enum { HALF = COPY_BYTES / 2 };
    double best = 0, start = now();
    int threads = cpu->threads;
    for (int n = 0; n < 2 || now() - start < COPY_SECONDS; n++) {
        double before = now();
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int part = 0; part < threads; part++) {
            size_t from = (size_t)HALF / threads * part, bytes = (size_t)HALF / threads;
            memcpy(memory + from, memory + HALF + from, bytes);
        }
        double rate = 2.0 * HALF / (now() - before);
        best = rate > best ? rate : best;
    }
    return best;
}

static void measure(struct cpu *cpu)
{
    if (cpu->peaks.known)
        return;
    cpu->peaks.known = 1;
    char *memory = aligned_alloc(64, COPY_BYTES);
    if (!memory)
        return;
    memset(memory, 0, COPY_BYTES);
    cpu->peaks.flops_f32 = measure_flops(cpu, dnnl_f32);
    cpu->peaks.flops_bf16 = measure_flops(cpu, dnnl_bf16);
    if (cpu->peaks.flops_bf16 == 0) /* widened to f32, linear.c */
        cpu->peaks.flops_bf16 = cpu->peaks.flops_f32;
    cpu->peaks.bytes_per_s = measure_memory(cpu, memory);
    free(memory);
}

/* --- what the machine says of itself --- */

/* The value behind `key` in a file of "key : value" lines. */
static int read_field(const char *path, const char *key, char *value, size_t size)
{
    char line[256];
    int found = 0;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0)
            continue;
        colon++;
        colon += strspn(colon, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(value, size, "%s", colon);
        found = 1;
    }
    if (file)
        fclose(file);
    return found;
}

/* Memory of this host or of the control group, whichever is less, shared among the ranks of this host. */
static uint64_t memory_of_rank(const struct cpu *cpu)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned long long number;
    char text[64];
    if (read_field("/proc/meminfo", "MemAvailable", text, sizeof text) && sscanf(text, "%llu", &number) == 1)
        bytes = (uint64_t)number * 1024;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "re");
    if (file && fscanf(file, "%llu", &number) == 1 && number < bytes)
        bytes = number;
    if (file)
        fclose(file);
    return bytes / (uint64_t)cpu_ranks_here(cpu);
}

static void name_processor(struct cpu *cpu)
{
    char model[80] = "cpu";
    if (cpu->name[0])
        return;
    (void)read_field("/proc/cpuinfo", "model name", model, sizeof model);
    snprintf(cpu->name, sizeof cpu->name, "%s, %d thread%s, %s", model, cpu->threads, cpu->threads == 1 ? "" : "s",
             cpu_isa_name(cpu->isa));
}

tn_status cpu_probe(struct cpu *cpu, struct tn_device_info *info)
{
    name_processor(cpu);
    if (info->struct_size > offsetof(struct tn_device_info, peak_flops_f32))
        measure(cpu);
    struct tn_device_info all = {
        .struct_size = info->struct_size,
        .threads = (uint32_t)cpu->threads,
        .memory_bytes = memory_of_rank(cpu),
        .peak_flops_f32 = cpu->peaks.flops_f32,
        .peak_flops_bf16 = cpu->peaks.flops_bf16,
        .memory_bytes_per_s = cpu->peaks.bytes_per_s,
        .name = cpu->name,
    };
    memcpy(info, &all, info->struct_size < sizeof all ? info->struct_size : sizeof all);
    return TN_OK;
}

/* --- the cost model: the slower of arithmetic and memory --- */

static double tensors_bytes(const struct tn_tensor *const *tensors, uint32_t n)
{
    static const int bytes[] = { 0,
#define TN_X(name, number, text, size) size,
                                 TN_DTYPE_LIST(TN_X)
#undef TN_X
    };
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (tensors[i] && tensors[i]->dtype < sizeof bytes / sizeof bytes[0])
            sum += (double)cpu_elements(tensors[i]) * bytes[tensors[i]->dtype];
    }
    return sum;
}

static double op_flops(const struct tn_op_desc *op)
{
    switch (op->opcode) {
    case TN_OP_LINEAR: return 2.0 * (double)cpu_elements(op->in[0]) * (double)cpu_cols(op->out[0]);
    case TN_OP_LINEAR_DX: return 2.0 * (double)cpu_elements(op->in[0]) * (double)cpu_cols(op->out[0]);
    case TN_OP_LINEAR_DW: return 2.0 * (double)cpu_elements(op->in[0]) * (double)cpu_cols(op->in[1]);
    case TN_OP_ATTENTION:
    case TN_OP_ATTENTION_DX: {
        /* Two products of S x S x D a head forward, five backward; half of each where causal. */
        const struct tn_tensor *q = op->in[op->opcode == TN_OP_ATTENTION ? 0 : 1];
        const struct tn_tensor *k = op->in[op->opcode == TN_OP_ATTENTION ? 1 : 2];
        double products = op->opcode == TN_OP_ATTENTION ? 2 : 5;
        double flops = 2.0 * products * (double)cpu_elements(q) * (double)k->shape[1];
        return cpu_attr_i(op, "causal", 1) ? flops / 2 : flops;
    }
    }
    return 0;
}

double cpu_cost(struct cpu *cpu, const struct tn_op_desc *op)
{
    measure(cpu);
    const struct tn_tensor *first = op->n_in ? op->in[0] : NULL;
    double peak = first && first->dtype == TN_BF16 ? cpu->peaks.flops_bf16 : cpu->peaks.flops_f32;
    double bytes = tensors_bytes(op->in, op->n_in) + tensors_bytes(op->out, op->n_out);
    double compute = peak > 0 ? op_flops(op) / peak : 0;
    double memory = cpu->peaks.bytes_per_s > 0 ? bytes / cpu->peaks.bytes_per_s : 0;
    return LAUNCH_SECONDS + (compute > memory ? compute : memory);
}
