/* tenon run: trains. Without RANK in the environment it checks the manifest, then starts one process a rank, each of
 * which is this command again; with it, it is a rank. */
#include <stdio.h>
#include <string.h>

#include <tenon/host.h>

#include "base/log.h"
#include "kinds.h"
#include "run/metrics.h"
#include "tool.h"

static void usage(FILE *out)
{
    fprintf(
        out,
        "usage: tenon run JOB.ini [-n RANKS] [--set SECTION.KEY=VALUE]... [--steps N] [--metrics FILE]\n\n"
        "  -n RANKS    processes to start on this host; default: what the manifest says\n"
        "  --set       replaces one key of the manifest\n"
        "  --steps N   the same as --set job.steps=N\n"
        "  --metrics   writes one line of JSON a step; a resumed run goes on behind the step that it resumes\n\n"
        "With RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the environment it joins as that rank.\n");
}

static int refuse(struct tn_job *job)
{
    tn_diag_print(&job->diag, stderr);
    tn_job_close(job);
    return TOOL_USAGE;
}

static int run_rank(const struct tool_args *args, const char *metrics, int32_t ranks)
{
    struct tn_job job;
    struct tn_rank rank;
    char error[1024] = "";
    int32_t me = 0, world = 1;
    tn_launch_joined(&me, &world, error, sizeof error);
    tn_log_setup(me, TN_LOG_WARN);
    if (args->ranks && args->ranks != ranks) {
        fprintf(stderr, "tenon: -n %d: the launcher started %d ranks; leave -n out\n", (int)args->ranks, (int)ranks);
        return TOOL_USAGE;
    }
    if (tn_job_open(&job, args->manifest, args->overrides, args->n_overrides, ranks)) {
        if (me == 0)
            tn_diag_print(&job.diag, stderr);
        tn_job_close(&job);
        return TOOL_USAGE;
    }
    tn_status joined = tn_rank_init(&rank, (uint64_t)job.settings.comm_timeout_ns, error, sizeof error);
    if (joined != TN_OK) {
        tn_log(TN_LOG_ERROR, "%s", error);
        tn_job_close(&job);
        return joined == TN_INVALID ? TOOL_USAGE : TOOL_FAILED;
    }
    int code = tn_job_train(&job, rank.world > 1 ? &rank : NULL, metrics, NULL);
    tn_job_close(&job);
    if (code == TOOL_DONE || tn_rank_interrupted()) /* a failure is told by dying */
        tn_rank_finish(&rank);
    return code;
}

/* The parent of all ranks, or the only one. */
static int run_local(const struct tool_args *args, const char *metrics, char **argv)
{
    struct tn_job job;
    tn_launch_hold_signals();
    struct tn_origin origin;
    size_t problems = tn_job_open(&job, args->manifest, args->overrides, args->n_overrides, args->ranks);
    tn_job_check_data(&job);
    if (!problems) /* nothing is started before what each rank will run, and from what, is known to be good */
        tool_compile_kinds(&job, &origin, NULL, NULL);
    if (job.diag.count)
        return refuse(&job);
    char error[256];
    if (tn_metrics_check(metrics, error)) {
        tn_log(TN_LOG_ERROR, "%s", error);
        tn_job_close(&job);
        return TOOL_FAILED;
    }
    int32_t world = job.mesh.world;
    if (world > 1) {
        tn_job_close(&job);
        return tn_launch_local(world, argv);
    }
    tn_launch_alone();
    int code = tn_job_train(&job, NULL, metrics, NULL);
    tn_job_close(&job);
    return code;
}

int tenon_run_main(int argc, char **argv)
{
    struct tool_args args = { 0 };
    const char *metrics = NULL;
    for (int i = 1; i < argc; i++) {
        if (tool_is_help(argv[i])) {
            usage(stdout);
            return tool_printed(TOOL_DONE);
        }
        int taken = 0;
        if (strcmp(argv[i], "--metrics") == 0)
            taken = (metrics = tool_value(argc, argv, &i)) ? 1 : -1;
        else if ((taken = tool_arg(&args, argc, argv, &i)) == 0)
            return tool_unknown("run", argv[i], (const char *[]){ "--metrics", NULL });
        if (taken < 0)
            return TOOL_USAGE;
    }
    if (!args.manifest) {
        usage(stderr);
        return TOOL_USAGE;
    }
    char error[512];
    int32_t rank, world;
    int joined = tn_launch_joined(&rank, &world, error, sizeof error);
    if (joined < 0) {
        fprintf(stderr, "tenon: %s\n", error);
        return TOOL_USAGE;
    }
    return joined ? run_rank(&args, metrics, world) : run_local(&args, metrics, argv - 1);
}
