/* A finished plan and a caller's pointers become kernel launches, in order. Nothing here allocates,
 * compiles or looks anything up. */
#include <string.h>

#include "internal.h"

typedef struct launch {
    const gdp_plan *plan;
    gdp_args args;
    char *workspace;
    gdp_stream stream;
    gdp_status status; /* of the first launch that failed */
} launch;

/* ---- from a plan's layout to addresses ---- */

static void *at(char *base, size_t offset) { return offset == SIZE_MAX ? NULL : base + offset; }

gdp_status gdpi_check_memory(const char *what, const void *data, size_t given, size_t needed)
{
    if (needed == 0) return GDP_OK;
    if (!data)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s is NULL; %zu bytes are needed", what,
                         needed);
    if (given < needed)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s has %zu bytes; accepted is %zu or more",
                         what, given, needed);
    if ((uintptr_t)data % GDPI_ALIGNMENT)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "%s is at %p; accepted is a multiple of %d bytes", what, data,
                         GDPI_ALIGNMENT);
    return GDP_OK;
}

/* keep: what forward keeps for backward; NULL where no backward follows. */
static void lay_out(launch *l, char *keep)
{
    const gdpi_layout *layout = &l->plan->layout;
    char *const work = l->workspace;
    char *const kept = l->plan->flags & GDP_PLAN_BACKWARD ? keep : work;
    const size_t *areas = layout->areas;
    gdp_args *a = &l->args;
    a->chunks = at(kept, layout->chunks);
    a->segments = at(kept, layout->segments);
    a->sequences = at(kept, layout->sequences);
    a->counts = at(kept, layout->counts);
    a->gates = at(kept, areas[GDPI_AREA_GATES]);
    a->a = at(kept, areas[GDPI_AREA_A]);
    a->p = at(kept, areas[GDPI_AREA_P]);
    a->reach = at(kept, areas[GDPI_AREA_REACH]);
    a->segment_state = at(kept, layout->segment_state);
    a->segment_summary = at(kept, layout->segment_summary);
    a->chunk_state = at(kept, areas[GDPI_AREA_SAVED_STATE]);
    if (!a->chunk_state) a->chunk_state = at(work, areas[GDPI_AREA_CHUNK_STATE]);
    a->chunk_u = at(work, areas[GDPI_AREA_CHUNK_U]);
    a->chunk_d_state = at(work, areas[GDPI_AREA_CHUNK_D_STATE]);
    a->segment_d_state = at(work, layout->segment_d_state);
    a->segment_d_summary = at(work, layout->segment_d_summary);
}

/* Checks everything but outputs and fills the arguments that all launches share. */
static gdp_status begin(launch *l, const gdp_plan *plan, unsigned needs, const gdp_inputs *inputs,
                        const gdp_saved_context *saved, const gdp_execution *execution)
{
    if (!plan) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "plan is NULL");
    if ((plan->flags ^ needs) & GDP_PLAN_CP)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "plan was made %s GDP_PLAN_CP; this call is for the others",
                         plan->flags & GDP_PLAN_CP ? "with" : "without");
    if ((needs & GDP_PLAN_BACKWARD) && !(plan->flags & GDP_PLAN_BACKWARD))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "plan was made without GDP_PLAN_BACKWARD");
    if (!execution) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "execution is NULL");
    const gdpi_layout *layout = &plan->layout;
    GDPI_TRY(gdpi_check_memory("workspace", execution->workspace, execution->workspace_bytes,
                               layout->workspace));
    GDPI_TRY(gdpi_check_memory("saved", saved ? saved->data : NULL, saved ? saved->bytes : 0,
                               layout->saved));

    memset(l, 0, sizeof *l);
    l->plan = plan;
    l->workspace = execution->workspace;
    l->stream = execution->stream;
    gdp_args *a = &l->args;
    GDPI_TRY(gdpi_bind_inputs(&plan->problem, inputs, a));
    GDPI_TRY(gdpi_check_contents(plan->config.target, &plan->problem, inputs,
                                 plan->context->check_values));

    lay_out(l, saved ? saved->data : NULL);
    a->batch = plan->problem.batch;
    a->tokens = plan->problem.tokens;
    a->sequence_count = plan->sequence_count;
    a->heads = plan->problem.heads;
    a->value_heads = plan->problem.value_heads;
    a->max_chunks = plan->max_chunks;
    a->max_segments = plan->max_segments;
    a->wave_segments = plan->wave_segments;
    a->wave_chunks = plan->wave_chunks;
    a->segment_chunks = plan->config.segment;
    return GDP_OK;
}

static gdp_status check_alignment(const launch *l)
{
    return gdpi_check_alignment(l->plan->config.target, &l->plan->problem, &l->args);
}

