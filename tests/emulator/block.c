/* Runs the blocks of a kernel one after another. The threads of a block are fibers of the thread
 * that launches: one runs until it has to wait for others, at an operation of its warp or at
 * __syncthreads, and then hands over to the next. */
#include "emulator.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- fibers ---- */

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)

typedef struct fiber {
    void *stack_pointer;
} fiber;

/* Keeps what a function call must keep, on the stack. Fibers wait at the same call nearly always,
 * so the processor predicts this return, and those that follow, rightly. */
void emulated_switch(void **from, void *to) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".globl emulated_switch\n"
        ".hidden emulated_switch\n"
        ".type emulated_switch, @function\n"
        "emulated_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emulated_switch, . - emulated_switch\n");

static void make_fiber(fiber *made, char *stack, size_t bytes, void (*entry)(void))
{
    /* Six registers, the entry, and a return address of zero: 16-byte aligned behind the entry. */
    void **top = (void **)(stack + bytes / 16 * 16) - 8;
    memset(top, 0, 8 * sizeof *top);
    memcpy(&top[6], &entry, sizeof entry);
    made->stack_pointer = top;
}

static void switch_fiber(fiber *from, fiber *to)
{
    emulated_switch(&from->stack_pointer, to->stack_pointer);
}

#else

#include <ucontext.h>

typedef struct fiber {
    ucontext_t context;
} fiber;

static void make_fiber(fiber *made, char *stack, size_t bytes, void (*entry)(void))
{
    getcontext(&made->context);
    made->context.uc_stack.ss_sp = stack;
    made->context.uc_stack.ss_size = bytes;
    made->context.uc_link = NULL;
    makecontext(&made->context, entry, 0);
}

static void switch_fiber(fiber *from, fiber *to) { swapcontext(&from->context, &to->context); }

#endif

/* ---- the block ---- */

/* A copy to shared memory that is on its way. */
typedef struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    long group;
} copy;

typedef struct thread {
    fiber fiber;
    dim place;
    unsigned lane, bit;
    struct warp *warp;
    site where; /* where it waits */
    /* copies [done, issued) are on their way */
    copy *copies;
    size_t done, issued, capacity;
    long committed; /* groups */
} thread;

/* Lanes that meet for an operation. Those under way in a warp have different masks. */
typedef struct meeting {
    enum operation operation;
    unsigned mask, present;
    site where;
    void *operands[WARP];
} meeting;

typedef struct warp {
    thread *threads;
    unsigned lanes;    /* those that there are */
    unsigned runnable; /* those that wait for nothing */
    unsigned at_barrier, exited;
    unsigned wanted; /* masks of all meetings under way */
    unsigned meeting_count;
    meeting meetings[WARP];
    unsigned char order[WARP]; /* of lanes, from the one that comes next on */
    unsigned last;
} warp;

enum { STACK_BYTES = 256 * 1024, STACK_STEP = STACK_BYTES + 17 * 64 };

static thread threads[MAX_THREADS];
static warp warps[MAX_THREADS / WARP];
static unsigned thread_count, warp_count, waiting, exited, barrier_sum, barrier_result;
static unsigned warp_order[MAX_THREADS / WARP], warp_turn;
static char *stacks;
static fiber outside;
static thread *self;
static const launch *running;
static uint64_t order_seed, chance;

emulated_state emulated;

static const char *const operation_names[OPERATIONS] = {
    [LOAD_MATRICES] = "ldmatrix",     [LOAD_MATRICES_TRANSPOSED] = "ldmatrix.trans",
    [TRANSPOSE_MATRIX] = "movmatrix", [MULTIPLY_BF16] = "mma.bf16",
    [MULTIPLY_F16] = "mma.f16",       [MULTIPLY_TF32] = "mma.tf32",
    [SHUFFLE] = "a shuffle",          [BALLOT] = "a vote",
    [SYNC_WARP] = "__syncwarp",       [SYNC_BLOCK] = "__syncthreads",
};

static void print_place(void)
{
    if (!running) return;
    fprintf(stderr, "kernel %s, block (%u, %u, %u)", running->name, emulated.block.x,
            emulated.block.y, emulated.block.z);
    if (self) fprintf(stderr, ", thread (%u, %u, %u)", self->place.x, self->place.y, self->place.z);
}

