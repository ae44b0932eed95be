/* source: tests/instance.c */
/* timeout: 600 */
/* Small inputs on which kernels of this kind have failed, each with its right answer: numbers, shapes and
 * packing, memory. The grid is in test_host.c; the exchange in test_cp.c. */
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "instance.h"

static gdp_context *host, *reference, *checked;

enum { ALL = -1 };

/* Runs on the host, into new results. */
static results *run(const instance *it, const char *config)
{
    results *r = results_create(it);
    MUST(instance_run(host, config, it, r, false, 0xFF));
    return r;
}

static void expect_right(const instance *it, const char *config, double bound, const char *what)
{
    results *want = results_create(it), *got = run(it, config);
    MUST(instance_run(reference, NULL, it, want, false, 0));
    expect_close(got, want, bound, what);
    results_destroy(got);
    results_destroy(want);
}

/* Sets g of one value head (or ALL) to a value per token. */
static void set_gate(instance *it, int64_t head, int64_t first, int64_t last, double value)
{
    for (int64_t t = first; t < last; t++)
        for (int64_t h = 0; h < it->problem.value_heads; h++)
            if (head == ALL || head == h) tensor_set(&it->in.g, 0, t, h, 0, value);
}

static void fill(const gdp_tensor *t, double value)
{
    const int64_t dim = t->rank == 4 ? t->shape[3] : 1;
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t row = 0; row < t->shape[1]; row++)
            for (int64_t h = 0; h < t->shape[2]; h++)
                for (int64_t c = 0; c < dim; c++) tensor_set(t, b, row, h, c, value);
}

static void expect_equal_rows(const gdp_tensor *a, const gdp_tensor *b, int64_t a_row,
                              int64_t b_row, int64_t rows, const char *what)
{
    const size_t size = gdp_dtype_size(a->dtype), row = (size_t)a->stride[1] * size;
    if (memcmp((char *)a->data + (size_t)a_row * row, (char *)b->data + (size_t)b_row * row,
               (size_t)rows * row) != 0)
        fail_msg("%s: rows differ in their bits", what);
}

/* ---- numbers ---- */

/* N1: fp16, scale 0.1, several K = V and n, whatever the configuration. */
static void test_n1(void **state)
{
    (void)state;
    static const int64_t dims[] = { 64, 100, 128 };
    static const char *const configs[] = { "chunk=8", "chunk=32 segment=4", "chunk=64 block_v=16",
                                           NULL };
    for (int d = 0; d < 3; d++)
        for (int n = 1; n <= 2; n++) {
            char fields[200];
            snprintf(fields, sizeof fields,
                     "batch=2 tokens=200 heads=2 value_heads=2 dim_k=%d dim_v=%d "
                     "num_householder=%d dtype=f16",
                     (int)dims[d], (int)dims[d], n);
            instance *it = instance_create(fields, NULL, GATE_NORMAL, true, 1);
            it->in.scale = 0.1f;
            expect_right(it, configs[(d + n) % 4], 3e-3, fields);
            if (d == 0)
                for (int c = 0; c < 3; c++) expect_right(it, configs[c], 3e-3, configs[c]);
            instance_destroy(it);
        }
}

/* N2: all keys equal, beta 2, no decay: reflections that never end. */
static void test_n2(void **state)
{
    (void)state;
    for (int chunk = 64; chunk <= 256; chunk *= 2) {
        char config[32];
        snprintf(config, sizeof config, "chunk=%d", chunk);
        instance *it =
            instance_create("tokens=256 dim_k=64 dim_v=32 dtype=f32", NULL, GATE_ZERO, true, 2);
        for (int64_t row = 0; row < 256; row++)
            for (int64_t c = 0; c < 64; c++)
                tensor_set(&it->in.k, 0, row, 0, c, tensor_get(&it->in.k, 0, 0, 0, c));
        fill(&it->in.beta, 2);
        expect_right(it, config, 1e-4, config);
        instance_destroy(it);
    }
}

