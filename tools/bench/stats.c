/* Medians, percentiles and intervals (bench.h). */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { RESAMPLES = 2000 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double *sorted(const double *values, size_t n)
{
    double *copy = bench_alloc((n ? n : 1) * sizeof *copy);
    memcpy(copy, values, n * sizeof *copy);
    qsort(copy, n, sizeof *copy, compare);
    return copy;
}

static double middle_of(const double *in_order, size_t n)
{
    return n == 0 ? 0 : n % 2 ? in_order[n / 2] : 0.5 * (in_order[n / 2 - 1] + in_order[n / 2]);
}

double bench_median(const double *values, size_t n)
{
    double *copy = sorted(values, n), median = middle_of(copy, n);
    free(copy);
    return median;
}

double bench_percentile(const double *values, size_t n, double percent)
{
    if (n == 0)
        return 0;
    double *copy = sorted(values, n);
    size_t at = (size_t)(percent / 100 * (double)n + 0.999999);
    double value = copy[at < 1 ? 0 : at > n ? n - 1 : at - 1];
    free(copy);
    return value;
}

/* xorshift64: the same interval from the same values. */
static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Bootstrap (Efron 1979), the percentile interval. A pair is a block of iterations that followed each other closely, so
 * that both met the same disturbances, and blocks are far enough apart to be drawn one by one. */
struct bench_interval bench_ratio(const double *above, const double *below, size_t n)
{
    struct bench_interval interval = { 0 };
    double *ratio = bench_alloc((n + 1) * sizeof *ratio), *drawn = bench_alloc((n + 1) * sizeof *drawn);
    double *medians = bench_alloc(RESAMPLES * sizeof *medians);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < n; i++)
        ratio[i] = below[i] > 0 ? above[i] / below[i] : 0;
    interval.middle = bench_median(ratio, n);
    for (int k = 0; k < RESAMPLES && n; k++) {
        for (size_t i = 0; i < n; i++)
            drawn[i] = ratio[draw(&state) % n];
        medians[k] = bench_median(drawn, n);
    }
    interval.low = bench_percentile(medians, n ? RESAMPLES : 0, 2.5);
    interval.high = bench_percentile(medians, n ? RESAMPLES : 0, 97.5);
    free(ratio);
    free(drawn);
    free(medians);
    return interval;
}
