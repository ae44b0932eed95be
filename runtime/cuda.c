/* The CUDA target's device: its primary context, modules and launches, through the driver alone. The
 * primary context is shared with the runtime API, so pointers and streams of either are welcome. */
#include <stdio.h>
#include <string.h>

#include "libraries.h"

enum { OLDEST_ARCH = 80, PLAIN_SHARED = 48 * 1024, MAX_THREADS = 1024 };

gdp_status gdpi_cuda_refusal(const gdpi_cuda *cuda, unsigned error, const char *what)
{
    const char *text = NULL;
    if (cuda->api.cuGetErrorString(error, &text) != GDPI_CU_SUCCESS || !text) text = "?";
    return gdpi_fail(error == GDPI_CU_ERROR_OUT_OF_MEMORY ? GDP_STATUS_OUT_OF_MEMORY
                                                          : GDP_STATUS_DEVICE,
                     "%s: %s (CUDA error %u)", what, text, error);
}

gdp_status gdpi_cuda_enter(const gdpi_cuda *cuda)
{
    return GDPI_CU_CALL(cuda, cuCtxPushCurrent_v2, cuda->primary);
}

void gdpi_cuda_leave(const gdpi_cuda *cuda)
{
    gdpi_cu_context popped = NULL;
    cuda->api.cuCtxPopCurrent_v2(&popped);
}

/* ---- the device ---- */

/* Starts the driver and finds the device's number. */
static gdp_status find_device(gdpi_cuda *cuda, int ordinal, bool *has_device)
{
    char sentence[GDPI_LIBRARY_SENTENCE];
    int count = 0;
    if (!gdpi_open_cuda(&cuda->api, sentence))
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE, "no CUDA driver: %s", sentence);
    const unsigned started = cuda->api.cuInit(0);
    if (started != GDPI_CU_ERROR_NO_DEVICE) {
        GDPI_TRY(gdpi_cuda_check(cuda, started, "the CUDA driver does not start"));
        GDPI_TRY(GDPI_CU_CALL(cuda, cuDeviceGetCount, &count));
    }
    if (count == 0)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE, "no CUDA device: the driver sees none "
                                                   "(CUDA_VISIBLE_DEVICES may hide them)");
    *has_device = true;
    if (ordinal >= count)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "device %d: must be from 0 to %d, the devices that the driver sees",
                         ordinal, count - 1);
    if (ordinal >= 0) {
        cuda->ordinal = ordinal;
        return GDPI_CU_CALL(cuda, cuDeviceGet, &cuda->device, ordinal);
    }
    gdpi_cu_context current = NULL;
    GDPI_TRY(GDPI_CU_CALL(cuda, cuCtxGetCurrent, &current));
    if (!current) return GDPI_CU_CALL(cuda, cuDeviceGet, &cuda->device, 0);
    GDPI_TRY(GDPI_CU_CALL(cuda, cuCtxGetDevice, &cuda->device));
    cuda->ordinal = cuda->device; /* the driver numbers its handles as its ordinals */
    return GDP_OK;
}

