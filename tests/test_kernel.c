/* From a problem to a loaded kernel: the memo in a context, the disk cache between processes. The
 * compiler is mostly a script that counts its runs. */
/* timeout: 600 */
#include "kernel_fixture.h"

/* Makes the compiler "copy": it waits, and hands out a binary for K = 16 that is there already. */
static const char *make_copier(const char *wait)
{
    char action[600];
    gdp_context *context = open_context(make_compiler("saver", REAL));
    gdpi_blob binary;
    gdpi_text source;
    gdpi_notes notes;
    gdp_problem problem = gdp_problem_default();
    problem.dim_k = 16;
    const gdp_config config = host_config(&problem);
    assert_int_equal(gdpi_kernel_emit(context, "index", &problem, &config, &source, &notes),
                     GDP_OK);
    assert_int_equal(gdpi_host_compile(context, source.data, &binary), GDP_OK);
    FILE *file = fopen(in_folder("ready.so"), "we");
    assert_int_equal(fwrite(binary.data, 1, binary.size, file), binary.size);
    fclose(file);
    gdpi_release(&context->allocator, binary.data);
    gdp_release_text(context, source.data);
    gdp_context_destroy(context);
    unlink(in_folder("runs"));
    snprintf(
        action, sizeof action,
        "%s\nwhile [ $# -gt 1 ]; do [ \"$1\" = -o ] && cp %s/ready.so \"$2\"; shift; done\nexit 0",
        wait, folder);
    return make_compiler("copier", action);
}

/* ---- one context ---- */

static void test_memo(void **state)
{
    (void)state;
    gdp_context *context = open_context(make_compiler("cc", REAL));
    const gdpi_kernel *first, *again, *other;
    assert_int_equal(get_kernel(context, 16, &first), GDP_OK);
    assert_int_equal(get_kernel(context, 16, &again), GDP_OK);
    assert_int_equal(get_kernel(context, 32, &other), GDP_OK);
    assert_ptr_equal(first, again);
    assert_ptr_not_equal(first, other);
    assert_true(is_right(first, 16));
    assert_true(is_right(other, 32));
    assert_int_equal(counters_of(context).compilations, 2);
    assert_int_equal(counters_of(context).cache_hits, 0);
    assert_int_equal(count_files("temp", ""), 0);
    gdp_context_destroy(context);
}

/* Sizes that only a launch depends on share a kernel. */
static void test_launch_sizes_share(void **state)
{
    (void)state;
    gdp_context *context = open_context(make_compiler("cc", REAL));
    const gdpi_kernel *one, *two;
    gdp_problem problem = gdp_problem_default();
    gdp_config config = host_config(&problem);
    assert_int_equal(gdpi_kernel_get(context, GDPI_KERNEL_INDEX, &problem, &config, &one), GDP_OK);
    problem.tokens = 12345;
    problem.sequences = 3;
    config.segment = 8;
    assert_int_equal(gdpi_kernel_get(context, GDPI_KERNEL_INDEX, &problem, &config, &two), GDP_OK);
    assert_ptr_equal(one, two);
    gdp_context_destroy(context);
}

/* J9 and J5: a second context compiles nothing, whatever the clock says; another template does. */
static void test_second_context(void **state)
{
    (void)state;
    const char *compiler = make_compiler("cc", REAL);
    gdp_context *context = open_context(compiler);
    check_kernel(context, 16);
    gdp_context_destroy(context);
    DIR *dir = opendir(in_folder("cache"));
    for (struct dirent *entry; (entry = readdir(dir));) {
        const struct timespec times[2] = { { 4000000000, 0 }, { 4000000000, 0 } };
        if (entry->d_name[0] != '.') utimensat(dirfd(dir), entry->d_name, times, 0);
    }
    closedir(dir);
    const double start = seconds();
    context = open_context(compiler);
    check_kernel(context, 16);
    assert_true(seconds() - start < 1);
    assert_int_equal(counters_of(context).compilations, 0);
    assert_int_equal(counters_of(context).cache_hits, 1);
    gdp_context_destroy(context);
    assert_int_equal(count_bytes("runs"), 1);

    FILE *file = fopen(in_folder("templates/host/index.ct"), "ae");
    fputs("\n", file);
    fclose(file);
    context = open_context(compiler);
    check_kernel(context, 16);
    assert_int_equal(counters_of(context).compilations, 1);
    gdp_context_destroy(context);
}

/* Another version of the compiler does not get this one's binaries. */
static void test_another_compiler(void **state)
{
    (void)state;
    gdp_context *context = open_context(make_compiler("cc", REAL));
    check_kernel(context, 16);
    gdp_context_destroy(context);
    context = open_context(NULL);
    check_kernel(context, 16);
    assert_int_equal(counters_of(context).compilations, 1);
    gdp_context_destroy(context);
}

/* D6. */
static void *get_in_thread(void *context)
{
    const gdpi_kernel *kernel = NULL;
    if (get_kernel(context, 16, &kernel)) return NULL;
    return is_right(kernel, 16) ? (void *)(uintptr_t)kernel : NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    gdp_context *context = open_context(make_compiler("cc", "sleep 0.2\n" REAL));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_in_thread, context), 0);
    void *first = NULL;
    for (int i = 0; i < THREADS; i++) {
        void *kernel = NULL;
        pthread_join(threads[i], &kernel);
        assert_non_null(kernel);
        if (first) assert_ptr_equal(kernel, first);
        first = kernel;
    }
    assert_int_equal(counters_of(context).compilations, 1);
    assert_int_equal(count_bytes("runs"), 1);
    gdp_context_destroy(context);
}

