/* Elements of tensors as doubles, rounded to the nearest (ties to even) on the way back. */
#ifndef GDPI_CONVERT_H
#define GDPI_CONVERT_H

#include <stdint.h>

#include "gdp.h"

/** Element `index` of `data`; integers up to 2^53 are exact. GDP_DTYPE_NONE: 0. */
double gdpi_load(const void *data, gdp_dtype dtype, int64_t index);

/** Rounded once, from the double: never by way of a float. A NaN stays one and becomes quiet.
 * Integer types are never written. */
void gdpi_store(void *data, gdp_dtype dtype, int64_t index, double value);

/** The same for `count` elements in a row. */
void gdpi_load_row(double *restrict to, const void *data, gdp_dtype dtype, int64_t index,
                   int64_t count);
void gdpi_store_row(void *data, gdp_dtype dtype, int64_t index, const double *restrict from,
                    int64_t count);

#endif
