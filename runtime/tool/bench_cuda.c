/* gdp bench on CUDA: times of whole calls, by the device's clock. */
#include "bench_cuda.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_REPEATS = 1000, LAUNCH_BATCHES = 5, LAUNCHES = 8 };
/* Inputs of this many bytes have left the largest L2 cache when their turn comes again. */
static const size_t FAR_ABOVE_L2 = (size_t)256 << 20;
static const double WARM_UP = 0.2; /* seconds, for the clocks to settle */

/* What the measurements of one workload share. */
typedef struct bench {
    const bench_options *options;
    bench_measurement *m;
    gdp_context *context;
    gdp_plan *forward, *backward, *cp;
    bench_set sets[MOST_SETS];
    void *results[6]; /* o, dq, dk, dv, dg, dbeta */
    gdp_outputs outputs;
    gdp_input_gradients gradients;
    gdp_execution execution;
    gdp_saved_context saved;
    void *gathered; /* of two ranks, this one's first */
    gdp_timer *timers[2][MOST_REPEATS];
    int repeat;
} bench;

/* ---- one call ---- */

typedef gdp_status (*call)(bench *b, int set);

static gdp_status call_forward(bench *b, int set)
{
    return gdp_forward(b->forward, &b->sets[set].inputs, &b->outputs, NULL, &b->execution);
}

static gdp_status call_saving(bench *b, int set)
{
    return gdp_forward(b->backward, &b->sets[set].inputs, &b->outputs, &b->saved, &b->execution);
}

static gdp_status call_backward(bench *b, int set)
{
    return gdp_backward(b->backward, &b->sets[set].inputs, &b->sets[set].gradients, &b->saved,
                        &b->gradients, &b->execution);
}

/* The first of two ranks: its summary is needed, and nothing enters it. */
static const gdp_cp_window first_of_two = { 0, 2, 0, 2 };

static gdp_status call_prepare(bench *b, int set)
{
    return gdp_cp_forward_prepare(b->cp, &b->sets[set].inputs, &first_of_two, b->gathered, NULL,
                                  &b->execution);
}

static gdp_status call_apply(bench *b, int set)
{
    return gdp_cp_forward_apply(b->cp, &b->sets[set].inputs, &first_of_two, b->gathered,
                                &b->outputs, NULL, &b->execution);
}

/* ---- times ---- */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static gdp_status read_times(bench *b, gdp_timer *const *timers, bench_times *times)
{
    double list[MOST_REPEATS] = { 0 };
    for (int i = 0; i < b->repeat; i++) {
        const gdp_status status = gdp_timer_read(timers[i], &list[i]);
        if (status != GDP_OK) return status;
    }
    const int last = b->repeat - 1;
    qsort(list, (size_t)b->repeat, sizeof *list, by_size);
    times->least = list[0];
    times->p10 = list[last / 10];
    times->median = list[last / 2];
    times->p90 = list[last - last / 10];
    return GDP_OK;
}

static gdp_status timed(bench *b, call function, int set, gdp_timer *timer)
{
    gdp_status status = gdp_timer_start(timer, NULL);
    if (status == GDP_OK) status = function(b, set);
    return status == GDP_OK ? gdp_timer_stop(timer, NULL) : status;
}

static gdp_status warm_up(bench *b, call first, call second)
{
    const double begin = seconds();
    gdp_status status = GDP_OK;
    for (int i = 0; status == GDP_OK && (i < 2 || seconds() - begin < WARM_UP); i++) {
        status = first(b, i % b->m->sets);
        if (status == GDP_OK && second) status = second(b, i % b->m->sets);
        if (status == GDP_OK) status = gdp_stream_synchronize(b->context, NULL);
    }
    return status;
}

/* How long the host is busy with a call. So few follow each other that the driver's queue is never
 * full. */
static gdp_status time_launches(bench *b, call function, double *launch)
{
    double sum = 0;
    gdp_status status = gdp_stream_synchronize(b->context, NULL);
    for (int batch = 0; batch < LAUNCH_BATCHES && status == GDP_OK; batch++) {
        const double begin = seconds();
        for (int i = 0; i < LAUNCHES && status == GDP_OK; i++) status = function(b, 0);
        sum += seconds() - begin;
        if (status == GDP_OK) status = gdp_stream_synchronize(b->context, NULL);
    }
    *launch = sum / (LAUNCH_BATCHES * LAUNCHES);
    return status;
}

