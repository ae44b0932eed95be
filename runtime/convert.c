/* Conversions by bits, so that they are the same on any processor and with any compiler options. */
#include "convert.h"

#include <string.h>

enum { DOUBLE_MANTISSA = 52, DOUBLE_BIAS = 1023, DOUBLE_TOP = 2047 };

static double from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double bf16_to_double(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static double f16_to_double(uint16_t half)
{
    const uint64_t sign = (uint64_t)(half >> 15) << 63, mantissa = half & 0x3ffu;
    const uint64_t exponent = (half >> 10) & 0x1fu;
    if (exponent == 0) {
        const double magnitude = (double)mantissa * 0x1p-24;
        return sign ? -magnitude : magnitude;
    }
    const uint64_t wide = exponent == 31 ? DOUBLE_TOP : exponent + DOUBLE_BIAS - 15;
    return from_bits(sign | wide << DOUBLE_MANTISSA | mantissa << (DOUBLE_MANTISSA - 10));
}

/* A 16-bit float of `mantissa` bits. The significand carries into the exponent where it rounds
 * up, which also makes the largest subnormal the smallest normal number and the largest finite
 * one infinity. */
static uint16_t encode(double value, int mantissa)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 63 << 15);
    const int exponent = (int)(bits >> DOUBLE_MANTISSA & DOUBLE_TOP);
    const uint64_t fraction = bits & ((UINT64_C(1) << DOUBLE_MANTISSA) - 1);
    const int top = (1 << (15 - mantissa)) - 1;
    const uint16_t infinity = (uint16_t)(top << mantissa);
    if (exponent == DOUBLE_TOP && fraction) {
        const uint64_t payload = fraction >> (DOUBLE_MANTISSA - mantissa);
        return (uint16_t)(sign | infinity | payload | 1u << (mantissa - 1));
    }
    int to = exponent - DOUBLE_BIAS + top / 2, shift = DOUBLE_MANTISSA - mantissa;
    if (to >= top) return sign | infinity;
    if (to < 1) { /* subnormal: fewer bits remain */
        shift += 1 - to;
        to = 1;
    }
    /* Below half of the smallest subnormal; subnormal doubles are among these. */
    if (shift > DOUBLE_MANTISSA + 1) return sign;
    const uint64_t whole = UINT64_C(1) << DOUBLE_MANTISSA | fraction;
    const uint64_t rest = whole & ((UINT64_C(1) << shift) - 1), half = UINT64_C(1) << (shift - 1);
    uint64_t kept = whole >> shift;
    if (rest > half || (rest == half && (kept & 1))) kept++;
    return (uint16_t)(sign | (((uint64_t)(to - 1) << mantissa) + kept));
}

double gdpi_load(const void *data, gdp_dtype dtype, int64_t index)
{
    switch (dtype) {
    case GDP_DTYPE_F32:
        return (double)((const float *)data)[index];
    case GDP_DTYPE_BF16:
        return bf16_to_double(((const uint16_t *)data)[index]);
    case GDP_DTYPE_F16:
        return f16_to_double(((const uint16_t *)data)[index]);
    case GDP_DTYPE_I32:
        return (double)((const int32_t *)data)[index];
    case GDP_DTYPE_I64:
        return (double)((const int64_t *)data)[index];
    case GDP_DTYPE_NONE:
        break;
    }
    return 0;
}

void gdpi_store(void *data, gdp_dtype dtype, int64_t index, double value)
{
    switch (dtype) {
    case GDP_DTYPE_F32:
        ((float *)data)[index] = (float)value;
        break;
    case GDP_DTYPE_BF16:
        ((uint16_t *)data)[index] = encode(value, 7);
        break;
    case GDP_DTYPE_F16:
        ((uint16_t *)data)[index] = encode(value, 10);
        break;
    case GDP_DTYPE_I32:
    case GDP_DTYPE_I64:
    case GDP_DTYPE_NONE:
        break;
    }
}

void gdpi_load_row(double *restrict to, const void *data, gdp_dtype dtype, int64_t index,
                   int64_t count)
{
    if (dtype == GDP_DTYPE_F32) {
        const float *from = (const float *)data + index;
        for (int64_t i = 0; i < count; i++) to[i] = (double)from[i];
    } else if (dtype == GDP_DTYPE_BF16) {
        const uint16_t *from = (const uint16_t *)data + index;
        for (int64_t i = 0; i < count; i++) to[i] = bf16_to_double(from[i]);
    } else {
        for (int64_t i = 0; i < count; i++) to[i] = gdpi_load(data, dtype, index + i);
    }
}

void gdpi_store_row(void *data, gdp_dtype dtype, int64_t index, const double *restrict from,
                    int64_t count)
{
    for (int64_t i = 0; i < count; i++) gdpi_store(data, dtype, index + i, from[i]);
}
