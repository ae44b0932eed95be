/* Contexts: options, environment, what AUTO means, what they tell about themselves. */
#include "kernel_fixture.h"

static gdp_context_options plain_options(void)
{
    memset(&heard, 0, sizeof heard);
    gdp_context_options options = host_options(&heard, NULL);
    options.target = GDP_TARGET_AUTO;
    options.threads = 0;
    return options;
}

static gdp_context *create(const gdp_context_options *options)
{
    gdp_context *context = NULL;
    if (gdp_context_create(options, &context)) fail_msg("%s", gdp_last_error());
    return context;
}

static gdp_context_info info_of(const gdp_context *context)
{
    gdp_context_info info;
    assert_int_equal(gdp_context_get_info(context, &info), GDP_OK);
    return info;
}

/* Creation fails with this status and a sentence with both parts. */
static void refuse(const gdp_context_options *options, gdp_status status, const char *part,
                   const char *other)
{
    gdp_context *context = (gdp_context *)&heard;
    const gdp_status got = gdp_context_create(options, &context);
    if (got != status) fail_msg("%s: %s", gdp_status_name(got), gdp_last_error());
    assert_null(context);
    if (!strstr(gdp_last_error(), part) || !strstr(gdp_last_error(), other))
        fail_msg("'%s' or '%s' is not in: %s", part, other, gdp_last_error());
}

/* ---- statuses ---- */

static void *read_sentence(void *unused)
{
    (void)unused;
    return strdup(gdp_last_error());
}

static void test_status(void **state)
{
    (void)state;
    assert_string_equal(gdp_status_name(GDP_OK), "OK");
    assert_string_equal(gdp_status_name(GDP_STATUS_COMPILE_FAILED), "COMPILE_FAILED");
    assert_string_equal(gdp_status_name((gdp_status)7), "?");
    assert_string_equal(gdp_version(), "0.1.0");
    assert_int_equal(gdpi_fail(GDP_STATUS_IO, "%s %d", "one", 2), GDP_STATUS_IO);
    assert_string_equal(gdp_last_error(), "one 2");
    gdpi_fail(GDP_STATUS_PEER, "rank 1: %s", gdp_last_error());
    assert_string_equal(gdp_last_error(), "rank 1: one 2");
    char *text = malloc(100001);
    memset(text, 'x', 100000);
    text[100000] = '\0';
    gdpi_fail(GDP_STATUS_IO, "%s", text);
    free(text);
    assert_true(strlen(gdp_last_error()) > 8000);
    pthread_t thread;
    void *other = NULL;
    assert_int_equal(pthread_create(&thread, NULL, read_sentence, NULL), 0);
    pthread_join(thread, &other);
    assert_string_equal(other, "");
    free(other);
}

/* ---- what is found ---- */

static void test_info(void **state)
{
    (void)state;
    gdp_context_options options = plain_options();
    gdp_context *context = create(&options);
    const gdp_context_info info = info_of(context);
    assert_int_equal(info.target, GDP_TARGET_HOST);
    assert_true(info.threads >= 1);
    assert_true(strlen(info.processor) > 5);
    assert_int_equal(info.compiler[0], '/');
    assert_string_equal(info.cache_dir, in_folder("cache"));
    assert_string_equal(info.template_dir, in_folder("templates"));
    assert_true(info.cuda[0] && info.nvrtc[0] && info.nccl[0]);
    assert_int_equal(info.arch, 0);
    assert_null(info.device);
    assert_int_equal(info.processors, info.threads);
    assert_int_equal(heard.warnings, 0);
    gdp_context_counters counters;
    assert_int_equal(gdp_context_get_counters(context, &counters), GDP_OK);
    assert_int_equal(counters.compilations + counters.cache_hits + counters.launches, 0);
    assert_int_equal(gdp_context_get_counters(context, NULL), GDP_STATUS_INVALID_ARGUMENT);
    assert_int_equal(gdp_context_get_info(NULL, NULL), GDP_STATUS_INVALID_ARGUMENT);
    gdp_context_destroy(context);
    gdp_context_destroy(NULL);
}

