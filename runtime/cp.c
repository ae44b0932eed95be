/* Context parallelism over a group: agree once, then prepare, exchange, apply. */
#include <stdio.h>
#include <string.h>

#include "agree.h"
#include "internal.h"

struct gdp_cp_group {
    gdp_context *context;
    gdp_comm comm;
    gdp_problem problem;
    unsigned flags;
    gdp_plan *plan; /* NULL: a registered backend */
    gdp_cp_backend backend;
    gdp_plan_sizes sizes; /* workspace: the backend's, then one summary, then all ranks' */
    size_t summary_offset, gathered_offset;
};

/* ---- making a group ---- */

static gdp_status check_comm(const gdp_comm *comm)
{
    if (!comm) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "comm is NULL");
    if (comm->struct_size != sizeof *comm)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "comm: struct_size is %zu; accepted is %zu",
                         comm->struct_size, sizeof *comm);
    if (comm->size < 1 || comm->rank < 0 || comm->rank >= comm->size)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "comm: rank is %d of %d; accepted is 0 <= rank < size", comm->rank,
                         comm->size);
    if (!comm->all_gather || !comm->all_gather_host)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "comm lacks all_gather or all_gather_host");
    return GDP_OK;
}

/* What this rank brings to the table, before anything is compiled. */
static gdp_status propose(gdp_cp_group *group, const gdp_config *config, const char *backend,
                          gdpi_message *mine)
{
    const gdp_problem *problem = &group->problem;
    GDPI_TRY(gdp_problem_check(problem));
    if (group->flags & ~(unsigned)GDP_PLAN_BACKWARD)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "flags is %#x; accepted are 0 and GDP_PLAN_BACKWARD", group->flags);
    char fields[CLASS_TEXT / 2];
    gdpi_fields_print_class(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, problem, fields,
                            sizeof fields);
    snprintf(mine->class_text, sizeof mine->class_text,
             "batch=%lld heads=%lld value_heads=%lld %s backend=%s flags=%u checked=%d",
             (long long)problem->batch, (long long)problem->heads, (long long)problem->value_heads,
             fields, backend ? backend : "default", group->flags, group->context->check_values);
    gdp_config request = { 0 };
    if (config) request = *config;
    if (backend && gdpi_target_from_name(backend, &request.target)) backend = NULL;
    if (backend) {
        if (!gdpi_find_registered_backend(group->context, backend, &group->backend))
            return gdpi_fail(
                GDP_STATUS_INVALID_ARGUMENT,
                "backend is '%s'; accepted are host, cuda, reference and registered names",
                backend);
        return GDP_OK;
    }
    gdp_config chosen;
    GDPI_TRY(gdpi_choose_config(group->context, problem, &request, &chosen, NULL));
    return gdp_config_print(&chosen, mine->config_text, sizeof mine->config_text);
}

/* Compiles for rank 0's configuration and learns the sizes. */
static gdp_status build(gdp_cp_group *group, gdpi_message *mine)
{
    const gdp_problem *problem = &group->problem;
    if (!group->backend.name) {
        gdp_config config = { 0 };
        GDPI_TRY(gdp_config_parse(mine->config_text, &config));
        GDPI_TRY(gdp_plan_create(group->context, problem, &config, group->flags | GDP_PLAN_CP,
                                 &group->plan));
        GDPI_TRY(
            gdp_config_print(&group->plan->config, mine->config_text, sizeof mine->config_text));
        group->backend = gdpi_plan_backend(group->plan);
    }
    gdp_plan_sizes sizes = { 0 };
    GDPI_TRY(group->backend.sizes(group->backend.user, problem,
                                  group->flags & GDP_PLAN_BACKWARD ? 1 : 0, &sizes));
    const size_t heads = (size_t)(problem->batch * problem->value_heads);
    const size_t summary =
        heads * (size_t)(problem->dim_k * (problem->dim_k + problem->dim_v)) * sizeof(float);
    const size_t step = GDPI_ALIGNMENT;
    group->summary_offset = (sizes.workspace + step - 1) / step * step;
    group->gathered_offset = group->summary_offset + (summary + step - 1) / step * step;
    group->sizes = (gdp_plan_sizes){
        .workspace = group->gathered_offset + summary * (size_t)group->comm.size,
        .saved = sizes.saved,
        .summary = summary,
    };
    return GDP_OK;
}

