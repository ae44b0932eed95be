/* The plain recurrence over a layer's tensors, in float32 on one core. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "recurrence.h"

static float *widen(const gdp_tensor *tensor)
{
    const int64_t count = count_elements(tensor);
    float *wide = allocate_zeroed((size_t)count * sizeof *wide);
    for (int64_t i = 0; wide && i < count; i++)
        wide[i] = load_element(tensor->data, tensor->dtype, i);
    return wide;
}

typedef struct yardstick {
    const gdp_problem *problem;
    float *q, *k, *v, *g, *beta, *o, *state, *scratch;
} yardstick;

static void run_heads(const yardstick *y, bool gate, bool wide)
{
    const gdp_problem *p = y->problem;
    const int64_t T = p->tokens, n = p->num_householder, H = p->heads, HV = p->value_heads;
    const int64_t K = p->dim_k, V = p->dim_v;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < HV; h++) {
            const int64_t key_head = h / (HV / H);
            const recurrence r = {
                .tokens = T,
                .updates = n,
                .dim_k = K,
                .dim_v = V,
                .q = y->q + (b * T * H + key_head) * K,
                .k = y->k + (b * T * n * H + key_head) * K,
                .v = y->v + (b * T * n * HV + h) * V,
                .g = gate ? y->g + b * T * HV + h : NULL,
                .beta = y->beta + b * T * n * HV + h,
                .o = y->o + (b * T * HV + h) * V,
                .q_stride = H * K,
                .k_stride = H * K,
                .v_stride = HV * V,
                .g_stride = HV,
                .beta_stride = HV,
                .o_stride = HV * V,
                .state = y->state,
                .scratch = y->scratch,
                .scale = 1 / sqrtf((float)K),
            };
            memset(y->state, 0, (size_t)(K * V) * sizeof *y->state);
            (wide ? recurrence_forward_wide : recurrence_forward)(&r);
        }
}

static double difference(const float *a, const gdp_tensor *b)
{
    double sum = 0, norm = 0;
    const int64_t count = count_elements(b);
    for (int64_t i = 0; i < count; i++) {
        const double x = a[i], y = load_element(b->data, b->dtype, i);
        sum += (x - y) * (x - y);
        norm += x * x;
    }
    return norm > 0 ? sqrt(sum / norm) : sqrt(sum);
}

bool bench_yardstick(const layer *it, const results *ours, int repeat, double *plain, double *wide,
                     double *error)
{
    const gdp_problem *p = &it->problem;
    const bool gate = it->inputs.g.data != NULL;
    yardstick y = {
        p,
        widen(&it->inputs.q),
        widen(&it->inputs.k),
        widen(&it->inputs.v),
        gate ? widen(&it->inputs.g) : NULL,
        widen(&it->inputs.beta),
        allocate_zeroed((size_t)count_elements(&ours->tensor[RESULT_O]) * sizeof(float)),
        allocate_zeroed((size_t)(p->dim_k * p->dim_v) * sizeof(float)),
        allocate_zeroed((size_t)p->dim_v * sizeof(float)),
    };
    const bool fine = y.q && y.k && y.v && (!gate || y.g) && y.beta && y.o && y.state && y.scratch;
    *plain = *wide = INFINITY;
    for (int i = 0; fine && i < repeat; i++) {
        const double begin = seconds();
        run_heads(&y, gate, false);
        const double middle = seconds();
        run_heads(&y, gate, true);
        *plain = fmin(*plain, middle - begin);
        *wide = fmin(*wide, seconds() - middle);
    }
    if (fine) *error = difference(y.o, &ours->tensor[RESULT_O]);
    float *const all[] = { y.q, y.k, y.v, y.g, y.beta, y.o, y.state, y.scratch };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    return fine;
}
