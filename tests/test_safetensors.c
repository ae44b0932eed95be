/* The tool's files: what is written is read again, hostile files are refused with a sentence. */
/* source: runtime/tool/safetensors.c runtime/tool/safetensors_write.c */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "safetensors.h"

static char dir[] = "/tmp/gdp_safetensors_XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int files_in_dir(void)
{
    int count = 0;
    DIR *open_dir = opendir(dir);
    assert_non_null(open_dir);
    for (struct dirent *entry = readdir(open_dir); entry; entry = readdir(open_dir))
        count += entry->d_name[0] != '.';
    closedir(open_dir);
    return count;
}

static int remove_dir(void **state)
{
    (void)state;
    static const char *const names[] = { "round", "bad", "odd" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) (void)unlink(in_dir(names[i]));
    return rmdir(dir);
}

/* ---- round trip ---- */

static void test_round_trip(void **state)
{
    (void)state;
    static const float f[6] = { 0, -1.5f, 2, 3, 4, 1e30f };
    static const uint16_t h[3] = { 1, 2, 0xffff };
    static const int64_t l[2] = { -1, INT64_MAX };
    static const int32_t i32[1] = { -7 };
    const st_tensor tensors[] = {
        { "h", GDP_DTYPE_BF16, 2, { 3, 1 }, h, sizeof h },
        { "empty", GDP_DTYPE_F32, 2, { 0, 4 }, f, 0 },
        { "f", GDP_DTYPE_F32, 3, { 1, 2, 3 }, f, sizeof f },
        { "a \"quoted\" name", GDP_DTYPE_I32, 0, { 0 }, i32, sizeof i32 },
        { "half", GDP_DTYPE_F16, 1, { 3 }, h, sizeof h },
        { "l", GDP_DTYPE_I64, 1, { 2 }, l, sizeof l },
    };
    const size_t count = sizeof tensors / sizeof *tensors;
    const st_pair metadata[] = { { "scale", "0.5" }, { "num_householder", "3" } };
    char error[ST_SENTENCE] = "";
    if (!st_write(in_dir("round"), tensors, count, metadata, 2, error)) fail_msg("%s", error);
    assert_int_equal(files_in_dir(), 1);

    st_file file;
    if (!st_read(in_dir("round"), &file, error)) fail_msg("%s", error);
    assert_int_equal(file.tensor_count, count);
    assert_string_equal(st_metadata(&file, "scale"), "0.5");
    assert_string_equal(st_metadata(&file, "num_householder"), "3");
    assert_null(st_metadata(&file, "other"));
    assert_null(st_find(&file, "other"));
    for (size_t i = 0; i < count; i++) {
        const st_tensor *found = st_find(&file, tensors[i].name);
        assert_non_null(found);
        assert_int_equal(found->dtype, tensors[i].dtype);
        assert_int_equal(found->rank, tensors[i].rank);
        assert_int_equal(found->bytes, tensors[i].bytes);
        assert_int_equal((uintptr_t)found->data % gdp_dtype_size(found->dtype), 0);
        assert_memory_equal(found->shape, tensors[i].shape, (size_t)found->rank * sizeof(int64_t));
        assert_memory_equal(found->data, tensors[i].data, found->bytes);
    }
    st_close(&file);
}

/* ---- files made by hand ---- */

/* A file of a header and `size` bytes of data, with the length that it says it has. */
static size_t make_file(unsigned char *bytes, const char *header, uint64_t length, size_t size)
{
    const size_t text = strlen(header);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
    memcpy(bytes + 8, header, text);
    for (size_t i = 0; i < size; i++) bytes[8 + text + i] = (unsigned char)i;
    return 8 + text + size;
}

static void put_file(const char *path, const void *bytes, size_t size)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

