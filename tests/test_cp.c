/* source: tests/instance.c */
/* timeout: 600 */
/* Context parallelism over in-process ranks against one rank, the errors of groups, and the metadata of packed
 * shards. Names in comments are those of the cases that people's exchanges have failed on. */
#include <math.h>
#include <unistd.h>

#include "instance.h"

static gdp_context *host, *reference;

static const char *const f32_fields = "dim_k=32 dim_v=48 num_householder=2 dtype=f32";

/* A problem over `size` ranks equals the same over one. */
static void check_ranks(const char *shape, const int64_t *cu, int size, const int64_t *begin,
                        const char *config, const char *backend, bool states, gate_kind gate)
{
    char fields[256], what[400];
    snprintf(fields, sizeof fields, "%s %s", f32_fields, shape);
    snprintf(what, sizeof what, "%s over %d ranks, %s, %s", fields, size, config ? config : "",
             backend);
    instance *it = instance_create(fields, cu, gate, states, 11);
    results *one = results_create(it), *many = results_create(it), *again = results_create(it);
    MUST(instance_run(reference, NULL, it, one, false, 0));
    instance_run_cp(host, config, backend, it, many, size, begin, false, NULL);
    instance_run_cp(host, config, backend, it, again, size, begin, false, NULL);
    expect_close(many, one, 2e-5, what);
    expect_same_bits(again, many, what);
    results_destroy(one);
    results_destroy(many);
    results_destroy(again);
    instance_destroy(it);
}

static void test_dense(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 3, 4, 8 };
    for (int i = 0; i < 5; i++)
        for (int cut = 0; cut < 2; cut++)
            check_ranks("batch=2 tokens=150 heads=2 value_heads=4", NULL, sizes[i], NULL,
                        cut ? "segment=2" : NULL, "host", true,
                        GATE_NORMAL); /* C7: batch, states and no equal shards */
    check_ranks("batch=2 tokens=90 heads=1 value_heads=2", NULL, 3, NULL, NULL, "host", true,
                GATE_NONE);
    check_ranks("batch=2 tokens=40 heads=1 value_heads=2", NULL, 3, NULL, NULL, "reference", true,
                GATE_WEAK);
}

static void test_uneven(void **state)
{
    (void)state;
    check_ranks("tokens=10", NULL, 3, NULL, NULL, "host", true, GATE_WEAK); /* C1: 4/3/3 */
    check_ranks("tokens=2", NULL, 3, NULL, NULL, "host", true, GATE_WEAK);  /* C1: 1/1/0 */
    const int64_t middle[] = { 0, 5, 5, 40 }, first[] = { 0, 0, 20, 40 };
    check_ranks("tokens=40", NULL, 3, middle, NULL, "host", true, GATE_WEAK);
    check_ranks("tokens=40", NULL, 3, first, NULL, "host", true, GATE_WEAK);
    const int64_t cu[] = { 0, 7, 40 };
    check_ranks("tokens=40 sequences=2", cu, 3, middle, NULL, "host", true, GATE_WEAK);
    check_ranks("tokens=40 sequences=2", cu, 3, first, NULL, "host", true, GATE_WEAK);
    check_ranks("tokens=40 sequences=2", cu, 3, middle, NULL, "reference", true, GATE_WEAK);
}

