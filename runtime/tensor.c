/* What a caller hands in, checked against the problem and turned into the views of gdp_args. */
#include <math.h>
#include <string.h>

#include "convert.h"
#include "internal.h"

gdp_tensor gdp_tensor_contiguous(void *data, gdp_dtype dtype, int rank, const int64_t *shape)
{
    gdp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    if (!data || rank < 1 || rank > 4 || !shape) return tensor;
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = rank;
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        tensor.shape[i] = shape[i];
        tensor.stride[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
    return tensor;
}

/* What a tensor must look like; `required` at least where it has elements. */
typedef struct expectation {
    const char *name;
    gdp_dtype dtype;
    int rank;
    int64_t shape[4];
    bool required, contiguous;
} expectation;

static int64_t count_elements(const expectation *want)
{
    int64_t elements = 1;
    for (int i = 0; i < want->rank; i++) elements *= want->shape[i];
    return elements;
}

static gdp_status check_strides(const gdp_tensor *tensor, const expectation *want)
{
    int64_t dense = 1;
    for (int i = want->rank - 1; i >= 0; i--) {
        const bool innermost = i == want->rank - 1;
        if (tensor->shape[i] > 1 && (innermost || want->contiguous) && tensor->stride[i] != dense)
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "%s: stride[%d] is %lld; accepted is %lld", want->name, i,
                             (long long)tensor->stride[i], (long long)dense);
        if (tensor->stride[i] < 0)
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "%s: stride[%d] is %lld; accepted is 0 or more", want->name, i,
                             (long long)tensor->stride[i]);
        dense *= want->shape[i];
    }
    return GDP_OK;
}

static gdp_status check(const gdp_tensor *tensor, const expectation *want)
{
    if (!tensor->data) {
        if (want->required && count_elements(want) > 0)
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "%s is absent (data is NULL); this problem needs it", want->name);
        return GDP_OK;
    }
    if (tensor->dtype != want->dtype) {
        const unsigned given = (unsigned)tensor->dtype;
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s: dtype is %s; accepted is %s", want->name,
                         given <= GDP_DTYPE_I64 ? gdpi_dtype_names[given] : "no dtype",
                         gdpi_dtype_names[want->dtype]);
    }
    if (tensor->rank != want->rank)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s: rank is %d; accepted is %d", want->name,
                         tensor->rank, want->rank);
    for (int i = 0; i < want->rank; i++)
        if (tensor->shape[i] != want->shape[i])
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "%s: shape[%d] is %lld; accepted is %lld",
                             want->name, i, (long long)tensor->shape[i], (long long)want->shape[i]);
    const size_t size = gdp_dtype_size(want->dtype);
    if ((uintptr_t)tensor->data % size != 0)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "%s: data is %p; accepted is a multiple of %zu bytes", want->name,
                         tensor->data, size);
    return check_strides(tensor, want);
}

/* A tensor [B, rows, heads] or [B, rows, heads, dim] as a view. */
static gdp_status bind(const gdp_tensor *tensor, const char *name, const gdp_problem *problem,
                       gdp_dtype dtype, int64_t per_token, int64_t heads, int64_t dim,
                       gdp_view *view)
{
    const expectation want = {
        .name = name,
        .dtype = dtype,
        .rank = dim ? 4 : 3,
        .required = true,
        .shape = { problem->batch, problem->tokens * per_token, heads, dim },
    };
    if (dtype == GDP_DTYPE_NONE) {
        if (tensor->data)
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "%s is given; the problem's gate_dtype is none", name);
        return GDP_OK;
    }
    /* Without an innermost dimension the head takes its place, with any stride. */
    gdp_tensor padded = *tensor;
    expectation padded_want = want;
    if (!dim) {
        padded.rank = padded.rank == 3 ? 4 : padded.rank;
        padded.shape[3] = padded.stride[3] = 1;
        padded_want.rank = 4;
        padded_want.shape[3] = 1;
        if (tensor->data && tensor->rank != 3) return check(tensor, &want);
    }
    GDPI_TRY(check(&padded, &padded_want));
    *view = (gdp_view){ tensor->data, tensor->stride[0], tensor->stride[1], tensor->stride[2] };
    return GDP_OK;
}

