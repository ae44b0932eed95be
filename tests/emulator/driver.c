/* libcuda.so.1: one device, whose kernels run where and when they are launched. Every call is over
 * when it returns, so a stream is always done; what the library must not rely on is left out, like
 * a current context or the program's access to the device's memory. A "cubin" is a shared object
 * that the emulated NVRTC made. */
#include "emulator.h"

#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600
};

enum { DEFAULT_SHARED = 48 * 1024, RESERVED_SHARED = 1024, NAME_LENGTH = 128, MAX_ARGS = 4096 };

typedef struct module {
    void *library;
    unsigned args_bytes; /* of its kernels' argument */
} module;

typedef struct function {
    struct function *next;
    module *module;
    kernel_function *entry;
    unsigned shared_limit;
    char name[NAME_LENGTH];
} function;

typedef struct event {
    struct timespec time;
    bool recorded;
} event;

/* Recursive: a host function on a stream may call the driver again. */
static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static bool initialized;
static int retained;
static function *functions;

/* Contexts, one a device: an address of this. */
static char contexts[16];
enum { CONTEXT_DEPTH = 16 };
static _Thread_local void *context_stack[CONTEXT_DEPTH];
static _Thread_local int context_depth;

#define ENTER                   \
    pthread_mutex_lock(&mutex); \
    open_memory()
#define LEAVE(result)                 \
    do {                              \
        const unsigned r_ = (result); \
        close_memory();               \
        pthread_mutex_unlock(&mutex); \
        return r_;                    \
    } while (0)
#define NEED_CONTEXT                                 \
    do {                                             \
        const unsigned r_ = current_context_state(); \
        if (r_ != SUCCESS) return r_;                \
    } while (0)

