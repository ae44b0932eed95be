/* Reading safetensors: nothing in a file is believed before it was checked. */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

enum { ALIGNMENT = 64, LENGTH_BYTES = 8 };

static const struct {
    const char *name;
    gdp_dtype dtype;
} dtypes[] = {
    { "F32", GDP_DTYPE_F32 }, { "BF16", GDP_DTYPE_BF16 }, { "F16", GDP_DTYPE_F16 },
    { "I32", GDP_DTYPE_I32 }, { "I64", GDP_DTYPE_I64 },
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

__attribute__((format(printf, 2, 3))) static bool refuse(char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, ST_SENTENCE, format, arguments);
    va_end(arguments);
    return false;
}

/* A text from a file as it may stand in a sentence: short, and nothing that a terminal obeys. */
typedef struct shown {
    char text[48];
} shown;

static shown show(const char *text)
{
    shown s;
    size_t i = 0;
    for (; i < sizeof s.text - 4 && text[i]; i++)
        s.text[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    snprintf(s.text + i, sizeof s.text - i, "%s", text[i] ? "..." : "");
    return s;
}

/* ---- one tensor's entry ---- */

static bool read_count(const cJSON *item, uint64_t *value)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 0x1p53))
        return false;
    *value = (uint64_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}

static bool read_dtype(const cJSON *entry, st_tensor *tensor, char *error)
{
    const shown name = show(tensor->name);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    if (!cJSON_IsString(item))
        return refuse(error, "tensor '%s': dtype is missing or no string", name.text);
    for (int i = 0; i < DTYPES; i++)
        if (strcmp(item->valuestring, dtypes[i].name) == 0) {
            tensor->dtype = dtypes[i].dtype;
            return true;
        }
    return refuse(error, "tensor '%s': dtype is '%s'; accepted are BF16, F16, F32, I32, I64",
                  name.text, show(item->valuestring).text);
}

static bool read_shape(const cJSON *entry, st_tensor *tensor, uint64_t *bytes, char *error)
{
    const shown name = show(tensor->name);
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    if (!cJSON_IsArray(shape))
        return refuse(error, "tensor '%s': shape is missing or no array", name.text);
    *bytes = gdp_dtype_size(tensor->dtype);
    bool overflow = false, empty = false;
    const cJSON *item;
    cJSON_ArrayForEach(item, shape)
    {
        uint64_t extent;
        if (tensor->rank == ST_MAX_RANK)
            return refuse(error, "tensor '%s': shape has over %d dimensions; accepted are up to %d",
                          name.text, ST_MAX_RANK, ST_MAX_RANK);
        if (!read_count(item, &extent))
            return refuse(error, "tensor '%s': shape[%d] is no whole number from 0 to 2^53",
                          name.text, tensor->rank);
        tensor->shape[tensor->rank++] = (int64_t)extent;
        empty |= extent == 0;
        overflow |= __builtin_mul_overflow(*bytes, extent, bytes);
    }
    if (empty)
        *bytes = 0;
    else if (overflow)
        return refuse(error, "tensor '%s': the product of its shape exceeds 64 bits", name.text);
    return true;
}

static bool read_entry(const cJSON *entry, const unsigned char *data, size_t size,
                       st_tensor *tensor, char *error)
{
    uint64_t begin = 0, end = 0, bytes = 0;
    tensor->name = entry->string;
    const shown name = show(tensor->name);
    if (!cJSON_IsObject(entry) || cJSON_GetArraySize(entry) != 3)
        return refuse(error, "tensor '%s': accepted is an object of dtype, shape and data_offsets",
                      name.text);
    if (!read_dtype(entry, tensor, error) || !read_shape(entry, tensor, &bytes, error))
        return false;
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !read_count(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !read_count(cJSON_GetArrayItem(offsets, 1), &end))
        return refuse(error, "tensor '%s': data_offsets is not two whole numbers", name.text);
    if (begin > end || end > size)
        return refuse(error,
                      "tensor '%s': data_offsets are %llu, %llu; the file has %zu bytes of data",
                      name.text, (unsigned long long)begin, (unsigned long long)end, size);
    if (end - begin != bytes)
        return refuse(error,
                      "tensor '%s': data_offsets span %llu bytes; its shape and dtype need %llu",
                      name.text, (unsigned long long)(end - begin), (unsigned long long)bytes);
    tensor->data = data + begin;
    tensor->bytes = (size_t)bytes;
    return true;
}

