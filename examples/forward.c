/* One GDP layer forward: 64 tokens, 2 heads, K = 32, V = 16, two updates a token, in f32. */
#include <gdp.h>
#include <stdio.h>
#include <stdlib.h>

static gdp_tensor tensor(int64_t rows, int64_t last, float value) /* last: K or V; 0: neither */
{
    const int64_t shape[] = { 1, rows, 2, last }, count = rows * 2 * (last ? last : 1);
    float *data = (float *)aligned_alloc(64, (size_t)count * sizeof(float));
    for (int64_t i = 0; data && i < count; i++) data[i] = last ? (float)(i % 5 - 1) * value : value;
    return gdp_tensor_contiguous(data, GDP_DTYPE_F32, last ? 4 : 3, shape);
}

int main(void)
{
    static gdp_inputs in; /* what is not set is absent: no cu_seqlens, no initial state */
    static gdp_outputs out;
    in.q = tensor(64, 32, 0.1f), in.k = tensor(128, 32, 0.1f), in.v = tensor(128, 16, 1);
    in.g = tensor(64, 0, -0.01f), in.beta = tensor(128, 0, 1), in.num_householder = 2;
    out.o = tensor(64, 16, 0);

    gdp_context *context = NULL;
    gdp_problem problem;
    gdp_plan *plan = NULL;
    gdp_plan_sizes sizes = { 0, 0, 0 };
    gdp_execution execution = { NULL, 0, NULL };
    gdp_status status = gdp_context_create(NULL, &context);
    if (!status) status = gdp_problem_from_inputs(&in, &problem);
    if (!status) status = gdp_plan_create(context, &problem, NULL, 0, &plan); /* compiles */
    if (!status) status = gdp_plan_get_sizes(plan, &sizes);
    execution.workspace_bytes = (sizes.workspace + 63) / 64 * 64;
    execution.workspace = aligned_alloc(64, execution.workspace_bytes);
    if (!status) status = gdp_forward(plan, &in, &out, NULL, &execution); /* any number of times */
    if (status)
        fprintf(stderr, "%s: %s\n", gdp_status_name(status), gdp_last_error());
    else
        printf("libgdp %s: o[63, 0, 0] = %g\n", gdp_version(), ((float *)out.o.data)[63 * 32]);
    gdp_plan_destroy(plan);
    gdp_context_destroy(context);
    return status != GDP_OK; /* the memory of the tensors goes with the process */
}