/* `so_far`: what happened to this rank before; all ranks learn of it. */
static gdp_status join(gdp_cp_group *group, const gdp_config *config, const char *backend,
                       gdp_status so_far)
{
    gdpi_message mine;
    memset(&mine, 0, sizeof mine);
    gdpi_set_message_status(&mine,
                            so_far != GDP_OK ? so_far : propose(group, config, backend, &mine));
    GDPI_TRY(gdpi_agree(group->context, &group->comm, &mine, mine.config_text));
    gdpi_set_message_status(&mine, build(group, &mine));
    return gdpi_agree(group->context, &group->comm, &mine, NULL);
}

static gdp_status create(gdp_context *context, const gdp_comm *comm, const gdp_problem *problem,
                         const gdp_config *config, unsigned flags, const char *backend,
                         gdp_status so_far, gdp_cp_group **group)
{
    if (!context || !group)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "context or group is NULL");
    *group = NULL;
    GDPI_TRY(check_comm(comm));
    gdp_cp_group *made = gdpi_allocate_zeroed(&context->allocator, sizeof *made);
    if (!made) {
        gdpi_agree_on_status(context, comm, GDP_STATUS_OUT_OF_MEMORY);
        return gdpi_fail(GDP_STATUS_OUT_OF_MEMORY, "no memory for a group");
    }
    made->context = context;
    made->comm = *comm;
    made->flags = flags;
    if (problem) made->problem = *problem;
    const gdp_status status = join(made, config, backend, so_far);
    if (status != GDP_OK) {
        gdp_cp_group_destroy(made);
        return status;
    }
    *group = made;
    return GDP_OK;
}

gdp_status gdp_cp_group_create(gdp_context *context, const gdp_comm *comm,
                               const gdp_problem *problem, const gdp_config *config, unsigned flags,
                               const char *backend, gdp_cp_group **group)
{
    return create(context, comm, problem, config, flags, backend, GDP_OK, group);
}

void gdp_cp_group_destroy(gdp_cp_group *group)
{
    if (!group) return;
    gdp_plan_destroy(group->plan);
    gdpi_release(&group->context->allocator, group);
}

gdp_status gdp_cp_group_get_sizes(const gdp_cp_group *group, gdp_plan_sizes *sizes)
{
    if (!group || !sizes) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "group or sizes is NULL");
    *sizes = group->sizes;
    return GDP_OK;
}

/* ---- running ---- */

static gdp_status make_window(const gdp_comm *comm, int preceding_rank_start,
                              int following_rank_stop, gdp_cp_window *window)
{
    if (following_rank_stop == GDP_RANK_STOP_DEFAULT) following_rank_stop = comm->size;
    *window = (gdp_cp_window){ comm->rank, comm->size, preceding_rank_start, following_rank_stop };
    return gdpi_check_window(window);
}

/* Everything that could fail on this rank alone must fail before the exchange. A rank that returns
 * with its status leaves the others waiting; where values are checked all ranks hear of it first. */
static gdp_status settle(const gdp_cp_group *group, gdp_status status)
{
    if (!group->context->check_values) return status;
    return gdpi_agree_on_status(group->context, &group->comm, status);
}

static gdp_status check_call(const gdp_cp_group *group, const gdp_inputs *inputs,
                             const gdp_saved_context *saved, const gdp_execution *execution)
{
    gdp_args args;
    if (!execution) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "execution is NULL");
    GDPI_TRY(gdpi_check_memory("workspace", execution->workspace, execution->workspace_bytes,
                               group->sizes.workspace));
    GDPI_TRY(gdpi_check_memory("saved", saved ? saved->data : NULL, saved ? saved->bytes : 0,
                               group->sizes.saved));
    GDPI_TRY(gdpi_bind_inputs(&group->problem, inputs, &args));
    const gdp_target target = group->plan ? group->plan->config.target : group->context->target;
    return gdpi_check_contents(target, &group->problem, inputs, group->context->check_values);
}

