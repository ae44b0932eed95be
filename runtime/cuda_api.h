/* The entry points of the CUDA driver, NVRTC and NCCL that the library calls, declared here so that
 * it builds without their headers. tests/test_cuda_api.c compares them where those exist.
 * An enum of theirs without negative values is compatible with unsigned int. */
#ifndef GDPI_CUDA_API_H
#define GDPI_CUDA_API_H

#include <stddef.h>

typedef int gdpi_cu_device;
typedef unsigned long long gdpi_cu_address;
typedef struct CUctx_st *gdpi_cu_context;
typedef struct CUmod_st *gdpi_cu_module;
typedef struct CUfunc_st *gdpi_cu_function;
typedef struct CUstream_st *gdpi_cu_stream;
typedef struct CUevent_st *gdpi_cu_event;
typedef struct _nvrtcProgram *gdpi_nvrtc_program;

enum {
    GDPI_CU_SUCCESS = 0,
    GDPI_CU_ERROR_OUT_OF_MEMORY = 2,
    GDPI_CU_ERROR_NO_DEVICE = 100,
    GDPI_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    GDPI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    GDPI_CU_ATTRIBUTE_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    GDPI_CU_ATTRIBUTE_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    GDPI_CU_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    GDPI_NVRTC_SUCCESS = 0,
    GDPI_NVRTC_ERROR_OUT_OF_MEMORY = 1,
    GDPI_NVRTC_ERROR_COMPILATION = 6,
    GDPI_NCCL_SUCCESS = 0
};

/** X(name, result, parameters) */
#define GDPI_CU_FUNCTIONS(X)                                                                    \
    X(cuInit, unsigned, (unsigned flags))                                                       \
    X(cuDriverGetVersion, unsigned, (int *version))                                             \
    X(cuGetErrorString, unsigned, (unsigned error, const char **text))                          \
    X(cuDeviceGetCount, unsigned, (int *count))                                                 \
    X(cuDeviceGet, unsigned, (gdpi_cu_device * device, int ordinal))                            \
    X(cuDeviceGetName, unsigned, (char *name, int length, gdpi_cu_device device))               \
    X(cuDeviceGetAttribute, unsigned, (int *value, unsigned attribute, gdpi_cu_device device))  \
    X(cuDevicePrimaryCtxRetain, unsigned, (gdpi_cu_context * context, gdpi_cu_device device))   \
    X(cuDevicePrimaryCtxRelease_v2, unsigned, (gdpi_cu_device device))                          \
    X(cuCtxGetCurrent, unsigned, (gdpi_cu_context * context))                                   \
    X(cuCtxGetDevice, unsigned, (gdpi_cu_device * device))                                      \
    X(cuCtxPushCurrent_v2, unsigned, (gdpi_cu_context context))                                 \
    X(cuCtxPopCurrent_v2, unsigned, (gdpi_cu_context * context))                                \
    X(cuModuleLoadData, unsigned, (gdpi_cu_module * module, const void *image))                 \
    X(cuModuleUnload, unsigned, (gdpi_cu_module module))                                        \
    X(cuModuleGetFunction, unsigned,                                                            \
      (gdpi_cu_function * function, gdpi_cu_module module, const char *name))                   \
    X(cuFuncSetAttribute, unsigned, (gdpi_cu_function function, unsigned attribute, int value)) \
    X(cuLaunchKernel, unsigned,                                                                 \
      (gdpi_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,            \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,             \
       gdpi_cu_stream stream, void **parameters, void **extra))                                 \
    X(cuMemAlloc_v2, unsigned, (gdpi_cu_address * address, size_t bytes))                       \
    X(cuMemFree_v2, unsigned, (gdpi_cu_address address))                                        \
    X(cuMemcpy, unsigned, (gdpi_cu_address to, gdpi_cu_address from, size_t bytes))             \
    X(cuMemcpyAsync, unsigned,                                                                  \
      (gdpi_cu_address to, gdpi_cu_address from, size_t bytes, gdpi_cu_stream stream))          \
    X(cuMemsetD8_v2, unsigned, (gdpi_cu_address address, unsigned char byte, size_t count))     \
    X(cuStreamSynchronize, unsigned, (gdpi_cu_stream stream))                                   \
    X(cuEventCreate, unsigned, (gdpi_cu_event * event, unsigned flags))                         \
    X(cuEventDestroy_v2, unsigned, (gdpi_cu_event event))                                       \
    X(cuEventRecord, unsigned, (gdpi_cu_event event, gdpi_cu_stream stream))                    \
    X(cuEventSynchronize, unsigned, (gdpi_cu_event event))                                      \
    X(cuEventElapsedTime, unsigned, (float *milliseconds, gdpi_cu_event from, gdpi_cu_event to))

#define GDPI_NVRTC_FUNCTIONS(X)                                                              \
    X(nvrtcVersion, unsigned, (int *major, int *minor))                                      \
    X(nvrtcGetErrorString, const char *, (unsigned error))                                   \
    X(nvrtcGetNumSupportedArchs, unsigned, (int *count))                                     \
    X(nvrtcGetSupportedArchs, unsigned, (int *architectures))                                \
    X(nvrtcCreateProgram, unsigned,                                                          \
      (gdpi_nvrtc_program * program, const char *source, const char *name, int header_count, \
       const char *const *headers, const char *const *include_names))                        \
    X(nvrtcDestroyProgram, unsigned, (gdpi_nvrtc_program * program))                         \
    X(nvrtcCompileProgram, unsigned,                                                         \
      (gdpi_nvrtc_program program, int option_count, const char *const *options))            \
    X(nvrtcGetProgramLogSize, unsigned, (gdpi_nvrtc_program program, size_t * size))         \
    X(nvrtcGetProgramLog, unsigned, (gdpi_nvrtc_program program, char *log))                 \
    X(nvrtcGetCUBINSize, unsigned, (gdpi_nvrtc_program program, size_t * size))              \
    X(nvrtcGetCUBIN, unsigned, (gdpi_nvrtc_program program, char *cubin))

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