static void test_defaults(void **state)
{
    (void)state;
    setenv("XDG_CACHE_HOME", in_folder("xdg"), 1);
    gdp_context *context = create(NULL);
    assert_string_equal(info_of(context).cache_dir, in_folder("xdg/gdp"));
    assert_null(info_of(context).template_dir);
    assert_false(context->check_values);
    gdp_context_destroy(context);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", folder, 1);
    context = create(NULL);
    assert_string_equal(info_of(context).cache_dir, in_folder(".cache/gdp"));
    gdp_context_destroy(context);
    unsetenv("XDG_CACHE_HOME");
}

static void test_environment(void **state)
{
    (void)state;
    gdp_context_options options = plain_options();
    options.cache_dir = options.template_dir = NULL;
    setenv("GDP_TARGET", "reference", 1);
    setenv("GDP_THREADS", "3", 1);
    setenv("GDP_CHECKED", "1", 1);
    setenv("GDP_CACHE_DIR", in_folder("other"), 1);
    setenv("GDP_TEMPLATE_DIR", in_folder("templates"), 1);
    setenv("CC", "nonsense", 1);
    setenv("GDP_CC", make_compiler("mycc", "exit 1"), 1);
    gdp_context *context = create(&options);
    const gdp_context_info info = info_of(context);
    assert_int_equal(info.target, GDP_TARGET_REFERENCE);
    assert_int_equal(info.threads, 3);
    assert_true(context->check_values);
    assert_string_equal(info.cache_dir, in_folder("other"));
    assert_string_equal(info.template_dir, in_folder("templates"));
    assert_string_equal(info.compiler, in_folder("mycc"));
    gdp_context_destroy(context);

    /* An option goes before the environment. */
    options.target = GDP_TARGET_HOST;
    options.threads = 2;
    options.cache_dir = "";
    options.compiler = "cc";
    context = create(&options);
    assert_int_equal(info_of(context).target, GDP_TARGET_HOST);
    assert_int_equal(info_of(context).threads, 2);
    assert_null(info_of(context).cache_dir);
    gdp_context_destroy(context);
    assert_int_equal(heard.warnings, 0);
}

static void test_bad_environment(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *accepted;
    } bad[] = {
        { "GDP_TARGET", "gpu", "auto, host, cuda, reference" },
        { "GDP_DEVICE", "-1", "ordinal" },
        { "GDP_DEVICE", "first", "ordinal" },
        { "GDP_THREADS", "0", "from 1 to" },
        { "GDP_THREADS", "-1", "from 1 to" },
        { "GDP_THREADS", "2x", "from 1 to" },
        { "GDP_THREADS", "99999999999999999999", "from 1 to" },
        { "GDP_THREADS", " 2", "from 1 to" },
        { "GDP_CHECKED", "yes", "0 or 1" },
    };
    const gdp_context_options options = plain_options();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char part[64];
        snprintf(part, sizeof part, "%s=%s", bad[i].name, bad[i].value);
        setenv(bad[i].name, bad[i].value, 1);
        refuse(&options, GDP_STATUS_INVALID_ARGUMENT, part, bad[i].accepted);
        unsetenv(bad[i].name);
    }
    setenv("GDP_THREADS", "", 1);
    setenv("GDP_TARGET", "", 1);
    gdp_context_destroy(create(&options));
}

