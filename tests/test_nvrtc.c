/* CUDA kernels compiled without a device, and what is read from their binaries. Where NVRTC is not,
 * only the reading of what is no cubin is tested. */
#include "kernel_fixture.h"

#include "libraries.h"

static const char SPILLING[] =
    "extern \"C\" __global__ void __launch_bounds__(1024, 2) gdp_spilling(float *p, int n)\n"
    "{\n"
    "    float a[64];\n"
    "    for (int i = 0; i < 64; i++) a[i] = p[i * 1024 + threadIdx.x];\n"
    "    for (int k = 0; k < n; k++)\n"
    "#pragma unroll\n"
    "        for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i + 1) & 63] + 1.0f;\n"
    "    for (int i = 0; i < 64; i++) p[i * 1024 + threadIdx.x] = a[i];\n"
    "}\n"
    "extern \"C\" __global__ void gdp_shared(float *p)\n"
    "{\n"
    "    __shared__ float s[512];\n"
    "    s[threadIdx.x] = p[threadIdx.x];\n"
    "    __syncthreads();\n"
    "    p[threadIdx.x] = s[threadIdx.x ^ 1];\n"
    "}\n";

/* Where it is looked for, and the sentence where it is nowhere. */
static void test_places(void **state)
{
    (void)state;
    counter memory = { .fail_at = 0 };
    const gdpi_allocator allocator = { count_allocate, count_release, &memory };
    setenv("CUDA_HOME", "/some/cuda", 1);
    setenv("VIRTUAL_ENV", "/some/env", 1);
    char *places = gdpi_nvrtc_places(&allocator);
    assert_ptr_equal(strstr(places, "libnvrtc.so.13\nlibnvrtc.so.12\n"), places);
    assert_non_null(strstr(places, "\n/some/cuda/lib64/libnvrtc.so.1[23]\n"));
    assert_non_null(strstr(places, "\n/usr/local/cuda/lib64/libnvrtc.so.1[23]\n"));
    assert_non_null(strstr(places, "\n/some/env/lib/python3*/*-packages/nvidia/cu13/lib/"));
    assert_non_null(strstr(places, "\n/some/env/lib/python3*/*-packages/nvidia/cuda_nvrtc/lib/"));
    gdpi_release(&allocator, places);
    setenv("GDP_NVRTC", "/some/file.so", 1);
    places = gdpi_nvrtc_places(&allocator);
    assert_string_equal(places, "/some/file.so");
    gdpi_release(&allocator, places);
    unsetenv("GDP_NVRTC");
    unsetenv("CUDA_HOME");
    unsetenv("VIRTUAL_ENV");
    memory.fail_at = memory.calls + 1;
    assert_null(gdpi_nvrtc_places(&allocator));
    assert_int_equal(memory.live, 0);

    gdpi_nvrtc_api api;
    char sentence[GDPI_LIBRARY_SENTENCE], many[4000];
    assert_false(gdpi_open_nvrtc("libnone.so.13\n/nowhere/*/libnone.so\n", &api, sentence));
    assert_string_equal(sentence, "not found (looked for libnone.so.13, /nowhere/*/libnone.so; "
                                  "GDP_NVRTC names a file)");
    /* A library, but another one. */
    assert_false(gdpi_open_nvrtc("libc.so.6\n", &api, sentence));
    assert_string_equal(sentence, "unusable (nvrtcVersion is missing)");
    memset(many, 'x', sizeof many - 1);
    memcpy(many, "/nowhere/\n", 10);
    many[sizeof many - 1] = '\0';
    assert_false(gdpi_open_nvrtc(many, &api, sentence));
    assert_true(strlen(sentence) < sizeof sentence);
}

/* NULL, and the test is skipped, where NVRTC is not here or is one that compiles for no device. */
static const gdpi_nvrtc *find_nvrtc(gdp_context *context, gdpi_blob *binary)
{
    const gdpi_nvrtc *nvrtc = NULL;
    gdpi_cubin_usage usage;
    if (gdpi_nvrtc_get(context, &nvrtc)) return NULL;
    if (gdpi_nvrtc_compile(context, nvrtc, "spilling", SPILLING, 90, binary)) return NULL;
    if (gdpi_cubin_read(binary, "gdp_shared", &usage) == GDP_OK) return nvrtc;
    gdpi_release(&context->allocator, binary->data);
    return NULL;
}

