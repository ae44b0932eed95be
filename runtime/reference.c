/* The recurrence in float64, token by token: what every other way to compute a layer is compared
 * with. A task works on LANES columns of one state, which no other task touches: the result is
 * the same for any number of threads. This file: forward, shard summaries and their folds. */
#include "reference.h"

#include <math.h>

/* ---- workspace ---- */

/* S, a second state and two rows of K. */
static int64_t forward_doubles(const gdp_problem *problem)
{
    return 2 * LANES * problem->dim_k + gdpi_blocks(2 * problem->dim_k, 8) * 8;
}

static gdpi_reference_job make_job(const gdp_problem *problem, const gdp_args *args,
                                   void *workspace)
{
    return (gdpi_reference_job){
        .problem = problem,
        .args = args,
        .workspace = workspace,
        .slot_doubles = forward_doubles(problem),
        .v_blocks = gdpi_blocks(problem->dim_v, LANES),
        .m_blocks = gdpi_blocks(problem->dim_k, LANES),
    };
}

size_t gdpi_reference_workspace(const gdp_problem *problem, int threads, bool backward)
{
    double doubles = (double)forward_doubles(problem);
    if (backward) doubles = fmax(doubles, gdpi_reference_backward_doubles(problem));
    const double bytes = doubles * (double)sizeof(double) * threads;
    return bytes < 0x1p52 ? (size_t)bytes : SIZE_MAX; /* below 2^53 the doubles are exact */
}

/* ---- a run of tokens on LANES columns ---- */

/* What a task has at hand. */
typedef struct columns {
    const gdpi_reference_job *job;
    gdpi_span span;
    int64_t head, query_head; /**< value head and its query/key head */
    int64_t first, width;     /**< columns of v and o; width 0: columns of M, for which v is zero */
    double *S, *q, *k;
} columns;

static columns make_columns(const gdpi_reference_job *job, int64_t s, int64_t head, int64_t block,
                            int slot)
{
    const gdp_problem *p = job->problem;
    double *at = job->workspace + slot * job->slot_doubles;
    const bool of_v = block < job->v_blocks;
    const int64_t first = of_v ? block * LANES : 0;
    return (columns){
        .job = job,
        .span = gdpi_span_of(job, s),
        .head = head,
        .query_head = head / (p->value_heads / p->heads),
        .first = first,
        .width = of_v ? gdpi_width(p->dim_v, first) : 0,
        .S = at,
        .q = at + 2 * LANES * p->dim_k,
        .k = at + (2 * LANES + 1) * p->dim_k,
    };
}

static double decay_of(const columns *c, int64_t t)
{
    const gdp_view *g = &c->job->args->g;
    if (c->job->problem->gate_dtype == GDP_DTYPE_NONE) return 1.0;
    return exp(
        gdpi_load(g->data, c->job->problem->gate_dtype, gdpi_index(g, c->span.batch, t, c->head)));
}

/* Row `row` of k, and beta. */
static double load_key(const columns *c, int64_t row)
{
    const gdp_args *a = c->job->args;
    const gdp_problem *p = c->job->problem;
    gdpi_load_row(c->k, a->k.data, p->dtype, gdpi_index(&a->k, c->span.batch, row, c->query_head),
                  p->dim_k);
    return gdpi_load(a->beta.data, p->beta_dtype,
                     gdpi_index(&a->beta, c->span.batch, row, c->head));
}

static void load_query(const columns *c, int64_t t)
{
    const gdp_args *a = c->job->args;
    gdpi_load_row(c->q, a->q.data, c->job->problem->dtype,
                  gdpi_index(&a->q, c->span.batch, t, c->query_head), c->job->problem->dim_k);
}

static void write_output(const columns *c, int64_t t, const double *o)
{
    const gdp_view *to = &c->job->args->o;
    gdpi_store_row(to->data, c->job->problem->dtype,
                   gdpi_index(to, c->span.batch, t, c->head) + c->first, o, c->width);
}

