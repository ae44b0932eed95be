/* libnvrtc.so.13: compiles kernels for the emulated CUDA with the host's C++ compiler. Its "cubin"
 * is a shared object that needs the emulated libcuda.so.1, which lies beside this library. What a
 * GPU would fault at, like a vector that is not aligned, is made to trap. */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

#ifndef EMULATOR_COMPILER
#define EMULATOR_COMPILER "g++"
#endif

enum {
    SUCCESS = 0,
    OUT_OF_MEMORY = 1,
    INVALID_INPUT = 3,
    INVALID_PROGRAM = 4,
    INVALID_OPTION = 5,
    COMPILATION = 6,
    INTERNAL_ERROR = 11
};

enum { PATH_LENGTH = 4096, MAX_ARGUMENTS = 128, OPTION_LENGTH = 256 };

extern char **environ;

typedef struct bytes {
    char *data;
    size_t size;
} bytes;

typedef struct program {
    char *source, *name;
    bytes log, cubin;
} program;

/* The minor version is part of the keys of cached binaries: another one where what is made here
 * changes. */
EXPORT unsigned nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 900;
    return SUCCESS;
}

static const int architectures[] = { 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121 };
enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

EXPORT unsigned nvrtcGetNumSupportedArchs(int *count)
{
    *count = ARCHITECTURES;
    return SUCCESS;
}

