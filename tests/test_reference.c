/* The float64 reference against a second, naive recurrence, its own finite differences, the
 * identities of context parallelism, and the cases that can be done by hand; and the
 * conversions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "convert.h"
#include "internal.h"

/* ---- a problem with all its tensors, f32 and contiguous ---- */

enum { MOST_SEQUENCES = 8, MOST_SHARDS = 3 };

typedef enum name {
    Q,
    KEY,
    VALUE,
    GATE,
    BETA,
    S0,
    DO,
    DSF, /* read */
    DQ,
    DK,
    DV,
    DG,
    DBETA,
    DS0,
    O,
    SF,
    NAMES /* written */
} name;

static const char *const names[NAMES] = { "q",  "k",  "v",  "g",  "beta",  "S0",  "do", "dSf",
                                          "dq", "dk", "dv", "dg", "dbeta", "dS0", "o",  "Sf" };

typedef struct instance {
    gdp_problem problem;
    int32_t cu[MOST_SEQUENCES + 1];
    int64_t count; /**< sequences */
    float *data[NAMES];
    float scale;
} instance;

static gdpi_pool *pool;
static uint64_t seed;

static void *heap_allocate(void *user, size_t bytes)
{
    (void)user;
    return malloc(bytes);
}

static void heap_release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static const gdpi_allocator *heap(void)
{
    static const gdpi_allocator allocator = { heap_allocate, heap_release, NULL };
    return &allocator;
}

/* Uniform in [-1, 1), a multiple of 2^-12: exact in f32, also with a step of 2^-8 added. */
static double draw(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(seed >> 51) / 4096 - 1;
}

static int64_t size_of(const instance *it, name what)
{
    const gdp_problem *p = &it->problem;
    const int64_t tokens = p->batch * p->tokens, rows = tokens * p->num_householder;
    switch (what) {
    case Q:
    case DQ:
        return tokens * p->heads * p->dim_k;
    case KEY:
    case DK:
        return rows * p->heads * p->dim_k;
    case VALUE:
    case DV:
        return rows * p->value_heads * p->dim_v;
    case GATE:
    case DG:
        return tokens * p->value_heads;
    case BETA:
    case DBETA:
        return rows * p->value_heads;
    case O:
    case DO:
        return tokens * p->value_heads * p->dim_v;
    default:
        return it->count * p->value_heads * p->dim_k * p->dim_v;
    }
}

/* cu: NULL: dense. Packed: count boundaries after the first, which is 0. */
static instance *create(gdp_problem problem, const int32_t *cu)
{
    instance *it = calloc(1, sizeof *it);
    assert_non_null(it);
    problem.dtype = problem.beta_dtype = GDP_DTYPE_F32;
    it->problem = problem;
    it->count = cu ? problem.sequences : problem.batch;
    it->scale = 0.25F;
    if (cu) memcpy(it->cu, cu, (size_t)(it->count + 1) * sizeof *cu);
    for (int i = 0; i < NAMES; i++) {
        const int64_t size = size_of(it, (name)i);
        it->data[i] = malloc((size_t)(size + 1) * sizeof(float)); /* + 1: never of size 0 */
        assert_non_null(it->data[i]);
        for (int64_t j = 0; j < size; j++) {
            double value = i < DQ ? draw() : (double)NAN;
            if (i == KEY || i == Q) value *= 0.5;
            if (i == GATE) value = (value - 1) / 4; /* -0.5 .. 0 */
            if (i == BETA) value = value + 1;
            it->data[i][j] = (float)value;
        }
    }
    return it;
}

static void destroy(instance *it)
{
    for (int i = 0; i < NAMES; i++) free(it->data[i]);
    free(it);
}

static gdp_view view_of(const instance *it, name what, int64_t rows, int64_t heads, int64_t dim)
{
    return (gdp_view){ it->data[what], rows * heads * dim, heads * dim, dim };
}

