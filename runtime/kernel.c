/* From a kernel's name, problem and configuration to its loaded function: emit, look into the
 * cache, compile, publish, load. One thread builds, those that want the same kernel wait for it. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FIELDS_TEXT = 1024, MAX_IDENTITY = 1280, MAX_SYMBOL = 64, MAX_ERROR = 4096 };

/* ---- what differs between targets ---- */

enum { KEY_PARTS = 4, MAX_ARCH = 16 };

/* One kernel on its way from source to binary. */
typedef struct build {
    gdp_context *context;
    const struct steps *steps;
    int64_t arch;
    const char *source;
    char symbol[MAX_SYMBOL];
    const gdpi_nvrtc *nvrtc; /* of the CUDA target */
    char arch_text[MAX_ARCH];
    const char *parts[KEY_PARTS]; /* what the binary depends on beside source and symbol */
    gdpi_key key;
} build;

typedef struct steps {
    gdp_target target;
    /** Fills at->parts and whatever compile needs beside. */
    gdp_status (*prepare)(build *at);
    gdp_status (*compile)(const build *at, gdpi_blob *binary);
    gdp_status (*load)(gdp_context *context, const gdpi_blob *binary, const char *symbol,
                       gdpi_kernel *kernel);
    void (*unload)(gdp_context *context, gdpi_kernel *kernel);
} steps;

static gdp_status prepare_for_host(build *at)
{
    const gdp_context *context = at->context;
    at->parts[0] = "host";
    at->parts[1] = gdpi_host_compiler_options();
    at->parts[2] = context->compiler_version ? context->compiler_version : "";
    at->parts[3] = context->processor;
    return GDP_OK;
}

static gdp_status compile_for_host(const build *at, gdpi_blob *binary)
{
    if (!at->context->compiler || !at->context->compiler_version)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "no C compiler to compile a kernel with (GDP_CC names one)");
    return gdpi_host_compile(at->context, at->source, binary);
}

static gdp_status load_on_host(gdp_context *context, const gdpi_blob *binary, const char *symbol,
                               gdpi_kernel *kernel)
{
    (void)context;
    return gdpi_host_load(binary, symbol, &kernel->handle, &kernel->function);
}

static void unload_from_host(gdp_context *context, gdpi_kernel *kernel)
{
    (void)context;
    gdpi_host_unload(kernel->handle);
    kernel->handle = NULL;
}

static gdp_status prepare_for_cuda(build *at)
{
    GDPI_TRY(gdpi_nvrtc_get(at->context, &at->nvrtc));
    GDPI_TRY(gdpi_nvrtc_check_arch(at->nvrtc, at->arch));
    snprintf(at->arch_text, sizeof at->arch_text, "sm_%d", (int)at->arch);
    at->parts[0] = "cuda";
    at->parts[1] = gdpi_nvrtc_options();
    at->parts[2] = gdpi_nvrtc_version(at->nvrtc);
    at->parts[3] = at->arch_text;
    return GDP_OK;
}

static gdp_status compile_for_cuda(const build *at, gdpi_blob *binary)
{
    return gdpi_nvrtc_compile(at->context, at->nvrtc, at->symbol, at->source, at->arch, binary);
}

static const steps TARGETS[] = {
    { GDP_TARGET_HOST, prepare_for_host, compile_for_host, load_on_host, unload_from_host },
    { GDP_TARGET_CUDA, prepare_for_cuda, compile_for_cuda, gdpi_cuda_load, gdpi_cuda_unload },
};

static const steps *find_steps(gdp_target target)
{
    for (size_t i = 0; i < sizeof TARGETS / sizeof *TARGETS; i++)
        if (TARGETS[i].target == target) return &TARGETS[i];
    return NULL;
}

/* ---- source ---- */

size_t gdpi_find_number(const char *text, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = text; (at = strstr(at, name)); at += length)
        if ((at == text || at[-1] == ' ') && at[length] == '=')
            return (size_t)strtoull(at + length + 1, NULL, 10);
    return 0;
}

gdp_status gdpi_kernel_emit(gdp_context *context, const char *name, const gdp_problem *problem,
                            const gdp_config *config, gdpi_text *source, gdpi_notes *notes)
{
    char problem_text[MAX_FIELDS_TEXT], config_text[MAX_FIELDS_TEXT], error[MAX_ERROR] = "";
    gdpi_fields_print(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, problem, problem_text,
                      sizeof problem_text);
    gdpi_fields_print(gdpi_config_fields, GDPI_CONFIG_FIELDS, config, config_text,
                      sizeof config_text);
    const gdpi_generator generator = {
        .allocate = context->allocator.allocate,
        .release = context->allocator.release,
        .user = context->allocator.user,
        .template_dir = context->template_dir,
    };
    gdpi_text text = { NULL, 0 };
    const int result = gdpi_generator_emit(&generator, name, problem_text, config_text, source,
                                           &text, error, sizeof error);
    if (result == GDPI_GENERATOR_OUT_OF_MEMORY)
        return gdpi_fail(GDP_STATUS_OUT_OF_MEMORY, "%s", error);
    if (result != GDPI_GENERATOR_OK) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s", error);
    *notes = (gdpi_notes){
        .scratch = gdpi_find_number(text.data, "scratch"),
        .block = (int64_t)gdpi_find_number(text.data, "block"),
        .threads = (int)gdpi_find_number(text.data, "threads"),
        .shared = gdpi_find_number(text.data, "shared"),
    };
    gdpi_release(&context->allocator, text.data);
    return GDP_OK;
}

