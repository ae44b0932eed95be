/* A context: options and environment become a target, a pool, a cache and a compiler. */
#include "internal.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SENTENCE = 2048, MAX_THREADS = 4096 };

/* ---- logging, memory ---- */

void gdpi_log(gdp_context *context, gdp_log_level level, const char *format, ...)
{
    if (!context->log) return;
    char sentence[MAX_SENTENCE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    for (char *at = sentence; *at; at++)
        if (*at == '\n') *at = ' ';
    context->log(context->log_user, level, sentence);
}

static void *allocate_by_malloc(void *user, size_t bytes)
{
    (void)user;
    return malloc(bytes);
}

static void release_by_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

/* ---- options and environment ---- */

/* What was asked for, after the environment; its texts are the caller's or the environment's. */
typedef struct request {
    gdp_target target;
    int threads;
    const char *compiler, *cache_dir, *template_dir;
    bool check_values;
    char cache_path[4096];
} request;

/* An empty variable counts as unset. */
static const char *get_variable(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static gdp_status choose_target(const gdp_context_options *options, request *wanted)
{
    wanted->target = options->target;
    if (options->target < GDP_TARGET_AUTO || options->target > GDP_TARGET_REFERENCE)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "options.target=%d: must be GDP_TARGET_AUTO, _HOST, _CUDA or _REFERENCE",
                         (int)options->target);
    const char *value = get_variable("GDP_TARGET");
    if (options->target != GDP_TARGET_AUTO || !value) return GDP_OK;
    for (int i = 0; i <= GDP_TARGET_REFERENCE; i++) {
        if (strcmp(value, gdpi_target_names[i])) continue;
        wanted->target = (gdp_target)i;
        return GDP_OK;
    }
    return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                     "GDP_TARGET=%s: must be one of auto, host, cuda, reference", value);
}

static int count_processors(void)
{
    /* Larger machines than a cpu_set_t covers need a larger set. */
    for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)most);
        if (!set) return 1;
        const size_t size = CPU_ALLOC_SIZE((size_t)most);
        const int failed = sched_getaffinity(0, size, set) ? errno : 0;
        const int count = failed ? 1 : CPU_COUNT_S(size, set);
        CPU_FREE(set);
        if (failed != EINVAL) return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
    }
    return 1;
}

static gdp_status choose_threads(const gdp_context_options *options, request *wanted)
{
    wanted->threads = options->threads;
    if (options->threads < 0 || options->threads > MAX_THREADS)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "options.threads=%d: must be from 1 to %d, or 0 for one a core",
                         options->threads, MAX_THREADS);
    if (options->threads) return GDP_OK;
    const char *value = get_variable("GDP_THREADS");
    if (!value) {
        wanted->threads = count_processors();
        return GDP_OK;
    }
    char *end = NULL;
    const long number = strspn(value, "0123456789") ? strtol(value, &end, 10) : 0;
    if (number < 1 || number > MAX_THREADS || *end)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "GDP_THREADS=%s: must be an integer from 1 to %d", value, MAX_THREADS);
    wanted->threads = (int)number;
    return GDP_OK;
}

static gdp_status choose_checks(const gdp_context_options *options, request *wanted)
{
    wanted->check_values = options->check_values != 0;
    const char *value = get_variable("GDP_CHECKED");
    if (wanted->check_values || !value) return GDP_OK;
    if (strcmp(value, "0") && strcmp(value, "1"))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "GDP_CHECKED=%s: must be 0 or 1", value);
    wanted->check_values = value[0] == '1';
    return GDP_OK;
}

/* cache_dir stays NULL where no place is known; "" means that none is wanted. */
static gdp_status choose_cache_dir(const gdp_context_options *options, request *wanted)
{
    wanted->cache_dir = options->cache_dir ? options->cache_dir : getenv("GDP_CACHE_DIR");
    if (wanted->cache_dir) return GDP_OK;
    /* The base directory specification has relative paths ignored. */
    const char *base = get_variable("XDG_CACHE_HOME"), *below = "gdp";
    if (!base || base[0] != '/') base = get_variable("HOME"), below = ".cache/gdp";
    if (!base || base[0] != '/') return GDP_OK;
    const int length =
        snprintf(wanted->cache_path, sizeof wanted->cache_path, "%s/%s", base, below);
    if (length >= (int)sizeof wanted->cache_path)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "the cache's directory %s/%s is longer than %zu bytes (GDP_CACHE_DIR "
                         "names another one)",
                         base, below, sizeof wanted->cache_path - 1);
    wanted->cache_dir = wanted->cache_path;
    return GDP_OK;
}