static gdp_args args_of(const instance *it)
{
    const gdp_problem *p = &it->problem;
    const int64_t T = p->tokens, R = T * p->num_householder, H = p->heads, HV = p->value_heads;
    const int64_t K = p->dim_k, V = p->dim_v;
    gdp_args a = {
        .q = view_of(it, Q, T, H, K),
        .k = view_of(it, KEY, R, H, K),
        .v = view_of(it, VALUE, R, HV, V),
        .beta = view_of(it, BETA, R, HV, 1),
        .o = view_of(it, O, T, HV, V),
        .d_o = view_of(it, DO, T, HV, V),
        .dq = view_of(it, DQ, T, H, K),
        .dk = view_of(it, DK, R, H, K),
        .dv = view_of(it, DV, R, HV, V),
        .dbeta = view_of(it, DBETA, R, HV, 1),
        .initial_state = it->data[S0],
        .final_state = it->data[SF],
        .d_final_state = it->data[DSF],
        .d_initial_state = it->data[DS0],
        .batch = p->batch,
        .tokens = T,
        .sequence_count = it->count,
        .heads = H,
        .value_heads = HV,
        .scale = it->scale,
        .cu_seqlens = p->sequences ? it->cu : NULL,
    };
    if (p->gate_dtype != GDP_DTYPE_NONE) {
        a.g = view_of(it, GATE, T, HV, 1);
        a.dg = view_of(it, DG, T, HV, 1);
    }
    return a;
}

/* The reference may use as many bytes as it asked for: the sanitizer knows where they end. */
static void *workspace_of(const instance *it, bool backward)
{
    const size_t bytes = gdpi_reference_workspace(&it->problem, gdpi_pool_threads(pool), backward);
    void *memory = malloc(bytes);
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    return memory;
}

static void forward(const instance *it, const gdp_args *args)
{
    void *workspace = workspace_of(it, false);
    gdpi_reference_forward(pool, &it->problem, args, workspace);
    free(workspace);
}

static void backward(const instance *it, const gdp_args *args)
{
    void *workspace = workspace_of(it, true);
    gdpi_reference_backward(pool, &it->problem, args, workspace);
    free(workspace);
}

static void run(const instance *it)
{
    const gdp_args args = args_of(it);
    forward(it, &args);
    backward(it, &args);
}

static void expect_near(const float *got, const float *want, int64_t count, double bound,
                        const char *what)
{
    for (int64_t i = 0; i < count; i++) {
        const double a = (double)got[i], b = (double)want[i];
        if (!(fabs(a - b) <= bound * (1 + fabs(b))))
            fail_msg("%s[%lld] is %.9g, not %.9g", what, (long long)i, a, b);
    }
}

static gdp_problem sizes(int64_t batch, int64_t tokens, int64_t heads, int64_t value_heads,
                         int64_t dim_k, int64_t dim_v, int64_t n)
{
    gdp_problem p = { .batch = batch,
                      .tokens = tokens,
                      .heads = heads,
                      .value_heads = value_heads,
                      .dim_k = dim_k,
                      .dim_v = dim_v,
                      .num_householder = n };
    p.gate_dtype = GDP_DTYPE_F32;
    p.index_dtype = GDP_DTYPE_I32;
    return p;
}

/* ---- the problems that several tests use ---- */

static const int32_t boundaries[] = { 0, 0, 3, 3, 9, 10, 10 };

static instance *make_case(int number)
{
    gdp_problem p;
    seed = (uint64_t)number + 1;
    switch (number) {
    case 0:
        return create(sizes(2, 5, 1, 2, 3, 4, 1), NULL);
    case 1:
        return create(sizes(1, 6, 2, 2, 4, 18, 2), NULL);
    case 2:
        p = sizes(1, 12, 1, 3, 5, 3, 3); /* two tokens behind the last sequence */
        p.sequences = 6;
        return create(p, boundaries);
    case 3:
        p = sizes(2, 7, 2, 4, 3, 2, 2);
        p.gate_dtype = GDP_DTYPE_NONE;
        return create(p, NULL);
    case 4:
        p = sizes(1, 40, 1, 1, 20, 35, 2); /* several blocks of tokens and of columns */
        p.sequences = 2;
        return create(p, (const int32_t[]){ 0, 11, 40 });
    default:
        return NULL;
    }
}

