/* A flat program on the cpu device: see flow_cpu.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "flow_cpu.h"

void flow_run_open(struct flow_run *run, const struct tn_program *flat, unsigned char fill)
{
    char error[256];
    memset(run, 0, sizeof *run);
    harness_open(&run->harness, 1, 0);
    struct tn_machine *m = &run->machine;
    run->flat = flat;
    m->device = run->harness.device;
    m->device_self = run->harness.self;
    m->mesh = flat->mesh;
    assert_int_equal(m->device->queue_create(m->device_self, &m->queue), TN_OK);
    int64_t scratch = tn_exec_scratch(m, flat, error, sizeof error);
    if (scratch < 0)
        fail_msg("%s", error);
    tn_plan_init(&run->plan, flat, NULL, scratch);
    m->arena_bytes = (uint64_t)tn_plan_bytes(&run->plan);
    void *memory = NULL;
    assert_int_equal(m->device->mem_alloc(m->device_self, TN_SPACE_DEVICE, m->arena_bytes, &memory), TN_OK);
    m->arena = memory;
    memset(memory, fill, m->arena_bytes);
    run->exec = tn_exec_bind(m, &run->plan, error, sizeof error);
    if (!run->exec)
        fail_msg("%s", error);
}

void flow_run_close(struct flow_run *run)
{
    struct tn_machine *m = &run->machine;
    tn_exec_destroy(run->exec);
    tn_plan_finish(&run->plan);
    m->device->mem_free(m->device_self, TN_SPACE_DEVICE, m->arena, m->arena_bytes);
    m->device->queue_destroy(m->device_self, m->queue);
    harness_close(&run->harness);
}

int64_t flow_run_elements(const struct flow_run *run, const char *name)
{
    return tn_local_elements(run->flat, flow_value(run->flat, name));
}

void flow_run_write(struct flow_run *run, const char *name, const void *data)
{
    uint64_t bytes = 4 * (uint64_t)flow_run_elements(run, name);
    assert_int_equal(tn_exec_write(run->exec, flow_value(run->flat, name), data, bytes), TN_OK);
}

void flow_run_read(struct flow_run *run, const char *name, void *data)
{
    uint64_t bytes = 4 * (uint64_t)flow_run_elements(run, name);
    assert_int_equal(tn_exec_read(run->exec, flow_value(run->flat, name), data, bytes), TN_OK);
}

void flow_run_step(struct flow_run *run)
{
    assert_int_equal(tn_exec_step(run->exec), TN_OK);
}

float flow_run_scalar(struct flow_run *run, const char *name)
{
    float value;
    assert_int_equal(flow_run_elements(run, name), 1);
    flow_run_read(run, name, &value);
    return value;
}
