/* The entry points of the CUDA driver, NVRTC and NCCL that the library calls, declared here so that
 * it builds without their headers. tests/test_cuda_api.c compares them where those exist.
 * An enum of theirs without negative values is compatible with unsigned int. */
#ifndef GDPI_CUDA_API_H
#define GDPI_CUDA_API_H

typedef int gdpi_cu_device;

enum {
    GDPI_CU_SUCCESS = 0,
    GDPI_CU_ERROR_NO_DEVICE = 100,
    GDPI_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    GDPI_NVRTC_SUCCESS = 0,
    GDPI_NCCL_SUCCESS = 0
};

/** X(name, result, parameters) */
#define GDPI_CU_FUNCTIONS(X)                                                      \
    X(cuInit, unsigned, (unsigned flags))                                         \
    X(cuDriverGetVersion, unsigned, (int *version))                               \
    X(cuDeviceGetCount, unsigned, (int *count))                                   \
    X(cuDeviceGet, unsigned, (gdpi_cu_device * device, int ordinal))              \
    X(cuDeviceGetName, unsigned, (char *name, int length, gdpi_cu_device device)) \
    X(cuDeviceGetAttribute, unsigned, (int *value, unsigned attribute, gdpi_cu_device device))

#define GDPI_NVRTC_FUNCTIONS(X)                          \
    X(nvrtcVersion, unsigned, (int *major, int *minor))  \
    X(nvrtcGetNumSupportedArchs, unsigned, (int *count)) \
    X(nvrtcGetSupportedArchs, unsigned, (int *architectures))

#define GDPI_NCCL_FUNCTIONS(X) X(ncclGetVersion, unsigned, (int *version))

#define GDPI_DECLARE_FUNCTION(name, result, parameters) \
    typedef result gdpi_##name##_function parameters;
GDPI_CU_FUNCTIONS(GDPI_DECLARE_FUNCTION)
GDPI_NVRTC_FUNCTIONS(GDPI_DECLARE_FUNCTION)
GDPI_NCCL_FUNCTIONS(GDPI_DECLARE_FUNCTION)
#undef GDPI_DECLARE_FUNCTION

/** A library's functions by name. */
#define GDPI_FUNCTION_MEMBER(name, result, parameters) gdpi_##name##_function *name;
typedef struct gdpi_cu_api {
    GDPI_CU_FUNCTIONS(GDPI_FUNCTION_MEMBER)
} gdpi_cu_api;
typedef struct gdpi_nvrtc_api {
    GDPI_NVRTC_FUNCTIONS(GDPI_FUNCTION_MEMBER)
} gdpi_nvrtc_api;
typedef struct gdpi_nccl_api {
    GDPI_NCCL_FUNCTIONS(GDPI_FUNCTION_MEMBER)
} gdpi_nccl_api;
#undef GDPI_FUNCTION_MEMBER

#endif