static gdp_status check_options(const gdp_context_options *options)
{
    if (options->size != sizeof *options)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "options.size=%zu: must be sizeof(gdp_context_options), %zu in libgdp %s; "
                         "start from GDP_CONTEXT_OPTIONS_INIT",
                         options->size, sizeof *options, gdp_version());
    if (!options->allocate != !options->release)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "options.allocate and options.release: both or neither must be given");
    return GDP_OK;
}

static gdp_status read_request(const gdp_context_options *options, request *wanted)
{
    GDPI_TRY(choose_target(options, wanted));
    GDPI_TRY(choose_threads(options, wanted));
    GDPI_TRY(choose_checks(options, wanted));
    GDPI_TRY(choose_cache_dir(options, wanted));
    wanted->template_dir =
        options->template_dir ? options->template_dir : get_variable("GDP_TEMPLATE_DIR");
    wanted->compiler = options->compiler ? options->compiler : get_variable("GDP_CC");
    if (!wanted->compiler) wanted->compiler = get_variable("CC");
    if (wanted->compiler && !wanted->compiler[0]) wanted->compiler = NULL;
    return GDP_OK;
}

/* ---- making one ---- */

static const char *sought_compilers(const request *wanted)
{
    return wanted->compiler ? wanted->compiler : "cc, clang, gcc on the PATH";
}

static gdp_status find_compiler(gdp_context *context, const request *wanted)
{
    const gdpi_allocator *allocator = &context->allocator;
    GDPI_TRY(gdpi_host_find_compiler(allocator, wanted->compiler, &context->compiler));
    if (!context->compiler)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "no C compiler (looked for %s); GDP_CC names one, in one word without "
                         "options",
                         sought_compilers(wanted));
    return gdpi_host_compiler_version(allocator, context->compiler, context->environment,
                                      &context->compiler_version);
}

/* Looks for the compiler, and decides what AUTO means. */
static gdp_status settle_target(gdp_context *context, const request *wanted)
{
    context->target = wanted->target;
    if (wanted->target == GDP_TARGET_CUDA)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "target cuda: this build has no CUDA target (CUDA here: %s)",
                         context->cuda);
    const gdp_status status = find_compiler(context, wanted);
    if (status == GDP_STATUS_OUT_OF_MEMORY) return status;
    if (wanted->target == GDP_TARGET_HOST) return status;
    if (wanted->target == GDP_TARGET_REFERENCE) return GDP_OK;
    context->target = status == GDP_OK ? GDP_TARGET_HOST : GDP_TARGET_REFERENCE;
    if (status == GDP_OK) return GDP_OK;
    if (!context->compiler)
        gdpi_log(context, GDP_LOG_WARNING,
                 "no C compiler (looked for %s): running on the built-in reference, which is slow",
                 sought_compilers(wanted));
    else
        gdpi_log(context, GDP_LOG_WARNING, "%s: running on the built-in reference, which is slow",
                 gdp_last_error());
    return GDP_OK;
}

/* The driver is started only for those who may want it: a process that has done so cannot fork. */
static gdp_status describe_libraries(gdp_context *context, const request *wanted)
{
    const gdpi_allocator *allocator = &context->allocator;
    if (wanted->target == GDP_TARGET_AUTO || wanted->target == GDP_TARGET_CUDA)
        return gdpi_describe_libraries(allocator, &context->cuda, &context->nvrtc, &context->nccl);
    char **const places[] = { &context->cuda, &context->nvrtc, &context->nccl };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        *places[i] = gdpi_format_text(allocator, "not looked for (target %s)",
                                      gdpi_target_names[wanted->target]);
        if (!*places[i]) return GDP_STATUS_OUT_OF_MEMORY;
    }
    return GDP_OK;
}

static gdp_status make_cache(gdp_context *context, const request *wanted)
{
    if (!wanted->cache_dir)
        gdpi_log(context, GDP_LOG_WARNING,
                 "kernel cache: HOME is not set, so kernels are not kept on disk; GDP_CACHE_DIR "
                 "names a directory for them");
    return gdpi_cache_create(context, wanted->cache_dir, &context->cache);
}

static gdp_status fill_context(gdp_context *context, const request *wanted)
{
    const gdpi_allocator *allocator = &context->allocator;
    const char *temp_dir = get_variable("TMPDIR");
    context->temp_dir = gdpi_copy_text(allocator, temp_dir ? temp_dir : "/tmp");
    if (!context->temp_dir) return GDP_STATUS_OUT_OF_MEMORY;
    GDPI_TRY(gdpi_host_environment(allocator, &context->environment));
    if (wanted->template_dir) {
        context->template_dir = gdpi_copy_text(allocator, wanted->template_dir);
        if (!context->template_dir) return GDP_STATUS_OUT_OF_MEMORY;
    }
    context->processor = gdpi_host_processor(allocator);
    if (!context->processor) return GDP_STATUS_OUT_OF_MEMORY;
    GDPI_TRY(describe_libraries(context, wanted));
    GDPI_TRY(settle_target(context, wanted));
    GDPI_TRY(make_cache(context, wanted));
    return gdpi_pool_create(allocator, wanted->threads, &context->pool);
}

