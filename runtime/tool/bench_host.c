/* gdp bench on the host: the workloads made small enough for a processor. */
#include <stdio.h>
#include <string.h>

#include "bench.h"

typedef struct measurement {
    const workload *work;
    gdp_problem problem;
    run_report inference; /* forward alone, which keeps no states, on 1 thread */
    run_report one, all;  /* forward and backward on 1 thread; on every thread */
    double plain, wide;   /* the recurrence, forward on one core */
    double recurrence_error, warm_start;
    int threads;
    char processor[128];
} measurement;

static gdp_status run_with(const layer *it, int64_t threads, bool backward, int64_t repeat,
                           const results *out, run_report *report, measurement *m)
{
    run_settings settings = {
        .ranks = 1, .backward = backward, .repeat = (int)repeat, .config.target = GDP_TARGET_HOST
    };
    gdp_context_info info = { 0 };
    gdp_status status =
        keep_error(report, open_context(GDP_TARGET_HOST, threads, NULL, &settings.context));
    if (status == GDP_OK) status = run_layer(it, &settings, out, report);
    if (status == GDP_OK && gdp_context_get_info(settings.context, &info) == GDP_OK) {
        m->threads = info.threads;
        snprintf(m->processor, sizeof m->processor, "%s",
                 info.processor ? info.processor : "unknown");
    }
    gdp_context_destroy(settings.context);
    return status;
}

/* From nothing to a plan, where the kernels are in the disk cache. */
static gdp_status time_start(const layer *it, measurement *m)
{
    gdp_context *context = NULL;
    gdp_plan *plan = NULL;
    const gdp_config config = { .target = GDP_TARGET_HOST };
    const double begin = seconds();
    gdp_status status = keep_error(&m->all, open_context(GDP_TARGET_HOST, 0, NULL, &context));
    if (status == GDP_OK)
        status = keep_error(
            &m->all, gdp_plan_create(context, &it->problem, &config, GDP_PLAN_BACKWARD, &plan));
    m->warm_start = seconds() - begin;
    gdp_plan_destroy(plan);
    gdp_context_destroy(context);
    return status;
}

static int measure_layer(const layer *it, const results *out, const bench_options *options,
                         measurement *m)
{
    gdp_status status = run_with(it, 1, false, options->repeat, out, &m->inference, m);
    if (status != GDP_OK) return complain_status("bench", status, m->inference.error);
    status = run_with(it, 1, true, options->repeat, out, &m->one, m);
    if (status != GDP_OK) return complain_status("bench", status, m->one.error);
    if (!bench_yardstick(it, out, (int)options->repeat, &m->plain, &m->wide,
                         &m->recurrence_error)) {
        complain("bench", "no memory for the plain recurrence");
        return EXIT_MISSING;
    }
    if (!(m->recurrence_error < 2e-2)) {
        complain("bench",
                 "%s: o differs from the plain recurrence's by %.2e; accepted is up to 2e-2",
                 m->work->name, m->recurrence_error);
        return EXIT_CHECK;
    }
    status = run_with(it, options->threads, true, options->repeat, out, &m->all, m);
    if (status == GDP_OK) status = time_start(it, m);
    return complain_status("bench", status, m->all.error);
}

static int measure(const workload *w, const bench_options *options, measurement *m)
{
    layer it;
    results out;
    memset(m, 0, sizeof *m);
    m->work = w;
    m->problem = gdp_problem_default();
    m->problem.batch = w->host_batch;
    m->problem.tokens = options->tokens * w->host_longer / (w->host_batch > 4 ? 2 : 1);
    if (m->problem.tokens < 1) m->problem.tokens = 1;
    m->problem.heads = w->host_heads;
    m->problem.value_heads = w->host_value_heads;
    m->problem.dim_k = w->dim_k;
    m->problem.dim_v = w->dim_v;
    m->problem.num_householder = w->num_householder;
    int code = EXIT_MISSING;
    if (!layer_make(&m->problem, NULL, false, 1, &it)) {
        complain("bench", "no memory for '%s'", w->name);
        return code;
    }
    if (results_make(&m->problem, true, &out)) {
        code = measure_layer(&it, &out, options, m);
        results_release(&out);
    } else {
        complain("bench", "no memory for the outputs of '%s'", w->name);
    }
    layer_release(&it);
    return code;
}

/* Microseconds a token and value head. */
static double each(const measurement *m, double duration)
{
    const gdp_problem *p = &m->problem;
    return 1e6 * duration / ((double)p->batch * (double)p->tokens * (double)p->value_heads);
}