static long long setting(const char *name, long long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

static int arch(void) { return (int)setting("GDP_EMULATED_ARCH", 90); }
static int device_count(void) { return (int)setting("GDP_EMULATED_DEVICES", 1); }
static size_t memory_bytes(void) { return (size_t)setting("GDP_EMULATED_MEMORY", 8LL << 30); }

/* Of a block, with the reserved part left out. */
static unsigned shared_limit(void)
{
    switch (arch()) {
    case 80:
    case 87:
        return 163 * 1024;
    case 90:
    case 100:
    case 103:
    case 110:
        return 227 * 1024;
    default:
        return 99 * 1024;
    }
}

static unsigned complain(unsigned result, const char *format, const char *what)
{
    fprintf(stderr, "emulator: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "\n");
    return result;
}

static void *current_context(void)
{
    return context_depth ? context_stack[context_depth - 1] : NULL;
}

static unsigned current_context_state(void)
{
    if (!initialized) return NOT_INITIALIZED;
    return current_context() && retained > 0 ? SUCCESS : INVALID_CONTEXT;
}

/* ---- device ---- */

EXPORT unsigned cuInit(unsigned flags)
{
    if (flags) return INVALID_VALUE;
    if (device_count() == 0) return NO_DEVICE;
    initialized = true;
    return SUCCESS;
}

EXPORT unsigned cuDriverGetVersion(int *version)
{
    *version = 13000;
    return SUCCESS;
}

static const struct {
    unsigned number;
    const char *name, *text;
} errors[] = {
    { SUCCESS, "CUDA_SUCCESS", "no error" },
    { INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
    { NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
    { NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
    { INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid" },
    { INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
    { NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
      "no kernel image is available for execution on the device" },
    { INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready" },
};

static unsigned describe_error(unsigned error, const char **text, bool name)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].number != error) continue;
        *text = name ? errors[i].name : errors[i].text;
        return SUCCESS;
    }
    *text = NULL;
    return INVALID_VALUE;
}

EXPORT unsigned cuGetErrorString(unsigned error, const char **text)
{
    return describe_error(error, text, false);
}

EXPORT unsigned cuGetErrorName(unsigned error, const char **text)
{
    return describe_error(error, text, true);
}

EXPORT unsigned cuDeviceGetCount(int *count)
{
    if (!initialized) return NOT_INITIALIZED;
    *count = device_count();
    return SUCCESS;
}

static unsigned device_state(int device)
{
    if (!initialized) return NOT_INITIALIZED;
    return device >= 0 && device < device_count() ? SUCCESS : INVALID_DEVICE;
}

EXPORT unsigned cuDeviceGet(int *device, int ordinal)
{
    const unsigned result = device_state(ordinal);
    if (result == SUCCESS) *device = ordinal;
    return result;
}

EXPORT unsigned cuDeviceGetName(char *name, int length, int device)
{
    const unsigned result = device_state(device);
    if (result == SUCCESS) snprintf(name, (size_t)length, "emulated");
    return result;
}

EXPORT unsigned cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    const unsigned result = device_state(device);
    if (result == SUCCESS) *bytes = memory_bytes();
    return result;
}

EXPORT unsigned cuDeviceGetAttribute(int *value, unsigned attribute, int device)
{
    const unsigned result = device_state(device);
    if (result != SUCCESS) return result;
    const int fixed[128] = {
        [1] = MAX_THREADS, [2] = 1024,   [3] = 1024,     [4] = 64,
        [5] = 2147483647,  [6] = 65535,  [7] = 65535,    [8] = DEFAULT_SHARED,
        [10] = WARP,       [12] = 65536, [13] = 1000000, [31] = 1,
        [38] = 1 << 25,    [39] = 2048,  [41] = 1,       [82] = 65536,
        [83] = 1,          [89] = 1,     [106] = 32,     [111] = RESERVED_SHARED,
    };
    switch (attribute) {
    case 16:
        *value = (int)setting("GDP_EMULATED_PROCESSORS", 4);
        break;
    case 75:
        *value = arch() / 10;
        break;
    case 76:
        *value = arch() % 10;
        break;
    case 81:
        *value = (int)shared_limit() + RESERVED_SHARED;
        break;
    case 97:
        *value = (int)shared_limit();
        break;
    default:
        if (attribute == 0 || attribute > 200) return INVALID_VALUE;
        *value = attribute < 128 ? fixed[attribute] : 0;
    }
    return SUCCESS;
}

/* ---- contexts ---- */

EXPORT unsigned cuDevicePrimaryCtxRetain(void **context, int device)
{
    const unsigned result = device_state(device);
    if (result != SUCCESS) return result;
    pthread_mutex_lock(&mutex);
    retained++;
    pthread_mutex_unlock(&mutex);
    *context = &contexts[device];
    return SUCCESS;
}

EXPORT unsigned cuDevicePrimaryCtxRelease_v2(int device)
{
    const unsigned result = device_state(device);
    if (result != SUCCESS) return result;
    pthread_mutex_lock(&mutex);
    const bool any = retained > 0;
    retained -= any;
    pthread_mutex_unlock(&mutex);
    return any ? SUCCESS : complain(INVALID_CONTEXT, "%s: it is not retained", __func__);
}

static bool is_context(const void *context)
{
    return (const char *)context >= contexts && (const char *)context < contexts + sizeof contexts;
}

EXPORT unsigned cuCtxPushCurrent_v2(void *context)
{
    if (!initialized) return NOT_INITIALIZED;
    if (!is_context(context)) return INVALID_CONTEXT;
    if (context_depth == CONTEXT_DEPTH) return complain(OUT_OF_MEMORY, "%s: too deep", __func__);
    context_stack[context_depth++] = context;
    return SUCCESS;
}

EXPORT unsigned cuCtxPopCurrent_v2(void **context)
{
    if (!initialized) return NOT_INITIALIZED;
    if (context_depth == 0) return INVALID_CONTEXT;
    context_depth--;
    if (context) *context = context_stack[context_depth];
    return SUCCESS;
}

EXPORT unsigned cuCtxSetCurrent(void *context)
{
    if (!initialized) return NOT_INITIALIZED;
    if (context && !is_context(context)) return INVALID_CONTEXT;
    if (context_depth == 0) context_depth = 1;
    context_stack[context_depth - 1] = context;
    if (!context) context_depth--;
    return SUCCESS;
}

EXPORT unsigned cuCtxGetCurrent(void **context)
{
    if (!initialized) return NOT_INITIALIZED;
    *context = current_context();
    return SUCCESS;
}

EXPORT unsigned cuCtxGetDevice(int *device)
{
    if (!initialized) return NOT_INITIALIZED;
    const char *context = current_context();
    if (!context) return INVALID_CONTEXT;
    *device = (int)(context - contexts);
    return SUCCESS;
}

EXPORT unsigned cuCtxSynchronize(void)
{
    NEED_CONTEXT;
    return SUCCESS;
}

/* ---- modules and functions ---- */

/* Bytes of an ELF file: its section headers are its end. */
static size_t image_bytes(const void *image)
{
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return 0;
    return header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
}

/* From a file of its own, because the loader takes two equal names for the same library. */
static void *load_image(const void *image, size_t bytes)
{
    char path[4096];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/gdp-emulated-XXXXXX", folder && *folder ? folder : "/tmp");
    const int descriptor = mkstemp(path);
    if (descriptor < 0) return NULL;
    const bool written = write(descriptor, image, bytes) == (ssize_t)bytes;
    close(descriptor);
    void *library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) fprintf(stderr, "emulator: %s\n", written ? dlerror() : "cannot write an image");
    unlink(path);
    return library;
}

EXPORT unsigned cuModuleLoadData(module **made, const void *image)
{
    NEED_CONTEXT;
    const size_t bytes = image ? image_bytes(image) : 0;
    void *library = bytes ? load_image(image, bytes) : NULL;
    if (!library) return INVALID_IMAGE;
    const int *for_arch = dlsym(library, "emulated_arch");
    const unsigned *args_bytes = dlsym(library, "emulated_args_bytes");
    unsigned result = SUCCESS;
    if (!for_arch || !args_bytes || *args_bytes > MAX_ARGS)
        result = INVALID_IMAGE;
    else if (*for_arch / 10 != arch() / 10 || *for_arch > arch())
        result = NO_BINARY_FOR_GPU;
    *made = result == SUCCESS ? calloc(1, sizeof **made) : NULL;
    if (result == SUCCESS && !*made) result = OUT_OF_MEMORY;
    if (result == SUCCESS)
        **made = (module){ library, *args_bytes };
    else
        dlclose(library);
    return result;
}

EXPORT unsigned cuModuleLoadDataEx(module **made, const void *image, unsigned count, void *options,
                                   void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(made, image);
}

EXPORT unsigned cuModuleUnload(module *unloaded)
{
    NEED_CONTEXT;
    if (!unloaded) return INVALID_HANDLE;
    pthread_mutex_lock(&mutex);
    for (function **at = &functions; *at;) {
        function *f = *at;
        if (f->module == unloaded) {
            *at = f->next;
            free(f);
        } else {
            at = &f->next;
        }
    }
    dlclose(unloaded->library);
    free(unloaded);
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

EXPORT unsigned cuModuleGetFunction(function **found, module *from, const char *name)
{
    NEED_CONTEXT;
    if (!from || !name) return INVALID_VALUE;
    void *symbol = dlsym(from->library, name);
    if (!symbol) return NOT_FOUND;
    function *f = calloc(1, sizeof *f);
    if (!f) return OUT_OF_MEMORY;
    f->module = from;
    memcpy(&f->entry, &symbol, sizeof f->entry);
    f->shared_limit = DEFAULT_SHARED;
    snprintf(f->name, sizeof f->name, "%s", name);
    pthread_mutex_lock(&mutex);
    f->next = functions;
    functions = f;
    pthread_mutex_unlock(&mutex);
    *found = f;
    return SUCCESS;
}

static bool is_function(const function *wanted)
{
    for (const function *f = functions; f; f = f->next)
        if (f == wanted) return true;
    return false;
}

EXPORT unsigned cuFuncSetAttribute(function *f, unsigned attribute, int value)
{
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    unsigned result = is_function(f) ? SUCCESS : INVALID_HANDLE;
    if (result == SUCCESS && attribute == 8) { /* dynamic shared memory */
        if (value < 0 || (unsigned)value > shared_limit())
            result = INVALID_VALUE;
        else
            f->shared_limit = (unsigned)value;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT unsigned cuFuncGetAttribute(int *value, unsigned attribute, function *f)
{
    NEED_CONTEXT;
    const int values[] = { MAX_THREADS, 0, 0, 0, 64, arch(), arch(), 0, (int)f->shared_limit, -1 };
    if (attribute >= sizeof values / sizeof *values) return INVALID_VALUE;
    *value = values[attribute];
    return SUCCESS;
}

EXPORT unsigned cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, function *f, int threads,
                                                            size_t shared_bytes)
{
    NEED_CONTEXT;
    if (!f || threads <= 0) return INVALID_VALUE;
    const size_t shared = (shared_limit() + RESERVED_SHARED) / (shared_bytes + RESERVED_SHARED);
    const int by_threads = 2048 / threads;
    *blocks = by_threads < (int)shared ? by_threads : (int)shared;
    return SUCCESS;
}

/* ---- memory ---- */

static unsigned allocate(void **address, size_t bytes, enum memory_kind kind)
{
    NEED_CONTEXT;
    if (!address || bytes == 0) return INVALID_VALUE;
    ENTER;
    const bool fits =
        kind == MEMORY_HOST || (bytes <= memory_bytes() && used_memory() <= memory_bytes() - bytes);
    void *start = fits ? allocate_memory(bytes, kind) : NULL;
    if (start) *address = start;
    LEAVE(start ? SUCCESS : OUT_OF_MEMORY);
}

static unsigned release(void *address, bool of_device, const char *caller)
{
    NEED_CONTEXT;
    if (!address) return SUCCESS;
    ENTER;
    const bool freed = free_memory(address, of_device);
    LEAVE(freed ? SUCCESS : complain(INVALID_VALUE, "%s: not an address that it gave", caller));
}

EXPORT unsigned cuMemAlloc_v2(void **address, size_t bytes)
{
    return allocate(address, bytes, MEMORY_DEVICE);
}

EXPORT unsigned cuMemFree_v2(void *address) { return release(address, true, __func__); }

EXPORT unsigned cuMemAllocAsync(void **address, size_t bytes, void *stream)
{
    (void)stream;
    return allocate(address, bytes, MEMORY_DEVICE);
}

EXPORT unsigned cuMemFreeAsync(void *address, void *stream)
{
    (void)stream;
    return release(address, true, __func__);
}

/* What both the program and the device reach. */
EXPORT unsigned cuMemAllocManaged(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(address, bytes, MEMORY_MANAGED);
}

EXPORT unsigned cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(address, bytes, MEMORY_HOST);
}

EXPORT unsigned cuMemAllocHost_v2(void **address, size_t bytes)
{
    return allocate(address, bytes, MEMORY_HOST);
}

EXPORT unsigned cuMemFreeHost(void *address) { return release(address, false, __func__); }

EXPORT unsigned cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    NEED_CONTEXT;
    (void)flags;
    ENTER;
    LEAVE(register_memory(address, bytes) ? SUCCESS : OUT_OF_MEMORY);
}

EXPORT unsigned cuMemHostUnregister(void *address) { return release(address, false, __func__); }

EXPORT unsigned cuMemGetInfo_v2(size_t *left, size_t *all)
{
    NEED_CONTEXT;
    *all = memory_bytes();
    *left = *all - used_memory();
    return SUCCESS;
}

/* Of the attributes: 2 memory type (1 host, 2 device), 8 managed, 9 device ordinal. */
EXPORT unsigned cuPointerGetAttribute(void *data, unsigned attribute, void *address)
{
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    const block_of_memory *block = find_memory(address, 1);
    const enum memory_kind kind = block ? block->kind : MEMORY_HOST;
    pthread_mutex_unlock(&mutex);
    if (!block) return INVALID_VALUE;
    switch (attribute) {
    case 2:
        *(unsigned *)data = kind == MEMORY_DEVICE || kind == MEMORY_MANAGED ? 2 : 1;
        return SUCCESS;
    case 8:
        *(unsigned *)data = kind == MEMORY_MANAGED;
        return SUCCESS;
    case 9:
        *(int *)data = 0;
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

/* Whether all of the bytes are the device's, or none of them: then they are the program's. */
static bool is_whole(const void *address, size_t bytes)
{
    return !find_memory(address, 1) || find_memory(address, bytes);
}

static unsigned copy_bytes(void *to, const void *from, size_t bytes, const char *caller)
{
    NEED_CONTEXT;
    if (bytes == 0) return SUCCESS;
    ENTER;
    if (!is_whole(to, bytes) || !is_whole(from, bytes))
        LEAVE(complain(INVALID_VALUE, "%s: beyond the end of a block", caller));
    memcpy(to, from, bytes);
    LEAVE(SUCCESS);
}

static unsigned copy_checked(void *to, const void *from, size_t bytes, bool to_device,
                             bool from_device, const char *caller)
{
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    const bool right = bytes == 0 || ((!to_device || find_memory(to, bytes)) &&
                                      (!from_device || find_memory(from, bytes)));
    pthread_mutex_unlock(&mutex);
    if (!right) return complain(INVALID_VALUE, "%s: not the device's memory", caller);
    return copy_bytes(to, from, bytes, caller);
}

EXPORT unsigned cuMemcpy(void *to, const void *from, size_t bytes)
{
    return copy_bytes(to, from, bytes, __func__);
}

EXPORT unsigned cuMemcpyAsync(void *to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    return copy_bytes(to, from, bytes, __func__);
}

EXPORT unsigned cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes)
{
    return copy_checked(to, from, bytes, true, false, __func__);
}

EXPORT unsigned cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes)
{
    return copy_checked(to, from, bytes, false, true, __func__);
}

EXPORT unsigned cuMemcpyDtoD_v2(void *to, const void *from, size_t bytes)
{
    return copy_checked(to, from, bytes, true, true, __func__);
}

EXPORT unsigned cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    return copy_checked(to, from, bytes, true, false, __func__);
}

EXPORT unsigned cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    return copy_checked(to, from, bytes, false, true, __func__);
}

