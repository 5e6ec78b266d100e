/* Exec: what is launched, started and waited for, in which order, on a device and a backend that only write it down;
 * and what is said where something fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "flow.h"
#include "scratch.h"

static char record[4096];
static int64_t live_kernels;

static void note(const char *what, const char *name)
{
    size_t at = strlen(record);
    snprintf(record + at, sizeof record - at, "%s%s%s", at ? ", " : "", what, name);
}

/* the device */

struct tn_kernel {
    char name[32];
};
static const char *missing_kernel = "", *failing_kernel = "";

static tn_status supports(void *self, const struct tn_op_desc *op)
{
    return strcmp(op->name, missing_kernel) ? TN_OK : TN_UNSUPPORTED;
}

static tn_status workspace(void *self, const struct tn_op_desc *op, uint64_t *bytes)
{
    *bytes = strcmp(op->name, "gelu") ? 1 : 1000;
    return TN_OK;
}

static tn_status bind(void *self, const struct tn_op_desc *op, void *scratch, struct tn_kernel **kernel)
{
    if (strcmp(op->name, missing_kernel) == 0)
        return TN_UNSUPPORTED;
    for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
        const struct tn_tensor *t = i < op->n_in ? op->in[i] : op->out[i - op->n_in];
        assert_true(!t || (t->data && (uintptr_t)t->data % 64 == 0));
    }
    *kernel = calloc(1, sizeof **kernel);
    snprintf((*kernel)->name, sizeof(*kernel)->name, "%s", op->name);
    live_kernels++;
    return TN_OK;
}

static void kernel_destroy(void *self, struct tn_kernel *kernel)
{
    free(kernel);
    live_kernels--;
}

static tn_status launch(void *self, struct tn_kernel *kernel, struct tn_queue *queue)
{
    note("", kernel->name);
    return strcmp(kernel->name, failing_kernel) ? TN_OK : TN_ERROR;
}

static tn_status queue_sync(void *self, struct tn_queue *queue)
{
    note("sync", "");
    return TN_OK;
}

static const struct tn_device device = {
    .struct_size = sizeof device,
    .supports = supports,
    .workspace = workspace,
    .bind = bind,
    .kernel_destroy = kernel_destroy,
    .launch = launch,
    .queue_sync = queue_sync,
};

/* the backend */

struct tn_comm {
    int32_t missing;
};
struct tn_request {
    char name[32];
    int tests;
};
static struct tn_request requests[32];
static uint32_t n_requests;
static tn_status start_status, wait_status; /* of every operation */
static int at_once;                         /* done when started: no request is given */

static tn_status started(const char *name, uint64_t count, struct tn_request **r)
{
    struct tn_request *request = &requests[n_requests++ % 32];
    snprintf(request->name, sizeof request->name, "%s %d", name, (int)count);
    request->tests = 0;
    note("start ", request->name);
    *r = at_once ? NULL : request;
    return start_status;
}

static tn_status all_reduce(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            uint32_t red, struct tn_queue *q, struct tn_request **r)
{
    return started("all_reduce", count, r);
}

static tn_status all_gather(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                            struct tn_queue *q, struct tn_request **r)
{
    return started("all_gather", count, r);
}

static tn_status reduce_scatter(struct tn_comm *c, const void *send, void *recv, uint64_t count, uint32_t dtype,
                                uint32_t red, struct tn_queue *q, struct tn_request **r)
{
    return started("reduce_scatter", count, r);
}

static tn_status group_start(void *self)
{
    note("group", "");
    return TN_OK;
}

static tn_status group_end(void *self)
{
    note("end", "");
    return TN_OK;
}

static tn_status test(struct tn_request *r)
{
    return r->tests++ ? TN_OK : TN_PENDING;
}

static tn_status wait_for(struct tn_request *r, uint64_t timeout_ns)
{
    note("wait ", r->name);
    tn_status status = wait_status;
    if (status == TN_PENDING) /* once more */
        wait_status = TN_OK;
    return status;
}