/* ---- forward, the naive way ---- */

static void naive_token(const instance *it, int64_t row, int64_t head, double *S, double *o)
{
    const gdp_problem *p = &it->problem;
    const int64_t K = p->dim_k, V = p->dim_v, HV = p->value_heads, n = p->num_householder;
    const int64_t query = head * p->heads / HV;
    if (p->gate_dtype != GDP_DTYPE_NONE)
        for (int64_t i = 0; i < K * V; i++) S[i] *= exp((double)it->data[GATE][row * HV + head]);
    for (int64_t j = row * n; j < row * n + n; j++) {
        const float *k = it->data[KEY] + (j * p->heads + query) * K;
        const double beta = (double)it->data[BETA][j * HV + head];
        for (int64_t c = 0; c < V; c++) {
            double u = (double)it->data[VALUE][(j * HV + head) * V + c];
            for (int64_t i = 0; i < K; i++) u -= S[i * V + c] * (double)k[i];
            for (int64_t i = 0; i < K; i++) S[i * V + c] += beta * u * (double)k[i];
        }
    }
    for (int64_t c = 0; c < V; c++) {
        o[c] = 0;
        for (int64_t i = 0; i < K; i++)
            o[c] += (double)it->scale * S[i * V + c] *
                    (double)it->data[Q][(row * p->heads + query) * K + i];
    }
}

static void expect_naive(const instance *it, int64_t s, int64_t head)
{
    const gdp_problem *p = &it->problem;
    const int64_t V = p->dim_v, HV = p->value_heads, T = p->tokens, size = p->dim_k * V;
    double *S = malloc((size_t)size * sizeof *S), *o = malloc((size_t)V * sizeof *o);
    assert_non_null(S);
    assert_non_null(o);
    for (int64_t i = 0; i < size; i++) S[i] = (double)it->data[S0][(s * HV + head) * size + i];
    const int64_t begin = p->sequences ? it->cu[s] : s * T;
    const int64_t end = p->sequences ? it->cu[s + 1] : (s + 1) * T;
    for (int64_t t = begin; t < end; t++) {
        naive_token(it, t, head, S, o);
        for (int64_t c = 0; c < V; c++)
            assert_true(fabs(o[c] - (double)it->data[O][(t * HV + head) * V + c]) <=
                        1e-6 * (1 + fabs(o[c])));
    }
    for (int64_t i = 0; i < size; i++)
        assert_true(fabs(S[i] - (double)it->data[SF][(s * HV + head) * size + i]) <=
                    1e-6 * (1 + fabs(S[i])));
    free(o);
    free(S);
}

static void test_forward(void **state)
{
    (void)state;
    instance *it;
    for (int number = 0; (it = make_case(number)); number++) {
        run(it);
        for (int64_t s = 0; s < it->count; s++)
            for (int64_t head = 0; head < it->problem.value_heads; head++)
                expect_naive(it, s, head);
        destroy(it);
    }
}

/* ---- gradients ---- */

static double loss(const instance *it)
{
    const gdp_args args = args_of(it);
    double sum = 0;
    forward(it, &args);
    for (int64_t i = 0; i < size_of(it, O); i++)
        sum += (double)it->data[O][i] * (double)it->data[DO][i];
    for (int64_t i = 0; i < size_of(it, SF); i++)
        sum += (double)it->data[SF][i] * (double)it->data[DSF][i];
    return sum;
}