gdp_status gdp_cp_forward(gdp_cp_group *group, const gdp_inputs *inputs, int preceding_rank_start,
                          int following_rank_stop, const gdp_outputs *outputs,
                          gdp_saved_context *saved, const gdp_execution *execution)
{
    gdp_args args;
    gdp_cp_window window;
    if (!group) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "group is NULL");
    const gdp_problem *problem = &group->problem;
    const gdp_cp_backend *backend = &group->backend;
    gdp_status status =
        make_window(&group->comm, preceding_rank_start, following_rank_stop, &window);
    if (status == GDP_OK) status = check_call(group, inputs, saved, execution);
    if (status == GDP_OK) status = gdpi_bind_outputs(problem, outputs, &args);
    GDPI_TRY(settle(group, status));

    char *summary = (char *)execution->workspace + group->summary_offset;
    char *gathered = (char *)execution->workspace + group->gathered_offset;
    GDPI_TRY(backend->cp_forward_prepare(backend->user, problem, inputs, &window, summary, saved,
                                         execution));
    GDPI_TRY(group->comm.all_gather(group->comm.user, summary, gathered, group->sizes.summary,
                                    execution->stream));
    GDPI_TRY(backend->cp_forward_apply(backend->user, problem, inputs, &window, gathered, outputs,
                                       saved, execution));
    if (saved) {
        saved->preceding_rank_start = window.preceding_rank_start;
        saved->following_rank_stop = window.following_rank_stop;
    }
    return GDP_OK;
}

gdp_status gdp_cp_backward(gdp_cp_group *group, const gdp_inputs *inputs,
                           const gdp_output_gradients *output_gradients,
                           const gdp_saved_context *saved,
                           const gdp_input_gradients *input_gradients,
                           const gdp_execution *execution)
{
    gdp_args args;
    gdp_cp_window window;
    if (!group) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "group is NULL");
    if (!saved)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "saved is NULL; backward needs what forward saved");
    if (!(group->flags & GDP_PLAN_BACKWARD))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "group was made without GDP_PLAN_BACKWARD");
    const gdp_problem *problem = &group->problem;
    const gdp_cp_backend *backend = &group->backend;
    gdp_status status =
        make_window(&group->comm, saved->preceding_rank_start, saved->following_rank_stop, &window);
    if (status == GDP_OK) status = check_call(group, inputs, saved, execution);
    if (status == GDP_OK) status = gdpi_bind_output_gradients(problem, output_gradients, &args);
    if (status == GDP_OK) status = gdpi_bind_input_gradients(problem, input_gradients, &args);
    GDPI_TRY(settle(group, status));

    char *summary = (char *)execution->workspace + group->summary_offset;
    char *gathered = (char *)execution->workspace + group->gathered_offset;
    GDPI_TRY(backend->cp_backward_prepare(backend->user, problem, inputs, &window, output_gradients,
                                          saved, summary, execution));
    GDPI_TRY(group->comm.all_gather(group->comm.user, summary, gathered, group->sizes.summary,
                                    execution->stream));
    return backend->cp_backward_apply(backend->user, problem, inputs, &window, output_gradients,
                                      saved, gathered, input_gradients, execution);
}

/* ---- the one call: a group for the moment, memory of the context's target ---- */

void gdp_saved_context_release(gdp_context *context, gdp_saved_context *saved)
{
    if (!context || !saved) return;
    gdp_memory_release(context, saved->data);
    memset(saved, 0, sizeof *saved);
}

/* Waits for the work that a call has started, since its memory goes back. */
static gdp_status finish(gdp_context *context, gdp_status status)
{
    if (context->target != GDP_TARGET_CUDA || status != GDP_OK) return status;
    return gdp_stream_synchronize(context, NULL);
}

