/* Element types, random numbers, comparisons. */
#include <math.h>
#include <string.h>

#include "layer.h"

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31,
                   rest = half & 0x3ff;
    if (exponent == 31) return from_bits(sign | 0x7f800000 | rest << 13);
    if (exponent == 0) {
        const float tiny = ldexpf((float)rest, -24);
        return sign ? -tiny : tiny;
    }
    return from_bits(sign | (exponent + 112) << 23 | rest << 13);
}

/* Nearest, ties to even. */
static uint16_t to_half(float value)
{
    const uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000) return (uint16_t)(sign | (uint32_t)nearbyintf(ldexpf(fabsf(value), 24)));
    const uint32_t rounded = size + 0xfff + (size >> 13 & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
}

static uint16_t to_bfloat(float value)
{
    const uint32_t bits = to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float load_element(const void *data, gdp_dtype dtype, int64_t index)
{
    switch (dtype) {
    case GDP_DTYPE_F32:
        return ((const float *)data)[index];
    case GDP_DTYPE_BF16:
        return from_bits((uint32_t)((const uint16_t *)data)[index] << 16);
    case GDP_DTYPE_F16:
        return from_half(((const uint16_t *)data)[index]);
    default:
        return NAN;
    }
}

void store_element(void *data, gdp_dtype dtype, int64_t index, float value)
{
    switch (dtype) {
    case GDP_DTYPE_F32:
        ((float *)data)[index] = value;
        break;
    case GDP_DTYPE_BF16:
        ((uint16_t *)data)[index] = to_bfloat(value);
        break;
    case GDP_DTYPE_F16:
        ((uint16_t *)data)[index] = to_half(value);
        break;
    default:
        break;
    }
}

/* splitmix64 */
uint64_t random_next(random_state *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int64_t random_below(random_state *random, int64_t limit)
{
    return (int64_t)(random_next(random) % (uint64_t)limit);
}

double random_uniform(random_state *random)
{
    return ((double)(random_next(random) >> 12) + 0.5) * 0x1p-52;
}

/* Box and Muller; one of the two numbers is given away, so that no state is kept. */
double random_normal(random_state *random)
{
    const double radius = sqrt(-2 * log(random_uniform(random)));
    return radius * cos(6.283185307179586 * random_uniform(random));
}

int64_t count_elements(const gdp_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
    return count;
}

static double bound_of(gdp_dtype dtype)
{
    return dtype == GDP_DTYPE_BF16 ? 1e-2 : dtype == GDP_DTYPE_F16 ? 3e-3 : 1e-4;
}

static double norm_of(const gdp_tensor *tensor)
{
    double sum = 0;
    const int64_t count = tensor->data ? count_elements(tensor) : 0;
    for (int64_t i = 0; i < count; i++) {
        const double value = load_element(tensor->data, tensor->dtype, i);
        sum += value * value;
    }
    return sqrt(sum);
}

bool compare_results(const layer *it, const results *ours, const results *reference,
                     deviation list[RESULTS])
{
    const gdp_tensor *d_o = &it->gradients.d_o;
    const double weight = d_o->data && count_elements(d_o) > 0
                              ? 1e-2 * norm_of(d_o) / sqrt((double)count_elements(d_o))
                              : 0;
    bool fine = true;
    for (int r = 0; r < RESULTS; r++) {
        const gdp_tensor *a = &ours->tensor[r], *b = &reference->tensor[r];
        list[r] = (deviation){ .present = a->data && b->data };
        if (!list[r].present) continue;
        const int64_t count = count_elements(a);
        double sum = 0;
        for (int64_t i = 0; i < count; i++) {
            const double difference = (double)load_element(a->data, a->dtype, i) -
                                      (double)load_element(b->data, b->dtype, i);
            sum += difference * difference;
        }
        const double norm = norm_of(b);
        const double least = r >= RESULT_DQ ? weight * sqrt((double)count) : 0;
        const double size = norm > least ? norm : least;
        list[r].error = sqrt(sum) / (size > 0 ? size : 1);
        list[r].bound = fmax(bound_of(it->problem.dtype), bound_of(a->dtype));
        if (!(list[r].error <= list[r].bound)) fine = false; /* a NaN is outside */
    }
    return fine;
}