static void expect_derivative(instance *it, name input, name gradient)
{
    const int64_t size = size_of(it, input);
    const float step = 0x1p-8F;
    float *was = malloc((size_t)size * sizeof *was), *along = malloc((size_t)size * sizeof *along);
    assert_non_null(was);
    assert_non_null(along);
    memcpy(was, it->data[input], (size_t)size * sizeof *was);
    double want = 0, scale = 0;
    for (int64_t i = 0; i < size; i++) {
        const double choice = draw();
        along[i] = size > 6 && fabs(choice) < 0.8 ? 0.0F : choice < 0 ? -1.0F : 1.0F;
        want += (double)along[i] * (double)it->data[gradient][i];
        scale += fabs((double)along[i] * (double)it->data[gradient][i]);
        it->data[input][i] = was[i] + step * along[i];
    }
    const double above = loss(it);
    for (int64_t i = 0; i < size; i++) it->data[input][i] = was[i] - step * along[i];
    const double below = loss(it), got = (above - below) / (2 * (double)step);
    memcpy(it->data[input], was, (size_t)size * sizeof *was);
    if (!(fabs(got - want) <= 1e-3 * (1 + scale)))
        fail_msg("%s: %.9g by differences, %.9g by the gradient", names[gradient], got, want);
    free(along);
    free(was);
}

static void test_finite_differences(void **state)
{
    (void)state;
    static const name pairs[][2] = { { Q, DQ },    { KEY, DK },     { VALUE, DV },
                                     { GATE, DG }, { BETA, DBETA }, { S0, DS0 } };
    instance *it;
    for (int number = 0; (it = make_case(number)); number++) {
        run(it);
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            if (pairs[i][0] == GATE && it->problem.gate_dtype == GDP_DTYPE_NONE) continue;
            for (int round = 0; round < 4; round++) expect_derivative(it, pairs[i][0], pairs[i][1]);
        }
        destroy(it);
    }
}

/* Rows behind the last sequence are zero; empty sequences hand their states on. */
static void test_packed_edges(void **state)
{
    (void)state;
    instance *it = make_case(2);
    run(it);
    for (int what = DQ; what < NAMES; what++) {
        if (what == DS0 || what == SF) continue;
        const int64_t size = size_of(it, (name)what), from = size / 12 * 10;
        for (int64_t i = 0; i < size; i++) {
            assert_true(isfinite(it->data[what][i]));
            if (i >= from) assert_true(it->data[what][i] == 0.0F);
        }
    }
    const size_t bytes = (size_t)(size_of(it, SF) / 6) * sizeof(float);
    static const int empty[] = { 0, 2, 5 };
    for (size_t i = 0; i < 3; i++) {
        const size_t at = (size_t)empty[i] * bytes / sizeof(float);
        assert_memory_equal(it->data[SF] + at, it->data[S0] + at, bytes);
        assert_memory_equal(it->data[DS0] + at, it->data[DSF] + at, bytes);
    }
    destroy(it);
}

static void test_wide_boundaries(void **state)
{
    (void)state;
    instance *it = make_case(2), *want = make_case(2);
    int64_t cu[7];
    for (int i = 0; i < 7; i++) cu[i] = it->cu[i];
    run(want);
    it->problem.index_dtype = GDP_DTYPE_I64;
    gdp_args args = args_of(it);
    args.cu_seqlens = cu;
    forward(it, &args);
    backward(it, &args);
    for (int i = DQ; i < NAMES; i++)
        assert_memory_equal(it->data[i], want->data[i],
                            (size_t)size_of(it, (name)i) * sizeof(float));
    destroy(want);
    destroy(it);
}

/* Strides of another order, [B, H, T, K] in memory, and gaps: the same bits. */
static void test_strides(void **state)
{
    (void)state;
    instance *it = make_case(1), *want = make_case(1);
    run(want);
    float keys[2 * 12 * 7], gradients[2 * 12 * 7];
    for (int row = 0; row < 12; row++)
        for (int head = 0; head < 2; head++)
            memcpy(keys + (head * 12 + row) * 7, it->data[KEY] + (row * 2 + head) * 4,
                   4 * sizeof(float));
    gdp_args args = args_of(it);
    args.k = (gdp_view){ keys, 2 * 12 * 7, 7, 12 * 7 };
    args.dk = (gdp_view){ gradients, 2 * 12 * 7, 7, 12 * 7 };
    forward(it, &args);
    backward(it, &args);
    for (int row = 0; row < 12; row++)
        for (int head = 0; head < 2; head++)
            memcpy(it->data[DK] + (row * 2 + head) * 4, gradients + (head * 12 + row) * 7,
                   4 * sizeof(float));
    for (int i = DQ; i < NAMES; i++)
        assert_memory_equal(it->data[i], want->data[i],
                            (size_t)size_of(it, (name)i) * sizeof(float));
    destroy(want);
    destroy(it);
}