static void run_forward(const columns *c, bool read_out)
{
    const gdp_problem *p = c->job->problem;
    const gdp_args *a = c->job->args;
    const int64_t K = p->dim_k, n = p->num_householder;
    for (int64_t t = c->span.begin; t < c->span.end; t++) {
        double decay = decay_of(c, t);
        for (int64_t row = t * n; row < t * n + n; row++) {
            double error[LANES];
            const double beta = load_key(c, row);
            gdpi_load_lanes(error, &a->v, p->dtype,
                            gdpi_index(&a->v, c->span.batch, row, c->head) + c->first, c->width);
            gdpi_error(K, c->S, decay, c->k, error);
            gdpi_write(K, c->S, decay, c->k, beta, error);
            decay = 1.0;
        }
        if (!read_out) continue;
        double o[LANES];
        load_query(c, t);
        gdpi_project(K, c->S, c->q, o);
        for (int l = 0; l < LANES; l++) o[l] *= (double)a->scale;
        write_output(c, t, o);
    }
}

/* From the gradient of the state at the end to that at the start; the states themselves have no
 * part in it. */
static void run_adjoint(const columns *c)
{
    const gdp_problem *p = c->job->problem;
    const gdp_args *a = c->job->args;
    const int64_t K = p->dim_k, n = p->num_householder;
    for (int64_t t = c->span.end - 1; t >= c->span.begin; t--) {
        double d_o[LANES];
        if (c->width > 0) {
            load_query(c, t);
            gdpi_load_lanes(d_o, &a->d_o, p->dtype,
                            gdpi_index(&a->d_o, c->span.batch, t, c->head) + c->first, c->width);
            for (int l = 0; l < LANES; l++) d_o[l] *= (double)a->scale;
            gdpi_update(K, c->S, 1.0, c->q, d_o);
        }
        for (int64_t row = t * n + n - 1; row >= t * n; row--) {
            double d_u[LANES];
            const double beta = load_key(c, row);
            gdpi_project(K, c->S, c->k, d_u);
            gdpi_write(K, c->S, 1.0, c->k, -beta, d_u);
        }
        const double decay = decay_of(c, t);
        for (int64_t i = 0; i < K * LANES; i++) c->S[i] *= decay;
    }
}

/* ---- forward ---- */

static void forward_task(void *argument, int64_t task, int slot)
{
    const gdpi_reference_job *job = argument;
    const gdp_args *a = job->args;
    const int64_t K = job->problem->dim_k, V = job->problem->dim_v, HV = job->problem->value_heads;
    const int64_t head = task / job->v_blocks % HV, s = task / job->v_blocks / HV;
    const columns c = make_columns(job, s, head, task % job->v_blocks, slot);
    if (s == a->sequence_count) {
        const double zero[LANES] = { 0 };
        for (int64_t t = c.span.begin; t < c.span.end; t++) write_output(&c, t, zero);
        return;
    }
    const float *from = gdpi_boundary_state(job, false, s, head);
    gdpi_load_state(c.S, K, from ? from + c.first : NULL, V, c.width);
    run_forward(&c, true);
    if (a->final_state)
        gdpi_store_state(c.S, K, a->final_state + gdpi_state_at(job, s, head) + c.first, V,
                         c.width);
}

void gdpi_reference_forward(gdpi_pool *pool, const gdp_problem *problem, const gdp_args *args,
                            void *workspace)
{
    gdpi_reference_job job = make_job(problem, args, workspace);
    gdpi_pool_run(pool, gdpi_span_count(&job) * problem->value_heads * job.v_blocks, forward_task,
                  &job);
}

/* ---- a shard as an affine map ---- */

static void load_identity(double *S, int64_t K, int64_t first)
{
    for (int64_t i = 0; i < K; i++)
        for (int64_t l = 0; l < LANES; l++) S[i * LANES + l] = i == first + l ? 1.0 : 0.0;
}

