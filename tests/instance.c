#include "instance.h"

#include <math.h>
#include <unistd.h>

#include "convert.h"

enum { CANARY = 256 };

/* ---- random numbers ---- */

double random_uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

double random_normal(uint64_t *state)
{
    const double u = random_uniform(state), v = random_uniform(state);
    return sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
}

/* ---- tensors ---- */

int64_t tensor_elements(const gdp_tensor *t)
{
    int64_t elements = 1;
    for (int i = 0; i < t->rank; i++) elements *= t->shape[i];
    return t->data ? elements : 0;
}

static int64_t offset(const gdp_tensor *t, int64_t b, int64_t row, int64_t head, int64_t c)
{
    return b * t->stride[0] + row * t->stride[1] + head * t->stride[2] +
           (t->rank == 4 ? c * t->stride[3] : 0);
}

double tensor_get(const gdp_tensor *t, int64_t b, int64_t row, int64_t head, int64_t c)
{
    return gdpi_load(t->data, t->dtype, offset(t, b, row, head, c));
}

void tensor_set(const gdp_tensor *t, int64_t b, int64_t row, int64_t head, int64_t c, double value)
{
    gdpi_store(t->data, t->dtype, offset(t, b, row, head, c), value);
}

/* A buffer between canaries, filled with 0xFF. */
static gdp_tensor make(gdp_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[4] = { a, b, c, d };
    size_t bytes = gdp_dtype_size(dtype);
    for (int i = 0; i < rank; i++) bytes *= (size_t)shape[i];
    if (dtype == GDP_DTYPE_NONE) return gdp_tensor_contiguous(NULL, dtype, rank, shape);
    unsigned char *block = malloc(bytes + 2 * CANARY);
    assert_non_null(block);
    memset(block, 0xA5, bytes + 2 * CANARY);
    memset(block + CANARY, 0xFF, bytes);
    return gdp_tensor_contiguous(block + CANARY, dtype, rank, shape);
}

static void destroy(gdp_tensor *t)
{
    if (!t->data) return;
    const size_t bytes = (size_t)tensor_elements(t) * gdp_dtype_size(t->dtype);
    unsigned char *block = (unsigned char *)t->data - CANARY;
    for (int i = 0; i < CANARY; i++)
        if (block[i] != 0xA5 || block[CANARY + bytes + (size_t)i] != 0xA5)
            fail_msg("a canary of a tensor of rank %d was overwritten", t->rank);
    free(block);
    t->data = NULL;
}

static void fill_normal(gdp_tensor *t, bool unit, uint64_t *seed)
{
    const int64_t dim = t->rank == 4 ? t->shape[3] : 1, rows = tensor_elements(t) / dim;
    for (int64_t row = 0; row < rows; row++) {
        double row_data[256], norm = 0;
        for (int64_t c = 0; c < dim; c++) {
            row_data[c] = random_normal(seed);
            norm += row_data[c] * row_data[c];
        }
        for (int64_t c = 0; c < dim; c++)
            gdpi_store(t->data, t->dtype, row * dim + c,
                       unit ? row_data[c] / sqrt(norm) : row_data[c]);
    }
}

/* ---- instances ---- */

static double draw_gate(gate_kind kind, int64_t i, uint64_t *seed)
{
    const double u = log(1 - random_uniform(seed));
    switch (kind) {
    case GATE_WEAK:
        return 0.002 * u;
    case GATE_NORMAL:
        return 0.1 * u;
    case GATE_STRONG:
        return 20 * u;
    case GATE_ALTERNATING:
        return i % 2 ? -1000 : 0;
    default:
        return 0;
    }
}

