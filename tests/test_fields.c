/* Problems and configurations as texts: round trips, and every way to be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fields.h"
#include "gdp.h"
#include "schema_gen.h"

static char error[512];

static gdp_problem default_problem(void)
{
    gdp_problem problem;
    memset(&problem, 0, sizeof problem);
    gdpi_fields_default(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem);
    return problem;
}

static int parse(gdp_problem *problem, const char *text)
{
    return gdpi_fields_parse(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, problem, text, error,
                             sizeof error);
}

static void print(const gdp_problem *problem, char *out, size_t capacity)
{
    const int length =
        gdpi_fields_print(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, problem, out, capacity);
    assert_true(length > 0 && (size_t)length < capacity);
    assert_int_equal(strlen(out), length);
}

static void defaults_are_accepted(void **state)
{
    (void)state;
    const gdp_problem problem = default_problem();
    assert_int_equal(problem.batch, 1);
    assert_int_equal(problem.dim_k, 128);
    assert_int_equal(problem.dtype, GDP_DTYPE_BF16);
    assert_int_equal(problem.gate_dtype, GDP_DTYPE_F32);
    assert_int_equal(
        gdpi_fields_check(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem, error, sizeof error),
        0);
}

static void text_is_read_back(void **state)
{
    (void)state;
    gdp_problem problem = default_problem(), again = default_problem();
    problem.tokens = INT64_C(1) << 40;
    problem.sequences = 2147483647;
    problem.gate_dtype = GDP_DTYPE_NONE;
    problem.index_dtype = GDP_DTYPE_I64;
    char text[512], text_again[512];
    print(&problem, text, sizeof text);
    assert_string_equal(
        text, "batch=1 tokens=1099511627776 sequences=2147483647 heads=1 value_heads=1 dim_k=128 "
              "dim_v=128 num_householder=1 dtype=bf16 gate_dtype=none beta_dtype=f32 "
              "index_dtype=i64");
    assert_int_equal(parse(&again, text), 0);
    print(&again, text_again, sizeof text_again);
    assert_string_equal(text, text_again);
    assert_memory_equal(&problem, &again, sizeof problem);
}

static void class_is_printed_alone(void **state)
{
    (void)state;
    const gdp_problem problem = default_problem();
    char text[512];
    gdpi_fields_print_class(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem, text, sizeof text);
    assert_string_equal(
        text, "dim_k=128 dim_v=128 num_householder=1 dtype=bf16 gate_dtype=f32 beta_dtype=f32 "
              "index_dtype=i32");
}

static void print_is_bounded(void **state)
{
    (void)state;
    const gdp_problem problem = default_problem();
    char whole[512], part[512];
    print(&problem, whole, sizeof whole);
    const int length = (int)strlen(whole);
    for (size_t capacity = 0; capacity < sizeof part; capacity++) {
        memset(part, '#', sizeof part);
        assert_int_equal(
            gdpi_fields_print(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem, part, capacity),
            length);
        if (capacity) assert_memory_equal(part, whole, strlen(part));
        if (capacity)
            assert_int_equal(strlen(part),
                             capacity > (size_t)length ? (size_t)length : capacity - 1);
        assert_int_equal(part[capacity], '#');
    }
}

static void unnamed_fields_stay(void **state)
{
    (void)state;
    gdp_problem problem = default_problem();
    problem.heads = 7;
    assert_int_equal(parse(&problem, " \t\n dim_v=64\r\n dtype=f16 "), 0);
    assert_int_equal(problem.heads, 7);
    assert_int_equal(problem.dim_v, 64);
    assert_int_equal(problem.dtype, GDP_DTYPE_F16);
    assert_int_equal(parse(&problem, ""), 0);
}

static void wrong_texts_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        { "dim_k=0", "dim_k=0: must be an integer from 1 to 256" },
        { "dim_k=257", "dim_k=257: must be an integer from 1 to 256" },
        { "dim_k=-1", "dim_k=-1: must be an integer from 1 to 256" },
        { "dim_k=12x", "dim_k=12x: must be an integer from 1 to 256" },
        { "dim_k=1.0", "dim_k=1.0: must be an integer from 1 to 256" },
        { "dim_k=0x10", "dim_k=0x10: must be an integer from 1 to 256" },
        { "dim_k=+1", "dim_k=+1: must be an integer from 1 to 256" },
        { "dim_k=-", "dim_k=-: must be an integer from 1 to 256" },
        { "tokens=1099511627777",
          "tokens=1099511627777: must be an integer from 0 to 1099511627776" },
        { "tokens=9223372036854775808",
          "tokens=9223372036854775808: must be an integer from 0 to 1099511627776" },
        { "tokens=18446744073709551617",
          "tokens=18446744073709551617: must be an integer from 0 to 1099511627776" },
        { "dtype=i32", "dtype=i32: must be one of f32, bf16, f16" },
        { "dtype=none", "dtype=none: must be one of f32, bf16, f16" },
        { "dtype=BF16", "dtype=BF16: must be one of f32, bf16, f16" },
        { "dtype=2", "dtype=2: must be one of f32, bf16, f16" },
        { "gate_dtype=i64", "gate_dtype=i64: must be one of none, f32, bf16, f16" },
        { "dim_k=64 dim_k=64", "dim_k is given twice" },
        { "dim_k", "'dim_k' is not of the form name=value" },
        { "dim_k=", "'dim_k=' is not of the form name=value" },
        { "=64", "'=64' is not of the form name=value" },
        { "dim_k = 64", "'dim_k' is not of the form name=value" },
        { "dim_kk=64", "unknown field 'dim_kk'; known are batch, tokens, sequences, heads, "
                       "value_heads, dim_k, dim_v, "
                       "num_householder, dtype, gate_dtype, beta_dtype, index_dtype" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gdp_problem problem = default_problem();
        const gdp_problem before = problem;
        char text[256] = "heads=9 ";
        strcat(text, cases[i].text);
        assert_int_equal(parse(&problem, text), 1);
        assert_string_equal(error, cases[i].sentence);
        assert_memory_equal(&problem, &before, sizeof problem);
    }
}

static void whole_range_is_read(void **state)
{
    (void)state;
    static const gdpi_field wide[] = { { .name = "x", .min = INT64_MIN, .max = INT64_MAX } };
    static const char *const texts[] = { "x=-9223372036854775808", "x=9223372036854775807", "x=0" };
    for (size_t i = 0; i < 3; i++) {
        int64_t value = 1;
        char text[64];
        assert_int_equal(gdpi_fields_parse(wide, 1, &value, texts[i], error, sizeof error), 0);
        gdpi_fields_print(wide, 1, &value, text, sizeof text);
        assert_string_equal(text, texts[i]);
    }
    int64_t value = 1;
    assert_int_equal(
        gdpi_fields_parse(wide, 1, &value, "x=9223372036854775808", error, sizeof error), 1);
    assert_int_equal(
        gdpi_fields_parse(wide, 1, &value, "x=-9223372036854775809", error, sizeof error), 1);
    assert_int_equal(value, 1);
}

static void long_words_are_cut(void **state)
{
    (void)state;
    char text[4096] = "dtype=", small[8];
    memset(text + 6, 'a', sizeof text - 7);
    gdp_problem problem = default_problem();
    assert_int_equal(parse(&problem, text), 1);
    assert_non_null(strstr(error, "aaa: must be one of f32, bf16, f16"));
    assert_int_equal(gdpi_fields_parse(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem, text,
                                       small, sizeof small),
                     1);
    assert_string_equal(small, "dtype=a");
    assert_int_equal(
        gdpi_fields_parse(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem, text, NULL, 0), 1);
}

static void wrong_structs_are_refused(void **state)
{
    (void)state;
    gdp_problem problem = default_problem();
    problem.num_householder = 17;
    assert_int_equal(
        gdpi_fields_check(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem, error, sizeof error),
        1);
    assert_string_equal(error, "num_householder=17: must be an integer from 1 to 16");

    problem = default_problem();
    problem.beta_dtype = GDP_DTYPE_NONE;
    assert_int_equal(
        gdpi_fields_check(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem, error, sizeof error),
        1);
    assert_string_equal(error, "beta_dtype=none: must be one of f32, bf16, f16");

    problem = default_problem();
    const int number = 99;
    memcpy(&problem.dtype, &number, sizeof number);
    assert_int_equal(
        gdpi_fields_check(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, &problem, error, sizeof error),
        1);
    assert_string_equal(error, "dtype=99: must be one of f32, bf16, f16");
    char text[512];
    print(&problem, text, sizeof text);
    assert_non_null(strstr(text, " dtype=? "));
}

static void configurations_work_alike(void **state)
{
    (void)state;
    gdp_config config;
    gdpi_fields_default(gdpi_config_fields, GDPI_CONFIG_FIELDS, &config);
    assert_int_equal(config.target, GDP_TARGET_AUTO);
    assert_int_equal(gdpi_fields_parse(gdpi_config_fields, GDPI_CONFIG_FIELDS, &config,
                                       "target=cuda chunk=64", error, sizeof error),
                     0);
    char text[128];
    gdpi_fields_print(gdpi_config_fields, GDPI_CONFIG_FIELDS, &config, text, sizeof text);
    assert_string_equal(text, "target=cuda arch=0 chunk=64 segment=0 block_v=0 stages=0 wave=0");
}

static void kernels_have_known_factors(void **state)
{
    (void)state;
    assert_string_equal(gdpi_kernels[GDPI_KERNEL_INDEX].name, "index");
    assert_int_equal(gdpi_kernels[GDPI_KERNEL_INDEX].task_count, 0);
    const gdpi_kernel_info *scan = &gdpi_kernels[GDPI_KERNEL_FORWARD_SCAN];
    assert_int_equal(scan->task_count, 3);
    assert_int_equal(scan->tasks[0], GDPI_TASK_SEGMENT);
    assert_int_equal(scan->tasks[2], GDPI_TASK_V_BLOCK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_accepted),      cmocka_unit_test(text_is_read_back),
        cmocka_unit_test(class_is_printed_alone),     cmocka_unit_test(print_is_bounded),
        cmocka_unit_test(unnamed_fields_stay),        cmocka_unit_test(wrong_texts_are_refused),
        cmocka_unit_test(whole_range_is_read),        cmocka_unit_test(long_words_are_cut),
        cmocka_unit_test(wrong_structs_are_refused),  cmocka_unit_test(configurations_work_alike),
        cmocka_unit_test(kernels_have_known_factors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
