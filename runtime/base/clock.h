/* Clock: time that only goes forward, for deadlines and durations. Any thread. */
#ifndef TENON_BASE_CLOCK_H
#define TENON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t tn_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline double tn_now_s(void)
{
    return (double)tn_now_ns() * 1e-9;
}

#endif
