/* A layer's tensors: what goes in, from a file or made up, and what comes out. */
#ifndef TOOL_LAYER_H
#define TOOL_LAYER_H

#include "common.h"
#include "safetensors.h"

enum { LAYER_TENSORS = 9 };

typedef struct layer {
    gdp_problem problem;
    gdp_inputs inputs;
    gdp_output_gradients gradients; /* d_o absent: no backward */
    int64_t *cu;                    /* packed: the boundaries, N+1 */
    void *owned[LAYER_TENSORS];     /* made up */
    st_file file;                   /* or read */
} layer;

typedef enum result_id {
    RESULT_O,
    RESULT_FINAL_STATE,
    RESULT_DQ,
    RESULT_DK,
    RESULT_DV,
    RESULT_DG,
    RESULT_DBETA,
    RESULT_DINITIAL_STATE,
    RESULTS
} result_id;

extern const char *const result_names[RESULTS];

typedef struct results {
    gdp_tensor tensor[RESULTS]; /* absent: not wanted */
} results;

/** Reads a file and poses its problem. num_householder 0, scale 0: from the metadata, else from the
 * shapes and the default. 0, or the exit status after a sentence. */
int layer_read(const char *command, const char *path, int64_t num_householder, double scale,
               layer *it);

/** Random tensors: unit q and k, v and do normal, beta in [0, 2], g = 0.1 log u. cu: N+1 boundaries
 * where problem->sequences > 0. False: no memory. */
bool layer_make(const gdp_problem *problem, const int64_t *cu, bool states, uint64_t seed,
                layer *it);

/** Its tensors under their names in files; how many. */
int layer_list(const layer *it, st_tensor list[LAYER_TENSORS]);

void layer_release(layer *it);

/** The tensors that go in, present or not, 0 .. LAYER_TENSORS-1 in the order of their files. */
gdp_tensor *layer_tensor(layer *it, int index);

/** Sequences, batch rows included. */
int64_t sequences_of(const gdp_problem *problem);

bool results_make(const gdp_problem *problem, bool backward, results *it);
void results_release(results *it);
gdp_outputs results_outputs(const results *it);
gdp_input_gradients results_gradients(const results *it);
int results_list(const results *it, st_tensor list[RESULTS]);

int64_t count_elements(const gdp_tensor *tensor);

/* ---- numbers ---- */

float load_element(const void *data, gdp_dtype dtype, int64_t index);
void store_element(void *data, gdp_dtype dtype, int64_t index, float value);

/** A seeded sequence of numbers, the same on every machine with the same libm. */
typedef struct random_state {
    uint64_t state;
} random_state;
uint64_t random_next(random_state *random);
/** 0 to below `limit`. */
int64_t random_below(random_state *random, int64_t limit);
/** In (0, 1). */
double random_uniform(random_state *random);
double random_normal(random_state *random);

/* ---- comparing ---- */

/** How far a result is from the reference, and how far it may be. */
typedef struct deviation {
    bool present;
    double error, bound;
} deviation;

/** Relative Frobenius errors. Gradients below the size of do count as if they were 1 % of it. True:
 * all within bounds. */
bool compare_results(const layer *it, const results *ours, const results *reference,
                     deviation list[RESULTS]);

#endif