/* ---- one kernel ---- */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t count_tasks(const launch *l, enum gdpi_kernel_id id)
{
    const gdp_plan *plan = l->plan;
    const int64_t noted = plan->kernels[id]->notes.block;
    const int64_t block = noted ? noted : plan->config.block_v;
    const int64_t v_blocks = ceil_div(plan->problem.dim_v, block);
    const int64_t counts[GDPI_TASK_COUNT] = {
        [GDPI_TASK_CHUNK] = plan->max_chunks,
        [GDPI_TASK_SEGMENT] = plan->max_segments,
        [GDPI_TASK_WAVE_CHUNK] = plan->wave_chunks,
        [GDPI_TASK_WAVE_SEGMENT] = plan->wave_segments,
        [GDPI_TASK_SEQUENCE] = plan->sequence_count,
        [GDPI_TASK_FOLD_SEQUENCE] = l->args.fold_sequences,
        [GDPI_TASK_HEAD] = plan->problem.heads,
        [GDPI_TASK_VALUE_HEAD] = plan->problem.value_heads,
        [GDPI_TASK_V_BLOCK] = v_blocks,
        [GDPI_TASK_COLUMN_BLOCK] = v_blocks + ceil_div(plan->problem.dim_k, block),
    };
    int64_t tasks = 1;
    for (int i = 0; i < gdpi_kernels[id].task_count; i++)
        tasks *= counts[gdpi_kernels[id].tasks[i]];
    return tasks;
}

/* Launches a kernel, unless an earlier launch of this call has failed. */
static void step(launch *l, enum gdpi_kernel_id id)
{
    const gdp_plan *plan = l->plan;
    const gdpi_kernel *kernel = plan->kernels[id];
    if (l->status != GDP_OK) return;
    if (plan->config.target == GDP_TARGET_CUDA) {
        l->status =
            gdpi_cuda_launch(plan->context, kernel, count_tasks(l, id), l->stream, &l->args);
        return;
    }
    gdpi_host_run(plan->context->pool, kernel->function, count_tasks(l, id), &l->args,
                  l->workspace + plan->layout.scratch, plan->scratch);
    atomic_fetch_add(&plan->context->launches, 1);
}

static bool on_reference(const launch *l) { return l->plan->config.target == GDP_TARGET_REFERENCE; }
static void *reference_work(const launch *l) { return l->workspace + l->plan->layout.scratch; }

/* ---- the parts that the public calls are made of; each once for kernels and reference ---- */

/* Cuts sequences into chunks and makes what does not depend on the state. */
static void make_terms(launch *l)
{
    if (on_reference(l)) return;
    step(l, GDPI_KERNEL_INDEX);
    step(l, GDPI_KERNEL_CHUNK_TERMS);
}

static void finish_forward(launch *l)
{
    if (on_reference(l)) {
        gdpi_reference_forward(l->plan->context->pool, &l->plan->problem, &l->args,
                               reference_work(l));
        return;
    }
    step(l, GDPI_KERNEL_COMPOSE_SEGMENTS);
    step(l, GDPI_KERNEL_FORWARD_SCAN);
}

static void finish_backward(launch *l)
{
    if (on_reference(l)) {
        gdpi_reference_backward(l->plan->context->pool, &l->plan->problem, &l->args,
                                reference_work(l));
        return;
    }
    step(l, GDPI_KERNEL_ADJOINT_COMPOSE_SEGMENTS);
    const gdp_plan *plan = l->plan;
    for (int64_t first = 0; first < plan->max_segments; first += plan->wave_segments) {
        l->args.wave_first = first;
        if (plan->kernels[GDPI_KERNEL_STATE_SCAN]) step(l, GDPI_KERNEL_STATE_SCAN);
        step(l, GDPI_KERNEL_BACKWARD_SCAN);
        step(l, GDPI_KERNEL_CHUNK_BACKWARD);
    }
}

/* Nothing to do: no sequences, or no tokens and no states to pass on. */
static bool is_empty(const launch *l)
{
    const gdp_args *a = &l->args;
    return l->plan->sequence_count == 0 ||
           (a->tokens == 0 && !a->final_state && !a->d_initial_state);
}

gdp_status gdp_forward(const gdp_plan *plan, const gdp_inputs *inputs, const gdp_outputs *outputs,
                       gdp_saved_context *saved, const gdp_execution *execution)
{
    launch l;
    GDPI_TRY(begin(&l, plan, 0, inputs, saved, execution));
    GDPI_TRY(gdpi_bind_outputs(&plan->problem, outputs, &l.args));
    GDPI_TRY(check_alignment(&l));
    if (is_empty(&l)) return GDP_OK;
    make_terms(&l);
    if (plan->cut && !on_reference(&l)) step(&l, GDPI_KERNEL_SUMMARY);
    finish_forward(&l);
    return l.status;
}