static void progress(void *self)
{
    note("progress", "");
}

static tn_status last_error(struct tn_comm *c, struct tn_comm_error *error)
{
    error->peer = c->missing;
    error->message = "the wire is cut";
    return TN_OK;
}

static const struct tn_collective backend = {
    .struct_size = sizeof backend,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .test = test,
    .wait = wait_for,
    .progress = progress,
    .last_error = last_error,
};

/* a program, bound */

struct bound {
    struct flow f;
    struct tn_plan plan;
    struct tn_machine machine;
    struct tn_collective backend;
    struct tn_comm comm;
    struct tn_exec *exec;
    char error[256];
};

static void reset(void)
{
    record[0] = 0;
    missing_kernel = failing_kernel = "";
    start_status = wait_status = TN_OK;
    at_once = 0;
}

static void open_bound(struct bound *b, const char *text)
{
    memset(b, 0, sizeof *b);
    flow_parse(&b->f, text);
    b->backend = backend;
    b->comm.missing = 1;
    b->machine = (struct tn_machine){
        .device = &device, .carrier = { { &b->backend, NULL } }, .n_carriers = 1, .mesh = &b->f.mesh, .timeout_ns = 1
    };
    for (int32_t axis = 0; axis < b->f.mesh.n_axes; axis++)
        b->machine.comm[axis][0] = b->machine.comm[axis][3] = b->f.mesh.axis[axis].size > 1 ? &b->comm : NULL;
    int64_t scratch = tn_exec_scratch(&b->machine, &b->f.p, b->error, sizeof b->error);
    if (scratch < 0)
        return;
    tn_plan_init(&b->plan, &b->f.p, NULL, scratch);
    b->machine.arena = aligned_alloc(64, (size_t)tn_plan_bytes(&b->plan) + 64);
    b->exec = tn_exec_bind(&b->machine, &b->plan, b->error, sizeof b->error);
}

static void close_bound(struct bound *b)
{
    tn_exec_destroy(b->exec);
    tn_plan_finish(&b->plan);
    free(b->machine.arena);
    flow_finish(&b->f);
    assert_int_equal(live_kernels, 0);
    reset();
}

static void runs(const char *text, const char *expected)
{
    struct bound b;
    open_bound(&b, text);
    assert_non_null(b.exec);
    for (int step = 0; step < 2; step++) { /* nothing is left of the first */
        record[0] = 0;
        assert_int_equal(tn_exec_step(b.exec), TN_OK);
        assert_string_equal(record, expected);
    }
    close_bound(&b);
}

#define HEAD "mesh tp=2\ninput x: f32[8] {tp: P}\ninput z: f32[16] {tp: R}\nregion forward\n"
#define REDUCE "  y: f32[8] {tp: R} = all_reduce(x: x) axis=0 red=0\n"

static void communication_runs_beside_what_does_not_need_it(void **state)
{
    runs(HEAD REDUCE
         "  a: f32[16] {tp: R} = gelu(x: z)\n  b: f32[8] {tp: R} = gelu(x: y)\n  c: f32[16] {tp: R} = gelu(x: a)\n",
         "start all_reduce 8, gelu, progress, wait all_reduce 8, gelu, gelu, sync");
}

static void what_nobody_needs_is_waited_for_at_the_end(void **state)
{
    runs(HEAD REDUCE "  a: f32[16] {tp: R} = gelu(x: z)\n",
         "start all_reduce 8, gelu, progress, wait all_reduce 8, sync");
}