EXPORT unsigned nvrtcGetSupportedArchs(int *list)
{
    memcpy(list, architectures, sizeof architectures);
    return SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(unsigned error)
{
    switch (error) {
    case SUCCESS:
        return "NVRTC_SUCCESS";
    case OUT_OF_MEMORY:
        return "NVRTC_ERROR_OUT_OF_MEMORY";
    case INVALID_INPUT:
        return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM:
        return "NVRTC_ERROR_INVALID_PROGRAM";
    case INVALID_OPTION:
        return "NVRTC_ERROR_INVALID_OPTION";
    case COMPILATION:
        return "NVRTC_ERROR_COMPILATION";
    default:
        return "NVRTC_ERROR_INTERNAL_ERROR";
    }
}

EXPORT unsigned nvrtcCreateProgram(program **made, const char *source, const char *name,
                                   int header_count, const char *const *headers,
                                   const char *const *include_names)
{
    (void)headers, (void)include_names;
    if (!made || !source || header_count != 0) return INVALID_INPUT;
    program *p = calloc(1, sizeof *p);
    if (!p) return OUT_OF_MEMORY;
    p->source = strdup(source);
    p->name = strdup(name ? name : "default_program");
    *made = p;
    return SUCCESS;
}

static void forget_results(program *p)
{
    free(p->log.data);
    free(p->cubin.data);
    p->log = p->cubin = (bytes){ NULL, 0 };
}

EXPORT unsigned nvrtcDestroyProgram(program **destroyed)
{
    if (!destroyed || !*destroyed) return INVALID_PROGRAM;
    program *p = *destroyed;
    forget_results(p);
    free(p->source);
    free(p->name);
    free(p);
    *destroyed = NULL;
    return SUCCESS;
}

/* ---- files ---- */

/* The driver copies a kernel's argument, so it must know its size. */
static const char argument_size[] =
    "\nextern \"C\" __global__ const unsigned emulated_args_bytes;\n"
    "const unsigned emulated_args_bytes = sizeof(gdp_args);\n";

static bool write_source(const program *p, const char *path)
{
    FILE *file = fopen(path, "wbe");
    if (!file) return false;
    const bool has_argument = strstr(p->source, "KERNEL(") != NULL;
    const bool written =
        fputs(p->source, file) >= 0 && (!has_argument || fputs(argument_size, file) >= 0);
    return fclose(file) == 0 && written;
}

/* All of a file, and a zero behind it. */
static bytes read_file(const char *path)
{
    bytes read = { NULL, 0 };
    struct stat status;
    FILE *file = fopen(path, "rbe");
    if (!file) return read;
    if (fstat(fileno(file), &status) == 0) read.data = malloc((size_t)status.st_size + 1);
    if (read.data) {
        read.size = fread(read.data, 1, (size_t)status.st_size, file);
        read.data[read.size] = 0;
    }
    fclose(file);
    return read;
}

static void keep_source(const program *p)
{
    const char *folder = getenv("GDP_EMULATED_KEEP");
    char path[PATH_LENGTH], name[OPTION_LENGTH];
    if (!folder || !*folder) return;
    snprintf(name, sizeof name, "%s", p->name);
    for (char *c = name; *c; c++)
        if (*c == '/') *c = '_';
    snprintf(path, sizeof path, "%s/%s.cc", folder, name);
    write_source(p, path);
}

/* ---- options ---- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The architecture's number where the option says it, 0 where it says something else that NVRTC
 * knows, -1 otherwise. */
static int read_option(const char *option)
{
    static const char *const prefixes[] = { "--gpu-architecture=sm_", "-arch=sm_" };
    static const char *const known[] = {
        "-std=",
        "--std=",
        "-default-device",
        "--device-as-default-execution-space",
        "-lineinfo",
        "--generate-line-info",
        "--fmad=",
        "-fmad=",
        "-w",
        "--maxrregcount=",
        "-maxrregcount=",
        "--restrict",
        "-restrict",
        "--extra-device-vectorization",
    };
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (!begins(option, prefixes[i])) continue;
        const int number = atoi(option + strlen(prefixes[i]));
        for (int j = 0; j < ARCHITECTURES; j++)
            if (architectures[j] == number) return number;
        return -1;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (begins(option, known[i])) return 0;
    return -1;
}

typedef struct arguments {
    const char *words[MAX_ARGUMENTS];
    int count;
} arguments;

static void add(arguments *to, const char *word)
{
    if (to->count < MAX_ARGUMENTS - 1) to->words[to->count++] = word;
}

/* Splits `text` in place. */
static void add_words(arguments *to, char *text)
{
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        add(to, word);
}

/* ---- what a cubin says of its kernels ---- */

/* Any plausible number. */
enum {
    REGISTERS = 128,
    ATTRIBUTE_SIZED = 4,
    ATTRIBUTE_FRAME_SIZE = 0x11,
    ATTRIBUTE_REGISTERS = 0x2f
};

typedef struct attribute {
    unsigned char format, number;
    uint16_t size;
    uint32_t symbol, value;
} attribute;

static void append(bytes *to, const void *data, size_t size)
{
    if (!to->data) return;
    char *grown = realloc(to->data, to->size + size);
    if (grown)
        memcpy(grown + to->size, data, size);
    else
        free(to->data);
    to->data = grown;
    to->size += size;
}

/* Two attributes for each function of the symbol table. */
static bytes make_attributes(const char *object, const Elf64_Shdr *sections, int count)
{
    bytes made = { malloc(1), 0 };
    for (int s = 0; s < count; s++) {
        if (sections[s].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(object + sections[s].sh_offset);
        for (uint32_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++) {
            if (ELF64_ST_TYPE(symbols[i].st_info) != STT_FUNC || symbols[i].st_shndx == SHN_UNDEF)
                continue;
            const attribute of[] = { { ATTRIBUTE_SIZED, ATTRIBUTE_REGISTERS, 8, i, REGISTERS },
                                     { ATTRIBUTE_SIZED, ATTRIBUTE_FRAME_SIZE, 8, i, 0 } };
            append(&made, of, sizeof of);
        }
    }
    return made;
}

/* Appends a section .nv.info, new names of the sections and their table, which stays the end. */
static void add_attributes(bytes *object)
{
    static const char name[] = ".nv.info";
    Elf64_Ehdr header;
    memcpy(&header, object->data, sizeof header);
    const int count = header.e_shnum;
    Elf64_Shdr *sections = malloc((size_t)(count + 1) * sizeof *sections);
    if (!sections) return;
    memcpy(sections, object->data + header.e_shoff, (size_t)count * sizeof *sections);
    bytes attributes = make_attributes(object->data, sections, count);
    Elf64_Shdr *names = &sections[header.e_shstrndx];
    bytes all_names = { malloc(names->sh_size), names->sh_size };
    if (all_names.data) memcpy(all_names.data, object->data + names->sh_offset, names->sh_size);
    append(&all_names, name, sizeof name);
    if (attributes.data && all_names.data) {
        sections[count] = (Elf64_Shdr){ .sh_name = (Elf64_Word)names->sh_size,
                                        .sh_type = SHT_PROGBITS,
                                        .sh_offset = object->size,
                                        .sh_size = attributes.size,
                                        .sh_addralign = 1 };
        names->sh_offset = object->size + attributes.size;
        names->sh_size = all_names.size;
        append(object, attributes.data, attributes.size);
        append(object, all_names.data, all_names.size);
        append(object, (const char[16]){ 0 }, (16 - object->size % 16) % 16);
        header.e_shoff = object->size;
        header.e_shnum++;
        append(object, sections, (size_t)(count + 1) * sizeof *sections);
        if (object->data) memcpy(object->data, &header, sizeof header);
    }
    free(attributes.data);
    free(all_names.data);
    free(sections);
}

/* ---- compiling ---- */

/* The exit status of the compiler, whose output goes to a file; -1: it did not run. */
static int run_compiler(const arguments *command, const char *output)
{
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (posix_spawnp(&child, command->words[0], &actions, NULL, (char *const *)command->words,
                     environ) == 0 &&
        waitpid(child, &status, 0) == child)
        status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

/* The emulated libcuda.so.1, in the folder of this library. */
static bool find_driver(char *path, size_t length)
{
    Dl_info info;
    if (!dladdr((void *)architectures, &info)) return false;
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(path, length, "%.*slibcuda.so.1", slash ? (int)(slash - info.dli_fname) + 1 : 0,
             info.dli_fname);
    return access(path, R_OK) == 0;
}

static unsigned compile_in(program *p, int arch, const char *folder)
{
    char source[PATH_LENGTH], object[PATH_LENGTH], output[PATH_LENGTH], driver[PATH_LENGTH];
    char define[OPTION_LENGTH], flags[PATH_LENGTH];
    const char *more = getenv("GDP_EMULATED_FLAGS");
    snprintf(source, sizeof source, "%s/kernel.cc", folder);
    snprintf(object, sizeof object, "%s/kernel.so", folder);
    snprintf(output, sizeof output, "%s/log", folder);
    snprintf(define, sizeof define, "-DEMULATED_ARCH=%d", arch);
    snprintf(flags, sizeof flags, "%s", more ? more : "");
    if (!find_driver(driver, sizeof driver) || !write_source(p, source)) return INTERNAL_ERROR;
    arguments command = { .count = 0 };
    add_words(&command, (char[]){ EMULATOR_COMPILER
                                  " -std=c++17 -O1 -shared -fPIC -fno-exceptions -fno-rtti "
                                  "-fno-strict-aliasing -fno-math-errno -fvisibility=hidden "
                                  "-w -nostdlib -fsanitize=alignment,bounds "
                                  "-fsanitize-undefined-trap-on-error" });
    add(&command, define);
    add_words(&command, flags);
    add(&command, source);
    add(&command, "-o");
    add(&command, object);
    add(&command, driver);
    add(&command, "-lm");
    add(&command, "-lc");
    const int status = run_compiler(&command, output);
    p->log = read_file(output);
    if (status == 0) p->cubin = read_file(object);
    if (p->cubin.data) add_attributes(&p->cubin);
    unlink(source);
    unlink(object);
    unlink(output);
    if (status < 0) return INTERNAL_ERROR;
    return status == 0 && p->cubin.data ? SUCCESS : COMPILATION;
}

EXPORT unsigned nvrtcCompileProgram(program *p, int option_count, const char *const *options)
{
    char folder[PATH_LENGTH / 2];
    const char *temporary = getenv("TMPDIR");
    int arch = 0;
    if (!p) return INVALID_PROGRAM;
    forget_results(p);
    for (int i = 0; i < option_count; i++) {
        const int number = read_option(options[i]);
        if (number < 0) {
            if (asprintf(&p->log.data, "unknown option '%s'", options[i]) < 0) p->log.data = NULL;
            p->log.size = p->log.data ? strlen(p->log.data) : 0;
            return INVALID_OPTION;
        }
        if (number > 0) arch = number;
    }
    if (arch == 0) arch = 75; /* as NVRTC does; no device here runs it */
    keep_source(p);
    snprintf(folder, sizeof folder, "%s/gdp-nvrtc-XXXXXX",
             temporary && *temporary ? temporary : "/tmp");
    if (!mkdtemp(folder)) return INTERNAL_ERROR;
    const unsigned result = compile_in(p, arch, folder);
    rmdir(folder);
    return result;
}

/* ---- results ---- */

EXPORT unsigned nvrtcGetProgramLogSize(program *p, size_t *size)
{
    if (!p) return INVALID_PROGRAM;
    *size = p->log.size + 1;
    return SUCCESS;
}

EXPORT unsigned nvrtcGetProgramLog(program *p, char *log)
{
    if (!p) return INVALID_PROGRAM;
    if (p->log.size) memcpy(log, p->log.data, p->log.size);
    log[p->log.size] = 0;
    return SUCCESS;
}

EXPORT unsigned nvrtcGetCUBINSize(program *p, size_t *size)
{
    if (!p || !p->cubin.data) return INVALID_PROGRAM;
    *size = p->cubin.size;
    return SUCCESS;
}

EXPORT unsigned nvrtcGetCUBIN(program *p, char *cubin)
{
    if (!p || !p->cubin.data) return INVALID_PROGRAM;
    memcpy(cubin, p->cubin.data, p->cubin.size);
    return SUCCESS;
}
