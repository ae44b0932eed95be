/* What test_emulator.c runs, behind the text of an intrinsics.ct. Each kernel does a thing or two
 * and leaves what it got. */
typedef struct gdp_args {
    const void *in;
    void *out;
    int64_t number;
} gdp_args;

DEVICE int lane_id() { return (int)threadIdx.x & 31; }

/* Copies words to shared memory by hand. */
DEVICE void fill_shared(const void *from, int bytes)
{
    for (int i = (int)threadIdx.x; i < bytes / 4; i += (int)blockDim.x)
        ((uint32_t *)shared_memory())[i] = ((const uint32_t *)from)[i];
    __syncthreads();
}

/* in: four 8 x 8 matrices of 16 bits, one below the other. out: a lane's registers, both forms. */
KERNEL(32, 1) load_both(ARGS args)
{
    fill_shared(args.in, 512);
    uint32_t d[4], t[4];
    load_matrices(d, shared_memory() + 16 * threadIdx.x);
    load_matrices_transposed(t, shared_memory() + 16 * threadIdx.x);
    uint32_t *const out = (uint32_t *)args.out + 8 * threadIdx.x;
    for (int i = 0; i < 4; i++) out[i] = d[i], out[4 + i] = t[i];
}

KERNEL(32, 1) transpose(ARGS args)
{
    const uint32_t a = ((const uint32_t *)args.in)[threadIdx.x];
    ((uint32_t *)args.out)[threadIdx.x] = transpose_matrix(a);
}

/* Products of row-major matrices: in: a, 16 x 16 (of tf32 16 x 8), then b by rows. out: d, 16 x 8,
 * which holds what is added to. The operands come as tile.ct loads them. */
template <int type> DEVICE void product_of_pairs(const gdp_args &args)
{
    fill_shared(args.in, 512 + 256);
    const int g = lane_id() / 4, q = lane_id() & 3;
    uint32_t a[4], b[4];
    load_matrices(a, shared_memory() + (lane_id() & 15) * 32 + lane_id() / 16 * 16);
    load_matrices_transposed(b, shared_memory() + 512 + (lane_id() & 15) * 16);
    float *const out = (float *)args.out + 8 * g + 2 * q;
    float d[4] = { out[0], out[1], out[64], out[65] };
    const uint32_t right[2] = { b[0], b[1] };
    if (type == 0)
        multiply_add_bf16(d, a, right);
    else
        multiply_add_f16(d, a, right);
    out[0] = d[0], out[1] = d[1], out[64] = d[2], out[65] = d[3];
}

KERNEL(32, 1) product_bf16(ARGS args) { product_of_pairs<0>(args); }
KERNEL(32, 1) product_f16(ARGS args) { product_of_pairs<1>(args); }

KERNEL(32, 1) product_tf32(ARGS args)
{
    const int g = lane_id() / 4, q = lane_id() & 3;
    const uint32_t *const left = (const uint32_t *)args.in + 8 * g + q;
    const uint32_t *const right = (const uint32_t *)args.in + 128 + 8 * q + g;
    const uint32_t a[4] = { left[0], left[64], left[4], left[68] };
    const uint32_t b[2] = { right[0], right[32] };
    float *const out = (float *)args.out + 8 * g + 2 * q;
    float d[4] = { out[0], out[1], out[64], out[65] };
    multiply_add_tf32(d, a, b);
    out[0] = d[0], out[1] = d[1], out[64] = d[2], out[65] = d[3];
}

/* Three groups of copies, one of them zeros; then all of shared memory as it came. `number` of them
 * are not waited for. */
template <int left> DEVICE void copy_three(const gdp_args &args)
{
    for (int group = 0; group < 3; group++) {
        const int at = 16 * ((int)threadIdx.x + group * (int)blockDim.x);
        copy_async(shared_memory() + at, (const char *)args.in + (group == 1 ? 0 : at), group != 1);
        copy_commit();
    }
    copy_wait<left>();
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 12 * blockDim.x; i += blockDim.x)
        ((uint32_t *)args.out)[i] = ((const uint32_t *)shared_memory())[i];
}

KERNEL(64, 1) copy_all(ARGS args) { copy_three<0>(args); }
KERNEL(64, 1) copy_early(ARGS args) { copy_three<1>(args); }

/* Every kind of shuffle and vote; 16 words a lane. */
KERNEL(32, 1) exchange(ARGS args)
{
    const int l = lane_id();
    const unsigned all = 0xffffffffu, odd = 0xaaaaaaaau;
    uint32_t *const out = (uint32_t *)args.out + 16 * l;
    out[0] = (uint32_t)__shfl_sync(all, l, 5);
    out[1] = (uint32_t)__shfl_sync(all, l, l + 3, 8);
    out[2] = (uint32_t)__shfl_xor_sync(all, l, 17);
    out[3] = (uint32_t)__shfl_up_sync(all, l, 3);
    out[4] = (uint32_t)__shfl_down_sync(all, l, 3, 16);
    out[5] = bits_of(__shfl_xor_sync(all, (float)l, 1));
    out[6] = __shfl_down_sync(all, 1e10 * l, 1) == 1e10 * (l < 31 ? l + 1 : l);
    out[7] = __ballot_sync(all, l % 3 == 0);
    out[8] = (uint32_t)__any_sync(all, l == 7);
    out[9] = (uint32_t)__all_sync(all, l != 7);
    if (l & 1)
        out[10] = __ballot_sync(odd, l > 15);
    else
        out[10] = (uint32_t)__shfl_xor_sync(~odd, l, 2);
    __syncwarp();
    out[11] = (uint32_t)__shfl_up_sync(all, (unsigned)l, 1, 4);
    out[12] = (uint32_t)__syncthreads_or(l == 3);
    out[13] = (uint32_t)__syncthreads_and(l != 3);
    out[14] = (uint32_t)__syncthreads_count(l < 10);
    out[15] = (uint32_t)__shfl_xor_sync(all, l, 9, 4);
}

