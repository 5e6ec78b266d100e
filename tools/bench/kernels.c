/* Measures a device's kernels on the shapes of a GPT-2 124M step of 1024 tokens: products, attention, and an
 * elementwise op for memory, each against what the device's probe reached.
 *
 *     kernels [--device ID|PATH] [--threads N] [--seconds S] [--only WORD] [--json FILE]
 *
 * The device comes through the loader like any plugin. A case is launched for S seconds (default 0.3) after one
 * warm-up, and its best time counts. Attention counts the products of the visible half where causal: 2 forward, 5
 * backward, of sequence x sequence x head_dim each. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tenon/ops.h>

#include "loader/loader.h"
#include "config/manifest.h"

enum { MOST_TENSORS = 6, TOKENS = 1024 };

struct bench {
    struct tn_arena arena;
    struct tn_diag diag;
    struct tn_manifest manifest;
    struct tn_library library;
    struct tn_instance instance;
    const struct tn_device *device;
    struct tn_device_info info;
    double seconds;
    const char *only;
    json_t *results;
};

/* One op to time: tensors (inputs, then outputs), attributes, and the work it stands for. */
struct bench_case {
    const char *name;
    uint32_t opcode;
    uint32_t n_in, n_out;
    struct tn_tensor tensors[MOST_TENSORS + 3];
    struct tn_attr attrs[3];
    uint32_t n_attrs;
    double flops, bytes;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct tn_tensor tensor(uint32_t dtype, int64_t a, int64_t b, int64_t c)
{
    struct tn_tensor x = { .struct_size = sizeof x, .dtype = dtype, .rank = 3, .shape = { a, b, c } };
    if (a == 0) { /* two dimensions */
        x.rank = 2;
        x.shape[0] = b;
        x.shape[1] = c;
    }
    memcpy(x.global, x.shape, sizeof x.shape);
    return x;
}

static uint64_t bytes_of(const struct tn_tensor *x)
{
    uint64_t bytes = x->dtype == TN_BF16 ? 2 : 4;
    for (int32_t d = 0; d < x->rank; d++)
        bytes *= (uint64_t)x->shape[d];
    return bytes;
}

/* Small numbers of both signs, so that no unit sees only zeros. */
static void fill(const struct tn_tensor *x)
{
    uint64_t n = bytes_of(x) / (x->dtype == TN_BF16 ? 2 : 4);
    for (uint64_t i = 0; i < n; i++) {
        float value = (float)((int)(i * 7919 % 2003) - 1001) * 1e-3f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (x->dtype == TN_BF16)
            ((uint16_t *)x->data)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)x->data)[i] = value;
    }
}

/* --- timing --- */

static double time_kernel(const struct bench *b, struct tn_kernel *kernel)
{
    double best = INFINITY, start = now();
    if (b->device->launch(b->instance.self, kernel, NULL) != TN_OK)
        return INFINITY;
    for (int n = 0; n < 3 || now() - start < b->seconds; n++) {
        double before = now();
        if (b->device->launch(b->instance.self, kernel, NULL) != TN_OK)
            return INFINITY;
        best = fmin(best, now() - before);
    }
    return best;
}

static double time_op(struct bench *b, const struct tn_op_desc *op)
{
    void *self = b->instance.self, *scratch = NULL;
    struct tn_kernel *kernel = NULL;
    uint64_t bytes = 0;
    double seconds = INFINITY;
    if (b->device->workspace(self, op, &bytes) == TN_OK &&
        b->device->mem_alloc(self, TN_SPACE_DEVICE, bytes, &scratch) == TN_OK &&
        b->device->bind(self, op, scratch, &kernel) == TN_OK)
        seconds = time_kernel(b, kernel);
    b->device->kernel_destroy(self, kernel);
    b->device->mem_free(self, TN_SPACE_DEVICE, scratch, bytes);
    return seconds;
}

static void report(struct bench *b, const struct bench_case *c, double seconds)
{
    const char *dtype = c->tensors[0].dtype == TN_BF16 ? "bf16" : "f32";
    double peak = c->tensors[0].dtype == TN_BF16 ? b->info.peak_flops_bf16 : b->info.peak_flops_f32;
    double rate = (c->flops > 0 ? c->flops : c->bytes) / seconds * 1e-9;
    double ceiling = (c->flops > 0 ? peak : b->info.memory_bytes_per_s) * 1e-9;
    const char *unit = c->flops > 0 ? "GFLOP/s" : "GB/s";
    printf("%-26s %-4s %9.3f ms %8.1f %-7s %5.0f%% of %.0f\n", c->name, dtype, seconds * 1e3, rate, unit,
           ceiling > 0 ? 100 * rate / ceiling : 0, ceiling);
    json_array_append_new(b->results, json_pack("{s:s, s:s, s:f, s:f, s:s, s:f}", "name", c->name, "dtype", dtype,
                                                "seconds", seconds, "rate", rate, "unit", unit, "ceiling", ceiling));
}

