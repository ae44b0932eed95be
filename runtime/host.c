/* The host target: finds and runs the machine's C compiler, and loads what it makes.
 * Nothing goes through a shell, and no child inherits a descriptor that it was not given. */
#include "internal.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_PATH = 4096, MAX_LOG = 8 * 1024, MAX_CPUINFO = 16 * 1024, MAX_LINE = 256 };
static const off_t MAX_BINARY = (off_t)1 << 30;

#if defined(__x86_64__) || defined(__i386__)
#define NATIVE "-march=native"
#else
#define NATIVE "-mcpu=native"
#endif

/* No -ffast-math: NaN and infinity pass through. -w: the log of a failure begins with its error.
 * Both the list of arguments and its text are made of this, with a word between the options. */
#define OPTIONS(between)                                                                \
    "-std=gnu11" between "-O3" between NATIVE between "-fPIC" between "-shared" between \
    "-fno-math-errno" between "-fno-trapping-math" between "-w"
#define COMMA ,

const char *gdpi_host_compiler_options(void) { return OPTIONS(" ") " -lm"; }

/* ---- finding the compiler ---- */

static bool is_program(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode) && access(path, X_OK) == 0;
}

/* Leaves `path` as the absolute path of `name`, or empty. */
static void find_program(const char *name, char *path)
{
    path[0] = '\0';
    if (strchr(name, '/')) {
        char *resolved = realpath(name, NULL); /* links stay below: clang looks at its own name */
        const bool fits = resolved && strlen(name) < MAX_PATH && is_program(resolved);
        if (fits) strcpy(path, name[0] == '/' ? name : resolved);
        free(resolved);
        return;
    }
    const char *rest = getenv("PATH");
    if (!rest || !rest[0]) rest = "/usr/local/bin:/usr/bin:/bin";
    while (*rest) {
        const int length = (int)strcspn(rest, ":");
        /* Only absolute ones: what is found must not depend on the working directory. */
        if (rest[0] == '/' && snprintf(path, MAX_PATH, "%.*s/%s", length, rest, name) < MAX_PATH &&
            is_program(path))
            return;
        rest += length;
        rest += *rest == ':';
    }
    path[0] = '\0';
}

gdp_status gdpi_host_find_compiler(const gdpi_allocator *allocator, const char *wanted, char **path)
{
    static const char *const candidates[] = { "cc", "clang", "gcc" };
    char found[MAX_PATH] = "";
    *path = NULL;
    if (wanted && wanted[0])
        find_program(wanted, found);
    else
        for (size_t i = 0; i < sizeof candidates / sizeof *candidates && !found[0]; i++)
            find_program(candidates[i], found);
    if (!found[0]) return GDP_OK;
    *path = gdpi_copy_text(allocator, found);
    return *path ? GDP_OK : GDP_STATUS_OUT_OF_MEMORY;
}

/* ---- the processor ---- */

/* The value of a line "name<tabs>: value" of /proc/cpuinfo. */
static void find_line(const char *text, const char *name, const char **value, int *length)
{
    const size_t size = strlen(name);
    *value = "";
    *length = 0;
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (*line == '\0' || *line == '\n') return; /* the end of the first processor */
        const char *colon = line + strcspn(line, ":\n");
        const size_t blanks = strncmp(line, name, size) ? 0 : strspn(line + size, "\t ");
        if (*colon != ':' || strncmp(line, name, size) || line + size + blanks != colon) continue;
        *value = colon + 1 + strspn(colon + 1, " ");
        *length = (int)strcspn(*value, "\n");
        return;
    }
}