static gdp_context *allocate_context(const gdp_context_options *options)
{
    gdpi_allocator allocator = { allocate_by_malloc, release_by_free, NULL };
    if (options->allocate)
        allocator =
            (gdpi_allocator){ options->allocate, options->release, options->allocator_user };
    gdp_context *context = gdpi_allocate_zeroed(&allocator, sizeof *context);
    if (!context) return NULL;
    context->allocator = allocator;
    context->log = options->log;
    context->log_user = options->log_user;
    if (pthread_mutex_init(&context->mutex, NULL) == 0) {
        if (pthread_cond_init(&context->kernel_built, NULL) == 0) return context;
        pthread_mutex_destroy(&context->mutex);
    }
    gdpi_fail(GDP_STATUS_OUT_OF_MEMORY, "a mutex or condition could not be made");
    gdpi_release(&allocator, context);
    return NULL;
}

gdp_status gdp_context_create(const gdp_context_options *options, gdp_context **context)
{
    static const gdp_context_options defaults = GDP_CONTEXT_OPTIONS_INIT;
    if (!context) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "context is NULL");
    *context = NULL;
    if (!options) options = &defaults;
    request wanted = { .target = GDP_TARGET_AUTO };
    GDPI_TRY(check_options(options));
    GDPI_TRY(read_request(options, &wanted));
    gdp_context *made = allocate_context(options);
    if (!made) return GDP_STATUS_OUT_OF_MEMORY;
    made->check_values = wanted.check_values;
    const gdp_status status = fill_context(made, &wanted);
    if (status)
        gdp_context_destroy(made);
    else
        *context = made;
    return status;
}

void gdp_context_destroy(gdp_context *context)
{
    if (!context) return;
    gdpi_backends_destroy(context);
    gdpi_kernels_destroy(context);
    gdpi_cache_destroy(context->cache);
    if (context->pool) gdpi_pool_destroy(context->pool);
    void *const memory[] = { context->compiler,   context->compiler_version,
                             context->processor,  context->template_dir,
                             context->cuda,       context->nvrtc,
                             context->nccl,       context->temp_dir,
                             context->environment };
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        gdpi_release(&context->allocator, memory[i]);
    pthread_cond_destroy(&context->kernel_built);
    pthread_mutex_destroy(&context->mutex);
    const gdpi_allocator allocator = context->allocator;
    gdpi_release(&allocator, context);
}

/* ---- asking it ---- */

gdp_status gdp_context_get_info(const gdp_context *context, gdp_context_info *info)
{
    if (!context || !info)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s is NULL", context ? "info" : "context");
    *info = (gdp_context_info){
        .target = context->target,
        .threads = gdpi_pool_threads(context->pool),
        .processor = context->processor,
        .compiler = context->compiler,
        .cache_dir = gdpi_cache_dir(context->cache),
        .template_dir = context->template_dir,
        .cuda = context->cuda,
        .nvrtc = context->nvrtc,
        .nccl = context->nccl,
    };
    return GDP_OK;
}

gdp_status gdp_context_get_counters(const gdp_context *context, gdp_context_counters *counters)
{
    if (!context || !counters)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s is NULL",
                         context ? "counters" : "context");
    *counters = (gdp_context_counters){
        .compilations = atomic_load(&context->compilations),
        .cache_hits = atomic_load(&context->cache_hits),
        .launches = atomic_load(&context->launches),
    };
    return GDP_OK;
}

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

gdp_status gdp_emit_source(gdp_context *context, const char *kernel, const gdp_problem *problem,
                           const gdp_config *config, char **source)
{
    if (!context || !kernel || !problem || !source)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s is NULL",
                         !context   ? "context"
                         : !kernel  ? "kernel"
                         : !problem ? "problem"
                                    : "source");
    *source = NULL;
    if (!is_kernel(kernel))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "kernel '%s' is unknown; gdp_kernel_name lists those that are", kernel);
    GDPI_TRY(gdp_problem_check(problem));
    gdp_config complete;
    GDPI_TRY(gdpi_choose_config(context, problem, config, &complete));
    gdpi_text text = { NULL, 0 };
    size_t scratch;
    GDPI_TRY(gdpi_kernel_emit(context, kernel, problem, &complete, &text, &scratch));
    *source = text.data;
    return GDP_OK;
}

void gdp_release_text(gdp_context *context, char *text)
{
    if (context) gdpi_release(&context->allocator, text);
}
