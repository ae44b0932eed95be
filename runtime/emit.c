/* For uselocale and the file functions. */
#define _POSIX_C_SOURCE 200809L

#include "emit.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

enum { DEFAULT_INSTRUCTIONS = 200 * 1000 * 1000, MAX_PATH = 4096 };
static const size_t MAX_MEMORY = (size_t)256 << 20;
static const long MAX_FILE = 4l << 20;

/* One call of the generator: what goes in, and what became of its memory. */
typedef struct call {
    const gdpi_generator *generator;
    const char *function;
    const char *arguments[3];
    int argument_count, result_count;
    size_t used;
    bool failed;  /**< the allocator had nothing left */
    bool limited; /**< MAX_MEMORY was reached */
} call;

/* ---- memory ---- */

/* Lua counts on shrinking never to fail, so a smaller block stays where it is. */
static void *reallocate(void *user, void *old, size_t old_size, size_t size)
{
    call *at = user;
    const gdpi_generator *generator = at->generator;
    const size_t had = old ? old_size : 0; /* without a block old_size is the kind of object */
    if (size == 0) {
        if (old) generator->release(generator->user, old);
        at->used -= had;
        return NULL;
    }
    if (size <= had) {
        at->used -= had - size;
        return old;
    }
    if (size > MAX_MEMORY || at->used - had > MAX_MEMORY - size) {
        at->limited = true;
        return NULL;
    }
    void *memory = generator->allocate(generator->user, size);
    if (!memory) {
        at->failed = true;
        return NULL;
    }
    if (old) {
        memcpy(memory, old, had);
        generator->release(generator->user, old);
    }
    at->used += size - had;
    return memory;
}

static void copy_sentence(char *out, size_t capacity, const char *sentence)
{
    if (capacity) (void)snprintf(out, capacity, "%s", sentence);
}

/* luaL_error without the position, which would be one in generator/. */
static void raise_error(lua_State *L, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)lua_pushvfstring(L, format, arguments);
    va_end(arguments);
    (void)lua_error(L);
}

/* ---- files ---- */

/* Names come from templates: they must not lead out of the folder. */
static bool is_plain_name(const char *name)
{
    if (name[0] == '/' || name[0] == '\0' || strstr(name, "..")) return false;
    return strlen(name) ==
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./");
}

static void cannot_read(lua_State *L, const char *path, int number)
{
    raise_error(L, "%s cannot be read: %s", path, strerror(number));
}

/* Pushes the file's text and returns true, or false where there is none. Between open and close
 * nothing can raise an error. */
static bool push_file(lua_State *L, const char *dir, const char *name)
{
    char path[MAX_PATH];
    const int length = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (length < 0 || (size_t)length >= sizeof path)
        raise_error(L, "the path of %s is too long", name);
    struct stat status;
    if (stat(path, &status) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) return false;
        cannot_read(L, path, errno);
    }
    if (!S_ISREG(status.st_mode)) raise_error(L, "%s cannot be read: it is not a file", path);
    if (status.st_size > MAX_FILE) raise_error(L, "%s exceeds %d bytes", path, (int)MAX_FILE);

    const size_t size = (size_t)status.st_size;
    char *text = lua_newuserdatauv(L, size + 1, 0);
    size_t had = 0;
    int number = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) cannot_read(L, path, errno);
    while (had < size && number == 0) {
        const ssize_t got = read(file, text + had, size - had);
        if (got == 0) break;
        if (got > 0)
            had += (size_t)got;
        else if (errno != EINTR)
            number = errno;
    }
    (void)close(file);
    if (number) cannot_read(L, path, number);
    lua_pushlstring(L, text, had);
    return true;
}

static const gdpi_embedded *find_embedded(const char *name)
{
    for (const gdpi_embedded *file = gdpi_embedded_files; file->name; file++)
        if (strcmp(file->name, name) == 0) return file;
    return NULL;
}

