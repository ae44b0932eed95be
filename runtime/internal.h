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

/* ---- host_run.c ---- */

/** Runs all tasks of a kernel; `scratch` holds scratch_bytes for each thread of the pool. */
void gdpi_host_run(gdpi_pool *pool, gdpi_host_function function, int64_t tasks,
                   const gdp_args *args, void *scratch, size_t scratch_bytes);

/* ---- kernel.c: source to loaded kernel, once a context ---- */

/** What a template says about its kernel, beside the source. */
typedef struct gdpi_notes {
    size_t scratch; /**< host: bytes a task works in */
    int64_t block;  /**< columns a task takes, where v_block or column_block count; 0: block_v */
    int threads;    /**< CUDA: of a block */
    size_t shared;  /**< CUDA: bytes of a block's dynamic shared memory */
} gdpi_notes;

typedef struct gdpi_kernel {
    struct gdpi_kernel *next;
    char *identity; /**< kernel, class fields and configuration: what its source depends on */
    enum { GDPI_KERNEL_BUILDING, GDPI_KERNEL_READY, GDPI_KERNEL_FAILED } state;
    gdp_status failure;
    char *sentence; /**< of the failure; NULL where memory ran out */
    int waiters;    /**< threads that wait for the build */
    gdp_target target;
    gdpi_notes notes;
    void *handle; /**< shared object or CUDA module */
    gdpi_host_function function;
    void *cuda_function;
} gdpi_kernel;

/** The loaded kernel; builds it if nobody has, waits if another thread does. A failed build is not kept. */
gdp_status gdpi_kernel_get(gdp_context *context, enum gdpi_kernel_id id, const gdp_problem *problem,
                           const gdp_config *config, const gdpi_kernel **kernel);
void gdpi_kernels_destroy(gdp_context *context);

/** A kernel's source, in the context's memory, and what its template notes. */
gdp_status gdpi_kernel_emit(gdp_context *context, const char *name, const gdp_problem *problem,
                            const gdp_config *config, gdpi_text *source, gdpi_notes *notes);

/** A kernel's binary, in the context's memory, from the disk cache or compiled; nothing is loaded.
 * *seconds: that the compiler took, 0: it was in the cache. */
gdp_status gdpi_kernel_compile(gdp_context *context, const char *name, const gdp_problem *problem,
                               const gdp_config *config, gdpi_notes *notes, gdpi_blob *binary,
                               double *seconds);

/** The value of "name=integer" in a text of such words; 0 where there is none. */
size_t gdpi_find_number(const char *text, const char *name);

/* ---- options.c ---- */

/** What was asked for, after the environment; its texts are the caller's or the environment's. */
typedef struct gdpi_request {
    gdp_target target;
    int threads;
    int device; /**< ordinal; -1: that of the current CUDA context, else 0 */
    const char *compiler, *cache_dir, *template_dir, *temp_dir;
    bool check_values;
    char cache_path[4096];
} gdpi_request;

gdp_status gdpi_read_options(const gdp_context_options *options, gdpi_request *request);

/* ---- context.c ---- */

struct gdp_context {
    gdpi_allocator allocator;
    void (*log)(void *user, gdp_log_level level, const char *sentence);
    void *log_user;
    gdp_target target;
    bool check_values;
    char *compiler, *compiler_version, *processor, *template_dir;
    char *cuda, *nvrtc, *nccl; /**< sentences about them */
    char *nvrtc_places;        /**< where NVRTC is looked for */
    struct gdpi_cuda *device;  /**< NULL: none is used */
    char *temp_dir;            /**< where the compiler's files live for a moment */
    char **environment;        /**< the compiler's */
    gdpi_pool *pool;
    gdpi_cache *cache;
    pthread_mutex_t mutex; /**< guards what follows, up to the counters */
    pthread_cond_t kernel_built;
    gdpi_kernel *kernels;
    struct gdpi_backend_entry *backends;
    struct gdpi_nvrtc *compiler_library; /**< NVRTC once it was needed */
    _Atomic uint64_t compilations, cache_hits, launches;
};

