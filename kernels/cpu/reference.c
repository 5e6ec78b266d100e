/* Reference versions for the unit tests: see reference.h. */
#include "reference.h"

#include <math.h>
#include <stdbool.h>

#include "philox.h"

/* --- elements --- */

static float bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t bf16_nearest(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double get(const struct tn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TN_F64: return ((const double *)t->data)[i];
    case TN_F32: return ((const float *)t->data)[i];
    case TN_BF16: return bf16_value(((const uint16_t *)t->data)[i]);
    case TN_I32: return ((const int32_t *)t->data)[i];
    case TN_I64: return (double)((const int64_t *)t->data)[i];
    case TN_U8: return ((const uint8_t *)t->data)[i];
    default: return NAN;
    }
}

static void set(const struct tn_tensor *t, int64_t i, double value)
{
    switch (t->dtype) {
    case TN_F64: ((double *)t->data)[i] = value; break;
    case TN_F32: ((float *)t->data)[i] = (float)value; break;
    case TN_BF16: ((uint16_t *)t->data)[i] = bf16_nearest((float)value); break;
    case TN_I32: ((int32_t *)t->data)[i] = (int32_t)value; break;
    case TN_I64: ((int64_t *)t->data)[i] = (int64_t)value; break;
    case TN_U8: ((uint8_t *)t->data)[i] = (uint8_t)value; break;
    }
}

static double rounded_as(double value, uint32_t dtype)
{
    return dtype == TN_BF16 ? bf16_value(bf16_nearest((float)value)) : value;
}

static const struct tn_tensor *in(const struct tn_op_desc *op, uint32_t n)
{
    return n < op->n_in ? op->in[n] : NULL;
}

static const struct tn_tensor *out(const struct tn_op_desc *op, uint32_t n)
{
    return op->out[n];
}

static double optional(const struct tn_tensor *t, int64_t i)
{
    return t ? get(t, i) : 0;
}

/* --- norms: runs of `cols` elements --- */

static int64_t norm_cols(const struct tn_op_desc *op, const struct tn_tensor *x)
{
    int64_t group = cpu_attr_i(op, "group", 0);
    return group ? group : cpu_cols(x);
}

static void normalise(const struct tn_op_desc *op, const struct tn_tensor *x, const struct tn_tensor *w,
                      const struct tn_tensor *bias, const struct tn_tensor *y, const struct tn_tensor *mean,
                      const struct tn_tensor *rstd)
{
    int64_t cols = norm_cols(op, x);
    for (int64_t row = 0; row * cols < cpu_elements(x); row++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < cols; i++)
            sum += get(x, row * cols + i);
        double centre = mean ? sum / (double)cols : 0;
        for (int64_t i = 0; i < cols; i++)
            squares += pow(get(x, row * cols + i) - centre, 2);
        double scale = 1 / sqrt(squares / (double)cols + cpu_attr_f(op, "eps", 1e-5));
        for (int64_t i = 0; i < cols; i++)
            set(y, row * cols + i, (get(x, row * cols + i) - centre) * scale * get(w, i) + optional(bias, i));
        if (mean)
            set(mean, row, centre);
        set(rstd, row, scale);
    }
}

/* r = a + b, as it would be stored beside a. */
static const struct tn_tensor *residual(const struct tn_op_desc *op)
{
    const struct tn_tensor *a = in(op, 0), *b = in(op, 1), *r = out(op, 0);
    for (int64_t i = 0; i < cpu_elements(a); i++)
        set(r, i, rounded_as(get(a, i) + get(b, i), a->dtype));
    return r;
}

