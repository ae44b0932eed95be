/* The reference's gradients, by differentiating the recurrence step by step.
 *
 * The states are needed from the last to the first. Keeping all takes too much memory and the
 * update cannot be undone safely, so a first pass keeps those at the starts of blocks of about
 * sqrt(T) tokens, and each block's states are made again from there. A task owns a query head
 * and the value heads that share it: dq and dk are summed in the same order for any number of
 * threads. */
#include "reference.h"

#include <math.h>
#include <string.h>

/* A task's buffers, as offsets in doubles into its slot. */
typedef struct layout {
    int64_t block, group, v_blocks, state; /**< state: doubles of one [K][LANES] */
    int64_t q, k, dq, dk, decay, beta, dg, dbeta, error, states, checkpoints, d_states, total;
} layout;

static int64_t take(layout *l, int64_t count)
{
    const int64_t at = l->total;
    l->total += gdpi_blocks(count, 8) * 8;
    return at;
}

/* With blocks of b tokens the checkpoints take group V T/b columns and a block's states LANES n
 * b: b makes them equal. */
static layout lay_out(const gdp_problem *p)
{
    layout l = { .group = p->value_heads / p->heads, .v_blocks = gdpi_blocks(p->dim_v, LANES) };
    const int64_t K = p->dim_k, n = p->num_householder;
    const double best = sqrt((double)(l.group * l.v_blocks) * (double)p->tokens / (double)n);
    const int64_t most = p->tokens > 1 ? p->tokens : 1;
    l.block = gdpi_least(most, (int64_t)best + 1);
    l.state = K * LANES;
    const int64_t b = l.block, columns = l.group * l.v_blocks * l.state;
    l.q = take(&l, b * K);
    l.k = take(&l, b * n * K);
    l.dq = take(&l, b * K);
    l.dk = take(&l, b * n * K);
    l.decay = take(&l, b);
    l.beta = take(&l, b * n);
    l.dg = take(&l, b);
    l.dbeta = take(&l, b * n);
    l.error = take(&l, b * n * LANES);
    l.states = take(&l, (b * n + 1) * l.state);
    l.checkpoints = take(&l, gdpi_blocks(most, b) * columns);
    l.d_states = take(&l, columns);
    return l;
}

double gdpi_reference_backward_doubles(const gdp_problem *problem)
{
    return (double)lay_out(problem).total;
}

/* What a task has at hand. */
typedef struct task_state {
    const gdpi_reference_job *job;
    const layout *l;
    gdpi_span span;
    int64_t query_head, begin, count; /**< of the current block: first token and tokens */
    double *at;                       /**< the slot */
} task_state;

typedef struct backward_job {
    gdpi_reference_job shared;
    layout l;
} backward_job;

static int64_t head_of(const task_state *c, int64_t member)
{
    return c->query_head * c->l->group + member;
}

/* ---- a block's rows ---- */

static void enter_block(task_state *c, int64_t block)
{
    const gdp_problem *p = c->job->problem;
    const gdp_args *a = c->job->args;
    const int64_t K = p->dim_k, n = p->num_householder;
    c->begin = c->span.begin + block * c->l->block;
    c->count = gdpi_least(c->l->block, c->span.end - c->begin);
    for (int64_t i = 0; i < c->count; i++)
        gdpi_load_row(c->at + c->l->q + i * K, a->q.data, p->dtype,
                      gdpi_index(&a->q, c->span.batch, c->begin + i, c->query_head), K);
    for (int64_t i = 0; i < c->count * n; i++)
        gdpi_load_row(c->at + c->l->k + i * K, a->k.data, p->dtype,
                      gdpi_index(&a->k, c->span.batch, c->begin * n + i, c->query_head), K);
}

static void load_gates(const task_state *c, int64_t head)
{
    const gdp_problem *p = c->job->problem;
    const gdp_args *a = c->job->args;
    const int64_t n = p->num_householder;
    const bool gated = p->gate_dtype != GDP_DTYPE_NONE;
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t index = gdpi_index(&a->g, c->span.batch, c->begin + i, head);
        c->at[c->l->decay + i] = gated ? exp(gdpi_load(a->g.data, p->gate_dtype, index)) : 1.0;
    }
    for (int64_t i = 0; i < c->count * n; i++)
        c->at[c->l->beta + i] =
            gdpi_load(a->beta.data, p->beta_dtype,
                      gdpi_index(&a->beta, c->span.batch, c->begin * n + i, head));
}