static void test_packed(void **state)
{
    (void)state;
    typedef struct packed_case {
        const char *shape;
        int64_t cu[10];
        int size;
    } packed_case;
    static const packed_case cases[] = {
        { "tokens=10 sequences=2", { 0, 7, 10 }, 2 },                        /* C2 */
        { "tokens=16 sequences=3", { 0, 3, 10, 16 }, 2 },                    /* C3 */
        { "tokens=16 sequences=2", { 0, 8, 16 }, 2 },                        /* C3 */
        { "tokens=24 sequences=2 heads=2 value_heads=2", { 0, 17, 24 }, 2 }, /* C4 */
        { "tokens=24 sequences=2 heads=2 value_heads=2", { 0, 5, 24 }, 3 },  /* C4 */
        { "tokens=4 sequences=1", { 0, 4 }, 4 },                             /* C5 */
        { "tokens=4 sequences=3", { 0, 1, 2, 4 }, 4 },                       /* C5 */
        { "tokens=192 sequences=3", { 0, 64, 128, 192 }, 3 },                /* C8 */
        { "tokens=256 sequences=5 heads=2 value_heads=4", { 0, 5, 100, 101, 180, 256 }, 4 },
        { "tokens=256 sequences=7",
          { 0, 40, 40, 40, 90, 91, 200, 256 },
          8 }, /* empty ones inside */
        { "tokens=131 sequences=2 index_dtype=i64", { 0, 130, 131 }, 8 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int variant = 0; variant < 3; variant++)
            check_ranks(cases[i].shape, cases[i].cu, cases[i].size, NULL,
                        variant == 1 ? "segment=1" : NULL, variant == 2 ? "reference" : "host",
                        true, GATE_NORMAL);
}

static void test_one_call(void **state)
{
    (void)state;
    const int64_t cu[] = { 0, 30, 64 };
    char fields[200];
    snprintf(fields, sizeof fields, "%s tokens=64 sequences=2 heads=1 value_heads=2", f32_fields);
    instance *it = instance_create(fields, cu, GATE_NORMAL, true, 5);
    results *group = results_create(it), *call = results_create(it);
    instance_run_cp(host, NULL, NULL, it, group, 4, NULL, false, NULL);
    instance_run_cp(host, NULL, NULL, it, call, 4, NULL, true, NULL);
    expect_same_bits(call, group, "the one call");
    results_destroy(group);
    results_destroy(call);
    instance_destroy(it);
}

enum { DIM = 128, RANKS = 64 };

/* One packed summary [D | M]: D random, M a product of reflections. */
static void make_orthogonal(float *packed, uint64_t *seed)
{
    double *M = calloc(DIM * DIM, sizeof *M);
    assert_non_null(M);
    for (int i = 0; i < DIM; i++) M[i * DIM + i] = 1;
    for (int reflection = 0; reflection < 8; reflection++) {
        double u[DIM], norm = 0;
        for (int i = 0; i < DIM; i++) {
            u[i] = random_normal(seed);
            norm += u[i] * u[i];
        }
        for (int row = 0; row < DIM; row++) {
            double dot = 0;
            for (int i = 0; i < DIM; i++) dot += M[row * DIM + i] * u[i];
            for (int i = 0; i < DIM; i++) M[row * DIM + i] -= 2 * dot * u[i] / norm;
        }
    }
    for (int i = 0; i < DIM * DIM; i++) {
        packed[i / DIM * 2 * DIM + i % DIM] = (float)random_normal(seed);
        packed[i / DIM * 2 * DIM + DIM + i % DIM] = (float)M[i];
    }
    free(M);
}

/* S <- M S + D in float64. */
static void fold_exactly(double *S, const float *packed)
{
    double *next = malloc(DIM * DIM * sizeof *next);
    assert_non_null(next);
    for (int row = 0; row < DIM; row++)
        for (int c = 0; c < DIM; c++) {
            double sum = (double)packed[row * 2 * DIM + c];
            for (int i = 0; i < DIM; i++)
                sum += (double)packed[row * 2 * DIM + DIM + i] * S[i * DIM + c];
            next[row * DIM + c] = sum;
        }
    memcpy(S, next, DIM * DIM * sizeof *S);
    free(next);
}

/* C6: a long fold of maps that neither grow nor shrink keeps its precision. The state that enters a
 * shard of no tokens is its final state, and its own summary is [0 | I]. */
static void test_fold(void **state)
{
    (void)state;
    gdp_problem problem = gdp_problem_default();
    MUST(gdp_problem_parse("batch=1 tokens=0 dim_k=128 dim_v=128 dtype=f32 gate_dtype=none",
                           &problem));
    gdp_plan *plan;
    gdp_plan_sizes sizes;
    MUST(gdp_plan_create(host, &problem, NULL, GDP_PLAN_CP, &plan));
    MUST(gdp_plan_get_sizes(plan, &sizes));
    float *gathered = aligned_bytes(RANKS * sizes.summary, 0);
    float *summary = aligned_bytes(sizes.summary, 0xFF);
    double *S = calloc(DIM * DIM, sizeof *S);
    uint64_t seed = 1;
    for (int r = 0; r < RANKS; r++) {
        float *packed = gathered + (size_t)r * sizes.summary / sizeof(float);
        make_orthogonal(packed, &seed);
        fold_exactly(S, packed);
    }
    const int64_t none[4] = { 1, 0, 1, DIM }, shape[4] = { 1, 1, DIM, DIM };
    float dummy, *final = malloc(DIM * DIM * sizeof *final);
    gdp_inputs in = { 0 };
    in.num_householder = 1;
    in.q = in.k = in.v = gdp_tensor_contiguous(&dummy, GDP_DTYPE_F32, 4, none);
    in.beta = gdp_tensor_contiguous(&dummy, GDP_DTYPE_F32, 3, none);
    gdp_outputs out = { in.v, gdp_tensor_contiguous(final, GDP_DTYPE_F32, 4, shape) };
    gdp_execution execution = { aligned_bytes(sizes.workspace, 0xFF), sizes.workspace, NULL };
    const gdp_cp_window window = { RANKS, RANKS + 1, 0, RANKS + 1 };
    MUST(gdp_cp_forward_prepare(plan, &in, &window, summary, NULL, &execution));
    MUST(gdp_cp_forward_apply(plan, &in, &window, gathered, &out, NULL, &execution));
    double difference = 0, size = 0;
    for (int i = 0; i < DIM * DIM; i++) {
        difference += ((double) final[i] - S[i]) * ((double) final[i] - S[i]);
        size += S[i] * S[i];
        const float identity = i / DIM == i % DIM ? 1.0f : 0.0f;
        assert_true(summary[i / DIM * 2 * DIM + DIM + i % DIM] == identity);
    }
    assert_true(sqrt(difference / size) <= 1e-5);
    free(S);
    free(final);
    free(gathered);
    free(summary);
    free(execution.workspace);
    gdp_plan_destroy(plan);
}

/* ---- errors ---- */

static void test_windows(void **state)
{
    (void)state;
    gdp_comm comm;
    gdp_cp_group *group;
    instance *it = instance_create("tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=f32", NULL,
                                   GATE_WEAK, false, 1);
    results *r = results_create(it);
    MUST(gdp_local_comms_create(host, 1, 1000, &comm));
    MUST(gdp_cp_group_create(host, &comm, &it->problem, NULL, 0, NULL, &group));
    gdp_plan_sizes sizes;
    MUST(gdp_cp_group_get_sizes(group, &sizes));
    gdp_execution execution = { aligned_bytes(sizes.workspace, 0xFF), sizes.workspace, NULL };
    REFUSED(gdp_cp_forward(group, &it->in, -1, 1, &r->out, NULL, &execution),
            GDP_STATUS_INVALID_ARGUMENT,
            "preceding_rank_start is -1; accepted is 0 to rank, which is 0");
    REFUSED(gdp_cp_forward(group, &it->in, 1, 1, &r->out, NULL, &execution),
            GDP_STATUS_INVALID_ARGUMENT, "preceding_rank_start is 1");
    REFUSED(gdp_cp_forward(group, &it->in, 0, 0, &r->out, NULL, &execution),
            GDP_STATUS_INVALID_ARGUMENT,
            "following_rank_stop is 0; accepted is rank + 1 to size, which is 1 to 1");
    REFUSED(gdp_cp_forward(group, &it->in, 0, 2, &r->out, NULL, &execution),
            GDP_STATUS_INVALID_ARGUMENT, "following_rank_stop is 2");
    execution.workspace_bytes--;
    REFUSED(gdp_cp_forward(group, &it->in, 0, GDP_RANK_STOP_DEFAULT, &r->out, NULL, &execution),
            GDP_STATUS_INVALID_ARGUMENT, "workspace has");
    assert_int_equal(*(unsigned char *)r->out.o.data, 0xFF); /* outputs are untouched */
    execution.workspace_bytes++;
    MUST(gdp_cp_forward(group, &it->in, 0, GDP_RANK_STOP_DEFAULT, &r->out, NULL, &execution));
    free(execution.workspace);
    gdp_cp_group_destroy(group);
    gdp_local_comms_destroy(host, &comm);
    results_destroy(r);
    instance_destroy(it);
}

typedef struct joiner {
    gdp_context *context;
    gdp_comm comm;
    const char *fields, *config, *backend;
    bool leave; /* comes to make the group, not to run it */
    gdp_status made, ran;
    char sentence[300];
} joiner;

static void *join_group(void *argument)
{
    joiner *j = argument;
    gdp_cp_group *group = NULL;
    instance *it = instance_create(j->fields, NULL, GATE_WEAK, false, 1);
    results *r = results_create(it);
    gdp_config config = { 0 };
    if (j->config) gdp_config_parse(j->config, &config);
    j->made =
        gdp_cp_group_create(j->context, &j->comm, &it->problem, &config, 0, j->backend, &group);
    j->ran = GDP_STATUS_NOT_PREPARED;
    if (j->made == GDP_OK && !j->leave) {
        gdp_plan_sizes sizes;
        gdp_cp_group_get_sizes(group, &sizes);
        gdp_execution execution = { aligned_bytes(sizes.workspace, 0xFF), sizes.workspace, NULL };
        j->ran =
            gdp_cp_forward(group, &it->in, 0, GDP_RANK_STOP_DEFAULT, &r->out, NULL, &execution);
        free(execution.workspace);
    }
    snprintf(j->sentence, sizeof j->sentence, "%s", gdp_last_error());
    gdp_cp_group_destroy(group);
    results_destroy(r);
    instance_destroy(it);
    return NULL;
}

static void join_all(joiner *joiners, int size, int timeout_ms)
{
    pthread_t threads[4];
    gdp_comm comms[4];
    MUST(gdp_local_comms_create(host, size, timeout_ms, comms));
    for (int i = 0; i < size; i++) {
        joiners[i].comm = comms[i];
        if (!joiners[i].context) joiners[i].context = host;
        assert_int_equal(pthread_create(&threads[i], NULL, join_group, &joiners[i]), 0);
    }
    for (int i = 0; i < size; i++) pthread_join(threads[i], NULL);
    gdp_local_comms_destroy(host, comms);
}

/* C10: ranks made for different things find out when the group is made. */
static void test_mismatch(void **state)
{
    (void)state;
    static const char *const other[] = {
        "tokens=8 dim_k=32 dim_v=64 num_householder=2 dtype=f32",
        "tokens=8 dim_k=32 dim_v=48 num_householder=1 dtype=f32",
        "tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=bf16",
        "tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=f32 value_heads=2",
    };
    for (int i = 0; i < 4; i++) {
        joiner joiners[2] = { { .fields =
                                    "tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=f32" },
                              { .fields = other[i] } };
        join_all(joiners, 2, 60000);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(joiners[r].made, GDP_STATUS_MISMATCH);
            assert_non_null(strstr(joiners[r].sentence, "rank 1"));
        }
    }
}

