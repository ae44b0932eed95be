/* What this machine has of the CUDA driver, NVRTC and NCCL: looked for at run time, not linked. */
#include "libraries.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SENTENCE = GDPI_LIBRARY_SENTENCE, MAX_ARCHITECTURES = 128, MAX_PLACE = 4096 };

typedef struct function_slot {
    const char *name;
    void *place; /**< of a function pointer */
} function_slot;

#define SLOT(name, result, parameters) { #name, &api->name },
#define COUNT(slots) (sizeof(slots) / sizeof *(slots))

static bool fill_slots(void *library, const function_slot *slots, size_t count, char *sentence)
{
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

/* Opens a library by its one name and fills the slots; false, with why in `sentence`. */
static bool open_by_name(const char *name, const function_slot *slots, size_t count, char *sentence)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library) return fill_slots(library, slots, count, sentence);
    snprintf(sentence, MAX_SENTENCE, "not found (looked for %s)", name);
    return false;
}

bool gdpi_open_cuda(gdpi_cu_api *api, char *sentence)
{
    const function_slot slots[] = { GDPI_CU_FUNCTIONS(SLOT) };
    return open_by_name("libcuda.so.1", slots, COUNT(slots), sentence);
}

/* ---- NVRTC, which may come with the system, with CUDA's folder, or with Python packages ---- */

/* Newer ones first. */
#define LOADER_NAMES "libnvrtc.so.13\nlibnvrtc.so.12\n"

/* Adds a line below a folder that is set, where there is room for it. */
static void add_place(char *places, size_t capacity, const char *root, const char *below)
{
    const size_t end = strlen(places);
    if (!root || !root[0] || strchr(root, '\n')) return;
    const int length = snprintf(places + end, capacity - end, "%s%s\n", root, below);
    if (length < 0 || (size_t)length >= capacity - end) places[end] = '\0';
}

char *gdpi_nvrtc_places(const gdpi_allocator *allocator)
{
    static const char *const below[] = {
        "/lib/libnvrtc.so.1[23]", "/lib/python3*/*-packages/nvidia/cu13/lib/libnvrtc.so.13",
        "/lib/python3*/*-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
    };
    char places[4 * MAX_PLACE] = LOADER_NAMES;
    const char *file = getenv("GDP_NVRTC");
    if (file && file[0]) return gdpi_copy_text(allocator, file);
    const char *const toolkits[] = { getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda" };
    const char *const prefixes[] = { getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX"), "/usr/local",
                                     "/usr" };
    for (size_t i = 0; i < COUNT(toolkits); i++)
        add_place(places, sizeof places, toolkits[i], "/lib64/libnvrtc.so.1[23]");
    for (size_t i = 0; i < COUNT(prefixes); i++)
        for (size_t j = 0; j < COUNT(below); j++)
            add_place(places, sizeof places, prefixes[i], below[j]);
    return gdpi_copy_text(allocator, places);
}

/* A name for the loader, or the last of the files that match a pattern. */
static void *open_place(const char *place)
{
    if (!strchr(place, '/')) return dlopen(place, RTLD_NOW | RTLD_LOCAL);
    glob_t found;
    void *library = NULL;
    /* Without a match the pattern is taken as a file's name, which may have brackets. */
    if (glob(place, GLOB_NOCHECK, NULL, &found)) return NULL;
    for (size_t i = found.gl_pathc; i > 0 && !library; i--)
        library = dlopen(found.gl_pathv[i - 1], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return library;
}

static void *open_places(const char *places)
{
    void *library = NULL;
    for (const char *at = places; *at && !library; at += *at == '\n') {
        char place[MAX_PLACE];
        const size_t length = strcspn(at, "\n");
        if (length < sizeof place) {
            memcpy(place, at, length);
            place[length] = '\0';
            library = open_place(place);
        }
        at += length;
    }
    return library;
}

bool gdpi_open_nvrtc(const char *places, gdpi_nvrtc_api *api, char *sentence)
{
    const function_slot slots[] = { GDPI_NVRTC_FUNCTIONS(SLOT) };
    void *library = NULL;
    /* One that the program uses already is the least surprise, and costs nothing. */
    if (strncmp(places, LOADER_NAMES, strlen(LOADER_NAMES)) == 0) {
        library = dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_NOLOAD);
        if (!library) library = dlopen("libnvrtc.so.12", RTLD_NOW | RTLD_NOLOAD);
    }
    if (!library) library = open_places(places);
    if (library) return fill_slots(library, slots, COUNT(slots), sentence);
    if (!strchr(places, '\n')) {
        const char *reason = dlerror();
        snprintf(sentence, MAX_SENTENCE, "GDP_NVRTC=%s cannot be loaded (%s)", places,
                 reason ? reason : "it is no library");
        return false;
    }
    int end = snprintf(sentence, MAX_SENTENCE, "not found (looked for ");
    for (const char *at = places; *at && end < MAX_SENTENCE; at += *at == '\n') {
        const int length = (int)strcspn(at, "\n");
        end += snprintf(sentence + end, (size_t)(MAX_SENTENCE - end), "%s%.*s",
                        at == places ? "" : ", ", length, at);
        at += length;
    }
    if (end < MAX_SENTENCE)
        snprintf(sentence + end, (size_t)(MAX_SENTENCE - end), "; GDP_NVRTC names a file)");
    return false;
}

/* ---- sentences ---- */

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
    if (!gdpi_open_cuda(&api, sentence)) return;
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

static void describe_nvrtc(const char *places, char *sentence)
{
    gdpi_nvrtc_api api;
    if (!gdpi_open_nvrtc(places, &api, sentence)) return;
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
    gdpi_nccl_api nccl, *const api = &nccl;
    const function_slot slots[] = { GDPI_NCCL_FUNCTIONS(SLOT) };
    if (!open_by_name("libnccl.so.2", slots, COUNT(slots), sentence)) return;
    int version = 0;
    api->ncclGetVersion(&version);
    /* 2.9 and later: major * 10000; before: major * 1000. */
    const int unit = version >= 10000 ? 10000 : 1000;
    snprintf(sentence, MAX_SENTENCE, "version %d.%d.%d", version / unit, version % unit / 100,
             version % 100);
}

gdp_status gdpi_describe_libraries(const gdpi_allocator *allocator, const char *nvrtc_places,
                                   char **cuda, char **nvrtc, char **nccl)
{
    char sentences[3][MAX_SENTENCE];
    describe_cuda(sentences[0]);
    describe_nvrtc(nvrtc_places, sentences[1]);
    describe_nccl(sentences[2]);
    char **const places[] = { cuda, nvrtc, nccl };
    for (size_t i = 0; i < COUNT(places); i++) *places[i] = NULL;
    for (size_t i = 0; i < COUNT(places); i++) {
        *places[i] = gdpi_copy_text(allocator, sentences[i]);
        if (*places[i]) continue;
        for (size_t j = 0; j < i; j++) {
            gdpi_release(allocator, *places[j]);
            *places[j] = NULL;
        }
        return GDP_STATUS_OUT_OF_MEMORY;
    }
    return GDP_OK;
}
