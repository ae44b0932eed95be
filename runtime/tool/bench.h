/* What the parts of gdp bench say to each other. */
#ifndef TOOL_BENCH_H
#define TOOL_BENCH_H

#include "runner.h"

/** The shape itself, and what stands for it on a processor: fewer heads, and tokens as --tokens says. */
typedef struct workload {
    const char *name;
    int64_t dim_k, dim_v, num_householder;
    int64_t batch, tokens, heads, value_heads;
    int64_t host_batch, host_heads, host_value_heads, host_longer; /* longer: times --tokens */
} workload;

typedef enum bench_gate { BENCH_STRONG, BENCH_WEAK, BENCH_NONE } bench_gate;

/** Numbers that are 0: the target's own default. */
typedef struct bench_options {
    int64_t tokens, threads, repeat;
    gdp_target target;
    bool json;
    gdp_config config; /* from here on: CUDA only */
    bench_gate gate;
    double beta;              /* uniform from 0 to this */
    double bandwidth, matrix; /* of the floors: TB/s and TFLOP/s */
} bench_options;

/** Each measures these workloads and prints them. The exit status. */
int bench_host(const bench_options *options, const workload *const *works, int count);
int bench_cuda(const bench_options *options, const workload *const *works, int count);

/** The shortest of `repeat` forward runs of the plain recurrence, as it is and with wide registers, and
 * how far its o is from ours. False: no memory. */
bool bench_yardstick(const layer *it, const results *ours, int repeat, double *plain, double *wide,
                     double *error);

#endif