void gdpi_log(gdp_context *context, gdp_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- cuda.c: the CUDA target's device and launches ---- */

/** Everything about the context's device; NULL in a context that has none. */
typedef struct gdpi_cuda gdpi_cuda;

/** Starts the driver and takes device `ordinal`; negative: that of the calling thread's current
 * context, else 0. Without a driver or a device GDP_STATUS_NOT_AVAILABLE; *has_device: there is one,
 * so a failure is about it. */
gdp_status gdpi_cuda_create(const gdpi_allocator *allocator, int ordinal, bool *has_device,
                            gdpi_cuda **cuda);
void gdpi_cuda_destroy(const gdpi_allocator *allocator, gdpi_cuda *cuda);

int gdpi_cuda_arch(const gdpi_cuda *cuda);
int gdpi_cuda_processors(const gdpi_cuda *cuda);
const char *gdpi_cuda_name(const gdpi_cuda *cuda);

/** Loads a cubin into kernel->handle and finds its function; kernel->notes must be filled. */
gdp_status gdpi_cuda_load(gdp_context *context, const gdpi_blob *binary, const char *symbol,
                          gdpi_kernel *kernel);
void gdpi_cuda_unload(gdp_context *context, gdpi_kernel *kernel);

/** Launches `tasks` blocks on the stream, args by value; tasks 0: nothing. Does not wait. */
gdp_status gdpi_cuda_launch(gdp_context *context, const gdpi_kernel *kernel, int64_t tasks,
                            gdp_stream stream, const gdp_args *args);

/* ---- nvrtc.c: the CUDA target's compiler, which needs no device ---- */

/** NVRTC, opened by the first who asks; else GDP_STATUS_NOT_AVAILABLE and where it was looked for. */
typedef struct gdpi_nvrtc gdpi_nvrtc;
gdp_status gdpi_nvrtc_get(gdp_context *context, const gdpi_nvrtc **nvrtc);

/** GDP_STATUS_UNSUPPORTED where it has never heard of the architecture. */
gdp_status gdpi_nvrtc_check_arch(const gdpi_nvrtc *nvrtc, int64_t arch);

/** "NVRTC 13.0", and the options but for the architecture: parts of a binary's key. */
const char *gdpi_nvrtc_version(const gdpi_nvrtc *nvrtc);
const char *gdpi_nvrtc_options(void);

/** CUDA source to a cubin. The compiler's log is the sentence of a failure. */
gdp_status gdpi_nvrtc_compile(gdp_context *context, const gdpi_nvrtc *nvrtc, const char *name,
                              const char *source, int64_t arch, gdpi_blob *binary);

/* ---- cubin.c: what a compiled kernel needs, without a device ---- */

typedef struct gdpi_cubin_usage {
    int registers;       /**< a thread */
    int local_bytes;     /**< a thread: its stack frame, where spilled registers are */
    size_t shared_bytes; /**< a block: static shared memory */
} gdpi_cubin_usage;

/** GDP_STATUS_INTERNAL where the bytes are no cubin with that kernel. */
gdp_status gdpi_cubin_read(const gdpi_blob *binary, const char *symbol, gdpi_cubin_usage *usage);

/** Blocks that a multiprocessor of the architecture holds at once. */
int gdpi_cubin_blocks(int64_t arch, int registers, int threads, size_t shared_bytes);

/* ---- memory_api.c: beside gdp_memory_* and gdp_timer_* ---- */

/** Copies on a stream, between memory of host and target, without waiting where it is the device's. */
gdp_status gdpi_memory_copy_on(gdp_context *context, void *to, const void *from, size_t bytes,
                               gdp_stream stream);

/* ---- libraries.c: what is there of CUDA, NVRTC and NCCL, by dlopen ---- */

/** Where NVRTC is looked for, by the environment: names for the loader and patterns of files, a line
 * each. NULL when out of memory. */
char *gdpi_nvrtc_places(const gdpi_allocator *allocator);

/** One sentence each, for people, in new memory. */
gdp_status gdpi_describe_libraries(const gdpi_allocator *allocator, const char *nvrtc_places,
                                   char **cuda, char **nvrtc, char **nccl);

/* ---- config.c ---- */

/** Bytes that a chunk of one value head takes in each area of schema.lua, 0: the target has none. */
typedef struct gdpi_areas {
    size_t bytes[GDPI_AREA_COUNT];
} gdpi_areas;

/** Completes a request (NULL: choose all) into a configuration for the context's target, or for
 * another one. areas: filled, and the configuration is to run here, so a CUDA one must be for the
 * context's device; NULL: its kernels are emitted or compiled only, for any architecture. */
gdp_status gdpi_choose_config(gdp_context *context, const gdp_problem *problem,
                              const gdp_config *request, gdp_config *config, gdpi_areas *areas);

/* ---- tensor.c: checks of what a caller hands in; fill the views of args ---- */

gdp_status gdpi_bind_inputs(const gdp_problem *problem, const gdp_inputs *inputs, gdp_args *args);
gdp_status gdpi_bind_outputs(const gdp_problem *problem, const gdp_outputs *outputs,
                             gdp_args *args);
gdp_status gdpi_bind_output_gradients(const gdp_problem *problem,
                                      const gdp_output_gradients *gradients, gdp_args *args);
gdp_status gdpi_bind_input_gradients(const gdp_problem *problem,
                                     const gdp_input_gradients *gradients, gdp_args *args);
/** CUDA kernels move 16 bytes at once: data and strides of the bound q, k, v, o and their gradients
 * must allow that. Other targets take any. */
gdp_status gdpi_check_alignment(gdp_target target, const gdp_problem *problem,
                                const gdp_args *args);
/** Where inputs lie in host memory, which is not on CUDA: cu_seqlens in order, and with `values`
 * g <= 0, beta in [0, 2], all finite. */
gdp_status gdpi_check_contents(gdp_target target, const gdp_problem *problem,
                               const gdp_inputs *inputs, bool values);

/* ---- plan.c ---- */

enum { GDPI_ALIGNMENT = 64 };

/** Byte offsets; (size_t)-1: not needed by this plan. */
typedef struct gdpi_layout {
    size_t chunks, segments, sequences, counts, areas[GDPI_AREA_COUNT], segment_state,
        segment_summary, segment_d_state, segment_d_summary, incoming_state, scratch, workspace;
    size_t saved_incoming_state, saved;
    size_t summary;
} gdpi_layout;

struct gdp_plan {
    gdp_context *context;
    gdp_problem problem;
    gdp_config config;
    gdpi_areas areas;
    unsigned flags;
    bool cut; /**< some sequence may have several segments */
    int64_t sequence_count, max_chunks, max_segments, fold_sequences;
    int64_t wave_segments, wave_chunks;
    size_t scratch; /**< host: bytes a thread works in */
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