char *gdpi_host_processor(const gdpi_allocator *allocator)
{
#if defined(__x86_64__) || defined(__i386__)
    static const char *const parts[] = { "model name", "cpu family", "model", "stepping", "flags" };
#else
    static const char *const parts[] = { "CPU implementer", "CPU part", "CPU variant",
                                         "CPU revision", "Features" };
#endif
    enum { PARTS = sizeof parts / sizeof *parts };
    char text[MAX_CPUINFO];
    const int file = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    const ssize_t size = file < 0 ? -1 : gdpi_read_all(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[size > 0 ? size : 0] = '\0';

    const char *value[PARTS];
    int length[PARTS];
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (int i = 0; i < PARTS; i++) {
        find_line(text, parts[i], &value[i], &length[i]);
        XXH3_64bits_update(&state, value[i], (size_t)length[i] + 1);
    }
    if (length[0] == 0) return gdpi_format_text(allocator, "an unknown " NATIVE " processor");
#if defined(__x86_64__) || defined(__i386__)
    const char *vectors = strstr(value[4], " avx512f") ? "AVX-512"
                          : strstr(value[4], " avx2")  ? "AVX2"
                                                       : "no AVX2";
    return gdpi_format_text(allocator, "%.*s (%s, features %016llx)", length[0], value[0], vectors,
                            (unsigned long long)XXH3_64bits_digest(&state));
#else
    return gdpi_format_text(allocator, "implementer %.*s part %.*s (features %016llx)", length[0],
                            value[0], length[1], value[1],
                            (unsigned long long)XXH3_64bits_digest(&state));
#endif
}

/* ---- running it ---- */

/* What the compiler's language and temporary files depend on is set by the library. */
static bool is_replaced(const char *variable)
{
    static const char *const names[] = { "LC_", "LANG=", "LANGUAGE=", "TMPDIR=" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0) return true;
    return false;
}

gdp_status gdpi_host_environment(const gdpi_allocator *allocator, char ***environment)
{
    static char language[] = "LC_ALL=C";
    size_t count = 0, bytes = 0;
    for (char **at = environ; at && *at; at++)
        if (!is_replaced(*at)) count++, bytes += strlen(*at) + 1;
    /* [0] is free for TMPDIR. */
    char **made = gdpi_allocate(allocator, (count + 3) * sizeof *made + bytes);
    *environment = made;
    if (!made) return GDP_STATUS_OUT_OF_MEMORY;
    char *text = (char *)(made + count + 3);
    size_t used = 2;
    made[0] = made[1] = language;
    for (char **at = environ; at && *at; at++) {
        if (is_replaced(*at)) continue;
        const size_t size = strlen(*at) + 1;
        made[used++] = memcpy(text, *at, size);
        text += size;
    }
    made[used] = NULL;
    return GDP_OK;
}

/* The beginning of the file's text, since the first error tells most. */
static void read_log(int file, char *text, size_t capacity)
{
    ssize_t size = lseek(file, 0, SEEK_SET) < 0 ? 0 : gdpi_read_all(file, text, capacity - 1);
    if (size < 0) size = 0;
    text[size] = '\0';
    for (char *at = text; at < text + size; at++)
        if (!*at) *at = '?';
    if (size == (ssize_t)capacity - 1) memcpy(text + size - 4, " ...", 4);
}

static gdp_status judge(const char *compiler, int error, int result, const char *log)
{
    if (error)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                         "the compiler %s cannot be started: %s (GDP_CC "
                         "names another one)",
                         compiler, gdpi_describe_errno(error));
    if (WIFSIGNALED(result))
        return gdpi_fail(GDP_STATUS_COMPILE_FAILED, "the compiler %s was killed by signal %d%s%s",
                         compiler, WTERMSIG(result), log[0] ? "; it said:\n" : "", log);
    if (WEXITSTATUS(result) != 0)
        return gdpi_fail(GDP_STATUS_COMPILE_FAILED,
                         "the compiler %s failed with exit status %d; it said:\n%s", compiler,
                         WEXITSTATUS(result), log[0] ? log : "(nothing)");
    return GDP_OK;
}

gdp_status gdpi_host_compiler_version(const gdpi_allocator *allocator, const char *compiler,
                                      char *const *environment, char **version)
{
    *version = NULL;
    const int output = gdpi_open_anonymous();
    if (output < 0)
        return gdpi_fail(GDP_STATUS_IO, "no file for the compiler's output: %s",
                         gdpi_describe_errno(errno));
    const char *const arguments[] = { compiler, "--version", NULL };
    char log[MAX_LINE];
    int result = 0;
    const int error = gdpi_run(arguments, environment, output, &result);
    read_log(output, log, sizeof log);
    close(output);
    log[strcspn(log, "\n")] = '\0';
    GDPI_TRY(judge(compiler, error, result, log));
    if (!log[0])
        return gdpi_fail(GDP_STATUS_COMPILE_FAILED, "the compiler %s has no --version", compiler);
    *version = gdpi_copy_text(allocator, log);
    return *version ? GDP_OK : GDP_STATUS_OUT_OF_MEMORY;
}

/* ---- compiling ---- */

static gdp_status fail_io(const char *what, const char *path)
{
    return gdpi_fail(GDP_STATUS_IO, "cannot %s %s: %s (TMPDIR names another directory)", what, path,
                     gdpi_describe_errno(errno));
}

/* Also what a killed compiler left: it was told to keep its own files here. */
static void remove_directory(const char *path)
{
    DIR *dir = opendir(path);
    if (dir) {
        for (struct dirent *entry; (entry = readdir(dir));)
            if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
                unlinkat(dirfd(dir), entry->d_name, 0);
        closedir(dir);
    }
    rmdir(path);
}

static gdp_status write_source(const char *path, const char *source)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return fail_io("create", path);
    int error = gdpi_write_all(file, source, strlen(source));
    if (close(file) && !error) error = errno;
    errno = error;
    return error ? fail_io("write", path) : GDP_OK;
}

