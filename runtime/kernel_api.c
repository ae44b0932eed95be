/* Kernels one by one, for people and tuners: their names, sources, and what they need of a device. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

const char *gdp_kernel_name(int index)
{
    return index >= 0 && index < GDPI_KERNEL_COUNT ? gdpi_kernels[index].name : NULL;
}

static bool is_kernel(const char *name)
{
    for (int i = 0; i < GDPI_KERNEL_COUNT; i++)
        if (strcmp(gdpi_kernels[i].name, name) == 0) return true;
    return false;
}

/* Everything but the kernel's text is a pointer that must be there; completes the configuration. */
static gdp_status prepare(gdp_context *context, const char *kernel, const gdp_problem *problem,
                          const gdp_config *config, gdp_config *complete)
{
    if (!is_kernel(kernel))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "kernel '%s' is unknown; gdp_kernel_name lists those that are", kernel);
    GDPI_TRY(gdp_problem_check(problem));
    return gdpi_choose_config(context, problem, config, complete, NULL);
}

static gdp_status check_pointers(const gdp_context *context, const char *kernel,
                                 const gdp_problem *problem, const void *result,
                                 const char *result_name)
{
    if (context && kernel && problem && result) return GDP_OK;
    return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s is NULL",
                     !context   ? "context"
                     : !kernel  ? "kernel"
                     : !problem ? "problem"
                                : result_name);
}

gdp_status gdp_emit_source(gdp_context *context, const char *kernel, const gdp_problem *problem,
                           const gdp_config *config, char **source)
{
    gdp_config complete;
    gdpi_text text = { NULL, 0 };
    gdpi_notes notes;
    GDPI_TRY(check_pointers(context, kernel, problem, source, "source"));
    *source = NULL;
    GDPI_TRY(prepare(context, kernel, problem, config, &complete));
    if (complete.target == GDP_TARGET_REFERENCE)
        return gdpi_fail(GDP_STATUS_UNSUPPORTED,
                         "config: target is reference, which has no kernels; accepted are host "
                         "and cuda");
    GDPI_TRY(gdpi_kernel_emit(context, kernel, problem, &complete, &text, &notes));
    *source = text.data;
    return GDP_OK;
}

void gdp_release_text(gdp_context *context, char *text)
{
    if (context) gdpi_release(&context->allocator, text);
}

gdp_status gdp_compile_kernel(gdp_context *context, const char *kernel, const gdp_problem *problem,
                              const gdp_config *config, gdp_kernel_report *report)
{
    gdp_config complete, request = { 0 };
    gdpi_notes notes;
    gdpi_blob binary = { NULL, 0 };
    gdpi_cubin_usage usage;
    double seconds;
    char symbol[64];
    GDPI_TRY(check_pointers(context, kernel, problem, report, "report"));
    memset(report, 0, sizeof *report);
    if (config) request = *config;
    if (request.target == GDP_TARGET_AUTO) request.target = GDP_TARGET_CUDA;
    if (request.target != GDP_TARGET_CUDA)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "config: target is %d; accepted here is cuda, %d, or auto",
                         (int)request.target, (int)GDP_TARGET_CUDA);
    GDPI_TRY(prepare(context, kernel, problem, &request, &complete));
    GDPI_TRY(gdpi_kernel_compile(context, kernel, problem, &complete, &notes, &binary, &seconds));
    snprintf(symbol, sizeof symbol, "gdp_%s", kernel);
    const size_t size = binary.size;
    const gdp_status status = gdpi_cubin_read(&binary, symbol, &usage);
    gdpi_release(&context->allocator, binary.data);
    if (status != GDP_OK) return status;
    const size_t shared = notes.shared + usage.shared_bytes;
    *report = (gdp_kernel_report){
        .registers = usage.registers,
        .spilled = usage.local_bytes,
        .threads = notes.threads,
        .blocks = gdpi_cubin_blocks(complete.arch, usage.registers, notes.threads, shared),
        .shared_bytes = shared,
        .binary_bytes = size,
        .seconds = seconds,
    };
    return GDP_OK;
}