static gdp_status read_device(gdpi_cuda *cuda)
{
    int major = 0, minor = 0;
    const struct {
        int *place;
        unsigned attribute;
    } wanted[] = {
        { &major, GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR },
        { &minor, GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR },
        { &cuda->processors, GDPI_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT },
        { &cuda->shared_per_block, GDPI_CU_ATTRIBUTE_SHARED_MEMORY_PER_BLOCK_OPTIN },
        { &cuda->shared_per_processor, GDPI_CU_ATTRIBUTE_SHARED_MEMORY_PER_MULTIPROCESSOR },
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        GDPI_TRY(GDPI_CU_CALL(cuda, cuDeviceGetAttribute, wanted[i].place, wanted[i].attribute,
                              cuda->device));
    GDPI_TRY(
        GDPI_CU_CALL(cuda, cuDeviceGetName, cuda->name, (int)sizeof cuda->name - 1, cuda->device));
    cuda->arch = major * 10 + minor;
    if (cuda->arch < OLDEST_ARCH)
        return gdpi_fail(GDP_STATUS_UNSUPPORTED,
                         "device %d (%s) has compute capability %d.%d; accepted is 8.0 or later",
                         cuda->ordinal, cuda->name, major, minor);
    return GDP_OK;
}

gdp_status gdpi_cuda_create(const gdpi_allocator *allocator, int ordinal, bool *has_device,
                            gdpi_cuda **cuda)
{
    *has_device = false;
    *cuda = NULL;
    gdpi_cuda *made = gdpi_allocate_zeroed(allocator, sizeof *made);
    if (!made) return GDP_STATUS_OUT_OF_MEMORY;
    gdp_status status = find_device(made, ordinal, has_device);
    if (status == GDP_OK) status = read_device(made);
    if (status == GDP_OK)
        status = GDPI_CU_CALL(made, cuDevicePrimaryCtxRetain, &made->primary, made->device);
    if (status == GDP_OK)
        *cuda = made;
    else
        gdpi_release(allocator, made);
    return status;
}

void gdpi_cuda_destroy(const gdpi_allocator *allocator, gdpi_cuda *cuda)
{
    if (!cuda) return;
    cuda->api.cuDevicePrimaryCtxRelease_v2(cuda->device);
    gdpi_release(allocator, cuda);
}

int gdpi_cuda_arch(const gdpi_cuda *cuda) { return cuda ? cuda->arch : 0; }
int gdpi_cuda_processors(const gdpi_cuda *cuda) { return cuda ? cuda->processors : 0; }
const char *gdpi_cuda_name(const gdpi_cuda *cuda) { return cuda ? cuda->name : NULL; }

/* ---- kernels ---- */

static gdp_status load_module(const gdpi_cuda *cuda, const gdpi_blob *binary, const char *symbol,
                              gdpi_kernel *kernel)
{
    gdpi_cu_module module = NULL;
    gdpi_cu_function function = NULL;
    GDPI_TRY(GDPI_CU_CALL(cuda, cuModuleLoadData, &module, binary->data));
    gdp_status status = GDPI_CU_CALL(cuda, cuModuleGetFunction, &function, module, symbol);
    if (status == GDP_OK && kernel->notes.shared > PLAIN_SHARED)
        status =
            GDPI_CU_CALL(cuda, cuFuncSetAttribute, function,
                         GDPI_CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)kernel->notes.shared);
    if (status != GDP_OK) {
        cuda->api.cuModuleUnload(module);
        return status;
    }
    kernel->handle = module;
    kernel->cuda_function = function;
    return GDP_OK;
}

gdp_status gdpi_cuda_load(gdp_context *context, const gdpi_blob *binary, const char *symbol,
                          gdpi_kernel *kernel)
{
    const gdpi_cuda *cuda = context->device;
    const gdpi_notes *notes = &kernel->notes;
    if (!cuda)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE, "%s: this context has no CUDA device", symbol);
    if (notes->threads < 1 || notes->threads > MAX_THREADS)
        return gdpi_fail(GDP_STATUS_INTERNAL,
                         "%s: its template notes threads=%d; accepted is 1 to %d", symbol,
                         notes->threads, MAX_THREADS);
    if (notes->shared > (size_t)cuda->shared_per_block)
        return gdpi_fail(GDP_STATUS_UNSUPPORTED,
                         "%s needs %zu bytes of shared memory a block; %s has %d", symbol,
                         notes->shared, cuda->name, cuda->shared_per_block);
    GDPI_TRY(gdpi_cuda_enter(cuda));
    const gdp_status status = load_module(cuda, binary, symbol, kernel);
    gdpi_cuda_leave(cuda);
    return status;
}

void gdpi_cuda_unload(gdp_context *context, gdpi_kernel *kernel)
{
    const gdpi_cuda *cuda = context->device;
    if (!cuda || !kernel->handle) return;
    if (gdpi_cuda_enter(cuda) != GDP_OK) return;
    cuda->api.cuModuleUnload(kernel->handle);
    gdpi_cuda_leave(cuda);
    kernel->handle = NULL;
}

gdp_status gdpi_cuda_launch(gdp_context *context, const gdpi_kernel *kernel, int64_t tasks,
                            gdp_stream stream, const gdp_args *args)
{
    const gdpi_cuda *cuda = context->device;
    void *parameters[] = { (void *)(uintptr_t)args }; /* the driver copies it */
    if (tasks == 0) return GDP_OK;
    if (tasks > INT32_MAX)
        return gdpi_fail(GDP_STATUS_UNSUPPORTED,
                         "problem: a kernel would have %lld blocks; CUDA accepts up to %d",
                         (long long)tasks, INT32_MAX);
    GDPI_TRY(gdpi_cuda_enter(cuda));
    const unsigned error = cuda->api.cuLaunchKernel(
        kernel->cuda_function, (unsigned)tasks, 1, 1, (unsigned)kernel->notes.threads, 1, 1,
        (unsigned)kernel->notes.shared, stream, parameters, NULL);
    gdpi_cuda_leave(cuda);
    if (error != GDPI_CU_SUCCESS) return gdpi_cuda_refusal(cuda, error, kernel->identity);
    atomic_fetch_add_explicit(&context->launches, 1, memory_order_relaxed);
    return GDP_OK;
}
