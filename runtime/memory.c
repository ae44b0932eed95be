/* The context's allocation hooks, with a sentence where they fail. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void *gdpi_allocate(const gdpi_allocator *allocator, size_t bytes)
{
    /* A hook may answer NULL to 0 bytes, which would look like a failure. */
    void *memory = allocator->allocate(allocator->user, bytes ? bytes : 1);
    if (!memory)
        gdpi_fail(GDP_STATUS_OUT_OF_MEMORY, "out of memory: %zu bytes were refused", bytes);
    return memory;
}

void *gdpi_allocate_zeroed(const gdpi_allocator *allocator, size_t bytes)
{
    void *memory = gdpi_allocate(allocator, bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

void gdpi_release(const gdpi_allocator *allocator, void *memory)
{
    if (memory) allocator->release(allocator->user, memory);
}

char *gdpi_copy_text(const gdpi_allocator *allocator, const char *text)
{
    const size_t size = strlen(text) + 1;
    char *copy = gdpi_allocate(allocator, size);
    if (copy) memcpy(copy, text, size);
    return copy;
}

char *gdpi_format_text(const gdpi_allocator *allocator, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = length < 0 ? NULL : gdpi_allocate(allocator, (size_t)length + 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}