/* N3: |k|^2 = 4 and beta = 1: the recurrence diverges, and the result says so. */
static void test_n3(void **state)
{
    (void)state;
    instance *it = instance_create("tokens=64 dim_k=16 dim_v=16 num_householder=4 dtype=f32", NULL,
                                   GATE_ZERO, false, 3);
    for (int64_t row = 0; row < 256; row++)
        for (int64_t c = 0; c < 16; c++) tensor_set(&it->in.k, 0, row, 0, c, c == row % 2 ? 2 : 0);
    fill(&it->in.beta, 1);
    fill(&it->in.q, 0.25);
    results *got = results_create(it), *want = results_create(it);
    MUST(instance_run(reference, NULL, it, want, true, 0));
    MUST(instance_run(host, NULL, it, got, true, 0));
    int diverged = 0;
    for (int64_t t = 0; t < 64; t++)
        for (int64_t c = 0; c < 16; c++) {
            const double w = tensor_get(&want->out.o, 0, t, 0, c),
                         g = tensor_get(&got->out.o, 0, t, 0, c);
            if (!isfinite(w)) { /* beyond float32 */
                diverged++;
                assert_false(isfinite(g));
            } else if (isfinite(g) && fabs(w) > 1e-30) {
                assert_true(fabs(g - w) <= 1e-3 * fabs(w));
            }
        }
    assert_true(diverged > 100);
    results_destroy(got);
    results_destroy(want);
    instance_destroy(it);
}

/* N4: no gate is a gate of 0; then 0 and -1000 in turn. */
static void test_n4(void **state)
{
    (void)state;
    for (int64_t T = 50; T <= 130; T += 80) {
        char fields[200];
        snprintf(fields, sizeof fields, "tokens=%d dim_k=32 dim_v=32 num_householder=2 dtype=bf16",
                 (int)T);
        instance *zero = instance_create(fields, NULL, GATE_ZERO, true, 4);
        instance *none = instance_create(fields, NULL, GATE_NONE, true, 4);
        results *a = run(zero, NULL), *b = run(none, NULL);
        assert_true(tensor_error(&a->out.o, &b->out.o) <= 1e-3);
        assert_true(tensor_error(&a->grads.dk, &b->grads.dk) <= 1e-3);
        results_destroy(a);
        results_destroy(b);
        instance_destroy(zero);
        instance_destroy(none);
        instance *turns = instance_create(fields, NULL, GATE_ALTERNATING, true, 4);
        expect_right(turns, NULL, 1e-2, "alternating");
        instance_destroy(turns);
    }
}

/* N5: strong decay everywhere. */
static void test_n5(void **state)
{
    (void)state;
    instance *it =
        instance_create("tokens=64 dim_k=32 dim_v=32 dtype=f32", NULL, GATE_WEAK, true, 5);
    set_gate(it, ALL, 0, 64, -20);
    expect_right(it, NULL, 1e-4, "-20 a token");
    instance_destroy(it);
    it = instance_create("tokens=65 dim_k=32 dim_v=32 num_householder=2 dtype=f32", NULL, GATE_WEAK,
                         true, 5);
    set_gate(it, ALL, 0, 65, -27.6);
    expect_right(it, NULL, 1e-4, "-27.6 a token");
    instance_destroy(it);
}

/* N6: one gate of -1e6 (or minus infinity) is a fresh start for its head, and nothing for the other. */
static void test_n6(void **state)
{
    (void)state;
    static const double resets[] = { -1e6, -INFINITY };
    for (int i = 0; i < 2; i++) {
        const char *fields = "tokens=60 heads=2 value_heads=2 dim_k=32 dim_v=32 dtype=f32";
        instance *calm = instance_create(fields, NULL, GATE_WEAK, false, 6);
        set_gate(calm, ALL, 0, 60, -0.01);
        results *before = run(calm, NULL);
        set_gate(calm, 0, 3, 4, resets[i]);
        results *after = run(calm, NULL);
        for (int64_t t = 0; t < 60; t++)
            for (int64_t c = 0; c < 32; c++)
                assert_true(tensor_get(&before->out.o, 0, t, 1, c) ==
                            tensor_get(&after->out.o, 0, t, 1, c));
        instance *fresh = instance_create(fields, NULL, GATE_WEAK, false, 6);
        set_gate(fresh, ALL, 0, 60, -0.01);
        for (int64_t row = 0; row < 3; row++) tensor_set(&fresh->in.beta, 0, row, 0, 0, 0);
        results *start = run(fresh, NULL);
        for (int64_t t = 3; t < 60; t++)
            for (int64_t c = 0; c < 32; c++) {
                const double w = tensor_get(&start->out.o, 0, t, 0, c);
                assert_true(fabs(tensor_get(&after->out.o, 0, t, 0, c) - w) <=
                            1e-6 * (1 + fabs(w)));
            }
        expect_right(calm, NULL, 1e-4, "a reset");
        results_destroy(before);
        results_destroy(after);
        results_destroy(start);
        instance_destroy(calm);
        instance_destroy(fresh);
    }
}