/* Any number of threads: the same bits. */
static void test_threads(void **state)
{
    (void)state;
    gdpi_pool *const was = pool;
    instance *it;
    for (int number = 0; (it = make_case(number)); number++) {
        instance *other = make_case(number);
        run(it);
        assert_int_equal(gdpi_pool_create(heap(), 1, &pool), GDP_OK);
        run(other);
        gdpi_pool_destroy(pool);
        pool = was;
        for (int i = DQ; i < NAMES; i++)
            if (i != DG || it->problem.gate_dtype != GDP_DTYPE_NONE)
                assert_memory_equal(it->data[i], other->data[i],
                                    (size_t)size_of(it, (name)i) * sizeof(float));
        destroy(other);
        destroy(it);
    }
}

/* ---- by hand ---- */

static void fill(instance *it, name what, float value)
{
    for (int64_t i = 0; i < size_of(it, what); i++) it->data[what][i] = value;
}

static void test_n10_beta_is_not_clamped(void **state)
{
    (void)state;
    instance *it = create(sizes(1, 1, 1, 1, 16, 16, 1), NULL);
    fill(it, S0, 0);
    fill(it, KEY, 0);
    fill(it, VALUE, 0);
    fill(it, GATE, 0);
    fill(it, BETA, 1.75F);
    for (int i = 0; i < 16; i++) it->data[S0][i * 17] = 1;
    it->data[KEY][0] = 1;
    run(it);
    for (int i = 0; i < 256; i++) {
        const float want = i == 0 ? -0.75F : i % 17 == 0 ? 1.0F : 0.0F;
        assert_true(it->data[SF][i] == want);
    }
    destroy(it);
}

/* With beta 0 only the decay is left: once a token, not once a sub-token. */
static void test_n11_decay_acts_once(void **state)
{
    (void)state;
    seed = 11;
    instance *it = create(sizes(1, 2, 1, 1, 4, 5, 3), NULL);
    it->data[GATE][0] = -0.5F;
    it->data[GATE][1] = -1.5F;
    run(it);
    expect_naive(it, 0, 0);
    fill(it, BETA, 0);
    run(it);
    for (int i = 0; i < 20; i++)
        assert_true(fabs((double)it->data[SF][i] - exp(-2.0) * (double)it->data[S0][i]) < 1e-7);
    /* Before the first update: S = k v^T with beta 1 and |k| = 1 keeps its size within the
     * token. */
    fill(it, S0, 0);
    fill(it, KEY, 0);
    for (int j = 0; j < 6; j++) it->data[KEY][j * 4] = 1;
    it->data[BETA][0] = 1;
    run(it);
    for (int c = 0; c < 5; c++)
        assert_true(fabs((double)it->data[SF][c] - exp(-1.5) * (double)it->data[VALUE][c]) < 1e-7);
    destroy(it);
}

/* ---- context parallelism ---- */

typedef struct shard {
    gdp_problem problem;
    gdp_args args;
    int32_t cu[MOST_SEQUENCES + 1];
    float *incoming, *d_outgoing, *initial,
        *d_final; /**< the last two: what is given at the ends */
} shard;

static float *floats(int64_t count)
{
    float *memory = calloc((size_t)(count + 1), sizeof *memory);
    assert_non_null(memory);
    return memory;
}

static void move(gdp_view *view, int64_t rows)
{
    if (view->data) view->data = (float *)view->data + rows * view->row;
}

