/* The host side of the cpu device's unit tests: see cpu_harness.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/plugin.h>

#include "cpu_harness.h"

enum { GUARD = 64, GUARD_BYTE = 0xA5 };

/* guard, data, guard */
struct harness_block {
    struct harness_block *next;
    struct tn_tensor tensor;
    unsigned char *memory;
    size_t bytes;
};

/* --- the host table --- */

static struct harness *harness_of(const struct tn_host *host)
{
    return host->ctx;
}

static void host_log(const struct tn_host *host, int32_t level, const char *fmt, ...)
{
}

static tn_status host_fail(const struct tn_host *host, tn_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(harness_of(host)->message, sizeof harness_of(host)->message, fmt, args);
    va_end(args);
    return status;
}

static void *host_alloc(const struct tn_host *host, uint64_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (memory)
        memset(memory, 0xCD, bytes); /* a plugin that takes zeros for granted shows */
    harness_of(host)->live_blocks += memory != NULL;
    return memory;
}

static void host_release(const struct tn_host *host, void *memory)
{
    harness_of(host)->live_blocks -= memory != NULL;
    free(memory);
}

static int64_t host_get_int(const struct tn_host *host, const char *key)
{
    if (strcmp(key, "threads") == 0)
        return harness_of(host)->threads ? harness_of(host)->threads : -1;
    assert_string_equal(key, "isa");
    return harness_of(host)->isa;
}

static const void *host_get_api(const struct tn_host *host, const char *id)
{
    return NULL;
}

void harness_open(struct harness *h, int64_t threads, int64_t isa)
{
    memset(h, 0, sizeof *h);
    h->threads = threads;
    h->isa = isa;
    h->host = (struct tn_host){
        .struct_size = sizeof(struct tn_host),
        .abi_major = TN_ABI_MAJOR,
        .abi_minor = TN_ABI_MINOR,
        .ctx = h,
        .log = host_log,
        .fail = host_fail,
        .alloc = host_alloc,
        .release = host_release,
        .get_int = host_get_int,
        .get_api = host_get_api,
    };
    struct tn_host_info info = { sizeof info, TN_ABI_MAJOR, TN_ABI_MINOR, "test" };
    const struct tn_plugin *plugin = tn_plugin_query(&info);
    assert_non_null(plugin);
    assert_int_equal(plugin->kind, TN_PLUGIN_DEVICE);
    h->device = plugin->table;
    tn_status status = h->device->create(&h->host, &h->self);
    if (status == TN_UNSUPPORTED && isa) {
        print_message("%s\n", h->message);
        skip();
    }
    assert_int_equal(status, TN_OK);
}

static void check_guards(const struct harness_block *block)
{
    for (size_t n = 0; n < GUARD; n++) {
        if (block->memory[n] != GUARD_BYTE || block->memory[GUARD + block->bytes + n] != GUARD_BYTE)
            fail_msg("a kernel wrote outside a block of %zu bytes", block->bytes);
    }
}

void harness_clear(struct harness *h)
{
    while (h->blocks) {
        struct harness_block *block = h->blocks;
        h->blocks = block->next;
        check_guards(block);
        free(block->memory);
        free(block);
    }
}

void harness_close(struct harness *h)
{
    harness_clear(h);
    h->device->destroy(h->self);
    assert_int_equal(h->live_blocks, 0);
}

/* --- tensors --- */

static size_t dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
#define TN_X(name, number, text, bytes) \
    case TN_##name: return bytes;
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    }
    fail_msg("no dtype %u", dtype);
    return 0;
}

static struct harness_block *block_new(struct harness *h, size_t bytes)
{
    struct harness_block *block = calloc(1, sizeof *block);
    assert_non_null(block);
    size_t whole = (2 * GUARD + bytes + GUARD - 1) / GUARD * GUARD;
    block->memory = aligned_alloc(GUARD, whole);
    assert_non_null(block->memory);
    memset(block->memory, GUARD_BYTE, whole);
    memset(block->memory + GUARD, 0, bytes);
    block->bytes = bytes;
    block->next = h->blocks;
    h->blocks = block;
    return block;
}

static struct tn_tensor *tensor_new(struct harness *h, uint32_t dtype, int rank, const int64_t *shape)
{
    size_t elements = 1;
    for (int d = 0; d < rank; d++)
        elements *= (size_t)shape[d];
    struct harness_block *block = block_new(h, elements * dtype_bytes(dtype));
    struct tn_tensor *tensor = &block->tensor;
    *tensor = (struct tn_tensor){
        .struct_size = sizeof *tensor, .dtype = dtype, .rank = rank, .data = block->memory + GUARD
    };
    for (int d = 0; d < rank; d++)
        tensor->shape[d] = tensor->global[d] = shape[d];
    return tensor;
}

struct tn_tensor *harness_tensor(struct harness *h, uint32_t dtype, int rank, ...)
{
    int64_t shape[TN_MAX_DIMS];
    va_list args;
    va_start(args, rank);
    for (int d = 0; d < rank; d++)
        shape[d] = va_arg(args, int);
    va_end(args);
    return tensor_new(h, dtype, rank, shape);
}

