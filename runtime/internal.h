/* What travels between the stages of the library: problem, configuration, source, binary, plan, launch,
 * exchange. Each stage is a function from a value to a value and calls no other stage; plan.c calls
 * them in order. Everything here is internal: gdpi_ across files, static within one. */
#ifndef GDPI_INTERNAL_H
#define GDPI_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gdp.h"
#include "emit.h"
#include "fields.h"
#include "schema_gen.h"

/* ---- status.c ---- */

/** Sets this thread's sentence and returns `status`. */
gdp_status gdpi_fail(gdp_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define GDPI_TRY(call)                                           \
    do {                                                         \
        gdp_status gdpi_try_status_ = (call);                    \
        if (gdpi_try_status_ != GDP_OK) return gdpi_try_status_; \
    } while (0)

/* ---- memory.c: all memory of the library goes through the context's hooks ---- */

typedef struct gdpi_allocator {
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *memory);
    void *user;
} gdpi_allocator;

/** NULL when out of memory (the sentence is set). gdpi_allocate_zeroed also clears. */
void *gdpi_allocate(const gdpi_allocator *allocator, size_t bytes);
void *gdpi_allocate_zeroed(const gdpi_allocator *allocator, size_t bytes);
void gdpi_release(const gdpi_allocator *allocator, void *memory);
char *gdpi_copy_text(const gdpi_allocator *allocator, const char *text);
/** printf into new memory; NULL when out of memory. */
char *gdpi_format_text(const gdpi_allocator *allocator, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Bytes with their owner's allocator; data NULL: empty. */
typedef struct gdpi_blob {
    void *data;
    size_t size;
} gdpi_blob;

/* ---- pool.c: the host's threads ---- */

typedef struct gdpi_pool gdpi_pool;

/** `threads` participants in all, the calling thread of a run included (so threads - 1 are started). */
gdp_status gdpi_pool_create(const gdpi_allocator *allocator, int threads, gdpi_pool **pool);
void gdpi_pool_destroy(gdpi_pool *pool);
int gdpi_pool_threads(const gdpi_pool *pool);

/** Calls work(argument, task, slot) for every task in 0 .. tasks-1, each once, in no set order, and returns
 * when all have returned. The calling thread works too. slot is in 0 .. threads-1 and belongs to
 * one thread for the time of the run. Any number of threads may run jobs at once. Allocates nothing. */
typedef void (*gdpi_work)(void *argument, int64_t task, int slot);
void gdpi_pool_run(gdpi_pool *pool, int64_t tasks, gdpi_work work, void *argument);

/* ---- cache.c: content-addressed binaries on disk ---- */

typedef struct gdpi_cache gdpi_cache;

typedef struct gdpi_key {
    char hex[33]; /**< 128-bit hash of everything the binary depends on */
} gdpi_key;

/** Hash of `count` texts, each taken with its length. */
gdpi_key gdpi_make_key(const char *const *texts, size_t count);

/** dir: NULL or "": no disk cache. A directory that cannot be made, is not ours or is open to others is
 * refused with one logged sentence that names GDP_CACHE_DIR, and the cache works without a disk. */
gdp_status gdpi_cache_create(gdp_context *context, const char *dir, gdpi_cache **cache);
void gdpi_cache_destroy(gdpi_cache *cache);
const char *gdpi_cache_dir(const gdpi_cache *cache); /**< NULL: no disk */

/** The binary of `key`, checked against its checksum; an empty blob where there is none or it is damaged. */
gdp_status gdpi_cache_find(gdpi_cache *cache, const gdpi_key *key, gdpi_blob *binary);

/** Waits until no other process builds `key`, for a limited time. Always succeeds in the sense that
 * the caller may go on; -1 where there is no lock to be had (no disk, a file system without locks, time-out). */
int gdpi_cache_lock(gdpi_cache *cache, const gdpi_key *key);
void gdpi_cache_unlock(gdpi_cache *cache, int lock);

/** Publishes binary and source atomically. A failure is logged once a context and otherwise ignored. */
void gdpi_cache_publish(gdpi_cache *cache, const gdpi_key *key, const char *source,
                        const gdpi_blob *binary);

/* ---- host.c: the host target's compiler and loader ---- */

/** Path of the compiler for `wanted` (a name or path; NULL: the candidates of gdp.h); *path NULL: none. */
gdp_status gdpi_host_find_compiler(const gdpi_allocator *allocator, const char *wanted,
                                   char **path);

/** "name of the processor, its instruction sets": binaries are shared between equal ones only. */
char *gdpi_host_processor(const gdpi_allocator *allocator);

/** First line of `compiler --version`, the compiler's part of the key. */
gdp_status gdpi_host_compiler_version(const gdpi_allocator *allocator, const char *compiler,
                                      char *const *environment, char **version);

/** A copy of the environment for the compiler, in one piece of memory; its first entry is free to be replaced. */
gdp_status gdpi_host_environment(const gdpi_allocator *allocator, char ***environment);

/** The options, space separated, the other part of the key. */
const char *gdpi_host_compiler_options(void);

/** C source to a shared object's bytes. The compiler's output is the sentence of a failure. */
gdp_status gdpi_host_compile(gdp_context *context, const char *source, gdpi_blob *binary);

typedef void (*gdpi_host_function)(const gdp_args *args, int64_t task, void *scratch);

/** Loads a shared object from memory and finds `symbol`. */
gdp_status gdpi_host_load(const gdpi_blob *binary, const char *symbol, void **handle,
                          gdpi_host_function *function);
void gdpi_host_unload(void *handle);

/* ---- kernel.c: source to loaded kernel, once a context ---- */

typedef struct gdpi_kernel {
    struct gdpi_kernel *next;
    char *identity; /**< kernel, class fields and configuration: what its source depends on */
    enum { GDPI_KERNEL_BUILDING, GDPI_KERNEL_READY, GDPI_KERNEL_FAILED } state;
    gdp_status failure;
    char *sentence; /**< of the failure; NULL where memory ran out */
    int waiters;    /**< threads that wait for the build */
    gdp_target target;
    size_t scratch; /**< bytes a task works in */
    void *handle;
    gdpi_host_function function;
} gdpi_kernel;

/** The loaded kernel; builds it if nobody has, waits if another thread does. A failed build is not kept. */
gdp_status gdpi_kernel_get(gdp_context *context, enum gdpi_kernel_id id, const gdp_problem *problem,
                           const gdp_config *config, const gdpi_kernel **kernel);
void gdpi_kernels_destroy(gdp_context *context);

/** A kernel's source, the context's memory, and the scratch that its tasks need. */
gdp_status gdpi_kernel_emit(gdp_context *context, const char *name, const gdp_problem *problem,
                            const gdp_config *config, gdpi_text *source, size_t *scratch);

/* ---- context.c ---- */

struct gdp_context {
    gdpi_allocator allocator;
    void (*log)(void *user, gdp_log_level level, const char *sentence);
    void *log_user;
    gdp_target target;
    bool check_values;
    char *compiler, *compiler_version, *processor, *template_dir;
    char *cuda, *nvrtc, *nccl;
    char *temp_dir;     /**< where the compiler's files live for a moment */
    char **environment; /**< the compiler's */
    gdpi_pool *pool;
    gdpi_cache *cache;
    pthread_mutex_t mutex; /**< guards what follows, up to the counters */
    pthread_cond_t kernel_built;
    gdpi_kernel *kernels;
    struct gdpi_backend_entry *backends;
    _Atomic uint64_t compilations, cache_hits, launches;
};

void gdpi_log(gdp_context *context, gdp_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- libraries.c: what is there of CUDA, NVRTC and NCCL, by dlopen ---- */

/** One sentence each, for people, in new memory. */
gdp_status gdpi_describe_libraries(const gdpi_allocator *allocator, char **cuda, char **nvrtc,
                                   char **nccl);

/* ---- config.c ---- */

/** Completes a request (NULL: choose all) into a configuration for the context's target. */
gdp_status gdpi_choose_config(gdp_context *context, const gdp_problem *problem,
                              const gdp_config *request, gdp_config *config);

/* ---- tensor.c: checks of what a caller hands in; fill the views of args ---- */

gdp_status gdpi_bind_inputs(const gdp_problem *problem, const gdp_inputs *inputs, gdp_args *args);
gdp_status gdpi_bind_outputs(const gdp_problem *problem, const gdp_outputs *outputs,
                             gdp_args *args);
gdp_status gdpi_bind_output_gradients(const gdp_problem *problem,
                                      const gdp_output_gradients *gradients, gdp_args *args);
gdp_status gdpi_bind_input_gradients(const gdp_problem *problem,
                                     const gdp_input_gradients *gradients, gdp_args *args);
/** Host memory only: cu_seqlens in order, and with `values` g <= 0, beta in [0, 2], all finite. */
gdp_status gdpi_check_contents(const gdp_problem *problem, const gdp_inputs *inputs, bool values);

/* ---- plan.c ---- */

enum { GDPI_ALIGNMENT = 64 };

/** Byte offsets; (size_t)-1: not needed by this plan. */
typedef struct gdpi_layout {
    size_t chunks, segments, sequences, counts, gates, a, p, segment_state, segment_summary,
        segment_d_state, segment_d_summary, chunk_d_state, incoming_state, scratch, workspace;
    size_t saved_chunk_state, saved_segment_summary, saved_incoming_state, saved;
    size_t summary;
} gdpi_layout;

struct gdp_plan {
    gdp_context *context;
    gdp_problem problem;
    gdp_config config;
    unsigned flags;
    int64_t sequence_count, max_chunks, max_segments, fold_sequences;
    int64_t v_blocks, column_blocks;
    size_t scratch; /**< bytes a thread works in */
    gdpi_layout layout;
    const gdpi_kernel *kernels[GDPI_KERNEL_COUNT]; /**< NULL: not used, or the reference target */
};

/* ---- reference.c: the float64 recurrence, independent of the chunk code ---- */

/** Bytes of workspace a run with `threads` participants needs. Each function works in args' tensors,
 * cu_seqlens, states and incoming/outgoing states as forward_scan and the others do, with the same meaning. */
size_t gdpi_reference_workspace(const gdp_problem *problem, int threads, bool backward);
void gdpi_reference_forward(gdpi_pool *pool, const gdp_problem *problem, const gdp_args *args,
                            void *workspace);
void gdpi_reference_backward(gdpi_pool *pool, const gdp_problem *problem, const gdp_args *args,
                             void *workspace);
/** compose_shard / adjoint_compose_shard: writes args->folded [fold_sequences, HV, K, V+K]. */
void gdpi_reference_summary(gdpi_pool *pool, const gdp_problem *problem, const gdp_args *args,
                            bool adjoint, void *workspace);
/** compose_ranks / adjoint_compose_ranks: writes args->folded [fold_sequences, HV, K, V]. */
void gdpi_reference_fold(gdpi_pool *pool, const gdp_problem *problem, const gdp_args *args,
                         bool adjoint, void *workspace);

/* ---- launch.c: the four steps and the two plain calls on a finished plan (gdp.h) ---- */

/** `needed` bytes at `data`, aligned to GDPI_ALIGNMENT, or a sentence that names `what`. */
gdp_status gdpi_check_memory(const char *what, const void *data, size_t given, size_t needed);
gdp_status gdpi_check_window(const gdp_cp_window *window);

/* ---- backend.c ---- */

struct gdpi_backend_entry {
    struct gdpi_backend_entry *next;
    gdp_cp_backend backend;
    char name[32];
};

/** A plan with GDP_PLAN_CP as a backend; it must outlive it. */
gdp_cp_backend gdpi_plan_backend(gdp_plan *plan);

/** The target of that name; false: none. */
bool gdpi_target_from_name(const char *name, gdp_target *target);

/** The registered backend of that name, copied; false: none. */
bool gdpi_find_registered_backend(gdp_context *context, const char *name, gdp_cp_backend *backend);
void gdpi_backends_destroy(gdp_context *context);

#endif