/* N7: dg under strong decay; the first token's is 0 where nothing came before. */
static void test_n7(void **state)
{
    (void)state;
    instance *it =
        instance_create("tokens=64 dim_k=128 dim_v=128 dtype=bf16", NULL, GATE_WEAK, false, 7);
    set_gate(it, ALL, 0, 64, -8);
    results *got = run(it, NULL);
    assert_true(fabs(tensor_get(&got->grads.dg, 0, 0, 0, 0)) <= 1e-6);
    results_destroy(got);
    expect_right(it, NULL, 1e-2, "-8 a token");
    instance_destroy(it);
}

/* N8: what follows a token does not touch its output. */
static void test_n8(void **state)
{
    (void)state;
    const char *fields = "tokens=40 dim_k=32 dim_v=32 num_householder=2 dtype=f32";
    instance *it = instance_create(fields, NULL, GATE_NORMAL, true, 8);
    results *whole = run(it, NULL);
    instance shorter = *it;
    shorter.problem.tokens = 20;
    shorter.in.q.shape[1] = shorter.in.g.shape[1] = shorter.out_grads.d_o.shape[1] = 20;
    shorter.in.k.shape[1] = shorter.in.v.shape[1] = shorter.in.beta.shape[1] = 40;
    results *cut = run(&shorter, NULL);
    set_gate(it, ALL, 20, 40, -3);
    results *changed = run(it, NULL);
    expect_equal_rows(&whole->out.o, &changed->out.o, 0, 0, 20, "later gates changed");
    expect_equal_rows(&whole->out.o, &cut->out.o, 0, 0, 20, "cut to 20 tokens");
    results_destroy(whole);
    results_destroy(cut);
    results_destroy(changed);
    instance_destroy(it);
}

/* N9: the error does not grow with the length. */
static void test_n9(void **state)
{
    (void)state;
    static const int lengths[] = { 512, 4096, 20468 };
    for (int i = 0; i < 3; i++) {
        char fields[100];
        snprintf(fields, sizeof fields, "tokens=%d dim_k=32 dim_v=32 dtype=bf16", lengths[i]);
        instance *it = instance_create(fields, NULL, GATE_NORMAL, true, 9);
        expect_right(it, NULL, 4e-3, fields);
        instance_destroy(it);
    }
}

/* N10: beta is never clamped: 1 - 1.75 = -0.75 exactly. */
static void test_n10(void **state)
{
    (void)state;
    instance *it =
        instance_create("tokens=1 dim_k=16 dim_v=16 dtype=f32", NULL, GATE_ZERO, true, 10);
    for (int64_t a = 0; a < 16; a++) {
        for (int64_t b = 0; b < 16; b++) tensor_set(&it->in.initial_state, 0, 0, a, b, a == b);
        tensor_set(&it->in.k, 0, 0, 0, a, a == 0);
        tensor_set(&it->in.v, 0, 0, 0, a, 0);
    }
    tensor_set(&it->in.beta, 0, 0, 0, 0, 1.75);
    results *got = run(it, NULL);
    assert_true(tensor_get(&got->out.final_state, 0, 0, 0, 0) == -0.75);
    results_destroy(got);
    instance_destroy(it);
}

/* N11: the decay acts once a token, before its first update. */
static void test_n11(void **state)
{
    (void)state;
    instance *it = instance_create("tokens=2 dim_k=16 dim_v=16 num_householder=3 dtype=f32", NULL,
                                   GATE_ZERO, true, 11);
    tensor_set(&it->in.g, 0, 0, 0, 0, -0.5);
    tensor_set(&it->in.g, 0, 1, 0, 0, -1.5);
    expect_right(it, NULL, 2e-5, "two gates");
    instance_destroy(it);
}