static void test_bad_options(void **state)
{
    (void)state;
    const gdp_context_options good = plain_options();
    gdp_context_options options = good;
    assert_int_equal(gdp_context_create(&good, NULL), GDP_STATUS_INVALID_ARGUMENT);
    options.size = 0;
    refuse(&options, GDP_STATUS_INVALID_ARGUMENT, "options.size=0", "INIT");
    options = good, options.target = (gdp_target)9;
    refuse(&options, GDP_STATUS_INVALID_ARGUMENT, "options.target=9", "_HOST");
    options = good, options.threads = -2;
    refuse(&options, GDP_STATUS_INVALID_ARGUMENT, "options.threads=-2", "from 1");
    options = good, options.release = count_release;
    refuse(&options, GDP_STATUS_INVALID_ARGUMENT, "options.allocate", "both");
    options = good, options.device = -1;
    refuse(&options, GDP_STATUS_INVALID_ARGUMENT, "options.device=-1", "ordinal + 1");
}

/* ---- CUDA where it is not ---- */

static void expect_failure(gdp_status got, gdp_status status, const char *part)
{
    if (got != status || !strstr(gdp_last_error(), part))
        fail_msg("%s, not %s with '%s': %s", gdp_status_name(got), gdp_status_name(status), part,
                 gdp_last_error());
}

static void test_no_cuda(void **state)
{
    (void)state;
    gdp_context_options options = plain_options();
    gdp_context *context = create(&options);
    if (info_of(context).target == GDP_TARGET_CUDA) {
        gdp_context_destroy(context);
        skip();
    }
    assert_int_equal(heard.warnings, 0);
    gdp_context_destroy(context);
    options.target = GDP_TARGET_CUDA;
    refuse(&options, GDP_STATUS_NOT_AVAILABLE, "target cuda", "no CUDA d");
}

/* A context of the host plans for nothing else, but compiles for any device where NVRTC is. */
static void test_cuda_on_host(void **state)
{
    (void)state;
    gdp_context_options options = plain_options();
    options.target = GDP_TARGET_HOST;
    setenv("GDP_NVRTC", in_folder("none.so"), 1);
    gdp_context *context = create(&options);
    const gdp_problem problem = gdp_problem_default();
    gdp_config config = { .target = GDP_TARGET_CUDA, .arch = 90 };
    gdp_kernel_report report;
    gdp_plan *plan = NULL;
    expect_failure(gdp_plan_create(context, &problem, &config, 0, &plan), GDP_STATUS_NOT_AVAILABLE,
                   "no CUDA device");
    expect_failure(gdp_compile_kernel(context, "forward_scan", &problem, &config, &report),
                   GDP_STATUS_NOT_AVAILABLE, in_folder("none.so"));
    config.arch = 0;
    expect_failure(gdp_compile_kernel(context, "forward_scan", &problem, &config, &report),
                   GDP_STATUS_NOT_AVAILABLE, "arch is 0");
    config.arch = 75;
    expect_failure(gdp_compile_kernel(context, "forward_scan", &problem, &config, &report),
                   GDP_STATUS_UNSUPPORTED, "8.0");
    config = (gdp_config){ .target = GDP_TARGET_HOST, .arch = 90 };
    expect_failure(gdp_plan_create(context, &problem, &config, 0, &plan),
                   GDP_STATUS_INVALID_ARGUMENT, "arch is 90; accepted is 0");
    expect_failure(gdp_compile_kernel(context, "forward_scan", &problem, &config, &report),
                   GDP_STATUS_INVALID_ARGUMENT, "target is 1");
    expect_failure(gdp_compile_kernel(context, "nothing", &problem, NULL, &report),
                   GDP_STATUS_INVALID_ARGUMENT, "'nothing'");
    expect_failure(gdp_compile_kernel(context, "index", &problem, NULL, NULL),
                   GDP_STATUS_INVALID_ARGUMENT, "report is NULL");
    gdp_context_destroy(context);
    unsetenv("GDP_NVRTC");
}

/* ---- memory and time of the host ---- */

