/* The CUDA target's plumbing: device, memory, time, modules, launches and in-process ranks, with a
 * small kernel of its own. Skipped where there is neither a device nor one that is emulated. */
#include "kernel_fixture.h"

#include "libraries.h"

static void put_cuda_templates(const char *shared)
{
    char text[1024];
    mkdir(in_folder("templates/cuda"), 0700);
    put_text("templates/cuda/space.lua",
             "return { defaults = function(p, r)\n"
             "    return { arch = r.arch, chunk = 16, segment = 1, block_v = p.dim_v, stages = 2,\n"
             "      wave = 1 } end,\n"
             "  areas = function() return { gates = 4 } end, constraints = {} }\n",
             0600);
    snprintf(text, sizeof text,
             "%% include \"intrinsics.ct\"\n"
             "${structs()}\n"
             "%% meta.threads = 64\n%% meta.shared = %s\n%% meta.block = 24\n"
             "KERNEL(64, 1) gdp_${kernel}(ARGS args)\n"
             "{\n"
             "    if (threadIdx.x == 63) args.counts[blockIdx.x] = blockIdx.x * 1000 + ${K};\n"
             "}\n",
             shared);
    put_text("templates/cuda/index.ct", text, 0600);
    /* An emulated device has these as C++. */
    if (getenv("GDP_EMULATED"))
        (void)!symlink(GDP_SOURCE_DIR "/tests/emulator/cuda/intrinsics.ct",
                       in_folder("templates/cuda/intrinsics.ct"));
}

/* NULL: no CUDA here. */
static gdp_context *open_cuda(const char *shared)
{
    gdp_context *context = NULL;
    put_cuda_templates(shared);
    memset(&heard, 0, sizeof heard);
    gdp_context_options options = host_options(&heard, NULL);
    options.target = GDP_TARGET_CUDA;
    const gdp_status status = gdp_context_create(&options, &context);
    if (status == GDP_STATUS_NOT_AVAILABLE) {
        printf("skipped: %s\n", gdp_last_error());
        skip();
    }
    if (status) fail_msg("%s", gdp_last_error());
    return context;
}

/* Whatever a call did, this thread has no current context left over from it. */
static void expect_none_current(const gdp_context *context)
{
    gdpi_cu_device device;
    assert_int_not_equal(context->device->api.cuCtxGetDevice(&device), GDPI_CU_SUCCESS);
}

static void must(gdp_status status)
{
    if (status) fail_msg("%s: %s", gdp_status_name(status), gdp_last_error());
}

static void refused(gdp_status got, gdp_status status, const char *part)
{
    if (got != status || !strstr(gdp_last_error(), part))
        fail_msg("%s, not %s with '%s': %s", gdp_status_name(got), gdp_status_name(status), part,
                 gdp_last_error());
}

static void test_device(void **state)
{
    (void)state;
    gdp_context *context = open_cuda("0");
    gdp_context_info info;
    must(gdp_context_get_info(context, &info));
    printf("%s, sm_%d, %d processors, %d bytes of shared memory a block\n", info.device, info.arch,
           info.processors, context->device->shared_per_block);
    assert_int_equal(info.target, GDP_TARGET_CUDA);
    assert_true(info.arch >= 80 && info.processors > 0 && info.device[0]);
    assert_true(context->device->shared_per_block >= 96 * 1024);
    expect_none_current(context);
    gdp_context_destroy(context);
    gdp_context_options options = host_options(&heard, NULL);
    options.target = GDP_TARGET_AUTO;
    options.device = 1000;
    refused(gdp_context_create(&options, &context), GDP_STATUS_INVALID_ARGUMENT, "device 999");
    options.device = 1;
    must(gdp_context_create(&options, &context));
    assert_int_equal(context->target, GDP_TARGET_CUDA);
    gdp_context_destroy(context);
    setenv("GDP_NVRTC", in_folder("none.so"), 1);
    options.target = GDP_TARGET_CUDA;
    refused(gdp_context_create(&options, &context), GDP_STATUS_NOT_AVAILABLE, "none.so");
    options.target = GDP_TARGET_AUTO;
    must(gdp_context_create(&options, &context));
    assert_int_equal(context->target, GDP_TARGET_HOST);
    assert_int_equal(heard.warnings, 1);
    assert_non_null(strstr(heard.last, "none.so"));
    gdp_context_destroy(context);
    unsetenv("GDP_NVRTC");
}

