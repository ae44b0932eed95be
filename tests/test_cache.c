/* The disk cache by itself: keys, entries, damage, failing system calls, locks, many processes. */
/* link: -Wl,--wrap=open -Wl,--wrap=rename -Wl,--wrap=unlink -Wl,--wrap=fsync -Wl,--wrap=write */
#include "kernel_fixture.h"

#include <utime.h>

#include "cache_calls.h"

/* ---- system calls that fail below folder/cache ---- */

static enum call broken; /* an unlink only follows a failure: UNLINK breaks fsync, too */
static int broken_error;

static bool breaks(enum call call, const char *path)
{
    const bool meant = call == broken || (call == FSYNC && broken == UNLINK);
    if (!meant || strncmp(path, folder, strlen(folder))) return false;
    errno = broken_error;
    return true;
}

/* ---- a cache without a whole context ---- */

static gdp_context context;
static counter memory;

static void listen_afresh(void)
{
    memset(&context, 0, sizeof context);
    memset(&heard, 0, sizeof heard);
    memset(&memory, 0, sizeof memory);
    context.allocator = (gdpi_allocator){ count_allocate, count_release, &memory };
    context.log = listen;
    context.log_user = &heard;
}

static gdpi_cache *open_cache(const char *name)
{
    gdpi_cache *cache = NULL;
    listen_afresh();
    assert_int_equal(gdpi_cache_create(&context, name ? in_folder(name) : NULL, &cache), GDP_OK);
    return cache;
}

static void close_cache(gdpi_cache *cache)
{
    gdpi_cache_destroy(cache);
    assert_int_equal(memory.live, 0);
}

static gdpi_key key_of(const char *text) { return gdpi_make_key(&text, 1); }

static void publish(gdpi_cache *cache, const char *name, const char *binary)
{
    const gdpi_key key = key_of(name);
    gdpi_blob blob = { (void *)(uintptr_t)binary, strlen(binary) };
    gdpi_cache_publish(cache, &key, "int source;", &blob);
}

static bool finds(gdpi_cache *cache, const char *name, const char *binary)
{
    const gdpi_key key = key_of(name);
    gdpi_blob blob;
    assert_int_equal(gdpi_cache_find(cache, &key, &blob), GDP_OK);
    if (!blob.data) return false;
    const bool same = blob.size == strlen(binary) && memcmp(blob.data, binary, blob.size) == 0;
    assert_true(same);
    gdpi_release(&context.allocator, blob.data);
    return same;
}

static const char *entry_file(const char *name, const char *suffix)
{
    char path[128];
    snprintf(path, sizeof path, "cache/%s%s", key_of(name).hex, suffix);
    return in_folder(path);
}

/* ---- tests ---- */

static void test_keys(void **state)
{
    (void)state;
    const char *const ab[] = { "a", "b" }, *const joined[] = { "ab", "" },
                      *const turned[] = { "b", "a" };
    const gdpi_key one = gdpi_make_key(ab, 2), same = gdpi_make_key(ab, 2);
    assert_string_equal(one.hex, same.hex);
    assert_int_equal(strlen(one.hex), 32);
    assert_string_not_equal(one.hex, gdpi_make_key(joined, 2).hex);
    assert_string_not_equal(one.hex, gdpi_make_key(turned, 2).hex);
    assert_string_not_equal(one.hex, gdpi_make_key(ab, 1).hex);
}