/* The tokens begin .. end-1 of all batch rows; states are this shard's own. */
static void cut(const instance *whole, shard *to, int64_t begin, int64_t end)
{
    const int64_t n = whole->problem.num_householder;
    to->problem = whole->problem;
    to->problem.tokens = end - begin;
    to->args = args_of(whole);
    gdp_args *a = &to->args;
    gdp_view *const by_token[] = { &a->q, &a->g, &a->o, &a->d_o, &a->dq, &a->dg };
    gdp_view *const by_row[] = { &a->k, &a->v, &a->beta, &a->dk, &a->dv, &a->dbeta };
    for (int i = 0; i < 6; i++) {
        move(by_token[i], begin);
        move(by_row[i], begin * n);
    }
    a->tokens = end - begin;
    a->final_state = a->d_initial_state = NULL;
    a->initial_state = a->d_final_state = NULL;
    a->fold_sequences = whole->problem.batch;
    const int64_t size =
        a->fold_sequences * a->value_heads * whole->problem.dim_k * whole->problem.dim_v;
    to->incoming = floats(size);
    to->d_outgoing = floats(size);
}

/* What all ranks exchange, by the reference's summaries. */
static float *gather(shard *shards, int count, bool adjoint, bool packed)
{
    const gdp_problem *p = &shards->problem;
    const int64_t items = shards->args.fold_sequences;
    const int64_t size = items * p->value_heads * p->dim_k * (p->dim_k + p->dim_v);
    float *gathered = floats(size * count);
    for (int r = 0; r < count; r++) {
        gdp_args args = shards[r].args;
        args.folded = gathered + r * size;
        args.fold_sequence = packed && !adjoint ? args.sequence_count - 1 : 0;
        void *workspace =
            malloc(gdpi_reference_workspace(&shards[r].problem, gdpi_pool_threads(pool), adjoint));
        assert_non_null(workspace);
        gdpi_reference_summary(pool, &shards[r].problem, &args, adjoint, workspace);
        free(workspace);
    }
    return gathered;
}

static void fold(shard *to, const float *gathered, bool adjoint, int first, int count)
{
    gdp_args args = to->args;
    args.gathered = gathered;
    args.folded = adjoint ? to->d_outgoing : to->incoming;
    args.fold_first = first;
    args.fold_count = count;
    void *workspace =
        malloc(gdpi_reference_workspace(&to->problem, gdpi_pool_threads(pool), adjoint));
    assert_non_null(workspace);
    gdpi_reference_fold(pool, &to->problem, &args, adjoint, workspace);
    free(workspace);
    if (adjoint)
        to->args.d_outgoing_state = to->d_outgoing;
    else
        to->args.incoming_state = to->incoming;
}

/* All shards from the summaries; then every output but the states is the whole run's. */
static void run_shards(shard *shards, int count, bool packed)
{
    float *gathered = gather(shards, count, false, packed);
    float *d_gathered = gather(shards, count, true, packed);
    for (int r = 0; r < count; r++) {
        if (r > 0) fold(&shards[r], gathered, false, 0, r);
        if (r < count - 1) fold(&shards[r], d_gathered, true, count - 1, count - 1 - r);
    }
    for (int r = 0; r < count; r++) {
        void *workspace =
            malloc(gdpi_reference_workspace(&shards[r].problem, gdpi_pool_threads(pool), true));
        assert_non_null(workspace);
        gdpi_reference_forward(pool, &shards[r].problem, &shards[r].args, workspace);
        gdpi_reference_backward(pool, &shards[r].problem, &shards[r].args, workspace);
        free(workspace);
    }
    free(gathered);
    free(d_gathered);
}

static void expect_shards_equal(instance *it, instance *want)
{
    for (int i = DQ; i < NAMES; i++) {
        if (i == DG && it->problem.gate_dtype == GDP_DTYPE_NONE) continue;
        expect_near(it->data[i], want->data[i], size_of(it, (name)i), 1e-5, names[i]);
    }
}