static gdp_status read_binary(const gdpi_allocator *allocator, const char *path, gdpi_blob *binary)
{
    struct stat found;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &found) || found.st_size <= 0 || found.st_size > MAX_BINARY) {
        if (file >= 0) close(file);
        return gdpi_fail(GDP_STATUS_COMPILE_FAILED, "the compiler succeeded, but made no %s", path);
    }
    const size_t size = (size_t)found.st_size;
    void *data = gdpi_allocate(allocator, size);
    const ssize_t got = data ? gdpi_read_all(file, data, size) : -1;
    const gdp_status status = !data                  ? GDP_STATUS_OUT_OF_MEMORY
                              : got == (ssize_t)size ? GDP_OK
                                                     : fail_io("read", path);
    close(file);
    if (status)
        gdpi_release(allocator, data);
    else
        *binary = (gdpi_blob){ data, size };
    return status;
}

static gdp_status run_compiler(gdp_context *context, const char *dir, const char *input,
                               const char *output)
{
    const char *const arguments[] = {
        context->compiler, OPTIONS(COMMA), "-o", output, input, "-lm", NULL
    };
    size_t count = 0;
    while (context->environment[count]) count++;
    char temporary[MAX_PATH + 16];
    snprintf(temporary, sizeof temporary, "TMPDIR=%s", dir);
    char **environment = gdpi_allocate(&context->allocator, (count + 1) * sizeof *environment);
    if (!environment) return GDP_STATUS_OUT_OF_MEMORY;
    memcpy(environment, context->environment, (count + 1) * sizeof *environment);
    environment[0] = temporary;

    gdp_status status;
    const int log_file = gdpi_open_anonymous();
    if (log_file < 0) {
        status = fail_io("create", "a file for the compiler's output");
    } else {
        char log[MAX_LOG];
        int result = 0;
        const int error = gdpi_run(arguments, environment, log_file, &result);
        read_log(log_file, log, sizeof log);
        close(log_file);
        status = judge(context->compiler, error, result, log);
    }
    gdpi_release(&context->allocator, environment);
    return status;
}

gdp_status gdpi_host_compile(gdp_context *context, const char *source, gdpi_blob *binary)
{
    char dir[MAX_PATH], input[MAX_PATH + 16], output[MAX_PATH + 16];
    *binary = (gdpi_blob){ NULL, 0 };
    if (snprintf(dir, sizeof dir, "%s/gdp_XXXXXX", context->temp_dir) >= (int)sizeof dir)
        return gdpi_fail(GDP_STATUS_IO, "TMPDIR is longer than %d bytes", MAX_PATH);
    if (!mkdtemp(dir)) return fail_io("create", dir);
    snprintf(input, sizeof input, "%s/kernel.c", dir);
    snprintf(output, sizeof output, "%s/kernel.so", dir);
    gdp_status status = write_source(input, source);
    if (status == GDP_OK) status = run_compiler(context, dir, input, output);
    if (status == GDP_OK) status = read_binary(&context->allocator, output, binary);
    remove_directory(dir);
    return status;
}

/* ---- loading ---- */

/* dlopen takes two equal paths for the same library, and descriptors' numbers come back. So each
 * load spells its path in its own way, a number as ".//" and "./". Its upper part tells apart
 * several copies of this library in one process. */
static void spell_path(int file, char *path, size_t capacity)
{
    static _Atomic uint64_t counter;
    const uint64_t number = ((uint64_t)(uintptr_t)&counter << 16) + atomic_fetch_add(&counter, 1);
    size_t at = (size_t)snprintf(path, capacity, "/proc/self/fd/");
    for (int bit = 0; bit < 64; bit++)
        at += (size_t)snprintf(path + at, capacity - at, number >> bit & 1 ? ".//" : "./");
    snprintf(path + at, capacity - at, "%d", file);
}

gdp_status gdpi_host_load(const gdpi_blob *binary, const char *symbol, void **handle,
                          gdpi_host_function *function)
{
    char path[MAX_LINE];
    const int file = gdpi_open_anonymous();
    if (file < 0) return fail_io("create", "a file to load a kernel from");
    const int error = gdpi_write_all(file, binary->data, binary->size);
    if (error) {
        errno = error;
        close(file);
        return fail_io("write", "a file to load a kernel from");
    }
    spell_path(file, path, sizeof path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *reason = library ? NULL : dlerror();
    close(file);
    if (!library)
        return gdpi_fail(GDP_STATUS_NOT_AVAILABLE, "kernel %s cannot be loaded: %s", symbol,
                         reason ? reason : "?");
    void *found = dlsym(library, symbol);
    if (!found) {
        dlclose(library);
        return gdpi_fail(GDP_STATUS_INTERNAL, "the compiled kernel has no function %s", symbol);
    }
    memcpy(function, &found, sizeof found);
    *handle = library;
    return GDP_OK;
}

void gdpi_host_unload(void *handle)
{
    if (handle) dlclose(handle);
}