static void norm_dx(const struct tn_op_desc *op, const struct tn_tensor *mean, const struct tn_tensor *rstd,
                    const struct tn_tensor *res)
{
    const struct tn_tensor *dy = in(op, 0), *x = in(op, 1), *w = in(op, 2);
    int64_t cols = norm_cols(op, x);
    for (int64_t row = 0; row * cols < cpu_elements(x); row++) {
        double centre = optional(mean, row), scale = get(rstd, row), sum = 0, dot = 0;
        for (int64_t i = 0, at = row * cols; i < cols; i++, at++) {
            sum += get(dy, at) * get(w, i);
            dot += get(dy, at) * get(w, i) * (get(x, at) - centre) * scale;
        }
        for (int64_t i = 0, at = row * cols; i < cols; i++, at++) {
            double hat = (get(x, at) - centre) * scale, d = get(dy, at) * get(w, i);
            d -= (mean ? sum : 0) / (double)cols + hat * dot / (double)cols;
            set(out(op, 0), at, scale * d + optional(res, at));
        }
    }
}

static void norm_dw(const struct tn_op_desc *op, const struct tn_tensor *mean, const struct tn_tensor *rstd,
                    const struct tn_tensor *accw, const struct tn_tensor *accb)
{
    const struct tn_tensor *dy = in(op, 0), *x = in(op, 1);
    int64_t cols = norm_cols(op, x);
    for (int64_t i = 0; i < cols; i++) {
        double dw = optional(accw, i), db = optional(accb, i);
        for (int64_t row = 0, at = i; at < cpu_elements(x); row++, at += cols) {
            dw += get(dy, at) * (get(x, at) - optional(mean, row)) * get(rstd, row);
            db += get(dy, at);
        }
        set(out(op, 0), i, dw);
        if (mean)
            set(out(op, 1), i, db);
    }
}

/* --- activations --- */

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

/* (1 + tanh u) / 2 without cancellation. */
static double tanh_gate(double x)
{
    return 1 / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double cpu_reference_gelu(double x, int tanh_form)
{
    return x * (tanh_form ? tanh_gate(x) : normal_cdf(x));
}

double cpu_reference_gelu_slope(double x, int tanh_form)
{
    if (!tanh_form)
        return normal_cdf(x) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    double gate = tanh_gate(x), inner = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return gate + x * gate * (1 - gate) * 2 * inner;
}

static void gelu(const struct tn_op_desc *op, const struct tn_tensor *b)
{
    int tanh_form = (int)cpu_attr_i(op, "tanh", 0);
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++) {
        double bias = b ? get(b, i % cpu_cols(in(op, 0))) : 0;
        set(out(op, 0), i, cpu_reference_gelu(get(in(op, 0), i) + bias, tanh_form));
    }
}

/* dx, and db where there is a bias. */
static void gelu_dx(const struct tn_op_desc *op, const struct tn_tensor *b, const struct tn_tensor *acc)
{
    int tanh_form = (int)cpu_attr_i(op, "tanh", 0);
    const struct tn_tensor *dy = in(op, 0), *x = in(op, 1);
    int64_t cols = cpu_cols(x);
    for (int64_t i = 0; b && i < cols; i++)
        set(out(op, 1), i, optional(acc, i));
    for (int64_t i = 0; i < cpu_elements(x); i++) {
        double d = get(dy, i) * cpu_reference_gelu_slope(get(x, i) + (b ? get(b, i % cols) : 0), tanh_form);
        set(out(op, 0), i, d);
        if (b)
            set(out(op, 1), i % cols, get(out(op, 1), i % cols) + d);
    }
}

static void bias_add(const struct tn_op_desc *op)
{
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++)
        set(out(op, 0), i, get(in(op, 0), i) + get(in(op, 1), i % cpu_cols(in(op, 0))));
}

static void bias_dw(const struct tn_op_desc *op)
{
    int64_t cols = cpu_cols(in(op, 0));
    for (int64_t i = 0; i < cols; i++) {
        double sum = optional(in(op, 1), i);
        for (int64_t at = i; at < cpu_elements(in(op, 0)); at += cols)
            sum += get(in(op, 0), at);
        set(out(op, 0), i, sum);
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void swiglu(const struct tn_op_desc *op)
{
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++)
        set(out(op, 0), i, get(in(op, 0), i) * sigmoid(get(in(op, 0), i)) * get(in(op, 1), i));
}

static void swiglu_dx(const struct tn_op_desc *op)
{
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++) {
        double dy = get(in(op, 0), i), g = get(in(op, 1), i), u = get(in(op, 2), i), s = sigmoid(g);
        set(out(op, 0), i, dy * u * (s + g * s * (1 - s)));
        set(out(op, 1), i, dy * g * s);
    }
}