EXPORT unsigned cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    return copy_checked(to, from, bytes, true, true, __func__);
}

static unsigned fill(void *address, const void *value, size_t size, size_t count,
                     const char *caller)
{
    NEED_CONTEXT;
    if (count == 0) return SUCCESS;
    ENTER;
    if ((uintptr_t)address % size || !find_memory(address, size * count))
        LEAVE(complain(INVALID_VALUE, "%s: not the device's memory", caller));
    for (size_t i = 0; i < count; i++) memcpy((char *)address + i * size, value, size);
    LEAVE(SUCCESS);
}

EXPORT unsigned cuMemsetD8_v2(void *address, unsigned char byte, size_t count)
{
    return fill(address, &byte, sizeof byte, count, __func__);
}

EXPORT unsigned cuMemsetD8Async(void *address, unsigned char byte, size_t count, void *stream)
{
    (void)stream;
    return fill(address, &byte, sizeof byte, count, __func__);
}

EXPORT unsigned cuMemsetD32_v2(void *address, unsigned value, size_t count)
{
    return fill(address, &value, sizeof value, count, __func__);
}

EXPORT unsigned cuMemsetD32Async(void *address, unsigned value, size_t count, void *stream)
{
    (void)stream;
    return fill(address, &value, sizeof value, count, __func__);
}