static void test_memory(void **state)
{
    (void)state;
    gdp_context *context = open_cuda("0");
    enum { SIZE = 10000 };
    unsigned char *to = malloc(SIZE), *from = malloc(SIZE);
    void *one, *two;
    for (int i = 0; i < SIZE; i++) from[i] = (unsigned char)(i * 7);
    must(gdp_memory_allocate(context, SIZE, &one));
    must(gdp_memory_allocate(context, SIZE, &two));
    assert_int_equal((uintptr_t)one % 256, 0);
    must(gdp_memory_copy(context, one, from, SIZE));
    must(gdp_memory_fill(context, two, 0x5a, SIZE));
    must(gdp_memory_copy(context, (char *)two + 100, (char *)one + 100, SIZE - 200));
    must(gdp_memory_copy(context, to, two, SIZE));
    assert_memory_equal(to + 100, from + 100, SIZE - 200);
    assert_true(to[99] == 0x5a && to[SIZE - 100] == 0x5a);
    gdp_memory_release(context, one);
    gdp_memory_release(context, two);
    refused(gdp_memory_allocate(context, (size_t)1 << 60, &one), GDP_STATUS_OUT_OF_MEMORY,
            "device");
    assert_null(one);
    expect_none_current(context);

    gdp_timer *timer;
    double time = -1;
    must(gdp_timer_create(context, &timer));
    must(gdp_timer_start(timer, NULL));
    must(gdp_timer_stop(timer, NULL));
    must(gdp_timer_read(timer, &time));
    assert_true(time >= 0 && time < 60);
    gdp_timer_destroy(timer);
    must(gdp_stream_synchronize(context, NULL));
    expect_none_current(context);
    gdp_context_destroy(context);
    free(to);
    free(from);
}

static gdp_config cuda_config(const gdp_context *context, const gdp_problem *problem)
{
    return (gdp_config){ .target = GDP_TARGET_CUDA,
                         .arch = gdpi_cuda_arch(context->device),
                         .chunk = 16,
                         .block_v = problem->dim_v,
                         .stages = 2 };
}

static void launch_and_check(gdp_context *context)
{
    enum { TASKS = 50 };
    const gdp_problem problem = gdp_problem_default();
    const gdp_config config = cuda_config(context, &problem);
    const gdpi_kernel *kernel;
    int64_t counts[TASKS];
    void *memory;
    must(gdpi_kernel_get(context, GDPI_KERNEL_INDEX, &problem, &config, &kernel));
    assert_int_equal(kernel->notes.block, 24);
    must(gdp_memory_allocate(context, sizeof counts, &memory));
    gdp_args args;
    memset(&args, 0, sizeof args);
    args.counts = memory;
    must(gdpi_cuda_launch(context, kernel, 0, NULL, &args));
    must(gdpi_cuda_launch(context, kernel, TASKS, NULL, &args));
    memset(&args, 0, sizeof args); /* it was taken by value */
    refused(gdpi_cuda_launch(context, kernel, (int64_t)1 << 31, NULL, &args),
            GDP_STATUS_UNSUPPORTED, "2147483648 blocks");
    must(gdp_memory_copy(context, counts, memory, sizeof counts));
    for (int i = 0; i < TASKS; i++) assert_int_equal(counts[i], i * 1000 + 128);
    assert_int_equal(counters_of(context).launches, 1);
    gdp_memory_release(context, memory);
    expect_none_current(context);
}

static void test_launch(void **state)
{
    (void)state;
    gdp_context *context = open_cuda("60 * 1024");
    launch_and_check(context);
    assert_int_equal(counters_of(context).compilations, 1);
    gdp_context_destroy(context);
    context = open_cuda("60 * 1024");
    launch_and_check(context);
    assert_int_equal(counters_of(context).compilations, 0);
    assert_int_equal(counters_of(context).cache_hits, 1);
    gdp_context_destroy(context);
}

