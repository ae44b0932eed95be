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
    stopwatch watch;
    /* From here on tensors are in the memory of the context's target. */
    void *local_cu_copy;
    gdp_inputs inputs;
    gdp_outputs outputs;
    gdp_output_gradients output_gradients;
    gdp_input_gradients input_gradients;
    void *final_state, *d_initial_state; /* packed: of the local sequences */
    gdp_problem problem;
    gdp_cp_group *group;
    gdp_plan_sizes sizes;
    gdp_execution execution;
    gdp_saved_context saved;
    gdp_status status;
    run_report report;
} rank_run;

static gdp_context *context_of(const rank_run *r) { return r->all->settings->context; }

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
    return keep_error(&r->report,
                      gdp_packed_metadata(it->cu, N, r->rank, size, NULL, r->local_cu, &r->shard));
}

static gdp_tensor state_tensor(const rank_run *r, void *data)
{
    const gdp_problem *p = &r->all->it->problem;
    const int64_t shape[4] = { r->shard.sequences, p->value_heads, p->dim_k, p->dim_v };
    return gdp_tensor_contiguous(data, GDP_DTYPE_F32, 4, shape);
}

static gdp_status make_state(rank_run *r, void **memory, gdp_tensor *tensor)
{
    const gdp_problem *p = &r->all->it->problem;
    const size_t bytes =
        (size_t)(r->shard.sequences * p->value_heads * p->dim_k * p->dim_v) * sizeof(float);
    const gdp_status status =
        keep_error(&r->report, gdp_memory_allocate(context_of(r), bytes, memory));
    *tensor = state_tensor(r, *memory);
    return status;
}

/* States that come out of packed shards: each rank has rows for its sequences; the owner's
 * count. */
static gdp_status make_states(rank_run *r)
{
    if (r->all->it->problem.sequences == 0) {
        const bool last = r->rank == r->all->settings->ranks - 1;
        if (!last) r->outputs.final_state.data = NULL;
        if (r->rank != 0) r->input_gradients.d_initial_state.data = NULL;
        return GDP_OK;
    }
    const gdp_status status = make_state(r, &r->final_state, &r->outputs.final_state);
    if (status != GDP_OK || !r->all->settings->backward) return status;
    return make_state(r, &r->d_initial_state, &r->input_gradients.d_initial_state);
}

/* Turns int64 into int32, in place. */
static void narrow(int64_t *numbers, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int32_t number = (int32_t)numbers[i];
        memcpy((char *)numbers + (size_t)i * sizeof number, &number, sizeof number);
    }
}

static gdp_status copy_boundaries(rank_run *r)
{
    const int64_t boundaries = r->shard.sequences + 1;
    const gdp_dtype dtype = r->all->it->problem.index_dtype;
    const size_t bytes = (size_t)boundaries * gdp_dtype_size(dtype);
    if (dtype == GDP_DTYPE_I32) narrow(r->local_cu, boundaries);
    gdp_status status = gdp_memory_allocate(context_of(r), bytes, &r->local_cu_copy);
    if (status == GDP_OK)
        status = gdp_memory_copy(context_of(r), r->local_cu_copy, r->local_cu, bytes);
    r->inputs.cu_seqlens = gdp_tensor_contiguous(r->local_cu_copy, dtype, 1, &boundaries);
    return keep_error(&r->report, status);
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
    gdp_status status = r->local_cu ? copy_boundaries(r) : GDP_OK;
    if (status == GDP_OK) status = make_states(r);
    if (status != GDP_OK) return status;
    return keep_error(&r->report, gdp_problem_from_inputs(in, &r->problem));
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
    gdp_context *context = context_of(r);
    gdp_status status = gdp_cp_group_get_sizes(r->group, &r->sizes);
    r->execution.workspace_bytes = r->sizes.workspace;
    r->saved.bytes = r->sizes.saved;
    if (status == GDP_OK)
        status = gdp_memory_allocate(context, r->sizes.workspace, &r->execution.workspace);
    if (status == GDP_OK) status = gdp_memory_allocate(context, r->sizes.saved, &r->saved.data);
    if (status == GDP_OK) status = gdp_timer_create(context, &r->watch.timer);
    return keep_error(&r->report, status);
}

static gdp_status forward_rank(rank_run *r)
{
    const bool backward = r->all->settings->backward;
    gdp_status status = stopwatch_start(&r->watch);
    if (status == GDP_OK)
        status = gdp_cp_forward(r->group, &r->inputs, r->shard.preceding_rank_start,
                                r->shard.following_rank_stop, &r->outputs,
                                backward ? &r->saved : NULL, &r->execution);
    if (status == GDP_OK) status = stopwatch_stop(&r->watch);
    r->report.forward = r->watch.target;
    return keep_error(&r->report, status);
}

static gdp_status backward_rank(rank_run *r)
{
    gdp_status status = stopwatch_start(&r->watch);
    if (status == GDP_OK)
        status = gdp_cp_backward(r->group, &r->inputs, &r->output_gradients, &r->saved,
                                 &r->input_gradients, &r->execution);
    if (status == GDP_OK) status = stopwatch_stop(&r->watch);
    r->report.backward = r->watch.target;
    return keep_error(&r->report, status);
}

