/* A finished plan and a caller's pointers become kernel launches, in order. Nothing here allocates,
 * compiles or looks anything up. */
#include <string.h>

#include "internal.h"

typedef struct launch {
    const gdp_plan *plan;
    gdp_args args;
    char *workspace;
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
    gdp_args *a = &l->args;
    GDPI_TRY(gdpi_bind_inputs(&plan->problem, inputs, a));
    GDPI_TRY(gdpi_check_contents(&plan->problem, inputs, plan->context->check_values));

    char *work = execution->workspace, *keep = saved ? saved->data : NULL;
    a->chunks = at(work, layout->chunks);
    a->segments = at(work, layout->segments);
    a->sequences = at(work, layout->sequences);
    a->counts = at(work, layout->counts);
    a->gates = at(work, layout->gates);
    a->a = at(work, layout->a);
    a->p = at(work, layout->p);
    a->segment_state = at(work, layout->segment_state);
    a->segment_d_state = at(work, layout->segment_d_state);
    a->segment_d_summary = at(work, layout->segment_d_summary);
    a->chunk_d_state = at(work, layout->chunk_d_state);
    a->chunk_state = at(keep, layout->saved_chunk_state);
    a->segment_summary = at(work, layout->segment_summary);
    if (!a->segment_summary) a->segment_summary = at(keep, layout->saved_segment_summary);
    a->batch = plan->problem.batch;
    a->tokens = plan->problem.tokens;
    a->sequence_count = plan->sequence_count;
    a->heads = plan->problem.heads;
    a->value_heads = plan->problem.value_heads;
    a->max_chunks = plan->max_chunks;
    a->max_segments = plan->max_segments;
    a->segment_chunks = plan->config.segment;
    return GDP_OK;
}

/* ---- one kernel ---- */

typedef struct host_job {
    gdpi_host_function function;
    const gdp_args *args;
    char *scratch;
    size_t scratch_bytes;
} host_job;

/* Kernels run with round to nearest and with numbers below 2^-126 taken as zero: states and M
 * decay through that range, where a multiplication can take a hundred times as long. The thread's own
 * mode comes back afterwards, and never shows in results. */
#if defined(__x86_64__) || defined(__i386__)
enum { KERNEL_MODE = 0x1f80 | 0x8040 };
static unsigned get_float_mode(void) { return __builtin_ia32_stmxcsr(); }
static void set_float_mode(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
enum { KERNEL_MODE = 1 << 24 };
static unsigned get_float_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (unsigned)mode;
}
static void set_float_mode(unsigned mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}
#else
enum { KERNEL_MODE = 0 };
static unsigned get_float_mode(void) { return 0; }
static void set_float_mode(unsigned mode) { (void)mode; }
#endif

static void run_host_task(void *argument, int64_t task, int slot)
{
    const host_job *job = argument;
    const unsigned mode = get_float_mode();
    set_float_mode(KERNEL_MODE);
    job->function(job->args, task, job->scratch + (size_t)slot * job->scratch_bytes);
    set_float_mode(mode);
}

static int64_t count_tasks(const launch *l, enum gdpi_kernel_id id)
{
    const gdp_plan *plan = l->plan;
    const int64_t counts[GDPI_TASK_COUNT] = {
        [GDPI_TASK_CHUNK] = plan->max_chunks,
        [GDPI_TASK_SEGMENT] = plan->max_segments,
        [GDPI_TASK_SEQUENCE] = plan->sequence_count,
        [GDPI_TASK_FOLD_SEQUENCE] = l->args.fold_sequences,
        [GDPI_TASK_HEAD] = plan->problem.heads,
        [GDPI_TASK_VALUE_HEAD] = plan->problem.value_heads,
        [GDPI_TASK_V_BLOCK] = plan->v_blocks,
        [GDPI_TASK_COLUMN_BLOCK] = plan->column_blocks,
    };
    int64_t tasks = 1;
    for (int i = 0; i < gdpi_kernels[id].task_count; i++)
        tasks *= counts[gdpi_kernels[id].tasks[i]];
    return tasks;
}

static void step(launch *l, enum gdpi_kernel_id id)
{
    gdp_context *context = l->plan->context;
    host_job job = {
        .function = l->plan->kernels[id]->function,
        .args = &l->args,
        .scratch = l->workspace + l->plan->layout.scratch,
        .scratch_bytes = l->plan->scratch,
    };
    gdpi_pool_run(context->pool, count_tasks(l, id), run_host_task, &job);
    atomic_fetch_add(&context->launches, 1);
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
    step(l, GDPI_KERNEL_BACKWARD_SCAN);
    step(l, GDPI_KERNEL_CHUNK_BACKWARD);
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
    if (is_empty(&l)) return GDP_OK;
    make_terms(&l);
    if (plan->config.segment > 0 && !on_reference(&l)) step(&l, GDPI_KERNEL_SUMMARY);
    finish_forward(&l);
    return GDP_OK;
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
    if (is_empty(&l)) return GDP_OK;
    make_terms(&l);
    if (plan->config.segment > 0 && !on_reference(&l)) step(&l, GDPI_KERNEL_ADJOINT_SUMMARY);
    finish_backward(&l);
    return GDP_OK;
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
    return GDP_OK;
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
    return GDP_OK;
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
    GDPI_TRY(gdpi_check_memory("summary", summary, plan->layout.summary, plan->layout.summary));
    if (plan->sequence_count == 0) return GDP_OK;
    make_terms(&l);
    select_fold(&l, true);
    if (!on_reference(&l)) step(&l, GDPI_KERNEL_ADJOINT_SUMMARY);
    summarise_shard(&l, true, continues_behind(window), summary);
    return GDP_OK;
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
    return GDP_OK;
}
