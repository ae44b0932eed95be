/* The CUDA driver and NVRTC, opened at run time, and what the CUDA target knows of its device. Only
 * the files of the CUDA target include this. */
#ifndef GDPI_LIBRARIES_H
#define GDPI_LIBRARIES_H

#include "cuda_api.h"
#include "internal.h"

enum { GDPI_LIBRARY_SENTENCE = 1024 };

/** Opens a library and fills its functions; false, with what was looked for in `sentence`, which has
 * GDPI_LIBRARY_SENTENCE bytes. Nothing is closed again: the driver does not expect it. */
bool gdpi_open_cuda(gdpi_cu_api *api, char *sentence);
/** places: of gdpi_nvrtc_places. */
bool gdpi_open_nvrtc(const char *places, gdpi_nvrtc_api *api, char *sentence);

/** The context's device. Its primary context is current only between enter and leave, so the calling
 * thread's own stays what it was. */
struct gdpi_cuda {
    gdpi_cu_api api;
    gdpi_cu_context primary;
    gdpi_cu_device device;
    int ordinal, arch, processors;
    int shared_per_block;     /**< most bytes that a kernel may ask for */
    int shared_per_processor; /**< bytes of a multiprocessor */
    char name[128];
};

/** A failed call's status, with the driver's sentence. */
gdp_status gdpi_cuda_refusal(const gdpi_cuda *cuda, unsigned error, const char *what);
gdp_status gdpi_cuda_enter(const gdpi_cuda *cuda);
void gdpi_cuda_leave(const gdpi_cuda *cuda);

/** A call of the driver between enter and leave: its status. */
#define GDPI_CU_CALL(cuda, name, ...) gdpi_cuda_check(cuda, (cuda)->api.name(__VA_ARGS__), #name)

static inline gdp_status gdpi_cuda_check(const gdpi_cuda *cuda, unsigned error, const char *what)
{
    return error == GDPI_CU_SUCCESS ? GDP_OK : gdpi_cuda_refusal(cuda, error, what);
}

#endif
