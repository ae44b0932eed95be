/* A layer on one rank, and against the reference. */
#include "stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runner.h"

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

gdp_status stopwatch_start(stopwatch *watch)
{
    watch->launch = seconds();
    return gdp_timer_start(watch->timer, NULL);
}

gdp_status stopwatch_stop(stopwatch *watch)
{
    const gdp_status status = gdp_timer_stop(watch->timer, NULL);
    watch->launch = seconds() - watch->launch;
    return status == GDP_OK ? gdp_timer_read(watch->timer, &watch->target) : status;
}

/* What a plan's calls work with, all in the target's memory. */
typedef struct launch_room {
    gdp_execution execution;
    gdp_saved_context saved;
    stopwatch watch;
} launch_room;

static gdp_status launch_forward(const gdp_plan *plan, const staged *copy, bool keep,
                                 launch_room *room)
{
    const gdp_outputs outputs = results_outputs(&copy->out);
    gdp_status status = stopwatch_start(&room->watch);
    if (status == GDP_OK)
        status = gdp_forward(plan, &copy->it.inputs, &outputs, keep ? &room->saved : NULL,
                             &room->execution);
    return status == GDP_OK ? stopwatch_stop(&room->watch) : status;
}

static gdp_status launch_backward(const gdp_plan *plan, const staged *copy, launch_room *room)
{
    const gdp_input_gradients gradients = results_gradients(&copy->out);
    gdp_status status = stopwatch_start(&room->watch);
    if (status == GDP_OK)
        status = gdp_backward(plan, &copy->it.inputs, &copy->it.gradients, &room->saved, &gradients,
                              &room->execution);
    return status == GDP_OK ? stopwatch_stop(&room->watch) : status;
}

static gdp_status launch(const gdp_plan *plan, const staged *copy, const run_settings *settings,
                         launch_room *room, run_report *report)
{
    const int repeat = settings->repeat < 1              ? 1
                       : settings->repeat > MOST_REPEATS ? MOST_REPEATS
                                                         : settings->repeat;
    double forward[MOST_REPEATS] = { 0 }, backward[MOST_REPEATS] = { 0 };
    for (int i = 0; i < repeat; i++) {
        gdp_status status = launch_forward(plan, copy, settings->backward, room);
        if (status != GDP_OK) return keep_error(report, status);
        forward[i] = room->watch.target;
        report->forward_launch = room->watch.launch;
        if (!settings->backward) continue;
        status = launch_backward(plan, copy, room);
        if (status != GDP_OK) return keep_error(report, status);
        backward[i] = room->watch.target;
        report->backward_launch = room->watch.launch;
    }
    summarise(forward, repeat, &report->forward, &report->forward_median);
    summarise(backward, repeat, &report->backward, &report->backward_median);
    return GDP_OK;
}

static gdp_status run_plan(const gdp_plan *plan, const staged *copy, const run_settings *settings,
                           run_report *report)
{
    gdp_context *context = settings->context;
    gdp_plan_sizes sizes;
    launch_room room = { .watch.timer = NULL };
    gdp_status status = gdp_plan_get_sizes(plan, &sizes);
    if (status == GDP_OK) status = gdp_plan_get_config(plan, &report->config);
    if (status != GDP_OK) return keep_error(report, status);
    report->workspace = room.execution.workspace_bytes = sizes.workspace;
    report->saved = room.saved.bytes = sizes.saved;
    status = gdp_memory_allocate(context, sizes.workspace, &room.execution.workspace);
    if (status == GDP_OK) status = gdp_memory_allocate(context, sizes.saved, &room.saved.data);
    if (status == GDP_OK) status = gdp_timer_create(context, &room.watch.timer);
    keep_error(report, status);
    if (status == GDP_OK) status = launch(plan, copy, settings, &room, report);
    gdp_timer_destroy(room.watch.timer);
    gdp_memory_release(context, room.saved.data);
    gdp_memory_release(context, room.execution.workspace);
    return status;
}

static gdp_status run_alone(const staged *copy, const run_settings *settings, run_report *report)
{
    gdp_plan *plan = NULL;
    const double begin = seconds();
    gdp_status status = gdp_plan_create(settings->context, &copy->it.problem, &settings->config,
                                        settings->backward ? GDP_PLAN_BACKWARD : 0, &plan);
    if (status != GDP_OK) return keep_error(report, status);
    report->prepare = seconds() - begin;
    status = run_plan(plan, copy, settings, report);
    gdp_plan_destroy(plan);
    return status;
}

gdp_status run_layer(const layer *it, const run_settings *settings, const results *out,
                     run_report *report)
{
    staged copy;
    memset(report, 0, sizeof *report);
    gdp_status status = keep_error(report, stage_layer(settings->context, it, out, &copy));
    if (status != GDP_OK) return status;
    if (settings->ranks > 1) status = keep_error(report, stage_clear_tail(&copy));
    if (status == GDP_OK)
        status = settings->ranks > 1 ? run_group(&copy.it, settings, &copy.out, report)
                                     : run_alone(&copy, settings, report);
    if (status == GDP_OK) status = keep_error(report, stage_fetch(&copy, out));
    stage_release(&copy);
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
