/* The problem classes that gdp compile --all stands for, and the threads that compile them. */
#include "compile.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* few: also compiled for every architecture after the first. */
typedef struct grid_class {
    int64_t dim_k, dim_v, num_householder;
    gdp_dtype dtype, gate_dtype;
    bool few;
} grid_class;

#define BF16 GDP_DTYPE_BF16
#define F16 GDP_DTYPE_F16
#define F32 GDP_DTYPE_F32
#define NONE GDP_DTYPE_NONE

static const grid_class grid[] = {
    { 128, 128, 1, BF16, F32, false },  { 128, 128, 2, BF16, F32, true },
    { 128, 128, 3, BF16, F32, false },  { 128, 128, 4, BF16, F32, false },
    { 128, 128, 8, BF16, F32, false },  { 128, 64, 1, BF16, F32, false },
    { 128, 64, 2, BF16, F32, false },   { 128, 64, 3, BF16, F32, true },
    { 128, 64, 4, BF16, F32, false },   { 128, 64, 8, BF16, F32, false },
    { 64, 64, 1, BF16, F32, false },    { 64, 64, 3, BF16, F32, false },
    { 64, 128, 4, BF16, F32, false },   { 256, 256, 1, BF16, F32, true },
    { 256, 256, 8, BF16, F32, false },  { 16, 16, 2, BF16, F32, false },
    { 192, 128, 1, BF16, F32, false },  { 192, 128, 3, BF16, F32, false },
    { 128, 128, 2, BF16, NONE, false }, { 128, 64, 3, BF16, BF16, false },
    { 128, 128, 2, F16, F32, false },   { 64, 64, 1, F16, F32, false },
    { 128, 128, 2, F32, F32, false },   { 64, 64, 4, F32, F32, true },
    { 256, 256, 1, F32, F32, false },
};

int compile_grid(int64_t arch, bool whole, compile_unit *units, int count)
{
    for (size_t i = 0; i < sizeof grid / sizeof *grid && count < MOST_UNITS; i++) {
        if (!whole && !grid[i].few) continue;
        compile_unit *unit = &units[count++];
        *unit = (compile_unit){ .problem = gdp_problem_default(), .chosen = true };
        unit->problem.dim_k = grid[i].dim_k;
        unit->problem.dim_v = grid[i].dim_v;
        unit->problem.num_householder = grid[i].num_householder;
        unit->problem.dtype = grid[i].dtype;
        unit->problem.gate_dtype = grid[i].gate_dtype;
        if (grid[i].gate_dtype == BF16) unit->problem.beta_dtype = BF16;
        unit->config.target = GDP_TARGET_CUDA;
        unit->config.arch = arch;
    }
    return count;
}

/* ---- threads ---- */

typedef struct queue {
    gdp_context *context;
    compile_job *jobs;
    int count;
    bool progress;
    atomic_int next, done;
} queue;

static void *work(void *argument)
{
    queue *q = argument;
    for (int i; (i = atomic_fetch_add(&q->next, 1)) < q->count;) {
        compile_job *job = &q->jobs[i];
        job->status = gdp_compile_kernel(q->context, job->kernel, &job->unit->problem,
                                         &job->unit->config, &job->report);
        if (job->status != GDP_OK) job->sentence = strdup(gdp_last_error());
        /* Without a compiler the others would say the same. */
        if (job->status == GDP_STATUS_NOT_AVAILABLE) atomic_store(&q->next, q->count);
        const int done = atomic_fetch_add(&q->done, 1) + 1;
        if (q->progress) fprintf(stderr, "\r%d of %d kernels", done, q->count);
    }
    return NULL;
}

void compile_run(gdp_context *context, compile_job *jobs, int count, int threads, bool progress)
{
    enum { MOST = 256 };
    pthread_t others[MOST];
    queue q = { context, jobs, count, progress && isatty(STDERR_FILENO), 0, 0 };
    int started = 0;
    while (started < threads - 1 && started < MOST &&
           pthread_create(&others[started], NULL, work, &q) == 0)
        started++;
    work(&q);
    for (int i = 0; i < started; i++) pthread_join(others[i], NULL);
    if (q.progress) fprintf(stderr, "\r%40s\r", "");
}