instance *instance_create(const char *text, const int64_t *cu, gate_kind gate, bool states,
                          uint64_t seed)
{
    instance *it = calloc(1, sizeof *it);
    assert_non_null(it);
    it->problem = gdp_problem_default();
    MUST(gdp_problem_parse(text, &it->problem));
    if (gate == GATE_NONE) it->problem.gate_dtype = GDP_DTYPE_NONE;
    const gdp_problem *p = &it->problem;
    const int64_t B = p->batch, T = p->tokens, n = p->num_householder, H = p->heads,
                  HV = p->value_heads;
    const int64_t N = p->sequences ? p->sequences : B;

    it->in.q = make(p->dtype, 4, B, T, H, p->dim_k);
    it->in.k = make(p->dtype, 4, B, T * n, H, p->dim_k);
    it->in.v = make(p->dtype, 4, B, T * n, HV, p->dim_v);
    it->in.g = make(p->gate_dtype, 3, B, T, HV, 0);
    it->in.beta = make(p->beta_dtype, 3, B, T * n, HV, 0);
    it->out_grads.d_o = make(p->dtype, 4, B, T, HV, p->dim_v);
    fill_normal(&it->in.q, true, &seed);
    fill_normal(&it->in.k, true, &seed);
    fill_normal(&it->in.v, false, &seed);
    fill_normal(&it->out_grads.d_o, false, &seed);
    for (int64_t i = 0; i < tensor_elements(&it->in.beta); i++)
        gdpi_store(it->in.beta.data, p->beta_dtype, i, 2 * random_uniform(&seed));
    uint64_t gate_seed = seed; /* apart, so that the kind of gate changes nothing else */
    for (int64_t i = 0; i < tensor_elements(&it->in.g); i++)
        gdpi_store(it->in.g.data, p->gate_dtype, i, draw_gate(gate, i / HV, &gate_seed));
    if (states) {
        it->in.initial_state = make(GDP_DTYPE_F32, 4, N, HV, p->dim_k, p->dim_v);
        it->out_grads.d_final_state = make(GDP_DTYPE_F32, 4, N, HV, p->dim_k, p->dim_v);
        fill_normal(&it->in.initial_state, false, &seed);
        fill_normal(&it->out_grads.d_final_state, false, &seed);
    }
    if (cu) {
        it->cu = malloc((size_t)(N + 1) * sizeof *it->cu);
        assert_non_null(it->cu);
        memcpy(it->cu, cu, (size_t)(N + 1) * sizeof *cu);
        it->in.cu_seqlens = make(p->index_dtype, 1, N + 1, 0, 0, 0);
        for (int64_t i = 0; i <= N; i++) {
            if (p->index_dtype == GDP_DTYPE_I32)
                ((int32_t *)it->in.cu_seqlens.data)[i] = (int32_t)cu[i];
            else
                ((int64_t *)it->in.cu_seqlens.data)[i] = cu[i];
        }
    }
    it->in.num_householder = (int)n;
    return it;
}

static void destroy_all(gdp_tensor *const *tensors)
{
    for (int i = 0; tensors[i]; i++) destroy(tensors[i]);
}

void instance_destroy(instance *it)
{
    if (!it) return;
    destroy_all((gdp_tensor *const[]){ &it->in.q, &it->in.k, &it->in.v, &it->in.g, &it->in.beta,
                                       &it->in.cu_seqlens, &it->in.initial_state,
                                       &it->out_grads.d_o, &it->out_grads.d_final_state, NULL });
    free(it->cu);
    free(it);
}

results *results_create(const instance *it)
{
    const gdp_problem *p = &it->problem;
    const int64_t B = p->batch, T = p->tokens, n = p->num_householder, H = p->heads,
                  HV = p->value_heads;
    const int64_t N = p->sequences ? p->sequences : B;
    results *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->out.o = make(p->dtype, 4, B, T, HV, p->dim_v);
    r->out.final_state = make(GDP_DTYPE_F32, 4, N, HV, p->dim_k, p->dim_v);
    r->grads.dq = make(p->dtype, 4, B, T, H, p->dim_k);
    r->grads.dk = make(p->dtype, 4, B, T * n, H, p->dim_k);
    r->grads.dv = make(p->dtype, 4, B, T * n, HV, p->dim_v);
    r->grads.dg = make(p->gate_dtype, 3, B, T, HV, 0);
    r->grads.dbeta = make(p->beta_dtype, 3, B, T * n, HV, 0);
    r->grads.d_initial_state = make(GDP_DTYPE_F32, 4, N, HV, p->dim_k, p->dim_v);
    return r;
}

