/* tenon dump: prints the program after any arrow of the flow, as text that parses back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "tool.h"

static void usage(FILE *out)
{
    fprintf(out, "usage: tenon dump JOB.ini --after STAGE [--rank R] [-n RANKS] [--set SECTION.KEY=VALUE]... [--eval]\n\n"
                 "STAGE: model, grad, place:NAME, resolve, lower:NAME, lower (after all, and fused), schedule, bound\n"
                 "  --rank R  compile for rank R (default 0)\n"
                 "  --eval    the validation program instead of the training program\n");
}

struct dump {
    const char *stage;
    int found;
};

static void print_memory(const struct tn_plan *plan)
{
    for (tn_value v = 1; v <= plan->p->n_values; v++)
        if (plan->offset[v] >= 0)
            printf("# at %12lld  %s\n", (long long)plan->offset[v], plan->p->values[v].name);
    printf("# arena %lld bytes: persistent %lld, transient %lld, scratch %lld\n", (long long)tn_plan_bytes(plan),
           (long long)plan->persistent_bytes, (long long)plan->transient_bytes, (long long)plan->scratch_bytes);
}

static int after(void *ctx, const char *stage, const struct tn_program *p, const struct tn_plan *plan)
{
    struct dump *dump = ctx;
    if (strcmp(stage, dump->stage) != 0)
        return 0;
    tn_program_print(p, stdout);
    if (plan)
        print_memory(plan);
    dump->found = 1;
    return 1;
}

int tenon_dump_main(int argc, char **argv)
{
    struct tool_args args = { 0 };
    struct dump dump = { 0 };
    int mode = TN_PROGRAM_TRAIN;
    int32_t rank = 0;
    for (int i = 1; i < argc; i++) {
        int taken = 0;
        if (strcmp(argv[i], "--help") == 0) {
            usage(stdout);
            return TOOL_DONE;
        } else if (strcmp(argv[i], "--after") == 0 && i + 1 < argc)
            dump.stage = argv[++i];
        else if (strcmp(argv[i], "--rank") == 0 && i + 1 < argc)
            rank = (int32_t)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--eval") == 0)
            mode = TN_PROGRAM_EVAL;
        else if ((taken = tool_arg(&args, argc, argv, &i)) == 0)
            return tool_unknown("dump", argv[i]);
        if (taken < 0)
            return TOOL_USAGE;
    }
    if (!args.manifest || !dump.stage) {
        usage(stderr);
        return TOOL_USAGE;
    }
    struct tn_job job;
    int code = TOOL_USAGE;
    size_t problems = tn_job_open(&job, args.manifest, args.overrides, args.n_overrides, args.ranks);
    if (problems == 0 && (rank < 0 || rank >= job.mesh.world)) {
        fprintf(stderr, "tenon dump: --rank %d: the job has ranks 0 to %d\n", rank, job.mesh.world - 1);
    } else if (problems == 0) {
        struct tn_watch watch = { .after = after, .ctx = &dump };
        struct tn_compiled compiled;
        tn_job_compile(&job, mode, rank, 0, 0, NULL, &watch, &compiled);
        tn_compiled_finish(&compiled);
        if (dump.found)
            code = TOOL_DONE;
        else if (job.diag.count == 0)
            fprintf(stderr, "tenon dump: no stage %s; see tenon dump --help\n", dump.stage);
    }
    tn_diag_print(&job.diag, stderr);
    tn_job_close(&job);
    return code;
}
