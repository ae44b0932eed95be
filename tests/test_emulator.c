/* timeout: 300 */
/* The CUDA that tests run kernels on (tests/emulator) does what the PTX ISA says, and finds defects
 * that a processor's order of execution would hide. GDP_TEST_INTRINSICS, a file with the text of
 * templates/cuda/intrinsics.ct, runs the same kernels on the machine's own GPU instead. */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "cuda_api.h"
#include "internal.h"

#define LIBRARIES GDP_BINARY_DIR "/tests/emulator/"

typedef struct kernel_args {
    gdpi_cu_address in, out;
    int64_t number;
} kernel_args;

static gdpi_cu_api cuda;
static gdpi_nvrtc_api nvrtc;
static gdpi_cu_context primary;
static gdpi_cu_module module;
static const char *intrinsics;

enum { SIZE = 1 << 20 };
static uint32_t *in, *out; /* of any type */

#define MUST(call) assert_int_equal(call, 0)

/* ---- setup ---- */

static void *open_library(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", intrinsics ? "" : LIBRARIES, name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) printf("%s\n", dlerror());
    return library;
}

static bool open_api(void)
{
    void *driver = open_library("libcuda.so.1"), *compiler = open_library("libnvrtc.so.13");
    if (!driver || !compiler) return false;
#define TAKE(library, api, name) \
    *(void **)(&api.name) = dlsym(library, #name), assert_non_null(*(void **)(&api.name));
#define TAKE_CU(name, result, parameters) TAKE(driver, cuda, name)
#define TAKE_NVRTC(name, result, parameters) TAKE(compiler, nvrtc, name)
    GDPI_CU_FUNCTIONS(TAKE_CU)
    GDPI_NVRTC_FUNCTIONS(TAKE_NVRTC)
    return true;
}

static size_t append_file(char *text, size_t at, size_t size, const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    at += fread(text + at, 1, size - at - 1, file);
    text[at] = 0;
    fclose(file);
    return at;
}

/* The program's binary; nothing where it does not compile. */
static gdpi_blob compile(void)
{
    static char source[1 << 17];
    char log[1 << 14] = "", arch[64];
    int major = 0, minor = 0;
    size_t size = 0;
    gdpi_nvrtc_program program;
    const size_t at =
        append_file(source, 0, sizeof source,
                    intrinsics ? intrinsics : GDP_SOURCE_DIR "/tests/emulator/cuda/intrinsics.ct");
    append_file(source, at, sizeof source, GDP_SOURCE_DIR "/tests/emulator/kernels.cu");
    MUST(cuda.cuDeviceGetAttribute(&major, GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    MUST(cuda.cuDeviceGetAttribute(&minor, GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d%d", major, minor);
    const char *const options[] = { arch, "-std=c++17", "-default-device" };
    MUST(nvrtc.nvrtcCreateProgram(&program, source, "kernels.cu", 0, NULL, NULL));
    const unsigned error = nvrtc.nvrtcCompileProgram(program, 3, options);
    MUST(nvrtc.nvrtcGetProgramLogSize(program, &size));
    if (size < sizeof log) MUST(nvrtc.nvrtcGetProgramLog(program, log));
    if (error) printf("%s\n", log);
    assert_int_equal(error, 0);
    MUST(nvrtc.nvrtcGetCUBINSize(program, &size));
    void *binary = malloc(size);
    MUST(nvrtc.nvrtcGetCUBIN(program, binary));
    MUST(nvrtc.nvrtcDestroyProgram(&program));
    return (gdpi_blob){ binary, size };
}

static int set_up(void **state)
{
    (void)state;
    intrinsics = getenv("GDP_TEST_INTRINSICS");
    in = calloc(2, SIZE);
    assert_non_null(in);
    out = in + SIZE / 4;
    if (!open_api()) return 0; /* each test skips */
    MUST(cuda.cuInit(0));
    MUST(cuda.cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuda.cuCtxPushCurrent_v2(primary));
    const gdpi_blob binary = compile();
    gdpi_cubin_usage usage;
    MUST(cuda.cuModuleLoadData(&module, binary.data));
    MUST(gdpi_cubin_read(&binary, "product_bf16", &usage)); /* it looks like a cubin */
    assert_in_range(usage.registers, 1, 255);
    free(binary.data);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(in);
    if (!module) return 0;
    MUST(cuda.cuModuleUnload(module));
    MUST(cuda.cuCtxPopCurrent_v2(&primary));
    MUST(cuda.cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}

static void need_cuda(void)
{
    if (!module) skip();
}

static void need_emulator(void)
{
    need_cuda();
    if (intrinsics) skip();
}

/* ---- running a kernel ---- */

typedef struct shape {
    unsigned grid[3], block[3];
} shape;

/* With `in_bytes` of in and `out_bytes` of out, which it reads and writes. */
static unsigned run_shape(const char *name, shape as, size_t in_bytes, size_t out_bytes,
                          int64_t number)
{
    gdpi_cu_function function;
    kernel_args args = { 0, 0, number };
    void *parameters[] = { &args };
    MUST(cuda.cuModuleGetFunction(&function, module, name));
    MUST(cuda.cuMemAlloc_v2(&args.in, in_bytes));
    MUST(cuda.cuMemAlloc_v2(&args.out, out_bytes));
    MUST(cuda.cuMemcpy(args.in, (gdpi_cu_address)(uintptr_t)in, in_bytes));
    MUST(cuda.cuMemcpy(args.out, (gdpi_cu_address)(uintptr_t)out, out_bytes));
    const unsigned error =
        cuda.cuLaunchKernel(function, as.grid[0], as.grid[1], as.grid[2], as.block[0], as.block[1],
                            as.block[2], 4096, NULL, parameters, NULL);
    MUST(cuda.cuStreamSynchronize(NULL));
    MUST(cuda.cuMemcpy((gdpi_cu_address)(uintptr_t)out, args.out, out_bytes));
    MUST(cuda.cuMemFree_v2(args.in));
    MUST(cuda.cuMemFree_v2(args.out));
    return error;
}

static void run(const char *name, unsigned threads, size_t in_bytes, size_t out_bytes,
                int64_t number)
{
    const shape as = { { 1, 1, 1 }, { threads, 1, 1 } };
    MUST(run_shape(name, as, in_bytes, out_bytes, number));
}

static uint32_t random_state = 1;
static uint32_t random_bits(void)
{
    random_state = random_state * 1664525 + 1013904223;
    return random_state >> 8;
}
static float random_float(void) { return (float)(random_bits() & 0xffff) / 0x8000 - 1; }

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- matrices ---- */

static void test_load(void **state)
{
    (void)state;
    need_cuda();
    uint16_t *m = (uint16_t *)in; /* matrix, row, column as three digits */
    for (int i = 0; i < 256; i++) m[i] = (uint16_t)(i / 64 * 100 + i / 8 % 8 * 10 + i % 8);
    run("load_both", 32, 512, 32 * 32, 0);
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t g = l / 4, q = l % 4, first = 100 * i + 10 * g + 2 * q;
            const uint32_t turned = 100 * i + 20 * q + g;
            assert_int_equal(out[8 * l + i], first | (first + 1) << 16);
            assert_int_equal(out[8 * l + 4 + i], turned | (turned + 10) << 16);
        }
}

static void test_transpose(void **state)
{
    (void)state;
    need_cuda();
    uint16_t *m = (uint16_t *)in;
    for (int i = 0; i < 64; i++) m[i] = (uint16_t)(i / 8 * 10 + i % 8);
    run("transpose", 32, 128, 128, 0);
    for (uint32_t l = 0; l < 32; l++) {
        const uint32_t turned = l % 4 * 20 + l / 4;
        assert_int_equal(out[l], turned | (turned + 10) << 16);
    }
}

static uint16_t narrow(float x, bool bf16)
{
    uint16_t y;
    const _Float16 half = (_Float16)x;
    if (bf16) return (uint16_t)(bits_of(x) >> 16);
    memcpy(&y, &half, sizeof y);
    return y;
}

static float widen(uint16_t x, bool bf16)
{
    _Float16 half;
    if (bf16) return float_of((uint32_t)x << 16);
    memcpy(&half, &x, sizeof half);
    return (float)half;
}

static void check_product(const char *name, const float *a, const float *b, int depth)
{
    float *const d = (float *)out, before[128];
    for (int i = 0; i < 128; i++) before[i] = d[i] = random_float();
    run(name, 32, 768, 512, 0);
    for (int i = 0; i < 128; i++) {
        double sum = before[i];
        for (int k = 0; k < depth; k++)
            sum += (double)a[i / 8 * depth + k] * (double)b[8 * k + i % 8];
        if (fabs(d[i] - sum) > 1e-5)
            fail_msg("%s: (%d, %d) is %g, not %g", name, i / 8, i % 8, d[i], sum);
    }
}

static void test_products(void **state)
{
    (void)state;
    need_cuda();
    float a[256], b[128];
    for (int type = 0; type < 2; type++) {
        uint16_t *narrow_in = (uint16_t *)in;
        for (int i = 0; i < 256 + 128; i++) {
            narrow_in[i] = narrow(random_float(), type == 0);
            *(i < 256 ? &a[i] : &b[i - 256]) = widen(narrow_in[i], type == 0);
        }
        check_product(type == 0 ? "product_bf16" : "product_f16", a, b, 16);
    }
    for (int i = 0; i < 128 + 64; i++) {
        in[i] = bits_of(random_float() * 1.2345f);
        *(i < 128 ? &a[i] : &b[i - 128]) = float_of(in[i] & 0xffffe000);
    }
    check_product("product_tf32", a, b, 8);
}

/* Operands that need every rule of the types: infinity, the least subnormals. */
static void test_products_of_extremes(void **state)
{
    (void)state;
    need_cuda();
    static const uint16_t factors[][2] = {
        { 0x0001, 0x7bff },
        { 0x7c00, 0x3c00 },
        { 0x83ff, 0x7bff },
    };
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        memset(in, 0, 768);
        memset(out, 0, 512);
        ((uint16_t *)in)[0] = factors[i][0];
        ((uint16_t *)in)[256] = factors[i][1];
        run("product_f16", 32, 768, 512, 0);
        const float want = widen(factors[i][0], false) * widen(factors[i][1], false);
        assert_int_equal(out[0], bits_of(want));
    }
}

/* ---- copies ---- */

static void test_copies(void **state)
{
    (void)state;
    need_cuda();
    for (uint32_t i = 0; i < 768; i++) in[i] = i + 1;
    run("copy_all", 64, 3072, 3072, 0);
    for (uint32_t i = 0; i < 768; i++) assert_int_equal(out[i], i / 256 == 1 ? 0 : i + 1);
}

static void test_missing_wait(void **state)
{
    (void)state;
    need_emulator();
    run("copy_early", 64, 3072, 3072, 0);
    for (uint32_t i = 0; i < 768; i++)
        assert_int_equal(out[i], i / 256 == 2 ? 0xffffffff : i / 256 == 1 ? 0 : i + 1);
}

/* ---- lanes ---- */

static void test_exchange(void **state)
{
    (void)state;
    need_cuda();
    run("exchange", 32, 4, 32 * 64, 0);
    for (uint32_t l = 0; l < 32; l++) {
        const uint32_t want[16] = {
            5,
            l / 8 * 8 + (l + 3) % 8,
            l ^ 17,
            l < 3 ? l : l - 3,
            l % 16 > 12 ? l : l + 3,
            bits_of((float)(l ^ 1)),
            1,
            0x49249249,
            1,
            0,
            l & 1 ? 0xaaaa0000 : l ^ 2,
            l % 4 == 0 ? l : l - 1,
            1,
            0,
            10,
            (l ^ 9) > (l | 3) ? l : l ^ 9,
        };
        for (int i = 0; i < 16; i++)
            if (out[16 * l + i] != want[i])
                fail_msg("lane %u, word %d: %08x, not %08x", l, i, out[16 * l + i], want[i]);
    }
}

static void test_sum(void **state)
{
    (void)state;
    need_cuda();
    for (int i = 0; i < 256; i++) ((float *)in)[i] = (float)i;
    run("add_up", 256, 1024, 4, 0);
    assert_true(((float *)out)[0] == 255 * 128);
}

static void test_places(void **state)
{
    (void)state;
    need_cuda();
    const shape as = { { 3, 2, 2 }, { 4, 3, 2 } };
    MUST(run_shape("places", as, 4, sizeof(uint32_t) * 24 * 12, 0));
    for (uint32_t i = 0; i < 24 * 12; i++) {
        const uint32_t t = i % 24, b = i / 24;
        assert_int_equal(out[i], t % 4 + t / 4 % 3 * 10 + t / 12 * 100 + b % 3 * 1000 +
                                     b / 3 % 2 * 10000 + b / 6 * 100000);
    }
}

/* ---- numbers ---- */

static uint32_t round_bf16(float x)
{
    const uint32_t bits = bits_of(x);
    if (isnan(x)) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static uint32_t round_f16(float x) { return isnan(x) ? 0x7fff : narrow(x, false); }

static void test_conversions(void **state)
{
    (void)state;
    need_cuda();
    enum { COUNT = 20000 };
    static const uint32_t special[] = {
        0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0x7f7fffff,
        0x00000001, 0x33000000, 0x33000001, 0x32ffffff, 0x337fffff, 0x33800000, 0x33c00000,
        0x387fc000, 0x387fe000, 0x387fffff, 0x38800000, 0x477fe000, 0x477fefff, 0x477ff000,
        0x3f808000, 0x3f818000, 0x3f801000, 0x3f803000, 0x007fffff, 0x7f7f8000, 0xc2fc0000,
    };
    const size_t specials = sizeof special / sizeof *special;
    for (size_t i = 0; i < COUNT; i++) {
        const float near = ldexpf(random_float(), (int)(i % 44) - 27);
        in[i] = i < specials ? special[i]
                : i & 1      ? random_bits() << 8 ^ random_bits()
                             : bits_of(near);
    }
    MUST(run_shape("convert", (shape){ { 2, 1, 1 }, { 128, 1, 1 } }, 4 * COUNT,
                   4 * (4 * COUNT + 65536), COUNT));
    for (size_t i = 0; i < COUNT; i++) {
        const float x = float_of(in[i]);
        const uint32_t *got = out + 4 * i;
        if (got[0] != (round_bf16(x) | round_bf16(2 * x) << 16) ||
            got[1] != (round_f16(x) | round_f16(2 * x) << 16) || got[2] != round_f16(x))
            fail_msg("%08x: %08x %08x %04x", in[i], got[0], got[1], got[2]);
        const float want = exp2f(x), power = float_of(got[3]);
        const bool tiny = want < 0x1p-126f && power < 0x1.001p-126f;
        const bool same = isnan(x) ? isnan(power) : isinf(want) ? isinf(power) : false;
        if (!same && !tiny && !(fabsf(power - want) <= 1e-6f * want))
            fail_msg("2^%g is %g, not %g", x, power, want);
    }
    for (uint32_t i = 0; i < 65536; i++) {
        const float want = widen((uint16_t)i, false), got = float_of(out[4 * COUNT + i]);
        if (isnan(want) ? !isnan(got) : bits_of(want) != bits_of(got))
            fail_msg("float16 %04x is %g, not %g", i, got, want);
    }
}

/* ---- defects ---- */

static int volatile volatile_zero;

/* The signal that ends a process that runs the kernel, and what it says before. */
static int signal_of(const char *name, int64_t number, char *said, size_t size)
{
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        for (int s = 1; s < 32; s++) signal(s, SIG_DFL);
        dup2(ends[1], 2);
        run(name, strcmp(name, "leave_early") == 0 ? 64 : 32, 64, 64, number);
        _exit(volatile_zero);
    }
    close(ends[1]);
    size_t at = 0;
    for (ssize_t got; at < size - 1 && (got = read(ends[0], said + at, size - 1 - at)) > 0;)
        at += (size_t)got;
    said[at] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_defects(void **state)
{
    (void)state;
    need_emulator();
    static const struct {
        const char *kernel;
        int64_t number;
        const char *said; /* NULL: nothing is wrong */
    } defects[] = {
        { "diverge", 0, "diverged" },
        { "diverge_in_place", 0, "diverged" },
        { "barrier_in_warp", 0, "diverged" },
        { "leave_early", 0, "__syncthreads" },
        { "lonely_lane", 0, "its end" },
        { "odd_address", 0, "multiple of 16" },
        { "foreign_memory", 48, NULL },
        { "foreign_memory", 64, "not in the device's memory" },
        { "foreign_memory", -16, "not in the device's memory" },
        { "beyond_shared", 4080, NULL },
        { "beyond_shared", 4096, "not in shared memory" },
        { "beyond_shared", -16, "not in shared memory" },
        { "write_shared", 4095, NULL },
        { "write_shared", 4096, "signal 11" },
        { "write_shared", -1, "shared memory was written" },
        { "write_out", 63, NULL },
        { "write_out", 64, "was written" },
        { "write_out", -1, "was written" },
        { "write_out", 256, "signal 11" },
        { "odd_vector", 8, NULL },
        { "odd_vector", 4, "signal 4" },
    };
    for (size_t i = 0; i < sizeof defects / sizeof *defects; i++) {
        char said[4096];
        const int number = signal_of(defects[i].kernel, defects[i].number, said, sizeof said);
        const bool found = defects[i].said && number && strstr(said, defects[i].said);
        if (defects[i].said ? !found : number != 0)
            fail_msg("%s(%lld): signal %d, '%s'", defects[i].kernel, (long long)defects[i].number,
                     number, said);
    }
}

static bool races(const char *name, unsigned count, const char *order)
{
    setenv("GDP_EMULATED_ORDER", order, 1);
    run(name, count, 1024, 4 * count, 0);
    unsetenv("GDP_EMULATED_ORDER");
    for (unsigned i = 0; i < count; i++)
        if (out[i] != count - 1 - i) return true;
    return false;
}

static void test_races(void **state)
{
    (void)state;
    need_emulator();
    memset(in, 0, 1024);
    static const char *const orders[] = { "0", "1", "2", "77" };
    for (int i = 0; i < 4; i++) {
        assert_true(races("race", 64, orders[i]));
        assert_true(races("race_in_warp", 32, orders[i]));
        assert_true(races("overwrite", 64, orders[i]));
    }
}

/* Correct kernels are correct in any order. */
static void test_orders(void **state)
{
    need_emulator();
    static const char *const orders[] = { "1", "2", "3", "12345" };
    for (int i = 0; i < 4; i++) {
        setenv("GDP_EMULATED_ORDER", orders[i], 1);
        test_load(state);
        test_products(state);
        test_copies(state);
        test_exchange(state);
        test_sum(state);
    }
    unsetenv("GDP_EMULATED_ORDER");
}

/* ---- the driver ---- */

static void test_refusals(void **state)
{
    (void)state;
    need_emulator();
    gdpi_cu_function function;
    gdpi_cu_address address = 0;
    kernel_args args = { 0, 0, 0 };
    void *parameters[] = { &args };
    assert_int_not_equal(cuda.cuModuleGetFunction(&function, module, "none"), 0);
    MUST(cuda.cuModuleGetFunction(&function, module, "write_shared"));
#define LAUNCH(threads, shared) \
    cuda.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, shared, NULL, parameters, NULL)
    assert_int_not_equal(LAUNCH(2048, 64), 0);
    assert_int_not_equal(LAUNCH(32, 48 * 1024 + 1), 0);
    const unsigned attribute = GDPI_CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    assert_int_not_equal(cuda.cuFuncSetAttribute(function, attribute, 1 << 20), 0);
    MUST(cuda.cuFuncSetAttribute(function, attribute, 96 * 1024));
    MUST(LAUNCH(32, 96 * 1024));
    MUST(cuda.cuMemAlloc_v2(&address, 100));
    assert_int_not_equal(cuda.cuMemFree_v2(address + 1), 0);
    assert_int_not_equal(cuda.cuMemsetD8_v2(address, 0, 101), 0);
    MUST(cuda.cuMemsetD8_v2(address, 0, 100));
    MUST(cuda.cuMemFree_v2(address));
    assert_int_not_equal(cuda.cuMemFree_v2(address), 0);
    MUST(cuda.cuCtxPopCurrent_v2(&primary));
    assert_int_not_equal(cuda.cuMemAlloc_v2(&address, 100), 0); /* no context is current */
    MUST(cuda.cuCtxPushCurrent_v2(primary));
}

/* Nor may a kernel get the program's. */
static void test_foreign_argument(void **state)
{
    (void)state;
    need_emulator();
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        gdpi_cu_function function;
        kernel_args args = { 0, (gdpi_cu_address)(uintptr_t)out, 0 };
        void *parameters[] = { &args };
        signal(SIGABRT, SIG_DFL);
        if (cuda.cuModuleGetFunction(&function, module, "write_out") != 0) _exit(1);
        cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* The program cannot reach the device's memory. */
static void test_host_access(void **state)
{
    (void)state;
    need_emulator();
    gdpi_cu_address address = 0;
    int status = 0;
    MUST(cuda.cuMemAlloc_v2(&address, 100));
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile char *)(uintptr_t)address);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 255); /* what fresh memory holds */
    MUST(cuda.cuMemFree_v2(address));
}

static void test_compiler(void **state)
{
    (void)state;
    need_emulator();
    gdpi_nvrtc_program program;
    char log[1 << 14];
    size_t size = 0;
    const char *const option = "--gpu-architecture=sm_90", *const wrong = "--none";
    MUST(nvrtc.nvrtcCreateProgram(&program, "int x = ;\n", "wrong.cu", 0, NULL, NULL));
    assert_int_equal(nvrtc.nvrtcCompileProgram(program, 1, &option), GDPI_NVRTC_ERROR_COMPILATION);
    MUST(nvrtc.nvrtcGetProgramLogSize(program, &size));
    assert_true(size > 1 && size < sizeof log);
    MUST(nvrtc.nvrtcGetProgramLog(program, log));
    assert_non_null(strstr(log, "error"));
    assert_int_not_equal(nvrtc.nvrtcCompileProgram(program, 1, &wrong), 0);
    MUST(nvrtc.nvrtcDestroyProgram(&program));
}

static void test_speed(void **state)
{
    (void)state;
    need_cuda();
    gdpi_cu_event from, to;
    float milliseconds = 0;
    memset(in, 0, 512);
    MUST(cuda.cuEventCreate(&from, 0));
    MUST(cuda.cuEventCreate(&to, 0));
    MUST(cuda.cuEventRecord(from, NULL));
    run("work", 256, 512, 1024, 250);
    MUST(cuda.cuEventRecord(to, NULL));
    MUST(cuda.cuEventSynchronize(to));
    MUST(cuda.cuEventElapsedTime(&milliseconds, from, to));
    MUST(cuda.cuEventDestroy_v2(from));
    MUST(cuda.cuEventDestroy_v2(to));
    printf("1000 operations of 8 warps: %.2f ms\n", milliseconds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_products_of_extremes),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_missing_wait),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_defects),
        cmocka_unit_test(test_races),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_host_access),
        cmocka_unit_test(test_compiler),
        cmocka_unit_test(test_foreign_argument),
        cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
