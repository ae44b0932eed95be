/* What this machine has of the CUDA driver, NVRTC and NCCL: looked for at run time, not linked. */
#include "internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda_api.h"

enum { MAX_SENTENCE = 512, MAX_ARCHITECTURES = 128 };

static const char *const CUDA_NAMES[] = { "libcuda.so.1", NULL };
static const char *const NVRTC_NAMES[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                           NULL };
static const char *const NCCL_NAMES[] = { "libnccl.so.2", NULL };

typedef struct function_slot {
    const char *name;
    void *place; /**< of a function pointer */
} function_slot;

/* Opens the first library that is there and fills the slots; false, with why in `sentence`. Nothing
 * is closed again: the driver does not expect it, and the others' C++ runtimes would leak. */
static bool open_library(const char *const *names, const function_slot *slots, size_t count,
                         char *sentence)
{
    void *library = NULL;
    for (size_t i = 0; names[i] && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        int at = snprintf(sentence, MAX_SENTENCE, "not found (looked for ");
        for (size_t i = 0; names[i]; i++)
            at +=
                snprintf(sentence + at, MAX_SENTENCE - (size_t)at, "%s%s", i ? ", " : "", names[i]);
        snprintf(sentence + at, MAX_SENTENCE - (size_t)at, ")");
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, slots[i].name);
        if (!symbol) {
            snprintf(sentence, MAX_SENTENCE, "unusable (%s is missing)", slots[i].name);
            return false;
        }
        memcpy(slots[i].place, &symbol, sizeof symbol);
    }
    return true;
}

#define SLOT(name, result, parameters) { #name, &api.name },
#define COUNT(slots) (sizeof(slots) / sizeof *(slots))

static void describe_device(const gdpi_cu_api *api, int count, char *sentence, size_t capacity)
{
    gdpi_cu_device device = 0;
    char name[128] = "?";
    int major = 0, minor = 0, processors = 0;
    api->cuDeviceGet(&device, 0);
    api->cuDeviceGetName(name, (int)sizeof name, device);
    api->cuDeviceGetAttribute(&major, GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    api->cuDeviceGetAttribute(&minor, GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    api->cuDeviceGetAttribute(&processors, GDPI_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    snprintf(sentence, capacity, ", %d device%s: %s (sm_%d%d, %d SMs)%s", count,
             count == 1 ? "" : "s", name, major, minor, processors,
             count == 1 ? "" : " and others");
}

static void describe_cuda(char *sentence)
{
    gdpi_cu_api api;
    const function_slot slots[] = { GDPI_CU_FUNCTIONS(SLOT) };
    if (!open_library(CUDA_NAMES, slots, COUNT(slots), sentence)) return;
    int version = 0, count = 0;
    api.cuDriverGetVersion(&version);
    const int at =
        snprintf(sentence, MAX_SENTENCE, "driver %d.%d", version / 1000, version % 1000 / 10);
    char *rest = sentence + at;
    const size_t capacity = MAX_SENTENCE - (size_t)at;
    unsigned result = api.cuInit(0);
    if (result == GDPI_CU_SUCCESS) result = api.cuDeviceGetCount(&count);
    if (result == GDPI_CU_SUCCESS && count > 0)
        describe_device(&api, count, rest, capacity);
    else if (result == GDPI_CU_SUCCESS || result == GDPI_CU_ERROR_NO_DEVICE)
        snprintf(rest, capacity, ", no device");
    else
        snprintf(rest, capacity, ", which does not start (CUDA error %u)", result);
}

static void describe_nvrtc(char *sentence)
{
    gdpi_nvrtc_api api;
    const function_slot slots[] = { GDPI_NVRTC_FUNCTIONS(SLOT) };
    if (!open_library(NVRTC_NAMES, slots, COUNT(slots), sentence)) return;
    int major = 0, minor = 0, count = 0, architectures[MAX_ARCHITECTURES] = { 0 };
    api.nvrtcVersion(&major, &minor);
    const int at = snprintf(sentence, MAX_SENTENCE, "version %d.%d", major, minor);
    if (api.nvrtcGetNumSupportedArchs(&count) == GDPI_NVRTC_SUCCESS && count > 0 &&
        count <= MAX_ARCHITECTURES &&
        api.nvrtcGetSupportedArchs(architectures) == GDPI_NVRTC_SUCCESS)
        snprintf(sentence + at, MAX_SENTENCE - (size_t)at, ", for sm_%d to sm_%d", architectures[0],
                 architectures[count - 1]);
}

static void describe_nccl(char *sentence)
{
    gdpi_nccl_api api;
    const function_slot slots[] = { GDPI_NCCL_FUNCTIONS(SLOT) };
    if (!open_library(NCCL_NAMES, slots, COUNT(slots), sentence)) return;
    int version = 0;
    api.ncclGetVersion(&version);
    /* 2.9 and later: major * 10000; before: major * 1000. */
    const int unit = version >= 10000 ? 10000 : 1000;
    snprintf(sentence, MAX_SENTENCE, "version %d.%d.%d", version / unit, version % unit / 100,
             version % 100);
}

gdp_status gdpi_describe_libraries(const gdpi_allocator *allocator, char **cuda, char **nvrtc,
                                   char **nccl)
{
    void (*const describe[])(char *) = { describe_cuda, describe_nvrtc, describe_nccl };
    char **const places[] = { cuda, nvrtc, nccl };
    for (size_t i = 0; i < COUNT(places); i++) *places[i] = NULL;
    for (size_t i = 0; i < COUNT(places); i++) {
        char sentence[MAX_SENTENCE];
        describe[i](sentence);
        *places[i] = gdpi_copy_text(allocator, sentence);
        if (*places[i]) continue;
        for (size_t j = 0; j < i; j++) {
            gdpi_release(allocator, *places[j]);
            *places[j] = NULL;
        }
        return GDP_STATUS_OUT_OF_MEMORY;
    }
    return GDP_OK;
}
