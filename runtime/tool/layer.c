/* The tensors of a layer: read, made up, allocated. */
#include "layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const result_names[RESULTS] = { "o",  "final_state", "dq",    "dk",
                                            "dv", "dg",          "dbeta", "dinitial_state" };

/* The tensors that go in, in the order of their files. */
static const char *const names[LAYER_TENSORS] = {
    "q", "k", "v", "g", "beta", "cu_seqlens", "initial_state", "do", "final_state_grad"
};

gdp_tensor *layer_tensor(layer *it, int index)
{
    gdp_tensor *const slots[LAYER_TENSORS] = {
        &it->inputs.q,
        &it->inputs.k,
        &it->inputs.v,
        &it->inputs.g,
        &it->inputs.beta,
        &it->inputs.cu_seqlens,
        &it->inputs.initial_state,
        &it->gradients.d_o,
        &it->gradients.d_final_state,
    };
    return slots[index];
}

int64_t sequences_of(const gdp_problem *problem)
{
    return problem->sequences > 0 ? problem->sequences : problem->batch;
}

static void list_tensor(const gdp_tensor *tensor, const char *name, st_tensor *list, int *count)
{
    if (!tensor->data) return;
    st_tensor *entry = &list[(*count)++];
    *entry = (st_tensor){
        .name = name, .dtype = tensor->dtype, .rank = tensor->rank, .data = tensor->data
    };
    for (int i = 0; i < tensor->rank; i++) entry->shape[i] = tensor->shape[i];
    entry->bytes = (size_t)count_elements(tensor) * gdp_dtype_size(tensor->dtype);
}

int layer_list(const layer *it, st_tensor list[LAYER_TENSORS])
{
    int count = 0;
    layer copy = *it;
    for (int i = 0; i < LAYER_TENSORS; i++)
        list_tensor(layer_tensor(&copy, i), names[i], list, &count);
    return count;
}

void layer_release(layer *it)
{
    for (int i = 0; i < LAYER_TENSORS; i++) free(it->owned[i]);
    free(it->cu);
    st_close(&it->file);
    memset(it, 0, sizeof *it);
}

/* ---- from a file ---- */

/* num_householder: the option, else the metadata, else as many as k's rows say. */
static int read_parameters(const char *command, const char *path, int64_t n, double scale,
                           layer *it)
{
    const char *n_text = st_metadata(&it->file, "num_householder"),
               *scale_text = st_metadata(&it->file, "scale");
    if (!n && n_text && !read_integer(n_text, 1, 16, &n))
        return complain(command,
                        "%s: num_householder in the metadata is '%.40s'; accepted is 1 to 16", path,
                        n_text);
    const gdp_tensor *q = &it->inputs.q, *k = &it->inputs.k;
    if (!n && q->rank == 4 && k->rank == 4 && q->shape[1] > 0) n = k->shape[1] / q->shape[1];
    if (scale == 0 && scale_text && !read_real(scale_text, &scale))
        return complain(command, "%s: scale in the metadata is '%.40s'; accepted is a number", path,
                        scale_text);
    it->inputs.num_householder = n >= 1 && n <= 16 ? (int)n : 1;
    it->inputs.scale = (float)scale;
    return 0;
}

static int64_t boundary(const gdp_tensor *cu, int64_t i)
{
    return cu->dtype == GDP_DTYPE_I32 ? ((const int32_t *)cu->data)[i]
                                      : ((const int64_t *)cu->data)[i];
}

/* The boundaries as int64. The tool cuts tensors at them, so they are checked before anything
 * runs. */
static int read_boundaries(const char *command, const char *path, layer *it)
{
    const gdp_problem *problem = &it->problem;
    if (problem->sequences == 0) return 0;
    it->cu = allocate_zeroed((size_t)(problem->sequences + 1) * sizeof *it->cu);
    if (!it->cu) return complain(command, "%s: no memory for cu_seqlens", path);
    for (int64_t i = 0; i <= problem->sequences; i++) {
        it->cu[i] = boundary(&it->inputs.cu_seqlens, i);
        const int64_t low = i ? it->cu[i - 1] : 0, high = i ? problem->tokens : 0;
        if (it->cu[i] < low || it->cu[i] > high)
            return complain(command, "%s: cu_seqlens[%lld] is %lld; accepted is %lld to %lld", path,
                            (long long)i, (long long)it->cu[i], (long long)low, (long long)high);
    }
    return 0;
}