/* Rank 0's configuration is everybody's. */
static void test_one_configuration(void **state)
{
    (void)state;
    joiner joiners[2] = {
        { .fields = "tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=f32", .config = "chunk=8" },
        { .fields = "tokens=9 dim_k=32 dim_v=48 num_householder=2 dtype=f32", .config = "chunk=32" }
    };
    join_all(joiners, 2, 60000);
    assert_int_equal(joiners[0].ran, GDP_OK);
    assert_int_equal(joiners[1].ran, GDP_OK);
}

/* C9: a rank that cannot compile tells the others before anybody enters the exchange. */
static void test_failing_rank(void **state)
{
    (void)state;
    gdp_context *broken;
    gdp_context_options options = GDP_CONTEXT_OPTIONS_INIT;
    options.target = GDP_TARGET_HOST;
    options.cache_dir = "";
    options.compiler = "false"; /* a program that fails whatever it is asked */
    const gdp_status made = gdp_context_create(&options, &broken);
    if (made != GDP_OK) { /* refused at once: then it is the reference that cannot follow */
        options.compiler = NULL;
        options.target = GDP_TARGET_REFERENCE;
        MUST(gdp_context_create(&options, &broken));
    }
    joiner joiners[3] = { { .fields = "tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=f32" },
                          { .fields = "tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=f32",
                            .context = broken,
                            .backend = NULL,
                            .config = made == GDP_OK ? NULL : "target=cuda" },
                          { .fields = "tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=f32" } };
    join_all(joiners, 3, 60000);
    assert_int_equal(joiners[0].made, GDP_STATUS_PEER);
    assert_int_equal(joiners[2].made, GDP_STATUS_PEER);
    assert_non_null(strstr(joiners[0].sentence, "rank 1"));
    assert_true(joiners[1].made == GDP_STATUS_COMPILE_FAILED ||
                joiners[1].made == GDP_STATUS_NOT_AVAILABLE);
    gdp_context_destroy(broken);
}