/* ---- launches ---- */

/* Whether there is memory at an address; small numbers are none. */
static bool is_mapped(uint64_t address)
{
    unsigned char resident;
    const uint64_t page = address & ~(uint64_t)4095;
    return address >> 32 && mincore((void *)(uintptr_t)page, 1, &resident) == 0;
}

/* No pointer in a kernel's argument may be to memory that only the program has. */
static void check_args(const function *f, const void *args)
{
    for (unsigned at = 0; at + 8 <= f->module->args_bytes; at += 8) {
        uint64_t word;
        memcpy(&word, (const char *)args + at, sizeof word);
        if (!is_mapped(word) || near_memory((const void *)(uintptr_t)word)) continue;
        fprintf(stderr,
                "emulator: kernel %s: byte %u of its argument is an address of the "
                "program's memory, %p\n",
                f->name, at, (void *)(uintptr_t)word);
        abort();
    }
}

static bool valid_launch(const launch *what)
{
    const dim g = what->grid, b = what->block;
    return g.x > 0 && g.y > 0 && g.z > 0 && g.x <= 2147483647 && g.y <= 65535 && g.z <= 65535 &&
           b.x > 0 && b.y > 0 && b.z > 0 && b.x <= 1024 && b.y <= 1024 && b.z <= 64 &&
           (size_t)b.x * b.y * b.z <= MAX_THREADS;
}