static double *checkpoint_of(const task_state *c, int64_t block, int64_t member, int64_t v_block)
{
    const layout *l = c->l;
    const int64_t index = (block * l->group + member) * l->v_blocks + v_block;
    return c->at + l->checkpoints + index * l->state;
}

static double *d_state_of(const task_state *c, int64_t member, int64_t v_block)
{
    return c->at + c->l->d_states + (member * c->l->v_blocks + v_block) * c->l->state;
}

/* ---- forward again ---- */

/* One sub-token of the block, counted from its first. */
static void step(const task_state *c, int64_t i, int64_t head, int64_t first, double *S,
                 double *error)
{
    const gdp_problem *p = c->job->problem;
    const gdp_view *v = &c->job->args->v;
    const int64_t K = p->dim_k, n = p->num_householder;
    const double decay = i % n == 0 ? c->at[c->l->decay + i / n] : 1.0;
    const double *k = c->at + c->l->k + i * K;
    gdpi_load_lanes(error, v, p->dtype,
                    gdpi_index(v, c->span.batch, c->begin * n + i, head) + first,
                    gdpi_width(p->dim_v, first));
    gdpi_error(K, S, decay, k, error);
    gdpi_write(K, S, decay, k, c->at[c->l->beta + i], error);
}

/* From the block's checkpoint to the next one's. */
static void make_checkpoint(const task_state *c, int64_t block, int64_t member)
{
    for (int64_t b = 0; b < c->l->v_blocks; b++) {
        double *S = checkpoint_of(c, block + 1, member, b), error[LANES];
        memcpy(S, checkpoint_of(c, block, member, b), (size_t)c->l->state * sizeof *S);
        for (int64_t i = 0; i < c->count * c->job->problem->num_householder; i++)
            step(c, i, head_of(c, member), b * LANES, S, error);
    }
}

/* All states of the block: number i before sub-token i. */
static void remake_states(const task_state *c, const double *checkpoint, int64_t head,
                          int64_t first)
{
    double *S = c->at + c->l->states;
    const size_t bytes = (size_t)c->l->state * sizeof *S;
    memcpy(S, checkpoint, bytes);
    for (int64_t i = 0; i < c->count * c->job->problem->num_householder; i++) {
        memcpy(S + c->l->state, S, bytes);
        S += c->l->state;
        step(c, i, head, first, S, c->at + c->l->error + i * LANES);
    }
}

/* ---- backward ---- */

/* The read-out o = scale S^T q: dq += S d_o, dS += q d_o^T, with the scale in d_o. */
static void read_out_backward(int64_t K, const double *restrict S, const double *restrict q,
                              const double *restrict d_o, double *restrict dS, double *restrict dq)
{
    gdpi_pair with[PAIRS];
    memcpy(with, d_o, sizeof with);
    for (int64_t i = 0; i < K; i++) {
        gdpi_pair *row = gdpi_row_of(dS, i);
        dq[i] += gdpi_dot(gdpi_row(S, i), with);
        for (int l = 0; l < PAIRS; l++) row[l] += q[i] * with[l];
    }
}

/* Through u: d_u = dS^T k, dk += dS u. */
static void write_backward(int64_t K, const double *restrict dS, const double *restrict k,
                           const double *restrict u, double *restrict d_u, double *restrict dk)
{
    gdpi_pair sums[PAIRS] = { { 0 } }, with[PAIRS];
    memcpy(with, u, sizeof with);
    for (int64_t i = 0; i < K; i++) {
        const gdpi_pair *row = gdpi_row(dS, i);
        for (int l = 0; l < PAIRS; l++) sums[l] += k[i] * row[l];
        dk[i] += gdpi_dot(row, with);
    }
    memcpy(d_u, sums, sizeof sums);
}

/* Through the error and the decay: dk -= decay S d_v, dS = decay (dS - k d_v^T). Returns the
 * gradient of g, decay times the sum of S (dS - k d_v^T). */
static double error_backward(int64_t K, const double *restrict S, double decay,
                             const double *restrict k, const double *restrict d_v,
                             double *restrict dS, double *restrict dk)
{
    gdpi_pair sums[PAIRS] = { { 0 } }, with[PAIRS];
    memcpy(with, d_v, sizeof with);
    for (int64_t i = 0; i < K; i++) {
        const gdpi_pair *before = gdpi_row(S, i);
        gdpi_pair *row = gdpi_row_of(dS, i);
        dk[i] -= decay * gdpi_dot(before, with);
        for (int l = 0; l < PAIRS; l++) {
            row[l] = decay * (row[l] - k[i] * with[l]);
            sums[l] += before[l] * row[l];
        }
    }
    return gdpi_sum(sums);
}

