/* Learning rate: warm-up from 0, then constant, linear, cosine (Loshchilov and Hutter 2017), or WSD (warm-up, stable,
 * linear decay; Hu et al. 2024). All but constant end at lr_min * lr. */
#include "job.h"

#include <math.h>

double tn_lr_at(const struct tn_settings *settings, int64_t step)
{
    double lr = settings->lr, floor = settings->lr_min * lr;
    int64_t warmup = settings->warmup_steps, steps = settings->steps;
    if (step < warmup)
        return lr * (double)(step + 1) / (double)warmup;
    double span = (double)(steps - 1 - warmup), done = span > 0 ? (double)(step - warmup) / span : 1.0;
    done = done < 1.0 ? done : 1.0;
    switch (settings->lr_schedule) {
    case TN_LR_LINEAR: return floor + (lr - floor) * (1.0 - done);
    case TN_LR_COSINE: return floor + (lr - floor) * 0.5 * (1.0 + cos(3.14159265358979323846 * done));
    case TN_LR_WSD: {
        double decay = settings->decay_share * (double)steps, left = (double)(steps - 1 - step);
        return decay > 0 && left < decay ? floor + (lr - floor) * left / decay : lr;
    }
    default: return lr;
    }
}
