/* Memory, waiting and time on a context's target: the host's own, or the device's by the driver. */
#include <string.h>
#include <time.h>

#include "libraries.h"

enum { PUBLIC_ALIGNMENT = 256 };

static gdpi_cu_address address_of(const void *memory) { return (gdpi_cu_address)(uintptr_t)memory; }

static bool on_device(const gdp_context *context) { return context->target == GDP_TARGET_CUDA; }

static gdp_status check_pointer(const void *pointer, const char *name)
{
    return pointer ? GDP_OK : gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s is NULL", name);
}

/* ---- memory ---- */

/* The block's own address stands right before what the caller gets. */
static void *allocate_on_host(const gdpi_allocator *allocator, size_t bytes)
{
    const size_t room = PUBLIC_ALIGNMENT + sizeof(void *);
    if (bytes > SIZE_MAX - room) {
        gdpi_fail(GDP_STATUS_OUT_OF_MEMORY, "out of memory: %zu bytes were asked for", bytes);
        return NULL;
    }
    char *block = gdpi_allocate(allocator, bytes + room);
    if (!block) return NULL;
    char *first = block + sizeof(void *);
    char *aligned =
        first + (PUBLIC_ALIGNMENT - (uintptr_t)first % PUBLIC_ALIGNMENT) % PUBLIC_ALIGNMENT;
    memcpy(aligned - sizeof(void *), &block, sizeof block);
    return aligned;
}

gdp_status gdp_memory_allocate(gdp_context *context, size_t bytes, void **memory)
{
    GDPI_TRY(check_pointer(context, "context"));
    GDPI_TRY(check_pointer(memory, "memory"));
    *memory = NULL;
    if (bytes == 0) return GDP_OK;
    if (!on_device(context)) {
        *memory = allocate_on_host(&context->allocator, bytes);
        return *memory ? GDP_OK : GDP_STATUS_OUT_OF_MEMORY;
    }
    gdpi_cu_address address = 0;
    GDPI_TRY(gdpi_cuda_enter(context->device));
    const unsigned error = context->device->api.cuMemAlloc_v2(&address, bytes);
    gdpi_cuda_leave(context->device);
    if (error == GDPI_CU_ERROR_OUT_OF_MEMORY)
        return gdpi_fail(GDP_STATUS_OUT_OF_MEMORY,
                         "out of memory on the device: %zu bytes were refused", bytes);
    GDPI_TRY(gdpi_cuda_check(context->device, error, "cuMemAlloc"));
    *memory = (void *)(uintptr_t)address;
    return GDP_OK;
}

void gdp_memory_release(gdp_context *context, void *memory)
{
    if (!context || !memory) return;
    if (!on_device(context)) {
        void *block;
        memcpy(&block, (char *)memory - sizeof block, sizeof block);
        gdpi_release(&context->allocator, block);
    } else if (gdpi_cuda_enter(context->device) == GDP_OK) {
        context->device->api.cuMemFree_v2(address_of(memory));
        gdpi_cuda_leave(context->device);
    }
}

/* Between enter and leave. A copy within the device returns before it is done, so it is waited for. */
static gdp_status copy_and_wait(const gdpi_cuda *cuda, void *to, const void *from, size_t bytes)
{
    GDPI_TRY(GDPI_CU_CALL(cuda, cuMemcpy, address_of(to), address_of(from), bytes));
    return GDPI_CU_CALL(cuda, cuStreamSynchronize, NULL);
}

gdp_status gdp_memory_copy(gdp_context *context, void *to, const void *from, size_t bytes)
{
    GDPI_TRY(check_pointer(context, "context"));
    if (bytes == 0) return GDP_OK;
    GDPI_TRY(check_pointer(to, "to"));
    GDPI_TRY(check_pointer(from, "from"));
    if (!on_device(context)) {
        memmove(to, from, bytes);
        return GDP_OK;
    }
    GDPI_TRY(gdpi_cuda_enter(context->device));
    const gdp_status status = copy_and_wait(context->device, to, from, bytes);
    gdpi_cuda_leave(context->device);
    return status;
}

gdp_status gdpi_memory_copy_on(gdp_context *context, void *to, const void *from, size_t bytes,
                               gdp_stream stream)
{
    if (bytes == 0) return GDP_OK;
    if (!on_device(context)) {
        memcpy(to, from, bytes);
        return GDP_OK;
    }
    const gdpi_cuda *cuda = context->device;
    GDPI_TRY(gdpi_cuda_enter(cuda));
    const gdp_status status =
        GDPI_CU_CALL(cuda, cuMemcpyAsync, address_of(to), address_of(from), bytes, stream);
    gdpi_cuda_leave(cuda);
    return status;
}

static gdp_status fill_and_wait(const gdpi_cuda *cuda, void *memory, int byte, size_t bytes)
{
    GDPI_TRY(GDPI_CU_CALL(cuda, cuMemsetD8_v2, address_of(memory), (unsigned char)byte, bytes));
    return GDPI_CU_CALL(cuda, cuStreamSynchronize, NULL);
}