static void rope(const struct tn_op_desc *op)
{
    int64_t dim = cpu_attr_i(op, "head_dim", 0), cols = cpu_cols(in(op, 0));
    double theta = cpu_attr_f(op, "theta", 10000), sign = cpu_attr_i(op, "inverse", 0) ? -1 : 1;
    for (int64_t at = 0; at < cpu_elements(in(op, 0)); at++) {
        int64_t i = at % dim % (dim / 2);
        bool high = at % dim >= dim / 2;
        double angle = sign * get(in(op, 1), at / cols) * pow(theta, -2.0 * (double)i / (double)dim);
        double self = get(in(op, 0), at), other = get(in(op, 0), high ? at - dim / 2 : at + dim / 2);
        set(out(op, 0), at, self * cos(angle) + (high ? other : -other) * sin(angle));
    }
}

static void add_n(const struct tn_op_desc *op)
{
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++) {
        double sum = 0;
        for (uint32_t n = 0; n < op->n_in; n++)
            sum += get(in(op, n), i);
        set(out(op, 0), i, sum);
    }
}

/* Index in the whole of element `i` of a part. */
static int64_t global_index(const struct tn_tensor *t, int64_t i)
{
    int64_t index = 0, stride = 1;
    for (int32_t d = t->rank - 1; d >= 0; d--) {
        int64_t at = i % t->shape[d], runs = at < t->run[d] ? t->first[d] + at : t->second[d] + at - t->run[d];
        index += (t->run[d] ? runs : t->offset[d] + at) * stride;
        stride *= t->global[d];
        i /= t->shape[d];
    }
    return index;
}

static void dropout(const struct tn_op_desc *op)
{
    double p = cpu_attr_f(op, "p", 0);
    uint64_t key = cpu_dropout_key((uint64_t)cpu_attr_i(op, "seed", 0), (uint64_t)cpu_attr_i(op, "stream", 0));
    uint64_t hi = cpu_dropout_hi((uint64_t)cpu_attr_i(op, "micro", 0), (uint64_t)get(in(op, 1), 0));
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++) {
        uint64_t index = (uint64_t)global_index(in(op, 0), i);
        uint32_t draws[4];
        cpu_philox(key, hi, index / 4, draws);
        bool keep = draws[index % 4] >= (uint32_t)(p * 4294967296.0);
        set(out(op, 0), i, keep ? get(in(op, 0), i) / (1 - p) : 0);
    }
}

/* --- embedding --- */

static void embedding(const struct tn_op_desc *op)
{
    const struct tn_tensor *ids = in(op, 0), *w = in(op, 1);
    for (int64_t at = 0; at < cpu_elements(out(op, 0)); at++) {
        int64_t row = (int64_t)get(ids, at / cpu_cols(w)) - w->offset[0];
        bool here = row >= 0 && row < w->shape[0];
        set(out(op, 0), at, here ? get(w, row * cpu_cols(w) + at % cpu_cols(w)) : 0);
    }
}

static void embedding_dw(const struct tn_op_desc *op)
{
    const struct tn_tensor *ids = in(op, 0), *dy = in(op, 1), *dw = out(op, 0);
    int64_t cols = cpu_cols(dw);
    for (int64_t i = 0; i < cpu_elements(dw); i++)
        set(dw, i, optional(in(op, 2), i));
    for (int64_t at = 0; at < cpu_elements(dy); at++) {
        int64_t row = (int64_t)get(ids, at / cols) - dw->offset[0], to = row * cols + at % cols;
        if (row >= 0 && row < dw->shape[0])
            set(dw, to, get(dw, to) + get(dy, at));
    }
}

/* --- loss --- */

