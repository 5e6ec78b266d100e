/* The cpu device plugin: the table of abi/tenon/device.h over the kernel families of this folder.
 *
 * Everything computes in the calling thread (with OpenMP threads under it), so queues are always empty and events
 * always done. bind finds the family's row by opcode and lets it prepare a kernel; launch only runs that. All state
 * hangs on the instance; the number of OpenMP threads, which oneDNN takes from the calling thread, is set again where
 * another instance changed it. */
#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <oneapi/dnnl/dnnl.h>
#include <tenon/plugin.h>

#include "device.h"
#include "flush.h"
#include "vec.h"

enum { ALIGNMENT = 64 };
static const uint64_t HUGE_PAGE = 2u << 20; /* larger blocks start at a huge page: fewer TLB misses in GEMMs */

/* One table a family; a new family is one line here. */
static const struct cpu_row *const families[] = {
    cpu_linear_rows,    cpu_attention_rows, cpu_norm_rows,      cpu_activation_rows,
    cpu_embedding_rows, cpu_loss_rows,      cpu_optimizer_rows, cpu_layout_rows,
};

static const struct cpu_row *row_find(uint32_t opcode)
{
    for (size_t n = 0; n < sizeof families / sizeof families[0]; n++) {
        for (const struct cpu_row *row = families[n]; row->opcode != TN_OP_NONE; row++) {
            if (row->opcode == opcode)
                return row;
        }
    }
    return NULL;
}

static void use_threads(const struct cpu *cpu)
{
    if (omp_get_max_threads() != cpu->threads)
        omp_set_num_threads(cpu->threads);
}

/* --- the instance --- */

/* The option's choices are auto and then the levels in their order. */
static tn_status choose_isa(struct cpu *cpu)
{
    int64_t choice = cpu->host->get_int(cpu->host, "isa");
    int detected = cpu_isa_detect();
    cpu->isa = choice > 0 ? (int)choice - 1 : detected;
    if (cpu->isa > detected)
        return cpu->host->fail(cpu->host, TN_UNSUPPORTED, "isa: this processor has no %s; use auto or %s",
                               cpu_isa_name(cpu->isa), cpu_isa_name(detected));
    cpu->vec = cpu_vec_pick(cpu->isa);
    return TN_OK;
}

static tn_status create_engine(struct cpu *cpu)
{
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        return cpu->host->fail(cpu->host, TN_ERROR, "oneDNN has no cpu engine");
    if (dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success) {
        dnnl_engine_destroy(engine);
        return cpu->host->fail(cpu->host, TN_ERROR, "oneDNN cannot make a stream");
    }
    cpu->engine = engine;
    cpu->stream = stream;
    return TN_OK;
}

static void cpu_destroy(void *self)
{
    struct cpu *cpu = self;
    if (!cpu)
        return;
    dnnl_stream_destroy(cpu->stream);
    dnnl_engine_destroy(cpu->engine);
    cpu->host->release(cpu->host, cpu);
}

static tn_status cpu_create(const struct tn_host *host, void **self)
{
    struct cpu *cpu = host->alloc(host, sizeof *cpu);
    if (!cpu)
        return host->fail(host, TN_NO_MEMORY, "no memory for the device");
    memset(cpu, 0, sizeof *cpu);
    cpu->host = host;
    int64_t threads = host->get_int(host, "threads");
    cpu->threads = threads > 0 ? (int)threads : cpu_threads_auto(cpu);
    use_threads(cpu);
    tn_status status = choose_isa(cpu);
    if (status == TN_OK)
        status = create_engine(cpu);
    if (status != TN_OK) {
        host->release(host, cpu);
        return status;
    }
    *self = cpu;
    return TN_OK;
}

/* How many ranks there are is known only now. */
static tn_status device_probe(void *self, struct tn_device_info *info)
{
    struct cpu *cpu = self;
    if (cpu->host->get_int(cpu->host, "threads") < 0)
        cpu->threads = cpu_threads_auto(cpu);
    use_threads(cpu);
    return cpu_probe(cpu, info);
}

/* --- memory, queues, events --- */

static uint64_t alignment_of(uint64_t bytes)
{
    return bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
}

