/* Preloaded into every process of a job: the rank that LEAVE_RANK names exits with LEAVE_CODE, from a thread of its own
 * in the midst of whatever it does, as soon as the file LEAVE_FILE exists. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *leave(void *file)
{
    while (access(file, F_OK) != 0)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    _exit(atoi(getenv("LEAVE_CODE")));
}

static void __attribute__((constructor)) watch(void)
{
    const char *rank = getenv("RANK"), *who = getenv("LEAVE_RANK");
    pthread_t thread;
    if (rank && who && strcmp(rank, who) == 0 && getenv("LEAVE_FILE"))
        pthread_create(&thread, NULL, leave, getenv("LEAVE_FILE"));
}