/* Counts are elements a rank gives or gets; a second user waits no more. */
static void counts_are_per_rank(void **state)
{
    runs("mesh tp=2\ninput x: f32[8] {tp: S0}\ninput p: f32[12] {tp: P}\nregion forward\n"
         "  g: f32[8] {tp: R} = all_gather(x: x) axis=0 dim=0\n"
         "  s: f32[12] {tp: S0} = reduce_scatter(x: p) axis=0 dim=0 red=0\n"
         "  a: f32[8] {tp: R} = gelu(x: g)\n  b: f32[8] {tp: R} = gelu(x: g)\n",
         "start all_gather 4, start reduce_scatter 6, wait all_gather 4, gelu, progress, gelu, progress, "
         "wait reduce_scatter 6, sync");
}

/* y may lie on x's memory only once the gather has read it. */
static void inputs_are_not_overwritten_while_they_are_sent(void **state)
{
    runs("mesh tp=2\ninput x: f32[8] {tp: S0}\nregion forward\n  a: f32[8] {tp: S0} = gelu(x: x)\n"
         "  g: f32[8] {tp: R} = all_gather(x: a) axis=0 dim=0\n  y: f32[8] {tp: S0} = add(a: a, b: a)\n",
         "gelu, start all_gather 4, wait all_gather 4, add, sync");
}

static void requests_that_are_done_at_once_are_not_counted(void **state)
{
    reset();
    at_once = 1;
    struct bound b;
    open_bound(&b, HEAD REDUCE "  a: f32[16] {tp: R} = gelu(x: z)\n  b: f32[8] {tp: R} = gelu(x: y)\n");
    assert_int_equal(tn_exec_step(b.exec), TN_OK);
    assert_string_equal(record, "start all_reduce 8, gelu, gelu, sync");
    close_bound(&b);
}

static void neighbours_that_wait_for_nothing_start_together(void **state)
{
    reset();
    struct bound b;
    open_bound(
        &b, "mesh tp=2\nrank tp=0\ninput x: f32[8] {tp: S0}\ninput y: f32[8] {tp: S0}\nregion forward\n"
            "  a: f32[8] {tp: R} = all_gather(x: x) axis=0 dim=0\n  b: f32[8] {tp: R} = all_gather(x: y) axis=0 dim=0\n"
            "  c: f32[8] {tp: S0} = slice(x: a) axis=0 dim=0\n  d: f32[8] {tp: R} = all_gather(x: c) axis=0 dim=0\n");
    assert_non_null(b.exec);
    tn_exec_destroy(b.exec);
    b.backend.group_start = group_start;
    b.backend.group_end = group_end;
    b.exec = tn_exec_bind(&b.machine, &b.plan, b.error, sizeof b.error);
    assert_int_equal(tn_exec_step(b.exec), TN_OK);
    assert_string_equal(record,
                        "group, start all_gather 4, start all_gather 4, end, wait all_gather 4, slice, progress, "
                        "start all_gather 4, wait all_gather 4, wait all_gather 4, sync");
    close_bound(&b);
}

static void a_program_without_ops_only_empties_the_queue(void **state)
{
    runs("param w: f32[4]\n", "sync");
}

/* Runs a step that must fail with `status`, and checks what is logged. */
static void fails(struct bound *b, const char *text, tn_status status, const char *const *said)
{
    open_bound(b, text);
    assert_non_null(b->exec);
    int saved = scratch_capture(2, "log");
    tn_status got = tn_exec_step(b->exec);
    scratch_restore(2, saved);
    char *log = scratch_read("log", NULL);
    assert_int_equal(got, status);
    for (; *said; said++)
        if (!strstr(log, *said))
            fail_msg("expected \"%s\" in \"%s\"", *said, log);
    free(log);
    close_bound(b);
}

#define SAID(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define USED HEAD REDUCE "  b: f32[8] {tp: R} = gelu(x: y)\n"

static void failures_name_the_op_the_group_and_the_reason(void **state)
{
    struct bound b;
    reset();
    wait_status = TN_PEER;
    fails(&b, USED, TN_PEER, SAID("all_reduce y (8 elements) on tp [0 1] failed: the wire is cut"));
    start_status = TN_INVALID;
    fails(&b, USED, TN_INVALID, SAID("all_reduce y (8 elements) on tp [0 1] failed: the wire is cut"));
    failing_kernel = "gelu";
    fails(&b, USED, TN_ERROR, SAID("b failed on the device"));
}

