/* The pool: every task once, slots that belong to one thread, many jobs at once. */
/* link: -Wl,--wrap=pthread_create */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "internal.h"

enum { TASKS = 1000, SLOTS = 8, CALLERS = 8, ROUNDS = 50 };

static _Atomic int allocations;

static void *count_allocate(void *user, size_t bytes)
{
    (void)user;
    atomic_fetch_add(&allocations, 1);
    return malloc(bytes);
}

static void *refuse(void *user, size_t bytes)
{
    (void)user;
    (void)bytes;
    return NULL;
}

static void release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static const gdpi_allocator allocator = { count_allocate, release, NULL };

/* Threads that may still be started; -1: any number. */
static int threads_left = -1;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    if (threads_left == 0) return EAGAIN;
    if (threads_left > 0) threads_left--;
    return __real_pthread_create(thread, attributes, start, argument);
}

static gdpi_pool *create(int threads)
{
    gdpi_pool *pool = NULL;
    assert_int_equal(gdpi_pool_create(&allocator, threads, &pool), GDP_OK);
    assert_non_null(pool);
    assert_int_equal(gdpi_pool_threads(pool), threads);
    return pool;
}

/* cmocka's checks may not be used in other threads: they count here. */
typedef struct record {
    gdpi_pool *pool;
    int threads;
    int done[TASKS];           /**< plain: a task run twice at once is a race that TSan reports */
    _Atomic int inside[SLOTS]; /**< threads that are in a slot */
    int uses[SLOTS];           /**< plain: a shared slot is a race */
    _Atomic int errors;
} record;

static void record_task(void *argument, int64_t task, int slot)
{
    record *to = argument;
    if (slot < 0 || slot >= to->threads || task < 0 || task >= TASKS) {
        atomic_fetch_add(&to->errors, 1);
        return;
    }
    if (atomic_fetch_add(&to->inside[slot], 1) != 0) atomic_fetch_add(&to->errors, 1);
    to->done[task]++;
    to->uses[slot]++;
    atomic_fetch_sub(&to->inside[slot], 1);
}

/* One job and what is wrong with it. */
static int run_once(gdpi_pool *pool, int threads, int64_t tasks)
{
    record to = { .threads = threads };
    gdpi_pool_run(pool, tasks, record_task, &to);
    int errors = to.errors, uses = 0;
    for (int64_t i = 0; i < TASKS; i++) errors += to.done[i] != (i < tasks);
    for (int i = 0; i < SLOTS; i++) uses += to.uses[i];
    return errors + (uses != tasks);
}

static void test_each_once(void **state)
{
    (void)state;
    static const int counts[] = { 1, 2, 3, 8 };
    static const int64_t tasks[] = { 0, 1, 2, 7, TASKS };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        gdpi_pool *pool = create(counts[i]);
        const int before = allocations;
        for (int round = 0; round < ROUNDS; round++)
            for (size_t j = 0; j < sizeof tasks / sizeof *tasks; j++)
                assert_int_equal(run_once(pool, counts[i], tasks[j]), 0);
        assert_int_equal(allocations, before);
        gdpi_pool_destroy(pool);
    }
}

static void *call_many(void *argument)
{
    record *to = argument;
    for (int round = 0; round < ROUNDS; round++)
        to->errors += run_once(to->pool, to->threads, round % 2 ? TASKS : 5);
    return NULL;
}

static void run_callers(int threads)
{
    gdpi_pool *pool = create(threads);
    pthread_t callers[CALLERS];
    record records[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        records[i] = (record){ .pool = pool, .threads = threads };
        assert_int_equal(pthread_create(&callers[i], NULL, call_many, &records[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(pthread_join(callers[i], NULL), 0);
        assert_int_equal(records[i].errors, 0);
    }
    gdpi_pool_destroy(pool);
}

static void test_callers_at_once(void **state)
{
    (void)state;
    run_callers(4);
    run_callers(1);
}

/* A task may run a job of its own: its thread alone can finish it. */
static void nest(void *argument, int64_t task, int slot)
{
    (void)task;
    (void)slot;
    record *to = argument;
    atomic_fetch_add(&to->errors, run_once(to->pool, to->threads, 20));
}

static void test_nested(void **state)
{
    (void)state;
    gdpi_pool *pool = create(3);
    record to = { .pool = pool, .threads = 3 };
    gdpi_pool_run(pool, 50, nest, &to);
    assert_int_equal(to.errors, 0);
    gdpi_pool_destroy(pool);
}

static void note_thread(void *argument, int64_t task, int slot)
{
    ((pthread_t *)argument)[task] = pthread_self();
    assert_int_equal(slot, 0);
}

static void test_one_thread_is_the_caller(void **state)
{
    (void)state;
    gdpi_pool *pool = create(1);
    pthread_t seen[10];
    gdpi_pool_run(pool, 10, note_thread, seen);
    for (int i = 0; i < 10; i++) assert_true(pthread_equal(seen[i], pthread_self()));
    gdpi_pool_destroy(pool);
}

static void test_refused(void **state)
{
    (void)state;
    gdpi_pool *pool = NULL;
    const gdpi_allocator none = { refuse, release, NULL };
    assert_int_equal(gdpi_pool_create(&none, 2, &pool), GDP_STATUS_OUT_OF_MEMORY);
    assert_null(pool);
    assert_int_equal(gdpi_pool_create(&allocator, 0, &pool), GDP_STATUS_INVALID_ARGUMENT);
    assert_null(pool);
    gdpi_pool_destroy(NULL);
}

static void test_threads_that_do_not_start(void **state)
{
    (void)state;
    gdpi_pool *pool = NULL;
    threads_left = 2;
    assert_int_equal(gdpi_pool_create(&allocator, 5, &pool), GDP_STATUS_NOT_AVAILABLE);
    threads_left = -1;
    assert_null(pool);
    assert_non_null(strstr(gdp_last_error(), "2 of 4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_once), cmocka_unit_test(test_callers_at_once),
        cmocka_unit_test(test_nested),    cmocka_unit_test(test_one_thread_is_the_caller),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_threads_that_do_not_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