static void summary_task(void *argument, int64_t task, int slot)
{
    const gdpi_reference_job *job = argument;
    const gdp_args *a = job->args;
    const int64_t K = job->problem->dim_k, V = job->problem->dim_v, HV = job->problem->value_heads;
    const int64_t blocks = job->v_blocks + job->m_blocks;
    const int64_t block = task % blocks, head = task / blocks % HV, item = task / blocks / HV;
    const int64_t s = a->fold_sequence + item;
    const columns c = make_columns(job, s, head, block, slot);
    /* Where the map ends in [D | M]. */
    int64_t first = c.first, width = c.width;
    if (block < job->v_blocks) {
        const float *from = job->adjoint ? a->d_final_state : a->initial_state;
        gdpi_load_state(c.S, K, from ? from + gdpi_state_at(job, s, head) + first : NULL, V, width);
    } else {
        const int64_t of_m = (block - job->v_blocks) * LANES;
        load_identity(c.S, K, of_m);
        first = V + of_m;
        width = gdpi_width(K, of_m);
    }
    if (job->adjoint)
        run_adjoint(&c);
    else
        run_forward(&c, false);
    gdpi_store_state(c.S, K, a->folded + (item * HV + head) * K * (V + K) + first, V + K, width);
}

void gdpi_reference_summary(gdpi_pool *pool, const gdp_problem *problem, const gdp_args *args,
                            bool adjoint, void *workspace)
{
    gdpi_reference_job job = make_job(problem, args, workspace);
    job.adjoint = adjoint;
    gdpi_pool_run(pool, args->fold_sequences * problem->value_heads * (job.v_blocks + job.m_blocks),
                  summary_task, &job);
}

/* ---- maps applied in order ---- */

/* next = M S + D, for LANES columns of D. */
static void apply_map(const float *restrict map, int64_t K, int64_t V, int64_t first,
                      const double *restrict S, double *restrict next)
{
    gdpi_load_state(next, K, map + first, V + K, gdpi_width(V, first));
    for (int64_t i = 0; i < K; i++) {
        gdpi_pair *row = gdpi_row_of(next, i);
        for (int64_t j = 0; j < K; j++) {
            const double factor = (double)map[i * (V + K) + V + j];
            for (int l = 0; l < PAIRS; l++) row[l] += factor * gdpi_row(S, j)[l];
        }
    }
}

static void fold_task(void *argument, int64_t task, int slot)
{
    const gdpi_reference_job *job = argument;
    const gdp_args *a = job->args;
    const int64_t K = job->problem->dim_k, V = job->problem->dim_v, HV = job->problem->value_heads;
    const int64_t first = task % job->v_blocks * LANES, head = task / job->v_blocks % HV;
    const int64_t item = task / job->v_blocks / HV;
    double *S = job->workspace + slot * job->slot_doubles, *next = S + K * LANES;
    gdpi_load_state(S, K, NULL, V, 0);
    for (int64_t r = 0; r < a->fold_count; r++) {
        const int64_t rank = a->fold_first + (job->adjoint ? -r : r);
        const int64_t place = (rank * a->fold_sequences + item) * HV + head;
        double *const was = S;
        apply_map(a->gathered + place * K * (V + K), K, V, first, S, next);
        S = next;
        next = was;
    }
    gdpi_store_state(S, K, a->folded + gdpi_state_at(job, item, head) + first, V,
                     gdpi_width(V, first));
}

void gdpi_reference_fold(gdpi_pool *pool, const gdp_problem *problem, const gdp_args *args,
                         bool adjoint, void *workspace)
{
    gdpi_reference_job job = make_job(problem, args, workspace);
    job.adjoint = adjoint;
    gdpi_pool_run(pool, args->fold_sequences * problem->value_heads * job.v_blocks, fold_task,
                  &job);
}
