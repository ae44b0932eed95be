/* gdp verify */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runner.h"

enum { MOST_SEQUENCES = 6, CLASS_SHARES = 6 };

typedef struct random_case {
    gdp_problem problem;
    int64_t cu[MOST_SEQUENCES + 1];
    bool states;
    int ranks;
    uint64_t seed;
} random_case;

#define PICK(random, list) (list)[random_below(random, sizeof(list) / sizeof *(list))]

static int by_size(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* What kernels are specialised for; sizes come later. CUDA kernels want multiples of 16. */
static gdp_problem make_class(random_state *random, gdp_target target)
{
    static const int64_t any[][2] = { { 16, 16 }, { 32, 16 }, { 64, 32 },
                                      { 24, 40 }, { 64, 64 }, { 5, 3 } };
    static const int64_t whole[][2] = { { 16, 16 },  { 32, 16 }, { 64, 32 },  { 48, 80 },
                                        { 64, 128 }, { 64, 64 }, { 128, 64 }, { 128, 128 } };
    static const int64_t updates[] = { 1, 2, 3, 4 };
    static const gdp_dtype types[] = { GDP_DTYPE_BF16, GDP_DTYPE_F32, GDP_DTYPE_F16 };
    gdp_problem p = gdp_problem_default();
    const int64_t *dim = target == GDP_TARGET_CUDA ? PICK(random, whole) : PICK(random, any);
    p.dim_k = dim[0];
    p.dim_v = dim[1];
    p.num_householder = PICK(random, updates);
    p.dtype = PICK(random, types);
    p.gate_dtype = random_below(random, 3)   ? GDP_DTYPE_F32
                   : random_below(random, 2) ? p.dtype
                                             : GDP_DTYPE_NONE;
    p.beta_dtype = random_below(random, 3) ? GDP_DTYPE_F32 : p.dtype;
    p.index_dtype = random_below(random, 2) ? GDP_DTYPE_I32 : GDP_DTYPE_I64;
    return p;
}

/* Several problems share a class, as compiling one takes far longer than running it.  */
static random_case make_case(const gdp_problem *class, random_state *random)
{
    random_case c;
    memset(&c, 0, sizeof c);
    gdp_problem *p = &c.problem;
    *p = *class;
    p->heads = 1 + random_below(random, 2);
    p->value_heads = p->heads * (1 + random_below(random, 3));
    p->tokens =
        random_below(random, 4) ? 1 + random_below(random, 200) : 1 + random_below(random, 6);
    p->batch = 1 + random_below(random, 3);
    if (random_below(random, 2)) {
        p->batch = 1;
        p->sequences = 1 + random_below(random, MOST_SEQUENCES);
        for (int64_t i = 1; i < p->sequences; i++) c.cu[i] = random_below(random, p->tokens + 1);
        qsort(c.cu, (size_t)p->sequences, sizeof *c.cu, by_size);
        c.cu[p->sequences] = p->tokens;
    }
    c.states = random_below(random, 2) != 0;
    c.ranks = 1 + (int)random_below(random, 4);
    c.seed = random_next(random);
    return c;
}

static void describe(const random_case *c, const char *what)
{
    char text[512] = "";
    (void)gdp_problem_print(&c->problem, text, sizeof text);
    printf("FAILED %s: %s ranks=%d states=%d", what, text, c->ranks, c->states);
    for (int64_t i = 0; i <= c->problem.sequences && c->problem.sequences; i++)
        printf("%s%lld", i ? "," : " cu_seqlens=", (long long)c->cu[i]);
    putchar('\n');
}

/* GDP_OK and *fine, or what went wrong. */
static gdp_status check_case(const random_case *c, gdp_context *context, deviation list[RESULTS],
                             bool *fine, run_report *report)
{
    layer it;
    results out;
    if (!layer_make(&c->problem, c->cu, c->states, c->seed, &it)) return GDP_STATUS_OUT_OF_MEMORY;
    if (!results_make(&c->problem, true, &out)) {
        layer_release(&it);
        return GDP_STATUS_OUT_OF_MEMORY;
    }
    const run_settings settings = { .context = context, .ranks = c->ranks, .backward = true };
    gdp_status status = run_layer(&it, &settings, &out, report);
    if (status == GDP_OK) status = check_layer(&it, &out, true, 0, list, fine, report);
    results_release(&out);
    layer_release(&it);
    return status;
}

/* True: passed. *status: what the library said. */
static bool verify_one(const random_case *c, gdp_context *context, gdp_status *status)
{
    deviation list[RESULTS];
    run_report report = { .error = "no memory" };
    bool fine = false;
    *status = check_case(c, context, list, &fine, &report);
    if (*status == GDP_STATUS_NOT_AVAILABLE) {
        complain("verify", "%s", report.error);
        return false;
    }
    if (*status != GDP_OK) {
        describe(c, report.error);
        return false;
    }
    for (int r = 0; r < RESULTS && !fine; r++) {
        if (!list[r].present || list[r].error <= list[r].bound) continue;
        char text[128];
        snprintf(text, sizeof text, "%s is off by %.2e, above %.0e", result_names[r], list[r].error,
                 list[r].bound);
        describe(c, text);
    }
    return fine;
}

int command_verify(int argc, char **argv)
{
    int64_t count = 30, seed = 1, threads = 0;
    gdp_target target = GDP_TARGET_AUTO;
    const option_spec options[] = {
        { "count", 'c', OPTION_INT, &count, "N", "problems; 30", 1, 1000000 },
        { "seed", 's', OPTION_INT, &seed, "S", "which ones; 1", 0, INT64_MAX },
        { "target", 0, OPTION_TARGET, &target, "TARGET", "auto, host, cuda or reference", 0, 0 },
        { "threads", 0, OPTION_INT, &threads, "N", "of the host target; one a core", 1, 4096 },
    };
    const command_spec command = {
        "verify",
        "",
        "Runs small random problems forward and backward, on 1 to 4 ranks, and compares them with\n"
        "the float64 reference. Exit status 1 where one fails.",
        options,
        4,
        0,
        0,
    };
    int first = 0;
    const int result = read_options(&command, argc, argv, &first);
    if (result != GO_ON) return result;

    gdp_context *context = NULL;
    gdp_context_info info = { 0 };
    gdp_status status = open_context(target, threads, NULL, &context);
    if (status == GDP_OK) status = gdp_context_get_info(context, &info);
    if (status != GDP_OK) return complain_status("verify", status, gdp_last_error());
    const double begin = seconds();
    random_state random = { (uint64_t)seed };
    int64_t failures = 0;
    gdp_problem class = gdp_problem_default();
    for (int64_t i = 0; i < count && status != GDP_STATUS_NOT_AVAILABLE; i++) {
        if (i % CLASS_SHARES == 0) class = make_class(&random, info.target);
        const random_case c = make_case(&class, &random);
        if (!verify_one(&c, context, &status)) failures++;
    }
    gdp_context_destroy(context);
    if (status == GDP_STATUS_NOT_AVAILABLE) return EXIT_MISSING;
    printf("%lld of %lld random problems agree with the reference (target %s, seed %lld, %s)\n",
           (long long)(count - failures), (long long)count, target_name(info.target),
           (long long)seed, show_time(seconds() - begin).text);
    return failures ? EXIT_CHECK : 0;
}