gdp_status gdp_memory_fill(gdp_context *context, void *memory, int byte, size_t bytes)
{
    GDPI_TRY(check_pointer(context, "context"));
    if (bytes == 0) return GDP_OK;
    GDPI_TRY(check_pointer(memory, "memory"));
    if (!on_device(context)) {
        memset(memory, byte, bytes);
        return GDP_OK;
    }
    GDPI_TRY(gdpi_cuda_enter(context->device));
    const gdp_status status = fill_and_wait(context->device, memory, byte, bytes);
    gdpi_cuda_leave(context->device);
    return status;
}

gdp_status gdp_stream_synchronize(gdp_context *context, gdp_stream stream)
{
    GDPI_TRY(check_pointer(context, "context"));
    if (!on_device(context)) return GDP_OK;
    GDPI_TRY(gdpi_cuda_enter(context->device));
    const gdp_status status = GDPI_CU_CALL(context->device, cuStreamSynchronize, stream);
    gdpi_cuda_leave(context->device);
    return status;
}

/* ---- time: mark 0 is the start, mark 1 the stop ---- */

struct gdp_timer {
    gdp_context *context;
    bool marked[2];
    gdpi_cu_event events[2];  /* of the device */
    struct timespec times[2]; /* of the host */
};

static gdp_status create_events(const gdpi_cuda *cuda, gdp_timer *timer)
{
    gdp_status status = gdpi_cuda_enter(cuda);
    if (status != GDP_OK) return status;
    for (int i = 0; i < 2 && status == GDP_OK; i++)
        status = GDPI_CU_CALL(cuda, cuEventCreate, &timer->events[i], 0);
    gdpi_cuda_leave(cuda);
    return status;
}

gdp_status gdp_timer_create(gdp_context *context, gdp_timer **timer)
{
    GDPI_TRY(check_pointer(context, "context"));
    GDPI_TRY(check_pointer(timer, "timer"));
    *timer = NULL;
    gdp_timer *made = gdpi_allocate_zeroed(&context->allocator, sizeof *made);
    if (!made) return GDP_STATUS_OUT_OF_MEMORY;
    made->context = context;
    const gdp_status status = on_device(context) ? create_events(context->device, made) : GDP_OK;
    if (status == GDP_OK)
        *timer = made;
    else
        gdp_timer_destroy(made);
    return status;
}

void gdp_timer_destroy(gdp_timer *timer)
{
    if (!timer) return;
    const gdpi_cuda *cuda = timer->context->device;
    if (timer->events[0] && gdpi_cuda_enter(cuda) == GDP_OK) {
        for (int i = 0; i < 2; i++)
            if (timer->events[i]) cuda->api.cuEventDestroy_v2(timer->events[i]);
        gdpi_cuda_leave(cuda);
    }
    gdpi_release(&timer->context->allocator, timer);
}

static gdp_status mark(gdp_timer *timer, int which, gdp_stream stream)
{
    GDPI_TRY(check_pointer(timer, "timer"));
    gdp_status status = GDP_OK;
    if (on_device(timer->context)) {
        const gdpi_cuda *cuda = timer->context->device;
        GDPI_TRY(gdpi_cuda_enter(cuda));
        status = GDPI_CU_CALL(cuda, cuEventRecord, timer->events[which], stream);
        gdpi_cuda_leave(cuda);
    } else {
        clock_gettime(CLOCK_MONOTONIC, &timer->times[which]);
    }
    timer->marked[which] = status == GDP_OK;
    if (which == 0) timer->marked[1] = false;
    return status;
}

gdp_status gdp_timer_start(gdp_timer *timer, gdp_stream stream) { return mark(timer, 0, stream); }
gdp_status gdp_timer_stop(gdp_timer *timer, gdp_stream stream) { return mark(timer, 1, stream); }

static gdp_status read_events(const gdpi_cuda *cuda, const gdp_timer *timer, float *milliseconds)
{
    GDPI_TRY(GDPI_CU_CALL(cuda, cuEventSynchronize, timer->events[1]));
    return GDPI_CU_CALL(cuda, cuEventElapsedTime, milliseconds, timer->events[0], timer->events[1]);
}

gdp_status gdp_timer_read(gdp_timer *timer, double *seconds)
{
    GDPI_TRY(check_pointer(timer, "timer"));
    GDPI_TRY(check_pointer(seconds, "seconds"));
    *seconds = 0;
    if (!timer->marked[0] || !timer->marked[1])
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "timer was not started and then stopped; there is nothing to read");
    if (!on_device(timer->context)) {
        const struct timespec *at = timer->times;
        *seconds =
            (double)(at[1].tv_sec - at[0].tv_sec) + 1e-9 * (double)(at[1].tv_nsec - at[0].tv_nsec);
        return GDP_OK;
    }
    float milliseconds = 0;
    GDPI_TRY(gdpi_cuda_enter(timer->context->device));
    const gdp_status status = read_events(timer->context->device, timer, &milliseconds);
    gdpi_cuda_leave(timer->context->device);
    if (status == GDP_OK) *seconds = 1e-3 * (double)milliseconds;
    return status;
}