/* in: `number` floats. out: for each bf16 and f16, as pairs with itself doubled, and 2^x. Then all
 * of float16 as floats. */
KERNEL(128, 1) convert(ARGS args)
{
    const float *const in = (const float *)args.in;
    uint32_t *const out = (uint32_t *)args.out;
    const int64_t step = (int64_t)blockDim.x * gridDim.x;
    const int64_t first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < args.number; i += step) {
        out[4 * i] = narrow_pair_bf16(in[i], 2 * in[i]);
        out[4 * i + 1] = narrow_pair_f16(in[i], 2 * in[i]);
        out[4 * i + 2] = narrow_f16(in[i]);
        out[4 * i + 3] = bits_of(exp2_fast(in[i]));
    }
    for (int64_t i = first; i < 65536; i += step)
        out[4 * args.number + i] = bits_of(widen_f16((uint16_t)i));
}

/* out: a word for each thread of a grid of blocks, all three-dimensional. */
KERNEL(24, 1) places(ARGS args)
{
    const int block = (int)((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
    const int thread = (int)((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
    ((uint32_t *)args.out)[block * 24 + thread] = (uint32_t)(
        threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x +
        10000 * blockIdx.y + 100000 * blockIdx.z);
}

/* Sums over a block through shared memory, with the barriers that it takes. */
KERNEL(256, 1) add_up(ARGS args)
{
    float *const cells = (float *)shared_memory();
    cells[threadIdx.x] = ((const float *)args.in)[threadIdx.x];
    for (unsigned half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) cells[threadIdx.x] += cells[threadIdx.x + half];
    }
    if (threadIdx.x == 0) ((float *)args.out)[0] = cells[0];
}

/* A scan's inner loop in little: `number` rounds of loads and products. */
KERNEL(256, 1) work(ARGS args)
{
    fill_shared(args.in, 512);
    float d[4] = { 0, 0, 0, 0 };
    uint32_t a[4];
    for (int64_t i = 0; i < args.number; i++) {
        load_matrices(a, shared_memory() + 16 * lane_id());
        const uint32_t b[2] = { a[0], a[1] };
        multiply_add_bf16(d, a, b);
        multiply_add_bf16(d, a, b);
        multiply_add_bf16(d, a, b);
    }
    ((float *)args.out)[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

/* ---- defects ---- */

KERNEL(32, 1) diverge(ARGS args)
{
    uint32_t d[4] = { 0, 0, 0, 0 };
    if (threadIdx.x < 16)
        load_matrices(d, shared_memory());
    else
        d[0] = transpose_matrix(threadIdx.x);
    ((uint32_t *)args.out)[threadIdx.x] = d[0];
}

/* The same instruction, yet another one of the program. */
KERNEL(32, 1) diverge_in_place(ARGS args)
{
    uint32_t d;
    if (threadIdx.x & 1)
        d = transpose_matrix(1);
    else
        d = transpose_matrix(2);
    ((uint32_t *)args.out)[threadIdx.x] = d;
}

KERNEL(32, 1) barrier_in_warp(ARGS args)
{
    if (threadIdx.x == 3)
        __syncthreads();
    else
        __syncwarp();
}

KERNEL(64, 1) leave_early(ARGS args)
{
    if (threadIdx.x >= 32) return;
    __syncthreads();
}

KERNEL(32, 1) lonely_lane(ARGS args)
{
    if (threadIdx.x == 0) ((uint32_t *)args.out)[0] = __ballot_sync(0xffffffffu, 1);
}

KERNEL(32, 1) odd_address(ARGS args)
{
    copy_async(shared_memory(), (const char *)args.in + 8, true);
}

KERNEL(32, 1) foreign_memory(ARGS args)
{
    copy_async(shared_memory(), (const char *)args.in + args.number, true);
}

KERNEL(32, 1) beyond_shared(ARGS args)
{
    copy_async(shared_memory() + args.number, args.in, false);
}

KERNEL(32, 1) write_shared(ARGS args) { shared_memory()[args.number] = 1; }

/* Number `number` of 64 bytes. */
KERNEL(32, 1) write_out(ARGS args) { ((char *)args.out)[args.number] = 1; }

KERNEL(32, 1) odd_vector(ARGS args)
{
    *(float2 *)((char *)args.out + args.number) = make_float2(1, 2);
}

/* The first warp reads what the second one writes. */
KERNEL(64, 1) race(ARGS args)
{
    uint32_t *const cells = (uint32_t *)shared_memory();
    cells[threadIdx.x] = threadIdx.x;
    __syncwarp();
    ((uint32_t *)args.out)[threadIdx.x] = cells[63 - threadIdx.x];
}

/* A lane reads what the next one writes, in either direction. */
KERNEL(32, 1) race_in_warp(ARGS args)
{
    uint32_t *const cells = (uint32_t *)shared_memory();
    cells[threadIdx.x] = threadIdx.x;
    ((uint32_t *)args.out)[threadIdx.x] = cells[31 - threadIdx.x];
}

/* Overwrites with a copy what others still read. */
KERNEL(64, 1) overwrite(ARGS args)
{
    uint32_t *const cells = (uint32_t *)shared_memory();
    cells[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x < 16) {
        copy_async(cells + 4 * threadIdx.x, (const char *)args.in + 16 * threadIdx.x, true);
        copy_commit();
    }
    ((uint32_t *)args.out)[threadIdx.x] = cells[63 - threadIdx.x];
    copy_wait<0>();
}