/* C11: a rank that goes away between making the group and the exchange. */
static void test_lost_rank(void **state)
{
    (void)state;
    joiner joiners[2] = { { .fields = "tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=f32" },
                          { .fields = "tokens=8 dim_k=32 dim_v=48 num_householder=2 dtype=f32",
                            .leave = true } };
    join_all(joiners, 2, 3000);
    assert_int_equal(joiners[0].made, GDP_OK);
    assert_int_equal(joiners[0].ran, GDP_STATUS_TIMEOUT);
}

/* Where values are checked, a bad one on a rank becomes a status on all, and the group goes on. */
static void test_checked(void **state)
{
    (void)state;
    gdp_context *checked;
    gdp_context_options options = GDP_CONTEXT_OPTIONS_INIT;
    options.target = GDP_TARGET_HOST;
    options.check_values = 1;
    MUST(gdp_context_create(&options, &checked));
    instance *it = instance_create("tokens=40 dim_k=32 dim_v=48 num_householder=2 dtype=f32", NULL,
                                   GATE_WEAK, false, 1);
    results *r = results_create(it);
    gdp_status statuses[3];
    for (int one_call = 0; one_call < 2; one_call++) {
        tensor_set(&it->in.g, 0, 20, 0, 0, 0.5); /* rank 1 holds tokens 14 to 26 */
        instance_run_cp(checked, NULL, NULL, it, r, 3, NULL, one_call, statuses);
        assert_int_equal(statuses[0], GDP_STATUS_PEER);
        assert_int_equal(statuses[1], GDP_STATUS_INVALID_ARGUMENT);
        assert_int_equal(statuses[2], GDP_STATUS_PEER);
        assert_int_equal(*(unsigned char *)r->out.o.data, 0xFF);
    }
    tensor_set(&it->in.g, 0, 20, 0, 0, -0.5);
    instance_run_cp(checked, NULL, NULL, it, r, 3, NULL, false, NULL);
    results_destroy(r);
    instance_destroy(it);
    gdp_context_destroy(checked);
}