static void test_refused_kernels(void **state)
{
    (void)state;
    const gdp_problem problem = gdp_problem_default();
    const gdpi_kernel *kernel;
    gdp_context *context = open_cuda("1024 * 1024");
    gdp_config config = cuda_config(context, &problem);
    refused(gdpi_kernel_get(context, GDPI_KERNEL_INDEX, &problem, &config, &kernel),
            GDP_STATUS_UNSUPPORTED, "1048576 bytes of shared memory");
    put_text("templates/cuda/index.ct", "% meta.threads = 64\n\nnonsense;\n", 0600);
    refused(gdpi_kernel_get(context, GDPI_KERNEL_INDEX, &problem, &config, &kernel),
            GDP_STATUS_COMPILE_FAILED, "cuda/index.ct");
    assert_non_null(strstr(gdp_last_error(), "nonsense"));
    gdp_plan *plan;
    config.arch = 123;
    refused(gdp_plan_create(context, &problem, &config, 0, &plan), GDP_STATUS_INVALID_ARGUMENT,
            "arch is 123");
    expect_none_current(context);
    gdp_context_destroy(context);
}

/* ---- ranks ---- */

enum { RANKS = 3, WORDS = 1000 };

typedef struct member {
    gdp_context *context;
    gdp_comm *comm;
    gdp_status status;
    int wrong;
} member;

static void *gather(void *argument)
{
    member *me = argument;
    const int rank = me->comm->rank;
    const size_t bytes = WORDS * sizeof(int32_t);
    int32_t words[RANKS * WORDS];
    void *mine = NULL, *all = NULL;
    for (int i = 0; i < WORDS; i++) words[i] = rank * 10000 + i;
    me->status = gdp_memory_allocate(me->context, bytes, &mine);
    if (!me->status) me->status = gdp_memory_allocate(me->context, RANKS * bytes, &all);
    if (!me->status) me->status = gdp_memory_copy(me->context, mine, words, bytes);
    if (!me->status) me->status = me->comm->all_gather(me->comm->user, mine, all, bytes, NULL);
    if (!me->status) me->status = gdp_memory_copy(me->context, words, all, sizeof words);
    for (int i = 0; i < RANKS * WORDS; i++) me->wrong += words[i] != i / WORDS * 10000 + i % WORDS;
    gdp_memory_release(me->context, mine);
    gdp_memory_release(me->context, all);
    return NULL;
}

static void test_ranks(void **state)
{
    (void)state;
    gdp_context *context = open_cuda("0");
    gdp_comm comms[RANKS];
    member members[RANKS];
    pthread_t threads[RANKS];
    must(gdp_local_comms_create(context, RANKS, 20000, comms));
    for (int r = 0; r < RANKS; r++) {
        members[r] = (member){ .context = context, .comm = &comms[r] };
        assert_int_equal(pthread_create(&threads[r], NULL, gather, &members[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(members[r].status, GDP_OK);
        assert_int_equal(members[r].wrong, 0);
    }
    gdp_local_comms_destroy(context, comms);
    gdp_context_destroy(context);
}

/* ---- tensors, which need no device ---- */

static void test_alignment(void **state)
{
    (void)state;
    _Alignas(16) static char data[32];
    gdp_problem problem = gdp_problem_default();
    problem.batch = 1, problem.tokens = 10, problem.heads = 2, problem.value_heads = 4;
    gdp_args args;
    memset(&args, 0, sizeof args);
    assert_int_equal(gdpi_check_alignment(GDP_TARGET_CUDA, &problem, &args), GDP_OK);
    args.q = (gdp_view){ data, 3, 256, 128 }; /* one batch row: its stride does not matter */
    args.dv = (gdp_view){ data, 3, 520, 8 };
    assert_int_equal(gdpi_check_alignment(GDP_TARGET_CUDA, &problem, &args), GDP_OK);
    args.dv.row = 516;
    refused(gdpi_check_alignment(GDP_TARGET_CUDA, &problem, &args), GDP_STATUS_INVALID_ARGUMENT,
            "dv: stride[1] is 516; accepted on CUDA is a multiple of 8");
    problem.dtype = GDP_DTYPE_F32;
    assert_int_equal(gdpi_check_alignment(GDP_TARGET_CUDA, &problem, &args), GDP_OK);
    args.q.data = data + 8;
    refused(gdpi_check_alignment(GDP_TARGET_CUDA, &problem, &args), GDP_STATUS_INVALID_ARGUMENT,
            "q: data is");
    problem.batch = 2, args.q.data = data;
    refused(gdpi_check_alignment(GDP_TARGET_CUDA, &problem, &args), GDP_STATUS_INVALID_ARGUMENT,
            "q: stride[0] is 3");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_alignment), TEST(test_device), TEST(test_memory),
        TEST(test_launch),    TEST(test_ranks),  TEST(test_refused_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