static void time_outs_name_who_is_missing(void **state)
{
    struct bound b;
    reset();
    wait_status = TN_TIMEOUT;
    fails(&b, USED, TN_TIMEOUT, SAID("all_reduce y (8 elements) on tp [0 1]: rank 1 did not arrive within"));
}

static void a_backend_may_have_no_last_error(void **state)
{
    struct bound b;
    reset();
    open_bound(&b, USED);
    tn_exec_destroy(b.exec);
    b.backend.last_error = NULL;
    b.exec = tn_exec_bind(&b.machine, &b.plan, b.error, sizeof b.error);
    wait_status = TN_TIMEOUT;
    int saved = scratch_capture(2, "log");
    tn_status status = tn_exec_step(b.exec);
    scratch_restore(2, saved);
    assert_int_equal(status, TN_TIMEOUT);
    char *log = scratch_read("log", NULL);
    assert_non_null(strstr(log, "on tp [0 1]: some rank did not arrive within"));
    free(log);
    close_bound(&b);
}

static void waits_that_are_pending_go_on(void **state)
{
    reset();
    wait_status = TN_PENDING;
    struct bound b;
    open_bound(&b, USED);
    tn_exec_destroy(b.exec);
    b.machine.timeout_ns = 1000000000;
    b.exec = tn_exec_bind(&b.machine, &b.plan, b.error, sizeof b.error);
    assert_int_equal(tn_exec_step(b.exec), TN_OK);
    assert_string_equal(record, "start all_reduce 8, wait all_reduce 8, wait all_reduce 8, gelu, sync");
    close_bound(&b);
}

static void what_cannot_run_is_refused_by_name(void **state)
{
    struct bound b;
    reset();
    missing_kernel = "gelu";
    open_bound(&b, USED);
    assert_null(b.exec);
    assert_string_equal(b.error, "the device has no kernel for b = gelu");
    close_bound(&b);
    open_bound(&b, "mesh tp=1\ninput x: f32[8] {tp: R}\nregion forward\n  a: f32[8] {tp: R} = gelu(x: x)\n"
                   "  y: f32[8] {tp: R} = broadcast(x: a) axis=0 root=0\n");
    assert_null(b.exec);
    assert_string_equal(b.error, "y = broadcast: its axis has a single rank, with nobody to talk to");
    close_bound(&b);
}

static void scratch_is_the_most_that_one_op_needs(void **state)
{
    struct bound b;
    reset();
    open_bound(&b, HEAD "  a: f32[16] {tp: R} = gelu(x: z)\n  b: f32[16] {tp: R} = add(a: a, b: z)\n");
    assert_int_equal(b.plan.scratch_bytes, 1024);
    close_bound(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communication_runs_beside_what_does_not_need_it),
        cmocka_unit_test(what_nobody_needs_is_waited_for_at_the_end),
        cmocka_unit_test(counts_are_per_rank),
        cmocka_unit_test(inputs_are_not_overwritten_while_they_are_sent),
        cmocka_unit_test(requests_that_are_done_at_once_are_not_counted),
        cmocka_unit_test(neighbours_that_wait_for_nothing_start_together),
        cmocka_unit_test(a_program_without_ops_only_empties_the_queue),
        cmocka_unit_test(failures_name_the_op_the_group_and_the_reason),
        cmocka_unit_test(time_outs_name_who_is_missing),
        cmocka_unit_test(a_backend_may_have_no_last_error),
        cmocka_unit_test(waits_that_are_pending_go_on),
        cmocka_unit_test(what_cannot_run_is_refused_by_name),
        cmocka_unit_test(scratch_is_the_most_that_one_op_needs),
    };
    scratch_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_close();
    return failed;
}
