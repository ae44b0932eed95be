/* Random problems for the tests, run on any target, whole or in shards, and compared. */
#ifndef INSTANCE_H
#define INSTANCE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "internal.h"

/** Fails the test with the library's sentence unless a call succeeds. */
#define MUST(call)                                                                   \
    do {                                                                             \
        gdp_status must_ = (call);                                                   \
        if (must_ != GDP_OK)                                                         \
            fail_msg("%s: %s: %s", #call, gdp_status_name(must_), gdp_last_error()); \
    } while (0)

/** Expects a status and that the sentence contains `part`. */
#define REFUSED(call, status, part)                                                 \
    do {                                                                            \
        gdp_status got_ = (call);                                                   \
        if (got_ != (status) || !strstr(gdp_last_error(), part))                    \
            fail_msg("%s: %s: %s", #call, gdp_status_name(got_), gdp_last_error()); \
    } while (0)

typedef enum gate_kind {
    GATE_NONE,
    GATE_ZERO,
    GATE_WEAK,
    GATE_NORMAL,
    GATE_STRONG,
    GATE_ALTERNATING
} gate_kind;

/** What goes into a problem; tensors are dense in memory, g as gate_kind says. */
typedef struct instance {
    gdp_problem problem;
    int64_t *cu; /* as given, or NULL */
    gdp_inputs in;
    gdp_output_gradients out_grads;
} instance;

/** What comes out, with canaries around every buffer. */
typedef struct results {
    gdp_outputs out;
    gdp_input_gradients grads;
} results;

/** "batch=1 tokens=64 ..." and packed boundaries (N+1 of them; NULL: dense). states: random
 * initial_state and d_final_state. */
instance *instance_create(const char *problem, const int64_t *cu, gate_kind gate, bool states,
                          uint64_t seed);
void instance_destroy(instance *it);

/** Outputs filled with 0xFF. */
results *results_create(const instance *it);
/** Checks the canaries. */
void results_destroy(results *r);

/** Plan, forward and, unless `forward_only`, backward; workspace filled with `poison`. config: text or NULL. */
gdp_status instance_run(gdp_context *context, const char *config, const instance *it, results *r,
                        bool forward_only, int poison);

/** The same over `size` ranks as threads. shard_begin: [size+1] token borders, NULL: even.
 * one_call: by gdp_chunkwise_context_parallel. Each rank's status goes to statuses (NULL: all must succeed). */
void instance_run_cp(gdp_context *context, const char *config, const char *backend,
                     const instance *it, results *r, int size, const int64_t *shard_begin,
                     bool one_call, gdp_status *statuses);

/** Relative Frobenius error of a tensor; both zero: 0; where only one is finite: infinity. */
double tensor_error(const gdp_tensor *got, const gdp_tensor *want);

/** All outputs within `bound`, else the test fails and names the tensor. */
void expect_close(const results *got, const results *want, double bound, const char *what);
void expect_same_bits(const results *got, const results *want, const char *what);

/** One element as a double, and set. */
double tensor_get(const gdp_tensor *t, int64_t b, int64_t row, int64_t head, int64_t c);
void tensor_set(const gdp_tensor *t, int64_t b, int64_t row, int64_t head, int64_t c, double value);

int64_t tensor_elements(const gdp_tensor *t);

/** Aligned as workspaces must be, every byte `poison`. */
void *aligned_bytes(size_t bytes, int poison);

/** Uniform in [0, 1) and standard normal. */
double random_uniform(uint64_t *state);
double random_normal(uint64_t *state);

/** A context for tests; its cache is where the environment says, shared by the whole test run. */
gdp_context *test_context(gdp_target target, int threads);

#endif
