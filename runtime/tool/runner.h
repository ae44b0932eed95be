/* Running a layer, whole or in shards. */
#ifndef TOOL_RUNNER_H
#define TOOL_RUNNER_H

#include "layer.h"

enum { MOST_RANKS = 256 };

typedef struct run_settings {
    gdp_context *context;
    gdp_config config; /* the request */
    int ranks;         /* 1: gdp_forward and gdp_backward; more: a group of as many threads */
    bool backward;
    int repeat; /* of each direction; less than 1: once. Only for ranks = 1 */
} run_settings;

typedef struct run_report {
    gdp_config config;                 /* what ran */
    double prepare, forward, backward; /* seconds on the target; the shortest of all repetitions */
    double forward_median, backward_median;
    double forward_launch, backward_launch; /* until the calls of the last one returned */
    size_t workspace, saved;
    char error[SENTENCE]; /* on failure */
} run_report;

/** Runs `it` into `out`. */
gdp_status run_layer(const layer *it, const run_settings *settings, const results *out,
                     run_report *report);

/** What run_layer does for ranks > 1. Tensors of `it` and `out` are in the target's memory. */
gdp_status run_group(const layer *it, const run_settings *settings, const results *out,
                     run_report *report);

/** A call's time on the target and until it returns. start before the call, stop after it: waits
 * until the target is done. */
typedef struct stopwatch {
    gdp_timer *timer;
    double target, launch;
} stopwatch;
gdp_status stopwatch_start(stopwatch *watch);
gdp_status stopwatch_stop(stopwatch *watch);

/** Keeps this thread's last sentence in the report. */
gdp_status keep_error(run_report *report, gdp_status status);

/** Runs `it` on the reference target and compares. false with status GDP_OK: out of bounds. */
gdp_status check_layer(const layer *it, const results *out, bool backward, int64_t threads,
                       deviation list[RESULTS], bool *fine, run_report *report);

#endif