static double row_max(const struct tn_tensor *x, int64_t row)
{
    double m = -INFINITY;
    for (int64_t i = 0; i < cpu_cols(x); i++)
        m = fmax(m, get(x, row * cpu_cols(x) + i));
    return m;
}

static double row_exp(const struct tn_tensor *x, int64_t row, double m)
{
    double z = 0;
    for (int64_t i = 0; i < cpu_cols(x); i++)
        z += exp(get(x, row * cpu_cols(x) + i) - m);
    return z;
}

/* The label's logit, 0 where it is not in this part. */
static double target(const struct tn_tensor *x, int64_t row, double label)
{
    int64_t column = (int64_t)label - x->offset[x->rank - 1];
    return label >= 0 && column >= 0 && column < cpu_cols(x) ? get(x, row * cpu_cols(x) + column) : 0;
}

static void cross_entropy(const struct tn_op_desc *op)
{
    const struct tn_tensor *x = in(op, 0), *labels = in(op, 1);
    double loss = 0;
    for (int64_t row = 0; row < cpu_rows(x); row++) {
        double m = row_max(x, row), lse = m + log(row_exp(x, row, m));
        set(out(op, 1), row, lse);
        loss += get(labels, row) >= 0 ? lse - target(x, row, get(labels, row)) : 0;
    }
    set(out(op, 0), 0, loss);
}

static void cross_entropy_dx(const struct tn_op_desc *op)
{
    const struct tn_tensor *x = in(op, 0), *labels = in(op, 1), *lse = in(op, 2);
    for (int64_t at = 0; at < cpu_elements(x); at++) {
        int64_t row = at / cpu_cols(x), column = at % cpu_cols(x) + x->offset[x->rank - 1];
        double label = get(labels, row), p = exp(get(x, at) - get(lse, row));
        set(out(op, 0), at, label >= 0 ? (p - (column == (int64_t)label)) * get(in(op, 3), 0) : 0);
    }
}

static void ce_max(const struct tn_op_desc *op)
{
    for (int64_t row = 0; row < cpu_rows(in(op, 0)); row++)
        set(out(op, 0), row, row_max(in(op, 0), row));
}

static void ce_sum(const struct tn_op_desc *op)
{
    const struct tn_tensor *x = in(op, 0);
    for (int64_t row = 0; row < cpu_rows(x); row++) {
        set(out(op, 0), row, row_exp(x, row, get(in(op, 2), row)));
        set(out(op, 0), row + cpu_rows(x), target(x, row, get(in(op, 1), row)));
    }
}

static void ce_loss(const struct tn_op_desc *op)
{
    int64_t rows = cpu_elements(in(op, 1));
    double loss = 0;
    for (int64_t row = 0; row < rows; row++) {
        double lse = get(in(op, 1), row) + log(get(in(op, 0), row));
        set(out(op, 1), row, lse);
        loss += get(in(op, 2), row) >= 0 ? lse - get(in(op, 0), rows + row) : 0;
    }
    set(out(op, 0), 0, loss);
}

static void count_targets(const struct tn_op_desc *op)
{
    double n = 0;
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++)
        n += get(in(op, 0), i) >= 0;
    set(out(op, 0), 0, n);
}

static void scale_by(const struct tn_op_desc *op)
{
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++)
        set(out(op, 0), i, get(in(op, 0), i) * get(in(op, 1), 0));
}

/* --- optimizer --- */

static void accumulate(const struct tn_op_desc *op)
{
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++)
        set(out(op, 0), i, get(in(op, 0), i) + optional(in(op, 1), i));
}

static void sumsq(const struct tn_op_desc *op)
{
    double sum = 0;
    for (uint32_t n = 0; n < op->n_in; n++) {
        for (int64_t i = 0; i < cpu_elements(in(op, n)); i++)
            sum += pow(get(in(op, n), i), 2);
    }
    set(out(op, 0), 0, sum);
}

