/* gdp sample */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"
#include "problem_options.h"

/* "0,5,12" as boundaries. NULL after a sentence. */
static int64_t *read_cu(const char *text, int64_t *count)
{
    const size_t length = strlen(text);
    int64_t *cu = allocate_zeroed((length / 2 + 2) * sizeof *cu);
    char *copy = strdup(text), *rest = copy;
    bool fine = cu && copy;
    *count = 0;
    for (char *word; fine && (word = strsep(&rest, ",")) != NULL;) {
        const int64_t low = *count ? cu[*count - 1] : 0, high = *count ? INT64_C(1) << 40 : 0;
        fine = (size_t)*count < length / 2 + 2 && read_integer(word, low, high, &cu[*count]);
        if (fine) ++*count;
    }
    free(copy);
    if (fine && *count >= 2) return cu;
    complain(
        "sample",
        "--cu-seqlens is '%s'; accepted are numbers like 0,5,12 that start at 0 and do not fall",
        text);
    free(cu);
    return NULL;
}

static int write_layer(const char *path, const layer *it, double scale)
{
    char error[ST_SENTENCE], n_text[32], scale_text[64];
    st_tensor list[LAYER_TENSORS];
    const int count = layer_list(it, list);
    snprintf(n_text, sizeof n_text, "%lld", (long long)it->problem.num_householder);
    snprintf(scale_text, sizeof scale_text, "%.9g", scale);
    const st_pair metadata[] = { { "num_householder", n_text }, { "scale", scale_text } };
    if (!st_write(path, list, (size_t)count, metadata, scale != 0 ? 2 : 1, error))
        return complain("sample", "%s: %s", path, error);
    return 0;
}

static int make_and_write(const char *path, const gdp_problem *problem, const int64_t *cu,
                          bool states, int64_t seed, double scale)
{
    layer it;
    if (gdp_problem_check(problem) != GDP_OK) return complain("sample", "%s", gdp_last_error());
    if (!layer_make(problem, cu, states, (uint64_t)seed, &it)) {
        complain("sample", "no memory for these tensors");
        return EXIT_MISSING;
    }
    const int code = write_layer(path, &it, scale);
    layer_release(&it);
    if (code) return code;
    char text[512];
    if (gdp_problem_print(problem, text, sizeof text) == GDP_OK) printf("%s: %s\n", path, text);
    return 0;
}

int command_sample(int argc, char **argv)
{
    gdp_problem problem = gdp_problem_default();
    const char *cu_text = NULL;
    bool no_gate = false, states = false;
    int64_t seed = 0, tokens = -1, heads = 2, value_heads = 0;
    double scale = 0;
    problem.batch = 1;
    const option_spec options[] = {
        CLASS_OPTIONS(&problem),
        { "batch", 'b', OPTION_INT, &problem.batch, "B", "batch rows; 1", 1, 1 << 20 },
        { "tokens", 't', OPTION_INT, &tokens, "T", "tokens of a batch row; 256", 0,
          INT64_C(1) << 32 },
        { "heads", 0, OPTION_INT, &heads, "H", "query/key heads; 2", 1, 65535 },
        { "value-heads", 0, OPTION_INT, &value_heads, "HV", "value heads, a multiple of H; H", 1,
          65535 },
        { "cu-seqlens", 0, OPTION_TEXT, &cu_text, "0,..,T",
          "packed sequences begin at these tokens", 0, 0 },
        { "no-gate", 0, OPTION_FLAG, &no_gate, NULL, "without g", 0, 0 },
        { "initial-state", 0, OPTION_FLAG, &states, NULL, "with initial_state and final_state_grad",
          0, 0 },
        { "scale", 0, OPTION_REAL, &scale, "X", "of the outputs; 1/sqrt(K)", 0, 0 },
        { "seed", 's', OPTION_INT, &seed, "S", "the same tensors for the same seed; 0", 0,
          INT64_MAX },
    };
    const command_spec command = {
        "sample",
        "OUT.safetensors",
        "Writes a random, well-formed input: unit q and k, v and do normal, beta in [0, 2].",
        options,
        sizeof options / sizeof *options,
        1,
        1,
    };
    int first = 0;
    const int result = read_options(&command, argc, argv, &first);
    if (result != GO_ON) return result;

    int64_t *cu = NULL, count = 0;
    if (cu_text) {
        if (!(cu = read_cu(cu_text, &count))) return EXIT_USAGE;
        problem.sequences = count - 1;
    }
    problem.tokens = tokens >= 0 ? tokens : cu ? cu[count - 1] : 256;
    problem.heads = heads;
    problem.value_heads = value_heads ? value_heads : heads;
    if (no_gate) problem.gate_dtype = GDP_DTYPE_NONE;
    if (cu && cu[count - 1] > INT32_MAX) problem.index_dtype = GDP_DTYPE_I64;
    int code = EXIT_USAGE;
    if (cu && cu[count - 1] > problem.tokens)
        complain("sample", "--cu-seqlens ends at %lld; accepted is at most --tokens, which is %lld",
                 (long long)cu[count - 1], (long long)problem.tokens);
    else
        code = make_and_write(argv[first], &problem, cu, states, seed, scale);
    free(cu);
    return code;
}