/* ---- building: the same for a kernel that is loaded and one that is only looked at ---- */

/* Takes a binary, which stays the caller's. */
typedef gdp_status (*use_binary)(const build *at, const gdpi_blob *binary, void *user);

static gdp_status use_and_release(const build *at, gdpi_blob *binary, use_binary use, void *user)
{
    const gdp_status status = use(at, binary, user);
    gdpi_release(&at->context->allocator, binary->data);
    return status;
}

/* *found: a binary was there and could be used. One that cannot is worth a new compilation. */
static gdp_status use_cached(const build *at, use_binary use, void *user, bool *found)
{
    gdpi_blob binary;
    *found = false;
    GDPI_TRY(gdpi_cache_find(at->context->cache, &at->key, &binary));
    if (!binary.data) return GDP_OK;
    *found = use_and_release(at, &binary, use, user) == GDP_OK;
    if (*found) atomic_fetch_add(&at->context->cache_hits, 1);
    return GDP_OK;
}

static gdp_status use_compiled(const build *at, use_binary use, void *user, double *seconds)
{
    gdpi_blob binary = { NULL, 0 };
    struct timespec from, to;
    atomic_fetch_add(&at->context->compilations, 1);
    clock_gettime(CLOCK_MONOTONIC, &from);
    GDPI_TRY(at->steps->compile(at, &binary));
    clock_gettime(CLOCK_MONOTONIC, &to);
    *seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    gdpi_cache_publish(at->context->cache, &at->key, at->source, &binary);
    return use_and_release(at, &binary, use, user);
}

static gdp_status use_cached_or_compiled(const build *at, use_binary use, void *user,
                                         double *seconds)
{
    bool found;
    *seconds = 0;
    GDPI_TRY(use_cached(at, use, user, &found));
    if (found) return GDP_OK;
    /* Another process may be at it, and be done when the lock is ours. */
    gdpi_cache *cache = at->context->cache;
    const int lock = gdpi_cache_lock(cache, &at->key);
    gdp_status status = lock < 0 ? GDP_OK : use_cached(at, use, user, &found);
    if (status == GDP_OK && !found) status = use_compiled(at, use, user, seconds);
    gdpi_cache_unlock(cache, lock);
    return status;
}

static gdp_status build_kernel(gdp_context *context, const char *name, const gdp_problem *problem,
                               const gdp_config *config, gdpi_notes *notes, use_binary use,
                               void *user, double *seconds)
{
    build at = { .context = context, .steps = find_steps(config->target), .arch = config->arch };
    gdpi_text source = { NULL, 0 };
    GDPI_TRY(at.steps->prepare(&at));
    GDPI_TRY(gdpi_kernel_emit(context, name, problem, config, &source, notes));
    at.source = source.data;
    snprintf(at.symbol, sizeof at.symbol, "gdp_%s", name);
    const char *parts[KEY_PARTS + 2] = { source.data, at.symbol };
    memcpy(parts + 2, at.parts, sizeof at.parts);
    at.key = gdpi_make_key(parts, KEY_PARTS + 2);
    const gdp_status status = use_cached_or_compiled(&at, use, user, seconds);
    gdpi_release(&context->allocator, source.data);
    return status;
}

static gdp_status load_binary(const build *at, const gdpi_blob *binary, void *kernel)
{
    return at->steps->load(at->context, binary, at->symbol, kernel);
}

static gdp_status copy_binary(const build *at, const gdpi_blob *binary, void *copy)
{
    void *data = gdpi_allocate(&at->context->allocator, binary->size);
    if (!data) return GDP_STATUS_OUT_OF_MEMORY;
    memcpy(data, binary->data, binary->size);
    *(gdpi_blob *)copy = (gdpi_blob){ data, binary->size };
    return GDP_OK;
}

gdp_status gdpi_kernel_compile(gdp_context *context, const char *name, const gdp_problem *problem,
                               const gdp_config *config, gdpi_notes *notes, gdpi_blob *binary,
                               double *seconds)
{
    return build_kernel(context, name, problem, config, notes, copy_binary, binary, seconds);
}

/* ---- one build a context ---- */