void results_destroy(results *r)
{
    if (!r) return;
    destroy_all((gdp_tensor *const[]){ &r->out.o, &r->out.final_state, &r->grads.dq, &r->grads.dk,
                                       &r->grads.dv, &r->grads.dg, &r->grads.dbeta,
                                       &r->grads.d_initial_state, NULL });
    free(r);
}

/* ---- comparing ---- */

double tensor_error(const gdp_tensor *got, const gdp_tensor *want)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < tensor_elements(want); i++) {
        const double a = gdpi_load(got->data, got->dtype, i),
                     b = gdpi_load(want->data, want->dtype, i);
        if (isfinite(a) != isfinite(b)) return INFINITY;
        if (!isfinite(b)) continue;
        difference += (a - b) * (a - b);
        size += b * b;
    }
    return difference == 0 ? 0 : sqrt(difference / (size > 0 ? size : 1e-300));
}

typedef struct pair {
    const char *name;
    const gdp_tensor *got, *want;
} pair;

#define PAIRS(a, b)                                                                             \
    {                                                                                           \
        { "o", &(a)->out.o, &(b)->out.o },                                                      \
            { "final_state", &(a)->out.final_state, &(b)->out.final_state },                    \
            { "dq", &(a)->grads.dq, &(b)->grads.dq }, { "dk", &(a)->grads.dk, &(b)->grads.dk }, \
            { "dv", &(a)->grads.dv, &(b)->grads.dv }, { "dg", &(a)->grads.dg, &(b)->grads.dg }, \
            { "dbeta", &(a)->grads.dbeta, &(b)->grads.dbeta },                                  \
            { "d_initial_state", &(a)->grads.d_initial_state, &(b)->grads.d_initial_state },    \
    }

void expect_close(const results *got, const results *want, double bound, const char *what)
{
    const pair pairs[] = PAIRS(got, want);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const double error = tensor_error(pairs[i].got, pairs[i].want);
        if (!(error <= bound))
            fail_msg("%s: %s has error %.3g, above %.3g", what, pairs[i].name, error, bound);
    }
}

void expect_same_bits(const results *got, const results *want, const char *what)
{
    const pair pairs[] = PAIRS(got, want);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const size_t bytes =
            (size_t)tensor_elements(pairs[i].want) * gdp_dtype_size(pairs[i].want->dtype);
        if (bytes && memcmp(pairs[i].got->data, pairs[i].want->data, bytes) != 0)
            fail_msg("%s: %s differs in its bits", what, pairs[i].name);
    }
}

/* ---- running ---- */

gdp_context *test_context(gdp_target target, int threads)
{
    gdp_context *context;
    gdp_context_options options = GDP_CONTEXT_OPTIONS_INIT;
    options.target = target;
    options.threads = threads;
    MUST(gdp_context_create(&options, &context));
    return context;
}

/* ---- memory of the target ---- */

/* A tensor's copy in memory of the target, between canaries. */
typedef struct copied {
    gdp_tensor *slot, host;
    unsigned char *block;
    size_t bytes; /* between the canaries */
    bool written;
} copied;

enum { MOST_COPIES = 20 };

/* What a run hands to the library: the caller's own tensors on the host, copies elsewhere. */
typedef struct mirror {
    gdp_context *context;
    copied list[MOST_COPIES];
    int count;
} mirror;

