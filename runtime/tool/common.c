/* Sentences, contexts, tables. */
#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int complain(const char *command, const char *format, ...)
{
    va_list arguments;
    char sentence[SENTENCE];
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    fprintf(stderr, "gdp%s%s: %s\n", command ? " " : "", command ? command : "", sentence);
    return EXIT_USAGE;
}

int exit_status(gdp_status status)
{
    switch (status) {
    case GDP_OK:
        return 0;
    case GDP_STATUS_INVALID_ARGUMENT:
    case GDP_STATUS_UNSUPPORTED:
    case GDP_STATUS_IO:
        return EXIT_USAGE;
    case GDP_STATUS_OUT_OF_MEMORY:
    case GDP_STATUS_NOT_AVAILABLE:
    case GDP_STATUS_COMPILE_FAILED:
        return EXIT_MISSING;
    default:
        return EXIT_CHECK;
    }
}

int complain_status(const char *command, gdp_status status, const char *sentence)
{
    if (status == GDP_OK) return 0;
    complain(command, "%s", sentence);
    return exit_status(status);
}

const char *dtype_name(gdp_dtype dtype)
{
    switch (dtype) {
    case GDP_DTYPE_F32:
        return "f32";
    case GDP_DTYPE_BF16:
        return "bf16";
    case GDP_DTYPE_F16:
        return "f16";
    case GDP_DTYPE_I32:
        return "i32";
    case GDP_DTYPE_I64:
        return "i64";
    default:
        return "none";
    }
}

const char *target_name(gdp_target target)
{
    switch (target) {
    case GDP_TARGET_HOST:
        return "host";
    case GDP_TARGET_CUDA:
        return "cuda";
    case GDP_TARGET_REFERENCE:
        return "reference";
    default:
        return "auto";
    }
}

static void log_warning(void *user, gdp_log_level level, const char *sentence)
{
    (void)user;
    if (level == GDP_LOG_WARNING) fprintf(stderr, "gdp: %s\n", sentence);
}

gdp_status open_context(gdp_target target, int64_t threads, const char *cache_dir,
                        gdp_context **context)
{
    gdp_context_options options = GDP_CONTEXT_OPTIONS_INIT;
    options.target = target;
    options.threads = (int)threads;
    options.cache_dir = cache_dir;
    options.log = log_warning;
    return gdp_context_create(&options, context);
}

double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void print_row(const char *label, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("  %-18s ", label);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
}

time_text show_time(double duration)
{
    time_text text;
    if (duration >= 1)
        snprintf(text.text, sizeof text.text, "%.3f s", duration);
    else if (duration >= 1e-3)
        snprintf(text.text, sizeof text.text, "%.3f ms", 1e3 * duration);
    else
        snprintf(text.text, sizeof text.text, "%.1f us", 1e6 * duration);
    return text;
}

int print_json(const char *command, cJSON *object)
{
    char *text = object ? cJSON_Print(object) : NULL;
    cJSON_Delete(object);
    if (!text) {
        complain(command, "no memory for its output");
        return EXIT_MISSING;
    }
    puts(text);
    cJSON_free(text);
    return 0;
}

void *allocate_zeroed(size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    const size_t room = (bytes / 64 + 1) * 64;
    void *memory = aligned_alloc(64, room);
    if (memory) memset(memory, 0, room);
    return memory;
}