static void release_kernel(gdp_context *context, gdpi_kernel *kernel)
{
    gdpi_release(&context->allocator, kernel->sentence);
    gdpi_release(&context->allocator, kernel->identity);
    gdpi_release(&context->allocator, kernel);
}

/* The functions below are called with the context's mutex held. */

static gdpi_kernel *find_kernel(gdp_context *context, const char *identity)
{
    gdpi_kernel *at = context->kernels;
    while (at && strcmp(at->identity, identity)) at = at->next;
    return at;
}

static gdpi_kernel *insert_kernel(gdp_context *context, const char *identity, gdp_target target)
{
    gdpi_kernel *kernel = gdpi_allocate_zeroed(&context->allocator, sizeof *kernel);
    if (!kernel) return NULL;
    kernel->identity = gdpi_copy_text(&context->allocator, identity);
    if (!kernel->identity) {
        gdpi_release(&context->allocator, kernel);
        return NULL;
    }
    kernel->state = GDPI_KERNEL_BUILDING;
    kernel->target = target;
    kernel->next = context->kernels;
    context->kernels = kernel;
    return kernel;
}

/* A failed kernel leaves the list, so that a later call tries again; who waits for it now still
 * gets this failure, and the last of them releases it. */
static void end_build(gdp_context *context, gdpi_kernel *kernel, gdp_status status)
{
    kernel->failure = status;
    kernel->state = status == GDP_OK ? GDPI_KERNEL_READY : GDPI_KERNEL_FAILED;
    pthread_cond_broadcast(&context->kernel_built);
    if (status == GDP_OK) return;
    gdpi_kernel **link = &context->kernels;
    while (*link != kernel) link = &(*link)->next;
    *link = kernel->next;
    if (kernel->waiters == 0) release_kernel(context, kernel);
}

static gdp_status wait_for_build(gdp_context *context, gdpi_kernel *kernel)
{
    kernel->waiters++;
    while (kernel->state == GDPI_KERNEL_BUILDING)
        pthread_cond_wait(&context->kernel_built, &context->mutex);
    kernel->waiters--;
    const gdp_status status = kernel->failure;
    if (status == GDP_OK) return GDP_OK;
    gdpi_fail(status, "%s",
              kernel->sentence ? kernel->sentence : "a kernel failed to build, and memory ran out");
    if (kernel->waiters == 0) release_kernel(context, kernel);
    return status;
}

/* Copies the sentence for those who wait. Its copy may fail, which must not replace it. */
static void note_failure(gdp_context *context, gdpi_kernel *kernel)
{
    const char *sentence = gdp_last_error();
    const size_t size = strlen(sentence) + 1;
    kernel->sentence = context->allocator.allocate(context->allocator.user, size);
    if (kernel->sentence) memcpy(kernel->sentence, sentence, size);
}

gdp_status gdpi_kernel_get(gdp_context *context, enum gdpi_kernel_id id, const gdp_problem *problem,
                           const gdp_config *config, const gdpi_kernel **kernel)
{
    const char *name = gdpi_kernels[id].name;
    *kernel = NULL;
    if (!find_steps(config->target))
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE, "this build compiles nothing for target %d",
                         (int)config->target);
    /* `segment` and `wave` are left out: sources do not depend on them. */
    char class_text[MAX_FIELDS_TEXT], identity[MAX_IDENTITY];
    gdpi_fields_print_class(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, problem, class_text,
                            sizeof class_text);
    snprintf(identity, sizeof identity,
             "%s target=%s arch=%lld chunk=%lld block_v=%lld stages=%lld %s", name,
             gdpi_target_names[config->target], (long long)config->arch, (long long)config->chunk,
             (long long)config->block_v, (long long)config->stages, class_text);

    gdp_status status = GDP_OK;
    pthread_mutex_lock(&context->mutex);
    gdpi_kernel *found = find_kernel(context, identity);
    if (found) {
        if (found->state == GDPI_KERNEL_BUILDING) status = wait_for_build(context, found);
    } else if (!(found = insert_kernel(context, identity, config->target))) {
        status = GDP_STATUS_OUT_OF_MEMORY;
    } else {
        pthread_mutex_unlock(&context->mutex);
        double seconds;
        status = build_kernel(context, name, problem, config, &found->notes, load_binary, found,
                              &seconds);
        if (status) note_failure(context, found);
        pthread_mutex_lock(&context->mutex);
        end_build(context, found, status);
    }
    pthread_mutex_unlock(&context->mutex);
    if (status == GDP_OK) *kernel = found;
    return status;
}

void gdpi_kernels_destroy(gdp_context *context)
{
    while (context->kernels) {
        gdpi_kernel *kernel = context->kernels;
        context->kernels = kernel->next;
        find_steps(kernel->target)->unload(context, kernel);
        release_kernel(context, kernel);
    }
}
