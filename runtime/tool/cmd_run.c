/* gdp run */
#include <stdio.h>
#include <string.h>

#include "runner.h"

typedef struct run_options {
    const char *output, *transport, *config_text;
    int64_t num_householder, ranks, threads;
    double scale;
    gdp_target target;
    bool backward, verify, json;
} run_options;

/* Everything that is printed. */
typedef struct outcome {
    const char *path;
    const layer *it;
    const run_options *options;
    gdp_context_info info;
    gdp_context_counters counters;
    run_report report, reference;
    deviation deviations[RESULTS];
    bool fine;
} outcome;

static double tokens_per_second(const outcome *o)
{
    const double time = o->report.forward + o->report.backward;
    return time > 0 ? (double)o->it->problem.batch * (double)o->it->problem.tokens / time : 0;
}

static int print_as_json(const outcome *o)
{
    char problem[512] = "", config[512] = "";
    (void)gdp_problem_print(&o->it->problem, problem, sizeof problem);
    (void)gdp_config_print(&o->report.config, config, sizeof config);
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "input", o->path);
    cJSON_AddStringToObject(object, "problem", problem);
    cJSON_AddStringToObject(object, "config", config);
    cJSON_AddNumberToObject(object, "ranks", (double)o->options->ranks);
    if (o->info.device) cJSON_AddStringToObject(object, "device", o->info.device);
    cJSON_AddStringToObject(object, "processor", o->info.processor ? o->info.processor : "unknown");
    cJSON_AddNumberToObject(object, "threads", o->info.threads);
    cJSON_AddNumberToObject(object, "prepare_seconds", o->report.prepare);
    cJSON_AddNumberToObject(object, "forward_seconds", o->report.forward);
    if (o->options->backward)
        cJSON_AddNumberToObject(object, "backward_seconds", o->report.backward);
    if (o->options->ranks == 1)
        cJSON_AddNumberToObject(object, "forward_launch_seconds", o->report.forward_launch);
    if (o->options->ranks == 1 && o->options->backward)
        cJSON_AddNumberToObject(object, "backward_launch_seconds", o->report.backward_launch);
    cJSON_AddNumberToObject(object, "tokens_per_second", tokens_per_second(o));
    cJSON_AddNumberToObject(object, "compilations", (double)o->counters.compilations);
    if (o->options->verify) {
        cJSON *errors = cJSON_AddObjectToObject(object, "errors");
        for (int r = 0; r < RESULTS; r++) {
            if (!o->deviations[r].present) continue;
            cJSON *entry = cJSON_AddObjectToObject(errors, result_names[r]);
            cJSON_AddNumberToObject(entry, "error", o->deviations[r].error);
            cJSON_AddNumberToObject(entry, "bound", o->deviations[r].bound);
        }
        cJSON_AddBoolToObject(object, "passed", o->fine);
    }
    return print_json("run", object);
}

static void print_errors(const outcome *o)
{
    printf("\nerrors against the float64 reference (took %s)\n",
           show_time(o->reference.forward + o->reference.backward).text);
    for (int r = 0; r < RESULTS; r++) {
        const deviation *d = &o->deviations[r];
        if (d->present)
            print_row(result_names[r], "%.2e  of at most %.0e  %s", d->error, d->bound,
                      d->error <= d->bound ? "ok" : "TOO LARGE");
    }
}

static void print_problem(const gdp_problem *p)
{
    if (p->sequences)
        print_row("shape", "%lld tokens in %lld packed sequences", (long long)p->tokens,
                  (long long)p->sequences);
    else
        print_row("shape", "%lld x %lld tokens", (long long)p->batch, (long long)p->tokens);
    print_row("heads", "%lld query/key of %lld, %lld value of %lld", (long long)p->heads,
              (long long)p->dim_k, (long long)p->value_heads, (long long)p->dim_v);
    print_row("layer", "%lld updates a token, %s, gate %s, beta %s", (long long)p->num_householder,
              dtype_name(p->dtype), dtype_name(p->gate_dtype), dtype_name(p->beta_dtype));
}

static void print_place(const outcome *o)
{
    char config[512] = "";
    const gdp_target target = o->report.config.target;
    const int64_t ranks = o->options->ranks;
    print_row("target", "%s", target_name(target));
    if (target != GDP_TARGET_REFERENCE &&
        gdp_config_print(&o->report.config, config, sizeof config) == GDP_OK)
        print_row("configuration", "%s", config);
    print_row("ranks", "%lld%s", (long long)ranks, ranks > 1 ? " threads, one context" : "");
    if (target == GDP_TARGET_CUDA)
        print_row("device", "%s, sm_%d", o->info.device ? o->info.device : "unknown", o->info.arch);
    else
        print_row("processor", "%s, %d thread%s", o->info.processor ? o->info.processor : "unknown",
                  o->info.threads, o->info.threads == 1 ? "" : "s");
}

/* A call returns before the device is done; how long the host is busy with it is a time of its own. */
static void print_duration(const outcome *o, const char *label, double time, double launch)
{
    if (o->report.config.target == GDP_TARGET_CUDA && o->options->ranks == 1)
        print_row(label, "%s on the device, %s on the host to launch it", show_time(time).text,
                  show_time(launch).text);
    else
        print_row(label, "%s", show_time(time).text);
}