EXPORT unsigned cuLaunchKernel(function *f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z,
                               unsigned shared_bytes, void *stream, void **parameters, void **extra)
{
    NEED_CONTEXT;
    (void)stream;
    ENTER;
    if (!is_function(f)) LEAVE(INVALID_HANDLE);
    _Alignas(16) char args[MAX_ARGS];
    if (parameters) memcpy(args, parameters[0], f->module->args_bytes);
    const launch what = { .function = f->entry,
                          .name = f->name,
                          .args = args,
                          .grid = { grid_x, grid_y, grid_z },
                          .block = { block_x, block_y, block_z },
                          .shared_bytes = shared_bytes };
    if (!valid_launch(&what) || !parameters || extra || shared_bytes > f->shared_limit)
        LEAVE(INVALID_VALUE);
    check_args(f, args);
    run_launch(&what);
    check_guards(f->name);
    LEAVE(SUCCESS);
}

EXPORT unsigned cuLaunchHostFunc(void *stream, void (*call)(void *), void *data)
{
    NEED_CONTEXT;
    (void)stream;
    call(data);
    return SUCCESS;
}

/* ---- streams and events ---- */

EXPORT unsigned cuStreamCreate(void **stream, unsigned flags)
{
    NEED_CONTEXT;
    (void)flags;
    *stream = malloc(1);
    return *stream ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT unsigned cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(stream, flags);
}

