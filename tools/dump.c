/* tenon dump: prints the program after any arrow of the flow, as text that parses back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "job.h"
#include "program/program_text.h"
#include "timeline.h"
#include "tool.h"

static void usage(FILE *out)
{
    fprintf(
        out,
        "usage: tenon dump JOB.ini --after STAGE [--format F] [--rank R] [--eval] [-n RANKS] [--set S.KEY=VALUE]...\n\n"
        "STAGE: model, grad, place:NAME, resolve, lower:NAME, lower (after all, and fused), schedule, bound\n"
        "  --format timeline  after schedule: what each stage of the pipeline does when, drawn as text, and how much "
        "of\n"
        "                     the time ranks wait; timeline-svg: as a picture; program (default): the program\n"
        "  --rank R  compile for rank R (default 0)\n"
        "  --eval    the validation program instead of the training program\n");
}

struct dump {
    const char *stage;
    int found;
    struct tn_buf stages; /* those passed by, for the message if it is none of them */
};

static void print_memory(const struct tn_plan *plan)
{
    for (tn_value v = 1; v <= plan->p->n_values; v++)
        if (plan->offset[v] >= 0)
            printf("# at %12lld  %s\n", (long long)plan->offset[v], plan->p->values[v].name);
    printf("# arena %lld bytes: persistent %lld, transient %lld, scratch %lld\n", (long long)tn_plan_bytes(plan),
           (long long)plan->persistent_bytes, (long long)plan->transient_bytes, (long long)plan->scratch_bytes);
    for (uint32_t space = TN_SPACE_HOST; space < TN_SPACES; space++)
        if (tn_plan_away(plan, space) > 0)
            printf("# %s %lld bytes: persistent %lld, transient %lld\n", tn_space_names[space],
                   (long long)tn_plan_away(plan, space), (long long)plan->away[space].persistent_bytes,
                   (long long)plan->away[space].transient_bytes);
}

static int after(void *ctx, const char *stage, const struct tn_program *p, const struct tn_plan *plan)
{
    struct dump *dump = ctx;
    tn_buf_printf(&dump->stages, "%s%s", dump->stages.length ? ", " : "", stage);
    if (strcmp(stage, dump->stage) != 0)
        return 0;
    tn_program_print(p, stdout);
    if (plan)
        print_memory(plan);
    dump->found = 1;
    return 1;
}

/* What the command line asks for. */
struct dump_args {
    struct tool_args common;
    const char *stage;
    int mode, format;
    int32_t rank;
};

enum { FORMAT_PROGRAM, FORMAT_TIMELINE, FORMAT_SVG };

static int read_format(const char *text, int *format)
{
    static const char *const names[] = { "program", "timeline", "timeline-svg" };
    for (int i = 0; text && i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *format = i;
            return 1;
        }
    if (text)
        fprintf(stderr, "tenon: --format %s: no such format; there are program, timeline and timeline-svg\n", text);
    return -1;
}

static int read_rank(const char *text, int32_t *rank)
{
    char *end;
    long n = text ? strtol(text, &end, 10) : -1;
    if (!text)
        return -1;
    if (!*text || *end || n < 0) {
        fprintf(stderr, "tenon: --rank %s: not a whole number from 0 on\n", text);
        return -1;
    }
    *rank = n > INT32_MAX ? INT32_MAX : (int32_t)n;
    return 1;
}

/* -1: go on. */
static int parse(struct dump_args *args, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int taken = 1;
        if (tool_is_help(argv[i])) {
            usage(stdout);
            return tool_printed(TOOL_DONE);
        } else if (strcmp(argv[i], "--after") == 0)
            taken = (args->stage = tool_value(argc, argv, &i)) ? 1 : -1;
        else if (strcmp(argv[i], "--format") == 0)
            taken = read_format(tool_value(argc, argv, &i), &args->format);
        else if (strcmp(argv[i], "--rank") == 0)
            taken = read_rank(tool_value(argc, argv, &i), &args->rank);
        else if (strcmp(argv[i], "--eval") == 0)
            args->mode = TN_PROGRAM_EVAL;
        else if ((taken = tool_arg(&args->common, argc, argv, &i)) == 0)
            return tool_unknown("dump", argv[i], (const char *[]){ "--after", "--format", "--rank", "--eval", NULL });
        if (taken < 0)
            return TOOL_USAGE;
    }
    int draws = args->format != FORMAT_PROGRAM;
    if (draws && args->stage && strcmp(args->stage, "schedule") != 0) {
        fprintf(stderr, "tenon dump: a timeline is of the program after schedule, not after %s\n", args->stage);
        return TOOL_USAGE;
    }
    if (args->common.manifest && (args->stage || draws))
        return -1;
    if (args->common.manifest)
        fprintf(stderr, "tenon dump: --after is missing; say after which stage\n");
    usage(stderr);
    return TOOL_USAGE;
}

static int dump_stage(struct tn_job *job, const struct dump_args *args)
{
    struct dump dump = { .stage = args->stage };
    struct tn_watch watch = { .after = after, .ctx = &dump };
    struct tn_compiled compiled;
    tn_buf_init(&dump.stages);
    tn_job_compile(job, args->mode, args->rank, 0, 0, NULL, &watch, &compiled);
    tn_compiled_finish(&compiled);
    if (!dump.found && job->diag.count == 0)
        fprintf(stderr, "tenon dump: this job has no stage %s; it has %s\n", args->stage, dump.stages.text);
    tn_buf_finish(&dump.stages);
    return dump.found ? TOOL_DONE : TOOL_USAGE;
}

int tenon_dump_main(int argc, char **argv)
{
    struct dump_args args = { .mode = TN_PROGRAM_TRAIN };
    int code = parse(&args, argc, argv);
    if (code >= 0)
        return code;
    struct tn_job job;
    code = TOOL_USAGE;
    size_t problems =
        tn_job_open(&job, args.common.manifest, args.common.overrides, args.common.n_overrides, args.common.ranks);
    if (problems == 0 && args.rank >= job.mesh.world)
        fprintf(stderr, "tenon dump: --rank %d: the job has ranks 0 to %d\n", args.rank, job.mesh.world - 1);
    else if (problems == 0 && args.format != FORMAT_PROGRAM)
        code = tool_timeline(&job, args.mode, args.format == FORMAT_SVG);
    else if (problems == 0)
        code = dump_stage(&job, &args);
    tn_diag_print(&job.diag, stderr);
    tn_job_close(&job);
    return tool_printed(code);
}
