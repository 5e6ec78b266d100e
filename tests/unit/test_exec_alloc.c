/* The step path neither allocates nor frees: whole jobs are trained in process, and every call of the allocator and
 * of mmap, by whichever library and thread, is counted while a step runs. One exception, which the library leaves no
 * way around: dnnl_primitive_execute makes its table of arguments anew in each call. Those few blocks are told by
 * their caller, must be small, and must all be given back. Cases are jobs (job_cases.h).
 *
 * The allocator's names are defined here, so that plugins, oneDNN and OpenMP call these; tn_exec_step is wrapped by
 * the linker. */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "job_cases.h"

#include <tenon/host.h>

enum { WARM_STEPS = 3, COUNTED_STEPS = 5 };

enum { SMALL = 1024 }; /* bytes of the largest block of oneDNN's table of arguments */

static atomic_int counting;
static atomic_ulong calls, bytes_asked;
static void *_Atomic culprit;   /* who called first */
static atomic_long onednn_held; /* blocks of its tables that are not given back yet */
static atomic_ulong onednn_calls;

/* Where oneDNN and the C++ library under it are in memory; no other user of the latter is in the process. */
static struct {
    uintptr_t begin, end;
} onednn[2];
static int n_onednn;

static int find_onednn(struct dl_phdr_info *info, size_t size, void *ctx)
{
    if (n_onednn == 2 || (!strstr(info->dlpi_name, "libdnnl") && !strstr(info->dlpi_name, "libstdc++")))
        return 0;
    onednn[n_onednn].begin = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = begin + info->dlpi_phdr[i].p_memsz;
        onednn[n_onednn].begin = begin < onednn[n_onednn].begin ? begin : onednn[n_onednn].begin;
        onednn[n_onednn].end = end > onednn[n_onednn].end ? end : onednn[n_onednn].end;
    }
    n_onednn++;
    return 0;
}

static int is_onednn(const void *caller)
{
    for (int i = 0; i < n_onednn; i++)
        if ((uintptr_t)caller >= onednn[i].begin && (uintptr_t)caller < onednn[i].end)
            return 1;
    return 0;
}

static void count(size_t bytes, int blocks, void *caller)
{
    void *none = NULL;
    if (!atomic_load_explicit(&counting, memory_order_relaxed))
        return;
    if (blocks && bytes <= SMALL && is_onednn(caller)) {
        atomic_fetch_add(&onednn_held, blocks);
        atomic_fetch_add(&onednn_calls, 1);
        return;
    }
    atomic_fetch_add(&calls, 1);
    atomic_fetch_add(&bytes_asked, bytes);
    atomic_compare_exchange_strong(&culprit, &none, caller);
}

/* the allocator */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

