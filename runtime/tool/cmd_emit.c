/* gdp emit */
#include <stdio.h>
#include <string.h>

#include "common.h"
#include "problem_options.h"

static int refuse_kernel(const char *kernel)
{
    char list[1024] = "";
    for (int i = 0; gdp_kernel_name(i); i++) {
        const size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", gdp_kernel_name(i));
    }
    if (!kernel) return complain("emit", "--kernel is missing; accepted are %s", list);
    return complain("emit", "--kernel is '%s'; accepted are %s", kernel, list);
}

int command_emit(int argc, char **argv)
{
    gdp_problem problem = gdp_problem_default();
    gdp_config config = { .target = GDP_TARGET_HOST };
    const char *kernel = NULL;
    const option_spec options[] = {
        { "kernel", 'k', OPTION_TEXT, &kernel, "NAME", "which kernel; a wrong name lists them", 0,
          0 },
        { "target", 0, OPTION_TARGET, &config.target, "TARGET", "host or cuda; host", 0, 0 },
        { "arch", 0, OPTION_ARCH, &config.arch, "SM",
          "of cuda, as sm_90; else that of this machine's GPU", 0, 0 },
        CLASS_OPTIONS(&problem),
        CONFIG_OPTIONS(&config),
    };
    const command_spec command = {
        "emit",
        "",
        "Prints the source of a kernel as it is generated for a problem and a configuration.",
        options,
        sizeof options / sizeof *options,
        0,
        0,
    };
    int first = 0;
    const int result = read_options(&command, argc, argv, &first);
    if (result != GO_ON) return result;

    bool known = false;
    for (int i = 0; kernel && gdp_kernel_name(i); i++)
        known |= strcmp(kernel, gdp_kernel_name(i)) == 0;
    if (!known) return refuse_kernel(kernel);
    gdp_context *context = NULL;
    char *source = NULL;
    gdp_status status = open_context(GDP_TARGET_AUTO, 0, "", &context);
    if (status == GDP_OK) status = gdp_emit_source(context, kernel, &problem, &config, &source);
    const int code = complain_status("emit", status, gdp_last_error());
    if (source) {
        fputs(source, stdout);
        gdp_release_text(context, source);
    }
    gdp_context_destroy(context);
    return code;
}
