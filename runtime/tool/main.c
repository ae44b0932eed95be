/* The command gdp: a client of gdp.h and of nothing else of the library. */
#include <stdio.h>
#include <string.h>

#include "common.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    { "info", command_info, "versions, the processor, the compiler, CUDA, the cache" },
    { "sample", command_sample, "write a random, well-formed input file" },
    { "run", command_run, "run a layer over a file, on one rank or several, and check it" },
    { "verify", command_verify, "compare random problems with the float64 reference" },
    { "bench", command_bench, "time the workloads that count" },
    { "emit", command_emit, "print the source of a generated kernel" },
    { "compile", command_compile, "compile CUDA kernels, with no GPU, and say what they need" },
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(FILE *out)
{
    fputs("usage: gdp COMMAND [OPTION ...]\n\nGated DeltaProduct layers over context-parallel "
          "groups.\n\n",
          out);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
    fputs("\n'gdp COMMAND --help' lists a command's options; 'gdp --version' the version.\n"
          "Exit status: 0 all is well, 1 a check failed, 2 bad usage or input, 3 not available "
          "here.\n",
          out);
}

/* What was printed must have arrived. */
static int finish(int status)
{
    const int failed = ferror(stdout) || fflush(stdout) != 0;
    if (failed && status == 0) return complain(NULL, "the standard output cannot be written");
    return status;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return finish(commands[i].run(argc - 1, argv + 1));
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return finish(0);
    }
    if (strcmp(name, "--version") == 0) {
        printf("gdp %s\n", gdp_version());
        return finish(0);
    }
    if (!*name) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    return complain(NULL, "'%s' is no command; 'gdp --help' lists them", name);
}
