/* What the lanes of a warp do together: instructions on matrices, as the PTX ISA lays their
 * fragments out, shuffles and votes. With g = lane / 4 and q = lane % 4 a lane holds
 *     8 x 8 of 16 bits     (g, 2q), (g, 2q + 1)
 *     a, 16 x 16           the same of the quarters top left, bottom left, top right, bottom right
 *     b, 16 x 8            (2q, g), (2q + 1, g); the same 8 rows below
 *     a, 16 x 8 of tf32    (g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4)
 *     b, 8 x 8 of tf32     (q, g), (q + 4, g)
 *     d, 16 x 8            (g, 2q), (g, 2q + 1); the same 8 rows below */
#include "emulator.h"

#include <string.h>

/* Nearly all time goes into products, so they use wide registers where there are any. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- float16 ---- */

/* Without a branch, so that it can be done for many at once. */
static inline float widen(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, size = x & 0x7fff;
    const float subnormal = (float)(int32_t)size * 0x1p-24f;
    const uint32_t normal = (size << 13) + (size >= 0x7c00 ? (255 - 31) << 23 : (127 - 15) << 23);
    return float_of((size < 0x400 ? bits_of(subnormal) : normal) | sign);
}

EXPORT float emulated_widen_f16(uint16_t x) { return widen(x); }

EXPORT uint16_t emulated_narrow_f16(float x)
{
    const uint32_t bits = bits_of(x), size = bits & 0x7fffffff;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (size > 0x7f800000) return 0x7fff; /* NaN, as CUDA has it */
    if (size >= 0x47800000) return sign | 0x7c00;
    if (size < 0x33000000) return sign; /* below half of the least */
    const int shift = size < 0x38800000 ? 126 - (int)(size >> 23) : 13;
    const uint32_t fraction =
        size < 0x38800000 ? (size & 0x7fffff) | 0x800000 : size - ((127 - 15) << 23);
    const uint32_t half = 1u << (shift - 1), rest = fraction & (2 * half - 1);
    uint32_t rounded = fraction >> shift;
    rounded += rest > half || (rest == half && rounded & 1);
    return (uint16_t)(sign | rounded); /* may carry into the exponent, up to infinity */
}

/* ---- matrices ---- */

typedef struct load_operand {
    const char *row;
    uint32_t *result;
} load_operand;

static void load(void **operands, bool transposed)
{
    uint16_t m[4][8][8];
    for (int l = 0; l < WARP; l++)
        memcpy(m[l / 8][l % 8], ((const load_operand *)operands[l])->row, 16);
    for (int l = 0; l < WARP; l++) {
        const int g = l / 4, q = l % 4;
        uint32_t *d = ((load_operand *)operands[l])->result;
        for (int i = 0; i < 4; i++) {
            const uint16_t low = transposed ? m[i][2 * q][g] : m[i][g][2 * q];
            const uint16_t high = transposed ? m[i][2 * q + 1][g] : m[i][g][2 * q + 1];
            d[i] = low | (uint32_t)high << 16;
        }
    }
}

static void load_straight(void **operands, unsigned mask)
{
    (void)mask;
    load(operands, false);
}

static void load_transposed(void **operands, unsigned mask)
{
    (void)mask;
    load(operands, true);
}

EXPORT void emulated_load_matrices(uint32_t *d, const void *row, int transposed, const char *file,
                                   int line)
{
    const site where = { file, line };
    load_operand operand = { row, d };
    if ((uintptr_t)row % 16) defect(where, "ldmatrix: %p is no multiple of 16", row);
    if (!in_shared(row, 16)) defect(where, "ldmatrix: %p is not in shared memory", row);
    if (transposed)
        meet(LOAD_MATRICES_TRANSPOSED, ~0u, &operand, load_transposed, where);
    else
        meet(LOAD_MATRICES, ~0u, &operand, load_straight, where);
}

static void transpose(void **operands, unsigned mask)
{
    (void)mask;
    uint16_t m[8][8];
    for (int l = 0; l < WARP; l++) memcpy(&m[l / 4][2 * (l % 4)], operands[l], 4);
    for (int l = 0; l < WARP; l++) {
        const int g = l / 4, q = l % 4;
        *(uint32_t *)operands[l] = m[2 * q][g] | (uint32_t)m[2 * q + 1][g] << 16;
    }
}

EXPORT uint32_t emulated_transpose_matrix(uint32_t a, const char *file, int line)
{
    meet(TRANSPOSE_MATRIX, ~0u, &a, transpose, (site){ file, line });
    return a;
}

/* ---- products ---- */

typedef struct product_operand {
    float *d;
    const uint32_t *a, *b;
} product_operand;

/* d += a b, the sum over k in float32, in order. */
static inline __attribute__((always_inline)) void multiply(void **operands, float (*a)[16],
                                                           float (*b)[8], int depth)
{
    float d[16][8];
    for (int l = 0; l < WARP; l++) {
        const float *from = ((const product_operand *)operands[l])->d;
        memcpy(&d[l / 4][2 * (l % 4)], from, 8);
        memcpy(&d[l / 4 + 8][2 * (l % 4)], from + 2, 8);
    }
    for (int i = 0; i < 16; i++) {
        float sum[8];
        for (int j = 0; j < 8; j++) sum[j] = 0;
        for (int k = 0; k < depth; k++)
            for (int j = 0; j < 8; j++) sum[j] += a[i][k] * b[k][j];
        for (int j = 0; j < 8; j++) d[i][j] += sum[j];
    }
    for (int l = 0; l < WARP; l++) {
        float *to = ((const product_operand *)operands[l])->d;
        memcpy(to, &d[l / 4][2 * (l % 4)], 8);
        memcpy(to + 2, &d[l / 4 + 8][2 * (l % 4)], 8);
    }
}

