/* Structs as texts "name=value name=value ...", by tables that schema_h.lua makes of schema.lua.
 * Independent of the locale. A field is an int64_t, or an enum of the size of int. */
#ifndef GDPI_FIELDS_H
#define GDPI_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gdpi_field {
    const char *name, *doc;
    size_t offset;
    bool is_enum;
    bool is_class; /**< a kernel is specialised for it */
    int64_t min, max, default_value;
    const char *const *names; /**< of an enum's values by number, NULL at the end */
    uint64_t accepted;        /**< of an enum: bit i: value i is accepted */
} gdpi_field;

/** Prints all fields, or those with is_class. As snprintf: the length without the end, whether it
 * fitted or not. The values must pass gdpi_fields_check; a number that is no enum value prints as
 * "?". */
int gdpi_fields_print(const gdpi_field *fields, size_t count, const void *object, char *out,
                      size_t capacity);
int gdpi_fields_print_class(const gdpi_field *fields, size_t count, const void *object, char *out,
                            size_t capacity);

/** Reads such a text into *object; fields not named keep their values. 0, or 1 with a sentence in
 * `error` that names field, value and what is accepted, and *object as it was. count <= 64. */
int gdpi_fields_parse(const gdpi_field *fields, size_t count, void *object, const char *text,
                      char *error, size_t error_capacity);

/** 0 where every field's value is accepted, else 1 with such a sentence. */
int gdpi_fields_check(const gdpi_field *fields, size_t count, const void *object, char *error,
                      size_t error_capacity);

void gdpi_fields_default(const gdpi_field *fields, size_t count, void *object);

/** One field's value. */
int64_t gdpi_field_get(const gdpi_field *field, const void *object);
void gdpi_field_set(const gdpi_field *field, void *object, int64_t value);

#endif
