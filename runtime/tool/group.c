/* A layer over a context-parallel group whose ranks are threads of this process. */
#include "runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 300 * 1000 };

typedef struct group_run {
    const layer *it;
    const run_settings *settings;
    const results *out;
    gdp_comm *comms;
    gdp_config config; /* that all ranks use */
    pthread_barrier_t barrier;
    atomic_bool failed; /* a rank cannot go on; looked at behind a barrier */
} group_run;

/* One rank: its thread, its part of the tokens, and views of its part of every tensor. */
typedef struct rank_run {
    group_run *all;
    int rank;
    pthread_t thread;
    bool started;
    int64_t *local_cu;      /* packed */
    gdp_packed_shard shard; /* dense: tokens and window only */
    gdp_inputs inputs;
    gdp_outputs outputs;
    gdp_output_gradients output_gradients;
    gdp_input_gradients input_gradients;
    float *final_state, *d_initial_state; /* packed: of the local sequences */
    gdp_problem problem;
    gdp_cp_group *group;
    gdp_plan_sizes sizes;
    gdp_execution execution;
    gdp_saved_context saved;
    gdp_status status;
    run_report report;
} rank_run;

/* ---- cutting ---- */

static gdp_tensor cut(gdp_tensor tensor, int dimension, int64_t first, int64_t count)
{
    if (!tensor.data) return tensor;
    const size_t step = (size_t)tensor.stride[dimension] * gdp_dtype_size(tensor.dtype);
    tensor.data = (char *)tensor.data + (size_t)first * step;
    tensor.shape[dimension] = count;
    return tensor;
}

static gdp_status place_shard(rank_run *r)
{
    const layer *it = r->all->it;
    const int size = r->all->settings->ranks;
    const int64_t N = it->problem.sequences, T = it->problem.tokens;
    if (N == 0) {
        const int64_t each = T / size, more = T % size, k = r->rank;
        r->shard.token_begin = k * each + (k < more ? k : more);
        r->shard.token_end = r->shard.token_begin + each + (k < more ? 1 : 0);
        r->shard.sequences = it->problem.batch;
        r->shard.following_rank_stop = size;
        return GDP_OK;
    }
    r->local_cu = allocate_zeroed((size_t)(N + 2) * sizeof *r->local_cu);
    if (!r->local_cu) return GDP_STATUS_OUT_OF_MEMORY;
    return gdp_packed_metadata(it->cu, N, r->rank, size, NULL, r->local_cu, &r->shard);
}

static gdp_tensor state_tensor(const rank_run *r, void *data)
{
    const gdp_problem *p = &r->all->it->problem;
    const int64_t shape[4] = { r->shard.sequences, p->value_heads, p->dim_k, p->dim_v };
    return gdp_tensor_contiguous(data, GDP_DTYPE_F32, 4, shape);
}

/* States that come out of packed shards: each rank has rows for its sequences; the owner's
 * count. */
static bool make_states(rank_run *r)
{
    const gdp_problem *p = &r->all->it->problem;
    if (p->sequences == 0) {
        const bool last = r->rank == r->all->settings->ranks - 1;
        if (!last) r->outputs.final_state.data = NULL;
        if (r->rank != 0) r->input_gradients.d_initial_state.data = NULL;
        return true;
    }
    const size_t bytes =
        (size_t)(r->shard.sequences * p->value_heads * p->dim_k * p->dim_v) * sizeof(float);
    r->final_state = allocate_zeroed(bytes);
    r->outputs.final_state = state_tensor(r, r->final_state);
    if (!r->all->settings->backward) return r->final_state != NULL;
    r->d_initial_state = allocate_zeroed(bytes);
    r->input_gradients.d_initial_state = state_tensor(r, r->d_initial_state);
    return r->final_state && r->d_initial_state;
}

/* Turns int64 into int32, in place. */
static void narrow(int64_t *numbers, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int32_t number = (int32_t)numbers[i];
        memcpy((char *)numbers + (size_t)i * sizeof number, &number, sizeof number);
    }
}