static inline __attribute__((always_inline)) void multiply_pairs(void **operands, bool bf16)
{
    uint16_t narrow_a[16][16], narrow_b[8][16]; /* b transposed */
    float a[16][16], b[16][8];
    for (int l = 0; l < WARP; l++) {
        const product_operand *operand = operands[l];
        const int g = l / 4, q = l % 4;
        for (int i = 0; i < 4; i++)
            memcpy(&narrow_a[g + i % 2 * 8][2 * q + i / 2 * 8], &operand->a[i], 4);
        for (int i = 0; i < 2; i++) memcpy(&narrow_b[g][2 * q + i * 8], &operand->b[i], 4);
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            a[i][k] = bf16 ? float_of((uint32_t)narrow_a[i][k] << 16) : widen(narrow_a[i][k]);
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < 8; j++)
            b[k][j] = bf16 ? float_of((uint32_t)narrow_b[j][k] << 16) : widen(narrow_b[j][k]);
    multiply(operands, a, b, 16);
}

WIDE static void multiply_bf16(void **operands, unsigned mask)
{
    (void)mask;
    multiply_pairs(operands, true);
}

WIDE static void multiply_f16(void **operands, unsigned mask)
{
    (void)mask;
    multiply_pairs(operands, false);
}

WIDE static void multiply_tf32(void **operands, unsigned mask)
{
    (void)mask;
    float a[16][16], b[8][8];
    for (int l = 0; l < WARP; l++) {
        const product_operand *operand = operands[l];
        const int g = l / 4, q = l % 4;
        for (int i = 0; i < 4; i++)
            a[g + i % 2 * 8][q + i / 2 * 4] = float_of(operand->a[i] & 0xffffe000);
        for (int i = 0; i < 2; i++) b[q + i * 4][g] = float_of(operand->b[i] & 0xffffe000);
    }
    multiply(operands, a, b, 8);
}

/* type: 0 bf16, 1 f16, 2 tf32 */
EXPORT void emulated_multiply_add(int type, float *d, const uint32_t *a, const uint32_t *b,
                                  const char *file, int line)
{
    static lanes_function *const functions[] = { multiply_bf16, multiply_f16, multiply_tf32 };
    product_operand operand = { d, a, b };
    meet(MULTIPLY_BF16 + (unsigned)type, ~0u, &operand, functions[type], (site){ file, line });
}

/* ---- shuffles and votes ---- */

enum shuffle { FROM_LANE, FROM_ABOVE, FROM_BELOW, FROM_XOR };

typedef struct shuffle_operand {
    uint64_t value, result;
    enum shuffle kind;
    int from, width;
    site where;
} shuffle_operand;

/* What PTX says of shfl, its bounds made of the width. */
static int source_of(const shuffle_operand *operand, int lane)
{
    const int start = lane & ~(operand->width - 1), last = start + operand->width - 1;
    int from = lane;
    switch (operand->kind) {
    case FROM_LANE:
        return start + (operand->from & (operand->width - 1));
    case FROM_ABOVE:
        from = lane + operand->from;
        break;
    case FROM_BELOW:
        from = lane - operand->from;
        return from < start ? lane : from;
    case FROM_XOR:
        from = lane ^ operand->from;
        break;
    }
    return from > last ? lane : from;
}

static void shuffle(void **operands, unsigned mask)
{
    for (int l = 0; l < WARP; l++) {
        shuffle_operand *operand = operands[l];
        if (!operand) continue;
        const int from = source_of(operand, l);
        if (!(mask >> from & 1))
            defect(operand->where, "a shuffle: lane %d reads lane %d, which is not in mask %08x", l,
                   from, mask);
        operand->result = ((const shuffle_operand *)operands[from])->value;
    }
}

EXPORT uint64_t emulated_shuffle(int kind, unsigned mask, uint64_t value, int from, int width,
                                 const char *file, int line)
{
    const site where = { file, line };
    shuffle_operand operand = { value, 0, (enum shuffle)kind, from, width, where };
    if (width < 1 || width > WARP || width & (width - 1))
        defect(where, "a shuffle: width %d is not a power of two up to 32", width);
    meet(SHUFFLE, mask, &operand, shuffle, where);
    return operand.result;
}

static void ballot(void **operands, unsigned mask)
{
    unsigned result = 0;
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1) result |= (unsigned)(*(unsigned *)operands[l] != 0) << l;
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1) *(unsigned *)operands[l] = result;
}

EXPORT unsigned emulated_ballot(unsigned mask, int predicate, const char *file, int line)
{
    unsigned operand = predicate != 0;
    meet(BALLOT, mask, &operand, ballot, (site){ file, line });
    return operand;
}

EXPORT void emulated_sync_warp(unsigned mask, const char *file, int line)
{
    meet(SYNC_WARP, mask, NULL, NULL, (site){ file, line });
}
