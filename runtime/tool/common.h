/* What the commands share: options, sentences, exit statuses, tables. */
#ifndef TOOL_COMMON_H
#define TOOL_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "gdp.h"

/** Exit statuses; 0: all is well. */
enum { EXIT_CHECK = 1, EXIT_USAGE = 2, EXIT_MISSING = 3, GO_ON = -1 };

enum { SENTENCE = 4096 };

/** Prints "gdp COMMAND: sentence" to stderr. EXIT_USAGE. */
__attribute__((format(printf, 2, 3))) int complain(const char *command, const char *format, ...);

/** The same with a sentence of the library; the exit status that goes with `status`. */
int complain_status(const char *command, gdp_status status, const char *sentence);
int exit_status(gdp_status status);

/* ---- options ---- */

typedef enum option_kind {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char * */
    OPTION_INT,    /* int64_t, from low to high */
    OPTION_REAL,   /* double, finite */
    OPTION_DTYPE,  /* gdp_dtype of q, k, v */
    OPTION_GATE,   /* gdp_dtype or none */
    OPTION_TARGET, /* gdp_target */
    OPTION_ARCH    /* int64_t: "sm_90" or "90" */
} option_kind;

typedef struct option_spec {
    const char *name;
    char letter; /* 0: none */
    option_kind kind;
    void *value;
    const char *argument, *help;
    int64_t low, high;
} option_spec;

typedef struct command_spec {
    const char *name, *arguments, *summary;
    const option_spec *options;
    size_t option_count;
    int least, most; /* operands; most < 0: any number */
} command_spec;

/** Reads options; argv[*first] ... are the operands. GO_ON, or the status to exit with. */
int read_options(const command_spec *command, int argc, char **argv, int *first);

bool read_integer(const char *text, int64_t low, int64_t high, int64_t *value);
bool read_real(const char *text, double *value);
/** "sm_90" or "90", of `length` bytes. */
bool read_arch(const char *text, size_t length, int64_t *arch);

const char *dtype_name(gdp_dtype dtype);
const char *target_name(gdp_target target);

/* ---- contexts, time, output ---- */

/** A context whose warnings go to stderr. threads 0, cache_dir NULL: the defaults. */
gdp_status open_context(gdp_target target, int64_t threads, const char *cache_dir,
                        gdp_context **context);

/** Seconds since some moment. */
double seconds(void);

/** One aligned line "  label        text". */
__attribute__((format(printf, 2, 3))) void print_row(const char *label, const char *format, ...);

/** A time as people read it, "1.234 ms". */
typedef struct time_text {
    char text[32];
} time_text;
time_text show_time(double duration);

/** Prints and releases; 0, or EXIT_CHECK where there was no memory for it. */
int print_json(const char *command, cJSON *object);

/** 64-byte aligned and zeroed, at least one byte. Released by free. */
void *allocate_zeroed(size_t bytes);

/* ---- the commands ---- */

int command_info(int argc, char **argv);
int command_sample(int argc, char **argv);
int command_run(int argc, char **argv);
int command_emit(int argc, char **argv);
int command_compile(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_bench(int argc, char **argv);

#endif
