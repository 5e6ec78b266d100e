/* Learning rates against their formulas, step by step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "job.h"

enum { STEPS = 20, WARMUP = 4 };

static struct tn_settings settings_of(int64_t schedule)
{
    return (struct tn_settings){
        .lr = 0.5, .lr_min = 0.1, .lr_schedule = schedule, .steps = STEPS, .warmup_steps = WARMUP, .decay_share = 0.25
    };
}

static void near(double got, double want)
{
    if (fabs(got - want) > 1e-12)
        fail_msg("%.15g, not %.15g", got, want);
}

static void warm_up_is_linear_and_reaches_the_rate(void **state)
{
    for (int64_t schedule = TN_LR_CONSTANT; schedule <= TN_LR_WSD; schedule++) {
        struct tn_settings s = settings_of(schedule);
        for (int64_t step = 0; step < WARMUP; step++)
            near(tn_lr_at(&s, step), 0.5 * (double)(step + 1) / WARMUP);
        near(tn_lr_at(&s, WARMUP), 0.5); /* the first step after it has all of it */
    }
}

static void constant_stays(void **state)
{
    struct tn_settings s = settings_of(TN_LR_CONSTANT);
    for (int64_t step = WARMUP; step < STEPS; step++)
        near(tn_lr_at(&s, step), 0.5);
}

static void linear_and_cosine_end_at_the_least(void **state)
{
    for (int64_t step = WARMUP; step < STEPS; step++) {
        double done = (double)(step - WARMUP) / (STEPS - 1 - WARMUP);
        struct tn_settings linear = settings_of(TN_LR_LINEAR), cosine = settings_of(TN_LR_COSINE);
        near(tn_lr_at(&linear, step), 0.5 - 0.45 * done);
        near(tn_lr_at(&cosine, step), 0.05 + 0.45 * (1 + cos(acos(-1.0) * done)) / 2);
    }
    struct tn_settings s = settings_of(TN_LR_COSINE);
    near(tn_lr_at(&s, STEPS - 1), 0.05);
}

static void wsd_is_stable_then_decays(void **state)
{
    struct tn_settings s = settings_of(TN_LR_WSD);
    for (int64_t step = WARMUP; step <= 14; step++) /* the last quarter: 5 of 20 */
        near(tn_lr_at(&s, step), 0.5);
    for (int64_t step = 15; step < STEPS; step++)
        near(tn_lr_at(&s, step), 0.05 + 0.45 * (double)(STEPS - 1 - step) / 5);
    near(tn_lr_at(&s, STEPS - 1), 0.05);
    s.decay_share = 0;
    near(tn_lr_at(&s, STEPS - 1), 0.5);
}

static void short_runs_have_a_rate(void **state)
{
    for (int64_t schedule = TN_LR_CONSTANT; schedule <= TN_LR_WSD; schedule++) {
        struct tn_settings s = settings_of(schedule);
        s.warmup_steps = 0;
        s.steps = 1;
        double lr = tn_lr_at(&s, 0);
        assert_true(isfinite(lr) && lr >= 0.05 && lr <= 0.5);
        s.steps = s.warmup_steps = 3; /* nothing but warm-up */
        near(tn_lr_at(&s, 2), 0.5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up_is_linear_and_reaches_the_rate),
        cmocka_unit_test(constant_stays),
        cmocka_unit_test(linear_and_cosine_end_at_the_least),
        cmocka_unit_test(wsd_is_stable_then_decays),
        cmocka_unit_test(short_runs_have_a_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
