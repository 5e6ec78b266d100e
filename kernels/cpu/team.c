/* Teams: GOMP_parallel, through which every parallel region of this plugin goes, by a wrapper that the linker puts in
 * its place for the plugin alone.
 *
 * A team of one thread is not a team: GOMP_parallel allocates and frees one each time (only larger ones are kept), and
 * the step path must not allocate. A region with one thread is then a plain call. What depends on a team inside of it
 * (thread numbers, static shares, barriers) is right outside of one as well.
 *
 * Each thread of a team computes as the one that launched the kernel does: with subnormals as zero (flush.h). */
#include "flush.h"

void __real_GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);
void __wrap_GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);

struct share {
    void (*region)(void *);
    void *data;
};

static void run_share(void *arg)
{
    const struct share *share = arg;
    unsigned before = cpu_flush_begin();
    share->region(share->data);
    cpu_flush_end(before);
}

void __wrap_GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags)
{
    struct share share = { region, data };
    if (threads == 1)
        region(data);
    else
        __real_GOMP_parallel(run_share, &share, threads, flags);
}