/* Sub-token i of the block. */
static void step_backward(const task_state *c, int64_t i, int64_t head, int64_t first, double *dS)
{
    const gdp_problem *p = c->job->problem;
    const layout *l = c->l;
    const gdp_view *dv = &c->job->args->dv;
    const int64_t K = p->dim_k, n = p->num_householder;
    const bool decays = i % n == 0;
    const double beta = c->at[l->beta + i], decay = decays ? c->at[l->decay + i / n] : 1.0;
    const double *k = c->at + l->k + i * K, *error = c->at + l->error + i * LANES;
    double *dk = c->at + l->dk + i * K, u[LANES], d_u[LANES];
    for (int j = 0; j < LANES; j++) u[j] = beta * error[j];
    write_backward(K, dS, k, u, d_u, dk);
    double dbeta = 0;
    for (int j = 0; j < LANES; j++) {
        dbeta += d_u[j] * error[j];
        d_u[j] *= beta;
    }
    c->at[l->dbeta + i] += dbeta;
    const double dg = error_backward(K, c->at + l->states + i * l->state, decay, k, d_u, dS, dk);
    if (decays) c->at[l->dg + i / n] += dg;
    gdpi_store_row(dv->data, p->dtype,
                   gdpi_index(dv, c->span.batch, c->begin * n + i, head) + first, d_u,
                   gdpi_width(p->dim_v, first));
}

static void columns_backward(const task_state *c, int64_t head, int64_t first, double *dS)
{
    const gdp_problem *p = c->job->problem;
    const gdp_args *a = c->job->args;
    const layout *l = c->l;
    const int64_t K = p->dim_k, n = p->num_householder;
    for (int64_t t = c->count - 1; t >= 0; t--) {
        double d_o[LANES];
        gdpi_load_lanes(d_o, &a->d_o, p->dtype,
                        gdpi_index(&a->d_o, c->span.batch, c->begin + t, head) + first,
                        gdpi_width(p->dim_v, first));
        for (int j = 0; j < LANES; j++) d_o[j] *= (double)a->scale;
        read_out_backward(K, c->at + l->states + (t * n + n) * l->state, c->at + l->q + t * K, d_o,
                          dS, c->at + l->dq + t * K);
        for (int64_t i = t * n + n - 1; i >= t * n; i--) step_backward(c, i, head, first, dS);
    }
}

/* ---- what comes out ---- */

static void store_gates(const task_state *c, int64_t head)
{
    const gdp_problem *p = c->job->problem;
    const gdp_args *a = c->job->args;
    const int64_t n = p->num_householder;
    if (p->gate_dtype != GDP_DTYPE_NONE)
        for (int64_t i = 0; i < c->count; i++)
            gdpi_store(a->dg.data, p->gate_dtype,
                       gdpi_index(&a->dg, c->span.batch, c->begin + i, head), c->at[c->l->dg + i]);
    for (int64_t i = 0; i < c->count * n; i++)
        gdpi_store(a->dbeta.data, p->beta_dtype,
                   gdpi_index(&a->dbeta, c->span.batch, c->begin * n + i, head),
                   c->at[c->l->dbeta + i]);
}

static void store_keys(const task_state *c)
{
    const gdp_problem *p = c->job->problem;
    const gdp_args *a = c->job->args;
    const int64_t K = p->dim_k, n = p->num_householder;
    for (int64_t i = 0; i < c->count; i++)
        gdpi_store_row(a->dq.data, p->dtype,
                       gdpi_index(&a->dq, c->span.batch, c->begin + i, c->query_head),
                       c->at + c->l->dq + i * K, K);
    for (int64_t i = 0; i < c->count * n; i++)
        gdpi_store_row(a->dk.data, p->dtype,
                       gdpi_index(&a->dk, c->span.batch, c->begin * n + i, c->query_head),
                       c->at + c->l->dk + i * K, K);
}

static void clear(const task_state *c, int64_t offset, int64_t count)
{
    memset(c->at + offset, 0, (size_t)count * sizeof *c->at);
}