gdp_status gdp_backward(const gdp_plan *plan, const gdp_inputs *inputs,
                        const gdp_output_gradients *output_gradients,
                        const gdp_saved_context *saved, const gdp_input_gradients *input_gradients,
                        const gdp_execution *execution)
{
    launch l;
    GDPI_TRY(begin(&l, plan, GDP_PLAN_BACKWARD, inputs, saved, execution));
    GDPI_TRY(gdpi_bind_output_gradients(&plan->problem, output_gradients, &l.args));
    GDPI_TRY(gdpi_bind_input_gradients(&plan->problem, input_gradients, &l.args));
    GDPI_TRY(check_alignment(&l));
    if (is_empty(&l)) return GDP_OK;
    if (l.args.tokens == 0) make_terms(&l); /* forward may have had nothing to do */
    if (plan->cut && !on_reference(&l)) step(&l, GDPI_KERNEL_ADJOINT_SUMMARY);
    finish_backward(&l);
    return l.status;
}

/* ---- context parallelism ---- */

gdp_status gdpi_check_window(const gdp_cp_window *w)
{
    if (!w) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "window is NULL");
    if (w->size < 1 || w->rank < 0 || w->rank >= w->size)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "rank is %d of %d; accepted is 0 <= rank < size", w->rank, w->size);
    if (w->preceding_rank_start < 0 || w->preceding_rank_start > w->rank)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "preceding_rank_start is %d; accepted is 0 to rank, which is %d",
                         w->preceding_rank_start, w->rank);
    if (w->following_rank_stop <= w->rank || w->following_rank_stop > w->size)
        return gdpi_fail(
            GDP_STATUS_INVALID_ARGUMENT,
            "following_rank_stop is %d; accepted is rank + 1 to size, which is %d to %d",
            w->following_rank_stop, w->rank + 1, w->size);
    return GDP_OK;
}

static bool continues_before(const gdp_cp_window *w) { return w->preceding_rank_start < w->rank; }
static bool continues_behind(const gdp_cp_window *w)
{
    return w->following_rank_stop > w->rank + 1;
}

static bool is_packed(const launch *l) { return l->plan->problem.sequences > 0; }

/* An empty shard of packed sequences begins and ends none: it passes states on, M = I and D = 0. */
static bool passes_on(const launch *l) { return is_packed(l) && l->args.tokens == 0; }

/* The sequences whose summaries travel: the last one forward, the first one backward, all where batch
 * rows are sequences. */
static void select_fold(launch *l, bool adjoint)
{
    l->args.fold_sequence = is_packed(l) && !adjoint ? l->plan->sequence_count - 1 : 0;
    l->args.fold_sequences = l->plan->fold_sequences;
}

/* The shard's summary from its segments'; the state at the open end of a sequence that another rank
 * begins or ends is not ours to fold in. */
static void summarise_shard(launch *l, bool adjoint, bool continues, void *summary)
{
    const bool only_sequence = !is_packed(l) || l->plan->sequence_count == 1;
    if ((continues && only_sequence) || passes_on(l)) {
        if (adjoint)
            l->args.d_final_state = NULL;
        else
            l->args.initial_state = NULL;
    }
    l->args.folded = summary;
    if (on_reference(l))
        gdpi_reference_summary(l->plan->context->pool, &l->plan->problem, &l->args, adjoint,
                               reference_work(l));
    else
        step(l, adjoint ? GDPI_KERNEL_ADJOINT_COMPOSE_SHARD : GDPI_KERNEL_COMPOSE_SHARD);
}

/* The state that enters from ranks first, first +- 1, ..., `count` of them. */
static const float *fold_ranks(launch *l, bool adjoint, const void *gathered, int first, int count,
                               float *state)
{
    l->args.gathered = gathered;
    l->args.fold_first = first;
    l->args.fold_count = count;
    l->args.folded = state;
    if (on_reference(l))
        gdpi_reference_fold(l->plan->context->pool, &l->plan->problem, &l->args, adjoint,
                            reference_work(l));
    else
        step(l, adjoint ? GDPI_KERNEL_ADJOINT_COMPOSE_RANKS : GDPI_KERNEL_COMPOSE_RANKS);
    return state;
}

