/* source: tests/instance.c */
/* timeout: 1200 */
/* The CUDA target against the float64 recurrence, as test_host.c does for the host: a grid of shapes, types,
 * gates and packings, every kind of configuration, shards, repeated runs. On a
 * device that is emulated (GDP_EMULATED) or watched (GDP_TEST_SMALL) fewer of each. */
#include "instance.h"

static gdp_context *cuda, *reference;
static bool few;

typedef struct grid_class {
    const char *fields;
    double bound; /* 1e-2 in bf16, 3e-3 in f16, 1e-4 in f32 */
} grid_class;

static const grid_class classes[] = {
    { "dim_k=128 dim_v=128 num_householder=2 dtype=bf16", 1e-2 },
    { "dim_k=128 dim_v=64 num_householder=3 dtype=bf16 beta_dtype=bf16 gate_dtype=bf16", 1.5e-2 },
    { "dim_k=64 dim_v=64 num_householder=1 dtype=f32 index_dtype=i64", 1e-4 },
    { "dim_k=64 dim_v=128 num_householder=1 dtype=f16 beta_dtype=f16 gate_dtype=f16", 3e-3 },
    { "dim_k=16 dim_v=16 num_householder=4 dtype=f16", 3e-3 },
    { "dim_k=128 dim_v=128 num_householder=1 dtype=bf16", 1e-2 },
    { "dim_k=128 dim_v=128 num_householder=4 dtype=bf16", 1e-2 },
    { "dim_k=48 dim_v=112 num_householder=8 dtype=f32", 1e-4 },
    { "dim_k=256 dim_v=256 num_householder=1 dtype=bf16", 1e-2 },
    { "dim_k=80 dim_v=48 num_householder=2 dtype=f32", 1e-4 },
    { "dim_k=192 dim_v=96 num_householder=5 dtype=bf16", 1e-2 },
    { "dim_k=160 dim_v=80 num_householder=2 dtype=f16", 3e-3 },
    { "dim_k=32 dim_v=32 num_householder=16 dtype=f32", 1e-4 },
};
enum { CLASSES = sizeof classes / sizeof *classes };

typedef struct grid_shape {
    const char *fields;
    int64_t cu[8];
    bool packed, states;
} grid_shape;

static const grid_shape shapes[] = {
    { "batch=2 tokens=130 heads=2 value_heads=4", { 0 }, false, true },
    { "tokens=131 sequences=6 heads=2 value_heads=2", { 0, 1, 1, 65, 66, 100, 131 }, true, true },
    { "batch=3 tokens=1 heads=4 value_heads=8", { 0 }, false, true },
    { "batch=2 tokens=33 heads=1 value_heads=2", { 0 }, false, false },
    { "tokens=70 sequences=2 heads=1 value_heads=3", { 0, 40, 60 }, true, true },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void compare(const grid_class *class, const grid_shape *shape, gate_kind gate,
                    const char *config)
{
    char fields[256], what[512];
    snprintf(fields, sizeof fields, "%s %s", class->fields, shape->fields);
    snprintf(what, sizeof what, "%s, gate %d, %s", fields, (int)gate, config);
    instance *it =
        instance_create(fields, shape->packed ? shape->cu : NULL, gate, shape->states, 7);
    results *got = results_create(it), *want = results_create(it);
    MUST(instance_run(reference, NULL, it, want, false, 0));
    MUST(instance_run(cuda, config, it, got, false, 0xFF));
    /* Weak decays let the roundings of many tokens add up; a token alone has only its own. */
    const bool loose = gate == GATE_WEAK || it->problem.tokens == 1;
    expect_close(got, want, loose ? 2 * class->bound : class->bound, what);
    results_destroy(got);
    results_destroy(want);
    instance_destroy(it);
}

static void test_grid(void **state)
{
    (void)state;
    static const gate_kind gates[] = { GATE_NORMAL, GATE_WEAK, GATE_STRONG, GATE_ALTERNATING,
                                       GATE_NONE };
    static const char *const configs[] = { "", "segment=1", "segment=2 wave=3",
                                           "segment=3 wave=1" };
    int turn = 0;
    for (int c = 0; c < CLASSES; c++)
        for (int s = 0; s < SHAPES; s++)
            for (int g = 0; g < 5; g++, turn++) {
                if (few && (turn + s) % 4) continue;
                compare(&classes[c], &shapes[s], gates[g], configs[turn % 4]);
            }
}

/* Every chunk size, block, number of stages, segments and waves is right, not only the default. */
static void test_configurations(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "chunk=8 block_v=16",           "chunk=16 block_v=64 segment=3 stages=2",
        "chunk=32 block_v=32 stages=2", "chunk=24 block_v=128 segment=1 wave=2",
        "chunk=5 block_v=64 stages=4",  "chunk=1 block_v=128 segment=16 wave=5",
    };
    const int count = few ? 4 : (int)(sizeof configs / sizeof *configs);
    for (int i = 0; i < count; i++)
        for (int s = 0; s < 2; s++) compare(&classes[0], &shapes[s], GATE_NORMAL, configs[i]);
}