/* ---- an application's own backend and transport ---- */

typedef struct counting {
    gdp_plan *plan;
    int calls[4];
} counting;

static gdp_status count_sizes(void *user, const gdp_problem *problem, int backward,
                              gdp_plan_sizes *sizes)
{
    counting *c = user;
    gdp_config config = { 0 };
    config.target = GDP_TARGET_REFERENCE;
    GDPI_TRY(gdp_plan_create(host, problem, &config,
                             GDP_PLAN_CP | (backward ? GDP_PLAN_BACKWARD : 0), &c->plan));
    return gdp_plan_get_sizes(c->plan, sizes);
}

static gdp_status count_forward_prepare(void *user, const gdp_problem *p, const gdp_inputs *in,
                                        const gdp_cp_window *w, void *summary,
                                        gdp_saved_context *saved, const gdp_execution *e)
{
    (void)p;
    ((counting *)user)->calls[0]++;
    return gdp_cp_forward_prepare(((counting *)user)->plan, in, w, summary, saved, e);
}

static gdp_status count_forward_apply(void *user, const gdp_problem *p, const gdp_inputs *in,
                                      const gdp_cp_window *w, const void *gathered,
                                      const gdp_outputs *out, gdp_saved_context *saved,
                                      const gdp_execution *e)
{
    (void)p;
    ((counting *)user)->calls[1]++;
    return gdp_cp_forward_apply(((counting *)user)->plan, in, w, gathered, out, saved, e);
}

