/* A library to preload: closes the process's memory to others of the same user, as hardened programs do. */
#include <sys/prctl.h>

__attribute__((constructor)) static void close_memory(void)
{
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}