/* Bytes of one batch row, whose rows lie dense; states are one row. */
static size_t row_bytes(const gdp_tensor *t)
{
    const bool rows = t->rank >= 3 && t->stride[1] * t->shape[1] <= t->stride[0];
    const int64_t elements = rows ? t->shape[1] * t->stride[1] : tensor_elements(t);
    return (size_t)elements * gdp_dtype_size(t->dtype);
}

static void copy_tensor(const mirror *m, const copied *c, bool back)
{
    const size_t bytes = row_bytes(&c->host), size = gdp_dtype_size(c->host.dtype);
    const int64_t rows = bytes && tensor_elements(&c->host) ? c->host.shape[0] : 0;
    const bool whole = bytes == (size_t)tensor_elements(&c->host) * size;
    for (int64_t b = 0; b < (whole ? rows > 0 : rows); b++) {
        const size_t at = (size_t)(b * c->host.stride[0]) * size;
        char *host = (char *)c->host.data + at;
        char *there = (char *)c->block + CANARY + at;
        MUST(back ? gdp_memory_copy(m->context, host, there, bytes)
                  : gdp_memory_copy(m->context, there, host, bytes));
    }
}

static void mirror_tensor(mirror *m, gdp_tensor *t, bool written)
{
    if (m->context->target != GDP_TARGET_CUDA || !t->data) return;
    assert_true(m->count < MOST_COPIES);
    copied *c = &m->list[m->count++];
    *c = (copied){ .slot = t, .host = *t, .written = written };
    int64_t last = tensor_elements(t) ? 1 : 0;
    for (int i = 0; last && i < t->rank; i++) last += (t->shape[i] - 1) * t->stride[i];
    c->bytes = (size_t)last * gdp_dtype_size(t->dtype);
    void *block;
    MUST(gdp_memory_allocate(m->context, c->bytes + 2 * CANARY, &block));
    MUST(gdp_memory_fill(m->context, block, 0xA5, c->bytes + 2 * CANARY));
    c->block = block;
    copy_tensor(m, c, false);
    t->data = c->block + CANARY;
}

static void check_canary(const mirror *m, const unsigned char *at)
{
    unsigned char zone[CANARY];
    MUST(gdp_memory_copy(m->context, zone, at, CANARY));
    for (int i = 0; i < CANARY; i++)
        if (zone[i] != 0xA5) fail_msg("a canary in memory of the target was overwritten");
}

/* Brings results back and puts the caller's tensors in their places again. */
static void mirror_end(mirror *m)
{
    for (int i = 0; i < m->count; i++) {
        copied *c = &m->list[i];
        if (c->written) copy_tensor(m, c, true);
        check_canary(m, c->block);
        check_canary(m, c->block + CANARY + c->bytes);
        gdp_memory_release(m->context, c->block);
        *c->slot = c->host;
    }
    m->count = 0;
}

static void mirror_begin(mirror *m, gdp_context *context, gdp_inputs *in, gdp_outputs *out,
                         gdp_output_gradients *out_grads, gdp_input_gradients *grads)
{
    *m = (mirror){ .context = context };
    gdp_tensor *const read[] = { &in->q,
                                 &in->k,
                                 &in->v,
                                 &in->g,
                                 &in->beta,
                                 &in->cu_seqlens,
                                 &in->initial_state,
                                 &out_grads->d_o,
                                 &out_grads->d_final_state };
    gdp_tensor *const written[] = { &out->o,       &out->final_state,
                                    &grads->dq,    &grads->dk,
                                    &grads->dv,    &grads->dg,
                                    &grads->dbeta, &grads->d_initial_state };
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) mirror_tensor(m, read[i], false);
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        mirror_tensor(m, written[i], true);
}

/* Memory for a workspace or for what forward saves. */
static void *target_bytes(gdp_context *context, size_t bytes, int poison)
{
    void *memory = NULL;
    if (context->target != GDP_TARGET_CUDA) return aligned_bytes(bytes, poison);
    MUST(gdp_memory_allocate(context, bytes, &memory));
    MUST(gdp_memory_fill(context, memory, poison, bytes));
    return memory;
}