/* What the library does not look at before a backward call. */
static int check_gradients(const char *command, const char *path, const layer *it)
{
    const gdp_problem *p = &it->problem;
    const int64_t wanted[2][4] = { { p->batch, p->tokens, p->value_heads, p->dim_v },
                                   { sequences_of(p), p->value_heads, p->dim_k, p->dim_v } };
    const gdp_dtype dtypes[2] = { p->dtype, GDP_DTYPE_F32 };
    const gdp_tensor *given[2] = { &it->gradients.d_o, &it->gradients.d_final_state };
    for (int t = 0; t < 2; t++) {
        const int64_t *w = wanted[t];
        if (given[t]->data &&
            (given[t]->rank != 4 || memcmp(given[t]->shape, w, sizeof wanted[t]) != 0 ||
             given[t]->dtype != dtypes[t]))
            return complain(command,
                            "%s: %s does not fit; accepted is %s of shape [%lld, %lld, %lld, %lld]",
                            path, names[LAYER_TENSORS - 2 + t], dtype_name(dtypes[t]),
                            (long long)w[0], (long long)w[1], (long long)w[2], (long long)w[3]);
    }
    return 0;
}

static int pose(const char *command, const char *path, int64_t num_householder, double scale,
                layer *it)
{
    for (int i = 0; i < LAYER_TENSORS; i++) {
        const st_tensor *found = st_find(&it->file, names[i]);
        if (!found) continue;
        if (found->rank < 1 || found->rank > 4)
            return complain(command, "%s: %s has %d dimensions; accepted are 1 to 4", path,
                            names[i], found->rank);
        /* Inputs are never written, though gdp_tensor has no const. */
        *layer_tensor(it, i) = gdp_tensor_contiguous((void *)(uintptr_t)found->data, found->dtype,
                                                     found->rank, found->shape);
    }
    static const int required[] = { 0, 1, 2, 4 };
    for (int i = 0; i < 4; i++)
        if (!layer_tensor(it, required[i])->data)
            return complain(command, "%s: it has no tensor '%s'; q, k, v and beta are needed", path,
                            names[required[i]]);
    int code = read_parameters(command, path, num_householder, scale, it);
    if (code) return code;
    const gdp_status status = gdp_problem_from_inputs(&it->inputs, &it->problem);
    if (status != GDP_OK) {
        complain(command, "%s: %s", path, gdp_last_error());
        return exit_status(status);
    }
    code = read_boundaries(command, path, it);
    return code ? code : check_gradients(command, path, it);
}

int layer_read(const char *command, const char *path, int64_t num_householder, double scale,
               layer *it)
{
    char error[ST_SENTENCE];
    memset(it, 0, sizeof *it);
    if (!st_read(path, &it->file, error)) return complain(command, "%s: %s", path, error);
    const int code = pose(command, path, num_householder, scale, it);
    if (code) layer_release(it);
    return code;
}

/* ---- made up ---- */

enum fill { FILL_UNIT, FILL_NORMAL, FILL_GATE, FILL_BETA };

static void fill(const gdp_tensor *tensor, enum fill how, uint64_t seed)
{
    random_state random = { seed };
    const int64_t count = count_elements(tensor), row = tensor->shape[tensor->rank - 1];
    for (int64_t i = 0; i < count; i++) {
        const double value = how == FILL_GATE   ? 0.1 * log(random_uniform(&random))
                             : how == FILL_BETA ? 2 * random_uniform(&random)
                                                : random_normal(&random);
        store_element(tensor->data, tensor->dtype, i, (float)value);
    }
    if (how != FILL_UNIT) return;
    for (int64_t i = 0; i < count; i += row) {
        double sum = 0;
        for (int64_t c = 0; c < row; c++) {
            const double value = load_element(tensor->data, tensor->dtype, i + c);
            sum += value * value;
        }
        const double factor = sum > 0 ? 1 / sqrt(sum) : 0;
        for (int64_t c = 0; c < row; c++)
            store_element(
                tensor->data, tensor->dtype, i + c,
                (float)(factor * (double)load_element(tensor->data, tensor->dtype, i + c)));
    }
}

static bool make_tensor(layer *it, int index, gdp_dtype dtype, int rank, const int64_t *shape)
{
    size_t bytes = gdp_dtype_size(dtype);
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(bytes, (size_t)shape[i], &bytes)) return false;
    it->owned[index] = allocate_zeroed(bytes);
    *layer_tensor(it, index) = gdp_tensor_contiguous(it->owned[index], dtype, rank, shape);
    return it->owned[index] != NULL;
}

static bool make_boundaries(layer *it, const int64_t *cu)
{
    const int64_t count = it->problem.sequences + 1;
    it->cu = allocate_zeroed((size_t)count * sizeof *it->cu);
    if (!it->cu || !make_tensor(it, 5, it->problem.index_dtype, 1, &count)) return false;
    memcpy(it->cu, cu, (size_t)count * sizeof *cu);
    for (int64_t i = 0; i < count; i++) {
        if (it->problem.index_dtype == GDP_DTYPE_I32)
            ((int32_t *)it->owned[5])[i] = (int32_t)cu[i];
        else
            ((int64_t *)it->owned[5])[i] = cu[i];
    }
    return true;
}