static void test_dense_shards(void **state)
{
    (void)state;
    static const int64_t ends[2][4] = { { 0, 5, 7, 7 }, { 0, 2, 3, 7 } };
    for (int count = 2; count <= MOST_SHARDS; count++) {
        instance *it = make_case(3), *want = make_case(3);
        shard shards[MOST_SHARDS] = { 0 };
        run(want);
        for (int r = 0; r < count; r++)
            cut(it, &shards[r], ends[count - 2][r], ends[count - 2][r + 1]);
        shards[0].args.initial_state = it->data[S0];
        shards[0].args.d_initial_state = it->data[DS0];
        shards[count - 1].args.d_final_state = it->data[DSF];
        shards[count - 1].args.final_state = it->data[SF];
        run_shards(shards, count, false);
        expect_shards_equal(it, want);
        for (int r = 0; r < count; r++) {
            free(shards[r].incoming);
            free(shards[r].d_outgoing);
        }
        destroy(want);
        destroy(it);
    }
}

/* Sequences 0 .. 11 .. 40; the cut at 30 leaves {0, 11, 30} and {0, 10}. */
static void test_packed_shards(void **state)
{
    (void)state;
    instance *it = make_case(4), *want = make_case(4);
    const int64_t size = it->problem.dim_k * it->problem.dim_v; /* of the one value head's state */
    shard shards[2] = { 0 };
    run(want);
    cut(it, &shards[0], 0, 30);
    cut(it, &shards[1], 30, 40);
    memcpy(shards[0].cu, (const int32_t[]){ 0, 11, 30 }, 3 * sizeof(int32_t));
    memcpy(shards[1].cu, (const int32_t[]){ 0, 10 }, 2 * sizeof(int32_t));
    for (int r = 0; r < 2; r++) shards[r].args.cu_seqlens = shards[r].cu;
    shards[1].problem.sequences = shards[1].args.sequence_count = 1;
    shards[0].args.initial_state = it->data[S0];
    shards[0].args.d_initial_state = it->data[DS0];
    /* The first shard's row of the sequence that goes on is not the end of it: d_outgoing
     * replaces it. */
    shards[0].args.d_final_state = it->data[DSF];
    shards[0].args.final_state = it->data[SF];
    shards[1].args.d_final_state = it->data[DSF] + size;
    float *last = floats(size);
    shards[1].args.final_state = last;
    run_shards(shards, 2, true);
    memcpy(it->data[SF] + size, last, (size_t)size * sizeof *last);
    expect_shards_equal(it, want);
    for (int r = 0; r < 2; r++) {
        free(shards[r].incoming);
        free(shards[r].d_outgoing);
    }
    free(last);
    destroy(want);
    destroy(it);
}

/* ---- conversions ---- */

static double exact(uint16_t bits, int mantissa)
{
    const int exponent = bits >> mantissa & ((1 << (15 - mantissa)) - 1);
    const int bias = (1 << (14 - mantissa)) - 1, fraction = bits & ((1 << mantissa) - 1);
    const double magnitude = exponent
                                 ? ldexp(fraction + (1 << mantissa), exponent - bias - mantissa)
                                 : ldexp(fraction, 1 - bias - mantissa);
    return bits >> 15 ? -magnitude : magnitude;
}

static void expect_rounds(gdp_dtype dtype, double value, uint16_t want)
{
    uint16_t got = 0;
    gdpi_store(&got, dtype, 0, value);
    if (got != want) fail_msg("%a became %#x, not %#x", value, got, want);
}