static tn_status mem_alloc(void *self, uint32_t space, uint64_t bytes, void **memory)
{
    struct cpu *cpu = self;
    if (space != TN_SPACE_DEVICE && space != TN_SPACE_HOST)
        return cpu->host->fail(cpu->host, TN_UNSUPPORTED, "the cpu device has no memory in space %u", space);
    uint64_t alignment = alignment_of(bytes);
    if (bytes > UINT64_MAX - alignment)
        return cpu->host->fail(cpu->host, TN_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
    uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
    *memory = aligned_alloc(alignment, rounded ? rounded : alignment);
    if (!*memory)
        return cpu->host->fail(cpu->host, TN_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
    if (alignment == HUGE_PAGE)
        (void)madvise(*memory, rounded, MADV_HUGEPAGE); /* a hint: kernels without huge pages refuse it */
    return TN_OK;
}

static void mem_free(void *self, uint32_t space, void *memory, uint64_t bytes)
{
    free(memory);
}

struct tn_queue {
    struct cpu *cpu;
};

struct tn_event {
    struct cpu *cpu;
};

static tn_status queue_create(void *self, struct tn_queue **queue)
{
    struct cpu *cpu = self;
    *queue = cpu->host->alloc(cpu->host, sizeof **queue);
    if (!*queue)
        return cpu->host->fail(cpu->host, TN_NO_MEMORY, "no memory for a queue");
    (*queue)->cpu = cpu;
    return TN_OK;
}

static void queue_destroy(void *self, struct tn_queue *queue)
{
    struct cpu *cpu = self;
    cpu->host->release(cpu->host, queue);
}

static tn_status queue_sync(void *self, struct tn_queue *queue)
{
    return TN_OK;
}

static tn_status event_create(void *self, struct tn_event **event)
{
    struct cpu *cpu = self;
    *event = cpu->host->alloc(cpu->host, sizeof **event);
    if (!*event)
        return cpu->host->fail(cpu->host, TN_NO_MEMORY, "no memory for an event");
    (*event)->cpu = cpu;
    return TN_OK;
}

static void event_destroy(void *self, struct tn_event *event)
{
    struct cpu *cpu = self;
    cpu->host->release(cpu->host, event);
}

static tn_status event_nothing(void *self, struct tn_event *event, struct tn_queue *queue)
{
    return TN_OK;
}

static tn_status copy(void *self, void *to, const void *from, uint64_t bytes, struct tn_queue *queue)
{
    if (bytes && to != from)
        memmove(to, from, bytes);
    return TN_OK;
}

/* --- kernels --- */

static void copy_tensors(struct tn_tensor *to, const struct tn_tensor *const *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (from[i])
            to[i] = *from[i];
        else
            memset(&to[i], 0, sizeof to[i]);
    }
}

static void kernel_destroy(void *self, struct tn_kernel *kernel)
{
    struct cpu *cpu = self;
    if (!kernel)
        return;
    if (kernel->release)
        kernel->release(kernel);
    cpu->host->release(cpu->host, kernel);
}

/* A kernel with its tensors, bound by its family. The tensors lie behind it in one block. */
static tn_status bind(void *self, const struct tn_op_desc *op, void *scratch, struct tn_kernel **out)
{
    struct cpu *cpu = self;
    const struct cpu_row *row = row_find(op->opcode);
    if (!row)
        return cpu->host->fail(cpu->host, TN_UNSUPPORTED, "the cpu device has no kernel for %s", op->name);
    uint64_t bytes = sizeof(struct tn_kernel) + (op->n_in + op->n_out) * sizeof(struct tn_tensor);
    struct tn_kernel *kernel = cpu->host->alloc(cpu->host, bytes);
    if (!kernel)
        return cpu->host->fail(cpu->host, TN_NO_MEMORY, "no memory for a kernel of %s", op->name);
    memset(kernel, 0, bytes);
    kernel->cpu = cpu;
    kernel->name = op->name;
    kernel->n_in = op->n_in;
    kernel->n_out = op->n_out;
    kernel->in = (struct tn_tensor *)(kernel + 1);
    kernel->out = kernel->in + op->n_in;
    kernel->scratch = scratch;
    copy_tensors(kernel->in, op->in, op->n_in);
    copy_tensors(kernel->out, op->out, op->n_out);
    use_threads(cpu);
    tn_status status = row->bind(cpu, op, kernel);
    if (status != TN_OK) {
        kernel_destroy(cpu, kernel);
        return status;
    }
    *out = kernel;
    return TN_OK;
}

static tn_status supports(void *self, const struct tn_op_desc *op)
{
    struct tn_kernel *kernel = NULL;
    tn_status status = bind(self, op, NULL, &kernel);
    if (status == TN_OK)
        kernel_destroy(self, kernel);
    return status;
}

static tn_status workspace(void *self, const struct tn_op_desc *op, uint64_t *bytes)
{
    struct cpu *cpu = self;
    const struct cpu_row *row = row_find(op->opcode);
    if (!row)
        return cpu->host->fail(cpu->host, TN_UNSUPPORTED, "the cpu device has no kernel for %s", op->name);
    use_threads(cpu);
    *bytes = row->workspace ? row->workspace(cpu, op) : 0;
    return TN_OK;
}

static tn_status launch(void *self, struct tn_kernel *kernel, struct tn_queue *queue)
{
    use_threads(self);
    unsigned before = cpu_flush_begin();
    kernel->run(kernel);
    cpu_flush_end(before);
    return TN_OK;
}

static double cost(void *self, const struct tn_op_desc *op)
{
    use_threads(self);
    return cpu_cost(self, op);
}

static const struct tn_device device_table = {
    .struct_size = sizeof(struct tn_device),
    .create = cpu_create,
    .destroy = cpu_destroy,
    .probe = device_probe,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .queue_sync = queue_sync,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_nothing,
    .event_wait = event_nothing,
    .supports = supports,
    .workspace = workspace,
    .bind = bind,
    .kernel_destroy = kernel_destroy,
    .launch = launch,
    .copy = copy,
    .cost = cost,
};

static const char *const isa_choices[] = { "auto", "baseline", "avx2", "avx512", "avx512_bf16", "amx", NULL };

static const struct tn_option options[] = {
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_INT,
      .flags = TN_OPT_AUTO,
      .key = "threads",
      .fallback = "auto",
      .min = 1,
      .max = 1024,
      .help = "Threads of one rank; auto shares the cores of the affinity mask among the ranks of this host." },
    { .struct_size = sizeof(struct tn_option),
      .type = TN_OPT_ENUM,
      .key = "isa",
      .fallback = "auto",
      .choices = isa_choices,
      .help = "Highest instruction level that Tenon's own kernels use (oneDNN chooses for itself)." },
};

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,
    .min_host_minor = 1,
    .kind = TN_PLUGIN_DEVICE,
    .id = "cpu",
    .version = "0.1.0",
    .summary = "Trains on the cores of this machine with oneDNN and OpenMP.",
    .build_info = "C " __VERSION__ ", oneDNN",
    .table = &device_table,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

TN_EXPORT const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    return &plugin;
}