void *malloc(size_t bytes)
{
    count(bytes, 1, __builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count(n * bytes, 1, __builtin_return_address(0));
    return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count(bytes, 1, __builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

void free(void *memory)
{
    if (memory)
        count(0, -1, __builtin_return_address(0));
    __libc_free(memory);
}

void *memalign(size_t alignment, size_t bytes)
{
    count(bytes, 1, __builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count(bytes, 1, __builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    count(bytes, 1, __builtin_return_address(0));
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    count(bytes, 0, __builtin_return_address(0));
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

int munmap(void *at, size_t bytes)
{
    count(0, 0, __builtin_return_address(0));
    return (int)syscall(SYS_munmap, at, bytes);
}

/* the step */

static int steps;

tn_status __real_tn_exec_step(struct tn_exec *exec);
tn_status __wrap_tn_exec_step(struct tn_exec *exec);

tn_status __wrap_tn_exec_step(struct tn_exec *exec)
{
    if (n_onednn == 0)
        dl_iterate_phdr(find_onednn, NULL);
    atomic_store(&counting, steps++ >= WARM_STEPS);
    tn_status status = __real_tn_exec_step(exec);
    atomic_store(&counting, 0);
    return status;
}

/* the cases */

static const struct job_case cases[] = {
    { "gpt2, one rank", 1, { "gpt.family=gpt2" } },
    { "gpt2, one rank, two threads", 1, { "gpt.family=gpt2", "cpu.threads=2" } },
    { "gpt2, bf16, dropout", 1, { "gpt.family=gpt2", "precision.compute=bf16", "gpt.dropout=0.1" } },
    { "llama, one rank, micro-batches", 1, { "gpt.family=llama", "gpt.kv_heads=2", "data.micro_batches=4" } },
    { "llama, bf16, q/k norm, sgd",
      1,
      { "gpt.family=llama", "precision.compute=bf16", "gpt.qk_norm=on", "optimizer.kind=sgd" } },
    { "llama, tp = 2", 2, { "gpt.family=llama", "gpt.kv_heads=2", "strategies.chain=tp" } },
    { "gpt2, tp = 2, sequence parallel",
      2,
      { "gpt.family=gpt2", "strategies.chain=tp", "tp.sequence_parallel=on", "data.micro_batches=2" } },
    { "gpt2, dp = 2, small buckets", 2, { "gpt.family=gpt2", "strategies.chain=dp", "dp.bucket=32K" } },
    { "llama, bf16, fsdp = 2, micro-batches",
      2,
      { "gpt.family=llama", "precision.compute=bf16", "strategies.chain=fsdp", "data.micro_batches=2" } },
    { "gpt2, activations and states in host memory",
      1,
      { "gpt.family=gpt2", "strategies.chain=offload", "offload.min_size=0", "offload.optimizer=host" } },
    { "llama, dp = 2, activations and states on disk, micro-batches",
      2,
      { "gpt.family=llama", "strategies.chain=dp, offload", "offload.min_size=0", "offload.activations=disk",
        "offload.optimizer=disk", "data.micro_batches=2", "device.disk=." } },
    { "llama, bf16, tp = 2, dp = 2",
      4,
      { "gpt.family=llama", "precision.compute=bf16", "strategies.chain=tp, dp", "tp.size=2", "dp.size=2" } },
};
enum { CASES = sizeof cases / sizeof *cases };

static const char *const manifest =
    "[job]\nsteps = 8\n[gpt]\nlayers = 2\nhidden = 64\nheads = 4\nvocab = 256\npositions = 32\n"
    "[data]\npath = *.txt\nsequence = 32\nbatch = 8\nvalidation = 0\n[cpu]\nthreads = 1\n";

static int judge(void)
{
    Dl_info where = { 0 };
    void *who = atomic_load(&culprit);
    if (atomic_load(&calls) == 0 && atomic_load(&onednn_held) == 0 && steps == WARM_STEPS + COUNTED_STEPS) {
        fprintf(stderr, "# oneDNN's tables of arguments: %lu calls a step, all given back\n",
                atomic_load(&onednn_calls) / COUNTED_STEPS);
        return 0;
    }
    if (who)
        dladdr(who, &where);
    fprintf(stderr,
            "# %d steps (want %d); in the last %d: %lu calls, %lu bytes; the first from %s of %s; "
            "oneDNN holds %ld\n",
            steps, WARM_STEPS + COUNTED_STEPS, COUNTED_STEPS, atomic_load(&calls), atomic_load(&bytes_asked),
            where.dli_sname ? where.dli_sname : "?", where.dli_fname ? where.dli_fname : "?",
            atomic_load(&onednn_held));
    return 1;
}

static int train(int n, struct tn_job *job, struct tn_rank *rank)
{
    (void)n;
    int code = tn_job_train(job, rank, NULL, NULL);
    return code ? code : judge();
}

/* A counter that counts nothing would let everything pass. */
static int counts(void)
{
    atomic_store(&counting, 1);
    void *volatile memory = malloc(10);
    free(memory);
    void *pages = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages, 4096);
    char *copy = strdup("in another library");
    atomic_store(&counting, 0);
    free(copy);
    return atomic_load(&calls) == 5 && atomic_load(&bytes_asked) == 10 + 4096 + sizeof "in another library";
}

static const struct job_case *at(int n)
{
    return &cases[n];
}

int main(int argc, char **argv)
{
    static const struct job_cases all = { .manifest = manifest,
                                          .n = CASES,
                                          .at = at,
                                          .train = train,
                                          .first = counts,
                                          .first_name = "counts",
                                          .line = "A step takes what it was given, the %dth time as the first.\n" };
    return job_cases_main(&all, argc, argv);
}
