/* Files and child processes: interrupted calls go on, descriptors close on exec. */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

const char *gdpi_describe_errno(int error)
{
    const char *text = strerrordesc_np(error);
    return text ? text : "unknown error";
}

ssize_t gdpi_read_all(int file, void *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        const ssize_t got = read(file, (char *)data + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

int gdpi_write_all(int file, const void *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t put = write(file, (const char *)data + done, size - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return errno;
        done += (size_t)put;
    }
    return 0;
}

int gdpi_open_anonymous(void)
{
    int file = memfd_create("gdp", MFD_CLOEXEC);
    if (file < 0) {
        char path[] = "/tmp/gdp_XXXXXX";
        file = mkostemp(path, O_CLOEXEC);
        if (file >= 0) unlink(path);
    }
    if (file < 0 || file > 2) return file;
    const int moved = fcntl(file, F_DUPFD_CLOEXEC, 3);
    const int error = errno;
    close(file);
    errno = error;
    return moved;
}

int gdpi_run(const char *const *arguments, char *const *environment, int output, int *result)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    pid_t child = -1;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    if (posix_spawn_file_actions_init(&actions)) return ENOMEM;
    if (posix_spawnattr_init(&attributes)) {
        posix_spawn_file_actions_destroy(&actions);
        return ENOMEM;
    }
    int error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!error) error = posix_spawn_file_actions_adddup2(&actions, output, 1);
    if (!error) error = posix_spawn_file_actions_adddup2(&actions, output, 2);
#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
    if (!error) error = posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
#endif
    if (!error) error = posix_spawnattr_setsigmask(&attributes, &none);
    if (!error) error = posix_spawnattr_setsigdefault(&attributes, &all);
    if (!error)
        error =
            posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!error)
        error = posix_spawn(&child, arguments[0], &actions, &attributes,
                            (char *const *)(uintptr_t)arguments, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error) return error;
    /* An application that ignores SIGCHLD leaves no status: then the result speaks for itself. */
    *result = 0;
    while (waitpid(child, result, 0) < 0 && errno == EINTR) continue;
    return 0;
}
