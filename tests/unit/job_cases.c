/* Job cases: see job_cases.h. */
#include "job_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scratch.h"

/* As `tenon run` does it. */
static int run_rank(const struct job_cases *cases, int n, struct tn_job *job)
{
    struct tn_rank rank;
    char error[512];
    int several = cases->at(n)->ranks > 1;
    if (several && tn_rank_init(&rank, 10000000000u, error, sizeof error) != TN_OK) {
        fprintf(stderr, "# %s\n", error);
        return 1;
    }
    int code = cases->train(n, job, several ? &rank : NULL);
    if (several && code == 0)
        tn_rank_finish(&rank);
    return code;
}

static int run_case(const struct job_cases *cases, int n, const char *folder, char **argv)
{
    const struct job_case *one = cases->at(n);
    size_t n_set = 0;
    struct tn_job job;
    char path[512];
    if (one->ranks > 1 && !getenv("RANK"))
        return tn_launch_local(one->ranks, argv);
    while (n_set < sizeof one->set / sizeof *one->set && one->set[n_set])
        n_set++;
    snprintf(path, sizeof path, "%s/job.ini", folder);
    int code = 1;
    if (tn_job_open(&job, path, one->set, n_set, one->ranks) == 0)
        code = run_rank(cases, n, &job);
    tn_diag_print(&job.diag, stderr);
    tn_job_close(&job);
    return code;
}

static int write_files(const struct job_cases *cases)
{
    scratch_text("job.ini", cases->manifest);
    FILE *text = fopen(scratch_path("a.txt"), "w");
    for (int i = 0; text && i < 1000; i++)
        fprintf(text, cases->line, i);
    return text && fclose(text) == 0 ? 0 : -1;
}

static int run_all(const struct job_cases *cases, char *self)
{
    int failed = 0, before = cases->first != NULL;
    scratch_open();
    if (write_files(cases))
        return 1;
    printf("1..%d\n", cases->n + before);
    if (before) {
        failed = !cases->first();
        printf("%s 1 - %s\n", failed ? "not ok" : "ok", cases->first_name);
    }
    for (int n = 0; n < cases->n; n++) {
        char number[12];
        snprintf(number, sizeof number, "%d", n);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            dup2(STDERR_FILENO, STDOUT_FILENO); /* of the jobs: not TAP */
            execl("/proc/self/exe", self, number, scratch_folder, (char *)NULL);
            _exit(127);
        }
        int status = -1;
        int good = child > 0 && waitpid(child, &status, 0) == child && status == 0;
        printf("%s %d - %s\n", good ? "ok" : "not ok", n + 1 + before, cases->at(n)->name);
        failed += !good;
    }
    scratch_close();
    return failed > 0;
}

int job_cases_main(const struct job_cases *cases, int argc, char **argv)
{
    if (argc == 3)
        return run_case(cases, atoi(argv[1]), argv[2], argv);
    return run_all(cases, argv[0]);
}
