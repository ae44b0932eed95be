/* The orchestrator: problem -> configuration -> source -> binary -> plan, top to bottom, and nothing
 * calls back. A plan knows every size before the first launch. */
#include <string.h>

#include "internal.h"

/* ---- memory: areas laid end to end, each on its own cache lines ---- */

/* Ends as SIZE_MAX once anything overflows. */
static size_t multiply(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

static size_t elements(size_t size, int64_t a, int64_t b, int64_t c, int64_t d)
{
    size_t bytes = multiply(size, (size_t)a);
    bytes = multiply(bytes, (size_t)b);
    bytes = multiply(bytes, (size_t)c);
    return multiply(bytes, (size_t)d);
}

/* The offset of an area of `bytes` at the end of *end; SIZE_MAX where it is not wanted. */
static size_t place(size_t *end, bool wanted, size_t bytes)
{
    if (!wanted) return SIZE_MAX;
    const size_t offset = *end;
    if (bytes > SIZE_MAX / 2 || offset > SIZE_MAX / 2) {
        *end = SIZE_MAX;
        return SIZE_MAX;
    }
    *end = offset + (bytes + GDPI_ALIGNMENT - 1) / GDPI_ALIGNMENT * GDPI_ALIGNMENT;
    return offset;
}

/* Areas whose layout is the target's own: a number of items each, by how long they live. */
static void lay_out_areas(gdp_plan *plan, bool backward)
{
    gdpi_layout *l = &plan->layout;
    for (int i = 0; i < GDPI_AREA_COUNT; i++) {
        const enum gdpi_life life = gdpi_areas_info[i].life;
        const bool wanted = plan->areas.bytes[i] > 0 && (backward || life == GDPI_LIFE_TERMS);
        l->areas[i] = place(backward && life != GDPI_LIFE_WAVE ? &l->saved : &l->workspace, wanted,
                            elements(plan->areas.bytes[i],
                                     life == GDPI_LIFE_WAVE ? plan->wave_chunks : plan->max_chunks,
                                     plan->problem.value_heads, 1, 1));
    }
}

static void lay_out_kernels(gdp_plan *plan, bool backward, bool cp)
{
    gdpi_layout *l = &plan->layout;
    const int64_t HV = plan->problem.value_heads, K = plan->problem.dim_k, V = plan->problem.dim_v;
    const int64_t chunks = plan->max_chunks, segments = plan->max_segments;
    const bool summaries = plan->cut || cp;
    size_t *end = &l->workspace;
    size_t *kept = backward ? &l->saved : end; /* what forward makes and backward reads again */

    l->chunks = place(kept, true, elements(sizeof(gdp_chunk), chunks, 1, 1, 1));
    l->segments = place(kept, true, elements(sizeof(gdp_segment), segments, 1, 1, 1));
    l->sequences = place(kept, true, elements(sizeof(gdp_sequence), plan->sequence_count, 1, 1, 1));
    l->counts = place(kept, true, 2 * sizeof(int64_t));
    lay_out_areas(plan, backward);
    l->segment_state = place(kept, true, elements(sizeof(float), segments, HV, K, V));
    l->segment_summary = place(kept, summaries, elements(sizeof(float), segments, HV, K, V + K));
    l->segment_d_state = place(end, backward, elements(sizeof(float), segments, HV, K, V));
    l->segment_d_summary =
        place(end, summaries && backward, elements(sizeof(float), segments, HV, K, V + K));
    l->incoming_state = place(end, cp, elements(sizeof(float), plan->fold_sequences, HV, K, V));
    l->scratch =
        place(end, true, elements(plan->scratch, gdpi_pool_threads(plan->context->pool), 1, 1, 1));
}

static void lay_out_reference(gdp_plan *plan, bool backward, bool cp)
{
    gdpi_layout *l = &plan->layout;
    const gdp_problem *problem = &plan->problem;
    const size_t state = elements(sizeof(float), plan->fold_sequences, problem->value_heads,
                                  problem->dim_k, problem->dim_v);
    l->scratch =
        place(&l->workspace, true,
              gdpi_reference_workspace(problem, gdpi_pool_threads(plan->context->pool), backward));
    l->incoming_state = place(&l->workspace, cp, state);
    l->saved_incoming_state = place(&l->saved, cp && backward, state);
}

static gdp_status lay_out(gdp_plan *plan)
{
    gdpi_layout *l = &plan->layout;
    const gdp_problem *problem = &plan->problem;
    const bool backward = plan->flags & GDP_PLAN_BACKWARD, cp = plan->flags & GDP_PLAN_CP;
    memset(l, 0xff, sizeof *l); /* every area: not needed */
    l->workspace = l->saved = l->summary = 0;
    if (plan->config.target == GDP_TARGET_REFERENCE)
        lay_out_reference(plan, backward, cp);
    else
        lay_out_kernels(plan, backward, cp);
    if (cp)
        l->summary = elements(sizeof(float), plan->fold_sequences, problem->value_heads,
                              problem->dim_k, problem->dim_k + problem->dim_v);
    if (l->workspace == SIZE_MAX || l->saved == SIZE_MAX)
        return gdpi_fail(GDP_STATUS_UNSUPPORTED,
                         "problem: its workspace would exceed the address space");
    return GDP_OK;
}

/* ---- sizes ---- */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static void count_chunks(gdp_plan *plan)
{
    const gdp_problem *problem = &plan->problem;
    const int64_t C = plan->config.chunk, segment = plan->config.segment;
    if (problem->sequences > 0) {
        /* Each sequence ends in one chunk and one segment that may not be full; so do the tokens
         * behind the last one. */
        plan->max_chunks = problem->tokens / C + problem->sequences + 1;
        plan->cut = segment < ceil_div(problem->tokens, C);
        plan->max_segments = (plan->cut ? plan->max_chunks / segment : 0) + problem->sequences + 1;
    } else {
        const int64_t chunks = ceil_div(problem->tokens, C), segments = ceil_div(chunks, segment);
        plan->max_chunks = problem->batch * chunks;
        plan->cut = segments > 1;
        plan->max_segments = problem->batch * (segments > 1 ? segments : 1);
    }
}

static void count_tasks(gdp_plan *plan)
{
    const gdp_problem *problem = &plan->problem;
    const bool packed = problem->sequences > 0;
    plan->sequence_count = packed ? problem->sequences : problem->batch;
    plan->fold_sequences = packed ? 1 : problem->batch;
    if (plan->config.target == GDP_TARGET_REFERENCE) return;
    count_chunks(plan);
    plan->wave_segments =
        plan->config.wave < plan->max_segments ? plan->config.wave : plan->max_segments;
    /* Segments have no more chunks than their length, nor than a sequence. */
    const int64_t longest =
        packed ? plan->max_chunks : ceil_div(problem->tokens, plan->config.chunk);
    const int64_t length = plan->config.segment < longest ? plan->config.segment : longest;
    int64_t chunks;
    if (__builtin_mul_overflow(plan->wave_segments, length, &chunks) || chunks > plan->max_chunks)
        chunks = plan->max_chunks;
    plan->wave_chunks = chunks;
}

/* ---- kernels ---- */

/* Which kernels the launches of a plan use. */
static bool needs_kernel(const gdp_plan *plan, enum gdpi_kernel_id id)
{
    const bool backward = plan->flags & GDP_PLAN_BACKWARD, cp = plan->flags & GDP_PLAN_CP;
    const bool cut = plan->cut;
    switch (id) {
    case GDPI_KERNEL_INDEX:
    case GDPI_KERNEL_CHUNK_TERMS:
    case GDPI_KERNEL_COMPOSE_SEGMENTS:
    case GDPI_KERNEL_FORWARD_SCAN:
        return true;
    case GDPI_KERNEL_SUMMARY:
        return cut || cp;
    case GDPI_KERNEL_COMPOSE_SHARD:
    case GDPI_KERNEL_COMPOSE_RANKS:
        return cp;
    case GDPI_KERNEL_ADJOINT_SUMMARY:
        return backward && (cut || cp);
    case GDPI_KERNEL_STATE_SCAN:
        return backward && plan->areas.bytes[GDPI_AREA_CHUNK_STATE] > 0;
    case GDPI_KERNEL_ADJOINT_COMPOSE_SEGMENTS:
    case GDPI_KERNEL_BACKWARD_SCAN:
    case GDPI_KERNEL_CHUNK_BACKWARD:
        return backward;
    case GDPI_KERNEL_ADJOINT_COMPOSE_SHARD:
    case GDPI_KERNEL_ADJOINT_COMPOSE_RANKS:
        return backward && cp;
    default:
        return false;
    }
}

typedef struct preparation {
    gdp_plan *plan;
    gdp_status status[GDPI_KERNEL_COUNT];
    char *sentence[GDPI_KERNEL_COUNT];
} preparation;

static void prepare_kernel(void *argument, int64_t task, int slot)
{
    preparation *all = argument;
    gdp_plan *plan = all->plan;
    (void)slot;
    if (!needs_kernel(plan, (enum gdpi_kernel_id)task)) return;
    all->status[task] = gdpi_kernel_get(plan->context, (enum gdpi_kernel_id)task, &plan->problem,
                                        &plan->config, &plan->kernels[task]);
    if (all->status[task] != GDP_OK)
        all->sentence[task] = gdpi_copy_text(&plan->context->allocator, gdp_last_error());
}

/* All kernels at once on the pool's threads; the first failure in order of the list counts. */
static gdp_status prepare_kernels(gdp_plan *plan)
{
    preparation all;
    memset(&all, 0, sizeof all);
    all.plan = plan;
    gdpi_pool_run(plan->context->pool, GDPI_KERNEL_COUNT, prepare_kernel, &all);

    gdp_status status = GDP_OK;
    for (int i = 0; i < GDPI_KERNEL_COUNT; i++) {
        if (all.status[i] != GDP_OK && status == GDP_OK)
            status = gdpi_fail(all.status[i], "kernel %s: %s", gdpi_kernels[i].name,
                               all.sentence[i] ? all.sentence[i] : gdp_status_name(all.status[i]));
        gdpi_release(&plan->context->allocator, all.sentence[i]);
        if (plan->kernels[i] && plan->kernels[i]->notes.scratch > plan->scratch)
            plan->scratch = plan->kernels[i]->notes.scratch;
    }
    plan->scratch = (plan->scratch + GDPI_ALIGNMENT - 1) / GDPI_ALIGNMENT * GDPI_ALIGNMENT;
    return status;
}

/* ---- public calls ---- */

static gdp_status build(gdp_plan *plan, const gdp_config *config)
{
    GDPI_TRY(
        gdpi_choose_config(plan->context, &plan->problem, config, &plan->config, &plan->areas));
    count_tasks(plan);
    if (plan->config.target != GDP_TARGET_REFERENCE) GDPI_TRY(prepare_kernels(plan));
    return lay_out(plan);
}

gdp_status gdp_plan_create(gdp_context *context, const gdp_problem *problem,
                           const gdp_config *config, unsigned flags, gdp_plan **plan)
{
    if (!context || !plan) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "context or plan is NULL");
    *plan = NULL;
    GDPI_TRY(gdp_problem_check(problem));
    if (flags & ~(unsigned)(GDP_PLAN_BACKWARD | GDP_PLAN_CP))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "flags is %#x; accepted are GDP_PLAN_BACKWARD and GDP_PLAN_CP", flags);
    gdp_plan *made = gdpi_allocate_zeroed(&context->allocator, sizeof *made);
    if (!made) return GDP_STATUS_OUT_OF_MEMORY;
    made->context = context;
    made->problem = *problem;
    made->flags = flags;
    const gdp_status status = build(made, config);
    if (status != GDP_OK) {
        gdp_plan_destroy(made);
        return status;
    }
    *plan = made;
    return GDP_OK;
}

void gdp_plan_destroy(gdp_plan *plan)
{
    if (plan) gdpi_release(&plan->context->allocator, plan); /* the kernels stay with the context */
}

gdp_status gdp_plan_get_sizes(const gdp_plan *plan, gdp_plan_sizes *sizes)
{
    if (!plan || !sizes) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "plan or sizes is NULL");
    *sizes = (gdp_plan_sizes){ plan->layout.workspace, plan->layout.saved, plan->layout.summary };
    return GDP_OK;
}

gdp_status gdp_plan_get_config(const gdp_plan *plan, gdp_config *config)
{
    if (!plan || !config) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "plan or config is NULL");
    *config = plan->config;
    return GDP_OK;
}

gdp_status gdp_plan_get_problem(const gdp_plan *plan, gdp_problem *problem)
{
    if (!plan || !problem) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "plan or problem is NULL");
    *problem = plan->problem;
    return GDP_OK;
}
