/* Options, from one table a command. */
#include "common.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPTIONS = 32, FIRST_CODE = 1000, HELP_CODE = 999 };

bool read_integer(const char *text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    if (!*text || strspn(text, "-0123456789") != strlen(text)) return false;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    if (errno || *end || end == text || number < low || number > high) return false;
    *value = number;
    return true;
}

bool read_real(const char *text, double *value)
{
    char *end;
    if (!*text || strspn(text, "+-.0123456789eE") != strlen(text)) return false;
    const double number = strtod(text, &end);
    if (*end || end == text || !isfinite(number)) return false;
    *value = number;
    return true;
}

bool read_arch(const char *text, size_t length, int64_t *arch)
{
    char digits[4] = "";
    if (length >= 3 && strncmp(text, "sm_", 3) == 0) text += 3, length -= 3;
    if (length < 2 || length > 3) return false;
    memcpy(digits, text, length);
    return read_integer(digits, 10, 999, arch);
}

static void print_help(const command_spec *command)
{
    printf("usage: gdp %s [OPTION ...]%s%s\n\n%s\n\n", command->name,
           *command->arguments ? " " : "", command->arguments, command->summary);
    for (size_t i = 0; i <= command->option_count; i++) {
        const option_spec help = { .name = "help", .letter = 'h', .help = "this text" };
        const option_spec *option = i < command->option_count ? &command->options[i] : &help;
        char left[64];
        snprintf(left, sizeof left, "%c%c%s --%s%s%s", option->letter ? '-' : ' ',
                 option->letter ? option->letter : ' ', option->letter ? "," : " ", option->name,
                 option->argument ? " " : "", option->argument ? option->argument : "");
        printf("  %-32s %s\n", left, option->help);
    }
}

static bool read_dtype(const char *text, bool none, gdp_dtype *dtype)
{
    static const gdp_dtype accepted[] = { GDP_DTYPE_NONE, GDP_DTYPE_F32, GDP_DTYPE_BF16,
                                          GDP_DTYPE_F16 };
    for (size_t i = none ? 0 : 1; i < sizeof accepted / sizeof *accepted; i++)
        if (strcmp(text, dtype_name(accepted[i])) == 0) {
            *dtype = accepted[i];
            return true;
        }
    return false;
}

static bool read_target(const char *text, gdp_target *target)
{
    static const gdp_target accepted[] = { GDP_TARGET_AUTO, GDP_TARGET_HOST, GDP_TARGET_CUDA,
                                           GDP_TARGET_REFERENCE };
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
        if (strcmp(text, target_name(accepted[i])) == 0) {
            *target = accepted[i];
            return true;
        }
    return false;
}

static int store(const command_spec *command, const option_spec *option, const char *text)
{
    const char *name = option->name;
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)option->value = true;
        return GO_ON;
    case OPTION_TEXT:
        *(const char **)option->value = text;
        return GO_ON;
    case OPTION_INT:
        if (read_integer(text, option->low, option->high, option->value)) return GO_ON;
        return complain(command->name, "--%s is '%s'; accepted is a whole number from %lld to %lld",
                        name, text, (long long)option->low, (long long)option->high);
    case OPTION_REAL:
        if (read_real(text, option->value)) return GO_ON;
        return complain(command->name, "--%s is '%s'; accepted is a number", name, text);
    case OPTION_DTYPE:
        if (read_dtype(text, false, option->value)) return GO_ON;
        return complain(command->name, "--%s is '%s'; accepted are bf16, f16, f32", name, text);
    case OPTION_GATE:
        if (read_dtype(text, true, option->value)) return GO_ON;
        return complain(command->name, "--%s is '%s'; accepted are none, bf16, f16, f32", name,
                        text);
    case OPTION_TARGET:
        if (read_target(text, option->value)) return GO_ON;
        return complain(command->name, "--%s is '%s'; accepted are auto, host, cuda, reference",
                        name, text);
    case OPTION_ARCH:
        if (read_arch(text, strlen(text), option->value)) return GO_ON;
        return complain(command->name, "--%s is '%s'; accepted is an architecture like sm_90", name,
                        text);
    }
    return EXIT_USAGE;
}

static int refuse_option(const command_spec *command, int code, char **argv,
                         const struct option *table)
{
    const char *word = optind > 0 ? argv[optind - 1] : "";
    if (code == ':') return complain(command->name, "option '%s' needs a value", word);
    for (const struct option *known = table; known->name; known++)
        if (optopt == known->val)
            return complain(command->name, "option '--%s' takes no value", known->name);
    if (optopt > 0 && optopt < 128)
        return complain(command->name,
                        "option '-%c' is not known; 'gdp %s --help' lists the accepted ones",
                        optopt, command->name);
    return complain(command->name,
                    "option '%s' is not known; 'gdp %s --help' lists the accepted ones", word,
                    command->name);
}

int read_options(const command_spec *command, int argc, char **argv, int *first)
{
    struct option table[MOST_OPTIONS + 2];
    char letters[2 * MOST_OPTIONS + 4] = ":h";
    memset(table, 0, sizeof table);
    for (size_t i = 0; i < command->option_count; i++) {
        const option_spec *option = &command->options[i];
        const int argument = option->kind == OPTION_FLAG ? no_argument : required_argument;
        table[i] = (struct option){ option->name, argument, NULL, FIRST_CODE + (int)i };
        const size_t at = strlen(letters);
        if (option->letter)
            snprintf(letters + at, sizeof letters - at, "%c%s", option->letter,
                     argument ? ":" : "");
    }
    table[command->option_count] = (struct option){ "help", no_argument, NULL, HELP_CODE };
    opterr = 0;
    optind = 1;
    for (int code; (code = getopt_long(argc, argv, letters, table, NULL)) != -1;) {
        if (code == 'h' || code == HELP_CODE) {
            print_help(command);
            return 0;
        }
        if (code == '?' || code == ':') return refuse_option(command, code, argv, table);
        const option_spec *found = NULL;
        for (size_t i = 0; i < command->option_count; i++)
            if (code == FIRST_CODE + (int)i || (code < 128 && code == command->options[i].letter))
                found = &command->options[i];
        const int result = found ? store(command, found, optarg) : EXIT_USAGE;
        if (result != GO_ON) return result;
    }
    *first = optind;
    if (argc - optind < command->least)
        return complain(command->name, "an argument is missing: gdp %s %s", command->name,
                        command->arguments);
    if (command->most >= 0 && argc - optind > command->most)
        return complain(command->name, "'%s' is one argument too many: gdp %s %s",
                        argv[optind + command->most], command->name, command->arguments);
    return GO_ON;
}
