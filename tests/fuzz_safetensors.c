/* Any bytes as a safetensors file: refused with a sentence, or every tensor lies within them. */
/* source: runtime/tool/safetensors.c */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* In a block of its own, so that a sanitizer sees a read behind its end. */
    uint8_t *bytes = malloc(size ? size : 1);
    REQUIRE(bytes);
    if (size) memcpy(bytes, data, size);
    st_file file;
    char error[ST_SENTENCE] = "";
    if (!st_parse(bytes, size, &file, error)) {
        REQUIRE(error[0] && !strchr(error, '\n') && file.tensor_count == 0);
        free(bytes);
        return 0;
    }
    size_t total = 0;
    volatile unsigned sum = 0; /* every byte is read */
    for (size_t i = 0; i < file.tensor_count; i++) {
        const st_tensor *tensor = &file.tensors[i];
        const uint8_t *begin = tensor->data;
        REQUIRE(begin >= bytes && tensor->bytes <= size && begin + tensor->bytes <= bytes + size);
        for (size_t b = 0; b < tensor->bytes; b++) sum = sum + begin[b];
        total += tensor->bytes;
        REQUIRE(st_find(&file, tensor->name) == tensor);
    }
    REQUIRE(total <= size);
    st_close(&file);
    free(bytes);
    return 0;
}
