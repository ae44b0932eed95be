/* The options that describe a problem, for the commands that make one up. */
#ifndef TOOL_PROBLEM_OPTIONS_H
#define TOOL_PROBLEM_OPTIONS_H

#include "common.h"

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

/** --chunk, --segment, --block-v, --stages, --wave */
#define CONFIG_OPTIONS(config)                                                                      \
    { "chunk", 0, OPTION_INT, &(config)->chunk, "C", "tokens of a chunk", 1, 256 },                 \
        { "segment", 0, OPTION_INT, &(config)->segment, "S", "chunks of a segment", 1, INT32_MAX }, \
        { "block-v",  0,                                                                            \
          OPTION_INT, &(config)->block_v,                                                           \
          "COLUMNS",  "columns of the state in a task",                                             \
          1,          256 },                                                                        \
        { "stages",   0,                                                                            \
          OPTION_INT, &(config)->stages,                                                            \
          "N",        "chunks that a task holds at once (CUDA)",                                    \
          1,          8 },                                                                          \
    {                                                                                               \
        "wave", 0, OPTION_INT, &(config)->wave, "N", "segments in work at once, backward", 1,       \
            INT32_MAX                                                                               \
    }

#endif
