/* The backends of chunkwise context parallelism: a plan behind the four functions, and the list of those
 * that an application registered. */
#include <string.h>

#include "internal.h"

/* ---- a plan as a backend; `user` is the plan ---- */

static gdp_status plan_sizes(void *user, const gdp_problem *problem, int backward,
                             gdp_plan_sizes *sizes)
{
    (void)problem;
    (void)backward;
    return gdp_plan_get_sizes(user, sizes);
}

static gdp_status plan_forward_prepare(void *user, const gdp_problem *problem,
                                       const gdp_inputs *inputs, const gdp_cp_window *window,
                                       void *summary, gdp_saved_context *saved,
                                       const gdp_execution *execution)
{
    (void)problem;
    return gdp_cp_forward_prepare(user, inputs, window, summary, saved, execution);
}

static gdp_status plan_forward_apply(void *user, const gdp_problem *problem,
                                     const gdp_inputs *inputs, const gdp_cp_window *window,
                                     const void *gathered, const gdp_outputs *outputs,
                                     gdp_saved_context *saved, const gdp_execution *execution)
{
    (void)problem;
    return gdp_cp_forward_apply(user, inputs, window, gathered, outputs, saved, execution);
}

static gdp_status plan_backward_prepare(void *user, const gdp_problem *problem,
                                        const gdp_inputs *inputs, const gdp_cp_window *window,
                                        const gdp_output_gradients *output_gradients,
                                        const gdp_saved_context *saved, void *summary,
                                        const gdp_execution *execution)
{
    (void)problem;
    return gdp_cp_backward_prepare(user, inputs, window, output_gradients, saved, summary,
                                   execution);
}

static gdp_status plan_backward_apply(void *user, const gdp_problem *problem,
                                      const gdp_inputs *inputs, const gdp_cp_window *window,
                                      const gdp_output_gradients *output_gradients,
                                      const gdp_saved_context *saved, const void *gathered,
                                      const gdp_input_gradients *input_gradients,
                                      const gdp_execution *execution)
{
    (void)problem;
    return gdp_cp_backward_apply(user, inputs, window, output_gradients, saved, gathered,
                                 input_gradients, execution);
}

gdp_cp_backend gdpi_plan_backend(gdp_plan *plan)
{
    return (gdp_cp_backend){
        .struct_size = sizeof(gdp_cp_backend),
        .name = gdpi_target_names[plan->config.target],
        .user = plan,
        .sizes = plan_sizes,
        .cp_forward_prepare = plan_forward_prepare,
        .cp_forward_apply = plan_forward_apply,
        .cp_backward_prepare = plan_backward_prepare,
        .cp_backward_apply = plan_backward_apply,
    };
}

/* ---- registered ones ---- */

bool gdpi_target_from_name(const char *name, gdp_target *target)
{
    for (int i = GDP_TARGET_AUTO + 1; gdpi_target_names[i]; i++)
        if (strcmp(gdpi_target_names[i], name) == 0) {
            *target = (gdp_target)i;
            return true;
        }
    return false;
}

static struct gdpi_backend_entry *find(gdp_context *context, const char *name)
{
    for (struct gdpi_backend_entry *entry = context->backends; entry; entry = entry->next)
        if (strcmp(entry->name, name) == 0) return entry;
    return NULL;
}

gdp_status gdp_register_cp_backend(gdp_context *context, const gdp_cp_backend *backend)
{
    gdp_target builtin;
    if (!context || !backend)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "context or backend is NULL");
    if (backend->struct_size != sizeof *backend)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "backend: struct_size is %zu; accepted is %zu", backend->struct_size,
                         sizeof *backend);
    if (!backend->name || !*backend->name || strlen(backend->name) > 31)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "backend: name is '%s'; accepted are 1 to 31 bytes",
                         backend->name ? backend->name : "");
    if (!backend->sizes || !backend->cp_forward_prepare || !backend->cp_forward_apply ||
        !backend->cp_backward_prepare || !backend->cp_backward_apply)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "backend '%s' lacks one of its functions",
                         backend->name);
    if (gdpi_target_from_name(backend->name, &builtin))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "backend: name is '%s', which is built in",
                         backend->name);

    struct gdpi_backend_entry *entry = gdpi_allocate_zeroed(&context->allocator, sizeof *entry);
    if (!entry) return GDP_STATUS_OUT_OF_MEMORY;
    memcpy(entry->name, backend->name, strlen(backend->name) + 1);
    entry->backend = *backend;
    entry->backend.name = entry->name;
    pthread_mutex_lock(&context->mutex);
    const bool taken = find(context, entry->name) != NULL;
    if (!taken) {
        entry->next = context->backends;
        context->backends = entry;
    }
    pthread_mutex_unlock(&context->mutex);
    if (!taken) return GDP_OK;
    gdpi_release(&context->allocator, entry);
    return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                     "backend: name is '%s', which is registered already", backend->name);
}

bool gdpi_find_registered_backend(gdp_context *context, const char *name, gdp_cp_backend *backend)
{
    pthread_mutex_lock(&context->mutex);
    const struct gdpi_backend_entry *entry = find(context, name);
    if (entry) *backend = entry->backend;
    pthread_mutex_unlock(&context->mutex);
    return entry != NULL;
}

void gdpi_backends_destroy(gdp_context *context)
{
    while (context->backends) {
        struct gdpi_backend_entry *entry = context->backends;
        context->backends = entry->next;
        gdpi_release(&context->allocator, entry);
    }
}