void defect(site where, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "emulator: ");
    print_place();
    if (where.file) fprintf(stderr, ", %s:%d", where.file, where.line);
    fprintf(stderr, ": ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

/* xorshift64 */
static unsigned draw(unsigned below)
{
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return (unsigned)((chance >> 32) % below);
}

/* ---- whose turn it is ---- */

static thread *next_of_warp(warp *w)
{
    if (!w->runnable) return NULL;
    if (order_seed == 0) {
        const unsigned behind = w->last + 1 < WARP ? w->runnable >> (w->last + 1) : 0;
        w->last = behind ? w->last + 1 + (unsigned)__builtin_ctz(behind)
                         : (unsigned)__builtin_ctz(w->runnable);
        return &w->threads[w->last];
    }
    do {
        w->last = (w->last + 1) % WARP;
    } while (!(w->runnable >> w->order[w->last] & 1));
    return &w->threads[w->order[w->last]];
}

static thread *next_thread(void)
{
    for (unsigned i = 0; i < warp_count; i++) {
        thread *next = next_of_warp(&warps[warp_order[warp_turn]]);
        if (next) return next;
        warp_turn = (warp_turn + 1) % warp_count;
    }
    return NULL;
}

static _Noreturn void stuck(void)
{
    const thread *example = NULL;
    for (unsigned i = 0; i < warp_count; i++)
        for (unsigned l = 0; l < WARP; l++)
            if ((warps[i].lanes & ~warps[i].exited) >> l & 1 && !example)
                example = &warps[i].threads[l];
    self = NULL;
    defect(example ? example->where : (site){ 0 },
           "every thread waits: %u of %u at __syncthreads, %u have ended", waiting, thread_count,
           exited);
}

static void run_next(void)
{
    thread *before = self, *next = next_thread();
    if (!next) stuck();
    if (next == before) return;
    self = next;
    emulated.thread = &next->place;
    switch_fiber(&before->fiber, &next->fiber);
}

/* ---- waiting ---- */

/* An operation waits for this thread, which does something else. */
static _Noreturn void diverged(const meeting *other, site where, const char *doing)
{
    defect(where, "the warp diverged: this lane is at %s, while lanes %08x wait at %s (%s:%d)",
           doing, other->present, operation_names[other->operation], other->where.file,
           other->where.line);
}

/* Before something that the thread does not come back from while others of its warp wait. */
static void expect_unwanted(site where, const char *doing)
{
    const warp *w = self->warp;
    if (!(w->wanted & self->bit)) return;
    for (unsigned i = 0; i < w->meeting_count; i++)
        if (w->meetings[i].mask & self->bit) diverged(&w->meetings[i], where, doing);
}

static meeting *begin_meeting(enum operation operation, unsigned mask, site where)
{
    warp *w = self->warp;
    const char *name = operation_names[operation];
    if (!(mask & self->bit)) defect(where, "%s: mask %08x is without the lane itself", name, mask);
    if (mask & ~w->lanes) defect(where, "%s: mask %08x has lanes that do not exist", name, mask);
    if (mask & w->exited)
        defect(where, "%s: lanes %08x of its mask have ended", name, mask & w->exited);
    if (mask & w->at_barrier)
        defect(where,
               "the warp diverged: this lane is at %s, while lanes %08x wait at __syncthreads "
               "(%s:%d)",
               name, w->at_barrier, w->threads[__builtin_ctz(w->at_barrier)].where.file,
               w->threads[__builtin_ctz(w->at_barrier)].where.line);
    meeting *m = &w->meetings[w->meeting_count++];
    m->operation = operation;
    m->mask = mask;
    m->present = 0;
    m->where = where;
    w->wanted |= mask;
    if (mask != ~0u) memset(m->operands, 0, sizeof m->operands);
    return m;
}

static meeting *find_meeting(enum operation operation, unsigned mask, site where)
{
    warp *w = self->warp;
    for (unsigned i = 0; i < w->meeting_count; i++) {
        meeting *m = &w->meetings[i];
        if (m->mask != mask) continue;
        if (m->operation != operation || !(mask & self->bit) ||
            (operation <= LAST_ALIGNED && m->where.line != where.line))
            diverged(m, where, operation_names[operation]);
        return m;
    }
    return begin_meeting(operation, mask, where);
}

static void end_meeting(meeting *m)
{
    warp *w = self->warp;
    w->runnable |= m->mask;
    *m = w->meetings[--w->meeting_count];
    w->wanted = 0;
    for (unsigned i = 0; i < w->meeting_count; i++) w->wanted |= w->meetings[i].mask;
}

void meet(enum operation operation, unsigned mask, void *operand, lanes_function *complete,
          site where)
{
    meeting *m = find_meeting(operation, mask, where);
    m->present |= self->bit;
    m->operands[self->lane] = operand;
    if (m->present != mask) {
        self->warp->runnable &= ~self->bit;
        self->where = where;
        run_next();
        return;
    }
    if (complete) complete(m->operands, mask);
    end_meeting(m);
    /* Another warp may go on here, or another lane. */
    if (order_seed && draw(16) == 0) {
        warp_turn = draw(warp_count);
        run_next();
    }
}

/* Everyone is at the barrier: everyone goes on. */
static void open_barrier(void)
{
    barrier_result = barrier_sum;
    waiting = barrier_sum = 0;
    for (unsigned i = 0; i < warp_count; i++) {
        warps[i].runnable = warps[i].lanes;
        warps[i].at_barrier = 0;
    }
    if (order_seed) warp_turn = draw(warp_count);
}

/* __syncthreads; the number of threads whose predicate holds. */
EXPORT unsigned emulated_sync_block(int predicate, const char *file, int line)
{
    const site where = { file, line };
    warp *w = self->warp;
    expect_unwanted(where, "__syncthreads");
    if (exited) defect(where, "%u threads ended without coming to this __syncthreads", exited);
    self->where = where;
    barrier_sum += predicate != 0;
    w->runnable &= ~self->bit;
    w->at_barrier |= self->bit;
    if (++waiting == thread_count) open_barrier();
    run_next();
    return barrier_result;
}

static void end_thread(void)
{
    warp *w = self->warp;
    expect_unwanted((site){ 0 }, "its end");
    if (waiting) defect((site){ 0 }, "it ends while %u threads wait at __syncthreads", waiting);
    w->runnable &= ~self->bit;
    w->exited |= self->bit;
    if (++exited == thread_count) {
        thread *last = self;
        self = NULL;
        switch_fiber(&last->fiber, &outside);
    }
    run_next();
}

static void thread_entry(void)
{
    running->function(running->args);
    end_thread();
    abort(); /* nobody switches back to it */
}

/* ---- shared memory ---- */

enum { PAGE = 4096, SHARED_PAGES = 64, SHARED_ALIGNMENT = 128 };

/* So much of the pages is the block's that its end is that of the last one: what lies behind cannot
 * be touched. */
static char *shared_pages;

bool in_shared(const void *address, size_t bytes)
{
    const size_t offset = (size_t)((const char *)address - emulated.shared);
    return offset <= running->shared_bytes && bytes <= running->shared_bytes - offset;
}

EXPORT unsigned emulated_shared_address(const void *address)
{
    if (!in_shared(address, 0)) defect((site){ 0 }, "%p is not in shared memory", address);
    return (unsigned)((const char *)address - emulated.shared);
}

/* ---- copies behind the thread's back ----
 *
 * A copy happens when it is waited for, the latest time that CUDA allows; until then its place is
 * NaN, because the earliest time is that of the call. */

EXPORT void emulated_copy_async(void *to, const void *from, int there, const char *file, int line)
{
    const site where = { file, line };
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16)
        defect(where, "cp.async: %p to %p, not a multiple of 16", from, to);
    if (!in_shared(to, 16)) defect(where, "cp.async: to %p, not in shared memory", to);
    if (there && !find_memory(from, 16))
        defect(where, "cp.async: from %p, not in the device's memory", from);
    if (self->issued == self->capacity) {
        self->capacity = self->capacity ? 2 * self->capacity : 64;
        self->copies = realloc(self->copies, self->capacity * sizeof *self->copies);
        if (!self->copies) abort();
    }
    self->copies[self->issued++] = (copy){ to, there ? from : NULL, self->committed };
    memset(to, 0xFF, 16);
}

