/* Launch, other launchers: what Open MPI's mpirun and Slurm's srun tell a process, in the words that everything else
 * reads (RANK, WORLD_SIZE, ..); see launch_other.h and docs/launching.md.
 *
 * A launcher that speaks PMIx is asked through it, and carries where the store is. Of one that does not, the variables
 * must do: then all ranks derive the same port from the id of the job. */
#include "ranks/launch_other.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_PORT = 20000, PORTS = 12000 }; /* below the ports that systems hand out by themselves */

struct words {
    const char *rank, *world, *local_rank, *local_world;
};

static void set_number(const char *name, int32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", (int)value);
    setenv(name, text, 1);
}

static void take_words(const struct words *theirs)
{
    const char *const names[][2] = { { theirs->rank, "RANK" },
                                     { theirs->world, "WORLD_SIZE" },
                                     { theirs->local_rank, "LOCAL_RANK" },
                                     { theirs->local_world, "LOCAL_WORLD_SIZE" } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i][0] && getenv(names[i][0]))
            setenv(names[i][1], getenv(names[i][0]), 1);
}

static int has_place(void)
{
    return getenv("MASTER_PORT") || getenv("TENON_PORT");
}

/* A port that all ranks of one job, and hardly those of another, derive alike. */
static void derive_port(const char *job, const char *step)
{
    const char *parts[] = { job, step };
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (int i = 0; i < 2; i++)
        for (const char *at = parts[i]; at && *at; at++)
            hash = (hash ^ (uint8_t)*at) * 16777619u;
    set_number("MASTER_PORT", FIRST_PORT + (int32_t)(hash % PORTS));
}

/* mpirun's only rank has nobody to meet; MPI could not open a session again that was closed here. */
static int take_pmix(void)
{
    int32_t rank, world, local_world;
    const char *of_mpirun = getenv("OMPI_COMM_WORLD_SIZE");
    if ((of_mpirun && strcmp(of_mpirun, "1") == 0) || !tn_pmix_init(&rank, &world, &local_world))
        return 0;
    set_number("RANK", rank);
    set_number("WORLD_SIZE", world);
    set_number("LOCAL_WORLD_SIZE", local_world);
    if (local_world == world || has_place())
        setenv("MASTER_ADDR", "127.0.0.1", 0);
    return 1;
}

static void take_mpirun(void)
{
    take_words(&(struct words){ "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                "OMPI_COMM_WORLD_LOCAL_SIZE" });
    if (!has_place())
        derive_port(getenv("PMIX_NAMESPACE") ? getenv("PMIX_NAMESPACE") : getenv("OMPI_MCA_ess_base_jobid"), NULL);
    setenv("MASTER_ADDR", "127.0.0.1", 0);
}

/* The first host of "a,b", "node[03-17,20],c" or "rack[1-2]-a". */
static void first_host(const char *list, char *host, size_t host_bytes)
{
    size_t n = strcspn(list, ",[");
    if (list[n] != '[') {
        snprintf(host, host_bytes, "%.*s", (int)n, list);
        return;
    }
    const char *number = list + n + 1;
    const char *suffix = strchr(number, ']');
    suffix = suffix ? suffix + 1 : "";
    snprintf(host, host_bytes, "%.*s%.*s%.*s", (int)n, list, (int)strcspn(number, "-,]"), number,
             (int)strcspn(suffix, ",["), suffix);
}

static void take_srun(void)
{
    char host[256] = "127.0.0.1";
    const char *nodes = getenv("SLURM_STEP_NODELIST"), *n_nodes = getenv("SLURM_STEP_NUM_NODES");
    take_words(&(struct words){ "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL });
    if (nodes && n_nodes && strcmp(n_nodes, "1") != 0)
        first_host(nodes, host, sizeof host);
    if (!has_place())
        derive_port(getenv("SLURM_JOB_ID"), getenv("SLURM_STEP_ID"));
    setenv("MASTER_ADDR", host, 0);
}

/* srun -n 1, or the shell of an allocation, started one process: that one may start ranks itself. */
static int several(const char *tasks)
{
    return getenv(tasks) && strcmp(getenv(tasks), "1") != 0;
}

void tn_launch_take_other(void)
{
    if (getenv("RANK") || getenv("WORLD_SIZE"))
        return;
    if (take_pmix())
        return;
    if (getenv("OMPI_COMM_WORLD_RANK") && getenv("OMPI_COMM_WORLD_SIZE"))
        take_mpirun();
    else if (getenv("SLURM_PROCID") && several("SLURM_STEP_NUM_TASKS"))
        take_srun();
}