static void clip(const struct tn_op_desc *op)
{
    double s = get(in(op, 0), 0), most = cpu_attr_f(op, "max_norm", 0), factor = most / (sqrt(s) + 1e-6);
    set(out(op, 0), 0, most > 0 && factor < 1 ? factor : 1);
    set(out(op, 0), 1, sqrt(s));
    set(out(op, 0), 2, !isfinite(s));
    set(out(op, 0), 3, 0);
}

static void adamw(const struct tn_op_desc *op)
{
    double beta1 = cpu_attr_f(op, "beta1", 0.9), beta2 = cpu_attr_f(op, "beta2", 0.999);
    double eps = cpu_attr_f(op, "eps", 1e-8), decay = cpu_attr_f(op, "decay", 0);
    double lr = get(in(op, 5), 0), t = get(in(op, 6), 0);
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++) {
        double p = get(in(op, 0), i), m = get(in(op, 1), i), v = get(in(op, 2), i);
        if (get(in(op, 4), 2) == 0) {
            double g = get(in(op, 3), i) * get(in(op, 4), 0);
            m = beta1 * m + (1 - beta1) * g;
            v = beta2 * v + (1 - beta2) * g * g;
            p -= lr * decay * p;
            p -= lr * (m / (1 - pow(beta1, t))) / (sqrt(v / (1 - pow(beta2, t))) + eps);
        }
        set(out(op, 0), i, p);
        set(out(op, 1), i, m);
        set(out(op, 2), i, v);
    }
}

static void sgd(const struct tn_op_desc *op)
{
    double momentum = cpu_attr_f(op, "momentum", 0), decay = cpu_attr_f(op, "decay", 0), lr = get(in(op, 4), 0);
    for (int64_t i = 0; i < cpu_elements(in(op, 0)); i++) {
        double p = get(in(op, 0), i), m = get(in(op, 1), i);
        if (get(in(op, 3), 2) == 0) {
            m = momentum * m + get(in(op, 3), 0) * get(in(op, 2), i) + decay * p;
            p -= lr * m;
        }
        set(out(op, 0), i, p);
        set(out(op, 1), i, m);
    }
}

/* --- layout --- */

/* Index along dim of element `i`, and the index it has in `other`, which differs from t along dim only. */
static int64_t along(const struct tn_tensor *t, int64_t i, int32_t dim, const struct tn_tensor *other, int64_t shift,
                     int64_t *index)
{
    int64_t inner = 1;
    for (int32_t d = dim + 1; d < t->rank; d++)
        inner *= t->shape[d];
    int64_t outer = i / (inner * t->shape[dim]), place = i / inner % t->shape[dim];
    *index = (outer * other->shape[dim] + place + shift) * inner + i % inner;
    return place + shift;
}

/* Each element of y from its place in x, or 0 where x has none. */
static void part(const struct tn_op_desc *op)
{
    const struct tn_tensor *x = in(op, 0), *y = out(op, 0);
    int32_t dim = (int32_t)cpu_attr_i(op, "dim", 0);
    int64_t flat = op->opcode == TN_OP_SLICE ? y->offset[0] : -x->offset[0];
    for (int64_t i = 0; i < cpu_elements(y); i++) {
        int64_t index = i + flat, place = index, end = cpu_elements(x);
        if (dim >= 0) {
            place = along(y, i, dim, x, y->offset[dim] - x->offset[dim], &index);
            end = x->shape[dim];
        }
        set(y, i, place >= 0 && place < end ? get(x, index) : 0);
    }
}

/* Element by element of the joined side. */
static void blocks(const struct tn_op_desc *op)
{
    bool merge = op->opcode == TN_OP_MERGE_BLOCKS;
    const struct tn_tensor *joined = merge ? out(op, 0) : in(op, 0);
    int64_t parts = cpu_attr_i(op, "parts", 1), piece = 1, n = cpu_elements(joined);
    for (int32_t d = (int32_t)cpu_attr_i(op, "dim", 0); d < joined->rank; d++)
        piece *= joined->shape[d];
    int64_t row = piece, run = row / parts / 2;
    piece /= parts;
    bool zigzag = cpu_attr_i(op, "order", 0) == TN_ORDER_ZIGZAG;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i % row, outer = i / row, block = at / piece, within = at % piece;
        if (zigzag) {
            int64_t chunk = at / run;
            block = chunk < parts ? chunk : 2 * parts - 1 - chunk;
            within = at % run + (chunk < parts ? 0 : run);
        }
        int64_t dense = block * (n / parts) + outer * piece + within;
        set(out(op, 0), merge ? i : dense, get(in(op, 0), merge ? dense : i));
    }
}

