/* Trial: what a job answers to "tn.plan/1" (abi/tenon/plan.h): how much memory a program would take if nobody but the
 * strategies behind the caller changed it. The way is that of tn_job_compile from lower to plan; problems found on it
 * are forgotten, for the program that is really compiled will have them too. */
#include "job.h"

#include <tenon/plan.h>

static struct tn_job *job_of(const struct tn_facts *facts)
{
    return (struct tn_job *)facts; /* facts are its first member */
}

static uint32_t behind(const struct tn_job *job, const struct tn_instance *caller)
{
    for (uint32_t i = 0; i < job->n_chain; i++)
        if (&job->chain[i] == caller)
            return i + 1;
    return job->n_chain;
}

static int lower_rest(struct tn_job *job, const struct tn_instance *caller, struct tn_program *p, uint32_t flags)
{
    p->unaided |= (flags & TN_PEAK_UNAIDED) != 0;
    for (uint32_t i = behind(job, caller); i < job->n_chain; i++) {
        const struct tn_strategy *strategy = tn_instance_table(&job->chain[i]);
        if (!strategy->lower)
            continue;
        p->actor = job->chain[i].library.plugin->id;
        p->insert_before = 0;
        if (strategy->lower(job->chain[i].self, p) != TN_OK)
            return 0;
        p->insert_before = 0;
    }
    return p->n_errors == 0;
}

static int64_t peak(const struct tn_facts *facts, const struct tn_instance *caller, struct tn_program *copy,
                    uint32_t flags)
{
    struct tn_job *job = job_of(facts);
    size_t problems = job->diag.count;
    struct tn_program flat;
    int64_t bytes = -1;
    tn_program_init(&flat, copy->mesh, copy->coord);
    if (lower_rest(job, caller, copy, flags)) {
        tn_own_stages(copy);
        tn_fuse(copy);
        tn_job_schedule(job, copy, &flat, (int32_t)job->settings.micro_batches);
    }
    if (copy->n_errors == 0 && flat.n_errors == 0) {
        char error[256];
        struct tn_machine device = { .device = tn_instance_table(&job->device), .device_self = job->device.self };
        if (!job->trial_scratch)
            job->trial_scratch = tn_exec_scratch(&device, &flat, error, sizeof error);
        struct tn_plan plan;
        tn_plan_init(&plan, &flat, NULL, job->trial_scratch > 0 ? job->trial_scratch : 0);
        bytes = tn_plan_bytes(&plan);
        tn_plan_finish(&plan);
    }
    tn_program_finish(&flat);
    job->diag.count = problems;
    return bytes;
}

static double away(const struct tn_facts *facts, const struct tn_instance *caller, uint64_t bytes)
{
    const struct tn_job *job = job_of(facts);
    double least = -1;
    for (uint32_t i = behind(job, caller); i < job->n_chain; i++) {
        const struct tn_strategy *strategy = tn_instance_table(&job->chain[i]);
        double seconds = strategy->away ? strategy->away(job->chain[i].self, bytes) : -1;
        least = seconds >= 0 && (least < 0 || seconds < least) ? seconds : least;
    }
    return least;
}

static int64_t budget(const struct tn_facts *facts)
{
    return tn_job_budget(job_of(facts));
}

const struct tn_trials tn_job_trials = { .budget = budget, .peak = peak, .away = away };