static void test_entry(void **state)
{
    (void)state;
    struct stat found;
    gdpi_cache *cache = open_cache("cache");
    assert_string_equal(gdpi_cache_dir(cache), in_folder("cache"));
    assert_false(finds(cache, "a", ""));
    publish(cache, "a", "binary a");
    publish(cache, "b", "binary b");
    publish(cache, "b", "binary b, again");
    assert_true(finds(cache, "a", "binary a"));
    assert_true(finds(cache, "b", "binary b, again"));
    assert_int_equal(count_files("cache", ""), 4);
    assert_int_equal(stat(entry_file("a", ".bin"), &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
    assert_int_equal(stat(entry_file("a", ".c"), &found), 0);
    assert_int_equal(found.st_size, strlen("int source;"));
    assert_int_equal(heard.warnings, 0);
    close_cache(cache);
}

static void test_directory(void **state)
{
    (void)state;
    struct stat found;
    gdpi_cache *cache = open_cache("some/parents/cache");
    assert_non_null(gdpi_cache_dir(cache));
    assert_int_equal(stat(in_folder("some"), &found), 0);
    assert_int_equal(found.st_mode & 0777, 0700);
    close_cache(cache);

    mkdir(in_folder("shared"), 0700);
    chmod(in_folder("shared"), 0770);
    mkdir(in_folder("readable"), 0700);
    chmod(in_folder("readable"), 0704);
    put_text("file", "", 0600);
    mkdir(in_folder("foreign"), 0700);
    /* Not everybody may give folders away. */
    const bool given = chown(in_folder("foreign"), 12345, 12345) == 0;
    const char *const refused[] = { "shared", "readable", "file", "file/below",
                                    given ? "foreign" : "file" };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cache = open_cache(refused[i]);
        assert_null(gdpi_cache_dir(cache));
        assert_int_equal(heard.warnings, 1);
        assert_non_null(strstr(heard.last, "GDP_CACHE_DIR"));
        assert_non_null(strstr(heard.last, refused[i]));
        publish(cache, "a", "binary");
        assert_false(finds(cache, "a", "binary"));
        const gdpi_key key = key_of("a");
        assert_int_equal(gdpi_cache_lock(cache, &key), -1);
        gdpi_cache_unlock(cache, -1);
        assert_int_equal(heard.warnings, 1);
        close_cache(cache);
    }
    cache = open_cache(NULL);
    assert_null(gdpi_cache_dir(cache));
    assert_int_equal(heard.warnings, 0);
    close_cache(cache);
    gdpi_cache_destroy(NULL);
}

static void test_damage(void **state)
{
    (void)state;
    gdpi_cache *cache = open_cache("cache");
    for (int kind = 0; kind < 6; kind++) {
        publish(cache, "a", "the binary of a");
        assert_true(finds(cache, "a", "the binary of a"));
        const char *path = entry_file("a", ".bin");
        struct stat found;
        assert_int_equal(stat(path, &found), 0);
        const int file = open(path, O_RDWR | O_CLOEXEC);
        assert_true(file >= 0);
        if (kind == 0) assert_int_equal(ftruncate(file, 0), 0);
        if (kind == 1) assert_int_equal(ftruncate(file, found.st_size / 2), 0);
        if (kind == 2) assert_int_equal(ftruncate(file, found.st_size + 1), 0);
        if (kind == 3) assert_int_equal(pwrite(file, "?", 1, found.st_size - 1), 1);
        if (kind == 4) assert_int_equal(pwrite(file, "?", 1, 0), 1);
        if (kind == 5) { /* another key's entry under this name */
            publish(cache, "b", "the binary of b");
            assert_int_equal(rename(entry_file("b", ".bin"), path), 0);
        }
        close(file);
        assert_false(finds(cache, "a", ""));
    }
    publish(cache, "a", "the binary of a");
    assert_true(finds(cache, "a", "the binary of a"));
    assert_int_equal(heard.warnings, 0);
    close_cache(cache);
}

static void test_times(void **state)
{
    (void)state;
    gdpi_cache *cache = open_cache("cache");
    publish(cache, "a", "binary");
    const time_t times[] = { 0, 4000000000 };
    for (int i = 0; i < 2; i++) {
        const struct utimbuf stamp = { times[i], times[i] };
        assert_int_equal(utime(entry_file("a", ".bin"), &stamp), 0);
        assert_int_equal(utime(entry_file("a", ".c"), &stamp), 0);
        assert_true(finds(cache, "a", "binary"));
    }
    close_cache(cache);
}

/* J2. */
static void test_failing_calls(void **state)
{
    (void)state;
    static const int errors[] = { EBUSY, ENOENT, ESTALE, ENOSPC, EACCES };
    for (enum call call = OPEN; call < CALLS; call++)
        for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
            gdpi_cache *cache = open_cache("cache");
            publish(cache, "old", "old binary");
            assert_int_equal(heard.warnings, 0);
            broken = call, broken_error = errors[i];
            const bool found = finds(cache, "old", "old binary");
            publish(cache, "a", "binary");
            publish(cache, "b", "binary");
            const gdpi_key key = key_of("a");
            gdpi_cache_unlock(cache, gdpi_cache_lock(cache, &key));
            assert_int_equal(heard.warnings, 1);
            assert_non_null(strstr(heard.last, "GDP_CACHE_DIR"));
            assert_false(finds(cache, "a", "binary"));
            broken = NOTHING;
            assert_int_equal(found, call != OPEN);
            assert_int_equal(count_files("cache", "tmp") > 0, call == UNLINK);
            close_cache(cache);
            remove_tree(in_folder("cache"));
        }
}

