/* gdp compile */
#include "compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "problem_options.h"

typedef struct compile_options {
    const char *arch_text;
    gdp_problem problem;
    gdp_config config;
    bool all, json;
    int64_t threads;
} compile_options;

/* Everything that is compiled, and what came of it. */
typedef struct compilation {
    int64_t archs[MOST_ARCHS];
    int arch_count, unit_count, job_count, kernel_count;
    compile_unit *units;
    compile_job *jobs; /* kernel_count of them a unit */
    int threads, refused, failed, spilling;
    double time;
} compilation;

static int read_archs(const char *text, compilation *c)
{
    for (const char *at = text; *at;) {
        const size_t length = strcspn(at, ",");
        if (c->arch_count == MOST_ARCHS || !read_arch(at, length, &c->archs[c->arch_count]))
            return complain("compile",
                            "--arch is '%s'; accepted are up to %d architectures like sm_80,sm_90",
                            text, (int)MOST_ARCHS);
        c->arch_count++;
        at += length + (at[length] == ',');
    }
    return c->arch_count ? GO_ON : complain("compile", "--arch is empty");
}

/* Without --arch: the GPU's. */
static int default_arch(gdp_context *context, compilation *c)
{
    gdp_context_info info = { 0 };
    const gdp_status status = gdp_context_get_info(context, &info);
    if (status != GDP_OK) return complain_status("compile", status, gdp_last_error());
    if (info.arch == 0)
        return complain("compile", "--arch is missing, and there is no GPU to take it from; "
                                   "accepted are architectures like sm_80,sm_90");
    c->archs[c->arch_count++] = info.arch;
    return GO_ON;
}

/* ---- what is to be compiled ---- */

/* A source begins with the configuration that it was made for. */
static void complete_config(gdp_context *context, compile_unit *unit)
{
    char *source = NULL;
    if (gdp_emit_source(context, gdp_kernel_name(0), &unit->problem, &unit->config, &source))
        return;
    const char *begin = strstr(source, "chunk="), *end = begin ? strpbrk(begin, "*\n") : NULL;
    if (end)
        snprintf(unit->config_text, sizeof unit->config_text, "%.*s", (int)(end - begin), begin);
    gdp_release_text(context, source);
}

static bool plan_jobs(gdp_context *context, const compile_options *o, compilation *c)
{
    while (gdp_kernel_name(c->kernel_count)) c->kernel_count++;
    c->units = calloc(MOST_UNITS, sizeof *c->units);
    c->jobs = calloc((size_t)MOST_UNITS * (size_t)c->kernel_count, sizeof *c->jobs);
    if (!c->units || !c->jobs) return false;
    const gdp_config *f = &o->config;
    const bool chosen = !f->chunk && !f->segment && !f->block_v && !f->stages && !f->wave;
    for (int a = 0; a < c->arch_count; a++) {
        if (o->all) {
            c->unit_count = compile_grid(c->archs[a], a == 0, c->units, c->unit_count);
            continue;
        }
        compile_unit *unit = &c->units[c->unit_count++];
        *unit = (compile_unit){ .problem = o->problem, .config = *f, .chosen = chosen };
        unit->config.target = GDP_TARGET_CUDA;
        unit->config.arch = c->archs[a];
    }
    for (int u = 0; u < c->unit_count; u++) {
        complete_config(context, &c->units[u]);
        for (int k = 0; k < c->kernel_count; k++)
            c->jobs[c->job_count++] =
                (compile_job){ .unit = &c->units[u], .kernel = gdp_kernel_name(k) };
    }
    return true;
}

/* ---- what came of it ---- */

static const compile_job *jobs_of(const compilation *c, int unit)
{
    return &c->jobs[(size_t)unit * (size_t)c->kernel_count];
}

/* Constraints are on configurations: where one kernel is refused, all are. */
static bool is_refused(const compilation *c, int unit)
{
    return jobs_of(c, unit)->status == GDP_STATUS_UNSUPPORTED;
}

static const char *sentence_of(const compile_job *job)
{
    return job->sentence ? job->sentence : gdp_status_name(job->status);
}

