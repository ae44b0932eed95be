/* The recurrence as one would write it down: the yardstick of gdp bench. */
#ifndef TOOL_RECURRENCE_H
#define TOOL_RECURRENCE_H

#include <stdint.h>

/** One value head of `tokens` tokens, float32, rows at these strides (elements). state [K, V] is
 * read and written; scratch: V floats. g NULL: no gate. */
typedef struct recurrence {
    int64_t tokens, updates, dim_k, dim_v;
    const float *q, *k, *v, *g, *beta;
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride, o_stride;
    float *o, *state, *scratch;
    float scale;
} recurrence;

/** For any processor of this kind, as the compiler makes it by default; and with this one's registers. */
void recurrence_forward(const recurrence *r);
void recurrence_forward_wide(const recurrence *r);

#endif
