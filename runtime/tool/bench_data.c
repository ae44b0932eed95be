/* Large random inputs, quickly: some thousand rows are made and then repeated. Their number is a
 * prime, so that heads and tokens do not meet the same rows again. */
#include "bench_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POOL_ROWS = 16381, POOL_NUMBERS = 262139 };

enum kind { UNIT_ROWS, NORMAL_ROWS, GATES, BETAS };

typedef struct made {
    gdp_tensor tensor;
    enum kind kind;
} made;

/* One row of q, k, v or do. */
static void make_row(void *pool, gdp_dtype dtype, int64_t row, int64_t length, bool unit,
                     random_state *random)
{
    float numbers[256]; /* the largest K and V */
    double sum = 0;
    for (int64_t c = 0; c < length; c++) {
        numbers[c] = (float)random_normal(random);
        sum += (double)numbers[c] * (double)numbers[c];
    }
    const float factor = unit && sum > 0 ? (float)(1 / sqrt(sum)) : 1;
    for (int64_t c = 0; c < length; c++)
        store_element(pool, dtype, row * length + c, factor * numbers[c]);
}

static void make_pool(void *pool, const made *what, int64_t count, const bench_options *options,
                      uint64_t seed)
{
    random_state random = { seed };
    const gdp_tensor *t = &what->tensor;
    const int64_t length = t->shape[3];
    const double decay = options->gate == BENCH_WEAK ? -0.002 : -0.1;
    if (what->kind == UNIT_ROWS || what->kind == NORMAL_ROWS) {
        for (int64_t row = 0; row < count / length; row++)
            make_row(pool, t->dtype, row, length, what->kind == UNIT_ROWS, &random);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        store_element(
            pool, t->dtype, i,
            (float)((what->kind == GATES ? decay : options->beta) * random_uniform(&random)));
}

static gdp_status fill_tensor(gdp_context *context, const made *what, const bench_options *options,
                              uint64_t seed)
{
    const gdp_tensor *t = &what->tensor;
    const int64_t total = count_elements(t);
    const int64_t most = t->rank == 4 ? POOL_ROWS * t->shape[3] : POOL_NUMBERS;
    const int64_t count = total < most ? total : most;
    const size_t size = gdp_dtype_size(t->dtype);
    void *pool = allocate_zeroed((size_t)count * size);
    if (!pool) return GDP_STATUS_OUT_OF_MEMORY;
    make_pool(pool, what, count, options, seed);
    gdp_status status = GDP_OK;
    for (int64_t at = 0; at < total && status == GDP_OK; at += count)
        status = gdp_memory_copy(context, (char *)t->data + (size_t)at * size, pool,
                                 (size_t)(total - at < count ? total - at : count) * size);
    free(pool);
    return status;
}

static void describe_set(const gdp_problem *p, made list[6])
{
    const int64_t B = p->batch, T = p->tokens, Tn = T * p->num_householder, H = p->heads,
                  HV = p->value_heads, K = p->dim_k, V = p->dim_v;
    const struct {
        gdp_dtype dtype;
        int rank;
        int64_t shape[4];
        enum kind kind;
    } wanted[6] = {
        { p->dtype, 4, { B, T, H, K }, UNIT_ROWS },
        { p->dtype, 4, { B, Tn, H, K }, UNIT_ROWS },
        { p->dtype, 4, { B, Tn, HV, V }, NORMAL_ROWS },
        { p->gate_dtype, 3, { B, T, HV }, GATES },
        { p->beta_dtype, 3, { B, Tn, HV }, BETAS },
        { p->dtype, 4, { B, T, HV, V }, NORMAL_ROWS },
    };
    for (int i = 0; i < 6; i++) {
        list[i] = (made){ .kind = wanted[i].kind };
        list[i].tensor.dtype = wanted[i].dtype;
        list[i].tensor.rank = wanted[i].rank;
        memcpy(list[i].tensor.shape, wanted[i].shape, sizeof wanted[i].shape);
    }
}

size_t bench_set_bytes(const gdp_problem *problem)
{
    made list[6];
    size_t bytes = 0;
    describe_set(problem, list);
    for (int i = 0; i < 6; i++)
        bytes += (size_t)count_elements(&list[i].tensor) * gdp_dtype_size(list[i].tensor.dtype);
    return bytes;
}

gdp_status bench_make_set(gdp_context *context, const gdp_problem *problem,
                          const bench_options *options, uint64_t seed, bench_set *set)
{
    made list[6];
    gdp_status status = GDP_OK;
    memset(set, 0, sizeof *set);
    describe_set(problem, list);
    for (int i = 0; i < 6 && status == GDP_OK; i++) {
        gdp_tensor *t = &list[i].tensor;
        const size_t bytes = (size_t)count_elements(t) * gdp_dtype_size(t->dtype);
        if (bytes == 0) continue;
        status = gdp_memory_allocate(context, bytes, &set->memory[i]);
        *t = gdp_tensor_contiguous(set->memory[i], t->dtype, t->rank, t->shape);
        if (status == GDP_OK)
            status = fill_tensor(context, &list[i], options, seed * 6 + (uint64_t)i);
    }
    set->inputs.q = list[0].tensor;
    set->inputs.k = list[1].tensor;
    set->inputs.v = list[2].tensor;
    set->inputs.g = list[3].tensor;
    set->inputs.beta = list[4].tensor;
    set->inputs.num_householder = (int)problem->num_householder;
    set->gradients.d_o = list[5].tensor;
    if (status != GDP_OK) bench_release_set(context, set);
    return status;
}

void bench_release_set(gdp_context *context, bench_set *set)
{
    for (int i = 0; i < 6; i++) gdp_memory_release(context, set->memory[i]);
    memset(set, 0, sizeof *set);
}
