/* System calls of the cache that fail when a test's breaks() says so. The test is linked with
 * --wrap=open, rename, unlink, fsync and write. */
#ifndef CACHE_CALLS_H
#define CACHE_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

enum call { NOTHING, OPEN, RENAME, UNLINK, FSYNC, WRITE, CALLS };

/** Defined by the test: whether this call is to fail now, with errno set. */
static bool breaks(enum call call, const char *path);

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __real_fsync(int file);
int __wrap_fsync(int file);
ssize_t __real_write(int file, const void *data, size_t size);
ssize_t __wrap_write(int file, const void *data, size_t size);

static inline bool breaks_for_file(enum call call, int file)
{
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = '\0';
    return breaks(call, path);
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return breaks(OPEN, path) ? -1 : __real_open(path, flags, mode);
}

int __wrap_rename(const char *from, const char *to)
{
    return breaks(RENAME, from) ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char *path) { return breaks(UNLINK, path) ? -1 : __real_unlink(path); }

int __wrap_fsync(int file) { return breaks_for_file(FSYNC, file) ? -1 : __real_fsync(file); }

ssize_t __wrap_write(int file, const void *data, size_t size)
{
    return breaks_for_file(WRITE, file) ? -1 : __real_write(file, data, size);
}

#endif