static void count_results(compilation *c)
{
    for (int u = 0; u < c->unit_count; u++) {
        const compile_job *jobs = jobs_of(c, u);
        bool spills = false;
        if (is_refused(c, u)) {
            c->refused++;
            continue;
        }
        for (int k = 0; k < c->kernel_count; k++) {
            if (jobs[k].status != GDP_OK) c->failed++;
            spills = spills || jobs[k].report.spilled > 0;
        }
        if (spills && c->units[u].chosen) c->spilling++;
    }
}

/* The exit status: 3 without a compiler, 2 where nothing is accepted for an architecture. */
static int judge(const compilation *c)
{
    for (int j = 0; j < c->job_count; j++)
        if (c->jobs[j].status == GDP_STATUS_NOT_AVAILABLE)
            return complain_status("compile", c->jobs[j].status, sentence_of(&c->jobs[j]));
    for (int a = 0; a < c->arch_count; a++) {
        const compile_job *refusal = NULL;
        bool accepted = false;
        for (int u = 0; u < c->unit_count; u++) {
            if (c->units[u].config.arch != c->archs[a]) continue;
            if (is_refused(c, u))
                refusal = jobs_of(c, u);
            else
                accepted = true;
        }
        if (!accepted && refusal)
            return complain_status("compile", refusal->status, sentence_of(refusal));
    }
    return c->failed || c->spilling ? EXIT_CHECK : 0;
}

static void print_job(const compile_job *job)
{
    const gdp_kernel_report *r = &job->report;
    if (job->status != GDP_OK) {
        printf("  %-24s  FAILED: %s\n", job->kernel, sentence_of(job));
        return;
    }
    printf("  %-24s  %9d %9d %7d %10d %8.1f %8.1f %8s%s\n", job->kernel, r->registers, r->spilled,
           r->threads, r->blocks, 1e-3 * (double)r->shared_bytes, 1e-3 * (double)r->binary_bytes,
           r->seconds > 0 ? show_time(r->seconds).text : "cached",
           r->spilled > 0 ? "  LOCAL MEMORY" : "");
}

static void print_table(const compilation *c)
{
    for (int u = 0; u < c->unit_count; u++) {
        const compile_unit *unit = &c->units[u];
        const gdp_problem *p = &unit->problem;
        printf("sm_%lld, K%lld V%lld n%lld, %s, gate %s, beta %s", (long long)unit->config.arch,
               (long long)p->dim_k, (long long)p->dim_v, (long long)p->num_householder,
               dtype_name(p->dtype), dtype_name(p->gate_dtype), dtype_name(p->beta_dtype));
        if (is_refused(c, u)) {
            printf("\n  refused: %s\n\n", sentence_of(jobs_of(c, u)));
            continue;
        }
        printf("; %s%s\n", unit->chosen ? "default: " : "", unit->config_text);
        printf("  %-24s  %9s %9s %7s %10s %8s %8s %8s\n", "kernel", "registers", "local, B",
               "threads", "blocks/SM", "shared kB", "file kB", "compiled");
        for (int k = 0; k < c->kernel_count; k++) print_job(&jobs_of(c, u)[k]);
        putchar('\n');
    }
    printf("%d kernels of %d configurations in %s on %d threads; %d refused; %d kernels failed; "
           "%d default configurations with local memory\n",
           (c->unit_count - c->refused) * c->kernel_count - c->failed, c->unit_count - c->refused,
           show_time(c->time).text, c->threads, c->refused, c->failed, c->spilling);
}

static cJSON *job_as_json(const compile_job *job)
{
    const gdp_kernel_report *r = &job->report;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "kernel", job->kernel);
    cJSON_AddStringToObject(object, "status", gdp_status_name(job->status));
    if (job->status != GDP_OK) {
        cJSON_AddStringToObject(object, "sentence", sentence_of(job));
        return object;
    }
    cJSON_AddNumberToObject(object, "registers", r->registers);
    cJSON_AddNumberToObject(object, "local_bytes", r->spilled);
    cJSON_AddNumberToObject(object, "threads", r->threads);
    cJSON_AddNumberToObject(object, "blocks_per_multiprocessor", r->blocks);
    cJSON_AddNumberToObject(object, "shared_bytes", (double)r->shared_bytes);
    cJSON_AddNumberToObject(object, "binary_bytes", (double)r->binary_bytes);
    cJSON_AddNumberToObject(object, "compile_seconds", r->seconds);
    return object;
}

