/* The CUDA target's compiler: source to cubin by NVRTC, in this process, without include paths. */
#include <stdio.h>
#include <string.h>

#include "libraries.h"

enum { MAX_ARCHITECTURES = 128, MAX_LOG = 15 * 1024 };

struct gdpi_nvrtc {
    gdpi_nvrtc_api api;
    char version[32];
    int architectures[MAX_ARCHITECTURES], architecture_count;
};

/* Both the list of options and its text are made of this, with a word between the options. */
#define OPTIONS(between) "-std=c++17" between "-default-device" between "--fmad=true"
#define COMMA ,

const char *gdpi_nvrtc_options(void) { return OPTIONS(" "); }
const char *gdpi_nvrtc_version(const gdpi_nvrtc *nvrtc) { return nvrtc->version; }

static gdp_status open_nvrtc(gdp_context *context, gdpi_nvrtc *nvrtc)
{
    char sentence[GDPI_LIBRARY_SENTENCE];
    int major = 0, minor = 0, count = 0;
    if (!gdpi_open_nvrtc(context->nvrtc_places, &nvrtc->api, sentence))
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE, "no NVRTC, the compiler of CUDA kernels: %s",
                         sentence);
    nvrtc->api.nvrtcVersion(&major, &minor);
    if (major < 12)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "NVRTC is version %d.%d; accepted is 12.0 or later", major, minor);
    snprintf(nvrtc->version, sizeof nvrtc->version, "NVRTC %d.%d", major, minor);
    if (nvrtc->api.nvrtcGetNumSupportedArchs(&count) == GDPI_NVRTC_SUCCESS && count > 0 &&
        count <= MAX_ARCHITECTURES &&
        nvrtc->api.nvrtcGetSupportedArchs(nvrtc->architectures) == GDPI_NVRTC_SUCCESS)
        nvrtc->architecture_count = count;
    return GDP_OK;
}

gdp_status gdpi_nvrtc_get(gdp_context *context, const gdpi_nvrtc **nvrtc)
{
    gdp_status status = GDP_OK;
    pthread_mutex_lock(&context->mutex);
    if (!context->compiler_library) {
        gdpi_nvrtc *made = gdpi_allocate_zeroed(&context->allocator, sizeof *made);
        status = made ? open_nvrtc(context, made) : GDP_STATUS_OUT_OF_MEMORY;
        if (status == GDP_OK)
            context->compiler_library = made;
        else
            gdpi_release(&context->allocator, made);
    }
    *nvrtc = context->compiler_library;
    pthread_mutex_unlock(&context->mutex);
    return status;
}

gdp_status gdpi_nvrtc_check_arch(const gdpi_nvrtc *nvrtc, int64_t arch)
{
    const int *known = nvrtc->architectures, count = nvrtc->architecture_count;
    if (count == 0) return GDP_OK; /* it does not say */
    for (int i = 0; i < count; i++)
        if (known[i] == arch) return GDP_OK;
    return gdpi_fail(GDP_STATUS_UNSUPPORTED,
                     "%s does not compile for sm_%lld, only for %d architectures from sm_%d to "
                     "sm_%d; GDP_NVRTC names another one",
                     nvrtc->version, (long long)arch, count, known[0], known[count - 1]);
}

/* ---- compiling ---- */

static gdp_status refuse(const gdpi_nvrtc *nvrtc, unsigned error, const char *name)
{
    return gdpi_fail(error == GDPI_NVRTC_ERROR_OUT_OF_MEMORY ? GDP_STATUS_OUT_OF_MEMORY
                                                             : GDP_STATUS_COMPILE_FAILED,
                     "%s: %s (%s)", name, nvrtc->api.nvrtcGetErrorString(error), nvrtc->version);
}

/* The whole log, up to what a sentence holds: its first errors are what matters. */
static gdp_status report_log(gdp_context *context, const gdpi_nvrtc *nvrtc,
                             gdpi_nvrtc_program program, const char *name)
{
    size_t size = 0;
    if (nvrtc->api.nvrtcGetProgramLogSize(program, &size) != GDPI_NVRTC_SUCCESS || size < 2)
        return refuse(nvrtc, GDPI_NVRTC_ERROR_COMPILATION, name);
    char *log = gdpi_allocate_zeroed(&context->allocator, size + 1);
    if (!log) return GDP_STATUS_OUT_OF_MEMORY;
    nvrtc->api.nvrtcGetProgramLog(program, log);
    gdpi_fail(GDP_STATUS_COMPILE_FAILED, "%s did not compile (%s):\n%.*s%s", name, nvrtc->version,
              (int)MAX_LOG, log, size > MAX_LOG ? "..." : "");
    gdpi_release(&context->allocator, log);
    return GDP_STATUS_COMPILE_FAILED;
}

static gdp_status take_cubin(gdp_context *context, const gdpi_nvrtc *nvrtc,
                             gdpi_nvrtc_program program, const char *name, gdpi_blob *binary)
{
    size_t size = 0;
    unsigned error = nvrtc->api.nvrtcGetCUBINSize(program, &size);
    if (error != GDPI_NVRTC_SUCCESS) return refuse(nvrtc, error, name);
    if (size == 0)
        return gdpi_fail(GDP_STATUS_COMPILE_FAILED, "%s: %s made no binary", name, nvrtc->version);
    void *data = gdpi_allocate(&context->allocator, size);
    if (!data) return GDP_STATUS_OUT_OF_MEMORY;
    error = nvrtc->api.nvrtcGetCUBIN(program, data);
    if (error != GDPI_NVRTC_SUCCESS) {
        gdpi_release(&context->allocator, data);
        return refuse(nvrtc, error, name);
    }
    *binary = (gdpi_blob){ data, size };
    return GDP_OK;
}

gdp_status gdpi_nvrtc_compile(gdp_context *context, const gdpi_nvrtc *nvrtc, const char *name,
                              const char *source, int64_t arch, gdpi_blob *binary)
{
    char option[64];
    snprintf(option, sizeof option, "--gpu-architecture=sm_%lld", (long long)arch);
    const char *const options[] = { option, OPTIONS(COMMA) };
    const int count = (int)(sizeof options / sizeof *options);
    gdpi_nvrtc_program program = NULL;
    *binary = (gdpi_blob){ NULL, 0 };
    unsigned error = nvrtc->api.nvrtcCreateProgram(&program, source, name, 0, NULL, NULL);
    if (error != GDPI_NVRTC_SUCCESS) return refuse(nvrtc, error, name);
    error = nvrtc->api.nvrtcCompileProgram(program, count, options);
    const gdp_status status =
        error == GDPI_NVRTC_SUCCESS             ? take_cubin(context, nvrtc, program, name, binary)
        : error == GDPI_NVRTC_ERROR_COMPILATION ? report_log(context, nvrtc, program, name)
                                                : refuse(nvrtc, error, name);
    nvrtc->api.nvrtcDestroyProgram(&program);
    return status;
}
