/* Files of named tensors in the safetensors format: 8 bytes that give the header's length, a JSON
 * header, data. */
#ifndef TOOL_SAFETENSORS_H
#define TOOL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gdp.h"

enum {
    ST_MAX_RANK = 8,
    ST_SENTENCE = 512,       /* room that every `error` below must have */
    ST_MAX_HEADER = 16 << 20 /* bytes of a header that is accepted */
};

typedef struct st_tensor {
    const char *name;
    gdp_dtype dtype;
    int rank;
    int64_t shape[ST_MAX_RANK];
    const void *data;
    size_t bytes;
} st_tensor;

typedef struct st_pair {
    const char *key, *value;
} st_pair;

typedef struct st_file {
    st_tensor *tensors; /* in order of their data */
    size_t tensor_count;
    st_pair *metadata; /* in order of their keys */
    size_t metadata_count;
    void *header, *memory, *copies; /* what the pointers above point into */
} st_file;

/** Reads a file's bytes; `data` must outlive *file. False: a sentence is in `error`, and *file
 * is empty. */
bool st_parse(const void *data, size_t size, st_file *file, char *error);

/** The same from a file. Every tensor is aligned for its elements. */
bool st_read(const char *path, st_file *file, char *error);

void st_close(st_file *file);

/** NULL where there is none of that name. */
const st_tensor *st_find(const st_file *file, const char *name);
const char *st_metadata(const st_file *file, const char *key);

/** Writes a file in one step: it appears complete or not at all. */
bool st_write(const char *path, const st_tensor *tensors, size_t tensor_count,
              const st_pair *metadata, size_t metadata_count, char *error);

#endif