/* N12: a decay passed as if it were its logarithm. */
static void test_n12(void **state)
{
    (void)state;
    instance *it =
        instance_create("tokens=8 dim_k=16 dim_v=16 dtype=f32", NULL, GATE_WEAK, false, 12);
    results *r = results_create(it);
    tensor_set(&it->in.g, 0, 5, 0, 0, 0.9);
    REFUSED(instance_run(checked, NULL, it, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "g[0, 5, 0, 0] is 0.9; accepted is -inf to 0");
    assert_int_equal(*(unsigned char *)r->out.o.data, 0xFF);
    tensor_set(&it->in.g, 0, 5, 0, 0, -0.9);
    tensor_set(&it->in.beta, 0, 2, 0, 0, 2.5);
    REFUSED(instance_run(checked, NULL, it, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "beta[0, 2, 0, 0] is 2.5");
    tensor_set(&it->in.beta, 0, 2, 0, 0, 1);
    tensor_set(&it->in.v, 0, 3, 0, 1, NAN);
    REFUSED(instance_run(checked, NULL, it, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "v[0, 3, 0, 1] is");
    results_destroy(r);
    instance_destroy(it);
}

/* ---- shapes and packing ---- */

/* S1, S11: going on from a final state equals one run. */
static void test_carry(void **state)
{
    (void)state;
    static const int64_t cuts[][2] = { { 33, 128 }, { 65, 128 }, { 127, 128 }, { 32, 96 } };
    for (int i = 0; i < 4; i++) {
        const int64_t cut = cuts[i][0], T = cuts[i][1];
        char fields[160];
        snprintf(fields, sizeof fields, "tokens=%d dim_k=32 dim_v=32 num_householder=2 dtype=f32",
                 (int)T);
        instance *it = instance_create(fields, NULL, GATE_WEAK, true, 13);
        set_gate(it, ALL, 0, T, -0.5);
        results *whole = run(it, NULL);
        instance part = *it;
        part.problem.tokens = cut;
        part.in.q.shape[1] = part.in.g.shape[1] = part.out_grads.d_o.shape[1] = cut;
        part.in.k.shape[1] = part.in.v.shape[1] = part.in.beta.shape[1] = 2 * cut;
        results *first = run(&part, NULL);
        part = *it;
        part.problem.tokens = T - cut;
        gdp_tensor *const one[] = { &part.in.q, &part.in.g, &part.out_grads.d_o };
        gdp_tensor *const two[] = { &part.in.k, &part.in.v, &part.in.beta };
        for (int t = 0; t < 3; t++) {
            one[t]->shape[1] = T - cut;
            one[t]->data = (float *)one[t]->data + cut * one[t]->stride[1];
            two[t]->shape[1] = 2 * (T - cut);
            two[t]->data = (float *)two[t]->data + 2 * cut * two[t]->stride[1];
        }
        part.in.initial_state = first->out.final_state;
        results *second = run(&part, NULL);
        assert_true(tensor_error(&second->out.final_state, &whole->out.final_state) <= 2e-5);
        for (int64_t t = cut; t < T; t++)
            for (int64_t c = 0; c < 32; c++)
                assert_true(fabs(tensor_get(&second->out.o, 0, t - cut, 0, c) -
                                 tensor_get(&whole->out.o, 0, t, 0, c)) < 1e-5);
        results_destroy(whole);
        results_destroy(first);
        results_destroy(second);
        instance_destroy(it);
    }
}

/* S2: inputs that end where readable memory ends. */
static void test_s2(void **state)
{
    (void)state;
    instance *it = instance_create("tokens=65 dim_k=32 dim_v=32 num_householder=2 dtype=f32", NULL,
                                   GATE_NORMAL, true, 14);
    results *want = run(it, NULL);
    gdp_tensor *const all[] = { &it->in.q, &it->in.k,    &it->in.v,
                                &it->in.g, &it->in.beta, &it->out_grads.d_o };
    enum { COUNT = sizeof all / sizeof *all };
    void *saved[COUNT];
    char *pages[COUNT];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < COUNT; i++) {
        const size_t bytes = (size_t)tensor_elements(all[i]) * 4,
                     room = (bytes + page - 1) / page * page;
        pages[i] =
            mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(pages[i] != MAP_FAILED);
        assert_int_equal(mprotect(pages[i] + room, page, PROT_NONE), 0);
        saved[i] = all[i]->data;
        memcpy(pages[i] + room - bytes, saved[i], bytes);
        all[i]->data = pages[i] + room - bytes;
    }
    results *got = run(it, NULL);
    expect_same_bits(got, want, "at the end of memory");
    for (int i = 0; i < COUNT; i++) {
        const size_t bytes = (size_t)tensor_elements(all[i]) * 4;
        munmap(pages[i], (bytes + page - 1) / page * page + page);
        all[i]->data = saved[i];
    }
    results_destroy(got);
    results_destroy(want);
    instance_destroy(it);
}

/* S3, D2: a packed document has the bits of its own separate run. */
static void test_s3(void **state)
{
    (void)state;
    const int64_t cu[] = { 0, 1, 65, 130 };
    instance *it =
        instance_create("tokens=130 sequences=3 dim_k=32 dim_v=32 num_householder=3 dtype=f32", cu,
                        GATE_NORMAL, false, 15);
    for (int segment = 0; segment <= 2; segment += 2) {
        char config[32];
        snprintf(config, sizeof config, "segment=%d", segment);
        results *packed = run(it, config);
        for (int s = 0; s < 3; s++) {
            const int64_t a = cu[s], T = cu[s + 1] - a;
            instance own = *it;
            own.problem.sequences = 0;
            own.problem.tokens = T;
            own.cu = NULL;
            memset(&own.in.cu_seqlens, 0, sizeof own.in.cu_seqlens);
            gdp_tensor *const one[] = { &own.in.q, &own.in.g, &own.out_grads.d_o };
            gdp_tensor *const three[] = { &own.in.k, &own.in.v, &own.in.beta };
            for (int t = 0; t < 3; t++) {
                one[t]->shape[1] = T;
                one[t]->data = (float *)one[t]->data + a * one[t]->stride[1];
                three[t]->shape[1] = 3 * T;
                three[t]->data = (float *)three[t]->data + 3 * a * three[t]->stride[1];
            }
            results *alone = run(&own, config);
            expect_equal_rows(&packed->out.o, &alone->out.o, a, 0, T, "o of a document");
            expect_equal_rows(&packed->grads.dk, &alone->grads.dk, 3 * a, 0, 3 * T,
                              "dk of a document");
            expect_equal_rows(&packed->grads.dg, &alone->grads.dg, a, 0, T, "dg of a document");
            results_destroy(alone);
        }
        results_destroy(packed);
    }
    instance_destroy(it);
}

/* S4: empty sequences keep their state, and pass its gradient on. */
static void test_s4(void **state)
{
    (void)state;
    const int64_t cu[] = { 0, 0, 5, 5, 70, 70 };
    instance *it = instance_create("tokens=70 sequences=5 dim_k=32 dim_v=32 dtype=f32", cu,
                                   GATE_NORMAL, true, 16);
    results *got = run(it, NULL);
    for (int64_t s = 0; s < 5; s += 2)
        for (int64_t a = 0; a < 32; a++)
            for (int64_t b = 0; b < 32; b++) {
                assert_true(tensor_get(&got->out.final_state, s, 0, a, b) ==
                            tensor_get(&it->in.initial_state, s, 0, a, b));
                assert_true(tensor_get(&got->grads.d_initial_state, s, 0, a, b) ==
                            tensor_get(&it->out_grads.d_final_state, s, 0, a, b));
            }
    results_destroy(got);
    expect_right(it, NULL, 2e-5, "empty sequences");
    instance_destroy(it);
}

/* S5: no tokens, no batch: success. */
static void test_s5(void **state)
{
    (void)state;
    const int64_t cu[] = { 0, 0 };
    instance *it = instance_create("tokens=0 sequences=1 dim_k=32 dim_v=32 dtype=f32", cu,
                                   GATE_NORMAL, true, 17);
    results *got = run(it, NULL);
    assert_true(tensor_error(&got->out.final_state, &it->in.initial_state) == 0);
    results_destroy(got);
    instance_destroy(it);
    it = instance_create("batch=0 tokens=16 dim_k=32 dim_v=32 dtype=f32", NULL, GATE_NORMAL, false,
                         17);
    gdp_context_counters before, after;
    MUST(gdp_context_get_counters(host, &before));
    got = run(it, NULL);
    MUST(gdp_context_get_counters(host, &after));
    assert_int_equal(before.launches, after.launches);
    results_destroy(got);
    instance_destroy(it);
}

/* S6: boundaries out of order. */
static void test_s6(void **state)
{
    (void)state;
    static const int64_t bad[][4] = { { 0, 12, 8, 16 }, { 1, 2, 3, 4 }, { 0, 5, 9, 129 } };
    static const char *const sentences[] = { "cu_seqlens[2] is 8; accepted is 12 to 128",
                                             "cu_seqlens[0] is 1; accepted is 0",
                                             "cu_seqlens[3] is 129; accepted is 9 to 128" };
    for (int i = 0; i < 3; i++) {
        instance *it = instance_create("tokens=128 sequences=3 dim_k=32 dim_v=32 dtype=f32", bad[i],
                                       GATE_WEAK, false, 18);
        results *r = results_create(it);
        REFUSED(instance_run(host, NULL, it, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
                sentences[i]);
        assert_int_equal(*(unsigned char *)r->out.o.data, 0xFF);
        results_destroy(r);
        instance_destroy(it);
    }
}

/* S7: rows behind the last sequence are zero in every output. */
static void test_s7(void **state)
{
    (void)state;
    const int64_t cu[] = { 0, 100 };
    instance *it =
        instance_create("tokens=128 sequences=1 dim_k=32 dim_v=32 num_householder=2 dtype=f32", cu,
                        GATE_NORMAL, false, 19);
    results *got = run(it, NULL); /* outputs start as 0xFF: NaN */
    const gdp_tensor *const all[] = { &got->out.o,    &got->grads.dq, &got->grads.dk,
                                      &got->grads.dv, &got->grads.dg, &got->grads.dbeta };
    for (int i = 0; i < 6; i++) {
        const int64_t first = all[i]->shape[1] / 128 * 100,
                      dim = all[i]->rank == 4 ? all[i]->shape[3] : 1;
        for (int64_t row = first; row < all[i]->shape[1]; row++)
            for (int64_t c = 0; c < dim; c++) assert_true(tensor_get(all[i], 0, row, 0, c) == 0);
    }
    results_destroy(got);
    expect_right(it, NULL, 2e-5, "a tail");
    instance_destroy(it);
}

/* S8, S9, S12: every head dimension, K and V apart. */
static void test_dims(void **state)
{
    (void)state;
    static const int dims[][3] = {
        { 16, 128, 2 },  { 32, 128, 2 },  { 48, 128, 2 },  { 64, 128, 2 },  { 80, 128, 2 },
        { 96, 128, 2 },  { 100, 128, 2 }, { 128, 128, 2 }, { 160, 128, 2 }, { 192, 128, 2 },
        { 256, 128, 2 }, { 32, 32, 1 },   { 32, 32, 4 },   { 128, 64, 2 },
    };
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        char fields[160];
        snprintf(fields, sizeof fields,
                 "tokens=130 dim_k=%d dim_v=%d num_householder=%d dtype=bf16", dims[i][0],
                 dims[i][1], dims[i][2]);
        instance *it = instance_create(fields, NULL, GATE_NORMAL, true, 20);
        expect_right(it, NULL, 4e-3, fields);
        instance_destroy(it);
    }
}

/* S10: grouped heads, and groups that are none. */
static void test_s10(void **state)
{
    (void)state;
    for (int hv = 2; hv <= 6; hv += 2) {
        char fields[160];
        snprintf(fields, sizeof fields,
                 "tokens=70 heads=2 value_heads=%d dim_k=32 dim_v=32 dtype=f32", hv);
        instance *it = instance_create(fields, NULL, GATE_NORMAL, true, 21);
        expect_right(it, NULL, 2e-5, fields);
        instance_destroy(it);
    }
    gdp_problem problem = gdp_problem_default();
    problem.heads = 2;
    problem.value_heads = 3;
    REFUSED(gdp_problem_check(&problem), GDP_STATUS_INVALID_ARGUMENT,
            "value_heads is 3; accepted is a multiple of heads");
    problem.value_heads = 1;
    REFUSED(gdp_problem_check(&problem), GDP_STATUS_INVALID_ARGUMENT, "value_heads is 1");
}

/* ---- memory ---- */

/* M1: old contents of the workspace do not show. */
static void test_m1(void **state)
{
    (void)state;
    instance *it = instance_create("tokens=100 dim_k=32 dim_v=32 num_householder=3 dtype=bf16",
                                   NULL, GATE_NORMAL, true, 22);
    results *a = results_create(it), *b = results_create(it);
    MUST(instance_run(host, "segment=2", it, a, false, 0xFF));
    MUST(instance_run(host, "segment=2", it, b, false, 0));
    expect_same_bits(a, b, "0xFF against zeros");
    results_destroy(a);
    results_destroy(b);
    instance_destroy(it);
}

/* M3: any element may be the first; half an element may not. M4: slices of one fused row buffer. */
static void test_m3_m4(void **state)
{
    (void)state;
    enum { T = 70, DIM = 32, ROW = 3 * DIM + 1 };
    instance *it =
        instance_create("tokens=70 dim_k=32 dim_v=32 dtype=f32", NULL, GATE_NORMAL, true, 23);
    results *want = run(it, NULL), *got = results_create(it);
    float *fused = malloc((T * ROW + 1) * sizeof *fused);
    assert_non_null(fused);
    instance slices = *it;
    gdp_tensor *const parts[] = { &slices.in.q, &slices.in.k, &slices.in.v };
    for (int i = 0; i < 3; i++) {
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < DIM; c++)
                fused[1 + t * ROW + i * DIM + c] = (float)tensor_get(parts[i], 0, t, 0, c);
        parts[i]->data = fused + 1 + i * DIM;
        parts[i]->stride[1] = ROW;
    }
    MUST(instance_run(host, NULL, &slices, got, false, 0xFF));
    expect_same_bits(got, want, "slices of a fused buffer");
    slices.in.q.data = (char *)fused + 1;
    REFUSED(instance_run(host, NULL, &slices, got, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "q: data is");
    slices.in.q = it->in.q;
    slices.in.v.stride[3] = 2;
    REFUSED(instance_run(host, NULL, &slices, got, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "v: stride[3] is 2; accepted is 1");
    free(fused);
    results_destroy(want);
    results_destroy(got);
    instance_destroy(it);
}

/* Each wrong tensor is named, with what is accepted. */
static void test_refusals(void **state)
{
    (void)state;
    instance *it = instance_create("tokens=20 dim_k=32 dim_v=16 num_householder=2 dtype=f32", NULL,
                                   GATE_WEAK, true, 24);
    results *r = results_create(it);
    instance bad = *it;
    bad.in.k.shape[1] = 20;
    REFUSED(instance_run(host, NULL, &bad, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "k: shape[1] is 20; accepted is 40");
    bad = *it;
    bad.in.q.dtype = GDP_DTYPE_BF16;
    REFUSED(instance_run(host, NULL, &bad, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "q: dtype is bf16; accepted is f32");
    bad = *it;
    bad.in.beta.data = NULL;
    REFUSED(instance_run(host, NULL, &bad, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "beta is absent");
    bad = *it;
    bad.in.g.rank = 4;
    REFUSED(instance_run(host, NULL, &bad, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "g: rank is 4; accepted is 3");
    bad = *it;
    bad.in.scale = NAN;
    REFUSED(instance_run(host, NULL, &bad, r, true, 0), GDP_STATUS_INVALID_ARGUMENT, "scale is");
    bad = *it;
    bad.in.num_householder = 3;
    REFUSED(instance_run(host, NULL, &bad, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "num_householder is 3; the problem's is 2");
    bad = *it;
    bad.in.initial_state.stride[1] = 7;
    bad.in.initial_state.shape[1] = 2;
    REFUSED(instance_run(host, NULL, &bad, r, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "initial_state: shape[1] is 2");
    results folded = *r;
    folded.out.o.stride[1] = 0;
    REFUSED(instance_run(host, NULL, it, &folded, true, 0), GDP_STATUS_INVALID_ARGUMENT,
            "o: stride[1] is 0");
    REFUSED(instance_run(host, "chunk=12", it, r, true, 0), GDP_STATUS_UNSUPPORTED,
            "multiple of 8");
    REFUSED(instance_run(host, "chunk=256", it, r, true, 0), GDP_STATUS_UNSUPPORTED, "256");
    REFUSED(instance_run(host, "chunk=9999", it, r, true, 0), GDP_STATUS_INVALID_ARGUMENT, "chunk");
    REFUSED(instance_run(host, "chunky=8", it, r, true, 0), GDP_STATUS_INVALID_ARGUMENT, "chunky");
    assert_int_equal(*(unsigned char *)r->out.o.data, 0xFF);
    results_destroy(r);
    instance_destroy(it);
}

/* M5: nothing is allocated inside a call, and the sizes are those of the query. */
static _Atomic int64_t live_allocations, all_allocations;

static void *count_allocate(void *user, size_t bytes)
{
    (void)user;
    atomic_fetch_add(&live_allocations, 1);
    atomic_fetch_add(&all_allocations, 1);
    return malloc(bytes);
}

static void count_release(void *user, void *memory)
{
    (void)user;
    if (memory) atomic_fetch_sub(&live_allocations, 1);
    free(memory);
}

static void test_m5(void **state)
{
    (void)state;
    static const gdp_target targets[] = { GDP_TARGET_HOST, GDP_TARGET_REFERENCE };
    for (int i = 0; i < 2; i++) {
        gdp_context *context;
        gdp_context_options options = GDP_CONTEXT_OPTIONS_INIT;
        options.target = targets[i];
        options.allocate = count_allocate;
        options.release = count_release;
        MUST(gdp_context_create(&options, &context));
        instance *it = instance_create(
            "tokens=500 heads=2 value_heads=2 dim_k=32 dim_v=32 num_householder=2 dtype=f32", NULL,
            GATE_NORMAL, true, 25);
        results *r = results_create(it);
        gdp_plan *plan;
        gdp_plan_sizes sizes;
        MUST(gdp_plan_create(context, &it->problem, NULL, GDP_PLAN_BACKWARD, &plan));
        MUST(gdp_plan_get_sizes(plan, &sizes));
        enum { GUARD = 64 };
        unsigned char *work = aligned_bytes(sizes.workspace + GUARD, 0xA5),
                      *keep = aligned_bytes(sizes.saved + GUARD, 0xA5);
        gdp_execution execution = { work, sizes.workspace, NULL };
        gdp_saved_context saved = { .data = keep, .bytes = sizes.saved };
        const int64_t before = all_allocations;
        MUST(gdp_forward(plan, &it->in, &r->out, &saved, &execution));
        MUST(gdp_backward(plan, &it->in, &it->out_grads, &saved, &r->grads, &execution));
        assert_int_equal(before, all_allocations);
        for (int g = 0; g < GUARD; g++) {
            assert_int_equal(work[sizes.workspace + (size_t)g], 0xA5);
            assert_int_equal(keep[sizes.saved + (size_t)g], 0xA5);
        }
        free(work);
        free(keep);
        gdp_plan_destroy(plan);
        results_destroy(r);
        instance_destroy(it);
        gdp_context_destroy(context);
        assert_int_equal(live_allocations, 0);
    }
}

/* T1: another length of the same heads compiles nothing. */
static void test_t1(void **state)
{
    (void)state;
    gdp_context_counters before, after;
    gdp_plan *plan;
    gdp_problem problem = gdp_problem_default();
    MUST(gdp_problem_parse("dim_k=32 dim_v=32 dtype=f32 heads=2 value_heads=2 tokens=8000",
                           &problem));
    MUST(gdp_plan_create(host, &problem, NULL, GDP_PLAN_BACKWARD, &plan));
    gdp_plan_destroy(plan);
    MUST(gdp_context_get_counters(host, &before));
    for (problem.tokens = 8001; problem.tokens < 8064; problem.tokens++) {
        MUST(gdp_plan_create(host, &problem, NULL, GDP_PLAN_BACKWARD, &plan));
        gdp_plan_destroy(plan);
    }
    MUST(gdp_context_get_counters(host, &after));
    assert_int_equal(before.compilations, after.compilations);
    assert_int_equal(before.cache_hits, after.cache_hits);
}

/* A problem whose memory cannot be addressed is refused, not wrapped around. */
static void test_overflow(void **state)
{
    (void)state;
    gdp_plan *plan;
    gdp_problem problem = gdp_problem_default();
    MUST(gdp_problem_parse("dim_k=32 dim_v=32 dtype=f32 batch=1000000 tokens=1099511627776",
                           &problem));
    REFUSED(gdp_plan_create(host, &problem, NULL, GDP_PLAN_BACKWARD, &plan),
            GDP_STATUS_INVALID_ARGUMENT, "2^56");
}

static int setup(void **state)
{
    (void)state;
    host = test_context(GDP_TARGET_HOST, 2);
    reference = test_context(GDP_TARGET_REFERENCE, 0);
    gdp_context_options options = GDP_CONTEXT_OPTIONS_INIT;
    options.target = GDP_TARGET_HOST;
    options.check_values = 1;
    MUST(gdp_context_create(&options, &checked));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    gdp_context_destroy(host);
    gdp_context_destroy(reference);
    gdp_context_destroy(checked);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_n1),    cmocka_unit_test(test_n2),    cmocka_unit_test(test_n3),
        cmocka_unit_test(test_n4),    cmocka_unit_test(test_n5),    cmocka_unit_test(test_n6),
        cmocka_unit_test(test_n7),    cmocka_unit_test(test_n8),    cmocka_unit_test(test_n9),
        cmocka_unit_test(test_n10),   cmocka_unit_test(test_n11),   cmocka_unit_test(test_n12),
        cmocka_unit_test(test_carry), cmocka_unit_test(test_s2),    cmocka_unit_test(test_s3),
        cmocka_unit_test(test_s4),    cmocka_unit_test(test_s5),    cmocka_unit_test(test_s6),
        cmocka_unit_test(test_s7),    cmocka_unit_test(test_dims),  cmocka_unit_test(test_s10),
        cmocka_unit_test(test_m1),    cmocka_unit_test(test_m3_m4), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_m5),    cmocka_unit_test(test_t1),    cmocka_unit_test(test_overflow),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