static void test_memory(void **state)
{
    (void)state;
    gdp_context_options options = plain_options();
    counter memory = { .fail_at = 0 };
    options.target = GDP_TARGET_HOST;
    options.allocate = count_allocate, options.release = count_release;
    options.allocator_user = &memory;
    gdp_context *context = create(&options);
    const long before = memory.live;
    void *block = &memory, *other = NULL;
    assert_int_equal(gdp_memory_allocate(context, 0, &block), GDP_OK);
    assert_null(block);
    gdp_memory_release(context, NULL);
    assert_int_equal(gdp_memory_allocate(context, 1000, &block), GDP_OK);
    assert_int_equal(gdp_memory_allocate(context, 1000, &other), GDP_OK);
    assert_int_equal((uintptr_t)block % 256, 0);
    assert_int_equal((uintptr_t)other % 256, 0);
    assert_int_equal(gdp_memory_fill(context, block, 0x17, 1000), GDP_OK);
    assert_int_equal(gdp_memory_copy(context, other, block, 1000), GDP_OK);
    assert_int_equal(((char *)other)[999], 0x17);
    gdp_memory_release(context, block);
    gdp_memory_release(context, other);
    expect_failure(gdp_memory_allocate(context, SIZE_MAX - 8, &block), GDP_STATUS_OUT_OF_MEMORY,
                   "out of memory");
    expect_failure(gdp_memory_copy(context, NULL, &memory, 8), GDP_STATUS_INVALID_ARGUMENT,
                   "to is NULL");
    expect_failure(gdp_memory_fill(context, NULL, 0, 8), GDP_STATUS_INVALID_ARGUMENT,
                   "memory is NULL");
    assert_int_equal(gdp_memory_copy(context, NULL, NULL, 0), GDP_OK);
    assert_int_equal(gdp_stream_synchronize(context, NULL), GDP_OK);

    gdp_timer *timer;
    double time = -1;
    assert_int_equal(gdp_timer_create(context, &timer), GDP_OK);
    assert_int_equal(gdp_timer_stop(timer, NULL), GDP_OK);
    expect_failure(gdp_timer_read(timer, &time), GDP_STATUS_INVALID_ARGUMENT, "started");
    assert_int_equal(gdp_timer_start(timer, NULL), GDP_OK);
    expect_failure(gdp_timer_read(timer, &time), GDP_STATUS_INVALID_ARGUMENT, "stopped");
    wait_milliseconds(2);
    assert_int_equal(gdp_timer_stop(timer, NULL), GDP_OK);
    assert_int_equal(gdp_timer_read(timer, &time), GDP_OK);
    assert_true(time > 0.001 && time < 60);
    gdp_timer_destroy(timer);
    gdp_timer_destroy(NULL);
    assert_int_equal(memory.live, before);
    gdp_context_destroy(context);
    assert_int_equal(memory.live, 0);
}

/* ---- compilers ---- */

static void test_no_compiler(void **state)
{
    (void)state;
    char *path = strdup(getenv("PATH"));
    gdp_context_options options = plain_options();
    setenv("PATH", in_folder("temp"), 1);
    gdp_context *context = create(&options);
    assert_int_equal(info_of(context).target, GDP_TARGET_REFERENCE);
    assert_null(info_of(context).compiler);
    assert_int_equal(heard.warnings, 1);
    assert_string_equal(heard.last,
                        "no C compiler (looked for cc, clang, gcc on the PATH): running on "
                        "the built-in reference, which is slow");
    gdp_context_destroy(context);
    options.target = GDP_TARGET_REFERENCE;
    gdp_context_destroy(create(&options));
    assert_int_equal(heard.warnings, 1);
    options.target = GDP_TARGET_HOST;
    refuse(&options, GDP_STATUS_NOT_AVAILABLE, "GDP_CC", "cc, clang, gcc");
    setenv("PATH", path, 1);
    free(path);
    setenv("CC", "cc -m64", 1);
    refuse(&options, GDP_STATUS_NOT_AVAILABLE, "cc -m64", "one word");
}