static void run_case(struct bench *b, struct bench_case *c)
{
    if (b->only && !strstr(c->name, b->only))
        return;
    const struct tn_tensor *pointers[MOST_TENSORS + 3];
    for (uint32_t n = 0; n < c->n_in + c->n_out; n++) {
        struct tn_tensor *x = &c->tensors[n];
        if (b->device->mem_alloc(b->instance.self, TN_SPACE_DEVICE, bytes_of(x), &x->data) != TN_OK)
            exit(1);
        fill(x);
        pointers[n] = x;
    }
    struct tn_op_desc op = { sizeof op, c->opcode,          c->name,  c->n_in,    c->n_out,
                             pointers,  pointers + c->n_in, c->attrs, c->n_attrs, sizeof(struct tn_attr) };
    double seconds = time_op(b, &op);
    if (isinf(seconds))
        printf("%-26s %s\n", c->name, tn_instance_message(&b->instance));
    else
        report(b, c, seconds);
    for (uint32_t n = 0; n < c->n_in + c->n_out; n++)
        b->device->mem_free(b->instance.self, TN_SPACE_DEVICE, c->tensors[n].data, bytes_of(&c->tensors[n]));
}

/* --- cases --- */

static void run_products(struct bench *b, uint32_t dtype, int64_t in, int64_t out, int trans)
{
    struct tn_tensor x = tensor(dtype, 0, TOKENS, in), y = tensor(dtype, 0, TOKENS, out);
    struct tn_tensor w = tensor(dtype, 0, trans ? out : in, trans ? in : out);
    struct tn_tensor dw = tensor(TN_F32, 0, w.shape[0], w.shape[1]), bias = tensor(TN_F32, 0, 1, out);
    struct {
        const char *name;
        uint32_t opcode;
        struct tn_tensor tensors[4];
    } forms[] = {
        { "linear", TN_OP_LINEAR, { x, w, bias, y } },
        { "linear_dx", TN_OP_LINEAR_DX, { y, w, x } },
        { "linear_dw", TN_OP_LINEAR_DW, { x, y, dw } },
    };
    for (int n = 0; n < 3; n++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s %dx%d", forms[n].name, trans ? " trans" : "", (int)in, (int)out);
        struct bench_case c = { .name = name,
                                .opcode = forms[n].opcode,
                                .n_in = n ? 2 : 3,
                                .n_out = 1,
                                .attrs = { TN_ATTR_I("trans", trans) },
                                .n_attrs = 1,
                                .flops = 2.0 * TOKENS * (double)in * (double)out };
        memcpy(c.tensors, forms[n].tensors, sizeof forms[n].tensors);
        run_case(b, &c);
    }
}

static void run_attention(struct bench *b, uint32_t dtype, int64_t length, int heads, int kv_heads, int head_dim)
{
    struct tn_tensor q = tensor(dtype, 1, length, (int64_t)heads * head_dim);
    struct tn_tensor k = tensor(dtype, 1, length, (int64_t)kv_heads * head_dim);
    struct tn_tensor lse = tensor(TN_F32, 1, length, heads);
    struct tn_attr attrs[3] = { TN_ATTR_F("scale", 1 / sqrt(head_dim)), TN_ATTR_I("head_dim", head_dim),
                                TN_ATTR_I("causal", 1) };
    double product = (double)length * (double)length * heads * head_dim;
    struct bench_case forward = { .opcode = TN_OP_ATTENTION,
                                  .n_in = 3,
                                  .n_out = 2,
                                  .tensors = { q, k, k, q, lse },
                                  .n_attrs = 3,
                                  .flops = 2 * product };
    struct bench_case backward = { .opcode = TN_OP_ATTENTION_DX,
                                   .n_in = 6,
                                   .n_out = 3,
                                   .tensors = { q, q, k, k, q, lse, q, k, k },
                                   .n_attrs = 3,
                                   .flops = 5 * product };
    char name[2][64];
    snprintf(name[0], sizeof name[0], "attention %d %d/%dx%d", (int)length, heads, kv_heads, head_dim);
    snprintf(name[1], sizeof name[1], "attention_dx %d %d/%dx%d", (int)length, heads, kv_heads, head_dim);
    forward.name = name[0];
    backward.name = name[1];
    memcpy(forward.attrs, attrs, sizeof attrs);
    memcpy(backward.attrs, attrs, sizeof attrs);
    run_case(b, &forward);
    run_case(b, &backward);
}

static void run_add(struct bench *b, uint32_t dtype)
{
    struct tn_tensor x = tensor(dtype, 0, 4096, 4096);
    struct bench_case c = { .name = "add 4096x4096",
                            .opcode = TN_OP_ADD,
                            .n_in = 2,
                            .n_out = 1,
                            .tensors = { x, x, x },
                            .bytes = 3.0 * (double)bytes_of(&x) };
    run_case(b, &c);
}

