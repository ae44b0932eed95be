/* Our declarations of CUDA, NVRTC and NCCL (cuda_api.h) are theirs, where their headers exist. */
#include "kernel_fixture.h"

#include "cuda_api.h"

#ifdef HAVE_CUDA_H
#include <cuda.h>
#endif
#ifdef HAVE_NVRTC_H
#include <nvrtc.h>
#endif
#ifdef HAVE_NCCL_H
#include <nccl.h>
#endif

#define SAME(name, result, parameters) \
    _Static_assert(__builtin_types_compatible_p(gdpi_##name##_function, __typeof__(name)), #name);
#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs);

#ifdef HAVE_CUDA_H
GDPI_CU_FUNCTIONS(SAME)
EQUAL(GDPI_CU_SUCCESS, CUDA_SUCCESS)
EQUAL(GDPI_CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)
EQUAL(GDPI_CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE)
EQUAL(GDPI_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
EQUAL(GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
EQUAL(GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
EQUAL(GDPI_CU_ATTRIBUTE_SHARED_MEMORY_PER_MULTIPROCESSOR,
      CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)
EQUAL(GDPI_CU_ATTRIBUTE_SHARED_MEMORY_PER_BLOCK_OPTIN,
      CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
EQUAL(GDPI_CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES,
      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
#endif
#ifdef HAVE_NVRTC_H
GDPI_NVRTC_FUNCTIONS(SAME)
EQUAL(GDPI_NVRTC_SUCCESS, NVRTC_SUCCESS)
EQUAL(GDPI_NVRTC_ERROR_OUT_OF_MEMORY, NVRTC_ERROR_OUT_OF_MEMORY)
EQUAL(GDPI_NVRTC_ERROR_COMPILATION, NVRTC_ERROR_COMPILATION)
#endif
#ifdef HAVE_NCCL_H
GDPI_NCCL_FUNCTIONS(SAME)
EQUAL(GDPI_NCCL_SUCCESS, ncclSuccess)
#endif

/* The compiler has done the work; this reports what it could see. */
static void report(const char *header, int found)
{
    if (found) return;
    printf("skipped: %s is not here\n", header);
    skip();
}

static void test_cuda(void **state)
{
    (void)state;
#ifdef HAVE_CUDA_H
    report("cuda.h", 1);
#else
    report("cuda.h", 0);
#endif
}

static void test_nvrtc(void **state)
{
    (void)state;
#ifdef HAVE_NVRTC_H
    report("nvrtc.h", 1);
#else
    report("nvrtc.h", 0);
#endif
}

static void test_nccl(void **state)
{
    (void)state;
#ifdef HAVE_NCCL_H
    report("nccl.h", 1);
#else
    report("nccl.h", 0);
#endif
}

/* Whatever is here, there is a sentence about it. */
static void test_sentences(void **state)
{
    (void)state;
    counter memory = { .fail_at = 0 };
    const gdpi_allocator allocator = { count_allocate, count_release, &memory };
    char *texts[3] = { NULL, NULL, NULL };
    for (long at = 1; at <= 3; at++) {
        memory.calls = 0;
        memory.fail_at = at;
        assert_int_equal(
            gdpi_describe_libraries(&allocator, "libnvrtc.so.13", &texts[0], &texts[1], &texts[2]),
            GDP_STATUS_OUT_OF_MEMORY);
        assert_int_equal(memory.live, 0);
    }
    memory.fail_at = 0;
    assert_int_equal(
        gdpi_describe_libraries(&allocator, "libnvrtc.so.13", &texts[0], &texts[1], &texts[2]),
        GDP_OK);
    const char *const names[] = { "cuda", "nvrtc", "nccl" };
    for (int i = 0; i < 3; i++) {
        assert_true(strlen(texts[i]) > 5);
        printf("%s: %s\n", names[i], texts[i]);
        gdpi_release(&allocator, texts[i]);
    }
    assert_int_equal(memory.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda),
        cmocka_unit_test(test_nvrtc),
        cmocka_unit_test(test_nccl),
        cmocka_unit_test(test_sentences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