/* Refused from memory and from a file with the same sentence, which contains `part`. */
static void refused(const unsigned char *bytes, size_t size, const char *part)
{
    st_file file;
    char error[ST_SENTENCE] = "", again[ST_SENTENCE] = "";
    unsigned char *exact = malloc(size ? size : 1);
    assert_non_null(exact);
    if (size) memcpy(exact, bytes, size);
    const bool parsed = st_parse(exact, size, &file, error);
    free(exact);
    if (parsed || !strstr(error, part)) fail_msg("expected '%s', got '%s'", part, error);
    assert_null(file.tensors);
    put_file(in_dir("bad"), bytes, size);
    assert_false(st_read(in_dir("bad"), &file, again));
    assert_string_equal(error, again);
}

static void refused_header(const char *header, size_t size, const char *part)
{
    static unsigned char bytes[1 << 16];
    refused(bytes, make_file(bytes, header, strlen(header), size), part);
}

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"

static void test_lengths(void **state)
{
    (void)state;
    unsigned char bytes[256] = { 0 };
    refused(bytes, 0, "0 bytes; a safetensors file has 8 or more");
    refused(bytes, 7, "7 bytes");
    refused(bytes, 8, "no JSON");
    refused(bytes, make_file(bytes, "{}", UINT64_MAX, 0), "length is 18446744073709551615");
    refused(bytes, make_file(bytes, "{}", (uint64_t)1 << 40, 0), "accepted are up to");
    refused(bytes, make_file(bytes, "{}", 3, 0), "only 2 follow");
    refused(bytes, make_file(bytes, "{} x", 4, 0), "goes on");
    refused(bytes, make_file(bytes, "{\"a\":", 5, 0), "no JSON");
}

static void test_offsets(void **state)
{
    (void)state;
    refused_header("{" TENSOR("a", "F32", "[2]", 0, 8) "}", 7, "has 7 bytes of data");
    refused_header("{" TENSOR("a", "F32", "[2]", 8, 0) "}", 8, "data_offsets are 8, 0");
    refused_header("{" TENSOR("a", "F32", "[2]", 0, 4) "}", 8,
                   "span 4 bytes; its shape and dtype need 8");
    refused_header("{" TENSOR("a", "F32", "[2]", -8, 0) "}", 8, "two whole numbers");
    refused_header("{" TENSOR("a", "F32", "[2]", 0.5, 8.5) "}", 16, "two whole numbers");
    refused_header("{" TENSOR("a", "F32", "[2]", 0, 1e300) "}", 16, "two whole numbers");
    refused_header("{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("b", "F32", "[2]", 4, 12) "}", 12,
                   "overlaps");
    refused_header("{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("b", "F32", "[1]", 12, 16) "}",
                   16, "4 bytes before tensor 'b' belong to no tensor");
    refused_header("{" TENSOR("a", "F32", "[2]", 4, 12) "}", 12, "4 bytes before tensor 'a'");
    refused_header("{" TENSOR("a", "F32", "[2]", 0, 8) "}", 9, "last 1 bytes");
    refused_header("{}", 1, "last 1 bytes");
}

static void test_shapes_and_dtypes(void **state)
{
    (void)state;
    refused_header("{" TENSOR("a", "F64", "[1]", 0, 8) "}", 8, "dtype is 'F64'; accepted are BF16");
    refused_header("{" TENSOR("a", "X", "[1]", 0, 8) "}", 8, "dtype is 'X'");
    refused_header("{\"a\":{\"dtype\":3,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "no string");
    refused_header("{" TENSOR("a", "F32", "[4294967296,4294967296,4]", 0, 0) "}", 0,
                   "exceeds 64 bits");
    refused_header("{" TENSOR("a", "F32", "[9007199254740993e3]", 0, 0) "}", 0, "no whole number");
    refused_header("{" TENSOR("a", "F32", "[-1]", 0, 4) "}", 4, "shape[0] is no whole number");
    refused_header("{" TENSOR("a", "F32", "[1,1.5]", 0, 4) "}", 4, "shape[1] is no whole number");
    refused_header("{" TENSOR("a", "F32", "[\"1\"]", 0, 4) "}", 4, "no whole number");
    refused_header("{" TENSOR("a", "F32", "7", 0, 4) "}", 4, "no array");
    refused_header("{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "over 8 dimensions");
    refused_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4,
                   "object of dtype, shape and data_offsets");
    refused_header("{\"a\":7}", 0, "object of dtype");
}

static void test_names_and_metadata(void **state)
{
    (void)state;
    refused_header("{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("a", "F32", "[1]", 4, 8) "}", 8,
                   "tensor 'a' is there twice");
    refused_header("{\"__metadata__\":{\"x\":3}}", 0, "'x' is no string");
    refused_header("{\"__metadata__\":[]}", 0, "no object");
    refused_header("{\"__metadata__\":{\"x\":\"1\",\"x\":\"2\"}}", 0, "'x' is there twice");
    refused_header("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice");
    refused_header("[]", 0, "no JSON object");
    refused_header("\"text\"", 0, "no JSON object");
    refused_header("{" TENSOR("\\n\\u001b[31m", "F64", "[1]", 0, 8) "}", 8, "tensor '??[31m'");
}

