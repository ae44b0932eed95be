/* The host's worker threads. A job lives on the stack of the thread that runs it; workers find
 * it in a list, take tasks from its counter, and its owner leaves only when all of them have
 * left. */
#include "internal.h"

#include <signal.h>
#include <string.h>

typedef struct job {
    struct job *next;
    gdpi_work work;
    void *argument;
    int64_t tasks;
    _Atomic int64_t taken; /**< tasks handed out; may run past `tasks` */
    int slots;             /**< slots handed out */
    int workers;           /**< workers that are inside */
} job;

struct gdpi_pool {
    gdpi_allocator allocator;
    pthread_mutex_t mutex; /**< guards everything below, and slots, workers and next of all jobs */
    pthread_cond_t posted, left;
    job *jobs;
    bool ending;
    int threads, started;
    pthread_t workers[];
};

static void work_on(job *at, int slot)
{
    for (;;) {
        const int64_t task = atomic_fetch_add_explicit(&at->taken, 1, memory_order_relaxed);
        if (task >= at->tasks) return;
        at->work(at->argument, task, slot);
    }
}

/* A worker leaves a job only when no task is left, and then never comes back: so there are at
 * most as many slots as participants. */
static job *find_job(const gdpi_pool *pool)
{
    for (job *at = pool->jobs; at; at = at->next)
        if (atomic_load_explicit(&at->taken, memory_order_relaxed) < at->tasks) return at;
    return NULL;
}

static void *worker(void *argument)
{
    gdpi_pool *pool = argument;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->ending) {
        job *at = find_job(pool);
        if (!at) {
            pthread_cond_wait(&pool->posted, &pool->mutex);
            continue;
        }
        const int slot = at->slots++;
        at->workers++;
        pthread_mutex_unlock(&pool->mutex);
        work_on(at, slot);
        pthread_mutex_lock(&pool->mutex);
        if (--at->workers == 0) pthread_cond_broadcast(&pool->left);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

void gdpi_pool_run(gdpi_pool *pool, int64_t tasks, gdpi_work work, void *argument)
{
    if (tasks <= 1 || pool->started == 0) {
        for (int64_t task = 0; task < tasks; task++) work(argument, task, 0);
        return;
    }
    job own = { .work = work, .argument = argument, .tasks = tasks, .slots = 1 };
    pthread_mutex_lock(&pool->mutex);
    job **end = &pool->jobs;
    while (*end) end = &(*end)->next;
    *end = &own;
    pthread_cond_broadcast(&pool->posted);
    pthread_mutex_unlock(&pool->mutex);

    work_on(&own, 0);

    pthread_mutex_lock(&pool->mutex);
    job **link = &pool->jobs;
    while (*link != &own) link = &(*link)->next;
    *link = own.next;
    while (own.workers > 0) pthread_cond_wait(&pool->left, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

int gdpi_pool_threads(const gdpi_pool *pool) { return pool->threads; }

/* Workers take no signals: those are the application's, whose handlers expect its own threads. */
static int start_workers(gdpi_pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error) return error;
    while (!error && pool->started < pool->threads - 1) {
        error = pthread_create(&pool->workers[pool->started], NULL, worker, pool);
        if (!error) pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

gdp_status gdpi_pool_create(const gdpi_allocator *allocator, int threads, gdpi_pool **pool)
{
    *pool = NULL;
    if (threads < 1)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "threads is %d; accepted is 1 or more",
                         threads);
    gdpi_pool *made = gdpi_allocate_zeroed(allocator, sizeof *made + (size_t)(threads - 1) *
                                                                         sizeof made->workers[0]);
    if (!made) return GDP_STATUS_OUT_OF_MEMORY;
    made->allocator = *allocator;
    made->threads = threads;
    int error = pthread_mutex_init(&made->mutex, NULL);
    if (error) goto no_mutex;
    error = pthread_cond_init(&made->posted, NULL);
    if (error) goto no_posted;
    error = pthread_cond_init(&made->left, NULL);
    if (error) goto no_left;
    error = start_workers(made);
    if (!error) {
        *pool = made;
        return GDP_OK;
    }
    const int started = made->started;
    gdpi_pool_destroy(made);
    return gdpi_fail(
        GDP_STATUS_NOT_AVAILABLE,
        "only %d of %d worker threads could be started (error %d); ask for fewer threads", started,
        threads - 1, error);
no_left:
    pthread_cond_destroy(&made->posted);
no_posted:
    pthread_mutex_destroy(&made->mutex);
no_mutex:
    gdpi_release(allocator, made);
    return gdpi_fail(GDP_STATUS_NOT_AVAILABLE,
                     "the lock of %d threads could not be made (error %d)", threads, error);
}

void gdpi_pool_destroy(gdpi_pool *pool)
{
    if (!pool) return;
    pthread_mutex_lock(&pool->mutex);
    pool->ending = true;
    pthread_cond_broadcast(&pool->posted);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i], NULL);
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->posted);
    pthread_mutex_destroy(&pool->mutex);
    const gdpi_allocator allocator = pool->allocator;
    gdpi_release(&allocator, pool);
}