/* `second`, or NULL, always follows `first` on the same inputs. */
static gdp_status time_calls(bench *b, call first, bench_times *first_times, call second,
                             bench_times *second_times)
{
    gdp_status status = warm_up(b, first, second);
    for (int i = 0; i < b->repeat && status == GDP_OK; i++) {
        status = timed(b, first, i % b->m->sets, b->timers[0][i]);
        if (status == GDP_OK && second) status = timed(b, second, i % b->m->sets, b->timers[1][i]);
    }
    if (status == GDP_OK) status = read_times(b, b->timers[0], first_times);
    if (status == GDP_OK && second) status = read_times(b, b->timers[1], second_times);
    if (status == GDP_OK) status = time_launches(b, first, &first_times->launch);
    if (status == GDP_OK && second) status = time_launches(b, second, &second_times->launch);
    return status;
}

/* ---- plans ---- */

static gdp_status open_plans(bench *b, const char *cache, double *forward, double *backward)
{
    const gdp_problem *p = &b->m->problem;
    const gdp_config *config = &b->options->config;
    const double begin = seconds();
    gdp_status status = open_context(GDP_TARGET_CUDA, b->options->threads, cache, &b->context);
    if (status == GDP_OK) status = gdp_plan_create(b->context, p, config, 0, &b->forward);
    const double middle = seconds();
    if (status == GDP_OK)
        status = gdp_plan_create(b->context, p, config, GDP_PLAN_BACKWARD, &b->backward);
    *forward = middle - begin;
    *backward = seconds() - middle;
    return status;
}

static void close_plans(bench *b)
{
    gdp_plan_destroy(b->forward);
    gdp_plan_destroy(b->backward);
    gdp_plan_destroy(b->cp);
    gdp_context_destroy(b->context);
    b->forward = b->backward = b->cp = NULL;
    b->context = NULL;
}

/* Once with an empty cache, then again with what that left in it. */
static gdp_status start_twice(bench *b, const char *cache)
{
    bench_measurement *m = b->m;
    double forward = 0, backward = 0;
    gdp_status status = open_plans(b, cache, &m->cold_forward, &m->cold_backward);
    if (status != GDP_OK) return status;
    close_plans(b);
    status = open_plans(b, cache, &forward, &backward);
    m->warm = forward + backward;
    return status;
}

/* ---- memory ---- */

static gdp_status result(bench *b, int which, const gdp_tensor *like, gdp_tensor *tensor)
{
    const size_t bytes = (size_t)count_elements(like) * gdp_dtype_size(like->dtype);
    if (!like->data) return GDP_OK;
    const gdp_status status = gdp_memory_allocate(b->context, bytes, &b->results[which]);
    *tensor = gdp_tensor_contiguous(b->results[which], like->dtype, like->rank, like->shape);
    return status;
}

static gdp_status make_results(bench *b)
{
    const gdp_inputs *in = &b->sets[0].inputs;
    const struct {
        const gdp_tensor *like;
        gdp_tensor *tensor;
    } list[6] = {
        { &b->sets[0].gradients.d_o, &b->outputs.o },
        { &in->q, &b->gradients.dq },
        { &in->k, &b->gradients.dk },
        { &in->v, &b->gradients.dv },
        { &in->g, &b->gradients.dg },
        { &in->beta, &b->gradients.dbeta },
    };
    gdp_status status = GDP_OK;
    for (int i = 0; i < 6 && status == GDP_OK; i++)
        status = result(b, i, list[i].like, list[i].tensor);
    return status;
}

static gdp_status make_memory(bench *b)
{
    bench_measurement *m = b->m;
    const size_t bytes = bench_set_bytes(&m->problem);
    const size_t wanted = bytes ? FAR_ABOVE_L2 / bytes + 1 : 1;
    m->sets = wanted > MOST_SETS ? MOST_SETS : (int)wanted;
    gdp_status status = GDP_OK;
    for (int i = 0; i < m->sets && status == GDP_OK; i++)
        status = bench_make_set(b->context, &m->problem, b->options, (uint64_t)i, &b->sets[i]);
    if (status == GDP_OK) status = make_results(b);
    for (int i = 0; i < 2 * b->repeat && status == GDP_OK; i++)
        status = gdp_timer_create(b->context, &b->timers[i % 2][i / 2]);
    return status;
}

static void release_workspace(bench *b)
{
    void *const all[] = { b->execution.workspace, b->saved.data, b->gathered };
    for (int i = 0; i < 3; i++) gdp_memory_release(b->context, all[i]);
    b->execution.workspace = b->saved.data = b->gathered = NULL;
}

