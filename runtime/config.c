/* The second stage: how a problem is computed. What the caller did not ask for is chosen by the
 * generator, next to the templates that the choice is for. */
#include "emit.h"
#include "internal.h"

enum { TEXT = 512 };

gdp_status gdpi_choose_config(gdp_context *context, const gdp_problem *problem,
                              const gdp_config *request, gdp_config *config)
{
    char sentence[TEXT], problem_text[TEXT], request_text[TEXT], config_text[TEXT];
    gdp_config wanted = { 0 };
    if (request) wanted = *request;
    if (gdpi_fields_check(gdpi_config_fields, GDPI_CONFIG_FIELDS, &wanted, sentence,
                          sizeof sentence))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "config: %s", sentence);
    if (wanted.target == GDP_TARGET_AUTO) wanted.target = context->target;
    if (wanted.target == GDP_TARGET_CUDA)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "config: target is cuda; this build has no CUDA target");
    if (wanted.target == GDP_TARGET_HOST && !context->compiler)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "config: target is host, and there is no C compiler; set GDP_CC to one");
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
    const int result = gdpi_generator_configure(&generator, problem_text, request_text, config_text,
                                                sizeof config_text, sentence, sizeof sentence);
    if (result == GDPI_GENERATOR_OUT_OF_MEMORY)
        return gdpi_fail(GDP_STATUS_OUT_OF_MEMORY, "no memory to choose a configuration");
    if (result != GDPI_GENERATOR_OK)
        return gdpi_fail(GDP_STATUS_UNSUPPORTED, "config: %s", sentence);
    return gdp_config_parse(config_text, config);
}
