/* This thread's sentence, and the names of the statuses. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Room for a compiler's log. */
enum { SENTENCE_CAPACITY = 16 * 1024 };

static _Thread_local char sentence[SENTENCE_CAPACITY];

gdp_status gdpi_fail(gdp_status status, const char *format, ...)
{
    /* The arguments may point into the sentence itself: it is often quoted in the next one. */
    char text[SENTENCE_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0) strcpy(text, "(the sentence of this error could not be formatted)");
    memcpy(sentence, text, strlen(text) + 1);
    return status;
}

const char *gdp_last_error(void) { return sentence; }

const char *gdp_status_name(gdp_status status)
{
    switch (status) {
#define ENTRY(name, number, meaning) \
    case GDP_STATUS_##name:          \
        return #name;
        GDP_STATUS_LIST(ENTRY)
#undef ENTRY
    default:
        return "?";
    }
}

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *gdp_version(void)
{
    return VERSION_TEXT(GDP_VERSION_MAJOR, GDP_VERSION_MINOR, GDP_VERSION_PATCH);
}
