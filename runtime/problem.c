/* The first stage: what is to be computed, as a value with a text form. */
#include <string.h>

#include "internal.h"

enum { SENTENCE = 512 };

size_t gdp_dtype_size(gdp_dtype dtype)
{
    switch (dtype) {
    case GDP_DTYPE_BF16:
    case GDP_DTYPE_F16:
        return 2;
    case GDP_DTYPE_F32:
    case GDP_DTYPE_I32:
        return 4;
    case GDP_DTYPE_I64:
        return 8;
    default:
        return 0;
    }
}

gdp_problem gdp_problem_default(void)
{
    gdp_problem problem;
    memset(&problem, 0, sizeof problem);
    gdpi_fields_default(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem);
    return problem;
}

gdp_status gdp_problem_check(const gdp_problem *problem)
{
    char sentence[SENTENCE];
    if (!problem) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "problem is NULL");
    if (gdpi_fields_check(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, problem, sentence,
                          sizeof sentence))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "problem: %s", sentence);
    if (problem->value_heads % problem->heads != 0)
        return gdpi_fail(
            GDP_STATUS_INVALID_ARGUMENT,
            "problem: value_heads is %lld; accepted is a multiple of heads, which is %lld",
            (long long)problem->value_heads, (long long)problem->heads);
    if (problem->sequences > 0 && problem->batch != 1)
        return gdpi_fail(
            GDP_STATUS_INVALID_ARGUMENT,
            "problem: batch is %lld; packed sequences (sequences = %lld) need batch = 1",
            (long long)problem->batch, (long long)problem->sequences);

    /* The largest tensor and the largest table must be addressable with room to spare. */
    const double wide = (double)(problem->dim_k > problem->dim_v ? problem->dim_k : problem->dim_v);
    const double elements = (double)problem->batch * (double)problem->tokens *
                            (double)problem->num_householder * (double)problem->value_heads * wide;
    const double states = ((double)problem->batch + (double)problem->sequences) *
                          (double)problem->value_heads * wide * wide;
    if (elements > 0x1p56 || states > 0x1p56)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "problem: its largest tensor would have over 2^56 elements");
    return GDP_OK;
}

/* ---- text forms ---- */

static gdp_status print(const gdpi_field *fields, size_t count, const void *object,
                        const char *name, char *text, size_t capacity)
{
    if (!object || !text) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s or text is NULL", name);
    const int length = gdpi_fields_print(fields, count, object, text, capacity);
    if (length < 0 || (size_t)length >= capacity)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "capacity is %zu; this %s needs %d", capacity,
                         name, length + 1);
    return GDP_OK;
}

static gdp_status parse(const gdpi_field *fields, size_t count, const char *text, const char *name,
                        void *object)
{
    char sentence[SENTENCE];
    if (!object || !text) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s or text is NULL", name);
    if (gdpi_fields_parse(fields, count, object, text, sentence, sizeof sentence))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s: %s", name, sentence);
    return GDP_OK;
}

gdp_status gdp_problem_print(const gdp_problem *problem, char *text, size_t capacity)
{
    return print(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, problem, "problem", text, capacity);
}

gdp_status gdp_config_print(const gdp_config *config, char *text, size_t capacity)
{
    return print(gdpi_config_fields, GDPI_CONFIG_FIELDS, config, "config", text, capacity);
}

gdp_status gdp_problem_parse(const char *text, gdp_problem *problem)
{
    return parse(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, text, "problem", problem);
}

gdp_status gdp_config_parse(const char *text, gdp_config *config)
{
    return parse(gdpi_config_fields, GDPI_CONFIG_FIELDS, text, "config", config);
}