EXPORT unsigned cuStreamDestroy_v2(void *stream)
{
    NEED_CONTEXT;
    free(stream);
    return SUCCESS;
}

EXPORT unsigned cuStreamSynchronize(void *stream)
{
    NEED_CONTEXT;
    (void)stream;
    return SUCCESS;
}

EXPORT unsigned cuStreamQuery(void *stream) { return cuStreamSynchronize(stream); }

EXPORT unsigned cuStreamWaitEvent(void *stream, event *waited_for, unsigned flags)
{
    NEED_CONTEXT;
    (void)stream, (void)flags;
    return waited_for ? SUCCESS : INVALID_HANDLE;
}

EXPORT unsigned cuEventCreate(event **made, unsigned flags)
{
    NEED_CONTEXT;
    (void)flags;
    *made = calloc(1, sizeof **made);
    return *made ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT unsigned cuEventDestroy_v2(event *destroyed)
{
    NEED_CONTEXT;
    if (!destroyed) return INVALID_HANDLE;
    free(destroyed);
    return SUCCESS;
}

EXPORT unsigned cuEventRecord(event *recorded, void *stream)
{
    NEED_CONTEXT;
    (void)stream;
    if (!recorded) return INVALID_HANDLE;
    clock_gettime(CLOCK_MONOTONIC, &recorded->time);
    recorded->recorded = true;
    return SUCCESS;
}

EXPORT unsigned cuEventSynchronize(event *waited_for)
{
    NEED_CONTEXT;
    return waited_for ? SUCCESS : INVALID_HANDLE;
}

EXPORT unsigned cuEventQuery(event *asked) { return cuEventSynchronize(asked); }

EXPORT unsigned cuEventElapsedTime(float *milliseconds, const event *from, const event *to)
{
    NEED_CONTEXT;
    if (!from || !to || !from->recorded || !to->recorded) return INVALID_HANDLE;
    *milliseconds = (float)(1e3 * (double)(to->time.tv_sec - from->time.tv_sec) +
                            1e-6 * (double)(to->time.tv_nsec - from->time.tv_nsec));
    return SUCCESS;
}

EXPORT unsigned cuEventElapsedTime_v2(float *milliseconds, const event *from, const event *to)
{
    return cuEventElapsedTime(milliseconds, from, to);
}