static cJSON *as_json(const compilation *c)
{
    cJSON *list = cJSON_CreateArray();
    for (int u = 0; u < c->unit_count; u++) {
        const compile_unit *unit = &c->units[u];
        char problem[512] = "";
        (void)gdp_problem_print(&unit->problem, problem, sizeof problem);
        cJSON *object = cJSON_CreateObject();
        cJSON_AddItemToArray(list, object);
        cJSON_AddNumberToObject(object, "arch", (double)unit->config.arch);
        cJSON_AddStringToObject(object, "problem", problem);
        cJSON_AddStringToObject(object, "config", unit->config_text);
        cJSON_AddBoolToObject(object, "default", unit->chosen);
        cJSON_AddBoolToObject(object, "refused", is_refused(c, u));
        cJSON *kernels = cJSON_AddArrayToObject(object, "kernels");
        for (int k = 0; k < c->kernel_count; k++)
            cJSON_AddItemToArray(kernels, job_as_json(&jobs_of(c, u)[k]));
    }
    return list;
}

static int compile(const compile_options *o, gdp_context *context, compilation *c)
{
    const int result = o->arch_text ? read_archs(o->arch_text, c) : default_arch(context, c);
    if (result != GO_ON) return result;
    if (!plan_jobs(context, o, c)) {
        complain("compile", "no memory for the list of kernels");
        return EXIT_MISSING;
    }
    c->threads = o->threads ? (int)o->threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    const double begin = seconds();
    compile_run(context, c->jobs, c->job_count, c->threads, !o->json);
    c->time = seconds() - begin;
    count_results(c);
    const int code = judge(c);
    if (code == EXIT_MISSING || code == EXIT_USAGE) return code;
    if (!o->json) {
        print_table(c);
        return code;
    }
    const int printed = print_json("compile", as_json(c));
    return printed ? printed : code;
}

int command_compile(int argc, char **argv)
{
    compile_options o = { .problem = gdp_problem_default() };
    const option_spec options[] = {
        { "arch", 'a', OPTION_TEXT, &o.arch_text, "SM,SM,..",
          "for these, as sm_80,sm_90; else this machine's GPU", 0, 0 },
        { "all", 0, OPTION_FLAG, &o.all, NULL,
          "25 problem classes for the first architecture, 4 of them for the others", 0, 0 },
        CLASS_OPTIONS(&o.problem),
        CONFIG_OPTIONS(&o.config),
        { "threads", 0, OPTION_INT, &o.threads, "N", "that compile; one a core", 1, 256 },
        { "json", 0, OPTION_FLAG, &o.json, NULL, "print JSON", 0, 0 },
    };
    const command_spec command = {
        "compile",
        "",
        "Compiles the CUDA kernels of a problem class, or of all in a grid, and prints what they\n"
        "need. Wants NVRTC and no GPU. What is compiled stays in the kernel cache. Exit status 1\n"
        "where a kernel fails, or one of a default configuration uses local memory.",
        options,
        sizeof options / sizeof *options,
        0,
        0,
    };
    int first = 0;
    const int result = read_options(&command, argc, argv, &first);
    if (result != GO_ON) return result;

    gdp_context *context = NULL;
    compilation c = { .arch_count = 0 };
    int code = complain_status("compile", open_context(GDP_TARGET_AUTO, 0, NULL, &context),
                               gdp_last_error());
    if (code == 0) code = compile(&o, context, &c);
    for (int j = 0; j < c.job_count; j++) free(c.jobs[j].sentence);
    free(c.jobs);
    free(c.units);
    gdp_context_destroy(context);
    return code;
}