static void print_table(const outcome *o)
{
    const run_options *options = o->options;
    printf("%s\n", o->path);
    print_problem(&o->it->problem);
    print_place(o);
    print_row("kernel cache", "%s", o->info.cache_dir ? o->info.cache_dir : "none");
    print_row("preparation", "%s, %llu compiled", show_time(o->report.prepare).text,
              (unsigned long long)o->counters.compilations);
    print_duration(o, "forward", o->report.forward, o->report.forward_launch);
    if (options->backward)
        print_duration(o, "backward", o->report.backward, o->report.backward_launch);
    print_row("throughput", "%.0f tokens/s", tokens_per_second(o));
    print_row("memory", "%.1f MB of workspace, %.1f MB saved", 1e-6 * (double)o->report.workspace,
              1e-6 * (double)o->report.saved);
    if (options->verify) print_errors(o);
    if (options->output) printf("\nwritten: %s\n", options->output);
}

static int write_results(const char *path, const results *out)
{
    char error[ST_SENTENCE];
    st_tensor list[RESULTS];
    const int count = results_list(out, list);
    if (!st_write(path, list, (size_t)count, NULL, 0, error))
        return complain("run", "%s: %s", path, error);
    return 0;
}

static int compute(const run_options *options, const gdp_config *config, gdp_context *context,
                   const results *out, outcome *o)
{
    const run_settings settings = { context, *config, (int)options->ranks, options->backward, 1 };
    gdp_status status = run_layer(o->it, &settings, out, &o->report);
    if (status != GDP_OK) return complain_status("run", status, o->report.error);
    status = gdp_context_get_info(context, &o->info);
    if (status == GDP_OK) status = gdp_context_get_counters(context, &o->counters);
    if (status != GDP_OK) return complain_status("run", status, gdp_last_error());
    o->fine = true;
    if (!options->verify) return 0;
    status = check_layer(o->it, out, options->backward, options->threads, o->deviations, &o->fine,
                         &o->reference);
    return complain_status("run", status, o->reference.error);
}

static int run_file(const char *path, const run_options *options, const gdp_config *config)
{
    layer it;
    results out = { 0 };
    gdp_context *context = NULL;
    int code = layer_read("run", path, options->num_householder, options->scale, &it);
    if (code) return code;
    outcome o = { .path = path, .it = &it, .options = options };
    if (options->backward && !it.gradients.d_o.data)
        code = complain("run", "%s: it has no tensor 'do', which --backward needs", path);
    if (code == 0 && !results_make(&it.problem, options->backward, &out)) {
        complain("run", "no memory for the outputs");
        code = EXIT_MISSING;
    }
    if (code == 0)
        code =
            complain_status("run", open_context(options->target, options->threads, NULL, &context),
                            gdp_last_error());
    if (code == 0) code = compute(options, config, context, &out, &o);
    if (code == 0 && options->output) code = write_results(options->output, &out);
    if (code == 0 && options->json)
        code = print_as_json(&o);
    else if (code == 0)
        print_table(&o);
    if (code == 0 && !o.fine) {
        complain("run", "an error is larger than its bound");
        code = EXIT_CHECK;
    }
    gdp_context_destroy(context);
    results_release(&out);
    layer_release(&it);
    return code;
}

int command_run(int argc, char **argv)
{
    run_options o = { .ranks = 1 };
    gdp_config config = { 0 };
    const option_spec options[] = {
        { "output", 'o', OPTION_TEXT, &o.output, "OUT", "write the outputs to this file", 0, 0 },
        { "num-householder", 'n', OPTION_INT, &o.num_householder, "N",
          "updates a token; else the file's", 1, 16 },
        { "scale", 0, OPTION_REAL, &o.scale, "X", "of o; else the file's, else 1/sqrt(K)", 0, 0 },
        { "backward", 0, OPTION_FLAG, &o.backward, NULL, "gradients too; the file needs 'do'", 0,
          0 },
        { "ranks", 'r', OPTION_INT, &o.ranks, "R", "cut the tokens into R shards; 1", 1,
          MOST_RANKS },
        { "target", 0, OPTION_TARGET, &o.target, "TARGET", "auto, host, cuda or reference", 0, 0 },
        { "transport", 0, OPTION_TEXT, &o.transport, "KIND", "between ranks: local or nccl; local",
          0, 0 },
        { "verify", 0, OPTION_FLAG, &o.verify, NULL, "compare with the float64 reference", 0, 0 },
        { "config", 0, OPTION_TEXT, &o.config_text, "\"chunk=32 ..\"",
          "fix chunk, segment, block_v, stages, wave", 0, 0 },
        { "threads", 0, OPTION_INT, &o.threads, "N", "of the host target; one a core", 1, 4096 },
        { "json", 0, OPTION_FLAG, &o.json, NULL, "print JSON", 0, 0 },
    };
    const command_spec command = {
        "run",
        "IN.safetensors",
        "Runs a layer over tensors q, k, v, beta and, where present, g, do, cu_seqlens, "
        "initial_state,\n"
        "final_state_grad of a file. Writes o, final_state and, with --backward, dq, dk, dv, dg, "
        "dbeta,\n"
        "dinitial_state.",
        options,
        sizeof options / sizeof *options,
        1,
        1,
    };
    int first = 0;
    const int result = read_options(&command, argc, argv, &first);
    if (result != GO_ON) return result;
    if (o.config_text && gdp_config_parse(o.config_text, &config) != GDP_OK)
        return complain("run", "--config: %s", gdp_last_error());
    if (o.transport && strcmp(o.transport, "nccl") == 0) {
        complain("run", "--transport is nccl; this version has only local");
        return EXIT_MISSING;
    }
    if (o.transport && strcmp(o.transport, "local") != 0)
        return complain("run", "--transport is '%s'; accepted are local and nccl", o.transport);
    return run_file(argv[first], &o, &config);
}