static gdp_status count_backward_prepare(void *user, const gdp_problem *p, const gdp_inputs *in,
                                         const gdp_cp_window *w, const gdp_output_gradients *grads,
                                         const gdp_saved_context *saved, void *summary,
                                         const gdp_execution *e)
{
    (void)p;
    ((counting *)user)->calls[2]++;
    return gdp_cp_backward_prepare(((counting *)user)->plan, in, w, grads, saved, summary, e);
}

static gdp_status count_backward_apply(void *user, const gdp_problem *p, const gdp_inputs *in,
                                       const gdp_cp_window *w, const gdp_output_gradients *grads,
                                       const gdp_saved_context *saved, const void *gathered,
                                       const gdp_input_gradients *out, const gdp_execution *e)
{
    (void)p;
    ((counting *)user)->calls[3]++;
    return gdp_cp_backward_apply(((counting *)user)->plan, in, w, grads, saved, gathered, out, e);
}

static gdp_status own_gather_host(void *user, const void *send, void *receive, size_t bytes)
{
    (void)user;
    memcpy(receive, send, bytes);
    return GDP_OK;
}

static gdp_status own_gather(void *user, const void *send, void *receive, size_t bytes,
                             gdp_stream stream)
{
    (void)stream;
    return own_gather_host(user, send, receive, bytes);
}

static void test_own_backend(void **state)
{
    (void)state;
    counting user = { 0 };
    gdp_cp_backend backend = { sizeof backend,
                               "counting",
                               &user,
                               count_sizes,
                               count_forward_prepare,
                               count_forward_apply,
                               count_backward_prepare,
                               count_backward_apply };
    MUST(gdp_register_cp_backend(host, &backend));
    REFUSED(gdp_register_cp_backend(host, &backend), GDP_STATUS_INVALID_ARGUMENT,
            "registered already");
    backend.name = "host";
    REFUSED(gdp_register_cp_backend(host, &backend), GDP_STATUS_INVALID_ARGUMENT, "built in");
    backend.name = "counting2";
    backend.cp_forward_apply = NULL;
    REFUSED(gdp_register_cp_backend(host, &backend), GDP_STATUS_INVALID_ARGUMENT, "lacks");

    const gdp_comm comm = { sizeof comm, 0, 1, NULL, own_gather, own_gather_host };
    instance *it = instance_create("tokens=20 dim_k=32 dim_v=48 num_householder=2 dtype=f32", NULL,
                                   GATE_WEAK, true, 1);
    results *got = results_create(it), *want = results_create(it);
    MUST(instance_run(reference, NULL, it, want, false, 0));
    gdp_cp_group *group;
    gdp_plan_sizes sizes;
    REFUSED(gdp_cp_group_create(host, &comm, &it->problem, NULL, 0, "nobody", &group),
            GDP_STATUS_INVALID_ARGUMENT, "backend is 'nobody'");
    MUST(gdp_cp_group_create(host, &comm, &it->problem, NULL, GDP_PLAN_BACKWARD, "counting",
                             &group));
    MUST(gdp_cp_group_get_sizes(group, &sizes));
    gdp_execution execution = { aligned_bytes(sizes.workspace, 0xFF), sizes.workspace, NULL };
    gdp_saved_context saved = { .data = aligned_bytes(sizes.saved, 0xFF), .bytes = sizes.saved };
    MUST(gdp_cp_forward(group, &it->in, 0, GDP_RANK_STOP_DEFAULT, &got->out, &saved, &execution));
    MUST(gdp_cp_backward(group, &it->in, &it->out_grads, &saved, &got->grads, &execution));
    expect_close(got, want, 2e-5, "a registered backend");
    for (int i = 0; i < 4; i++) assert_int_equal(user.calls[i], 1);
    free(execution.workspace);
    free(saved.data);
    gdp_cp_group_destroy(group);
    gdp_plan_destroy(user.plan);
    results_destroy(got);
    results_destroy(want);
    instance_destroy(it);
}