/* The same for a tensor that a call writes: no two of its elements may be one. */
static gdp_status bind_written(const gdp_tensor *tensor, const char *name,
                               const gdp_problem *problem, gdp_dtype dtype, int64_t per_token,
                               int64_t heads, int64_t dim, gdp_view *view)
{
    GDPI_TRY(bind(tensor, name, problem, dtype, per_token, heads, dim, view));
    for (int i = 0; tensor->data && i < 3; i++)
        if (tensor->shape[i] > 1 && tensor->stride[i] == 0)
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "%s: stride[%d] is 0; accepted is 1 or more where a call writes", name,
                             i);
    return GDP_OK;
}

static gdp_status bind_state(const gdp_tensor *tensor, const char *name, const gdp_problem *problem)
{
    const expectation want = {
        .name = name,
        .dtype = GDP_DTYPE_F32,
        .rank = 4,
        .contiguous = true,
        .shape = { problem->sequences ? problem->sequences : problem->batch, problem->value_heads,
                   problem->dim_k, problem->dim_v },
    };
    return check(tensor, &want);
}

gdp_status gdpi_bind_inputs(const gdp_problem *problem, const gdp_inputs *inputs, gdp_args *args)
{
    const int64_t n = problem->num_householder, H = problem->heads, HV = problem->value_heads;
    const int64_t K = problem->dim_k, V = problem->dim_v;
    if (!inputs) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "inputs is NULL");
    if (inputs->num_householder != n)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "num_householder is %d; the problem's is %lld", inputs->num_householder,
                         (long long)n);
    if (!isfinite(inputs->scale))
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "scale is %g; accepted is a finite number",
                         (double)inputs->scale);
    GDPI_TRY(bind(&inputs->q, "q", problem, problem->dtype, 1, H, K, &args->q));
    GDPI_TRY(bind(&inputs->k, "k", problem, problem->dtype, n, H, K, &args->k));
    GDPI_TRY(bind(&inputs->v, "v", problem, problem->dtype, n, HV, V, &args->v));
    GDPI_TRY(bind(&inputs->g, "g", problem, problem->gate_dtype, 1, HV, 0, &args->g));
    GDPI_TRY(bind(&inputs->beta, "beta", problem, problem->beta_dtype, n, HV, 0, &args->beta));
    GDPI_TRY(bind_state(&inputs->initial_state, "initial_state", problem));

    const bool packed = problem->sequences > 0;
    const expectation cu = {
        .name = "cu_seqlens",
        .dtype = problem->index_dtype,
        .rank = 1,
        .required = packed,
        .contiguous = true,
        .shape = { problem->sequences + 1 },
    };
    if (!packed && inputs->cu_seqlens.data)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "cu_seqlens is given; the problem has sequences = 0");
    GDPI_TRY(check(&inputs->cu_seqlens, &cu));

    args->cu_seqlens = inputs->cu_seqlens.data;
    args->initial_state = inputs->initial_state.data;
    args->scale = inputs->scale == GDP_SCALE_DEFAULT ? 1.0f / sqrtf((float)K) : inputs->scale;
    return GDP_OK;
}

gdp_status gdpi_bind_outputs(const gdp_problem *problem, const gdp_outputs *outputs, gdp_args *args)
{
    if (!outputs) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "outputs is NULL");
    GDPI_TRY(bind_written(&outputs->o, "o", problem, problem->dtype, 1, problem->value_heads,
                          problem->dim_v, &args->o));
    GDPI_TRY(bind_state(&outputs->final_state, "final_state", problem));
    args->final_state = outputs->final_state.data;
    return GDP_OK;
}

gdp_status gdpi_bind_output_gradients(const gdp_problem *problem,
                                      const gdp_output_gradients *gradients, gdp_args *args)
{
    if (!gradients) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "output_gradients is NULL");
    GDPI_TRY(bind(&gradients->d_o, "d_o", problem, problem->dtype, 1, problem->value_heads,
                  problem->dim_v, &args->d_o));
    GDPI_TRY(bind_state(&gradients->d_final_state, "d_final_state", problem));
    args->d_final_state = gradients->d_final_state.data;
    return GDP_OK;
}

