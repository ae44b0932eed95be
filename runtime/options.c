/* A context's options, completed by the environment: read once, here. */
#include "internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 4096 };

/* An empty variable counts as unset. */
static const char *get_variable(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static gdp_status choose_target(const gdp_context_options *options, gdpi_request *wanted)
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

static gdp_status choose_threads(const gdp_context_options *options, gdpi_request *wanted)
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

static gdp_status choose_device(const gdp_context_options *options, gdpi_request *wanted)
{
    enum { MAX_DEVICES = 65536 };
    wanted->device = options->device - 1;
    if (options->device < 0 || options->device > MAX_DEVICES)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "options.device=%d: must be a device's ordinal + 1, or 0 for GDP_DEVICE",
                         options->device);
    const char *value = get_variable("GDP_DEVICE");
    if (options->device || !value) return GDP_OK;
    char *end = NULL;
    const long number = strspn(value, "0123456789") ? strtol(value, &end, 10) : -1;
    if (number < 0 || number >= MAX_DEVICES || *end)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "GDP_DEVICE=%s: must be the ordinal of a CUDA device, 0 for the first",
                         value);
    wanted->device = (int)number;
    return GDP_OK;
}

static gdp_status choose_checks(const gdp_context_options *options, gdpi_request *wanted)
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
static gdp_status choose_cache_dir(const gdp_context_options *options, gdpi_request *wanted)
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

gdp_status gdpi_read_options(const gdp_context_options *options, gdpi_request *wanted)
{
    memset(wanted, 0, sizeof *wanted);
    GDPI_TRY(check_options(options));
    GDPI_TRY(choose_target(options, wanted));
    GDPI_TRY(choose_threads(options, wanted));
    GDPI_TRY(choose_device(options, wanted));
    GDPI_TRY(choose_checks(options, wanted));
    GDPI_TRY(choose_cache_dir(options, wanted));
    wanted->template_dir =
        options->template_dir ? options->template_dir : get_variable("GDP_TEMPLATE_DIR");
    wanted->compiler = options->compiler ? options->compiler : get_variable("GDP_CC");
    if (!wanted->compiler) wanted->compiler = get_variable("CC");
    if (wanted->compiler && !wanted->compiler[0]) wanted->compiler = NULL;
    wanted->temp_dir = get_variable("TMPDIR");
    if (!wanted->temp_dir) wanted->temp_dir = "/tmp";
    return GDP_OK;
}