/* The same bits every time, whatever the workspace held. */
static void test_bits(void **state)
{
    (void)state;
    const char *fields =
        "dim_k=128 dim_v=128 num_householder=2 dtype=bf16 batch=2 tokens=300 heads=2 value_heads=4";
    static const char *const configs[] = { "segment=100", "segment=3 wave=4" };
    instance *it = instance_create(few ? "dim_k=32 dim_v=32 tokens=150 heads=1 value_heads=2 "
                                         "num_householder=2"
                                       : fields,
                                   NULL, GATE_NORMAL, true, 3);
    for (int c = 0; c < 2; c++) {
        results *first = results_create(it);
        MUST(instance_run(cuda, configs[c], it, first, false, 0));
        for (int run = 0; run < (few ? 2 : 50); run++) {
            results *again = results_create(it);
            MUST(instance_run(cuda, configs[c], it, again, false, run % 3 ? 0xFF : 0));
            expect_same_bits(again, first, "another run");
            results_destroy(again);
        }
        results_destroy(first);
    }
    instance_destroy(it);
}

/* Without the states for backward, the same o. */
static void test_forward_only(void **state)
{
    (void)state;
    const char *fields = "dim_k=64 dim_v=64 num_householder=1 dtype=bf16 tokens=200 value_heads=2";
    instance *it = instance_create(fields, NULL, GATE_NORMAL, true, 4);
    results *both = results_create(it), *forward = results_create(it);
    MUST(instance_run(cuda, NULL, it, both, false, 0));
    MUST(instance_run(cuda, NULL, it, forward, true, 0xFF));
    assert_memory_equal(both->out.o.data, forward->out.o.data,
                        (size_t)tensor_elements(&both->out.o) * 2);
    results_destroy(both);
    results_destroy(forward);
    instance_destroy(it);
}

typedef struct shard_case {
    const char *fields;
    int64_t cu[8];
    bool packed;
    int size;
    int64_t begin[8];
    bool uneven, one_call;
} shard_case;

static const shard_case shard_cases[] = {
    { "batch=2 tokens=101 heads=1 value_heads=2", { 0 }, false, 3, { 0 }, false, false },
    { "tokens=131 sequences=4 heads=2 value_heads=2",
      { 0, 40, 41, 100, 131 },
      true,
      4,
      { 0 },
      false,
      false },
    { "tokens=10 sequences=3 heads=1 value_heads=1",
      { 0, 3, 3, 10 },
      true,
      3,
      { 0, 4, 4, 10 },
      true,
      false },
    { "tokens=70 heads=1 value_heads=1", { 0 }, false, 2, { 0, 60, 70 }, true, true },
    { "tokens=64 sequences=2 heads=1 value_heads=2", { 0, 32, 64 }, true, 2, { 0 }, false, true },
};

static void test_shards(void **state)
{
    (void)state;
    static const char *const configs[] = { NULL, "segment=1 wave=2", "segment=2" };
    for (size_t i = 0; i < sizeof shard_cases / sizeof *shard_cases; i++) {
        const shard_case *c = &shard_cases[i];
        char fields[256];
        snprintf(fields, sizeof fields, "dim_k=64 dim_v=32 num_householder=2 dtype=f32 %s",
                 c->fields);
        instance *it = instance_create(fields, c->packed ? c->cu : NULL,
                                       i % 2 ? GATE_WEAK : GATE_NORMAL, true, 5 + i);
        results *got = results_create(it), *want = results_create(it);
        MUST(instance_run(reference, NULL, it, want, false, 0));
        instance_run_cp(cuda, c->one_call ? NULL : configs[i % 3], NULL, it, got, c->size,
                        c->uneven ? c->begin : NULL, c->one_call, NULL);
        expect_close(got, want, 1e-4, fields);
        results_destroy(got);
        results_destroy(want);
        instance_destroy(it);
    }
}

static void refuse(const char *problem, const char *config, const char *part)
{
    gdp_problem p = gdp_problem_default();
    gdp_config c = { 0 };
    gdp_plan *plan;
    MUST(gdp_problem_parse(problem, &p));
    MUST(gdp_config_parse(config, &c));
    REFUSED(gdp_plan_create(cuda, &p, &c, 0, &plan), GDP_STATUS_UNSUPPORTED, part);
    assert_null(plan);
}

static void test_refusals(void **state)
{
    (void)state;
    refuse("tokens=64 dim_k=100", "", "dim_k must be a multiple of 16");
    refuse("tokens=64 dim_v=8", "", "dim_v must be a multiple of 16");
    refuse("tokens=64", "chunk=128", "must not exceed 64 sub-tokens");
    refuse("tokens=64", "block_v=48", "block_v must be a multiple of 16");
    refuse("tokens=64", "chunk=64 stages=8", "shared memory of a block");
}

static int setup(void **state)
{
    (void)state;
    reference = test_context(GDP_TARGET_REFERENCE, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    gdp_context_destroy(cuda);
    gdp_context_destroy(reference);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid),   cmocka_unit_test(test_configurations),
        cmocka_unit_test(test_bits),   cmocka_unit_test(test_forward_only),
        cmocka_unit_test(test_shards), cmocka_unit_test(test_refusals),
    };
    gdp_context_options options = GDP_CONTEXT_OPTIONS_INIT;
    options.target = GDP_TARGET_CUDA;
    few = getenv("GDP_EMULATED") || getenv("GDP_TEST_SMALL");
    const gdp_status status = gdp_context_create(&options, &cuda);
    if (status == GDP_STATUS_NOT_AVAILABLE) {
        printf("skipped: %s\n", gdp_last_error());
        return 77;
    }
    MUST(status);
    return cmocka_run_group_tests(tests, setup, teardown);
}
