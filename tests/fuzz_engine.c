/* Any bytes as a template: the generator must refuse or expand them, twice the same, and leak
 * nothing. */
#define _POSIX_C_SOURCE 200809L

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

static char dir[] = "/tmp/gdp_fuzz_XXXXXX", folder[64], file[64];
static long blocks;

static void *allocate(void *user, size_t bytes)
{
    (void)user;
    void *memory = malloc(bytes);
    blocks += memory != NULL;
    return memory;
}

static void release(void *user, void *memory)
{
    (void)user;
    blocks -= memory != NULL;
    free(memory);
}

static void remove_folder(void)
{
    (void)unlink(file);
    (void)rmdir(folder);
    (void)rmdir(dir);
}

static void make_folder(void)
{
    REQUIRE(mkdtemp(dir));
    snprintf(folder, sizeof folder, "%s/host", dir);
    snprintf(file, sizeof file, "%s/host/index.ct", dir);
    REQUIRE(mkdir(folder, 0700) == 0);
    REQUIRE(atexit(remove_folder) == 0);
}

static int emit(const gdpi_generator *generator, gdpi_text *source, gdpi_text *meta, char *error,
                size_t capacity)
{
    error[0] = '\0';
    const int result = gdpi_generator_emit(
        generator, "index", "", "target=host chunk=16 block_v=16", source, meta, error, capacity);
    REQUIRE(result == GDPI_GENERATOR_OK || (result == GDPI_GENERATOR_ERROR && error[0]));
    REQUIRE((result == GDPI_GENERATOR_OK) == (source->data != NULL && meta->data != NULL));
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!file[0]) make_folder();
    FILE *out = fopen(file, "wb");
    REQUIRE(out && fwrite(data, 1, size, out) == size && fclose(out) == 0);

    const gdpi_generator generator = { allocate, release, NULL, dir, 2 * 1000 * 1000 };
    gdpi_text sources[2], metas[2];
    char errors[2][4096];
    for (int i = 0; i < 2; i++)
        emit(&generator, &sources[i], &metas[i], errors[i], sizeof errors[i]);
    REQUIRE(sources[0].size == sources[1].size && metas[0].size == metas[1].size);
    REQUIRE(strcmp(errors[0], errors[1]) == 0);
    if (sources[0].data && sources[1].data)
        REQUIRE(memcmp(sources[0].data, sources[1].data, sources[0].size) == 0);
    for (int i = 0; i < 2; i++) {
        release(NULL, sources[i].data);
        release(NULL, metas[i].data);
    }
    REQUIRE(blocks == 0);
    return 0;
}