/* ---- damage ---- */

static void test_damaged_entry(void **state)
{
    (void)state;
    const char *compiler = make_compiler("cc", REAL);
    for (int kind = 0; kind < 3; kind++) {
        gdp_context *context = open_context(compiler);
        check_kernel(context, 16);
        assert_int_equal(counters_of(context).compilations, 1);
        gdp_context_destroy(context);
        DIR *dir = opendir(in_folder("cache"));
        for (struct dirent *entry; (entry = readdir(dir));) {
            const size_t length = strlen(entry->d_name);
            if (length != 36 || strcmp(entry->d_name + 32, ".bin")) continue;
            if (kind < 2) {
                char path[300];
                snprintf(path, sizeof path, "%.99s/%.99s", in_folder("cache"), entry->d_name);
                struct stat found;
                assert_int_equal(stat(path, &found), 0);
                assert_int_equal(truncate(path, kind ? found.st_size / 2 : 0), 0);
                continue;
            }
            /* A whole entry that no loader takes: the key is right, the binary is not. */
            gdpi_key key = { { 0 } };
            memcpy(key.hex, entry->d_name, 32);
            context = open_context(compiler);
            gdpi_blob bad = { (char[]){ "no shared object" }, 16 };
            gdpi_cache_publish(context->cache, &key, "", &bad);
            gdp_context_destroy(context);
        }
        closedir(dir);
    }
    gdp_context *context = open_context(compiler);
    check_kernel(context, 16);
    assert_int_equal(counters_of(context).compilations, 1);
    assert_int_equal(heard.warnings, 0);
    gdp_context_destroy(context);
    context = open_context(compiler); /* replaced, so that the next one finds it */
    check_kernel(context, 16);
    assert_int_equal(counters_of(context).compilations, 0);
    gdp_context_destroy(context);
}

/* ---- many processes ---- */

/* J1. */
static void test_processes(void **state)
{
    (void)state;
    enum { PROCESSES = 16, ROUNDS = 20 };
    const char *copier = make_copier("sleep 0.05"), *real = make_compiler("cc", REAL);
    for (int round = 0; round <= ROUNDS; round++) {
        pid_t children[PROCESSES];
        unlink(in_folder("runs"));
        for (int i = 0; i < PROCESSES; i++) children[i] = fork_user(round < ROUNDS ? copier : real);
        await(children, PROCESSES);
        assert_int_equal(count_bytes("runs"), 1);
        assert_int_equal(count_files("cache", ".bin"), 1);
        assert_int_equal(count_files("cache", "tmp"), 0);
        remove_tree(in_folder("cache"));
    }
    assert_int_equal(count_files("temp", ""), 0);
}

/* J4. */
static void test_killed_builder(void **state)
{
    (void)state;
    enum { WAITERS = 4 };
    /* The first run takes long, so that only its death lets the others go on. */
    const char *compiler = make_copier("");
    char action[600];
    snprintf(action, sizeof action,
             "[ -e %s/second ] || { : >%s/second; exec sleep 60; }\nexec %s \"$@\"", folder, folder,
             compiler);
    compiler = make_compiler("slow", action);
    const pid_t builder = fork_user(compiler);
    while (count_bytes("runs") < 1) wait_milliseconds(5);
    pid_t children[WAITERS];
    for (int i = 0; i < WAITERS; i++) children[i] = fork_user(compiler);
    wait_milliseconds(300);
    assert_int_equal(count_bytes("runs"), 1);
    const double start = seconds();
    kill(builder, SIGKILL);
    waitpid(builder, NULL, 0);
    await(children, WAITERS);
    assert_true(seconds() - start < 10);
    assert_int_equal(count_bytes("runs"), 3); /* the killed one, and slow and copier once more */
    assert_int_equal(count_files("cache", ".bin"), 1);
}

/* A kernel of the library itself. */
static void test_real_template(void **state)
{
    (void)state;
    gdp_context *context = NULL;
    gdp_context_options options = host_options(&heard, NULL);
    options.template_dir = NULL;
    assert_int_equal(gdp_context_create(&options, &context), GDP_OK);
    gdp_problem problem = gdp_problem_default();
    problem.dim_k = problem.dim_v = 16;
    const gdp_config request = { .target = GDP_TARGET_HOST };
    gdp_config config;
    gdpi_areas areas;
    assert_int_equal(gdpi_choose_config(context, &problem, &request, &config, &areas), GDP_OK);
    assert_true(areas.bytes[GDPI_AREA_GATES] > 0);
    assert_int_equal(areas.bytes[GDPI_AREA_REACH] % 4, 0);
    const gdpi_kernel *kernel;
    if (gdpi_kernel_get(context, GDPI_KERNEL_FORWARD_SCAN, &problem, &config, &kernel))
        fail_msg("%s", gdp_last_error());
    assert_non_null(kernel->function);
    gdp_context_destroy(context);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_memo),           TEST(test_launch_sizes_share),
        TEST(test_second_context), TEST(test_another_compiler),
        TEST(test_threads),        TEST(test_damaged_entry),
        TEST(test_processes),      TEST(test_killed_builder),
        TEST(test_real_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
