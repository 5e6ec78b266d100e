/* A flat program on the cpu device, in process: planned, bound, written, stepped, read. Values go by name. */
#ifndef TENON_TESTS_FLOW_CPU_H
#define TENON_TESTS_FLOW_CPU_H

#include "cpu_harness.h"
#include "flow.h"

struct flow_run {
    struct harness harness;
    struct tn_machine machine;
    struct tn_plan plan;
    struct tn_exec *exec;
    const struct tn_program *flat;
};

/* `fill`: byte that the memory holds before anything is written. */
void flow_run_open(struct flow_run *run, const struct tn_program *flat, unsigned char fill);
void flow_run_close(struct flow_run *run);
int64_t flow_run_elements(const struct flow_run *run, const char *name);
void flow_run_write(struct flow_run *run, const char *name, const void *data); /* 4 bytes an element */
void flow_run_read(struct flow_run *run, const char *name, void *data);
void flow_run_step(struct flow_run *run);
float flow_run_scalar(struct flow_run *run, const char *name);

#endif
