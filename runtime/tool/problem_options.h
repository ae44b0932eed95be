/* The options that describe a problem, for the commands that make one up. */
#ifndef TOOL_PROBLEM_OPTIONS_H
#define TOOL_PROBLEM_OPTIONS_H

#include "common.h"

enum { PROBLEM_CLASS_OPTIONS = 6, PROBLEM_SIZE_OPTIONS = 4 };

/** --dim-k, --dim-v, --num-householder, --dtype, --gate-dtype, --beta-dtype */
#define CLASS_OPTIONS(problem)                                                                    \
    { "dim-k", 0, OPTION_INT, &(problem)->dim_k, "K", "key dimension of a head", 1, 256 },        \
        { "dim-v", 0, OPTION_INT, &(problem)->dim_v, "V", "value dimension of a head", 1, 256 },  \
        { "num-householder",          'n', OPTION_INT, &(problem)->num_householder, "N",          \
          "delta updates of a token", 1,   16 },                                                  \
        { "dtype", 0, OPTION_DTYPE, &(problem)->dtype, "TYPE", "of q, k, v, o: bf16, f16 or f32", \
          0,       0 },                                                                           \
        { "gate-dtype",                                                                           \
          0,                                                                                      \
          OPTION_GATE,                                                                            \
          &(problem)->gate_dtype,                                                                 \
          "TYPE",                                                                                 \
          "of g: none, bf16, f16 or f32",                                                         \
          0,                                                                                      \
          0 },                                                                                    \
    {                                                                                             \
        "beta-dtype", 0, OPTION_DTYPE, &(problem)->beta_dtype, "TYPE",                            \
            "of beta: bf16, f16 or f32", 0, 0                                                     \
    }

/** --batch, --tokens, --heads, --value-heads */
#define SIZE_OPTIONS(problem)                                                                    \
    { "batch", 'b', OPTION_INT, &(problem)->batch, "B", "batch rows", 0, 1 << 20 },              \
        { "tokens",        't', OPTION_INT, &(problem)->tokens, "T", "tokens of a batch row", 0, \
          INT64_C(1) << 32 },                                                                    \
        { "heads", 0, OPTION_INT, &(problem)->heads, "H", "query/key heads", 1, 65535 },         \
    {                                                                                            \
        "value-heads", 0, OPTION_INT, &(problem)->value_heads, "HV",                             \
            "value heads, a multiple of H", 1, 65535                                             \
    }

#endif
