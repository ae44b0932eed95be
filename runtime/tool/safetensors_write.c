/* Writing safetensors: to a temporary name, then renamed. */
#include "safetensors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

__attribute__((format(printf, 2, 3))) static bool refuse(char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, ST_SENTENCE, format, arguments);
    va_end(arguments);
    return false;
}

static const char *dtype_text(gdp_dtype dtype)
{
    switch (dtype) {
    case GDP_DTYPE_F32:
        return "F32";
    case GDP_DTYPE_BF16:
        return "BF16";
    case GDP_DTYPE_F16:
        return "F16";
    case GDP_DTYPE_I32:
        return "I32";
    case GDP_DTYPE_I64:
        return "I64";
    default:
        return NULL;
    }
}

/* Tensors lie in order of falling element sizes, so that all are aligned. */
static size_t size_of_place(int place) { return (size_t)8 >> place; }

static bool add_entry(cJSON *root, const st_tensor *tensor, size_t begin)
{
    cJSON *entry = cJSON_AddObjectToObject(root, tensor->name);
    const char *dtype = dtype_text(tensor->dtype);
    if (!entry || !dtype || !cJSON_AddStringToObject(entry, "dtype", dtype)) return false;
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
    if (!shape) return false;
    for (int i = 0; i < tensor->rank; i++)
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[i])))
            return false;
    cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    return offsets && cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)begin)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(begin + tensor->bytes)));
}

static bool add_metadata(cJSON *root, const st_pair *metadata, size_t count)
{
    if (count == 0) return true;
    cJSON *object = cJSON_AddObjectToObject(root, "__metadata__");
    for (size_t i = 0; object && i < count; i++)
        if (!cJSON_AddStringToObject(object, metadata[i].key, metadata[i].value)) return false;
    return object != NULL;
}

/* The header's JSON, or NULL; released by cJSON_free. */
static char *make_header(const st_tensor *tensors, size_t tensor_count, const st_pair *metadata,
                         size_t metadata_count)
{
    cJSON *root = cJSON_CreateObject();
    bool fine = root && add_metadata(root, metadata, metadata_count);
    size_t begin = 0;
    for (int place = 0; place < 3; place++)
        for (size_t i = 0; fine && i < tensor_count; i++) {
            if (gdp_dtype_size(tensors[i].dtype) != size_of_place(place)) continue;
            fine = add_entry(root, &tensors[i], begin);
            begin += tensors[i].bytes;
        }
    char *header = fine ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return header;
}

static bool write_out(FILE *out, const char *header, const st_tensor *tensors, size_t tensor_count)
{
    unsigned char length[8];
    const size_t bytes = strlen(header), padded = (bytes + 7) / 8 * 8;
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(padded >> 8 * i);
    bool fine = fwrite(length, 1, sizeof length, out) == sizeof length &&
                fwrite(header, 1, bytes, out) == bytes &&
                fwrite("       ", 1, padded - bytes, out) == padded - bytes;
    for (int place = 0; place < 3; place++)
        for (size_t i = 0; fine && i < tensor_count; i++)
            if (gdp_dtype_size(tensors[i].dtype) == size_of_place(place) && tensors[i].bytes > 0)
                fine = fwrite(tensors[i].data, 1, tensors[i].bytes, out) == tensors[i].bytes;
    return fine;
}

/* Opens a new file beside `path`; *name is its name, to be freed. */
static FILE *open_beside(const char *path, char **name)
{
    const size_t room = strlen(path) + 16;
    *name = malloc(room);
    if (!*name) return NULL;
    snprintf(*name, room, "%s.XXXXXX", path);
    const int fd = mkstemp(*name);
    if (fd < 0) return NULL;
    const mode_t mask = umask(0);
    umask(mask);
    FILE *out = fchmod(fd, 0666 & ~mask) == 0 ? fdopen(fd, "wb") : NULL;
    if (!out) {
        close(fd);
        unlink(*name);
    }
    return out;
}

bool st_write(const char *path, const st_tensor *tensors, size_t tensor_count,
              const st_pair *metadata, size_t metadata_count, char *error)
{
    struct stat status;
    char *name = NULL;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return refuse(error, "it is no regular file, and only those are replaced");
    char *header = make_header(tensors, tensor_count, metadata, metadata_count);
    if (!header) return refuse(error, "no memory for its header");
    errno = 0;
    FILE *out = open_beside(path, &name);
    bool fine = out != NULL || refuse(error, "it cannot be created: %s", strerror(errno));
    if (out) {
        fine = write_out(out, header, tensors, tensor_count) && fflush(out) == 0 &&
               fsync(fileno(out)) == 0;
        fine = fclose(out) == 0 && fine;
        fine = fine && rename(name, path) == 0;
        if (!fine) {
            refuse(error, "it cannot be written: %s", strerror(errno));
            unlink(name);
        }
    }
    cJSON_free(header);
    free(name);
    return fine;
}