/* ---- the header ---- */

static int by_place(const void *a, const void *b)
{
    const st_tensor *x = a, *y = b;
    const uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    if (p != q) return p < q ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const st_pair *)a)->key, ((const st_pair *)b)->key);
}

static bool read_metadata(const cJSON *object, st_file *file, char *error)
{
    if (file->metadata) return refuse(error, "the header has __metadata__ twice");
    if (!cJSON_IsObject(object)) return refuse(error, "__metadata__ is no object");
    file->metadata = calloc((size_t)cJSON_GetArraySize(object) + 1, sizeof *file->metadata);
    if (!file->metadata) return refuse(error, "no memory for the metadata");
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        if (!cJSON_IsString(item))
            return refuse(error, "__metadata__: '%s' is no string", show(item->string).text);
        file->metadata[file->metadata_count++] = (st_pair){ item->string, item->valuestring };
    }
    qsort(file->metadata, file->metadata_count, sizeof *file->metadata, by_key);
    for (size_t i = 1; i < file->metadata_count; i++)
        if (by_key(&file->metadata[i - 1], &file->metadata[i]) == 0)
            return refuse(error, "__metadata__: '%s' is there twice",
                          show(file->metadata[i].key).text);
    return true;
}

/* No name twice, no byte in two tensors or in none. */
static bool check_tensors(st_file *file, const unsigned char *data, size_t size, char *error)
{
    st_tensor *tensors = file->tensors;
    qsort(tensors, file->tensor_count, sizeof *tensors, by_name);
    for (size_t i = 1; i < file->tensor_count; i++)
        if (by_name(&tensors[i - 1], &tensors[i]) == 0)
            return refuse(error, "tensor '%s' is there twice", show(tensors[i].name).text);
    qsort(tensors, file->tensor_count, sizeof *tensors, by_place);
    const unsigned char *end = data;
    for (size_t i = 0; i < file->tensor_count; i++) {
        const unsigned char *begin = tensors[i].data;
        if (begin < end)
            return refuse(error, "tensor '%s' overlaps the one before it",
                          show(tensors[i].name).text);
        if (begin > end)
            return refuse(error, "the %zu bytes before tensor '%s' belong to no tensor",
                          (size_t)(begin - end), show(tensors[i].name).text);
        end = begin + tensors[i].bytes;
    }
    const size_t behind = size - (size_t)(end - data);
    if (behind) return refuse(error, "the last %zu bytes of data belong to no tensor", behind);
    return true;
}

static bool read_header(const cJSON *root, const unsigned char *data, size_t size, st_file *file,
                        char *error)
{
    if (!cJSON_IsObject(root)) return refuse(error, "the header is no JSON object");
    file->tensors = calloc((size_t)cJSON_GetArraySize(root) + 1, sizeof *file->tensors);
    if (!file->tensors) return refuse(error, "no memory for the list of tensors");
    const cJSON *item;
    cJSON_ArrayForEach(item, root)
    {
        if (strcmp(item->string, "__metadata__") == 0) {
            if (!read_metadata(item, file, error)) return false;
        } else if (!read_entry(item, data, size, &file->tensors[file->tensor_count++], error)) {
            return false;
        }
    }
    return check_tensors(file, data, size, error);
}

static bool read_length(const unsigned char *bytes, uint64_t size, uint64_t *length, char *error)
{
    if (size < LENGTH_BYTES)
        return refuse(error, "the file has %llu bytes; a safetensors file has 8 or more",
                      (unsigned long long)size);
    *length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) *length = *length << 8 | bytes[i];
    if (*length > ST_MAX_HEADER)
        return refuse(error, "the header's length is %llu bytes; accepted are up to %d",
                      (unsigned long long)*length, ST_MAX_HEADER);
    if (*length > size - LENGTH_BYTES)
        return refuse(error, "the header's length is %llu bytes; only %llu follow",
                      (unsigned long long)*length, (unsigned long long)(size - LENGTH_BYTES));
    return true;
}

