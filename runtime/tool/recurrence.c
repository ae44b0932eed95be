/* One head, one core, token after token. The build compiles this file with -O3. */
#include "recurrence.h"

#include <math.h>

/* Wide registers where the processor has them. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define WIDE
#endif

static inline __attribute__((always_inline)) void run(const recurrence *r)
{
    const int64_t K = r->dim_k, V = r->dim_v;
    float *restrict state = r->state, *restrict sum = r->scratch;
    for (int64_t t = 0; t < r->tokens; t++) {
        float decay = r->g ? expf(r->g[t * r->g_stride]) : 1.0f;
        for (int64_t i = t * r->updates; i < (t + 1) * r->updates; i++) {
            const float *restrict k = r->k + i * r->k_stride, *restrict v = r->v + i * r->v_stride;
            const float beta = r->beta[i * r->beta_stride];
            for (int64_t c = 0; c < V; c++) sum[c] = 0;
            for (int64_t a = 0; a < K; a++)
                for (int64_t c = 0; c < V; c++) sum[c] += k[a] * state[a * V + c];
            for (int64_t c = 0; c < V; c++) sum[c] = beta * (v[c] - decay * sum[c]);
            for (int64_t a = 0; a < K; a++)
                for (int64_t c = 0; c < V; c++)
                    state[a * V + c] = decay * state[a * V + c] + k[a] * sum[c];
            decay = 1.0f;
        }
        const float *restrict q = r->q + t * r->q_stride;
        float *restrict o = r->o + t * r->o_stride;
        for (int64_t c = 0; c < V; c++) sum[c] = 0;
        for (int64_t a = 0; a < K; a++)
            for (int64_t c = 0; c < V; c++) sum[c] += q[a] * state[a * V + c];
        for (int64_t c = 0; c < V; c++) o[c] = r->scale * sum[c];
    }
}

void recurrence_forward(const recurrence *r) { run(r); }

WIDE void recurrence_forward_wide(const recurrence *r) { run(r); }
