/* nccl where there is a GPU: alone in its group, every operation, dtype and size, through GPU memory; many groups, made
 * by id and by split; operations started together; an abort. The suite itself reads what mem_alloc gives, which a
 * processor can do only of a stand-in (fake_gpu.c).
 *
 *     nccl NCCL.so      77, with a line that says why, where there is no GPU */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "loopback.h"
#include "plainhost.h"

#define SECONDS(s) ((uint64_t)((s)*1e9))
#define CHECK(cond)                                                                \
    do {                                                                           \
        if (!(cond)) {                                                             \
            fprintf(stderr, "nccl.c:%d: %s: %s\n", __LINE__, #cond, host.message); \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

enum { MOST = 100003 * 8 };

static struct plainhost host;
static const struct tn_collective *t;
static void *self;

static tn_status call(struct tn_comm *c, int op, const void *in, void *out, uint64_t count, uint32_t dtype,
                      struct tn_request **q)
{
    switch (op) {
    case 0: return t->all_reduce(c, in, out, count, dtype, TN_RED_SUM, NULL, q);
    case 1: return t->all_reduce(c, in, out, count, dtype, TN_RED_MAX, NULL, q);
    case 2: return t->all_gather(c, in, out, count, dtype, NULL, q);
    case 3: return t->reduce_scatter(c, in, out, count, dtype, TN_RED_SUM, NULL, q);
    case 4: return t->all_to_all(c, in, out, count, dtype, NULL, q);
    default: return t->broadcast(c, in, out, count, dtype, 0, NULL, q);
    }
}

/* In a group of one each of them copies. */
static void run_all(struct tn_comm *c, char *gpu, char *sent, char *got)
{
    static const uint64_t counts[] = { 0, 1, 7, 4099, 100003 };
    static const uint32_t bytes[] = {
#define TN_X(name, number, text, size) [number] = size,
        TN_DTYPE_LIST(TN_X)
#undef TN_X
    };
    for (int op = 0; op < 6; op++)
        for (uint32_t dtype = TN_F32; dtype <= TN_F64; dtype++)
            for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
                uint64_t n = counts[k] * bytes[dtype];
                struct tn_request *q;
                memset(got, 0, n);
                CHECK(cudaMemcpy(gpu, sent, n, cudaMemcpyHostToDevice) == cudaSuccess);
                CHECK(cudaMemset(gpu + MOST, 0, n) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
                CHECK(call(c, op, gpu, gpu + MOST, counts[k], dtype, &q) == TN_OK);
                CHECK(t->wait(q, SECONDS(20)) == TN_OK);
                CHECK(cudaMemcpy(got, gpu + MOST, n, cudaMemcpyDeviceToHost) == cudaSuccess);
                CHECK(memcmp(sent, got, n) == 0);
            }
}

static void run_messages(struct tn_comm *c, char *gpu, char *sent, char *got)
{
    struct tn_request *q[2];
    CHECK(cudaMemcpy(gpu, sent, MOST, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(t->send(c, gpu, MOST / 4, TN_F32, 0, NULL, &q[0]) == TN_OK);
    CHECK(t->recv(c, gpu + MOST, MOST / 4, TN_F32, 0, NULL, &q[1]) == TN_OK);
    CHECK(t->wait(q[0], SECONDS(20)) == TN_OK && t->wait(q[1], SECONDS(20)) == TN_OK);
    CHECK(cudaMemcpy(got, gpu + MOST, MOST, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(memcmp(sent, got, MOST) == 0);
}

/* What is started together is done together. */
static void run_together(struct tn_comm *c, char *gpu, char *sent, char *got)
{
    enum { N = 8, BYTES = 4096 };
    struct tn_request *q[N + 1];
    CHECK(cudaMemcpy(gpu, sent, N * BYTES, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemset(gpu + MOST, 0, N * BYTES) == cudaSuccess && t->group_start(self) == TN_OK);
    for (int i = 0; i < N; i++)
        CHECK(call(c, i % 6, gpu + i * BYTES, gpu + MOST + i * BYTES, BYTES / 4, TN_F32, &q[i]) == TN_OK);
    CHECK(t->barrier(c, NULL, &q[N]) == TN_OK && t->group_end(self) == TN_OK);
    for (int i = N; i >= 0; i--)
        CHECK(t->wait(q[i], SECONDS(20)) == TN_OK);
    CHECK(cudaMemcpy(got, gpu + MOST, N * BYTES, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(memcmp(sent, got, N * BYTES) == 0);
}

int main(int argc, char **argv)
{
    const struct tn_plugin *plugin = argc > 1 ? plainhost_load(argv[1], TN_PLUGIN_COLLECTIVE) : NULL;
    if (!plugin)
        return 1;
    t = plugin->table;
    plainhost_init(&host, plugin);
    if (t->create(&host.host, NULL, NULL, &self) == TN_UNSUPPORTED) {
        printf("%s: skipped\n", host.message);
        return 77;
    }
    struct loopback *lb = loopback_create(1);
    struct tn_bootstrap bootstrap = loopback_bootstrap(lb, 0);
    int32_t me = 0;
    struct tn_comm *c, *twin;
    struct tn_request *q;
    void *gpu;
    char *sent = malloc(MOST), *got = malloc(MOST);
    for (int i = 0; i < MOST; i++)
        sent[i] = (char)(i % 64); /* no NaN in any dtype */
    CHECK(self && t->init(self, &bootstrap, SECONDS(20)) == TN_OK);
    CHECK(t->mem_alloc(self, 2 * MOST, &gpu) == TN_OK);
    CHECK(t->comm_create(self, "one", &me, 1, SECONDS(60), &c) == TN_OK);
    CHECK(t->comm_create(self, "split", &me, 1, SECONDS(60), &twin) == TN_OK);
    run_all(c, gpu, sent, got);
    run_all(twin, gpu, sent, got);
    run_messages(c, gpu, sent, got);
    run_together(c, gpu, sent, got);
    CHECK(t->barrier(c, NULL, &q) == TN_OK && t->wait(q, SECONDS(20)) == TN_OK);
    CHECK(t->all_reduce(c, sent, got, 4, TN_F32, TN_RED_SUM, NULL, &q) == TN_INVALID); /* not in GPU memory */
    t->comm_abort(c);
    CHECK(t->barrier(c, NULL, &q) == TN_ABORTED);
    run_all(twin, gpu, sent, got); /* which goes on */
    for (int i = 0; i < 20; i++) {
        struct tn_comm *passing;
        CHECK(t->comm_create(self, "passing", &me, 1, SECONDS(60), &passing) == TN_OK);
        t->comm_destroy(passing);
    }
    t->comm_destroy(twin);
    t->comm_destroy(c);
    t->mem_free(self, gpu);
    t->destroy(self);
    loopback_destroy(lb);
    printf("all as it should be\n");
    return 0;
}
