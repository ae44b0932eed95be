/* Content-addressed binaries on disk. A directory holds for each key <hex>.bin (header and binary)
 * and <hex>.c (its source, for people), and lock-00 .. lock-3f. No decision depends on a file's
 * time.
 *
 * The disk is a help and never a condition: whatever fails here is logged once a context, and
 * the caller goes on as though there were no entry. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "process.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_PATH = 4096, FORMAT_VERSION = 1, LOCKS = 64, TEMPORARY_NAMES = 1000 };
static const uint64_t MAX_BINARY = (uint64_t)1 << 30;
static const double LOCK_LIMIT = 120; /* seconds */

/* A directory shared between byte orders is told apart by the version number. */
typedef struct header {
    char magic[8];
    uint32_t version, reserved;
    uint64_t length;
    char key[32];
    XXH128_canonical_t checksum;
} header;

static const char MAGIC[8] = "gdpcache";

struct gdpi_cache {
    gdp_context *context;
    char *dir; /**< NULL: no disk */
    atomic_bool warned;
};

/* ---- keys ---- */

gdpi_key gdpi_make_key(const char *const *texts, size_t count)
{
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    for (size_t i = 0; i < count; i++) {
        const uint64_t length = strlen(texts[i]);
        XXH3_128bits_update(&state, &length, sizeof length);
        XXH3_128bits_update(&state, texts[i], length);
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(&state);
    gdpi_key key;
    snprintf(key.hex, sizeof key.hex, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    return key;
}

/* ---- the directory ---- */

static void warn(gdpi_cache *cache, const char *what, const char *path, int error)
{
    if (atomic_exchange(&cache->warned, true)) return;
    gdpi_log(cache->context, GDP_LOG_WARNING,
             "kernel cache: cannot %s %s (%s): going on without it; GDP_CACHE_DIR names another "
             "directory",
             what, path, gdpi_describe_errno(error));
}

/* mkdir -p; 0 or errno. */
static int make_directories(const char *dir)
{
    char path[MAX_PATH];
    const size_t length = strlen(dir);
    if (length >= sizeof path) return ENAMETOOLONG;
    memcpy(path, dir, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        const char end = path[i];
        path[i] = '\0';
        /* Whether an existing one is a directory, and ours, shows at the end. */
        struct stat found;
        if (mkdir(path, 0700) && errno != EEXIST) {
            const int error = errno;
            if (stat(path, &found) || !S_ISDIR(found.st_mode)) return error;
        }
        path[i] = end;
    }
    return 0;
}

/* NULL, or why the directory is not to be used: what lies in it will be run. */
static const char *refuse_directory(const char *dir)
{
    const int error = make_directories(dir);
    if (error) return gdpi_describe_errno(error);
    struct stat found;
    if (stat(dir, &found)) return gdpi_describe_errno(errno);
    if (!S_ISDIR(found.st_mode)) return "it is not a directory";
    if (found.st_uid != geteuid()) return "it belongs to another user";
    if (found.st_mode & 077) return "other users have access to it; it must have mode 0700";
    if (faccessat(AT_FDCWD, dir, R_OK | W_OK | X_OK, AT_EACCESS)) return gdpi_describe_errno(errno);
    return NULL;
}

gdp_status gdpi_cache_create(gdp_context *context, const char *dir, gdpi_cache **cache)
{
    *cache = NULL;
    gdpi_cache *made = gdpi_allocate_zeroed(&context->allocator, sizeof *made);
    if (!made) return GDP_STATUS_OUT_OF_MEMORY;
    made->context = context;
    atomic_init(&made->warned, false);
    if (dir && dir[0]) {
        const char *reason = refuse_directory(dir);
        if (reason)
            gdpi_log(context, GDP_LOG_WARNING,
                     "kernel cache: %s is not used: %s; kernels are not kept on disk; "
                     "GDP_CACHE_DIR names another directory",
                     dir, reason);
        else if (!(made->dir = gdpi_copy_text(&context->allocator, dir))) {
            gdpi_release(&context->allocator, made);
            return GDP_STATUS_OUT_OF_MEMORY;
        }
    }
    *cache = made;
    return GDP_OK;
}

void gdpi_cache_destroy(gdpi_cache *cache)
{
    if (!cache) return;
    const gdpi_allocator *allocator = &cache->context->allocator;
    gdpi_release(allocator, cache->dir);
    gdpi_release(allocator, cache);
}

const char *gdpi_cache_dir(const gdpi_cache *cache) { return cache->dir; }

/* ---- files ---- */

static int entry_path(const gdpi_cache *cache, const gdpi_key *key, const char *suffix, char *path)
{
    const int length = snprintf(path, MAX_PATH, "%s/%s%s", cache->dir, key->hex, suffix);
    return length < MAX_PATH ? 0 : ENAMETOOLONG;
}

static header make_header(const gdpi_key *key, const void *data, size_t size)
{
    header head = { .version = FORMAT_VERSION, .length = size };
    memcpy(head.magic, MAGIC, sizeof head.magic);
    memcpy(head.key, key->hex, sizeof head.key);
    XXH128_canonicalFromHash(&head.checksum, XXH3_128bits(data, size));
    return head;
}

/* The entry in an open file; an empty blob where anything about it is not as it was written. */
static gdp_status read_entry(gdpi_cache *cache, const gdpi_key *key, int file, gdpi_blob *binary)
{
    struct stat found;
    header head;
    if (fstat(file, &found) || !S_ISREG(found.st_mode)) return GDP_OK;
    if (gdpi_read_all(file, &head, sizeof head) != (ssize_t)sizeof head) return GDP_OK;
    if (head.length == 0 || head.length > MAX_BINARY ||
        (uint64_t)found.st_size != sizeof head + head.length)
        return GDP_OK;

    const size_t size = (size_t)head.length;
    void *data = gdpi_allocate(&cache->context->allocator, size);
    if (!data) return GDP_STATUS_OUT_OF_MEMORY;
    if (gdpi_read_all(file, data, size) == (ssize_t)size) {
        const header expected = make_header(key, data, size);
        if (memcmp(&head, &expected, sizeof head) == 0) {
            *binary = (gdpi_blob){ data, size };
            return GDP_OK;
        }
    }
    gdpi_release(&cache->context->allocator, data);
    return GDP_OK;
}

gdp_status gdpi_cache_find(gdpi_cache *cache, const gdpi_key *key, gdpi_blob *binary)
{
    *binary = (gdpi_blob){ NULL, 0 };
    char path[MAX_PATH];
    if (!cache->dir || entry_path(cache, key, ".bin", path)) return GDP_OK;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) {
        if (errno != ENOENT) warn(cache, "read", path, errno);
        return GDP_OK;
    }
    const gdp_status status = read_entry(cache, key, file, binary);
    close(file);
    return status;
}

/* ---- locks ---- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* One file for several keys keeps the number of lock files fixed, so none ever needs to be removed
 * (which cannot be done without a race). Two keys that share one only wait for each other. The
 * system frees the lock of a process that dies. */
int gdpi_cache_lock(gdpi_cache *cache, const gdpi_key *key)
{
    char path[MAX_PATH];
    unsigned number = 0;
    if (!cache->dir || sscanf(key->hex, "%2x", &number) != 1) return -1;
    if (snprintf(path, sizeof path, "%s/lock-%02x", cache->dir, number % LOCKS) >= MAX_PATH)
        return -1;
    const int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0) {
        warn(cache, "open", path, errno);
        return -1;
    }
    const double limit = now() + LOCK_LIMIT;
    for (long wait = 1000 * 1000; flock(lock, LOCK_EX | LOCK_NB);) {
        const bool busy = errno == EWOULDBLOCK || errno == EINTR;
        if (!busy || now() > limit) {
            close(lock);
            return -1;
        }
        nanosleep(&(struct timespec){ .tv_nsec = wait }, NULL);
        if (wait < 20 * 1000 * 1000) wait *= 2;
    }
    return lock;
}