static gdp_status make_workspace(bench *b, const gdp_plan *plan, gdp_plan_sizes *sizes)
{
    gdp_status status = gdp_plan_get_sizes(plan, sizes);
    if (status != GDP_OK) return status;
    release_workspace(b);
    b->execution.workspace_bytes = sizes->workspace;
    b->saved.bytes = sizes->saved;
    status = gdp_memory_allocate(b->context, sizes->workspace, &b->execution.workspace);
    if (status == GDP_OK) status = gdp_memory_allocate(b->context, sizes->saved, &b->saved.data);
    if (status == GDP_OK)
        status = gdp_memory_allocate(b->context, 2 * sizes->summary, &b->gathered);
    if (status == GDP_OK) status = gdp_memory_fill(b->context, b->gathered, 0, 2 * sizes->summary);
    return status;
}

static void release_memory(bench *b)
{
    if (!b->context) return;
    release_workspace(b);
    for (int i = 0; i < 2 * MOST_REPEATS; i++) gdp_timer_destroy(b->timers[i % 2][i / 2]);
    for (int i = 0; i < 6; i++) gdp_memory_release(b->context, b->results[i]);
    for (int i = 0; i < MOST_SETS; i++) bench_release_set(b->context, &b->sets[i]);
}

/* ---- a workload ---- */

static gdp_status measure_plans(bench *b)
{
    bench_measurement *m = b->m;
    gdp_plan_sizes cp_sizes;
    gdp_status status = gdp_plan_get_config(b->forward, &m->config);
    if (status == GDP_OK) status = gdp_plan_get_config(b->backward, &m->backward_config);
    if (status == GDP_OK) status = make_memory(b);

    if (status == GDP_OK) status = make_workspace(b, b->forward, &m->sizes);
    if (status == GDP_OK) status = time_calls(b, call_forward, &m->forward, NULL, NULL);

    if (status == GDP_OK) status = make_workspace(b, b->backward, &m->backward_sizes);
    if (status == GDP_OK)
        status = time_calls(b, call_saving, &m->saving, call_backward, &m->backward);

    if (status == GDP_OK)
        status = gdp_plan_create(b->context, &m->problem, &b->options->config, GDP_PLAN_CP, &b->cp);
    if (status == GDP_OK) status = make_workspace(b, b->cp, &cp_sizes);
    if (status == GDP_OK)
        status = time_calls(b, call_prepare, &m->cp_prepare, call_apply, &m->cp_apply);
    return status;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static gdp_status measure(bench *b, const char *cache)
{
    bench_measurement *m = b->m;
    gdp_context_info info = { 0 };
    gdp_status status = start_twice(b, cache);
    if (status == GDP_OK) status = gdp_context_get_info(b->context, &info);
    if (status == GDP_OK) status = measure_plans(b);
    snprintf(m->device, sizeof m->device, "%s", info.device ? info.device : "unknown");
    m->arch = info.arch;
    return status;
}

static int bench_workload(const bench_options *options, const workload *w, bench_measurement *m)
{
    char cache[4096];
    const char *place = getenv("TMPDIR");
    snprintf(cache, sizeof cache, "%s/gdp-bench-XXXXXX", place && *place ? place : "/tmp");
    if (!mkdtemp(cache)) return complain("bench", "no directory can be made like %s", cache);
    bench *b = calloc(1, sizeof *b);
    int code = EXIT_MISSING;
    memset(m, 0, sizeof *m);
    m->work = w;
    m->problem = gdp_problem_default();
    m->problem.batch = w->batch;
    m->problem.tokens = options->tokens ? options->tokens : w->tokens;
    m->problem.heads = w->heads;
    m->problem.value_heads = w->value_heads;
    m->problem.dim_k = w->dim_k;
    m->problem.dim_v = w->dim_v;
    m->problem.num_householder = w->num_householder;
    if (options->gate == BENCH_NONE) m->problem.gate_dtype = GDP_DTYPE_NONE;
    if (b) {
        b->options = options;
        b->m = m;
        b->repeat = options->repeat ? (int)options->repeat : 50;
        const gdp_status status = measure(b, cache);
        code = complain_status("bench", status, gdp_last_error());
        release_memory(b);
        close_plans(b);
    } else {
        complain("bench", "no memory for '%s'", w->name);
    }
    free(b);
    nftw(cache, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return code;
}

int bench_cuda(const bench_options *options, const workload *const *works, int count)
{
    cJSON *list = options->json ? cJSON_CreateArray() : NULL;
    int code = 0;
    for (int i = 0; i < count && code == 0; i++) {
        bench_measurement m;
        code = bench_workload(options, works[i], &m);
        if (code) break;
        if (options->json) {
            cJSON_AddItemToArray(list, bench_as_json(options, &m));
        } else {
            if (i == 0) bench_print_head(options, &m);
            bench_print(options, &m);
        }
    }
    if (code || !options->json) {
        cJSON_Delete(list);
        return code;
    }
    return print_json("bench", list);
}