static gdp_status cut_tensors(rank_run *r)
{
    const layer *it = r->all->it;
    const gdp_packed_shard *s = &r->shard;
    const int64_t n = it->problem.num_householder, begin = s->token_begin,
                  count = s->token_end - begin;
    const int64_t first = s->first_sequence, sequences = s->sequences;
    gdp_inputs *in = &r->inputs;
    gdp_output_gradients *d_out = &r->output_gradients;
    gdp_input_gradients *d_in = &r->input_gradients;
    *in = it->inputs;
    in->q = cut(in->q, 1, begin, count);
    in->k = cut(in->k, 1, begin * n, count * n);
    in->v = cut(in->v, 1, begin * n, count * n);
    in->g = cut(in->g, 1, begin, count);
    in->beta = cut(in->beta, 1, begin * n, count * n);
    in->initial_state = cut(in->initial_state, 0, first, sequences);
    if (r->local_cu) {
        const int64_t boundaries = sequences + 1;
        const gdp_dtype dtype = it->problem.index_dtype;
        if (dtype == GDP_DTYPE_I32) narrow(r->local_cu, boundaries);
        in->cu_seqlens = gdp_tensor_contiguous(r->local_cu, dtype, 1, &boundaries);
    }
    r->outputs = results_outputs(r->all->out);
    r->outputs.o = cut(r->outputs.o, 1, begin, count);
    *d_out = it->gradients;
    d_out->d_o = cut(d_out->d_o, 1, begin, count);
    d_out->d_final_state = cut(d_out->d_final_state, 0, first, sequences);
    *d_in = results_gradients(r->all->out);
    d_in->dq = cut(d_in->dq, 1, begin, count);
    d_in->dk = cut(d_in->dk, 1, begin * n, count * n);
    d_in->dv = cut(d_in->dv, 1, begin * n, count * n);
    d_in->dg = cut(d_in->dg, 1, begin, count);
    d_in->dbeta = cut(d_in->dbeta, 1, begin * n, count * n);
    if (!make_states(r)) return GDP_STATUS_OUT_OF_MEMORY;
    return gdp_problem_from_inputs(in, &r->problem);
}

/* ---- a rank's thread ---- */

/* All ranks meet; true where each of them can go on. */
static bool all_fine(rank_run *r)
{
    if (r->status != GDP_OK) atomic_store(&r->all->failed, true);
    pthread_barrier_wait(&r->all->barrier);
    const bool fine = !atomic_load(&r->all->failed);
    pthread_barrier_wait(&r->all->barrier);
    return fine;
}

static gdp_status provide_memory(rank_run *r)
{
    const gdp_status status = gdp_cp_group_get_sizes(r->group, &r->sizes);
    if (status != GDP_OK) return keep_error(&r->report, status);
    r->execution.workspace = allocate_zeroed(r->sizes.workspace);
    r->execution.workspace_bytes = r->sizes.workspace;
    r->saved.data = allocate_zeroed(r->sizes.saved);
    r->saved.bytes = r->sizes.saved;
    if (r->execution.workspace && r->saved.data) return GDP_OK;
    snprintf(r->report.error, sizeof r->report.error,
             "no memory for a workspace of %zu and %zu saved bytes", r->sizes.workspace,
             r->sizes.saved);
    return GDP_STATUS_OUT_OF_MEMORY;
}

static void *rank_thread(void *argument)
{
    rank_run *r = argument;
    const bool backward = r->all->settings->backward;
    r->status = keep_error(&r->report,
                           gdp_cp_group_create(r->all->settings->context, &r->all->comms[r->rank],
                                               &r->problem, &r->all->config,
                                               backward ? GDP_PLAN_BACKWARD : 0, NULL, &r->group));
    if (r->status != GDP_OK) return NULL; /* then all of them have failed */
    r->status = provide_memory(r);
    if (!all_fine(r)) return NULL;
    const double begin = seconds();
    r->status = gdp_cp_forward(r->group, &r->inputs, r->shard.preceding_rank_start,
                               r->shard.following_rank_stop, &r->outputs,
                               backward ? &r->saved : NULL, &r->execution);
    keep_error(&r->report, r->status);
    r->report.forward = seconds() - begin;
    if (!all_fine(r) || !backward) return NULL;
    const double middle = seconds();
    r->status = gdp_cp_backward(r->group, &r->inputs, &r->output_gradients, &r->saved,
                                &r->input_gradients, &r->execution);
    keep_error(&r->report, r->status);
    r->report.backward = seconds() - middle;
    return NULL;
}

/* ---- putting together ---- */

static void copy_rows(const rank_run *r, const float *from, result_id id, int64_t first,
                      int64_t end)
{
    const gdp_tensor *to = &r->all->out->tensor[id];
    if (!from || !to->data || end <= first) return;
    const size_t row = (size_t)to->stride[0];
    memcpy((float *)to->data + (size_t)(r->shard.first_sequence + first) * row,
           from + (size_t)first * row, (size_t)(end - first) * row * sizeof(float));
}

/* Final states come from where a sequence ends, gradients of initial ones from where it begins. */
static void collect_states(const rank_run *r)
{
    const gdp_packed_shard *s = &r->shard;
    if (s->token_begin == s->token_end) return;
    const bool began_earlier =
        s->preceding_rank_start<r->rank, goes_on = s->following_rank_stop> r->rank + 1;
    copy_rows(r, r->final_state, RESULT_FINAL_STATE, 0, s->sequences - (goes_on ? 1 : 0));
    copy_rows(r, r->d_initial_state, RESULT_DINITIAL_STATE, began_earlier ? 1 : 0, s->sequences);
}

/* Packed sequences that no rank has, as they are empty and on a border, pass states on. */
static void pass_states_on(const layer *it, const results *out)
{
    const struct {
        const gdp_tensor *from, *to;
    } pairs[] = { { &it->inputs.initial_state, &out->tensor[RESULT_FINAL_STATE] },
                  { &it->gradients.d_final_state, &out->tensor[RESULT_DINITIAL_STATE] } };
    for (int i = 0; i < 2; i++)
        if (it->problem.sequences > 0 && pairs[i].from->data && pairs[i].to->data)
            memcpy(pairs[i].to->data, pairs[i].from->data,
                   (size_t)count_elements(pairs[i].to) * sizeof(float));
}