tn_status cpu_reference_run(const struct tn_op_desc *op)
{
    switch (op->opcode) {
    case TN_OP_LAYERNORM: normalise(op, in(op, 0), in(op, 1), in(op, 2), out(op, 0), out(op, 1), out(op, 2)); break;
    case TN_OP_RMSNORM: normalise(op, in(op, 0), in(op, 1), NULL, out(op, 0), NULL, out(op, 1)); break;
    case TN_OP_ADD_LAYERNORM:
        normalise(op, residual(op), in(op, 2), in(op, 3), out(op, 1), out(op, 2), out(op, 3));
        break;
    case TN_OP_ADD_RMSNORM: normalise(op, residual(op), in(op, 2), NULL, out(op, 1), NULL, out(op, 2)); break;
    case TN_OP_LAYERNORM_DX: norm_dx(op, in(op, 3), in(op, 4), in(op, 5)); break;
    case TN_OP_RMSNORM_DX: norm_dx(op, NULL, in(op, 3), in(op, 4)); break;
    case TN_OP_LAYERNORM_DW: norm_dw(op, in(op, 2), in(op, 3), in(op, 4), in(op, 5)); break;
    case TN_OP_RMSNORM_DW: norm_dw(op, NULL, in(op, 2), in(op, 3), NULL); break;
    case TN_OP_GELU: gelu(op, NULL); break;
    case TN_OP_BIAS_GELU: gelu(op, in(op, 1)); break;
    case TN_OP_GELU_DX: gelu_dx(op, NULL, NULL); break;
    case TN_OP_BIAS_GELU_DX: gelu_dx(op, in(op, 2), in(op, 3)); break;
    case TN_OP_BIAS_ADD: bias_add(op); break;
    case TN_OP_BIAS_DW: bias_dw(op); break;
    case TN_OP_SWIGLU: swiglu(op); break;
    case TN_OP_SWIGLU_DX: swiglu_dx(op); break;
    case TN_OP_ROPE: rope(op); break;
    case TN_OP_ADD:
    case TN_OP_ADD_N:
    case TN_OP_CAST: add_n(op); break;
    case TN_OP_DROPOUT: dropout(op); break;
    case TN_OP_EMBEDDING: embedding(op); break;
    case TN_OP_EMBEDDING_DW: embedding_dw(op); break;
    case TN_OP_CROSS_ENTROPY: cross_entropy(op); break;
    case TN_OP_CROSS_ENTROPY_DX: cross_entropy_dx(op); break;
    case TN_OP_CE_MAX: ce_max(op); break;
    case TN_OP_CE_SUM: ce_sum(op); break;
    case TN_OP_CE_LOSS: ce_loss(op); break;
    case TN_OP_COUNT_TARGETS: count_targets(op); break;
    case TN_OP_GRAD_SEED: set(out(op, 0), 0, 1 / fmax(get(in(op, 0), 0), 1)); break;
    case TN_OP_SCALE_BY: scale_by(op); break;
    case TN_OP_ACCUMULATE:
    case TN_OP_SYNC: accumulate(op); break;
    case TN_OP_SUMSQ: sumsq(op); break;
    case TN_OP_CLIP: clip(op); break;
    case TN_OP_ADAMW: adamw(op); break;
    case TN_OP_SGD: sgd(op); break;
    case TN_OP_SLICE:
    case TN_OP_UNSLICE: part(op); break;
    case TN_OP_MERGE_BLOCKS:
    case TN_OP_SPLIT_BLOCKS: blocks(op); break;
    default: return TN_UNSUPPORTED;
    }
    return TN_OK;
}