static void test_nesting(void **state)
{
    (void)state;
    static char header[60001];
    memset(header, '[', sizeof header - 1);
    refused_header(header, 0, "no JSON");
    for (size_t i = 0; i + 5 < sizeof header; i += 5) memcpy(header + i, "{\"a\":", 5);
    refused_header(header, 0, "no JSON");
}

/* A header whose length is no multiple of 8, and half floats before floats: legal, if unusual. */
static void test_unaligned(void **state)
{
    (void)state;
    unsigned char bytes[512];
    char error[ST_SENTENCE] = "";
    const char header[] =
        "{" TENSOR("h", "F16", "[1]", 0, 2) "," TENSOR("f", "F32", "[2]", 2, 10) "}";
    const size_t size = make_file(bytes, header, strlen(header), 10);
    put_file(in_dir("odd"), bytes, size);
    st_file file;
    if (!st_read(in_dir("odd"), &file, error)) fail_msg("%s", error);
    const st_tensor *f = st_find(&file, "f");
    assert_non_null(f);
    assert_int_equal((uintptr_t)f->data % 4, 0);
    assert_memory_equal(f->data, bytes + size - 8, 8);
    st_close(&file);
}

/* Every prefix of a good file, and every byte of it changed, is read or refused; never worse. */
static void test_damage(void **state)
{
    (void)state;
    unsigned char bytes[512];
    const char header[] = "{\"__metadata__\":{\"n\":\"1\"}," TENSOR("a", "F32", "[2]", 0, 8) "}";
    const size_t size = make_file(bytes, header, strlen(header), 8);
    for (size_t cut = 0; cut <= size; cut++) {
        unsigned char *part = malloc(cut ? cut : 1);
        assert_non_null(part);
        memcpy(part, bytes, cut);
        st_file file;
        char error[ST_SENTENCE] = "";
        const bool read = st_parse(part, cut, &file, error);
        assert_int_equal(read, cut == size);
        if (read) st_close(&file);
        for (int bit = 0; bit < 8 && cut == size; bit++)
            for (size_t i = 0; i < cut; i++) {
                part[i] ^= (unsigned char)(1 << bit);
                if (st_parse(part, cut, &file, error)) st_close(&file);
                part[i] ^= (unsigned char)(1 << bit);
            }
        free(part);
    }
}

static void test_places(void **state)
{
    (void)state;
    st_file file;
    char error[ST_SENTENCE] = "";
    const st_tensor none = { 0 };
    assert_false(st_read(in_dir("absent"), &file, error));
    assert_non_null(strstr(error, "cannot be opened"));
    assert_false(st_read(dir, &file, error));
    assert_non_null(strstr(error, "no regular file"));
    assert_false(st_write(dir, &none, 0, NULL, 0, error));
    assert_non_null(strstr(error, "no regular file"));
    assert_false(st_write(in_dir("absent/file"), &none, 0, NULL, 0, error));
    assert_non_null(strstr(error, "cannot be created"));
    assert_false(st_write("/dev/full", &none, 0, NULL, 0, error));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_shapes_and_dtypes),
        cmocka_unit_test(test_names_and_metadata),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