gdp_status gdpi_bind_input_gradients(const gdp_problem *problem,
                                     const gdp_input_gradients *gradients, gdp_args *args)
{
    const int64_t n = problem->num_householder, H = problem->heads, HV = problem->value_heads;
    const int64_t K = problem->dim_k, V = problem->dim_v;
    if (!gradients) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "input_gradients is NULL");
    GDPI_TRY(bind_written(&gradients->dq, "dq", problem, problem->dtype, 1, H, K, &args->dq));
    GDPI_TRY(bind_written(&gradients->dk, "dk", problem, problem->dtype, n, H, K, &args->dk));
    GDPI_TRY(bind_written(&gradients->dv, "dv", problem, problem->dtype, n, HV, V, &args->dv));
    GDPI_TRY(bind_written(&gradients->dg, "dg", problem, problem->gate_dtype, 1, HV, 0, &args->dg));
    GDPI_TRY(bind_written(&gradients->dbeta, "dbeta", problem, problem->beta_dtype, n, HV, 0,
                          &args->dbeta));
    GDPI_TRY(bind_state(&gradients->d_initial_state, "d_initial_state", problem));
    args->d_initial_state = gradients->d_initial_state.data;
    return GDP_OK;
}

/* ---- what the CUDA kernels want beside ---- */

enum { PIECE = 16 };

static gdp_status check_address(const char *name, const void *data)
{
    if ((uintptr_t)data % PIECE == 0) return GDP_OK;
    return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                     "%s: data is %p; accepted on CUDA is a multiple of %d bytes", name, data,
                     PIECE);
}

/* Data and the strides of dimensions with more than one entry, in whole pieces of 16 bytes. */
static gdp_status check_pieces(const gdp_problem *problem, const char *name, const gdp_view *view,
                               int64_t rows, int64_t heads)
{
    if (!view->data) return GDP_OK;
    GDPI_TRY(check_address(name, view->data));
    const int64_t shape[] = { problem->batch, rows, heads };
    const int64_t stride[] = { view->batch, view->row, view->head };
    const int64_t unit = PIECE / (int64_t)gdp_dtype_size(problem->dtype);
    for (int i = 0; i < 3; i++)
        if (shape[i] > 1 && stride[i] % unit)
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "%s: stride[%d] is %lld; accepted on CUDA is a multiple of %lld, %d "
                             "bytes",
                             name, i, (long long)stride[i], (long long)unit, PIECE);
    return GDP_OK;
}

gdp_status gdpi_check_alignment(gdp_target target, const gdp_problem *problem, const gdp_args *args)
{
    if (target != GDP_TARGET_CUDA) return GDP_OK;
    const int64_t T = problem->tokens, Tn = T * problem->num_householder;
    const int64_t H = problem->heads, HV = problem->value_heads;
    GDPI_TRY(check_address("initial_state", args->initial_state));
    GDPI_TRY(check_address("d_final_state", args->d_final_state));
    GDPI_TRY(check_pieces(problem, "q", &args->q, T, H));
    GDPI_TRY(check_pieces(problem, "k", &args->k, Tn, H));
    GDPI_TRY(check_pieces(problem, "v", &args->v, Tn, HV));
    GDPI_TRY(check_pieces(problem, "o", &args->o, T, HV));
    GDPI_TRY(check_pieces(problem, "d_o", &args->d_o, T, HV));
    GDPI_TRY(check_pieces(problem, "dq", &args->dq, T, H));
    GDPI_TRY(check_pieces(problem, "dk", &args->dk, Tn, H));
    return check_pieces(problem, "dv", &args->dv, Tn, HV);
}

/* ---- contents, where they lie in host memory ---- */

static int64_t boundary(const gdp_problem *problem, const gdp_inputs *inputs, int64_t i)
{
    const void *data = inputs->cu_seqlens.data;
    return problem->index_dtype == GDP_DTYPE_I32 ? ((const int32_t *)data)[i]
                                                 : ((const int64_t *)data)[i];
}

