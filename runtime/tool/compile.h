/* What the parts of gdp compile say to each other. */
#ifndef TOOL_COMPILE_H
#define TOOL_COMPILE_H

#include "common.h"

enum { MOST_ARCHS = 16, MOST_UNITS = 1024 };

/** One configuration of one problem class for one architecture: all kernels. */
typedef struct compile_unit {
    gdp_problem problem;
    gdp_config config;     /* the request */
    bool chosen;           /* nothing was asked for: what a user gets by default */
    char config_text[256]; /* the complete one; empty: unknown */
} compile_unit;

typedef struct compile_job {
    const compile_unit *unit;
    const char *kernel;
    gdp_kernel_report report;
    gdp_status status;
    char *sentence; /* on failure; NULL: none was to be had */
} compile_job;

/** Appends the grid of --all for an architecture, whole or the few classes that stand for it. Returns the
 * new count. */
int compile_grid(int64_t arch, bool whole, compile_unit *units, int count);

/** Does all jobs in `threads` threads of this process, with a count on a terminal. */
void compile_run(gdp_context *context, compile_job *jobs, int count, int threads, bool progress);

#endif