void gdpi_cache_unlock(gdpi_cache *cache, int lock)
{
    (void)cache;
    if (lock < 0) return;
    flock(lock, LOCK_UN); /* a child forked meanwhile may hold a copy of the descriptor */
    close(lock);
}

/* ---- publishing ---- */

/* A new file that no other process or thread writes; -1 with errno. */
static int open_temporary(const gdpi_cache *cache, char *path)
{
    static atomic_uint counter;
    for (int attempt = 0; attempt < TEMPORARY_NAMES; attempt++) {
        const unsigned number = atomic_fetch_add(&counter, 1);
        if (snprintf(path, MAX_PATH, "%s/tmp-%ld-%u", cache->dir, (long)getpid(), number) >=
            MAX_PATH) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (file >= 0 || errno != EEXIST) return file;
    }
    return -1;
}

/* Writes head and data to a temporary name and renames it, so that a reader sees all or nothing. */
static void put_file(gdpi_cache *cache, const char *path, const gdpi_blob *head,
                     const gdpi_blob *data)
{
    char temporary[MAX_PATH];
    const int file = open_temporary(cache, temporary);
    if (file < 0) {
        warn(cache, "write", temporary, errno);
        return;
    }
    int error = gdpi_write_all(file, head->data, head->size);
    if (!error) error = gdpi_write_all(file, data->data, data->size);
    if (!error && fsync(file)) error = errno;
    if (close(file) && !error) error = errno;
    if (!error && rename(temporary, path)) error = errno;
    if (!error) return;
    warn(cache, "write", path, error);
    if (unlink(temporary)) warn(cache, "remove", temporary, errno);
}

void gdpi_cache_publish(gdpi_cache *cache, const gdpi_key *key, const char *source,
                        const gdpi_blob *binary)
{
    char path[MAX_PATH];
    if (!cache->dir || binary->size == 0 || binary->size > MAX_BINARY) return;
    if (entry_path(cache, key, ".c", path)) return;
    const gdpi_blob text = { (void *)(uintptr_t)source, strlen(source) }, nothing = { NULL, 0 };
    put_file(cache, path, &nothing, &text);

    header head = make_header(key, binary->data, binary->size);
    const gdpi_blob start = { &head, sizeof head };
    if (entry_path(cache, key, ".bin", path) == 0) put_file(cache, path, &start, binary);
}
