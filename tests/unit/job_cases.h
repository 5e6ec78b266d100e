/* Job cases: whole jobs as the cases of one test, each in a process of its own, with as many ranks as it says; TAP.
 *
 *     TEST                all cases
 *     TEST CASE FOLDER    one case: launches its ranks, or is one of them */
#ifndef TENON_TESTS_JOB_CASES_H
#define TENON_TESTS_JOB_CASES_H

#include "job.h"

struct job_case {
    const char *name;
    int ranks;
    const char *set[8]; /* overrides of the manifest */
};

struct job_cases {
    const char *manifest;
    const char *line; /* of the corpus, with a %d */
    int n;
    const struct job_case *(*at)(int n);
    /* Trains, on one rank; 0 if all is well. `rank` NULL: a world of one. */
    int (*train)(int n, struct tn_job *job, struct tn_rank *rank);
    int (*first)(void); /* a case of its own, in this process, before the others; or NULL */
    const char *first_name;
};

int job_cases_main(const struct job_cases *cases, int argc, char **argv);

#endif