/* files[name]: read when it is asked for, nil where there is none. */
static int index_files(lua_State *L)
{
    const call *at = lua_touserdata(L, lua_upvalueindex(1));
    const char *name = lua_tostring(L, 2);
    if (!name || !is_plain_name(name) || strncmp(name, "generator/", 10) == 0) return 0;
    const char *dir = at->generator->template_dir;
    if (!dir || !push_file(L, dir, name)) {
        const gdpi_embedded *file = find_embedded(name);
        if (!file) return 0;
        lua_pushlstring(L, (const char *)file->data, file->size);
    }
    lua_pushvalue(L, 2); /* kept: one text of a name for the whole call */
    lua_pushvalue(L, -2);
    lua_rawset(L, 1);
    return 1;
}

static void push_files(lua_State *L, call *at)
{
    lua_newtable(L);
    lua_createtable(L, 0, 1);
    lua_pushlightuserdata(L, at);
    lua_pushcclosure(L, index_files, 1);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
}

/* ---- the state ---- */

/* The position is that of the innermost function of a template, whatever it called. */
static void give_up(lua_State *L, lua_Debug *unused)
{
    (void)unused;
    lua_Debug where;
    for (int level = 0; lua_getstack(L, level, &where); level++) {
        lua_getinfo(L, "Sl", &where);
        if (where.currentline > 0 && strncmp(where.short_src, "generator/", 10) != 0)
            raise_error(L, "%s:%d: it does not come to an end", where.short_src, where.currentline);
    }
    raise_error(L, "the generator does not come to an end");
}

static void open_library(lua_State *L, const char *name, lua_CFunction open,
                         const char *const *left_out)
{
    luaL_requiref(L, name, open, 1);
    for (; *left_out; left_out++) {
        lua_pushnil(L);
        lua_setfield(L, -2, *left_out);
    }
    lua_pop(L, 1);
}

static void open_libraries(lua_State *L)
{
    static const char *const base[] = { "dofile",         "loadfile", "print",
                                        "collectgarbage", "warn",     NULL };
    static const char *const string[] = { "dump", NULL };
    static const char *const math[] = { "random", "randomseed", NULL };
    static const char *const table[] = { NULL };
    open_library(L, LUA_GNAME, luaopen_base, base);
    open_library(L, LUA_STRLIBNAME, luaopen_string, string);
    open_library(L, LUA_MATHLIBNAME, luaopen_math, math);
    open_library(L, LUA_TABLIBNAME, luaopen_table, table);
}

/* Pushes what the file returns; its arguments are the top `arguments` values. */
static void push_module(lua_State *L, const char *name, int arguments)
{
    const gdpi_embedded *file = find_embedded(name);
    if (!file) {
        raise_error(L, "%s is not in the library", name);
        return;
    }
    const char *chunk = lua_pushfstring(L, "@%s", name);
    if (luaL_loadbufferx(L, (const char *)file->data, file->size, chunk, "t") != LUA_OK)
        (void)lua_error(L);
    lua_remove(L, -2);
    lua_insert(L, -1 - arguments);
    lua_call(L, arguments, 1);
}

/* Everything that may raise an error; leaves the results on the stack. */
static int run(lua_State *L)
{
    call *at = lua_touserdata(L, 1);
    open_libraries(L);
    push_module(L, "generator/environment.lua", 0);
    push_module(L, "generator/engine.lua", 1);
    lua_pushnil(L); /* the engine has it, nobody else needs it */
    lua_setglobal(L, "load");
    push_module(L, "generator/schema.lua", 0);
    push_module(L, "generator/main.lua", 2);

    const int limit = at->generator->instructions;
    lua_sethook(L, give_up, LUA_MASKCOUNT, limit > 0 ? limit : DEFAULT_INSTRUCTIONS);
    lua_getfield(L, -1, at->function);
    push_files(L, at);
    for (int i = 0; i < at->argument_count; i++) lua_pushstring(L, at->arguments[i]);
    lua_call(L, at->argument_count + 1, at->result_count);
    return at->result_count;
}

static int report_failure(lua_State *L, const call *at, int status, char *error,
                          size_t error_capacity)
{
    const char *sentence = lua_tostring(L, -1); /* run and Lua itself raise strings only */
    if (!sentence) sentence = "the generator failed without a message";
    const bool memory = status == LUA_ERRMEM || strstr(sentence, "not enough memory");
    if (memory && at->limited) {
        copy_sentence(error, error_capacity, "the generator needs more than 256 MiB");
        return GDPI_GENERATOR_ERROR;
    }
    copy_sentence(error, error_capacity, memory && at->failed ? "out of memory" : sentence);
    return memory && at->failed ? GDPI_GENERATOR_OUT_OF_MEMORY : GDPI_GENERATOR_ERROR;
}

