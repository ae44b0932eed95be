/* Replays files, or all files of directories, through a fuzz target: for compilers without
 * libFuzzer. */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in) {
        perror(path);
        return 1;
    }
    enum { LIMIT = 1 << 20 };
    uint8_t *data = malloc(LIMIT);
    const size_t size = data ? fread(data, 1, LIMIT, in) : 0;
    const int failed = !data || ferror(in);
    fclose(in);
    if (failed)
        fprintf(stderr, "%s cannot be read\n", path);
    else
        LLVMFuzzerTestOneInput(data, size);
    free(data);
    return failed;
}

static int replay(const char *path, int *replayed)
{
    struct stat status;
    if (stat(path, &status) != 0) {
        perror(path);
        return 1;
    }
    if (!S_ISDIR(status.st_mode)) {
        ++*replayed;
        return replay_file(path);
    }
    DIR *dir = opendir(path);
    if (!dir) {
        perror(path);
        return 1;
    }
    int failures = 0;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (entry->d_name[0] == '.') continue;
        char below[4096];
        snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        failures += replay(below, replayed);
    }
    closedir(dir);
    return failures;
}

int main(int argc, char **argv)
{
    int failures = 0, replayed = 0;
    for (int i = 1; i < argc; i++) failures += replay(argv[i], &replayed);
    printf("%d inputs replayed\n", replayed);
    return failures || !replayed;
}
