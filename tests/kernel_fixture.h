/* For the tests of cache, kernels and contexts: a folder that goes away again, a listening log, an
 * allocator that counts and fails, compilers made of shell scripts, and a small template. */
#ifndef KERNEL_FIXTURE_H
#define KERNEL_FIXTURE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "internal.h"

/* ---- the folder of this test ---- */

static char folder[64];

/* The path of a name in the folder. It stays valid for the whole test. */
static inline const char *in_folder(const char *name)
{
    enum { PATHS = 256, LENGTH = 256 };
    static char paths[PATHS][LENGTH];
    static int used;
    char path[LENGTH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (int i = 0; i < used; i++)
        if (strcmp(paths[i], path) == 0) return paths[i];
    assert_true(used < PATHS);
    return strcpy(paths[used++], path);
}

static inline void remove_tree(const char *path)
{
    struct stat found;
    if (lstat(path, &found)) return;
    if (!S_ISDIR(found.st_mode)) {
        remove(path);
        return;
    }
    chmod(path, 0700);
    DIR *dir = opendir(path);
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char *below = NULL;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (asprintf(&below, "%s/%s", path, entry->d_name) < 0) continue;
        remove_tree(below);
        free(below);
    }
    closedir(dir);
    rmdir(path);
}

static inline void put_text(const char *name, const char *text, mode_t mode)
{
    const char *temporary = in_folder("new");
    FILE *file = fopen(temporary, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(temporary, mode), 0);
    assert_int_equal(rename(temporary, in_folder(name)), 0);
}

/* Names in a folder that contain `part`. */
static inline int count_files(const char *name, const char *part)
{
    int count = 0;
    DIR *dir = opendir(in_folder(name));
    if (!dir) return 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.' && strstr(entry->d_name, part) != NULL;
    closedir(dir);
    return count;
}

static inline int count_bytes(const char *name)
{
    struct stat found;
    return stat(in_folder(name), &found) ? 0 : (int)found.st_size;
}

static inline void put_templates(void)
{
    put_text("templates/host/space.lua",
             "return { defaults = function(p, r)\n"
             "    return { target = 'host', chunk = 16, segment = 0, block_v = p.dim_v,\n"
             "      arch = 0, stages = 1, wave = 1 } end,\n"
             "  areas = function() return { gates = 4 } end, constraints = {} }\n",
             0600);
    put_text("templates/host/index.ct",
             "#include <stdint.h>\n"
             "${structs()}\n"
             "% meta.scratch = 128\n"
             "void gdp_${kernel}(const gdp_args *args, int64_t task, void *scratch)\n"
             "{\n"
             "    (void)scratch;\n"
             "    args->counts[0] = task * 1000 + ${K} * 10 + ${n};\n"
             "}\n",
             0600);
}

static inline int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/gdp_test_XXXXXX");
    if (!mkdtemp(folder)) return -1;
    mkdir(in_folder("temp"), 0700);
    mkdir(in_folder("templates"), 0700);
    mkdir(in_folder("templates/host"), 0700);
    put_templates();
    setenv("TMPDIR", in_folder("temp"), 1);
    static const char *const unset[] = { "GDP_TARGET",  "GDP_THREADS", "GDP_CACHE_DIR",
                                         "GDP_CC",      "CC",          "GDP_TEMPLATE_DIR",
                                         "GDP_CHECKED", "GDP_DEVICE",  "GDP_NVRTC" };
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++) unsetenv(unset[i]);
    return 0;
}

