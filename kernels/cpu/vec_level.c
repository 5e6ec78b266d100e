/* Vec level: the table of vec.h for one instruction level. meson.build compiles this file once for each, with
 * CPU_LEVEL=name; the functions themselves are in the vec_*.h beside it. */
#include "vec.h"
#include "vec_loss.h"
#include "vec_norm.h"
#include "vec_pointwise.h"

#define JOIN(a, b) a##b
#define TABLE(level) JOIN(cpu_vec_, level)

#define DTYPES(name)            \
    {                           \
        name##_f32, name##_bf16 \
    }
#define FORMS(name)                             \
    {                                           \
        DTYPES(name##_erf), DTYPES(name##_tanh) \
    }

extern const struct cpu_vec TABLE(CPU_LEVEL);

const struct cpu_vec TABLE(CPU_LEVEL) = {
    .to_f32 = DTYPES(to_f32),
    .from_f32 = DTYPES(from_f32),
    .f16_to_f32 = f16_to_f32,
    .f16_from_f32 = f16_from_f32,
    .add = DTYPES(add),
    .accumulate = DTYPES(accumulate),
    .scale = DTYPES(scale),
    .bias_add = DTYPES(bias_add),
    .gelu = FORMS(gelu),
    .bias_gelu = FORMS(bias_gelu),
    .gelu_dx = FORMS(gelu_dx),
    .swiglu = DTYPES(swiglu),
    .swiglu_dx = DTYPES(swiglu_dx),
    .rope_angles = rope_angles,
    .rope = DTYPES(rope),
    .dropout = DTYPES(dropout),
    .layernorm = DTYPES(layernorm),
    .rmsnorm = DTYPES(rmsnorm),
    .layernorm_dx = DTYPES(layernorm_dx),
    .rmsnorm_dx = DTYPES(rmsnorm_dx),
    .bias_dw = DTYPES(bias_dw),
    .layernorm_dw = DTYPES(layernorm_dw),
    .rmsnorm_dw = DTYPES(rmsnorm_dw),
    .bias_gelu_dx = FORMS(bias_gelu_dx),
    .max = DTYPES(max),
    .sum_exp = DTYPES(sum_exp),
    .online_softmax = DTYPES(online_softmax),
    .softmax = DTYPES(softmax),
    .sumsq = sumsq,
    .adamw = adamw,
    .sgd = sgd,
};