static void test_out_of_memory(void **state)
{
    (void)state;
    gdpi_cache *cache = open_cache("cache");
    publish(cache, "a", "binary");
    memory.fail_at = memory.calls + 1;
    const gdpi_key key = key_of("a");
    gdpi_blob blob;
    assert_int_equal(gdpi_cache_find(cache, &key, &blob), GDP_STATUS_OUT_OF_MEMORY);
    assert_null(blob.data);
    assert_true(finds(cache, "a", "binary"));
    close_cache(cache);
}

/* ---- locks ---- */

static pid_t fork_holder(gdpi_cache *cache, const gdpi_key *key, int *ready)
{
    int ends[2];
    char byte = 0;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
        byte = gdpi_cache_lock(cache, key) >= 0 ? 'y' : 'n';
        if (write(ends[1], &byte, 1) != 1) _exit(1);
        for (;;) pause();
    }
    *ready = read(ends[0], &byte, 1) == 1 && byte == 'y';
    close(ends[0]);
    close(ends[1]);
    return child;
}

static void *take_lock(void *argument)
{
    const gdpi_key key = key_of("a");
    gdpi_cache *cache = argument;
    gdpi_cache_unlock(cache, gdpi_cache_lock(cache, &key));
    return NULL;
}

static void test_lock_of_the_dead(void **state)
{
    (void)state;
    gdpi_cache *cache = open_cache("cache");
    const gdpi_key key = key_of("a");
    int ready;
    const pid_t child = fork_holder(cache, &key, &ready);
    assert_true(ready);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take_lock, cache), 0);
    wait_milliseconds(50);
    assert_int_equal(pthread_tryjoin_np(thread, NULL), EBUSY);
    const double start = seconds();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    pthread_join(thread, NULL);
    assert_true(seconds() - start < 5);
    close_cache(cache);
}

/* A process forked while the lock is held keeps a copy of the descriptor, but not the lock. */
static void test_lock_of_a_fork(void **state)
{
    (void)state;
    gdpi_cache *cache = open_cache("cache");
    const gdpi_key key = key_of("a");
    const int lock = gdpi_cache_lock(cache, &key);
    assert_true(lock >= 0);
    const pid_t child = fork();
    if (child == 0)
        for (;;) pause();
    gdpi_cache_unlock(cache, lock);
    const double start = seconds();
    take_lock(cache);
    assert_true(seconds() - start < 5);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close_cache(cache);
}

static void test_lock_files(void **state)
{
    (void)state;
    gdpi_cache *cache = open_cache("cache");
    for (int i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        const gdpi_key key = key_of(name);
        const int lock = gdpi_cache_lock(cache, &key);
        assert_true(lock >= 0);
        gdpi_cache_unlock(cache, lock);
    }
    assert_int_equal(count_files("cache", ""), 64);
    close_cache(cache);
}

/* 16 processes write and read the same entry: nobody ever sees a part of one. */
static void test_many_writers(void **state)
{
    (void)state;
    enum { PROCESSES = 16, ROUNDS = 20, SIZE = 20000 };
    char binary[SIZE + 1];
    memset(binary, 'b', SIZE);
    binary[SIZE] = '\0';
    pid_t children[PROCESSES];
    gdpi_cache *cache = open_cache("cache");
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i]) continue;
        for (int round = 0; round < ROUNDS; round++) {
            const gdpi_key key = key_of("a");
            gdpi_blob blob = { binary, SIZE };
            gdpi_cache_publish(cache, &key, "source", &blob);
            if (gdpi_cache_find(cache, &key, &blob) || blob.size != SIZE ||
                memcmp(blob.data, binary, SIZE))
                _exit(1);
            gdpi_release(&context.allocator, blob.data);
        }
        _exit(heard.warnings ? 2 : 0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int result = -1;
        waitpid(children[i], &result, 0);
        assert_int_equal(result, 0);
    }
    assert_true(finds(cache, "a", binary));
    assert_int_equal(count_files("cache", ""), 2);
    close_cache(cache);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_keys),           TEST(test_entry),
        TEST(test_directory),      TEST(test_damage),
        TEST(test_times),          TEST(test_failing_calls),
        TEST(test_out_of_memory),  TEST(test_lock_of_the_dead),
        TEST(test_lock_of_a_fork), TEST(test_lock_files),
        TEST(test_many_writers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