static void print_head(const bench_options *options, const measurement *m)
{
    printf("Host target, bf16, %s. The workloads are cut down: %lld tokens and few heads.\n",
           m->processor, (long long)options->tokens);
    printf("ms, us: on 1 thread; us: a token and value head, the best of %lld. plain: a "
           "token-by-token recurrence\n"
           "in float32, forward, on one core, at -O3; wide: with the registers of this processor; "
           "ratio: over our\nforward. scaling: forward (that keeps states) and backward, 1 thread "
           "over "
           "%d.\n\n",
           (long long)options->repeat, m->threads);
    printf("%-35s %15s  %15s\n", "", "forward, ms", "backward, ms");
    printf("%-10s %-24s %7s %7s  %7s %7s %8s %8s %8s %6s %8s %6s %8s %10s\n", "name", "shape",
           "min", "median", "min", "median", "fwd us", "bwd us", "plain us", "ratio", "wide us",
           "ratio", "scaling", "warm start");
}

static void print_measurement(const measurement *m)
{
    const gdp_problem *p = &m->problem;
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld H%lld/%lld K%lld V%lld n%lld", (long long)p->batch,
             (long long)p->tokens, (long long)p->heads, (long long)p->value_heads,
             (long long)p->dim_k, (long long)p->dim_v, (long long)p->num_householder);
    const double one = m->one.forward + m->one.backward, all = m->all.forward + m->all.backward;
    printf("%-10s %-24s %7.2f %7.2f  %7.2f %7.2f %8.3f %8.3f %8.3f %6.2f %8.3f %6.2f %8.2f %10s\n",
           m->work->name, shape, 1e3 * m->inference.forward, 1e3 * m->inference.forward_median,
           1e3 * m->one.backward, 1e3 * m->one.backward_median, each(m, m->inference.forward),
           each(m, m->one.backward), each(m, m->plain), m->plain / m->inference.forward,
           each(m, m->wide), m->wide / m->inference.forward, one / all,
           show_time(m->warm_start).text);
    fflush(stdout);
}

static cJSON *as_json(const measurement *m)
{
    char problem[512] = "", config[512] = "", full[96];
    (void)gdp_problem_print(&m->problem, problem, sizeof problem);
    (void)gdp_config_print(&m->one.config, config, sizeof config);
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", m->work->name);
    const workload *w = m->work;
    snprintf(full, sizeof full, "B%lld T%lld H%lld HV%lld", (long long)w->batch,
             (long long)w->tokens, (long long)w->heads, (long long)w->value_heads);
    cJSON_AddStringToObject(object, "stands_for", full);
    cJSON_AddStringToObject(object, "problem", problem);
    cJSON_AddStringToObject(object, "config", config);
    cJSON_AddStringToObject(object, "processor", m->processor);
    cJSON_AddNumberToObject(object, "threads", m->threads);
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        { "forward_min_seconds", m->inference.forward },
        { "forward_median_seconds", m->inference.forward_median },
        { "backward_min_seconds", m->one.backward },
        { "backward_median_seconds", m->one.backward_median },
        { "all_threads_forward_min_seconds", m->all.forward },
        { "all_threads_backward_min_seconds", m->all.backward },
        { "forward_us_per_token_head", each(m, m->inference.forward) },
        { "backward_us_per_token_head", each(m, m->one.backward) },
        { "recurrence_us_per_token_head", each(m, m->plain) },
        { "recurrence_over_forward", m->plain / m->inference.forward },
        { "wide_recurrence_us_per_token_head", each(m, m->wide) },
        { "wide_recurrence_over_forward", m->wide / m->inference.forward },
        { "warm_start_seconds", m->warm_start },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(object, numbers[i].name, numbers[i].value);
    return object;
}

int bench_host(const bench_options *given, const workload *const *works, int count)
{
    bench_options options = *given;
    if (options.tokens == 0) options.tokens = 2048;
    if (options.repeat == 0) options.repeat = 5;
    cJSON *list = options.json ? cJSON_CreateArray() : NULL;
    int code = 0;
    for (int i = 0; i < count && code == 0; i++) {
        measurement m;
        code = measure(works[i], &options, &m);
        if (code) break;
        if (options.json) {
            cJSON_AddItemToArray(list, as_json(&m));
        } else {
            if (i == 0) print_head(&options, &m);
            print_measurement(&m);
        }
    }
    if (code || !options.json) {
        cJSON_Delete(list);
        return code;
    }
    return print_json("bench", list);
}
