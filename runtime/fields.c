#include "fields.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- bounded output ---- */

typedef struct writer {
    char *out;
    size_t capacity, length;
} writer;

static __attribute__((format(printf, 2, 3))) void put(writer *to, const char *format, ...)
{
    const size_t left = to->length < to->capacity ? to->capacity - to->length : 0;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(left ? to->out + to->length : NULL, left, format, arguments);
    va_end(arguments);
    if (length > 0) to->length += (size_t)length;
}

/* An empty result is a text too. */
static writer new_writer(char *out, size_t capacity)
{
    if (capacity) out[0] = '\0';
    return (writer){ out, capacity, 0 };
}

/* ---- values ---- */

int64_t gdpi_field_get(const gdpi_field *field, const void *object)
{
    const char *at = (const char *)object + field->offset;
    if (field->is_enum) {
        int value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    int64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

void gdpi_field_set(const gdpi_field *field, void *object, int64_t value)
{
    char *at = (char *)object + field->offset;
    if (field->is_enum) {
        const int number = (int)value;
        memcpy(at, &number, sizeof number);
    } else {
        memcpy(at, &value, sizeof value);
    }
}

static bool is_accepted(const gdpi_field *field, int64_t value)
{
    if (value < field->min || value > field->max) return false;
    return !field->is_enum || (field->accepted >> value & 1) != 0;
}

/* The rest of a sentence that began with the field and its value. */
static void put_accepted(writer *to, const gdpi_field *field)
{
    if (!field->is_enum) {
        put(to, "must be an integer from %" PRId64 " to %" PRId64, field->min, field->max);
        return;
    }
    put(to, "must be one of ");
    const char *between = "";
    for (int64_t i = 0; i <= field->max; i++) {
        if (!is_accepted(field, i)) continue;
        put(to, "%s%s", between, field->names[i]);
        between = ", ";
    }
}

/* ---- print, check, default ---- */

static int print(const gdpi_field *fields, size_t count, bool only_class, const void *object,
                 char *out, size_t capacity)
{
    writer to = new_writer(out, capacity);
    for (size_t i = 0; i < count; i++) {
        const gdpi_field *field = &fields[i];
        if (only_class && !field->is_class) continue;
        const int64_t value = gdpi_field_get(field, object);
        put(&to, "%s%s=", to.length ? " " : "", field->name);
        if (!field->is_enum)
            put(&to, "%" PRId64, value);
        else
            put(&to, "%s", value >= 0 && value <= field->max ? field->names[value] : "?");
    }
    return (int)to.length;
}

int gdpi_fields_print(const gdpi_field *fields, size_t count, const void *object, char *out,
                      size_t capacity)
{
    return print(fields, count, false, object, out, capacity);
}

int gdpi_fields_print_class(const gdpi_field *fields, size_t count, const void *object, char *out,
                            size_t capacity)
{
    return print(fields, count, true, object, out, capacity);
}

int gdpi_fields_check(const gdpi_field *fields, size_t count, const void *object, char *error,
                      size_t error_capacity)
{
    for (size_t i = 0; i < count; i++) {
        const gdpi_field *field = &fields[i];
        const int64_t value = gdpi_field_get(field, object);
        if (is_accepted(field, value)) continue;
        writer to = new_writer(error, error_capacity);
        if (field->is_enum && value >= 0 && value <= field->max)
            put(&to, "%s=%s: ", field->name, field->names[value]);
        else
            put(&to, "%s=%" PRId64 ": ", field->name, value);
        put_accepted(&to, field);
        return 1;
    }
    return 0;
}

void gdpi_fields_default(const gdpi_field *fields, size_t count, void *object)
{
    for (size_t i = 0; i < count; i++) gdpi_field_set(&fields[i], object, fields[i].default_value);
}

/* ---- parse ---- */

/* A piece of the text. */
typedef struct word {
    const char *at;
    size_t length;
} word;

enum { MAX_QUOTED = 60 }; /* bytes of a wrong word that its sentence repeats */

static int quoted_length(word w) { return (int)(w.length < MAX_QUOTED ? w.length : MAX_QUOTED); }

static bool equals(word w, const char *name)
{
    return strlen(name) == w.length && memcmp(w.at, name, w.length) == 0;
}

static const char BLANKS[] = " \t\n\v\f\r";

static word next_word(const char **text)
{
    const char *start = *text + strspn(*text, BLANKS);
    *text = start + strcspn(start, BLANKS);
    return (word){ start, (size_t)(*text - start) };
}

static bool parse_integer(word w, int64_t *value)
{
    const bool negative = w.length > 0 && w.at[0] == '-';
    size_t i = negative;
    if (i == w.length) return false;
    int64_t sum = 0; /* kept negative, whose range is the larger */
    for (; i < w.length; i++) {
        if (w.at[i] < '0' || w.at[i] > '9') return false;
        const int digit = w.at[i] - '0';
        if (sum < (INT64_MIN + digit) / 10) return false;
        sum = sum * 10 - digit;
    }
    if (!negative && sum == INT64_MIN) return false;
    *value = negative ? sum : -sum;
    return true;
}

static bool parse_value(const gdpi_field *field, word w, int64_t *value)
{
    if (!field->is_enum) return parse_integer(w, value) && is_accepted(field, *value);
    for (int64_t i = 0; i <= field->max; i++) {
        if (!equals(w, field->names[i])) continue;
        *value = i;
        return is_accepted(field, i);
    }
    return false;
}

static const gdpi_field *find_field(const gdpi_field *fields, size_t count, word name)
{
    for (size_t i = 0; i < count; i++)
        if (equals(name, fields[i].name)) return &fields[i];
    return NULL;
}

static void put_unknown(writer *to, const gdpi_field *fields, size_t count, word name)
{
    put(to, "unknown field '%.*s'; known are ", quoted_length(name), name.at);
    for (size_t i = 0; i < count; i++) put(to, "%s%s", i ? ", " : "", fields[i].name);
}

/* One word "name=value"; object NULL: only checks it. */
static int parse_word(const gdpi_field *fields, size_t count, void *object, word w, uint64_t *seen,
                      writer *error)
{
    const char *equal = memchr(w.at, '=', w.length);
    const word name = { w.at, equal ? (size_t)(equal - w.at) : 0 };
    if (!equal || name.length == 0 || name.length + 1 == w.length) {
        put(error, "'%.*s' is not of the form name=value", quoted_length(w), w.at);
        return 1;
    }
    const word text = { equal + 1, w.length - name.length - 1 };
    const gdpi_field *field = find_field(fields, count, name);
    if (!field) {
        put_unknown(error, fields, count, name);
        return 1;
    }
    const uint64_t bit = UINT64_C(1) << (field - fields);
    if (*seen & bit) {
        put(error, "%s is given twice", field->name);
        return 1;
    }
    *seen |= bit;
    int64_t value = 0;
    if (!parse_value(field, text, &value)) {
        put(error, "%s=%.*s: ", field->name, quoted_length(text), text.at);
        put_accepted(error, field);
        return 1;
    }
    if (object) gdpi_field_set(field, object, value);
    return 0;
}

/* Twice over the text: nothing is stored before everything is known to be right. */
int gdpi_fields_parse(const gdpi_field *fields, size_t count, void *object, const char *text,
                      char *error, size_t error_capacity)
{
    writer to = new_writer(error, error_capacity);
    void *const targets[] = { NULL, object };
    for (int pass = 0; pass < 2; pass++) {
        const char *rest = text;
        uint64_t seen = 0;
        for (word w = next_word(&rest); w.length; w = next_word(&rest))
            if (parse_word(fields, count, targets[pass], w, &seen, &to)) return 1;
    }
    return 0;
}
