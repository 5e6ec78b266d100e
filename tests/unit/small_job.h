/* Small job: the arrows from manifest to local program, one call each, for tests of models and
 * strategies. It loads real plugins through the real loader; nothing is run. */
#ifndef TENON_TESTS_SMALL_JOB_H
#define TENON_TESTS_SMALL_JOB_H

#include "passes/autodiff.h"
#include "loader/loader.h"
#include "passes/resolve.h"

enum { SMALL_JOB_MOST = 4 };

struct small_job {
    struct tn_manifest manifest;
    struct tn_diag diag;
    struct tn_facts facts;
    struct tn_arena arena;
    struct tn_settings settings;
    struct tn_instance model, strategy[SMALL_JOB_MOST];
    int32_t size[SMALL_JOB_MOST]; /* of each strategy */
    int n;
    struct tn_mesh mesh;
    int32_t coord[TN_MAX_AXES];
    struct tn_program program;
    char text[4096]; /* what small_job_problems answered last */
};

/* Where the plugins are: "<folder>/models/gpt.so", "<folder>/strategies/tp.so". */
extern const char *small_job_plugins;

/* Reads the manifest, opens the model and the named strategies (NULL-terminated) with their sizes, makes the mesh.
 * Any failure fails the test. `rank` is the one that the program is for. */
void small_job_open(struct small_job *job, const char *manifest_path, const char *const *overrides,
                    const char *const *strategies, const int32_t *sizes, int32_t rank);
void small_job_close(struct small_job *job);
/* Calls check of the model and the strategies; all problems as text, "" if there are none. */
const char *small_job_problems(struct small_job *job);
/* The model's program alone. */
void small_job_build(struct small_job *job, uint32_t mode);
/* ... with backward and step. */
void small_job_train(struct small_job *job);
void small_job_place(struct small_job *job);   /* all strategies' place */
void small_job_resolve(struct small_job *job); /* fails the test if the program has errors */
void small_job_lower(struct small_job *job);   /* all strategies' lower */

/* How many ops there are of the opcode in the region on the axis (-1: any or none). */
int small_job_count(const struct small_job *job, uint32_t opcode, uint32_t region, int32_t axis);

#endif