static void poison_again(gdp_context *context, void *memory, int poison, size_t bytes)
{
    if (context->target != GDP_TARGET_CUDA)
        memset(memory, poison, bytes);
    else
        MUST(gdp_memory_fill(context, memory, poison, bytes));
}

static void release_bytes(gdp_context *context, void *memory)
{
    if (context->target != GDP_TARGET_CUDA)
        free(memory);
    else
        gdp_memory_release(context, memory);
}

void *aligned_bytes(size_t bytes, int poison)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (memory) memset(memory, poison, (bytes + 64) / 64 * 64);
    return memory;
}

gdp_status instance_run(gdp_context *context, const char *config_text, const instance *it,
                        results *r, bool forward_only, int poison)
{
    gdp_plan *plan;
    gdp_plan_sizes sizes;
    gdp_config config = { 0 };
    if (config_text) GDPI_TRY(gdp_config_parse(config_text, &config));
    GDPI_TRY(gdp_plan_create(context, &it->problem, &config, forward_only ? 0 : GDP_PLAN_BACKWARD,
                             &plan));
    MUST(gdp_plan_get_sizes(plan, &sizes));
    gdp_inputs in = it->in;
    gdp_output_gradients out_grads = it->out_grads;
    mirror m;
    mirror_begin(&m, context, &in, &r->out, &out_grads, &r->grads);
    gdp_execution execution = { target_bytes(context, sizes.workspace, poison), sizes.workspace,
                                NULL };
    gdp_saved_context saved = { .data = target_bytes(context, sizes.saved, poison),
                                .bytes = sizes.saved };
    gdp_status status = gdp_forward(plan, &in, &r->out, &saved, &execution);
    /* Backward may not rely on the workspace. */
    poison_again(context, execution.workspace, poison, sizes.workspace);
    if (status == GDP_OK && !forward_only)
        status = gdp_backward(plan, &in, &out_grads, &saved, &r->grads, &execution);
    mirror_end(&m);
    release_bytes(context, execution.workspace);
    release_bytes(context, saved.data);
    gdp_plan_destroy(plan);
    return status;
}

/* ---- shards ---- */

typedef struct rank_job {
    gdp_context *context;
    const char *config, *backend;
    const instance *it;
    results *r;
    gdp_comm comm;
    const int64_t *shard_begin;
    bool one_call;
    gdp_status status;
    char sentence[256];
} rank_job;

/* Tokens [begin, end) of a tensor. */
static gdp_tensor cut(const gdp_tensor *t, int64_t begin, int64_t end, int64_t per_token)
{
    gdp_tensor part = *t;
    if (!t->data) return part;
    part.shape[1] = (end - begin) * per_token;
    part.data =
        (char *)t->data + (size_t)(begin * per_token * t->stride[1]) * gdp_dtype_size(t->dtype);
    return part;
}

/* Rows [first, first + count) of a state, in a copy of its own. */
static gdp_tensor copy_states(const gdp_tensor *t, int64_t first, int64_t count)
{
    gdp_tensor copy = { 0 };
    if (!t->data) return copy;
    copy = make(GDP_DTYPE_F32, 4, count, t->shape[1], t->shape[2], t->shape[3]);
    memcpy(copy.data, (float *)t->data + first * t->stride[0],
           (size_t)(count * t->stride[0]) * sizeof(float));
    return copy;
}

static void keep_state(const gdp_tensor *all, const gdp_tensor *part, int64_t to, int64_t from)
{
    memcpy((float *)all->data + to * all->stride[0], (float *)part->data + from * part->stride[0],
           (size_t)all->stride[0] * sizeof(float));
}

