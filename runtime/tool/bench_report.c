/* What gdp bench says of the CUDA target. */
#include "bench_cuda.h"

#include <stdio.h>
#include <string.h>

/* Forward reads q, k, v, g, beta and writes o; backward reads them and do and writes as many gradients.
 * Products with the state: two an update and one a token, twice as many backward. */
bench_floor bench_floor_of(const bench_options *options, const gdp_problem *p, bool backward)
{
    const size_t set = bench_set_bytes(p), size = gdp_dtype_size(p->dtype);
    const double heads = (double)p->batch * (double)p->tokens * (double)p->value_heads;
    const double d_o = heads * (double)p->dim_v * (double)size;
    const double bytes = backward ? 2 * (double)set - d_o : (double)set;
    const double flops = heads * 2 * (double)(2 * p->num_householder + 1) * (double)p->dim_k *
                         (double)p->dim_v * (backward ? 2 : 1);
    return (bench_floor){ bytes / (1e12 * options->bandwidth), flops / (1e12 * options->matrix) };
}

static double larger(bench_floor floor)
{
    return floor.bytes > floor.flops ? floor.bytes : floor.flops;
}

static const char *gate_name(const bench_options *options)
{
    return options->gate == BENCH_NONE ? "none" : options->gate == BENCH_WEAK ? "weak" : "strong";
}

void bench_print_head(const bench_options *options, const bench_measurement *m)
{
    printf("%s, sm_%d; bf16, gate %s, beta uniform(0, %g); %lld repeats. Times in ms, of whole "
           "calls on the\n"
           "device; host: until a call returns, in us. Floor: the larger of the bytes that must be "
           "moved at\n"
           "%g TB/s and the products with the state at %g TFLOP/s.\n\n",
           m->device, m->arch, gate_name(options), options->beta,
           (long long)(options->repeat ? options->repeat : 50), options->bandwidth,
           options->matrix);
}

static void print_times(const char *label, const bench_times *t, const bench_floor *floor)
{
    printf("  %-16s %9.4f %9.4f %9.4f %9.4f %9.1f", label, 1e3 * t->median, 1e3 * t->least,
           1e3 * t->p10, 1e3 * t->p90, 1e6 * t->launch);
    if (floor)
        printf(" %9.4f %7.2f  %s", 1e3 * larger(*floor), t->median / larger(*floor),
               floor->bytes > floor->flops ? "bytes" : "products");
    putchar('\n');
}

void bench_print(const bench_options *options, const bench_measurement *m)
{
    const gdp_problem *p = &m->problem;
    char config[512] = "", backward[512] = "";
    const bench_floor forward_floor = bench_floor_of(options, p, false),
                      backward_floor = bench_floor_of(options, p, true);
    const double cp = m->cp_prepare.median + m->cp_apply.median;
    (void)gdp_config_print(&m->config, config, sizeof config);
    (void)gdp_config_print(&m->backward_config, backward, sizeof backward);
    printf("%s: B%lld T%lld H%lld HV%lld K%lld V%lld n%lld\n", m->work->name, (long long)p->batch,
           (long long)p->tokens, (long long)p->heads, (long long)p->value_heads,
           (long long)p->dim_k, (long long)p->dim_v, (long long)p->num_householder);
    printf("  %s\n", config);
    if (strcmp(config, backward) != 0) printf("  backward: %s\n", backward);
    printf("  %-16s %9s %9s %9s %9s %9s %9s %7s  %s\n", "", "median", "min", "p10", "p90", "host",
           "floor", "ratio", "floor of");
    print_times("forward", &m->forward, &forward_floor);
    print_times("forward, saving", &m->saving, NULL);
    print_times("backward", &m->backward, &backward_floor);
    print_times("CP prepare", &m->cp_prepare, NULL);
    print_times("CP apply", &m->cp_apply, NULL);
    printf("  CP prepare + apply: %.2f of forward; %d set%s of inputs\n", cp / m->forward.median,
           m->sets, m->sets == 1 ? "" : "s");
    printf("  workspace %.1f MB forward, %.1f MB backward; saved %.1f MB\n",
           1e-6 * (double)m->sizes.workspace, 1e-6 * (double)m->backward_sizes.workspace,
           1e-6 * (double)m->backward_sizes.saved);
    printf("  first start %s forward, %s more for backward; warm start %s\n\n",
           show_time(m->cold_forward).text, show_time(m->cold_backward).text,
           show_time(m->warm).text);
    fflush(stdout);
}

static void add_times(cJSON *object, const char *name, const bench_times *t)
{
    cJSON *entry = cJSON_AddObjectToObject(object, name);
    cJSON_AddNumberToObject(entry, "median_seconds", t->median);
    cJSON_AddNumberToObject(entry, "min_seconds", t->least);
    cJSON_AddNumberToObject(entry, "p10_seconds", t->p10);
    cJSON_AddNumberToObject(entry, "p90_seconds", t->p90);
    cJSON_AddNumberToObject(entry, "launch_seconds", t->launch);
}

cJSON *bench_as_json(const bench_options *options, const bench_measurement *m)
{
    char problem[512] = "", config[512] = "", backward[512] = "";
    const bench_floor floors[2] = { bench_floor_of(options, &m->problem, false),
                                    bench_floor_of(options, &m->problem, true) };
    (void)gdp_problem_print(&m->problem, problem, sizeof problem);
    (void)gdp_config_print(&m->config, config, sizeof config);
    (void)gdp_config_print(&m->backward_config, backward, sizeof backward);
    cJSON *object = cJSON_CreateObject();
    const struct {
        const char *name, *text;
    } texts[] = { { "name", m->work->name }, { "problem", problem },
                  { "config", config },      { "backward_config", backward },
                  { "device", m->device },   { "gate", gate_name(options) } };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cJSON_AddStringToObject(object, texts[i].name, texts[i].text);
    add_times(object, "forward", &m->forward);
    add_times(object, "forward_saving", &m->saving);
    add_times(object, "backward", &m->backward);
    add_times(object, "cp_prepare", &m->cp_prepare);
    add_times(object, "cp_apply", &m->cp_apply);
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        { "arch", m->arch },
        { "beta", options->beta },
        { "input_sets", m->sets },
        { "forward_byte_floor_seconds", floors[0].bytes },
        { "forward_product_floor_seconds", floors[0].flops },
        { "forward_over_floor", m->forward.median / larger(floors[0]) },
        { "backward_byte_floor_seconds", floors[1].bytes },
        { "backward_product_floor_seconds", floors[1].flops },
        { "backward_over_floor", m->backward.median / larger(floors[1]) },
        { "forward_workspace_bytes", (double)m->sizes.workspace },
        { "backward_workspace_bytes", (double)m->backward_sizes.workspace },
        { "saved_bytes", (double)m->backward_sizes.saved },
        { "cold_forward_seconds", m->cold_forward },
        { "cold_backward_seconds", m->cold_backward },
        { "warm_start_seconds", m->warm },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(object, numbers[i].name, numbers[i].value);
    return object;
}
