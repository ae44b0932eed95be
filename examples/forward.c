/* One GDP layer forward: 64 tokens, 2 heads, K = 32, V = 16, two updates a token, in f32, on whatever there is. */
#include <gdp.h>
#include <stdio.h>

static gdp_context *context;

static gdp_tensor tensor(int64_t rows, int64_t last, float value) /* last: K or V; 0: neither */
{
    const int64_t shape[] = { 1, rows, 2, last }, count = rows * 2 * (last ? last : 1);
    static float data[128 * 2 * 32];
    void *memory = NULL; /* of the target: a program with CUDA of its own hands in its pointers */
    for (int64_t i = 0; i < count; i++) data[i] = last ? (float)(i % 5 - 1) * value : value;
    if (!gdp_memory_allocate(context, (size_t)count * sizeof(float), &memory))
        (void)gdp_memory_copy(context, memory, data, (size_t)count * sizeof(float));
    return gdp_tensor_contiguous(memory, GDP_DTYPE_F32, last ? 4 : 3, shape);
}

int main(void)
{
    static gdp_inputs in; /* what is not set is absent: no cu_seqlens, no initial state */
    static gdp_outputs out;
    gdp_problem problem;
    gdp_plan *plan = NULL;
    gdp_plan_sizes sizes = { 0, 0, 0 };
    gdp_execution execution = { NULL, 0, NULL }; /* the default stream */
    float last[2 * 16] = { 0 };
    gdp_status status = gdp_context_create(NULL, &context);
    if (!status) {
        in.q = tensor(64, 32, 0.1f), in.k = tensor(128, 32, 0.1f), in.v = tensor(128, 16, 1);
        in.g = tensor(64, 0, -0.01f), in.beta = tensor(128, 0, 1), in.num_householder = 2;
        out.o = tensor(64, 16, 0);
        status = gdp_problem_from_inputs(&in, &problem);
    }
    if (!status) status = gdp_plan_create(context, &problem, NULL, 0, &plan); /* compiles */
    if (!status) status = gdp_plan_get_sizes(plan, &sizes);
    execution.workspace_bytes = sizes.workspace;
    if (!status) status = gdp_memory_allocate(context, sizes.workspace, &execution.workspace);
    if (!status) status = gdp_forward(plan, &in, &out, NULL, &execution); /* any number of times */
    if (!status)
        status = gdp_memory_copy(context, last, (float *)out.o.data + 63 * 32, sizeof last);
    if (status)
        fprintf(stderr, "%s: %s\n", gdp_status_name(status), gdp_last_error());
    else
        printf("libgdp %s: o[63, 0, 0] = %g\n", gdp_version(), last[0]);
    gdp_plan_destroy(plan);
    gdp_context_destroy(context);
    return status != GDP_OK; /* the memory of the tensors goes with the process */
}