static inline int remove_folder(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

/* ---- the log ---- */

typedef struct listener {
    atomic_int warnings;
    char last[2048];
} listener;

static inline void listen(void *user, gdp_log_level level, const char *sentence)
{
    listener *to = user;
    if (level != GDP_LOG_WARNING) return;
    snprintf(to->last, sizeof to->last, "%s", sentence);
    atomic_fetch_add(&to->warnings, 1);
}

/* ---- the allocator ---- */

typedef struct counter {
    atomic_long live, calls;
    long fail_at; /**< 0: never */
} counter;

static inline void *count_allocate(void *user, size_t bytes)
{
    counter *at = user;
    const long number = atomic_fetch_add(&at->calls, 1) + 1;
    if (at->fail_at && number == at->fail_at) return NULL;
    void *memory = malloc(bytes);
    if (memory) atomic_fetch_add(&at->live, 1);
    return memory;
}

static inline void count_release(void *user, void *memory)
{
    counter *at = user;
    if (memory) atomic_fetch_sub(&at->live, 1);
    free(memory);
}

/* ---- compilers ---- */

/* Answers --version; otherwise adds a byte to the file `runs` and does `action`, where "$@" are the
 * arguments. */
static inline const char *make_compiler(const char *name, const char *action)
{
    char text[1024];
    snprintf(text, sizeof text,
             "#!/bin/sh\n[ \"$1\" = --version ] && { echo script 1.0; exit 0; }\n"
             "printf x >>%s/runs\n%s\n",
             folder, action);
    put_text(name, text, 0700);
    return in_folder(name);
}

static inline void wait_milliseconds(long count)
{
    nanosleep(&(struct timespec){ count / 1000, count % 1000 * 1000000 }, NULL);
}

static inline double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- contexts and kernels ---- */

/* The host target with the small template and the cache folder/cache. */
static inline gdp_context_options host_options(listener *to, counter *memory)
{
    gdp_context_options options = GDP_CONTEXT_OPTIONS_INIT;
    options.target = GDP_TARGET_HOST;
    options.threads = 1;
    options.cache_dir = in_folder("cache");
    options.template_dir = in_folder("templates");
    if (to) {
        options.log = listen;
        options.log_user = to;
    }
    if (memory) {
        options.allocate = count_allocate;
        options.release = count_release;
        options.allocator_user = memory;
    }
    return options;
}

/* A complete one for the small template. */
static inline gdp_config host_config(const gdp_problem *problem)
{
    return (gdp_config){
        .target = GDP_TARGET_HOST, .chunk = 16, .block_v = problem->dim_v, .stages = 1
    };
}

static inline gdp_status get_kernel(gdp_context *context, int64_t dim_k, const gdpi_kernel **kernel)
{
    gdp_problem problem = gdp_problem_default();
    problem.batch = problem.tokens = problem.heads = problem.value_heads = 1;
    problem.dim_k = dim_k;
    const gdp_config config = host_config(&problem);
    return gdpi_kernel_get(context, GDPI_KERNEL_INDEX, &problem, &config, kernel);
}

/* Whether the kernel is the one of this K. */
static inline bool is_right(const gdpi_kernel *kernel, int64_t dim_k)
{
    int64_t counts[2] = { 0, 0 };
    gdp_args args;
    memset(&args, 0, sizeof args);
    args.counts = counts;
    kernel->function(&args, 7, NULL);
    return counts[0] == 7000 + dim_k * 10 + 1 && kernel->notes.scratch == 128;
}

/* An action: to be the machine's compiler. */
#define REAL "exec cc \"$@\""

/* What the last opened context said. */
static listener heard;

static inline gdp_context *open_context(const char *compiler)
{
    gdp_context *context = NULL;
    memset(&heard, 0, sizeof heard);
    gdp_context_options options = host_options(&heard, NULL);
    options.compiler = compiler;
    if (gdp_context_create(&options, &context)) fail_msg("%s", gdp_last_error());
    return context;
}

static inline gdp_context_counters counters_of(const gdp_context *context)
{
    gdp_context_counters counters;
    assert_int_equal(gdp_context_get_counters(context, &counters), GDP_OK);
    return counters;
}

static inline void check_kernel(gdp_context *context, int64_t dim_k)
{
    const gdpi_kernel *kernel = NULL;
    if (get_kernel(context, dim_k, &kernel)) fail_msg("%s", gdp_last_error());
    assert_true(is_right(kernel, dim_k));
}

/* What a process does that wants a kernel; 0: it got the right one. */
static inline int use_kernel(const char *compiler)
{
    gdp_context *context = NULL;
    const gdpi_kernel *kernel = NULL;
    gdp_context_options options = host_options(NULL, NULL);
    options.compiler = compiler;
    if (gdp_context_create(&options, &context)) return 1;
    if (get_kernel(context, 16, &kernel)) return 2;
    const bool right = is_right(kernel, 16);
    gdp_context_destroy(context);
    return right ? 0 : 3;
}

static inline pid_t fork_user(const char *compiler)
{
    const pid_t child = fork();
    if (child == 0) _exit(use_kernel(compiler));
    return child;
}

/* Waits for processes that must end well. */
static inline void await(const pid_t *children, int count)
{
    for (int i = 0; i < count; i++) {
        int result = -1;
        waitpid(children[i], &result, 0);
        assert_int_equal(result, 0);
    }
}

#endif
