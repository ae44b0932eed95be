/* gdp bench: the workloads that count. */
#include <string.h>

#include "bench.h"

static const workload workloads[] = {
    { "production", 128, 64, 3, 1, 32768, 8, 32, 1, 1, 4, 1 },
    { "main", 128, 128, 2, 1, 32768, 16, 16, 1, 4, 4, 1 },
    { "batch", 128, 128, 2, 4, 8192, 16, 16, 4, 2, 2, 1 },
    { "long", 128, 128, 2, 1, 131072, 8, 8, 1, 1, 1, 4 },
    { "n4", 128, 128, 4, 1, 32768, 16, 16, 1, 4, 4, 1 },
    { "gdn", 128, 128, 1, 1, 32768, 16, 32, 1, 2, 4, 1 },
    { "many", 128, 128, 1, 8, 1024, 16, 64, 8, 1, 4, 1 },
};
enum { WORKLOADS = sizeof workloads / sizeof *workloads };

static const workload *find(const char *name)
{
    for (int i = 0; i < WORKLOADS; i++)
        if (strcmp(name, workloads[i].name) == 0) return &workloads[i];
    complain("bench",
             "'%s' is no workload; accepted are production, main, batch, long, n4, gdn, many",
             name);
    return NULL;
}

static int read_gate(const char *text, bench_gate *gate)
{
    static const char *const names[] = { "strong", "weak", "none" };
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *gate = (bench_gate)i;
            return 0;
        }
    return complain("bench", "--gate is '%s'; accepted are strong, weak, none", text);
}

/* What --target auto means here. */
static int settle_target(bench_options *o)
{
    gdp_context *context = NULL;
    gdp_context_info info = { 0 };
    gdp_status status = open_context(o->target, 0, NULL, &context);
    if (status == GDP_OK) status = gdp_context_get_info(context, &info);
    const int code = complain_status("bench", status, gdp_last_error());
    if (info.target != GDP_TARGET_AUTO) o->target = info.target;
    gdp_context_destroy(context);
    return code;
}

static int run(bench_options *o, const char *config_text, const char *gate, int count, char **names)
{
    const workload *works[WORKLOADS];
    if (count > WORKLOADS)
        return complain("bench", "%d names; accepted are up to %d", count, (int)WORKLOADS);
    for (int i = 0; i < count; i++)
        if (!(works[i] = find(names[i]))) return EXIT_USAGE;
    if (count == 0)
        for (; count < WORKLOADS; count++) works[count] = &workloads[count];
    if (config_text && gdp_config_parse(config_text, &o->config) != GDP_OK)
        return complain("bench", "--config: %s", gdp_last_error());
    if (read_gate(gate, &o->gate)) return EXIT_USAGE;
    if (!(o->beta >= 0 && o->beta <= 2) || !(o->bandwidth > 0) || !(o->matrix > 0))
        return complain("bench",
                        "--beta is %g, --bandwidth %g, --matrix %g; accepted are a beta "
                        "from 0 to 2 and others above 0",
                        o->beta, o->bandwidth, o->matrix);
    const int code = settle_target(o);
    if (code) return code;
    if (o->target == GDP_TARGET_CUDA) return bench_cuda(o, works, count);
    if (o->target == GDP_TARGET_HOST) return bench_host(o, works, count);
    return complain("bench", "--target is %s; accepted are auto, cuda and host",
                    target_name(o->target));
}

int command_bench(int argc, char **argv)
{
    bench_options o = { .beta = 1, .bandwidth = 4.3, .matrix = 790 };
    const char *config_text = NULL, *gate = "strong";
    const option_spec options[] = {
        { "target", 0, OPTION_TARGET, &o.target, "TARGET", "auto, host or cuda", 0, 0 },
        { "tokens", 't', OPTION_INT, &o.tokens, "T",
          "of a batch row; on CUDA the workload's, on the host 2048", 1, 1 << 24 },
        { "threads", 0, OPTION_INT, &o.threads, "N", "host: for the scaling; one a core", 1, 4096 },
        { "repeat", 0, OPTION_INT, &o.repeat, "R", "times each; on CUDA 50, on the host 5", 1,
          1000 },
        { "config", 0, OPTION_TEXT, &config_text, "\"chunk=32 ..\"",
          "CUDA: fix chunk, segment, block_v, stages, wave", 0, 0 },
        { "gate", 0, OPTION_TEXT, &gate, "KIND",
          "CUDA: strong, -0.1 uniform(0, 1); weak, a 50th of it; none", 0, 0 },
        { "beta", 0, OPTION_REAL, &o.beta, "X", "CUDA: beta is uniform(0, X); 1", 0, 0 },
        { "bandwidth", 0, OPTION_REAL, &o.bandwidth, "TB/s",
          "CUDA: for the floor; 4.3, a copy on one H200", 0, 0 },
        { "matrix", 0, OPTION_REAL, &o.matrix, "TFLOP/s",
          "CUDA: for the floor; 790, bf16 on one H200", 0, 0 },
        { "json", 0, OPTION_FLAG, &o.json, NULL, "print JSON", 0, 0 },
    };
    const command_spec command = {
        "bench",
        "[NAME ...]",
        "Times forward and backward. Workloads: production, main, batch, long, n4, gdn, many; "
        "without\n"
        "a name, all. On CUDA at full size, beside a floor of time. On the host cut down to take\n"
        "seconds, beside a plain recurrence.",
        options,
        sizeof options / sizeof *options,
        0,
        -1,
    };
    int first = 0;
    const int result = read_options(&command, argc, argv, &first);
    if (result != GO_ON) return result;
    return run(&o, config_text, gate, argc - first, argv + first);
}
