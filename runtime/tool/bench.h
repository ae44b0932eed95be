/* What the two halves of gdp bench say to each other. */
#ifndef TOOL_BENCH_H
#define TOOL_BENCH_H

#include "runner.h"

/** The shortest of `repeat` forward runs of the plain recurrence, as it is and with wide registers, and
 * how far its o is from ours. False: no memory. */
bool bench_yardstick(const layer *it, const results *ours, int repeat, double *plain, double *wide,
                     double *error);

#endif