bool layer_make(const gdp_problem *problem, const int64_t *cu, bool states, uint64_t seed,
                layer *it)
{
    const gdp_problem *p = problem;
    const int64_t B = p->batch, T = p->tokens, Tn = T * p->num_householder, H = p->heads,
                  HV = p->value_heads;
    const int64_t K = p->dim_k, V = p->dim_v, N = sequences_of(p);
    const struct {
        int index;
        gdp_dtype dtype;
        int rank;
        int64_t shape[4];
        enum fill how;
    } made[] = {
        { 0, p->dtype, 4, { B, T, H, K }, FILL_UNIT },
        { 1, p->dtype, 4, { B, Tn, H, K }, FILL_UNIT },
        { 2, p->dtype, 4, { B, Tn, HV, V }, FILL_NORMAL },
        { 3, p->gate_dtype, 3, { B, T, HV }, FILL_GATE },
        { 4, p->beta_dtype, 3, { B, Tn, HV }, FILL_BETA },
        { 6, states ? GDP_DTYPE_F32 : GDP_DTYPE_NONE, 4, { N, HV, K, V }, FILL_NORMAL },
        { 7, p->dtype, 4, { B, T, HV, V }, FILL_NORMAL },
        { 8, states ? GDP_DTYPE_F32 : GDP_DTYPE_NONE, 4, { N, HV, K, V }, FILL_NORMAL },
    };
    memset(it, 0, sizeof *it);
    it->problem = *p;
    it->inputs.num_householder = (int)p->num_householder;
    bool fine = p->sequences == 0 || make_boundaries(it, cu);
    for (size_t i = 0; fine && i < sizeof made / sizeof *made; i++) {
        if (made[i].dtype == GDP_DTYPE_NONE) continue;
        fine = make_tensor(it, made[i].index, made[i].dtype, made[i].rank, made[i].shape);
        random_state mix = { seed + (uint64_t)made[i].index * 0x51ed27u };
        if (fine) fill(layer_tensor(it, made[i].index), made[i].how, random_next(&mix));
    }
    if (!fine) layer_release(it);
    return fine;
}

/* ---- what comes out ---- */

bool results_make(const gdp_problem *problem, bool backward, results *it)
{
    const gdp_problem *p = problem;
    const int64_t B = p->batch, T = p->tokens, Tn = T * p->num_householder, H = p->heads,
                  HV = p->value_heads;
    const int64_t K = p->dim_k, V = p->dim_v, N = sequences_of(p);
    const struct {
        gdp_dtype dtype;
        int rank;
        int64_t shape[4];
    } made[RESULTS] = {
        { p->dtype, 4, { B, T, HV, V } },    { GDP_DTYPE_F32, 4, { N, HV, K, V } },
        { p->dtype, 4, { B, T, H, K } },     { p->dtype, 4, { B, Tn, H, K } },
        { p->dtype, 4, { B, Tn, HV, V } },   { p->gate_dtype, 3, { B, T, HV } },
        { p->beta_dtype, 3, { B, Tn, HV } }, { GDP_DTYPE_F32, 4, { N, HV, K, V } },
    };
    memset(it, 0, sizeof *it);
    for (int r = 0; r < (backward ? (int)RESULTS : (int)RESULT_DQ); r++) {
        size_t bytes = gdp_dtype_size(made[r].dtype);
        if (bytes == 0) continue;
        for (int i = 0; i < made[r].rank; i++) bytes *= (size_t)made[r].shape[i];
        void *data = allocate_zeroed(bytes);
        it->tensor[r] = gdp_tensor_contiguous(data, made[r].dtype, made[r].rank, made[r].shape);
        if (data) continue;
        results_release(it);
        return false;
    }
    return true;
}

void results_release(results *it)
{
    for (int r = 0; r < RESULTS; r++) free(it->tensor[r].data);
    memset(it, 0, sizeof *it);
}

gdp_outputs results_outputs(const results *it)
{
    return (gdp_outputs){ it->tensor[RESULT_O], it->tensor[RESULT_FINAL_STATE] };
}

gdp_input_gradients results_gradients(const results *it)
{
    const gdp_tensor *t = it->tensor;
    return (gdp_input_gradients){ t[RESULT_DQ], t[RESULT_DK],    t[RESULT_DV],
                                  t[RESULT_DG], t[RESULT_DBETA], t[RESULT_DINITIAL_STATE] };
}

int results_list(const results *it, st_tensor list[RESULTS])
{
    int count = 0;
    for (int r = 0; r < RESULTS; r++) list_tensor(&it->tensor[r], result_names[r], list, &count);
    return count;
}
