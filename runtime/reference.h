/* Shared by the two halves of the reference: sequences, states and the steps of the recurrence
 * on LANES columns of the state at a time, as doubles [K][LANES]; columns do not depend on each
 * other. */
#ifndef GDPI_REFERENCE_H
#define GDPI_REFERENCE_H

#include <string.h>

#include "convert.h"
#include "internal.h"

enum { LANES = 16 };

/** The tokens begin .. end-1 of a batch row. */
typedef struct gdpi_span {
    int64_t batch, begin, end;
} gdpi_span;

/** One job: a view of the arguments that all tasks share. */
typedef struct gdpi_reference_job {
    const gdp_problem *problem;
    const gdp_args *args;
    double *workspace;
    int64_t slot_doubles;       /**< of the workspace, for each participant */
    int64_t v_blocks, m_blocks; /**< blocks of LANES columns of V and of K */
    bool adjoint;
} gdpi_reference_job;

/** Doubles of workspace that one participant needs for chosen backward blocks. */
double gdpi_reference_backward_doubles(const gdp_problem *problem);

static inline int64_t gdpi_blocks(int64_t count, int64_t size) { return (count + size - 1) / size; }

static inline int64_t gdpi_least(int64_t a, int64_t b) { return a < b ? a : b; }

/** Columns in use of a block of LANES. */
static inline int64_t gdpi_width(int64_t total, int64_t first)
{
    return gdpi_least(LANES, total - first);
}

static inline int64_t gdpi_index(const gdp_view *view, int64_t batch, int64_t row, int64_t head)
{
    return batch * view->batch + row * view->row + head * view->head;
}

/** A row of a view; beyond `width` the lanes are zero. */
static inline void gdpi_load_lanes(double *restrict lanes, const gdp_view *view, gdp_dtype dtype,
                                   int64_t index, int64_t width)
{
    gdpi_load_row(lanes, view->data, dtype, index, width);
    for (int64_t l = width; l < LANES; l++) lanes[l] = 0;
}

/* Packed boundaries are not trusted to be in order: nothing outside the tensors is touched. */
static inline int64_t gdpi_boundary(const gdpi_reference_job *job, int64_t s)
{
    const int64_t tokens = job->problem->tokens;
    const int64_t at = job->problem->index_dtype == GDP_DTYPE_I64
                           ? ((const int64_t *)job->args->cu_seqlens)[s]
                           : ((const int32_t *)job->args->cu_seqlens)[s];
    return at < 0 ? 0 : gdpi_least(at, tokens);
}

/** Sequence s; s = N where packed: the tokens after the last one. */
static inline gdpi_span gdpi_span_of(const gdpi_reference_job *job, int64_t s)
{
    const int64_t tokens = job->problem->tokens;
    if (!job->args->cu_seqlens) return (gdpi_span){ s, 0, tokens };
    const int64_t begin = gdpi_boundary(job, s);
    const int64_t end = s < job->args->sequence_count ? gdpi_boundary(job, s + 1) : tokens;
    return (gdpi_span){ 0, begin, end > begin ? end : begin };
}

/** Sequences, and where packed what is behind them. */
static inline int64_t gdpi_span_count(const gdpi_reference_job *job)
{
    return job->args->sequence_count + (job->args->cu_seqlens ? 1 : 0);
}

/** Offset of a state [K, V] of [*, HV, K, V]. */
static inline int64_t gdpi_state_at(const gdpi_reference_job *job, int64_t s, int64_t head)
{
    return (s * job->problem->value_heads + head) * job->problem->dim_k * job->problem->dim_v;
}

/** The state that a sequence starts from, or the gradient that its end gets; NULL: zero. */
static inline const float *gdpi_boundary_state(const gdpi_reference_job *job, bool adjoint,
                                               int64_t s, int64_t head)
{
    const gdp_args *args = job->args;
    const bool dense = !args->cu_seqlens;
    const float *outside = adjoint ? args->d_outgoing_state : args->incoming_state;
    const float *given = adjoint ? args->d_final_state : args->initial_state;
    if (outside && (dense || s == (adjoint ? args->sequence_count - 1 : 0)))
        return outside + gdpi_state_at(job, dense ? s : 0, head);
    return given ? given + gdpi_state_at(job, s, head) : NULL;
}

/** Columns of a matrix [K, row] of floats (from NULL: zero) to S and back. */
static inline void gdpi_load_state(double *restrict S, int64_t K, const float *from, int64_t row,
                                   int64_t width)
{
    for (int64_t i = 0; i < K; i++)
        for (int64_t l = 0; l < LANES; l++)
            S[i * LANES + l] = from && l < width ? (double)from[i * row + l] : 0.0;
}

static inline void gdpi_store_state(const double *restrict S, int64_t K, float *to, int64_t row,
                                    int64_t width)
{
    for (int64_t i = 0; i < K; i++)
        for (int64_t l = 0; l < width; l++) to[i * row + l] = (float)S[i * LANES + l];
}

/* ---- the steps, with the vectors that every processor has: left to itself the compiler vectorises
 * over rows and shuffles ---- */

typedef double gdpi_pair __attribute__((vector_size(16), may_alias));

enum { PAIRS = LANES / 2 };

/** States are aligned, as workspaces are; the other arrays of LANES need not be. */
static inline const gdpi_pair *gdpi_row(const double *S, int64_t i)
{
    return (const gdpi_pair *)(S + i * LANES);
}

static inline gdpi_pair *gdpi_row_of(double *S, int64_t i) { return (gdpi_pair *)(S + i * LANES); }

/** Sums in an order that is always the same. */
static inline double gdpi_sum(const gdpi_pair *x)
{
    const gdpi_pair sum = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    return sum[0] + sum[1];
}

static inline double gdpi_dot(const gdpi_pair *x, const gdpi_pair *y)
{
    gdpi_pair products[PAIRS];
    for (int l = 0; l < PAIRS; l++) products[l] = x[l] * y[l];
    return gdpi_sum(products);
}

/** sums = S^T x */
static inline void gdpi_project(int64_t K, const double *restrict S, const double *restrict x,
                                double *restrict sums)
{
    gdpi_pair at[PAIRS] = { { 0 } };
    for (int64_t i = 0; i < K; i++) {
        const gdpi_pair *row = gdpi_row(S, i);
        for (int l = 0; l < PAIRS; l++) at[l] += x[i] * row[l];
    }
    memcpy(sums, at, sizeof at);
}

/** S = factor S + x u^T */
static inline void gdpi_update(int64_t K, double *restrict S, double factor,
                               const double *restrict x, const double *restrict u)
{
    gdpi_pair with[PAIRS];
    memcpy(with, u, sizeof with);
    for (int64_t i = 0; i < K; i++) {
        gdpi_pair *row = gdpi_row_of(S, i);
        for (int l = 0; l < PAIRS; l++) row[l] = factor * row[l] + x[i] * with[l];
    }
}

/** error = v - (decay S)^T k. v is in `error` at first. */
static inline void gdpi_error(int64_t K, const double *restrict S, double decay,
                              const double *restrict k, double *restrict error)
{
    double read[LANES];
    gdpi_project(K, S, k, read);
    for (int l = 0; l < LANES; l++) error[l] -= decay * read[l];
}

/** S = decay S + k (beta error)^T */
static inline void gdpi_write(int64_t K, double *restrict S, double decay, const double *restrict k,
                              double beta, const double *restrict error)
{
    double u[LANES];
    for (int l = 0; l < LANES; l++) u[l] = beta * error[l];
    gdpi_update(K, S, decay, k, u);
}

#endif