/* Every finite value, the middles between neighbours, and what is just beside them. */
static void check_dtype(gdp_dtype dtype, int mantissa)
{
    const uint16_t infinity = (uint16_t)(0x7fff >> mantissa << mantissa);
    for (int32_t i = 0; i < 65536; i++) {
        const uint16_t bits = (uint16_t)i, next = (uint16_t)(bits + 1);
        const double value = gdpi_load(&bits, dtype, 0);
        if ((bits & 0x7fff) > infinity) {
            uint16_t got = 0;
            gdpi_store(&got, dtype, 0, value);
            assert_true(isnan(value) && (got & 0x7fff) > infinity);
            continue;
        }
        expect_rounds(dtype, value, bits);
        if ((bits & 0x7fff) == infinity) {
            assert_true(isinf(value) && signbit(value) == (bits >> 15 ? signbit(-1.0) : 0));
            continue;
        }
        assert_true(value == exact(bits, mantissa));
        /* Beyond the largest number infinity stands where the next one would be. */
        const double middle = value + (exact(next, mantissa) - value) / 2;
        expect_rounds(dtype, middle, bits & 1 ? next : bits);
        expect_rounds(dtype, nextafter(middle, 0), bits);
        expect_rounds(dtype, nextafter(middle, bits >> 15 ? -INFINITY : INFINITY), next);
    }
}

static void test_conversions(void **state)
{
    (void)state;
    check_dtype(GDP_DTYPE_BF16, 7);
    check_dtype(GDP_DTYPE_F16, 10);
    expect_rounds(GDP_DTYPE_F16, 5e-324, 0);
    expect_rounds(GDP_DTYPE_F16, -5e-324, 0x8000);
    expect_rounds(GDP_DTYPE_BF16, 1e300, 0x7f80);
    /* By way of a float this would be a tie, and round to even. */
    expect_rounds(GDP_DTYPE_BF16, 1 + 0x1p-8 + 0x1p-40, 0x3f81);
    const int64_t wide[2] = { 7, INT64_C(1) << 40 };
    assert_true(gdpi_load(wide, GDP_DTYPE_I64, 1) == 0x1p40);
    double row[3];
    const uint16_t halves[4] = { 0, 0x3c00, 0xc000, 1 };
    gdpi_load_row(row, halves, GDP_DTYPE_F16, 1, 3);
    assert_true(row[0] == 1 && row[1] == -2 && row[2] == 0x1p-24);
}

/* ---- 16-bit tensors, through the same code ---- */

static void test_half_tensors(void **state)
{
    (void)state;
    static const gdp_dtype dtypes[] = { GDP_DTYPE_BF16, GDP_DTYPE_F16 };
    for (int d = 0; d < 2; d++) {
        instance *it = make_case(1), *half = make_case(1);
        half->problem.dtype = half->problem.gate_dtype = half->problem.beta_dtype = dtypes[d];
        for (int i = 0; i < NAMES; i++) {
            if (i == S0 || i == DSF || i == DS0 || i == SF) continue;
            for (int64_t j = 0; j < size_of(it, (name)i); j++) {
                gdpi_store(half->data[i], dtypes[d], j, (double)it->data[i][j]);
                it->data[i][j] = (float)gdpi_load(half->data[i], dtypes[d], j);
            }
        }
        run(it);
        run(half);
        for (int i = DQ; i < NAMES; i++)
            for (int64_t j = 0; j < size_of(it, (name)i); j++) {
                const double want = (double)it->data[i][j];
                const gdp_dtype dtype = i == DS0 || i == SF ? GDP_DTYPE_F32 : dtypes[d];
                assert_true(fabs(gdpi_load(half->data[i], dtype, j) - want) <=
                            0x1p-8 * fabs(want) + 1e-6);
            }
        destroy(half);
        destroy(it);
    }
}

static int start_pool(void **state)
{
    (void)state;
    return gdpi_pool_create(heap(), 3, &pool) == GDP_OK ? 0 : -1;
}

static int end_pool(void **state)
{
    (void)state;
    gdpi_pool_destroy(pool);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_packed_edges),
        cmocka_unit_test(test_wide_boundaries),
        cmocka_unit_test(test_strides),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_n10_beta_is_not_clamped),
        cmocka_unit_test(test_n11_decay_acts_once),
        cmocka_unit_test(test_dense_shards),
        cmocka_unit_test(test_packed_shards),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_half_tensors),
    };
    return cmocka_run_group_tests(tests, start_pool, end_pool);
}
