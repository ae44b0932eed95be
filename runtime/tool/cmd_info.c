/* gdp info */
#include <stdio.h>

#include "common.h"

static int print_as_json(const gdp_context_info *info)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "version", gdp_version());
    cJSON_AddStringToObject(object, "target", target_name(info->target));
    cJSON_AddNumberToObject(object, "threads", info->threads);
    cJSON_AddNumberToObject(object, "arch", info->arch);
    cJSON_AddNumberToObject(object, "processors", info->processors);
    const struct {
        const char *name, *text;
    } rows[] = {
        { "device", info->device },
        { "processor", info->processor },
        { "compiler", info->compiler },
        { "cache_dir", info->cache_dir },
        { "template_dir", info->template_dir },
        { "cuda", info->cuda },
        { "nvrtc", info->nvrtc },
        { "nccl", info->nccl },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].text)
            cJSON_AddStringToObject(object, rows[i].name, rows[i].text);
        else
            cJSON_AddNullToObject(object, rows[i].name);
    }
    return print_json("info", object);
}

int command_info(int argc, char **argv)
{
    bool json = false;
    const option_spec options[] = {
        { "json", 0, OPTION_FLAG, &json, NULL, "print JSON", 0, 0 },
    };
    const command_spec command = {
        "info", "", "What this machine offers and where things are.", options, 1, 0, 0,
    };
    int first = 0;
    const int result = read_options(&command, argc, argv, &first);
    if (result != GO_ON) return result;

    gdp_context *context = NULL;
    gdp_context_info info = { 0 };
    gdp_status status = open_context(GDP_TARGET_AUTO, 0, NULL, &context);
    if (status == GDP_OK) status = gdp_context_get_info(context, &info);
    int code = complain_status("info", status, gdp_last_error());
    if (code == 0 && json) {
        code = print_as_json(&info);
    } else if (code == 0) {
        printf("gdp %s\n", gdp_version());
        print_row("target", "%s", target_name(info.target));
        if (info.device)
            print_row("device", "%s, sm_%d, %d multiprocessors", info.device, info.arch,
                      info.processors);
        print_row("processor", "%s", info.processor ? info.processor : "unknown");
        print_row("threads", "%d", info.threads);
        print_row("compiler", "%s",
                  info.compiler ? info.compiler : "none found; set GDP_CC to one");
        print_row("cache", "%s", info.cache_dir ? info.cache_dir : "none");
        print_row("templates", "%s",
                  info.template_dir ? info.template_dir : "those in the library");
        print_row("CUDA", "%s", info.cuda ? info.cuda : "unknown");
        print_row("NVRTC", "%s", info.nvrtc ? info.nvrtc : "unknown");
        print_row("NCCL", "%s", info.nccl ? info.nccl : "unknown");
    }
    gdp_context_destroy(context);
    return code;
}