bool st_parse(const void *bytes, size_t size, st_file *file, char *error)
{
    uint64_t length = 0;
    memset(file, 0, sizeof *file);
    if (!read_length(bytes, size, &length, error)) return false;
    const char *header = (const char *)bytes + LENGTH_BYTES, *end = header;
    cJSON *root = cJSON_ParseWithLengthOpts(header, (size_t)length, &end, 0);
    if (!root) return refuse(error, "the header is no JSON that can be read");
    file->header = root;
    while (end < header + length && (*end == ' ' || *end == '\n' || *end == '\r' || *end == '\t'))
        end++;
    bool fine = end == header + length;
    if (!fine) refuse(error, "the header goes on after its JSON object");
    fine = fine && read_header(root, (const unsigned char *)header + length,
                               size - LENGTH_BYTES - (size_t)length, file, error);
    if (!fine) st_close(file);
    return fine;
}

void st_close(st_file *file)
{
    cJSON_Delete(file->header);
    free(file->tensors);
    free(file->metadata);
    free(file->memory);
    free(file->copies);
    memset(file, 0, sizeof *file);
}

const st_tensor *st_find(const st_file *file, const char *name)
{
    for (size_t i = 0; i < file->tensor_count; i++)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

const char *st_metadata(const st_file *file, const char *key)
{
    for (size_t i = 0; i < file->metadata_count; i++)
        if (strcmp(file->metadata[i].key, key) == 0) return file->metadata[i].value;
    return NULL;
}

/* ---- files ---- */

static bool read_all(int fd, unsigned char *to, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t got = read(fd, to, bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        to += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* Copies of the tensors that the file does not align for their elements. */
static bool align_tensors(st_file *file, char *error)
{
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        unsigned char *spare = file->copies;
        for (size_t i = 0; i < file->tensor_count; i++) {
            st_tensor *tensor = &file->tensors[i];
            if ((uintptr_t)tensor->data % gdp_dtype_size(tensor->dtype) == 0) continue;
            const size_t step = (tensor->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            if (pass) {
                memcpy(spare, tensor->data, tensor->bytes);
                tensor->data = spare;
                spare += step;
            } else {
                bytes += step;
            }
        }
        if (bytes == 0) return true;
        if (pass) continue;
        file->copies = aligned_alloc(ALIGNMENT, bytes);
        if (!file->copies) return refuse(error, "no memory for %zu bytes of tensors", bytes);
    }
    return true;
}

/* Puts the bytes where the data, which follow a header of `length` bytes, are aligned. */
static bool load(int fd, const unsigned char *first, uint64_t length, size_t size, st_file *file,
                 char *error)
{
    const size_t pad = (ALIGNMENT - (LENGTH_BYTES + (size_t)length) % ALIGNMENT) % ALIGNMENT;
    const size_t room = (pad + size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    unsigned char *memory = aligned_alloc(ALIGNMENT, room);
    if (!memory) return refuse(error, "no memory for its %zu bytes", size);
    memcpy(memory + pad, first, LENGTH_BYTES);
    bool fine = read_all(fd, memory + pad + LENGTH_BYTES, size - LENGTH_BYTES) ||
                refuse(error, "its %zu bytes cannot be read", size);
    fine = fine && st_parse(memory + pad, size, file, error);
    if (!fine) {
        free(memory);
        return false;
    }
    file->memory = memory;
    if (align_tensors(file, error)) return true;
    st_close(file);
    return false;
}

bool st_read(const char *path, st_file *file, char *error)
{
    struct stat status;
    unsigned char first[LENGTH_BYTES];
    uint64_t length = 0;
    memset(file, 0, sizeof *file);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return refuse(error, "it cannot be opened: %s", strerror(errno));
    bool fine =
        fstat(fd, &status) == 0 || refuse(error, "it cannot be looked at: %s", strerror(errno));
    fine = fine && (S_ISREG(status.st_mode) || refuse(error, "it is no regular file"));
    const size_t size = fine ? (size_t)status.st_size : 0;
    const size_t begin = size < LENGTH_BYTES ? size : LENGTH_BYTES;
    fine = fine && (read_all(fd, first, begin) || refuse(error, "its first bytes cannot be read"));
    fine = fine && read_length(first, size, &length, error);
    fine = fine && load(fd, first, length, size, file, error);
    close(fd);
    return fine;
}