static void test_usage(void **state)
{
    (void)state;
    static const int archs[] = { 80, 86, 90, 100, 120 };
    gdp_context *context = open_context(NULL);
    gdpi_blob binary;
    const gdpi_nvrtc *nvrtc = find_nvrtc(context, &binary);
    if (nvrtc) gdpi_release(&context->allocator, binary.data);
    for (size_t i = 0; nvrtc && i < sizeof archs / sizeof *archs; i++) {
        if (gdpi_nvrtc_check_arch(nvrtc, archs[i])) continue;
        if (gdpi_nvrtc_compile(context, nvrtc, "spilling", SPILLING, archs[i], &binary))
            fail_msg("%s", gdp_last_error());
        gdpi_cubin_usage usage;
        assert_int_equal(gdpi_cubin_read(&binary, "gdp_spilling", &usage), GDP_OK);
        assert_in_range(usage.registers, 16, 64);
        assert_in_range(usage.local_bytes, 4, 1024);
        assert_int_equal(usage.shared_bytes, 0);
        assert_int_equal(gdpi_cubin_read(&binary, "gdp_shared", &usage), GDP_OK);
        assert_in_range(usage.registers, 4, 32);
        assert_int_equal(usage.local_bytes, 0);
        assert_int_equal(usage.shared_bytes, 2048);
        assert_int_equal(gdpi_cubin_read(&binary, "gdp_none", &usage), GDP_STATUS_INTERNAL);
        gdpi_release(&context->allocator, binary.data);
    }
    gdp_context_destroy(context);
    if (!nvrtc) skip();
}

/* Cut short or with bytes changed, a cubin is refused or read, and nothing else happens. */
static void test_damaged(void **state)
{
    (void)state;
    gdp_context *context = open_context(NULL);
    gdpi_blob binary;
    gdpi_cubin_usage usage;
    const gdpi_nvrtc *nvrtc = find_nvrtc(context, &binary);
    char text[200] = "no cubin at all";
    const gdpi_blob wrong = { text, sizeof text }, empty = { NULL, 0 };
    assert_int_equal(gdpi_cubin_read(&wrong, "gdp_shared", &usage), GDP_STATUS_INTERNAL);
    assert_non_null(strstr(gdp_last_error(), "gdp_shared"));
    assert_int_equal(gdpi_cubin_read(&empty, "gdp_shared", &usage), GDP_STATUS_INTERNAL);
    for (size_t size = 0; nvrtc && size < binary.size; size += 37) {
        gdpi_blob part = { malloc(size), size }; /* of its own, so that a sanitizer sees its end */
        memcpy(part.data, binary.data, size);
        (void)gdpi_cubin_read(&part, "gdp_spilling", &usage);
        free(part.data);
    }
    unsigned char *bytes = nvrtc ? binary.data : NULL;
    for (size_t i = 0; bytes && i < binary.size; i += i < 64 || i % 5 == 0 ? 1 : 3) {
        const unsigned char before = bytes[i];
        bytes[i] = (unsigned char)(before ^ 0xff);
        (void)gdpi_cubin_read(&binary, "gdp_spilling", &usage);
        bytes[i] = before;
    }
    if (nvrtc) gdpi_release(&context->allocator, binary.data);
    gdp_context_destroy(context);
    if (!nvrtc) skip();
}

static void test_log(void **state)
{
    (void)state;
    gdp_context *context = open_context(NULL);
    gdpi_blob binary;
    const gdpi_nvrtc *nvrtc = find_nvrtc(context, &binary);
    if (nvrtc) {
        gdpi_release(&context->allocator, binary.data);
        assert_int_equal(
            gdpi_nvrtc_compile(context, nvrtc, "wrong",
                               "#line 7 \"cuda/wrong.ct\"\nint f() { return nothing; }\n", 90,
                               &binary),
            GDP_STATUS_COMPILE_FAILED);
        assert_null(binary.data);
        assert_non_null(strstr(gdp_last_error(), "cuda/wrong.ct(7)"));
        assert_non_null(strstr(gdp_last_error(), "nothing"));
        assert_non_null(strstr(gdp_last_error(), gdpi_nvrtc_version(nvrtc)));
        assert_int_equal(gdpi_nvrtc_check_arch(nvrtc, 13), GDP_STATUS_UNSUPPORTED);
        assert_non_null(strstr(gdp_last_error(), "sm_13"));
    }
    gdp_context_destroy(context);
    if (!nvrtc) skip();
}

/* By the tables of the CUDA occupancy calculator. */
static void test_blocks(void **state)
{
    (void)state;
    assert_int_equal(gdpi_cubin_blocks(90, 255, 256, 0), 1);
    assert_int_equal(gdpi_cubin_blocks(90, 128, 256, 0), 2);
    assert_int_equal(gdpi_cubin_blocks(90, 128, 128, 0), 4);
    assert_int_equal(gdpi_cubin_blocks(90, 32, 1024, 0), 2);
    assert_int_equal(gdpi_cubin_blocks(86, 32, 1024, 0), 1);
    assert_int_equal(gdpi_cubin_blocks(90, 16, 32, 0), 32);
    assert_int_equal(gdpi_cubin_blocks(86, 16, 32, 0), 16);
    assert_int_equal(gdpi_cubin_blocks(90, 32, 128, 227 << 10), 1);
    assert_int_equal(gdpi_cubin_blocks(90, 32, 128, 113 << 10), 2);
    assert_int_equal(gdpi_cubin_blocks(80, 32, 128, 81 << 10), 2);
    assert_int_equal(gdpi_cubin_blocks(120, 32, 128, 50 << 10), 1);
    assert_int_equal(gdpi_cubin_blocks(120, 32, 128, 120 << 10), 0);
    assert_int_equal(gdpi_cubin_blocks(90, 32, 0, 0), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_places), TEST(test_usage), TEST(test_damaged), TEST(test_log), TEST(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