/* A rank's share: views of the tokens, copies of the states of its sequences. */
typedef struct share {
    gdp_problem problem;
    gdp_inputs in;
    gdp_outputs out;
    gdp_output_gradients out_grads;
    gdp_input_gradients grads;
    int64_t *cu;
    int64_t first, count; /* sequences */
    gdp_cp_window window;
} share;

static gdp_status make_share(const rank_job *job, share *s)
{
    const instance *it = job->it;
    const gdp_problem *p = &it->problem;
    const int64_t n = p->num_householder;
    const int rank = job->comm.rank, size = job->comm.size;
    gdp_packed_shard shard;
    memset(s, 0, sizeof *s);
    s->problem = *p;
    const int64_t whole[2] = { 0, p->tokens };
    s->cu = malloc((size_t)(p->sequences + 3) * sizeof *s->cu);
    GDPI_TRY(gdp_packed_metadata(it->cu ? it->cu : whole, it->cu ? p->sequences : 1, rank, size,
                                 job->shard_begin, s->cu, &shard));
    const int64_t a = shard.token_begin, e = shard.token_end;
    s->problem.tokens = e - a;
    s->window = (gdp_cp_window){ rank, size, 0, size };
    s->first = 0;
    s->count = p->batch;
    if (it->cu) {
        s->problem.sequences = s->count = shard.sequences;
        s->first = shard.first_sequence;
        s->window.preceding_rank_start = shard.preceding_rank_start;
        s->window.following_rank_stop = shard.following_rank_stop;
        s->in.cu_seqlens = make(p->index_dtype, 1, s->count + 1, 0, 0, 0);
        for (int64_t i = 0; i <= s->count; i++)
            if (p->index_dtype == GDP_DTYPE_I32)
                ((int32_t *)s->in.cu_seqlens.data)[i] = (int32_t)s->cu[i];
            else
                ((int64_t *)s->in.cu_seqlens.data)[i] = s->cu[i];
    }
    s->in.q = cut(&it->in.q, a, e, 1);
    s->in.k = cut(&it->in.k, a, e, n);
    s->in.v = cut(&it->in.v, a, e, n);
    s->in.g = cut(&it->in.g, a, e, 1);
    s->in.beta = cut(&it->in.beta, a, e, n);
    s->in.num_householder = it->in.num_householder;
    s->in.scale = it->in.scale;
    s->in.initial_state = copy_states(&it->in.initial_state, s->first, s->count);
    s->out.o = cut(&job->r->out.o, a, e, 1);
    s->out.final_state = copy_states(&job->r->out.final_state, s->first, s->count);
    s->out_grads.d_o = cut(&it->out_grads.d_o, a, e, 1);
    s->out_grads.d_final_state = copy_states(&it->out_grads.d_final_state, s->first, s->count);
    s->grads.dq = cut(&job->r->grads.dq, a, e, 1);
    s->grads.dk = cut(&job->r->grads.dk, a, e, n);
    s->grads.dv = cut(&job->r->grads.dv, a, e, n);
    s->grads.dg = cut(&job->r->grads.dg, a, e, 1);
    s->grads.dbeta = cut(&job->r->grads.dbeta, a, e, n);
    s->grads.d_initial_state = copy_states(&job->r->grads.d_initial_state, s->first, s->count);
    return GDP_OK;
}

/* Each state comes from the rank where it is whole: the final one where its sequence ends, the gradient of
 * the initial one where it begins. */
static void finish_share(const rank_job *job, share *s)
{
    const bool packed = job->it->cu != NULL, empty = packed && s->problem.tokens == 0;
    for (int64_t i = 0; i < s->count && job->status == GDP_OK && !empty; i++) {
        const bool ends =
            s->window.following_rank_stop == s->window.rank + 1 || (packed && i < s->count - 1);
        const bool begins = s->window.preceding_rank_start == s->window.rank || (packed && i > 0);
        if (ends) keep_state(&job->r->out.final_state, &s->out.final_state, s->first + i, i);
        if (begins)
            keep_state(&job->r->grads.d_initial_state, &s->grads.d_initial_state, s->first + i, i);
    }
    destroy_all((gdp_tensor *const[]){ &s->in.cu_seqlens, &s->in.initial_state, &s->out.final_state,
                                       &s->out_grads.d_final_state, &s->grads.d_initial_state,
                                       NULL });
    free(s->cu);
}