static void block_backward(task_state *c, int64_t block)
{
    const int64_t K = c->job->problem->dim_k, n = c->job->problem->num_householder;
    enter_block(c, block);
    clear(c, c->l->dq, c->count * K);
    clear(c, c->l->dk, c->count * n * K);
    for (int64_t m = 0; m < c->l->group; m++) {
        const int64_t head = head_of(c, m);
        load_gates(c, head);
        clear(c, c->l->dg, c->count);
        clear(c, c->l->dbeta, c->count * n);
        for (int64_t b = 0; b < c->l->v_blocks; b++) {
            remake_states(c, checkpoint_of(c, block, m, b), head, b * LANES);
            columns_backward(c, head, b * LANES, d_state_of(c, m, b));
        }
        store_gates(c, head);
    }
    store_keys(c);
}

/* Rows behind the last sequence, a block at a time. */
static void zero_rows(task_state *c)
{
    const gdp_problem *p = c->job->problem;
    const gdp_view *dv = &c->job->args->dv;
    const double zero[LANES] = { 0 };
    const int64_t n = p->num_householder, V = p->dim_v;
    clear(c, 0, c->l->error);
    for (c->begin = c->span.begin; c->begin < c->span.end; c->begin += c->l->block) {
        c->count = gdpi_least(c->l->block, c->span.end - c->begin);
        store_keys(c);
        for (int64_t m = 0; m < c->l->group; m++) {
            const int64_t head = head_of(c, m);
            store_gates(c, head);
            for (int64_t i = 0; i < c->count * n; i++)
                for (int64_t first = 0; first < V; first += LANES)
                    gdpi_store_row(dv->data, p->dtype,
                                   gdpi_index(dv, c->span.batch, c->begin * n + i, head) + first,
                                   zero, gdpi_width(V, first));
        }
    }
}

static void load_boundaries(const task_state *c, int64_t s)
{
    const int64_t K = c->job->problem->dim_k, V = c->job->problem->dim_v;
    for (int64_t m = 0; m < c->l->group; m++) {
        const int64_t head = head_of(c, m);
        const float *S = gdpi_boundary_state(c->job, false, s, head);
        const float *dS = gdpi_boundary_state(c->job, true, s, head);
        for (int64_t b = 0; b < c->l->v_blocks; b++) {
            const int64_t first = b * LANES, width = gdpi_width(V, first);
            gdpi_load_state(checkpoint_of(c, 0, m, b), K, S ? S + first : NULL, V, width);
            gdpi_load_state(d_state_of(c, m, b), K, dS ? dS + first : NULL, V, width);
        }
    }
}

static void backward_task(void *argument, int64_t task, int slot)
{
    const backward_job *job = argument;
    const gdp_problem *p = job->shared.problem;
    const gdp_args *a = job->shared.args;
    const int64_t s = task / p->heads;
    task_state c = { .job = &job->shared,
                     .l = &job->l,
                     .span = gdpi_span_of(&job->shared, s),
                     .query_head = task % p->heads,
                     .at = job->shared.workspace + slot * job->l.total };
    if (s == a->sequence_count) {
        zero_rows(&c);
        return;
    }
    load_boundaries(&c, s);
    const int64_t blocks = gdpi_blocks(c.span.end - c.span.begin, c.l->block);
    for (int64_t block = 0; block + 1 < blocks; block++) {
        enter_block(&c, block);
        for (int64_t m = 0; m < c.l->group; m++) {
            load_gates(&c, head_of(&c, m));
            make_checkpoint(&c, block, m);
        }
    }
    for (int64_t block = blocks - 1; block >= 0; block--) block_backward(&c, block);
    if (!a->d_initial_state) return;
    for (int64_t m = 0; m < c.l->group; m++)
        for (int64_t b = 0; b < c.l->v_blocks; b++)
            gdpi_store_state(d_state_of(&c, m, b), p->dim_k,
                             a->d_initial_state + b * LANES +
                                 gdpi_state_at(&job->shared, s, head_of(&c, m)),
                             p->dim_v, gdpi_width(p->dim_v, b * LANES));
}

void gdpi_reference_backward(gdpi_pool *pool, const gdp_problem *problem, const gdp_args *args,
                             void *workspace)
{
    backward_job job = { .shared = { .problem = problem, .args = args, .workspace = workspace },
                         .l = lay_out(problem) };
    gdpi_pool_run(pool, gdpi_span_count(&job.shared) * problem->heads, backward_task, &job);
}