EXPORT void emulated_copy_commit(void) { self->committed++; }

EXPORT void emulated_copy_wait(int left)
{
    while (self->done < self->issued) {
        const copy *next = &self->copies[self->done];
        if (next->group >= self->committed - left) break;
        if (next->from)
            memcpy(next->to, next->from, 16);
        else
            memset(next->to, 0, 16);
        self->done++;
    }
    if (self->done == self->issued) {
        self->done = self->issued = 0;
    } else if (self->done > 1024) {
        memmove(self->copies, self->copies + self->done,
                (self->issued - self->done) * sizeof *self->copies);
        self->issued -= self->done;
        self->done = 0;
    }
}

/* ---- launches ---- */

static void map_memory_of_blocks(void)
{
    if (stacks) return;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    stacks = mmap(NULL, (size_t)MAX_THREADS * STACK_STEP, PROT_READ | PROT_WRITE, flags, -1, 0);
    shared_pages = mmap(NULL, (SHARED_PAGES + 2) * PAGE, PROT_NONE, flags, -1, 0);
    if (stacks == MAP_FAILED || shared_pages == MAP_FAILED ||
        mprotect(shared_pages + PAGE, SHARED_PAGES * PAGE, PROT_READ | PROT_WRITE) != 0) {
        fprintf(stderr, "emulator: no memory for a block\n");
        abort();
    }
}