/* ---- metadata of packed shards ---- */

static void test_metadata(void **state)
{
    (void)state;
    const int64_t cu[] = { 0, 5, 20, 21, 50, 64 };
    int64_t local[8];
    gdp_packed_shard shard;
    MUST(gdp_packed_metadata(cu, 5, 1, 4, NULL, local, &shard)); /* tokens 16 .. 31 */
    const int64_t want[] = { 0, 4, 5, 16 };
    assert_int_equal(shard.sequences, 3);
    assert_memory_equal(local, want, sizeof want);
    assert_int_equal(shard.first_sequence, 1);
    assert_int_equal(shard.preceding_rank_start, 0);
    assert_int_equal(shard.following_rank_stop, 4); /* sequence 3 ends at 50, in rank 3 */
    MUST(gdp_packed_metadata(cu, 5, 3, 4, NULL, local, &shard));
    assert_int_equal(shard.preceding_rank_start, 1);
    assert_int_equal(shard.following_rank_stop, 4);

    const int64_t descending[] = { 0, 5, 4 }, late[] = { 1, 4 };
    REFUSED(gdp_packed_metadata(descending, 2, 0, 2, NULL, local, &shard),
            GDP_STATUS_INVALID_ARGUMENT, "cu_seqlens[2] is 4; accepted is 5 or more");
    REFUSED(gdp_packed_metadata(late, 1, 0, 2, NULL, local, &shard), GDP_STATUS_INVALID_ARGUMENT,
            "cu_seqlens[0] is 1");
    REFUSED(gdp_packed_metadata(cu, 5, 4, 4, NULL, local, &shard), GDP_STATUS_INVALID_ARGUMENT,
            "rank is 4 of 4");
    const int64_t begin[] = { 0, 70, 64 };
    REFUSED(gdp_packed_metadata(cu, 5, 0, 2, begin, local, &shard), GDP_STATUS_INVALID_ARGUMENT,
            "shard_begin[2]");
}

static int setup(void **state)
{
    (void)state;
    host = test_context(GDP_TARGET_HOST, 2);
    reference = test_context(GDP_TARGET_REFERENCE, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    gdp_context_destroy(host);
    gdp_context_destroy(reference);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),        cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_packed),       cmocka_unit_test(test_one_call),
        cmocka_unit_test(test_fold),         cmocka_unit_test(test_windows),
        cmocka_unit_test(test_mismatch),     cmocka_unit_test(test_one_configuration),
        cmocka_unit_test(test_failing_rank), cmocka_unit_test(test_lost_rank),
        cmocka_unit_test(test_checked),      cmocka_unit_test(test_own_backend),
        cmocka_unit_test(test_metadata),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
