/* source: tests/instance.c */
/* timeout: 600 */
/* The host target against the float64 recurrence over a grid of shapes, types, gates and packings; the same
 * bits whatever the number of threads, the workspace's old contents and the run. */
#include "instance.h"

static gdp_context *host, *single, *reference;

typedef struct grid_class {
    const char *fields;
    bool gate;
    double bound; /* 4e-3 where outputs are rounded to bf16, 2e-5 in f32 */
} grid_class;

static const grid_class classes[] = {
    { "dim_k=128 dim_v=128 num_householder=2 dtype=bf16", true, 4e-3 },
    { "dim_k=128 dim_v=128 num_householder=2 dtype=f32", true, 2e-5 },
    { "dim_k=128 dim_v=64 num_householder=3 dtype=bf16 beta_dtype=bf16 gate_dtype=bf16", true,
      4e-3 },
    { "dim_k=64 dim_v=64 num_householder=1 dtype=f32", true, 2e-5 },
    { "dim_k=64 dim_v=128 num_householder=1 dtype=f16 beta_dtype=f16", true, 1e-3 },
    { "dim_k=100 dim_v=37 num_householder=2 dtype=f32 index_dtype=i64", true, 2e-5 },
    { "dim_k=16 dim_v=16 num_householder=4 dtype=f16 gate_dtype=f16", true, 1e-3 },
    { "dim_k=5 dim_v=7 num_householder=3 dtype=f32", true, 2e-5 },
    { "dim_k=48 dim_v=128 num_householder=8 dtype=f32", true, 2e-5 },
    { "dim_k=256 dim_v=256 num_householder=1 dtype=bf16", true, 4e-3 },
    { "dim_k=64 dim_v=48 num_householder=2 dtype=f32", false, 2e-5 },
    { "dim_k=3 dim_v=1 num_householder=16 dtype=f32", false, 2e-5 },
};

typedef struct grid_shape {
    const char *fields;
    int64_t cu[8];
    bool packed, states;
} grid_shape;

static const grid_shape shapes[] = {
    { "batch=1 tokens=1 heads=1 value_heads=1", { 0 }, false, true },
    { "batch=2 tokens=33 heads=1 value_heads=2", { 0 }, false, false },
    { "batch=2 tokens=130 heads=2 value_heads=4", { 0 }, false, true },
    { "tokens=131 sequences=6 heads=2 value_heads=2", { 0, 1, 1, 65, 66, 100, 131 }, true, true },
    { "tokens=70 sequences=2 heads=1 value_heads=3",
      { 0, 40, 60 },
      true,
      true }, /* rows behind the end */
};

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
    MUST(instance_run(host, config, it, got, false, 0xFF));
    expect_close(got, want, class->bound, what);
    results_destroy(got);
    results_destroy(want);
    instance_destroy(it);
}

static void test_grid(void **state)
{
    (void)state;
    static const gate_kind gates[] = { GATE_WEAK, GATE_NORMAL, GATE_STRONG, GATE_ALTERNATING };
    static const char *const configs[] = { "", "segment=1", "segment=2" };
    int turn = 0;
    for (size_t c = 0; c < sizeof classes / sizeof *classes; c++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int g = 0; g < (classes[c].gate ? 4 : 1); g++)
                compare(&classes[c], &shapes[s], classes[c].gate ? gates[g] : GATE_NONE,
                        configs[turn++ % 3]);
}

/* Every chunk size and column block that a problem admits is right, not only the default. */
static void test_configurations(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "chunk=8 block_v=16",    "chunk=16 block_v=48 segment=3",
        "chunk=32 block_v=64",   "chunk=64 block_v=32 segment=1",
        "chunk=128 block_v=128",
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        for (size_t s = 2; s < 4; s++) compare(&classes[10], &shapes[s], GATE_NONE, configs[i]);
}

static void test_bits(void **state)
{
    (void)state;
    const char *fields =
        "dim_k=128 dim_v=128 num_householder=2 dtype=bf16 batch=2 tokens=300 heads=2 value_heads=4";
    static const char *const configs[] = { "segment=0", "segment=3" };
    instance *it = instance_create(fields, NULL, GATE_NORMAL, true, 3);
    for (int c = 0; c < 2; c++) {
        results *first = results_create(it);
        MUST(instance_run(host, configs[c], it, first, false, 0));
        for (int run = 0; run < 6; run++) {
            results *again = results_create(it);
            MUST(instance_run(run % 2 ? single : host, configs[c], it, again, false,
                              run % 3 ? 0xFF : 0));
            expect_same_bits(again, first, "another run");
            results_destroy(again);
        }
        results_destroy(first);
    }
    instance_destroy(it);
}

/* What only inference needs gives the same o, and saves nothing. */
static void test_forward_only(void **state)
{
    (void)state;
    const char *fields =
        "dim_k=64 dim_v=64 num_householder=1 dtype=f32 tokens=200 heads=1 value_heads=2";
    instance *it = instance_create(fields, NULL, GATE_NORMAL, true, 4);
    results *both = results_create(it), *forward = results_create(it);
    MUST(instance_run(host, NULL, it, both, false, 0));
    MUST(instance_run(host, NULL, it, forward, true, 0xFF));
    assert_memory_equal(both->out.o.data, forward->out.o.data,
                        (size_t)tensor_elements(&both->out.o) * sizeof(float));
    results_destroy(both);
    results_destroy(forward);
    instance_destroy(it);
}

static int setup(void **state)
{
    (void)state;
    host = test_context(GDP_TARGET_HOST, 4);
    single = test_context(GDP_TARGET_HOST, 1);
    reference = test_context(GDP_TARGET_REFERENCE, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    gdp_context_destroy(host);
    gdp_context_destroy(single);
    gdp_context_destroy(reference);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_configurations),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_forward_only),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
