/* A context: options and environment become a target, a pool, a cache and a compiler. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_SENTENCE = 2048 };

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

/* ---- making one ---- */

static const char *sought_compilers(const gdpi_request *wanted)
{
    return wanted->compiler ? wanted->compiler : "cc, clang, gcc on the PATH";
}

static gdp_status find_compiler(gdp_context *context, const gdpi_request *wanted)
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

/* Device, driver and compiler of the CUDA target, or why not. */
static gdp_status open_device(gdp_context *context, const gdpi_request *wanted, bool *has_device)
{
    const gdpi_nvrtc *nvrtc;
    GDPI_TRY(gdpi_cuda_create(&context->allocator, wanted->device, has_device, &context->device));
    gdp_status status = gdpi_nvrtc_get(context, &nvrtc);
    if (status == GDP_OK) status = gdpi_nvrtc_check_arch(nvrtc, gdpi_cuda_arch(context->device));
    if (status == GDP_OK) return GDP_OK;
    gdpi_cuda_destroy(&context->allocator, context->device);
    context->device = NULL;
    return status;
}

/* AUTO falls back from CUDA, and says why where there is a device that goes unused. */
static gdp_status try_device(gdp_context *context, const gdpi_request *wanted)
{
    bool has_device;
    const gdp_status status = open_device(context, wanted, &has_device);
    if (status == GDP_OK) return GDP_OK;
    if (wanted->target == GDP_TARGET_CUDA)
        return gdpi_fail(status, "target cuda: %s", gdp_last_error());
    if (status == GDP_STATUS_OUT_OF_MEMORY || status == GDP_STATUS_INVALID_ARGUMENT) return status;
    gdpi_log(context, has_device ? GDP_LOG_WARNING : GDP_LOG_INFO, "not running on CUDA: %s",
             gdp_last_error());
    return GDP_OK;
}

static gdp_status settle_without_device(gdp_context *context, const gdpi_request *wanted,
                                        gdp_status compiler)
{
    if (wanted->target == GDP_TARGET_HOST) return compiler;
    if (wanted->target == GDP_TARGET_REFERENCE) return GDP_OK;
    context->target = compiler == GDP_OK ? GDP_TARGET_HOST : GDP_TARGET_REFERENCE;
    if (compiler == GDP_OK) return GDP_OK;
    if (!context->compiler)
        gdpi_log(context, GDP_LOG_WARNING,
                 "no C compiler (looked for %s): running on the built-in reference, which is slow",
                 sought_compilers(wanted));
    else
        gdpi_log(context, GDP_LOG_WARNING, "%s: running on the built-in reference, which is slow",
                 gdp_last_error());
    return GDP_OK;
}

/* Looks for device and compilers, and decides what AUTO means. */
static gdp_status settle_target(gdp_context *context, const gdpi_request *wanted)
{
    context->target = wanted->target;
    if (wanted->target == GDP_TARGET_AUTO || wanted->target == GDP_TARGET_CUDA)
        GDPI_TRY(try_device(context, wanted));
    const gdp_status status = find_compiler(context, wanted);
    if (status == GDP_STATUS_OUT_OF_MEMORY) return status;
    if (!context->device) return settle_without_device(context, wanted, status);
    /* The host's compiler is for plans that ask for the host, if any. */
    context->target = GDP_TARGET_CUDA;
    return GDP_OK;
}

/* The driver is started only for those who may want it: a process that has done so cannot fork. */
static gdp_status describe_libraries(gdp_context *context, const gdpi_request *wanted)
{
    const gdpi_allocator *allocator = &context->allocator;
    context->nvrtc_places = gdpi_nvrtc_places(allocator);
    if (!context->nvrtc_places) return GDP_STATUS_OUT_OF_MEMORY;
    if (wanted->target == GDP_TARGET_AUTO || wanted->target == GDP_TARGET_CUDA)
        return gdpi_describe_libraries(allocator, context->nvrtc_places, &context->cuda,
                                       &context->nvrtc, &context->nccl);
    char **const places[] = { &context->cuda, &context->nvrtc, &context->nccl };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        *places[i] = gdpi_format_text(allocator, "not looked for (target %s)",
                                      gdpi_target_names[wanted->target]);
        if (!*places[i]) return GDP_STATUS_OUT_OF_MEMORY;
    }
    return GDP_OK;
}

static gdp_status make_cache(gdp_context *context, const gdpi_request *wanted)
{
    if (!wanted->cache_dir)
        gdpi_log(context, GDP_LOG_WARNING,
                 "kernel cache: HOME is not set, so kernels are not kept on disk; GDP_CACHE_DIR "
                 "names a directory for them");
    return gdpi_cache_create(context, wanted->cache_dir, &context->cache);
}

static gdp_status fill_context(gdp_context *context, const gdpi_request *wanted)
{
    const gdpi_allocator *allocator = &context->allocator;
    context->temp_dir = gdpi_copy_text(allocator, wanted->temp_dir);
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
    gdpi_request wanted;
    GDPI_TRY(gdpi_read_options(options, &wanted));
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
    gdpi_cuda_destroy(&context->allocator, context->device);
    void *const memory[] = { context->compiler,     context->compiler_version,
                             context->nvrtc_places, context->compiler_library,
                             context->processor,    context->template_dir,
                             context->cuda,         context->nvrtc,
                             context->nccl,         context->temp_dir,
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
        .arch = gdpi_cuda_arch(context->device),
        .processors = context->device ? gdpi_cuda_processors(context->device)
                                      : gdpi_pool_threads(context->pool),
        .device = gdpi_cuda_name(context->device),
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
