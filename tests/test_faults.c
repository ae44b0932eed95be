/* Whatever fails, memory or a call of the cache: the right status, nothing lost, works again. */
/* link: -Wl,--wrap=open -Wl,--wrap=rename -Wl,--wrap=unlink -Wl,--wrap=fsync -Wl,--wrap=write */
/* timeout: 600 */
#include "kernel_fixture.h"

#include "cache_calls.h"

/* ---- calls that fail below folder/cache, from a given one on ---- */

static int broken_error; /* 0: none */
static atomic_int calls_until_broken;

static bool breaks(enum call call, const char *path)
{
    (void)call;
    if (!broken_error || strncmp(path, folder, strlen(folder)) || !strstr(path, "/cache/"))
        return false;
    if (atomic_fetch_sub(&calls_until_broken, 1) > 1) return false;
    errno = broken_error;
    return true;
}

/* ---- the cache's disk ---- */

/* J2 through a whole build: every call of the cache from the n-th on fails, for every n. */
static void test_failing_disk(void **state)
{
    (void)state;
    static const int errors[] = { EBUSY, ENOENT, ESTALE, ENOSPC, EACCES };
    int warned = 0;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        for (int n = 1; n <= 20; n++) {
            memset(&heard, 0, sizeof heard);
            gdp_context *context = NULL;
            const gdpi_kernel *kernel;
            const gdp_context_options options = host_options(&heard, NULL);
            assert_int_equal(gdp_context_create(&options, &context), GDP_OK);
            calls_until_broken = n;
            broken_error = errors[i];
            if (get_kernel(context, 16, &kernel)) fail_msg("%s", gdp_last_error());
            broken_error = 0;
            assert_true(is_right(kernel, 16));
            assert_in_range(heard.warnings, 0, 1);
            if (calls_until_broken > 0) assert_int_equal(heard.warnings, 0);
            warned += heard.warnings;
            gdp_context_destroy(context);
            remove_tree(in_folder("cache"));
        }
    assert_true(warned > 20);
}

/* ---- memory ---- */

/* Creates a context and gets a kernel, the n-th allocation failing; false when there was none. */
static bool run_with_failure(long n, bool warm, gdp_target target)
{
    counter memory = { .fail_at = n };
    gdp_context_options options = host_options(NULL, &memory);
    gdp_context *context = NULL;
    const gdpi_kernel *kernel = NULL;
    options.target = target;
    gdp_status status = gdp_context_create(&options, &context);
    assert_true((status == GDP_OK) == (context != NULL));
    if (context) {
        status = get_kernel(context, 16, &kernel);
        assert_true((status == GDP_OK) == (kernel != NULL));
    }
    const bool failed = memory.calls >= n;
    if (!failed) assert_int_equal(status, GDP_OK);
    if (status) {
        if (status != GDP_STATUS_OUT_OF_MEMORY)
            fail_msg("allocation %ld: %s: %s", n, gdp_status_name(status), gdp_last_error());
        assert_non_null(strstr(gdp_last_error(), "memory"));
    }
    if (context) { /* works afterwards */
        if (get_kernel(context, 16, &kernel)) fail_msg("allocation %ld: %s", n, gdp_last_error());
        assert_true(is_right(kernel, 16));
    }
    gdp_context_destroy(context);
    assert_int_equal(memory.live, 0);
    assert_int_equal(count_files("temp", ""), 0);
    if (!warm) remove_tree(in_folder("cache"));
    return failed;
}

static void sweep(bool warm, gdp_target target)
{
    counter memory = { .fail_at = 0 };
    gdp_context_options options = host_options(NULL, &memory);
    gdp_context *context = NULL;
    const gdpi_kernel *kernel;
    assert_int_equal(gdp_context_create(&options, &context), GDP_OK);
    const long created = memory.calls;
    assert_int_equal(get_kernel(context, 16, &kernel), GDP_OK);
    const long all = memory.calls;
    gdp_context_destroy(context);
    assert_int_equal(memory.live, 0);
    if (!warm) remove_tree(in_folder("cache"));
    /* The generator alone makes thousands of allocations: of those in the middle some are taken. */
    const long step = (all - created) / 100 + 1;
    for (long n = 1; n <= all + 4;) {
        run_with_failure(n, warm, target);
        n += n < created + 20 || n > all - 30 ? 1 : step;
    }
    assert_false(run_with_failure(1000000000, warm, target));
}

static void test_memory_cold(void **state)
{
    (void)state;
    sweep(false, GDP_TARGET_HOST);
}

static void test_memory_warm(void **state)
{
    (void)state;
    sweep(true, GDP_TARGET_HOST);
}

/* ---- threads ---- */

typedef struct user {
    gdp_context *context;
    gdp_status status;
} user;

static void *get_in_thread(void *argument)
{
    user *at = argument;
    const gdpi_kernel *kernel;
    at->status = get_kernel(at->context, 16, &kernel);
    return NULL;
}

/* A build that runs out of memory while others wait for it. */
static void test_memory_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    for (long n = 1; n < 400; n += 13) {
        counter memory = { .fail_at = 0 };
        const gdp_context_options options = host_options(NULL, &memory);
        gdp_context *context = NULL;
        assert_int_equal(gdp_context_create(&options, &context), GDP_OK);
        memory.fail_at = memory.calls + n;
        pthread_t threads[THREADS];
        user users[THREADS];
        for (int i = 0; i < THREADS; i++) {
            users[i] = (user){ context, GDP_OK };
            assert_int_equal(pthread_create(&threads[i], NULL, get_in_thread, &users[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            if (users[i].status) assert_int_equal(users[i].status, GDP_STATUS_OUT_OF_MEMORY);
        }
        const gdpi_kernel *kernel;
        memory.fail_at = 0;
        assert_int_equal(get_kernel(context, 16, &kernel), GDP_OK);
        gdp_context_destroy(context);
        assert_int_equal(memory.live, 0);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_failing_disk),
        TEST(test_memory_cold),
        TEST(test_memory_warm),
        TEST(test_memory_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