/* Takes what a finished call left on the stack. */
typedef int (*take_results)(lua_State *L, const call *at, void *results, char *error,
                            size_t error_capacity);

/* Numbers are read and written as in C's own locale, whatever the application's is. */
static int perform(call *at, take_results take, void *results, char *error, size_t error_capacity)
{
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    lua_State *L = plain ? lua_newstate(reallocate, at) : NULL;
    if (!L) {
        if (plain) freelocale(plain);
        copy_sentence(error, error_capacity, "out of memory");
        return GDPI_GENERATOR_OUT_OF_MEMORY;
    }
    const locale_t before = uselocale(plain);
    lua_pushcfunction(L, run);
    lua_pushlightuserdata(L, at);
    const int status = lua_pcall(L, 1, at->result_count, 0);
    const int result = status == LUA_OK ? take(L, at, results, error, error_capacity)
                                        : report_failure(L, at, status, error, error_capacity);
    lua_close(L);
    (void)uselocale(before);
    freelocale(plain);
    return result;
}

/* ---- the calls ---- */

typedef struct buffer {
    char *data;
    size_t capacity;
} buffer;

/* The results, from the bottom of the stack upwards, into a buffer each. */
static int take_into_buffers(lua_State *L, const call *at, void *results, char *error,
                             size_t error_capacity)
{
    const buffer *buffers = results;
    for (int i = 0; i < at->result_count; i++) {
        size_t size;
        const char *text = lua_tolstring(L, i - at->result_count, &size);
        if (size >= buffers[i].capacity) {
            copy_sentence(error, error_capacity, "the configuration's text does not fit");
            return GDPI_GENERATOR_ERROR;
        }
        memcpy(buffers[i].data, text, size + 1);
    }
    return GDPI_GENERATOR_OK;
}

int gdpi_generator_configure(const gdpi_generator *generator, const char *problem,
                             const char *request, int processors, char *config_out,
                             size_t config_capacity, char *areas_out, size_t areas_capacity,
                             char *error, size_t error_capacity)
{
    char count[16];
    snprintf(count, sizeof count, "%d", processors);
    call at = { .generator = generator,
                .function = "configure",
                .arguments = { problem, request, count },
                .argument_count = 3,
                .result_count = 2 };
    buffer buffers[] = { { config_out, config_capacity }, { areas_out, areas_capacity } };
    return perform(&at, take_into_buffers, buffers, error, error_capacity);
}

static bool copy_text(lua_State *L, int index, const gdpi_generator *generator, gdpi_text *out)
{
    size_t size;
    const char *text = lua_tolstring(L, index, &size);
    char *data = generator->allocate(generator->user, size + 1);
    if (!data) return false;
    memcpy(data, text, size + 1);
    *out = (gdpi_text){ data, size };
    return true;
}

static int take_source(lua_State *L, const call *at, void *results, char *error,
                       size_t error_capacity)
{
    gdpi_text *const *texts = results;
    const gdpi_generator *generator = at->generator;
    if (!copy_text(L, -2, generator, texts[0])) {
        copy_sentence(error, error_capacity, "out of memory");
        return GDPI_GENERATOR_OUT_OF_MEMORY;
    }
    if (!copy_text(L, -1, generator, texts[1])) {
        generator->release(generator->user, texts[0]->data);
        *texts[0] = (gdpi_text){ 0 };
        copy_sentence(error, error_capacity, "out of memory");
        return GDPI_GENERATOR_OUT_OF_MEMORY;
    }
    return GDPI_GENERATOR_OK;
}

int gdpi_generator_emit(const gdpi_generator *generator, const char *kernel, const char *problem,
                        const char *config, gdpi_text *source, gdpi_text *meta, char *error,
                        size_t error_capacity)
{
    *source = *meta = (gdpi_text){ 0 };
    call at = { .generator = generator,
                .function = "emit",
                .arguments = { kernel, problem, config },
                .argument_count = 3,
                .result_count = 2 };
    gdpi_text *texts[] = { source, meta };
    return perform(&at, take_source, texts, error, error_capacity);
}
