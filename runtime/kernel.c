/* From a kernel's name, problem and configuration to its loaded function: emit, look into the
 * cache, compile, publish, load. One thread builds, those that want the same kernel wait for it. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FIELDS_TEXT = 1024, MAX_IDENTITY = 1280, MAX_SYMBOL = 64, MAX_ERROR = 4096 };

/* ---- what differs between targets; CUDA will be one more row ---- */

enum { KEY_PARTS = 4 };

typedef struct steps {
    gdp_target target;
    /** What a binary depends on beside its source; target and KEY_PARTS - 1 more. */
    void (*get_key_parts)(const gdp_context *context, const char **parts);
    gdp_status (*compile)(gdp_context *context, const char *source, gdpi_blob *binary);
    gdp_status (*load)(const gdpi_blob *binary, const char *symbol, gdpi_kernel *kernel);
    void (*unload)(gdpi_kernel *kernel);
} steps;

static void get_host_key_parts(const gdp_context *context, const char **parts)
{
    parts[0] = "host";
    parts[1] = gdpi_host_compiler_options();
    parts[2] = context->compiler_version ? context->compiler_version : "";
    parts[3] = context->processor;
}

static gdp_status compile_for_host(gdp_context *context, const char *source, gdpi_blob *binary)
{
    if (!context->compiler || !context->compiler_version)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "no C compiler to compile a kernel with (GDP_CC names one)");
    return gdpi_host_compile(context, source, binary);
}

static gdp_status load_on_host(const gdpi_blob *binary, const char *symbol, gdpi_kernel *kernel)
{
    return gdpi_host_load(binary, symbol, &kernel->handle, &kernel->function);
}

static void unload_from_host(gdpi_kernel *kernel)
{
    gdpi_host_unload(kernel->handle);
    kernel->handle = NULL;
}

static const steps TARGETS[] = {
    { GDP_TARGET_HOST, get_host_key_parts, compile_for_host, load_on_host, unload_from_host },
};

static const steps *find_steps(gdp_target target)
{
    for (size_t i = 0; i < sizeof TARGETS / sizeof *TARGETS; i++)
        if (TARGETS[i].target == target) return &TARGETS[i];
    return NULL;
}

/* ---- source ---- */

/* "name=integer" in the generator's notes; 0 where there is none. */
static size_t find_note(const char *notes, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = notes; (at = strstr(at, name)); at += length)
        if ((at == notes || at[-1] == ' ') && at[length] == '=')
            return (size_t)strtoull(at + length + 1, NULL, 10);
    return 0;
}

gdp_status gdpi_kernel_emit(gdp_context *context, const char *name, const gdp_problem *problem,
                            const gdp_config *config, gdpi_text *source, size_t *scratch)
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
    gdpi_text notes = { NULL, 0 };
    const int result = gdpi_generator_emit(&generator, name, problem_text, config_text, source,
                                           &notes, error, sizeof error);
    if (result == GDPI_GENERATOR_OUT_OF_MEMORY)
        return gdpi_fail(GDP_STATUS_OUT_OF_MEMORY, "%s", error);
    if (result != GDPI_GENERATOR_OK) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s", error);
    *scratch = find_note(notes.data, "scratch");
    gdpi_release(&context->allocator, notes.data);
    return GDP_OK;
}

/* ---- building ---- */

typedef struct build {
    gdp_context *context;
    const steps *steps;
    gdpi_kernel *kernel;
    const char *source;
    char symbol[MAX_SYMBOL];
    gdpi_key key;
} build;

static gdp_status load_binary(const build *at, gdpi_blob *binary)
{
    const gdp_status status = at->steps->load(binary, at->symbol, at->kernel);
    gdpi_release(&at->context->allocator, binary->data);
    *binary = (gdpi_blob){ NULL, 0 };
    return status;
}

/* *found: a binary was there and could be loaded. One that cannot is worth a new compilation. */
static gdp_status load_cached(const build *at, bool *found)
{
    gdpi_blob binary;
    *found = false;
    GDPI_TRY(gdpi_cache_find(at->context->cache, &at->key, &binary));
    if (!binary.data) return GDP_OK;
    *found = load_binary(at, &binary) == GDP_OK;
    if (*found) atomic_fetch_add(&at->context->cache_hits, 1);
    return GDP_OK;
}

static gdp_status compile_and_load(const build *at)
{
    gdpi_blob binary = { NULL, 0 };
    atomic_fetch_add(&at->context->compilations, 1);
    GDPI_TRY(at->steps->compile(at->context, at->source, &binary));
    gdpi_cache_publish(at->context->cache, &at->key, at->source, &binary);
    return load_binary(at, &binary);
}

static gdp_status load_or_compile(const build *at)
{
    bool found;
    GDPI_TRY(load_cached(at, &found));
    if (found) return GDP_OK;
    /* Another process may be at it, and be done when the lock is ours. */
    gdpi_cache *cache = at->context->cache;
    const int lock = gdpi_cache_lock(cache, &at->key);
    gdp_status status = lock < 0 ? GDP_OK : load_cached(at, &found);
    if (status == GDP_OK && !found) status = compile_and_load(at);
    gdpi_cache_unlock(cache, lock);
    return status;
}

static gdp_status build_kernel(gdp_context *context, const char *name, const gdp_problem *problem,
                               const gdp_config *config, gdpi_kernel *kernel)
{
    build at = { .context = context, .steps = find_steps(config->target), .kernel = kernel };
    gdpi_text source = { NULL, 0 };
    GDPI_TRY(gdpi_kernel_emit(context, name, problem, config, &source, &kernel->scratch));
    at.source = source.data;
    snprintf(at.symbol, sizeof at.symbol, "gdp_%s", name);
    const char *parts[KEY_PARTS + 2] = { source.data, at.symbol };
    at.steps->get_key_parts(context, parts + 2);
    at.key = gdpi_make_key(parts, KEY_PARTS + 2);
    const gdp_status status = load_or_compile(&at);
    gdpi_release(&context->allocator, source.data);
    return status;
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
    /* `segment` is left out: sources do not depend on it. */
    char class_text[MAX_FIELDS_TEXT], identity[MAX_IDENTITY];
    gdpi_fields_print_class(gdpi_problem_fields, GDPI_PROBLEM_FIELDS, problem, class_text,
                            sizeof class_text);
    snprintf(identity, sizeof identity, "%s target=%d chunk=%lld block_v=%lld %s", name,
             (int)config->target, (long long)config->chunk, (long long)config->block_v, class_text);

    gdp_status status = GDP_OK;
    pthread_mutex_lock(&context->mutex);
    gdpi_kernel *found = find_kernel(context, identity);
    if (found) {
        if (found->state == GDPI_KERNEL_BUILDING) status = wait_for_build(context, found);
    } else if (!(found = insert_kernel(context, identity, config->target))) {
        status = GDP_STATUS_OUT_OF_MEMORY;
    } else {
        pthread_mutex_unlock(&context->mutex);
        status = build_kernel(context, name, problem, config, found);
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
        find_steps(kernel->target)->unload(kernel);
        release_kernel(context, kernel);
    }
}
