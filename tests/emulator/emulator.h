/* A CUDA whose device is the processor: kernels are compiled by the host's C++ compiler with
 * cuda/intrinsics.ct in the place of the library's, and run when they are launched. It is there to
 * find defects, so it is strict: shared memory and fresh memory are NaN, copies come as late as
 * CUDA allows, lanes that diverge and accesses outside of blocks end the program with a sentence.
 *
 * What the parts share: block.c runs a kernel's blocks, warp.c does what the lanes of a warp do
 * together, memory.c owns the device's memory, driver.c answers the driver's calls. Kernels see the
 * functions marked EXPORT by way of cuda/intrinsics.ct. nvrtc.c is a library of its own.
 *
 * In the environment, read at each use:
 *     GDP_EMULATED_ORDER        who runs next: 0 in order, another number by chance from this seed
 *     GDP_EMULATED_ARCH         compute capability; 90
 *     GDP_EMULATED_PROCESSORS   multiprocessors; 4
 *     GDP_EMULATED_DEVICES      1; 0: none, like a driver without a GPU
 *     GDP_EMULATED_MEMORY       bytes of the device; 8 GiB
 *     GDP_EMULATED_HOST_ACCESS  1: the program may touch the device's memory
 *     GDP_EMULATED_FLAGS        further options of the C++ compiler
 *     GDP_EMULATED_KEEP         a folder that keeps the sources of kernels */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { WARP = 32, MAX_THREADS = 1024 };

/* ---- what a running kernel sees ---- */

typedef struct dim {
    unsigned x, y, z;
} dim;

/* The block that runs, and the place of its running thread. */
typedef struct emulated_state {
    const dim *thread;
    dim block, block_size, grid;
    char *shared;
} emulated_state;

EXPORT extern emulated_state emulated;

/* Where in its source a thread called. */
typedef struct site {
    const char *file;
    int line;
} site;

/* ---- block.c ---- */

typedef void kernel_function(const void *args);

typedef struct launch {
    kernel_function *function;
    const char *name;
    const void *args;
    dim grid, block;
    unsigned shared_bytes;
} launch;

void run_launch(const launch *what);

/* What lanes of a warp can do together. The first few must be one instruction for all of them. */
enum operation {
    LOAD_MATRICES,
    LOAD_MATRICES_TRANSPOSED,
    TRANSPOSE_MATRIX,
    MULTIPLY_BF16,
    MULTIPLY_F16,
    MULTIPLY_TF32,
    LAST_ALIGNED = MULTIPLY_TF32,
    SHUFFLE,
    BALLOT,
    SYNC_WARP,
    SYNC_BLOCK,
    OPERATIONS
};

/* Gets the operands of the 32 lanes (NULL for those outside `mask`) and leaves results in them. */
typedef void lanes_function(void **operands, unsigned mask);

/* Waits until all lanes of the mask are here; the last one calls `complete`, if there is one. */
void meet(enum operation operation, unsigned mask, void *operand, lanes_function *complete,
          site where);

/* Whether the running block owns these bytes of shared memory. */
bool in_shared(const void *address, size_t bytes);

/* Says what is wrong with the kernel that runs, and where, and aborts. */
_Noreturn void defect(site where, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- memory.c ---- */

enum memory_kind { MEMORY_DEVICE, MEMORY_MANAGED, MEMORY_HOST, MEMORY_REGISTERED };

typedef struct block_of_memory {
    char *start; /* what the caller got */
    size_t bytes;
    enum memory_kind kind;
    char *mapping; /* with guards around it */
    size_t mapped;
} block_of_memory;

/* A block that the device can reach: all of these bytes; NULL. */
const block_of_memory *find_memory(const void *address, size_t bytes);
/* Whether it is in such a block or in the guards around it. */
bool near_memory(const void *address);
void *allocate_memory(size_t bytes, enum memory_kind kind);
bool register_memory(void *start, size_t bytes);
bool free_memory(void *start, bool of_device);
size_t used_memory(void);

/* The program itself cannot reach the device's memory; these open and close it, nested. */
void open_memory(void);
void close_memory(void);

/* Aborts where something was written beside a block. */
void check_guards(const char *after);

#endif