static void run_all(struct bench *b)
{
    static const int64_t sides[][2] = { { 768, 768 }, { 768, 2304 }, { 768, 3072 }, { 3072, 768 } };
    for (uint32_t dtype = TN_F32; dtype <= TN_BF16; dtype++) {
        for (size_t n = 0; n < sizeof sides / sizeof sides[0]; n++)
            run_products(b, dtype, sides[n][0], sides[n][1], 0);
        run_products(b, dtype, 768, 3072, 1);
        run_products(b, dtype, 768, 50257, 1);
        run_products(b, dtype, 768, 25105, 1);
        run_attention(b, dtype, 1024, 12, 12, 64);
        run_attention(b, dtype, 256, 12, 12, 64);
        run_attention(b, dtype, 2048, 8, 2, 128);
        run_add(b, dtype);
    }
}

/* --- the device --- */

/* A manifest of nothing but the number of threads. */
static int read_manifest(struct bench *b, const char *id, const char *threads)
{
    char path[] = "/tmp/tenon-bench-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || dprintf(file, "[%s]\nthreads = %s\n", id, threads) < 0) {
        perror(path);
        return 0;
    }
    tn_diag_init(&b->diag);
    tn_manifest_init(&b->manifest, path, NULL, 0, &b->diag);
    close(file);
    unlink(path);
    return 1;
}

static int open_device(struct bench *b, const char *name, const char *threads)
{
    struct tn_load_error error;
    struct tn_search search = { NULL, 0 };
    if (tn_library_open(&b->library, name, TN_PLUGIN_DEVICE, &search, &b->arena, &error) != TN_LOAD_OK) {
        fprintf(stderr, "kernels: %s\n", error.text);
        return 0;
    }
    if (!read_manifest(b, b->library.plugin->id, threads))
        return 0;
    tn_instance_init(&b->instance, &b->library, &b->manifest, &b->diag);
    if (b->diag.count) {
        tn_diag_print(&b->diag, stderr);
        return 0;
    }
    if (tn_instance_create(&b->instance, NULL, &error) != TN_LOAD_OK) {
        fprintf(stderr, "kernels: %s\n", error.text);
        return 0;
    }
    b->device = tn_instance_table(&b->instance);
    b->info.struct_size = sizeof b->info;
    return b->device->probe(b->instance.self, &b->info) == TN_OK;
}

static int write_json(const struct bench *b, const char *path)
{
    json_t *all = json_pack("{s:s, s:i, s:f, s:f, s:f, s:O}", "device", b->info.name, "threads", (int)b->info.threads,
                            "peak_flops_f32", b->info.peak_flops_f32, "peak_flops_bf16", b->info.peak_flops_bf16,
                            "memory_bytes_per_s", b->info.memory_bytes_per_s, "results", b->results);
    int failed = json_dump_file(all, path, JSON_INDENT(1)) != 0;
    json_decref(all);
    if (failed)
        fprintf(stderr, "kernels: cannot write %s\n", path);
    return !failed;
}

static int usage(FILE *out, int code)
{
    fprintf(out, "usage: kernels [--device ID|PATH] [--threads N] [--seconds S] [--only WORD] [--json FILE]\n");
    return code;
}

int main(int argc, char **argv)
{
    static struct bench b = { .seconds = 0.3 };
    const char *device = "cpu", *threads = "auto", *json = NULL;
    for (int n = 1; n < argc; n += 2) {
        if (strcmp(argv[n], "--help") == 0)
            return usage(stdout, 0);
        if (n + 1 == argc)
            return usage(stderr, 2);
        if (strcmp(argv[n], "--device") == 0)
            device = argv[n + 1];
        else if (strcmp(argv[n], "--threads") == 0)
            threads = argv[n + 1];
        else if (strcmp(argv[n], "--seconds") == 0)
            b.seconds = atof(argv[n + 1]);
        else if (strcmp(argv[n], "--only") == 0)
            b.only = argv[n + 1];
        else if (strcmp(argv[n], "--json") == 0)
            json = argv[n + 1];
        else
            return usage(stderr, 2);
    }
    if (!open_device(&b, device, threads))
        return 1;
    b.results = json_array();
    printf("%s\npeak: f32 %.1f GFLOP/s, bf16 %.1f GFLOP/s, memory %.1f GB/s\n", b.info.name,
           b.info.peak_flops_f32 * 1e-9, b.info.peak_flops_bf16 * 1e-9, b.info.memory_bytes_per_s * 1e-9);
    run_all(&b);
    int ok = !json || write_json(&b, json);
    json_decref(b.results);
    tn_instance_destroy(&b.instance);
    return ok ? 0 : 1;
}