static void *rank_thread(void *argument)
{
    rank_run *r = argument;
    const bool backward = r->all->settings->backward;
    r->status = keep_error(&r->report,
                           gdp_cp_group_create(context_of(r), &r->all->comms[r->rank], &r->problem,
                                               &r->all->config, backward ? GDP_PLAN_BACKWARD : 0,
                                               NULL, &r->group));
    if (r->status != GDP_OK) return NULL; /* then all of them have failed */
    r->status = provide_memory(r);
    if (!all_fine(r)) return NULL;
    r->status = forward_rank(r);
    if (!all_fine(r) || !backward) return NULL;
    r->status = backward_rank(r);
    return NULL;
}

/* ---- putting together ---- */

static gdp_status copy_rows(const rank_run *r, const void *from, result_id id, int64_t first,
                            int64_t end)
{
    const gdp_tensor *to = &r->all->out->tensor[id];
    if (!from || !to->data || end <= first) return GDP_OK;
    const size_t row = (size_t)to->stride[0] * sizeof(float);
    return gdp_memory_copy(context_of(r),
                           (char *)to->data + (size_t)(r->shard.first_sequence + first) * row,
                           (const char *)from + (size_t)first * row, (size_t)(end - first) * row);
}

/* Final states come from where a sequence ends, gradients of initial ones from where it begins. */
static gdp_status collect_states(const rank_run *r)
{
    const gdp_packed_shard *s = &r->shard;
    if (s->token_begin == s->token_end) return GDP_OK;
    const bool began_earlier = s->preceding_rank_start < r->rank;
    const bool goes_on = s->following_rank_stop > r->rank + 1;
    const gdp_status status =
        copy_rows(r, r->final_state, RESULT_FINAL_STATE, 0, s->sequences - (goes_on ? 1 : 0));
    if (status != GDP_OK) return status;
    return copy_rows(r, r->d_initial_state, RESULT_DINITIAL_STATE, began_earlier ? 1 : 0,
                     s->sequences);
}

/* Packed sequences that no rank has, as they are empty and on a border, pass states on. */
static gdp_status pass_states_on(const group_run *all)
{
    const layer *it = all->it;
    const struct {
        const gdp_tensor *from, *to;
    } pairs[] = { { &it->inputs.initial_state, &all->out->tensor[RESULT_FINAL_STATE] },
                  { &it->gradients.d_final_state, &all->out->tensor[RESULT_DINITIAL_STATE] } };
    gdp_status status = GDP_OK;
    for (int i = 0; i < 2 && status == GDP_OK; i++)
        if (it->problem.sequences > 0 && pairs[i].from->data && pairs[i].to->data)
            status = gdp_memory_copy(all->settings->context, pairs[i].to->data, pairs[i].from->data,
                                     (size_t)count_elements(pairs[i].to) * sizeof(float));
    return status;
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
    gdp_context *context = context_of(r);
    free(r->local_cu);
    gdp_timer_destroy(r->watch.timer);
    void *const all[] = { r->local_cu_copy, r->final_state, r->d_initial_state,
                          r->execution.workspace, r->saved.data };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gdp_memory_release(context, all[i]);
}

static gdp_status run_ranks(group_run *all, rank_run *ranks, run_report *report)
{
    const int size = all->settings->ranks;
    for (int i = 0; i < size; i++) {
        gdp_status status = place_shard(&ranks[i]);
        if (status == GDP_OK) status = cut_tensors(&ranks[i]);
        if (status == GDP_OK) continue;
        snprintf(report->error, sizeof report->error, "%s",
                 *ranks[i].report.error ? ranks[i].report.error : "no memory for the ranks");
        return status;
    }
    const double begin = seconds();
    gdp_status status = choose(all, &ranks[0], report);
    report->prepare = seconds() - begin;
    if (status == GDP_OK) status = keep_error(report, pass_states_on(all));
    if (status == GDP_OK) status = run_threads(all, ranks, report);
    for (int i = 0; i < size && status == GDP_OK && all->it->problem.sequences > 0; i++)
        status = keep_error(report, collect_states(&ranks[i]));
    if (status == GDP_OK) summarise(ranks, size, report);
    return status;
}

gdp_status run_group(const layer *it, const run_settings *settings, const results *out,
                     run_report *report)
{
    const int size = settings->ranks;
    group_run all = { .it = it, .settings = settings, .out = out };
    rank_run *ranks = calloc((size_t)size, sizeof *ranks);
    all.comms = calloc((size_t)size, sizeof *all.comms);
    gdp_status status = GDP_STATUS_OUT_OF_MEMORY;
    snprintf(report->error, sizeof report->error, "no memory for %d ranks", size);
    for (int i = 0; ranks && i < size; i++) ranks[i].all = &all, ranks[i].rank = i;
    if (ranks && all.comms) status = run_ranks(&all, ranks, report);
    for (int i = 0; ranks && i < size; i++) release_rank(&ranks[i]);
    free(ranks);
    free(all.comms);
    return status;
}
