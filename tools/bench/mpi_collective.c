/* The same measurements as collective.c, through MPI: mpirun -n N bench_mpi_collective [options]
 *
 * The number of ranks is mpirun's; options as in measure.c. */
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "measure.h"

struct rank {
    char *a, *b;
    int rank, n;
    MPI_Datatype dtype;
    size_t element;
};

static void run(void *ctx, int op, size_t bytes)
{
    struct rank *r = ctx;
    int all = (int)(bytes / r->element), part = all / r->n;
    switch (op) {
    case BENCH_ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, r->a, all, r->dtype, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_GATHER:
        MPI_Allgather(r->a, part, r->dtype, r->b, part, r->dtype, MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(r->a, r->b, part, r->dtype, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_TO_ALL:
        MPI_Alltoall(r->a, part, r->dtype, r->b, part, r->dtype, MPI_COMM_WORLD);
        break;
    case BENCH_BROADCAST:
        MPI_Bcast(r->a, all, r->dtype, 0, MPI_COMM_WORLD);
        break;
    case BENCH_BARRIER:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    case BENCH_SEND_RECV:
        MPI_Sendrecv(r->a, all, r->dtype, (r->rank + 1) % r->n, 0, r->b, all, r->dtype, (r->rank + r->n - 1) % r->n, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    }
}

static void barrier(void *ctx)
{
    (void)ctx;
    MPI_Barrier(MPI_COMM_WORLD);
}

static double share(void *ctx, double value)
{
    (void)ctx;
    MPI_Bcast(&value, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return value;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    struct bench_options o;
    struct rank r = { .dtype = MPI_FLOAT, .element = 4 };
    size_t most = 4096;
    int at = bench_parse(&o, argc, argv);
    if (at != argc || o.is_bf16) {
        fprintf(stderr, "usage: mpirun -n N %s [options], dtype f32\n", argv[0]);
        MPI_Finalize();
        return 2;
    }
    if (!*o.label)
        o.label = "mpi";
    for (int s = 0; s < o.n_sizes; s++)
        most = o.sizes[s] > most ? o.sizes[s] : most;
    r.a = calloc(1, most);
    r.b = calloc(1, most);
    MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r.n);
    if (!r.a || !r.b)
        MPI_Abort(MPI_COMM_WORLD, 1);
    struct bench_library lib = { &r, r.rank, r.n, run, barrier, share, NULL };
    if (r.rank == 0)
        bench_header(&o);
    bench_run(&o, &lib);
    free(r.a);
    free(r.b);
    MPI_Finalize();
    return 0;
}