static gdp_status run_group(const rank_job *job, share *s)
{
    gdp_cp_group *group;
    gdp_plan_sizes sizes;
    gdp_config config = { 0 };
    if (job->config) GDPI_TRY(gdp_config_parse(job->config, &config));
    GDPI_TRY(gdp_cp_group_create(job->context, &job->comm, &s->problem, &config, GDP_PLAN_BACKWARD,
                                 job->backend, &group));
    gdp_status status = gdp_cp_group_get_sizes(group, &sizes);
    gdp_context *context = job->context;
    gdp_execution execution = { target_bytes(context, sizes.workspace, 0xFF), sizes.workspace,
                                NULL };
    gdp_saved_context saved = { .data = target_bytes(context, sizes.saved, 0xFF),
                                .bytes = sizes.saved };
    if (status == GDP_OK)
        status = gdp_cp_forward(group, &s->in, s->window.preceding_rank_start,
                                s->window.following_rank_stop, &s->out, &saved, &execution);
    poison_again(context, execution.workspace, 0xFF, sizes.workspace);
    if (status == GDP_OK)
        status = gdp_cp_backward(group, &s->in, &s->out_grads, &saved, &s->grads, &execution);
    release_bytes(context, execution.workspace);
    release_bytes(context, saved.data);
    gdp_cp_group_destroy(group);
    return status;
}

static gdp_status run_one_call(const rank_job *job, share *s)
{
    gdp_saved_context saved = { 0 };
    GDPI_TRY(gdp_chunkwise_context_parallel(job->context, &job->comm, job->backend, &s->in,
                                            s->window.preceding_rank_start,
                                            s->window.following_rank_stop, &s->out, &saved));
    const gdp_status status = gdp_chunkwise_context_parallel_backward(
        job->context, &job->comm, job->backend, &s->in, &s->out_grads, &saved, &s->grads);
    gdp_saved_context_release(job->context, &saved);
    return status;
}

static void *run_rank(void *argument)
{
    rank_job *job = argument;
    share s;
    mirror m = { 0 };
    job->status = make_share(job, &s);
    if (job->status == GDP_OK) {
        mirror_begin(&m, job->context, &s.in, &s.out, &s.out_grads, &s.grads);
        job->status = job->one_call ? run_one_call(job, &s) : run_group(job, &s);
    }
    if (job->status != GDP_OK)
        snprintf(job->sentence, sizeof job->sentence, "%s", gdp_last_error());
    mirror_end(&m);
    finish_share(job, &s);
    return NULL;
}

void instance_run_cp(gdp_context *context, const char *config, const char *backend,
                     const instance *it, results *r, int size, const int64_t *shard_begin,
                     bool one_call, gdp_status *statuses)
{
    gdp_comm comms[64];
    rank_job jobs[64];
    pthread_t threads[64];
    assert_true(size <= 64);
    MUST(gdp_local_comms_create(context, size, 60000, comms));
    for (int i = 0; i < size; i++) {
        jobs[i] = (rank_job){ .context = context,
                              .config = config,
                              .backend = backend,
                              .it = it,
                              .r = r,
                              .comm = comms[i],
                              .shard_begin = shard_begin,
                              .one_call = one_call };
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (int i = 0; i < size; i++) pthread_join(threads[i], NULL);
    gdp_local_comms_destroy(context, comms);
    for (int i = 0; i < size; i++) {
        if (statuses)
            statuses[i] = jobs[i].status;
        else if (jobs[i].status != GDP_OK)
            fail_msg("rank %d of %d: %s", i, size, jobs[i].sentence);
    }
}
