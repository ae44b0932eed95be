/* A host kernel's tasks on the pool's threads. */
#include "internal.h"

typedef struct host_job {
    gdpi_host_function function;
    const gdp_args *args;
    char *scratch;
    size_t scratch_bytes;
} host_job;

/* Kernels run with round to nearest and with numbers below 2^-126 taken as zero: states and M
 * decay through that range, where a multiplication can take a hundred times as long. The thread's own
 * mode comes back afterwards, and never shows in results. */
#if defined(__x86_64__) || defined(__i386__)
enum { KERNEL_MODE = 0x1f80 | 0x8040 };
static unsigned get_float_mode(void) { return __builtin_ia32_stmxcsr(); }
static void set_float_mode(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
enum { KERNEL_MODE = 1 << 24 };
static unsigned get_float_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (unsigned)mode;
}
static void set_float_mode(unsigned mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}
#else
enum { KERNEL_MODE = 0 };
static unsigned get_float_mode(void) { return 0; }
static void set_float_mode(unsigned mode) { (void)mode; }
#endif

static void run_host_task(void *argument, int64_t task, int slot)
{
    const host_job *job = argument;
    const unsigned mode = get_float_mode();
    set_float_mode(KERNEL_MODE);
    job->function(job->args, task, job->scratch + (size_t)slot * job->scratch_bytes);
    set_float_mode(mode);
}

void gdpi_host_run(gdpi_pool *pool, gdpi_host_function function, int64_t tasks,
                   const gdp_args *args, void *scratch, size_t scratch_bytes)
{
    host_job job = { function, args, scratch, scratch_bytes };
    gdpi_pool_run(pool, tasks, run_host_task, &job);
}
