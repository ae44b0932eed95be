/* Compilers that are missing, fail, say nothing or die, and templates that are wrong. */
/* timeout: 600 */
#include "kernel_fixture.h"

static void test_missing_compiler(void **state)
{
    (void)state;
    gdp_context *context = (gdp_context *)&heard;
    gdp_context_options options = host_options(&heard, NULL);
    options.compiler = in_folder("nowhere");
    assert_int_equal(gdp_context_create(&options, &context), GDP_STATUS_NOT_AVAILABLE);
    assert_null(context);
    assert_non_null(strstr(gdp_last_error(), "GDP_CC"));
    assert_non_null(strstr(gdp_last_error(), "nowhere"));

    /* It was there when the context was made. */
    context = open_context(make_compiler("cc", REAL));
    const gdpi_kernel *kernel;
    unlink(in_folder("cc"));
    assert_int_equal(get_kernel(context, 16, &kernel), GDP_STATUS_NOT_AVAILABLE);
    assert_null(kernel);
    assert_non_null(strstr(gdp_last_error(), in_folder("cc")));
    make_compiler("cc", REAL);
    check_kernel(context, 16);
    gdp_context_destroy(context);
}

static void check_failure(const char *action, const char *part)
{
    gdp_context *context = open_context(make_compiler("cc", action));
    const gdpi_kernel *kernel;
    assert_int_equal(get_kernel(context, 16, &kernel), GDP_STATUS_COMPILE_FAILED);
    assert_null(kernel);
    if (!strstr(gdp_last_error(), part)) fail_msg("no '%s' in: %s", part, gdp_last_error());
    assert_int_equal(count_files("temp", ""), 0);
    assert_int_equal(count_files("cache", ".bin"), 0);
    make_compiler("cc", REAL); /* a failure is not kept */
    check_kernel(context, 16);
    gdp_context_destroy(context);
    remove_tree(in_folder("cache"));
}

static void test_failing_compiler(void **state)
{
    (void)state;
    check_failure("echo 'kernel.c:3: error: wrong' >&2; exit 4", "exit status 4");
    check_failure("echo 'kernel.c:3: error: wrong' >&2; exit 4", "kernel.c:3: error: wrong");
    check_failure("echo first; seq 1 100000; exit 1", "first\n1\n2\n");
    check_failure("exit 1", "(nothing)");
    check_failure("exit 0", "made no");
    check_failure("kill -9 $$", "signal 9");
    check_failure("echo dying >&2; kill -11 $$", "dying");
    /* What the compiler left behind is removed as well. */
    check_failure(": >$TMPDIR/left; kill -9 $$", "signal 9");
}

/* A template that is no C, compiled by the real compiler. */
static void test_bad_template(void **state)
{
    (void)state;
    put_text("templates/host/index.ct", "int broken = nothing;\n", 0600);
    gdp_context *context = open_context(NULL);
    const gdpi_kernel *kernel;
    assert_int_equal(get_kernel(context, 16, &kernel), GDP_STATUS_COMPILE_FAILED);
    assert_non_null(strstr(gdp_last_error(), "error: 'nothing' undeclared"));
    put_text("templates/host/index.ct", "int gdp_other;\n", 0600);
    assert_int_equal(get_kernel(context, 16, &kernel), GDP_STATUS_INTERNAL);
    put_text("templates/host/index.ct", "${nothing}\n", 0600);
    assert_int_equal(get_kernel(context, 16, &kernel), GDP_STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(gdp_last_error(), "index.ct:1"));
    gdp_context_destroy(context);
}

static void *fail_in_thread(void *context)
{
    const gdpi_kernel *kernel;
    const gdp_status status = get_kernel(context, 16, &kernel);
    return status == GDP_STATUS_COMPILE_FAILED ? strdup(gdp_last_error()) : NULL;
}

/* Who waits for a build that fails gets its failure, without another run of the compiler. */
static void test_threads_fail_together(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    gdp_context *context = open_context(make_compiler("cc", "sleep 0.5; echo wrong >&2; exit 1"));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fail_in_thread, context), 0);
    for (int i = 0; i < THREADS; i++) {
        void *sentence = NULL;
        pthread_join(threads[i], &sentence);
        assert_non_null(sentence);
        assert_non_null(strstr(sentence, "wrong"));
        free(sentence);
    }
    assert_int_equal(counters_of(context).compilations, 1);
    gdp_context_destroy(context);
}

/* An application that reaps no children, or has closed its standard streams. */
static void test_odd_process(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGCHLD, SIG_IGN);
        for (int i = 0; i < 3; i++) close(i);
        _exit(use_kernel(NULL));
    }
    await(&child, 1);
    assert_int_equal(count_files("cache", ".bin"), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_missing_compiler),      TEST(test_failing_compiler), TEST(test_bad_template),
        TEST(test_threads_fail_together), TEST(test_odd_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
