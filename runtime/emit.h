/* The generator (generator/, templates/) as three C calls; emit.c is the only file that knows Lua.
 * Texts in, texts out: nothing is kept between calls, so any number of threads may call at once. */
#ifndef GDPI_EMIT_H
#define GDPI_EMIT_H

#include <stddef.h>

/** A file in the library, made by generator/embed.lua; name NULL: the end. */
typedef struct gdpi_embedded {
    const char *name;
    const unsigned char *data;
    size_t size;
} gdpi_embedded;

extern const gdpi_embedded gdpi_embedded_files[];

typedef struct gdpi_generator {
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *memory);
    void *user;
    /** Where templates are looked for first, "<dir>/host/forward_scan.ct"; one missing there is
     * taken from the library. NULL: only the library's. */
    const char *template_dir;
    /** Lua instructions after which a call is given up; 0: 200 million. */
    int instructions;
} gdpi_generator;

/** Bytes with an end that is not counted; the caller releases `data` with the generator's hook. */
typedef struct gdpi_text {
    char *data;
    size_t size;
} gdpi_text;

enum gdpi_generator_result {
    GDPI_GENERATOR_OK = 0,
    GDPI_GENERATOR_ERROR = 1, /**< the sentence is in `error`, "file:line: ..." for a template's */
    GDPI_GENERATOR_OUT_OF_MEMORY = 2 /**< `error` says so too */
};

/** Completes `request` into a configuration for `problem` (texts of fields.h), for a device or host of
 * so many processors. areas_out: "name=bytes ..." over schema.areas. */
int gdpi_generator_configure(const gdpi_generator *generator, const char *problem,
                             const char *request, int processors, char *config_out,
                             size_t config_capacity, char *areas_out, size_t areas_capacity,
                             char *error, size_t error_capacity);

/** The kernel's source, and "name=integer ..." that its template notes about it. On failure both
 * are empty. */
int gdpi_generator_emit(const gdpi_generator *generator, const char *kernel, const char *problem,
                        const char *config, gdpi_text *source, gdpi_text *meta, char *error,
                        size_t error_capacity);

#endif
