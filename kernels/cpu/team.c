/* A team of one thread is not a team: GOMP_parallel, through which every parallel region of this plugin goes, allocates
 * and frees a team of one each time (only larger ones are kept), and the step path must not allocate. The linker puts
 * this wrapper in its place for the plugin alone; a region with one thread is then a plain call. What depends on a
 * team inside of it (thread numbers, static shares, barriers) is right outside of one as well. */

void __real_GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);
void __wrap_GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);

void __wrap_GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags)
{
    if (threads == 1)
        region(data);
    else
        __real_GOMP_parallel(region, data, threads, flags);
}
