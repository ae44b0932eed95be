/* Between host memory and that of a context's target. On the host the same copies are made, so that
 * both targets take one path. */
#include "stage.h"

#include <string.h>

size_t tensor_bytes(const gdp_tensor *tensor)
{
    return tensor->data ? (size_t)count_elements(tensor) * gdp_dtype_size(tensor->dtype) : 0;
}

/* Tensors of no elements get memory too: without any they would count as absent. */
static gdp_status make_room(gdp_context *context, gdp_tensor *tensor)
{
    const size_t bytes = tensor_bytes(tensor);
    tensor->data = NULL;
    return gdp_memory_allocate(context, bytes ? bytes : 1, &tensor->data);
}

static gdp_status copy_in(gdp_context *context, const gdp_tensor *from, gdp_tensor *to)
{
    const gdp_status status = make_room(context, to);
    if (status != GDP_OK) return status;
    return gdp_memory_copy(context, to->data, from->data, tensor_bytes(from));
}

static bool is_state(int id) { return id == RESULT_FINAL_STATE || id == RESULT_DINITIAL_STATE; }

/* An element that nobody writes is to be found, so all begin as NaN. States begin as zero: those of
 * an empty sequence that no rank has stay as they are. */
static gdp_status make_output(gdp_context *context, int id, gdp_tensor *tensor)
{
    const gdp_status status = make_room(context, tensor);
    if (status != GDP_OK) return status;
    return gdp_memory_fill(context, tensor->data, is_state(id) ? 0 : 0xFF, tensor_bytes(tensor));
}

gdp_status stage_layer(gdp_context *context, const layer *it, const results *out, staged *copy)
{
    *copy = (staged){ .context = context, .it = *it, .out = *out };
    memset(&copy->it.file, 0, sizeof copy->it.file);
    layer original = *it;
    for (int i = 0; i < LAYER_TENSORS; i++) {
        copy->it.owned[i] = NULL;
        layer_tensor(&copy->it, i)->data = NULL;
    }
    for (int r = 0; r < RESULTS; r++) copy->out.tensor[r].data = NULL;

    gdp_status status = GDP_OK;
    for (int i = 0; i < LAYER_TENSORS && status == GDP_OK; i++) {
        const gdp_tensor *from = layer_tensor(&original, i);
        gdp_tensor *to = layer_tensor(&copy->it, i);
        if (!from->data) continue;
        *to = *from;
        status = copy_in(context, from, to);
    }
    for (int r = 0; r < RESULTS && status == GDP_OK; r++) {
        if (!out->tensor[r].data) continue;
        copy->out.tensor[r] = out->tensor[r];
        status = make_output(context, r, &copy->out.tensor[r]);
    }
    if (status != GDP_OK) stage_release(copy);
    return status;
}

gdp_status stage_clear_tail(const staged *copy)
{
    const gdp_problem *p = &copy->it.problem;
    if (p->sequences == 0) return GDP_OK;
    const int64_t used = copy->it.cu[p->sequences];
    gdp_status status = GDP_OK;
    for (int r = 0; r < RESULTS && status == GDP_OK; r++) {
        const gdp_tensor *t = &copy->out.tensor[r];
        if (!t->data || p->tokens == 0 || is_state(r)) continue;
        const size_t token = tensor_bytes(t) / (size_t)p->tokens;
        status = gdp_memory_fill(copy->context, (char *)t->data + (size_t)used * token, 0,
                                 (size_t)(p->tokens - used) * token);
    }
    return status;
}

gdp_status stage_fetch(const staged *copy, const results *out)
{
    gdp_status status = GDP_OK;
    for (int r = 0; r < RESULTS && status == GDP_OK; r++)
        if (out->tensor[r].data)
            status = gdp_memory_copy(copy->context, out->tensor[r].data, copy->out.tensor[r].data,
                                     tensor_bytes(&out->tensor[r]));
    return status;
}

void stage_release(staged *copy)
{
    for (int i = 0; i < LAYER_TENSORS; i++)
        gdp_memory_release(copy->context, layer_tensor(&copy->it, i)->data);
    for (int r = 0; r < RESULTS; r++) gdp_memory_release(copy->context, copy->out.tensor[r].data);
    memset(copy, 0, sizeof *copy);
}