static gdp_status check_boundaries(const gdp_problem *problem, const gdp_inputs *inputs)
{
    int64_t before = 0;
    for (int64_t i = 0; i <= problem->sequences; i++) {
        const int64_t here = boundary(problem, inputs, i);
        if (i == 0 && here != 0)
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "cu_seqlens[0] is %lld; accepted is 0",
                             (long long)here);
        if (here < before || here > problem->tokens)
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "cu_seqlens[%lld] is %lld; accepted is %lld to %lld", (long long)i,
                             (long long)here, (long long)before, (long long)problem->tokens);
        before = here;
    }
    return GDP_OK;
}

/* Every number of a [B, rows, heads, dim] tensor must be finite and within low .. high. */
static gdp_status check_range(const gdp_tensor *tensor, const char *name, double low, double high)
{
    if (!tensor->data) return GDP_OK;
    const int64_t dim = tensor->rank == 4 ? tensor->shape[3] : 1;
    for (int64_t b = 0; b < tensor->shape[0]; b++)
        for (int64_t row = 0; row < tensor->shape[1]; row++)
            for (int64_t head = 0; head < tensor->shape[2]; head++)
                for (int64_t c = 0; c < dim; c++) {
                    const int64_t at = b * tensor->stride[0] + row * tensor->stride[1] +
                                       head * tensor->stride[2] + c;
                    const double value = gdpi_load(tensor->data, tensor->dtype, at);
                    if (isnan(value) || value < low || value > high)
                        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                                         "%s[%lld, %lld, %lld, %lld] is %g; accepted is %g to %g",
                                         name, (long long)b, (long long)row, (long long)head,
                                         (long long)c, value, low, high);
                }
    return GDP_OK;
}

gdp_status gdpi_check_contents(gdp_target target, const gdp_problem *problem,
                               const gdp_inputs *inputs, bool values)
{
    if (target == GDP_TARGET_CUDA) return GDP_OK;
    const double huge = 3.4e38;
    if (problem->sequences > 0) GDPI_TRY(check_boundaries(problem, inputs));
    if (!values) return GDP_OK;
    GDPI_TRY(check_range(&inputs->q, "q", -huge, huge));
    GDPI_TRY(check_range(&inputs->k, "k", -huge, huge));
    GDPI_TRY(check_range(&inputs->v, "v", -huge, huge));
    GDPI_TRY(check_range(&inputs->g, "g", -(double)INFINITY, 0));
    return check_range(&inputs->beta, "beta", 0, 2);
}

/* ---- the problem that a set of tensors poses ---- */

gdp_status gdp_problem_from_inputs(const gdp_inputs *inputs, gdp_problem *problem)
{
    if (!inputs || !problem)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "inputs or problem is NULL");
    const gdp_tensor *q = &inputs->q, *v = &inputs->v;
    if (q->rank != 4)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "q: rank is %d; accepted is 4", q->rank);
    if (v->rank != 4)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "v: rank is %d; accepted is 4", v->rank);
    gdp_problem posed = gdp_problem_default();
    posed.batch = q->shape[0];
    posed.tokens = q->shape[1];
    posed.heads = q->shape[2];
    posed.value_heads = v->shape[2];
    posed.dim_k = q->shape[3];
    posed.dim_v = v->shape[3];
    posed.num_householder = inputs->num_householder;
    posed.dtype = q->dtype;
    posed.gate_dtype = inputs->g.data ? inputs->g.dtype : GDP_DTYPE_NONE;
    if (inputs->beta.data) posed.beta_dtype = inputs->beta.dtype;
    if (inputs->cu_seqlens.data) {
        if (inputs->cu_seqlens.rank != 1 || inputs->cu_seqlens.shape[0] < 2)
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "cu_seqlens: accepted is rank 1 with at least 2 entries");
        posed.sequences = inputs->cu_seqlens.shape[0] - 1;
        posed.index_dtype = inputs->cu_seqlens.dtype;
    }
    GDPI_TRY(gdp_problem_check(&posed));
    gdp_args args;
    memset(&args, 0, sizeof args);
    GDPI_TRY(gdpi_bind_inputs(&posed, inputs, &args));
    *problem = posed;
    return GDP_OK;
}
