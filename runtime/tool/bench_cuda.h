/* The bench of the CUDA target: inputs, measurements, report. */
#ifndef TOOL_BENCH_CUDA_H
#define TOOL_BENCH_CUDA_H

#include "bench.h"

enum { MOST_SETS = 8 };

/** Inputs and do in the target's memory. */
typedef struct bench_set {
    gdp_inputs inputs;
    gdp_output_gradients gradients;
    void *memory[6];
} bench_set;

/** Random inputs of that shape, made in a moment: rows repeat after some thousand. */
gdp_status bench_make_set(gdp_context *context, const gdp_problem *problem,
                          const bench_options *options, uint64_t seed, bench_set *set);
void bench_release_set(gdp_context *context, bench_set *set);
size_t bench_set_bytes(const gdp_problem *problem);

/** Seconds. launch: until the call returns, the average of many with nobody waiting for the device. */
typedef struct bench_times {
    double median, least, p10, p90, launch;
} bench_times;

typedef struct bench_measurement {
    const workload *work;
    gdp_problem problem;
    gdp_config config, backward_config;       /* of the plans without and with backward */
    gdp_plan_sizes sizes, backward_sizes;     /* likewise */
    bench_times forward, saving, backward;    /* saving: forward that keeps what backward needs */
    bench_times cp_prepare, cp_apply;         /* a rank that passes its state on */
    double cold_forward, cold_backward, warm; /* until there is a plan; warm: both */
    int sets;
    char device[128];
    int arch;
} bench_measurement;

/** The least time for a workload: bytes that must be moved, or products with the state alone. */
typedef struct bench_floor {
    double bytes, flops; /* seconds */
} bench_floor;
bench_floor bench_floor_of(const bench_options *options, const gdp_problem *problem, bool backward);

void bench_print_head(const bench_options *options, const bench_measurement *m);
void bench_print(const bench_options *options, const bench_measurement *m);
cJSON *bench_as_json(const bench_options *options, const bench_measurement *m);

#endif
