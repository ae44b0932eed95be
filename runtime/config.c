/* The second stage: how a problem is computed. What the caller did not ask for is chosen by the
 * generator, next to the templates that the choice is for. */
#include "emit.h"
#include "internal.h"

#include <string.h>

enum { TEXT = 512, MAX_REASON = 2048, USUAL_PROCESSORS = 132 };

/* The architecture of CUDA kernels: the device's where they are to run, else any. */
static gdp_status settle_cuda(const gdp_context *context, bool to_run, gdp_config *wanted)
{
    const gdpi_cuda *device = context->device;
    if (to_run && !device)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "config: target is cuda; this context uses no CUDA device, its target is "
                         "%s (CUDA here: %s)",
                         gdpi_target_names[context->target], context->cuda);
    if (wanted->arch == 0 && !device)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "config: arch is 0; without a device to take it from, accepted is a "
                         "compute capability such as 90 for sm_90");
    if (wanted->arch == 0) wanted->arch = gdpi_cuda_arch(device);
    if (to_run && wanted->arch != gdpi_cuda_arch(device))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "config: arch is %lld; accepted is %d, that of the device (%s), or 0",
                         (long long)wanted->arch, gdpi_cuda_arch(device), gdpi_cuda_name(device));
    return GDP_OK;
}

static gdp_status settle(const gdp_context *context, bool to_run, gdp_config *wanted)
{
    if (wanted->target == GDP_TARGET_AUTO) wanted->target = context->target;
    if (wanted->target == GDP_TARGET_CUDA) return settle_cuda(context, to_run, wanted);
    if (wanted->arch != 0)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "config: arch is %lld; accepted is 0 where target is %s",
                         (long long)wanted->arch, gdpi_target_names[wanted->target]);
    if (wanted->target == GDP_TARGET_HOST && !context->compiler)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "config: target is host, and there is no C compiler; set GDP_CC to one");
    return GDP_OK;
}

static int count_processors(const gdp_context *context, gdp_target target)
{
    if (target != GDP_TARGET_CUDA) return gdpi_pool_threads(context->pool);
    return context->device ? gdpi_cuda_processors(context->device) : USUAL_PROCESSORS;
}

gdp_status gdpi_choose_config(gdp_context *context, const gdp_problem *problem,
                              const gdp_config *request, gdp_config *config, gdpi_areas *areas)
{
    char sentence[MAX_REASON];
    char problem_text[TEXT], request_text[TEXT], config_text[TEXT], areas_text[TEXT];
    gdp_config wanted = { 0 };
    if (areas) memset(areas, 0, sizeof *areas);
    if (request) wanted = *request;
    if (gdpi_fields_check(gdpi_config_fields, GDPI_CONFIG_FIELDS, &wanted, sentence,
                          sizeof sentence))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "config: %s", sentence);
    GDPI_TRY(settle(context, areas != NULL, &wanted));
    *config = wanted;
    if (wanted.target == GDP_TARGET_REFERENCE) return GDP_OK; /* nothing to choose */

    GDPI_TRY(gdp_problem_print(problem, problem_text, sizeof problem_text));
    GDPI_TRY(gdp_config_print(&wanted, request_text, sizeof request_text));
    const gdpi_generator generator = {
        .allocate = context->allocator.allocate,
        .release = context->allocator.release,
        .user = context->allocator.user,
        .template_dir = context->template_dir,
    };
    const int result = gdpi_generator_configure(
        &generator, problem_text, request_text, count_processors(context, wanted.target),
        config_text, sizeof config_text, areas_text, sizeof areas_text, sentence, sizeof sentence);
    if (result == GDPI_GENERATOR_OUT_OF_MEMORY)
        return gdpi_fail(GDP_STATUS_OUT_OF_MEMORY, "no memory to choose a configuration");
    if (result != GDPI_GENERATOR_OK)
        return gdpi_fail(GDP_STATUS_UNSUPPORTED, "config: %s", sentence);
    for (int i = 0; areas && i < GDPI_AREA_COUNT; i++)
        areas->bytes[i] = gdpi_find_number(areas_text, gdpi_areas_info[i].name);
    return gdp_config_parse(config_text, config);
}