/* One that cannot tell its version cannot be part of a key. */
static void test_mute_compiler(void **state)
{
    (void)state;
    gdp_context_options options = plain_options();
    put_text("mute", "#!/bin/sh\nexit 3\n", 0700);
    options.compiler = in_folder("mute");
    options.target = GDP_TARGET_HOST;
    refuse(&options, GDP_STATUS_COMPILE_FAILED, in_folder("mute"), "exit status 3");
    put_text("mute", "#!/bin/sh\nexit 0\n", 0700);
    refuse(&options, GDP_STATUS_COMPILE_FAILED, in_folder("mute"), "--version");
    put_text("mute", "no program", 0700);
    refuse(&options, GDP_STATUS_NOT_AVAILABLE, in_folder("mute"), "cannot be started");
    options.target = GDP_TARGET_AUTO;
    gdp_context *context = create(&options);
    assert_int_equal(info_of(context).target, GDP_TARGET_REFERENCE);
    assert_int_equal(heard.warnings, 1);
    assert_non_null(strstr(heard.last, "mute"));
    gdp_context_destroy(context);
}

/* ---- J6: no place for the cache ---- */

static void test_no_cache(void **state)
{
    (void)state;
    const gdpi_kernel *kernel;
    static const char *const dirs[] = { NULL, "/proc/gdp/cache", "", NULL };
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    for (int i = 0; i < 4; i++) {
        gdp_context_options options = plain_options();
        options.target = GDP_TARGET_HOST;
        options.cache_dir = dirs[i];
        if (i == 3) setenv("GDP_CACHE_DIR", "/proc/gdp", 1);
        gdp_context *context = create(&options);
        assert_null(info_of(context).cache_dir);
        if (get_kernel(context, 16, &kernel)) fail_msg("%s", gdp_last_error());
        assert_true(is_right(kernel, 16));
        assert_int_equal(heard.warnings, i != 2);
        if (i != 2) assert_non_null(strstr(heard.last, "GDP_CACHE_DIR"));
        gdp_context_destroy(context);
    }
    if (home) setenv("HOME", home, 1);
    free(home);
}

/* ---- sources ---- */

static void test_emit(void **state)
{
    (void)state;
    gdp_context_options options = plain_options();
    options.template_dir = NULL;
    gdp_context *context = create(&options);
    const gdp_problem problem = gdp_problem_default();
    int count = 0;
    for (const char *name; (name = gdp_kernel_name(count)); count++) {
        char *source = NULL, part[64];
        if (gdp_emit_source(context, name, &problem, NULL, &source))
            fail_msg("%s", gdp_last_error());
        snprintf(part, sizeof part, "gdp_%s(", name);
        assert_non_null(strstr(source, part));
        gdp_release_text(context, source);
    }
    assert_int_equal(count, GDPI_KERNEL_COUNT);
    assert_null(gdp_kernel_name(-1));
    gdp_release_text(context, NULL);

    char *source = (char *)&heard;
    gdp_problem wrong = problem;
    wrong.dim_k = -1;
    assert_int_equal(gdp_emit_source(context, "nothing", &problem, NULL, &source),
                     GDP_STATUS_INVALID_ARGUMENT);
    assert_null(source);
    assert_non_null(strstr(gdp_last_error(), "'nothing'"));
    assert_int_equal(gdp_emit_source(context, "index", &wrong, NULL, &source),
                     GDP_STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(gdp_last_error(), "dim_k"));
    assert_int_equal(gdp_emit_source(context, NULL, &problem, NULL, &source),
                     GDP_STATUS_INVALID_ARGUMENT);
    gdp_context_destroy(context);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_status),          TEST(test_info),
        TEST(test_defaults),        TEST(test_environment),
        TEST(test_bad_environment), TEST(test_bad_options),
        TEST(test_no_compiler),     TEST(test_mute_compiler),
        TEST(test_no_cache),        TEST(test_emit),
        TEST(test_no_cuda),         TEST(test_cuda_on_host),
        TEST(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
