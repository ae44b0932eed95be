/* A layer in the memory of a context's target, where its kernels can reach it. */
#ifndef TOOL_STAGE_H
#define TOOL_STAGE_H

#include "layer.h"

typedef struct staged {
    gdp_context *context;
    layer it;    /* as the original, with tensors of the target; `cu` stays with the original */
    results out; /* tensors of the target for those that the original has */
} staged;

/** Copies what goes in and makes room for what comes out. On failure nothing is left behind. */
gdp_status stage_layer(gdp_context *context, const layer *it, const results *out, staged *copy);

/** Zeroes what stands for tokens behind the last packed sequence: a group has no rank for them. */
gdp_status stage_clear_tail(const staged *copy);

/** Copies what came out to `out`. */
gdp_status stage_fetch(const staged *copy, const results *out);

void stage_release(staged *copy);

size_t tensor_bytes(const gdp_tensor *tensor);

#endif