struct tn_tensor *harness_like(struct harness *h, uint32_t dtype, const struct tn_tensor *like)
{
    return tensor_new(h, dtype, like->rank, like->shape);
}

int64_t harness_elements(const struct tn_tensor *tensor)
{
    int64_t n = 1;
    for (int d = 0; d < tensor->rank; d++)
        n *= tensor->shape[d];
    return n;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t bf16_nearest(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return 0x7FC0;
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

double harness_get(const struct tn_tensor *tensor, int64_t index)
{
    const void *data = tensor->data;
    switch (tensor->dtype) {
    case TN_F32: return ((const float *)data)[index];
    case TN_F64: return ((const double *)data)[index];
    case TN_BF16: return float_of_bits((uint32_t)((const uint16_t *)data)[index] << 16);
    case TN_I32: return ((const int32_t *)data)[index];
    case TN_I64: return (double)((const int64_t *)data)[index];
    case TN_U8: return ((const uint8_t *)data)[index];
    case TN_I8: return ((const int8_t *)data)[index];
    }
    fail_msg("harness_get: dtype %u", tensor->dtype);
    return 0;
}

void harness_set(struct tn_tensor *tensor, int64_t index, double value)
{
    void *data = tensor->data;
    switch (tensor->dtype) {
    case TN_F32: ((float *)data)[index] = (float)value; return;
    case TN_F64: ((double *)data)[index] = value; return;
    case TN_BF16: ((uint16_t *)data)[index] = bf16_nearest((float)value); return;
    case TN_I32: ((int32_t *)data)[index] = (int32_t)value; return;
    case TN_I64: ((int64_t *)data)[index] = (int64_t)value; return;
    case TN_U8: ((uint8_t *)data)[index] = (uint8_t)value; return;
    case TN_I8: ((int8_t *)data)[index] = (int8_t)value; return;
    }
    fail_msg("harness_set: dtype %u", tensor->dtype);
}

/* splitmix64 (Steele et al. 2014) */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void harness_fill(struct tn_tensor *tensor, uint64_t seed, double scale)
{
    int64_t n = harness_elements(tensor);
    for (int64_t i = 0; i < n; i++)
        harness_set(tensor, i, ((double)(next_random(&seed) >> 11) * 0x1p-52 - 1.0) * scale);
}

/* --- ops --- */

static const char *op_name(uint32_t opcode)
{
    static const char *const names[] = {
        "none",
#define TN_OP(name, ...) #name,
#include <tenon/ops.def>
#undef TN_OP
    };
    return opcode < sizeof names / sizeof names[0] ? names[opcode] : "?";
}

tn_status harness_bind(struct harness *h, uint32_t opcode, const struct tn_tensor *const *in, uint32_t n_in,
                       const struct tn_tensor *const *out, uint32_t n_out, const struct tn_attr *attrs,
                       uint32_t n_attrs, struct tn_kernel **kernel)
{
    enum { MOST = 16 };
    assert_true(n_in <= MOST && n_out <= MOST);
    struct tn_tensor bare[2][MOST];
    const struct tn_tensor *ins[MOST], *outs[MOST];
    for (uint32_t n = 0; n < n_in + n_out; n++) {
        int is_out = n >= n_in;
        uint32_t i = is_out ? n - n_in : n;
        const struct tn_tensor *tensor = is_out ? out[i] : in[i];
        if (tensor) {
            bare[is_out][i] = *tensor;
            bare[is_out][i].data = NULL;
        }
        (is_out ? outs : ins)[i] = tensor ? &bare[is_out][i] : NULL;
    }
    struct tn_op_desc op = { sizeof op, opcode, op_name(opcode), n_in,    n_out,
                             ins,       outs,   attrs,           n_attrs, sizeof(struct tn_attr) };
    h->message[0] = '\0';
    tn_status status = h->device->supports(h->self, &op);
    if (status != TN_OK)
        return status;
    uint64_t bytes = 0;
    status = h->device->workspace(h->self, &op, &bytes);
    if (status != TN_OK)
        return status;
    struct harness_block *scratch = block_new(h, bytes);
    memset(scratch->memory + GUARD, 0xFF, bytes); /* NaNs: a kernel that trusts its scratch shows */
    op.in = in;
    op.out = out;
    return h->device->bind(h->self, &op, scratch->memory + GUARD, kernel);
}

tn_status harness_run(struct harness *h, uint32_t opcode, const struct tn_tensor *const *in, uint32_t n_in,
                      const struct tn_tensor *const *out, uint32_t n_out, const struct tn_attr *attrs, uint32_t n_attrs)
{
    struct tn_kernel *kernel = NULL;
    tn_status status = harness_bind(h, opcode, in, n_in, out, n_out, attrs, n_attrs, &kernel);
    if (status != TN_OK)
        return status;
    status = h->device->launch(h->self, kernel, NULL);
    h->device->kernel_destroy(h->self, kernel);
    return status;
}

void harness_check(const struct tn_tensor *got, int64_t index, double want, double tolerance)
{
    double value = harness_get(got, index);
    if (!(fabs(value - want) <= tolerance * (1.0 + fabs(want))))
        fail_msg("element %lld is %.9g, should be %.9g (tolerance %g)", (long long)index, value, want, tolerance);
}
