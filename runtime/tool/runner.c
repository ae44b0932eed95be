/* A layer on one rank, and against the reference. */
#include "runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REPEATS = 1000 };

gdp_status keep_error(run_report *report, gdp_status status)
{
    if (status != GDP_OK) snprintf(report->error, sizeof report->error, "%s", gdp_last_error());
    return status;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void summarise(double *times, int count, double *least, double *median)
{
    qsort(times, (size_t)count, sizeof *times, by_size);
    *least = times[0];
    *median = times[count / 2];
}

static gdp_status launch(const gdp_plan *plan, const layer *it, const run_settings *settings,
                         const results *out, gdp_saved_context *saved,
                         const gdp_execution *execution, run_report *report)
{
    const int repeat = settings->repeat < 1              ? 1
                       : settings->repeat > MOST_REPEATS ? MOST_REPEATS
                                                         : settings->repeat;
    const gdp_outputs outputs = results_outputs(out);
    const gdp_input_gradients gradients = results_gradients(out);
    double forward[MOST_REPEATS] = { 0 }, backward[MOST_REPEATS] = { 0 };
    for (int i = 0; i < repeat; i++) {
        const double begin = seconds();
        gdp_status status =
            gdp_forward(plan, &it->inputs, &outputs, settings->backward ? saved : NULL, execution);
        const double middle = seconds();
        if (status == GDP_OK && settings->backward)
            status = gdp_backward(plan, &it->inputs, &it->gradients, saved, &gradients, execution);
        if (status != GDP_OK) return keep_error(report, status);
        forward[i] = middle - begin;
        backward[i] = seconds() - middle;
    }
    summarise(forward, repeat, &report->forward, &report->forward_median);
    summarise(backward, repeat, &report->backward, &report->backward_median);
    return GDP_OK;
}

static gdp_status run_plan(const gdp_plan *plan, const layer *it, const run_settings *settings,
                           const results *out, run_report *report)
{
    gdp_plan_sizes sizes;
    gdp_status status = gdp_plan_get_sizes(plan, &sizes);
    if (status == GDP_OK) status = gdp_plan_get_config(plan, &report->config);
    if (status != GDP_OK) return keep_error(report, status);
    report->workspace = sizes.workspace;
    report->saved = sizes.saved;
    gdp_execution execution = { allocate_zeroed(sizes.workspace), sizes.workspace, NULL };
    gdp_saved_context saved = { .data = allocate_zeroed(sizes.saved), .bytes = sizes.saved };
    if (execution.workspace && saved.data) {
        status = launch(plan, it, settings, out, &saved, &execution, report);
    } else {
        snprintf(report->error, sizeof report->error,
                 "no memory for a workspace of %zu and %zu saved bytes", sizes.workspace,
                 sizes.saved);
        status = GDP_STATUS_OUT_OF_MEMORY;
    }
    free(execution.workspace);
    free(saved.data);
    return status;
}

gdp_status run_layer(const layer *it, const run_settings *settings, const results *out,
                     run_report *report)
{
    memset(report, 0, sizeof *report);
    if (settings->ranks > 1) return run_group(it, settings, out, report);
    gdp_plan *plan = NULL;
    const double begin = seconds();
    gdp_status status = gdp_plan_create(settings->context, &it->problem, &settings->config,
                                        settings->backward ? GDP_PLAN_BACKWARD : 0, &plan);
    if (status != GDP_OK) return keep_error(report, status);
    report->prepare = seconds() - begin;
    status = run_plan(plan, it, settings, out, report);
    gdp_plan_destroy(plan);
    return status;
}

gdp_status check_layer(const layer *it, const results *out, bool backward, int64_t threads,
                       deviation list[RESULTS], bool *fine, run_report *report)
{
    results expected;
    run_settings settings = { .config.target = GDP_TARGET_REFERENCE,
                              .ranks = 1,
                              .backward = backward };
    memset(report, 0, sizeof *report);
    if (!results_make(&it->problem, backward, &expected)) {
        snprintf(report->error, sizeof report->error, "no memory for the reference's outputs");
        return GDP_STATUS_OUT_OF_MEMORY;
    }
    gdp_status status =
        keep_error(report, open_context(GDP_TARGET_REFERENCE, threads, NULL, &settings.context));
    if (status == GDP_OK) status = run_layer(it, &settings, &expected, report);
    if (status == GDP_OK) *fine = compare_results(it, out, &expected, list);
    gdp_context_destroy(settings.context);
    results_release(&expected);
    return status;
}