gdp_status gdp_cp_forward_prepare(const gdp_plan *plan, const gdp_inputs *inputs,
                                  const gdp_cp_window *window, void *summary,
                                  gdp_saved_context *saved, const gdp_execution *execution)
{
    launch l;
    GDPI_TRY(begin(&l, plan, GDP_PLAN_CP, inputs, saved, execution));
    GDPI_TRY(check_alignment(&l));
    GDPI_TRY(gdpi_check_window(window));
    GDPI_TRY(gdpi_check_memory("summary", summary, plan->layout.summary, plan->layout.summary));
    if (plan->sequence_count == 0) return GDP_OK;
    make_terms(&l);
    if (!on_reference(&l)) {
        if (is_packed(&l) && plan->sequence_count > 1 && (plan->flags & GDP_PLAN_BACKWARD)) {
            select_fold(&l, true); /* backward will want M of the first sequence, too */
            step(&l, GDPI_KERNEL_SUMMARY);
        }
        select_fold(&l, false);
        step(&l, GDPI_KERNEL_SUMMARY);
    }
    select_fold(&l, false);
    summarise_shard(&l, false, continues_before(window), summary);
    return l.status;
}

gdp_status gdp_cp_forward_apply(const gdp_plan *plan, const gdp_inputs *inputs,
                                const gdp_cp_window *window, const void *gathered,
                                const gdp_outputs *outputs, gdp_saved_context *saved,
                                const gdp_execution *execution)
{
    launch l;
    GDPI_TRY(begin(&l, plan, GDP_PLAN_CP, inputs, saved, execution));
    GDPI_TRY(gdpi_check_window(window));
    GDPI_TRY(gdpi_bind_outputs(&plan->problem, outputs, &l.args));
    GDPI_TRY(check_alignment(&l));
    GDPI_TRY(gdpi_check_memory("gathered", gathered, plan->layout.summary, plan->layout.summary));
    if (plan->sequence_count == 0) return GDP_OK;
    select_fold(&l, false);
    if (continues_before(window)) {
        /* The reference keeps the state that enters for its backward; the kernels keep every chunk's. */
        const gdpi_layout *layout = &plan->layout;
        float *state = saved ? at(saved->data, layout->saved_incoming_state) : NULL;
        if (!state) state = at(l.workspace, layout->incoming_state);
        l.args.incoming_state = fold_ranks(&l, false, gathered, window->preceding_rank_start,
                                           window->rank - window->preceding_rank_start, state);
    }
    finish_forward(&l);
    return l.status;
}

gdp_status gdp_cp_backward_prepare(const gdp_plan *plan, const gdp_inputs *inputs,
                                   const gdp_cp_window *window,
                                   const gdp_output_gradients *output_gradients,
                                   const gdp_saved_context *saved, void *summary,
                                   const gdp_execution *execution)
{
    launch l;
    GDPI_TRY(begin(&l, plan, GDP_PLAN_CP | GDP_PLAN_BACKWARD, inputs, saved, execution));
    GDPI_TRY(gdpi_check_window(window));
    GDPI_TRY(gdpi_bind_output_gradients(&plan->problem, output_gradients, &l.args));
    GDPI_TRY(check_alignment(&l));
    GDPI_TRY(gdpi_check_memory("summary", summary, plan->layout.summary, plan->layout.summary));
    if (plan->sequence_count == 0) return GDP_OK;
    select_fold(&l, true);
    if (!on_reference(&l)) step(&l, GDPI_KERNEL_ADJOINT_SUMMARY);
    summarise_shard(&l, true, continues_behind(window), summary);
    return l.status;
}

gdp_status gdp_cp_backward_apply(const gdp_plan *plan, const gdp_inputs *inputs,
                                 const gdp_cp_window *window,
                                 const gdp_output_gradients *output_gradients,
                                 const gdp_saved_context *saved, const void *gathered,
                                 const gdp_input_gradients *input_gradients,
                                 const gdp_execution *execution)
{
    launch l;
    GDPI_TRY(begin(&l, plan, GDP_PLAN_CP | GDP_PLAN_BACKWARD, inputs, saved, execution));
    GDPI_TRY(gdpi_check_window(window));
    GDPI_TRY(gdpi_bind_output_gradients(&plan->problem, output_gradients, &l.args));
    GDPI_TRY(gdpi_bind_input_gradients(&plan->problem, input_gradients, &l.args));
    GDPI_TRY(check_alignment(&l));
    GDPI_TRY(gdpi_check_memory("gathered", gathered, plan->layout.summary, plan->layout.summary));
    if (plan->sequence_count == 0) return GDP_OK;
    select_fold(&l, true);
    if (continues_before(window) && on_reference(&l))
        l.args.incoming_state = at(saved->data, plan->layout.saved_incoming_state);
    if (continues_behind(window))
        l.args.d_outgoing_state = fold_ranks(&l, true, gathered, window->following_rank_stop - 1,
                                             window->following_rank_stop - 1 - window->rank,
                                             at(l.workspace, plan->layout.incoming_state));
    finish_backward(&l);
    return l.status;
}