/* The status that tells most: a rank's own before those that it caused in others. */
static gdp_status worst(const rank_run *ranks, int size, run_report *report)
{
    const rank_run *chosen = NULL;
    for (int i = 0; i < size; i++) {
        const gdp_status status = ranks[i].status;
        if (status == GDP_OK) continue;
        const bool own = status != GDP_STATUS_PEER && status != GDP_STATUS_TIMEOUT;
        if (!chosen ||
            (own && (chosen->status == GDP_STATUS_PEER || chosen->status == GDP_STATUS_TIMEOUT)))
            chosen = &ranks[i];
    }
    if (!chosen) return GDP_OK;
    snprintf(report->error, sizeof report->error, "rank %d: %.4000s", chosen->rank,
             chosen->report.error);
    return chosen->status;
}

/* Rank 0's choice, which is then everybody's; compiles what will be needed. */
static gdp_status choose(group_run *all, const rank_run *first, run_report *report)
{
    gdp_plan *plan = NULL;
    const unsigned flags = GDP_PLAN_CP | (all->settings->backward ? GDP_PLAN_BACKWARD : 0);
    gdp_status status = gdp_plan_create(all->settings->context, &first->problem,
                                        &all->settings->config, flags, &plan);
    if (status == GDP_OK) status = gdp_plan_get_config(plan, &all->config);
    report->config = all->config;
    keep_error(report, status);
    gdp_plan_destroy(plan);
    return status;
}

static gdp_status run_threads(group_run *all, rank_run *ranks, run_report *report)
{
    const int size = all->settings->ranks;
    gdp_status status =
        gdp_local_comms_create(all->settings->context, size, TIMEOUT_MS, all->comms);
    if (status != GDP_OK) return keep_error(report, status);
    pthread_barrier_init(&all->barrier, NULL, (unsigned)size);
    for (int i = 0; i < size && status == GDP_OK; i++) {
        ranks[i].started = pthread_create(&ranks[i].thread, NULL, rank_thread, &ranks[i]) == 0;
        if (!ranks[i].started) status = GDP_STATUS_OUT_OF_MEMORY;
    }
    if (status != GDP_OK)
        snprintf(report->error, sizeof report->error, "no threads for %d ranks", size);
    for (int i = 0; i < size; i++)
        if (ranks[i].started) pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < size; i++) gdp_cp_group_destroy(ranks[i].group);
    pthread_barrier_destroy(&all->barrier);
    gdp_local_comms_destroy(all->settings->context, all->comms);
    return status == GDP_OK ? worst(ranks, size, report) : status;
}

static void summarise(const rank_run *ranks, int size, run_report *report)
{
    for (int i = 0; i < size; i++) {
        if (ranks[i].report.forward > report->forward) report->forward = ranks[i].report.forward;
        if (ranks[i].report.backward > report->backward)
            report->backward = ranks[i].report.backward;
        report->workspace += ranks[i].sizes.workspace;
        report->saved += ranks[i].sizes.saved;
    }
    report->forward_median = report->forward;
    report->backward_median = report->backward;
}

static void release_rank(rank_run *r)
{
    free(r->local_cu);
    free(r->final_state);
    free(r->d_initial_state);
    free(r->execution.workspace);
    free(r->saved.data);
}

gdp_status run_group(const layer *it, const run_settings *settings, const results *out,
                     run_report *report)
{
    const int size = settings->ranks;
    group_run all = { .it = it, .settings = settings, .out = out };
    rank_run *ranks = calloc((size_t)size, sizeof *ranks);
    all.comms = calloc((size_t)size, sizeof *all.comms);
    gdp_status status = ranks && all.comms ? GDP_OK : GDP_STATUS_OUT_OF_MEMORY;
    snprintf(report->error, sizeof report->error, "no memory for %d ranks", size);
    for (int i = 0; i < size && status == GDP_OK; i++) {
        ranks[i].all = &all;
        ranks[i].rank = i;
        status = place_shard(&ranks[i]);
        if (status == GDP_OK) status = cut_tensors(&ranks[i]);
        if (status != GDP_OK && status != GDP_STATUS_OUT_OF_MEMORY) keep_error(report, status);
    }
    const double begin = seconds();
    if (status == GDP_OK) status = choose(&all, &ranks[0], report);
    report->prepare = seconds() - begin;
    if (status == GDP_OK) {
        pass_states_on(it, out);
        status = run_threads(&all, ranks, report);
    }
    if (status == GDP_OK) {
        for (int i = 0; i < size && it->problem.sequences > 0; i++) collect_states(&ranks[i]);
        summarise(ranks, size, report);
    }
    for (int i = 0; ranks && i < size; i++) release_rank(&ranks[i]);
    free(ranks);
    free(all.comms);
    return status;
}