static void shuffle_order(void)
{
    for (unsigned i = 0; i < warp_count; i++) {
        const unsigned j = order_seed ? draw(i + 1) : i;
        warp_order[i] = warp_order[j];
        warp_order[j] = i;
    }
    for (unsigned i = 0; i < warp_count; i++)
        for (unsigned l = 0; l < WARP; l++) {
            const unsigned j = order_seed ? draw(l + 1) : l;
            warps[i].order[l] = warps[i].order[j];
            warps[i].order[j] = (unsigned char)l;
        }
}

static void prepare_block(void)
{
    memset(warps, 0, warp_count * sizeof *warps);
    for (unsigned i = 0; i < thread_count; i++) {
        thread *t = &threads[i];
        const dim size = running->block;
        t->place = (dim){ i % size.x, i / size.x % size.y, i / size.x / size.y };
        t->warp = &warps[i / WARP];
        t->lane = i % WARP;
        t->bit = 1u << t->lane;
        t->warp->threads = &threads[i - t->lane];
        t->warp->lanes |= t->bit;
        t->warp->runnable |= t->bit;
        t->warp->last = WARP - 1;
        t->done = t->issued = 0;
        t->committed = 0;
        make_fiber(&t->fiber, stacks + (size_t)i * STACK_STEP, STACK_BYTES, thread_entry);
    }
    waiting = exited = barrier_sum = warp_turn = 0;
    shuffle_order();
    memset(shared_pages + PAGE, 0xFF, SHARED_PAGES * PAGE);
}

/* What was written right before the block's shared memory, and between its end and the pages'. */
static void check_shared(void)
{
    const char *start = emulated.shared, *first = shared_pages + PAGE, *end = first;
    end += SHARED_PAGES * PAGE;
    if (start - first > PAGE) first = start - PAGE;
    for (const char *p = first; p < end; p++) {
        if (p == start) p += running->shared_bytes;
        if (p < end && *(const unsigned char *)p != 0xFF)
            defect((site){ 0 }, "byte %td of %u bytes of shared memory was written", p - start,
                   running->shared_bytes);
    }
}

static void run_block(void)
{
    prepare_block();
    self = next_thread();
    emulated.thread = &self->place;
    switch_fiber(&outside, &self->fiber);
    check_shared();
}

/* A signal in a kernel: says where before the program ends. */
static void report_signal(int number)
{
    fprintf(stderr, "emulator: signal %d in ", number);
    print_place();
    fprintf(stderr, "\n");
    signal(number, SIG_DFL);
    raise(number);
}

static const int faults[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE };
enum { FAULTS = sizeof faults / sizeof *faults };

void run_launch(const launch *what)
{
    struct sigaction before[FAULTS], report = { .sa_handler = report_signal };
    report.sa_flags = SA_NODEFER;
    const char *order = getenv("GDP_EMULATED_ORDER");
    order_seed = order ? strtoull(order, NULL, 10) : 0;
    chance = order_seed * 0x9E3779B97F4A7C15u + 1;
    map_memory_of_blocks();
    running = what;
    thread_count = what->block.x * what->block.y * what->block.z;
    warp_count = (thread_count + WARP - 1) / WARP;
    emulated.grid = what->grid;
    emulated.block_size = what->block;
    const size_t rounded =
        (what->shared_bytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
    emulated.shared = shared_pages + (SHARED_PAGES + 1) * PAGE - rounded;
    for (int i = 0; i < FAULTS; i++) sigaction(faults[i], &report, &before[i]);
    for (unsigned z = 0; z < what->grid.z; z++)
        for (unsigned y = 0; y < what->grid.y; y++)
            for (unsigned x = 0; x < what->grid.x; x++) {
                emulated.block = (dim){ x, y, z };
                run_block();
            }
    for (int i = 0; i < FAULTS; i++) sigaction(faults[i], &before[i], NULL);
    running = NULL;
}