/* Its memory is the context's target's; a plan for another one would read it from the wrong side. */
static gdp_status check_side(const gdp_context *context, const char *backend)
{
    gdp_target target;
    if (!backend || !gdpi_target_from_name(backend, &target)) return GDP_OK;
    if ((target == GDP_TARGET_CUDA) == (context->target == GDP_TARGET_CUDA)) return GDP_OK;
    return gdpi_fail(GDP_STATUS_UNSUPPORTED,
                     "backend is '%s' in a context whose target is %s; this call works in memory "
                     "of the context's target",
                     backend, gdpi_target_names[context->target]);
}

gdp_status gdp_chunkwise_context_parallel(gdp_context *context, const gdp_comm *comm,
                                          const char *backend, const gdp_inputs *inputs,
                                          int preceding_rank_start, int following_rank_stop,
                                          const gdp_outputs *outputs, gdp_saved_context *saved)
{
    gdp_args args;
    gdp_cp_window window;
    gdp_problem problem = gdp_problem_default();
    gdp_cp_group *group = NULL;
    if (!context) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "context is NULL");
    GDPI_TRY(check_comm(comm));
    gdp_status status = make_window(comm, preceding_rank_start, following_rank_stop, &window);
    if (status == GDP_OK) status = check_side(context, backend);
    if (status == GDP_OK) status = gdp_problem_from_inputs(inputs, &problem);
    if (status == GDP_OK)
        status = gdpi_check_contents(context->target, &problem, inputs, context->check_values);
    if (status == GDP_OK) status = gdpi_bind_outputs(&problem, outputs, &args);
    GDPI_TRY(create(context, comm, &problem, NULL, saved ? GDP_PLAN_BACKWARD : 0, backend, status,
                    &group));

    gdp_execution execution = { .workspace_bytes = group->sizes.workspace };
    gdp_saved_context kept = { .bytes = group->sizes.saved };
    status = gdp_memory_allocate(context, execution.workspace_bytes, &execution.workspace);
    if (status == GDP_OK && saved)
        status = gdp_memory_allocate(context, kept.bytes ? kept.bytes : 1, &kept.data);
    status = gdpi_agree_on_status(context, comm, status);
    if (status == GDP_OK)
        status = gdp_cp_forward(group, inputs, preceding_rank_start, following_rank_stop, outputs,
                                saved ? &kept : NULL, &execution);
    status = finish(context, status);
    gdp_memory_release(context, execution.workspace);
    gdp_cp_group_destroy(group);
    if (saved && status == GDP_OK)
        *saved = kept;
    else
        gdp_memory_release(context, kept.data);
    return status;
}

gdp_status gdp_chunkwise_context_parallel_backward(gdp_context *context, const gdp_comm *comm,
                                                   const char *backend, const gdp_inputs *inputs,
                                                   const gdp_output_gradients *output_gradients,
                                                   const gdp_saved_context *saved,
                                                   const gdp_input_gradients *input_gradients)
{
    gdp_args args;
    gdp_problem problem = gdp_problem_default();
    gdp_cp_group *group = NULL;
    if (!context) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "context is NULL");
    GDPI_TRY(check_comm(comm));
    gdp_status status =
        saved && saved->data ? GDP_OK : gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "saved is empty");
    if (status == GDP_OK) status = check_side(context, backend);
    if (status == GDP_OK) status = gdp_problem_from_inputs(inputs, &problem);
    if (status == GDP_OK)
        status = gdpi_check_contents(context->target, &problem, inputs, context->check_values);
    if (status == GDP_OK) status = gdpi_bind_output_gradients(&problem, output_gradients, &args);
    if (status == GDP_OK) status = gdpi_bind_input_gradients(&problem, input_gradients, &args);
    GDPI_TRY(create(context, comm, &problem, NULL, GDP_PLAN_BACKWARD, backend, status, &group));

    gdp_execution execution = { .workspace_bytes = group->sizes.workspace };
    status = gdp_memory_allocate(context, execution.workspace_bytes, &execution.workspace);
    status = gdpi_agree_on_status(context, comm, status);
    if (status == GDP_OK)
        status =
            gdp_cp_backward(group, inputs, output_gradients, saved, input_gradients, &execution);
    status = finish(context, status);
    gdp_memory_release(context, execution.workspace);
    gdp_cp_group_destroy(group);
    return status;
}
