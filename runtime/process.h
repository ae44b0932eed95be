/* Files and child processes, as the cache and the host target need them. */
#ifndef GDPI_PROCESS_H
#define GDPI_PROCESS_H

#include <stddef.h>
#include <sys/types.h>

/** The system's English words for errno; never NULL. */
const char *gdpi_describe_errno(int error);

/** Bytes read, fewer than `size` only at the file's end; -1 with errno. */
ssize_t gdpi_read_all(int file, void *data, size_t size);

/** 0 or errno. */
int gdpi_write_all(int file, const void *data, size_t size);

/** A file without a name, its descriptor above those of a child's standard streams; -1 with
 * errno. */
int gdpi_open_anonymous(void);

/** Runs a program (a path) with its output going to the file `output`, and nothing else inherited.
 * *result: as of waitpid. 0 or errno. */
int gdpi_run(const char *const *arguments, char *const *environment, int output, int *result);

#endif
