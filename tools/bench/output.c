/* The table of collectives, JSON and CSV (bench.h). The table's columns are those of nccl-tests, then ours. */
#include "bench.h"

#include <errno.h>
#include <string.h>

#include "program/ops.h"

static const char *const place_names[BENCH_PLACES] = { "out_of_place", "in_place" };

/* ---- the table ---- */

void bench_table_head(const struct bench_options *o, int op)
{
    (void)o;
    printf("#\n# %s\n", bench_op_name(op));
    printf("# %51s %37s\n", "out-of-place", "in-place");
    printf("# %10s %11s %5s %6s %5s %9s %7s %7s %6s %9s %7s %7s %6s  %-14s %9s %8s %7s %7s %s\n", "size", "count",
           "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", "backend",
           "p99", "skew", "ceil%", "ratio", "95% interval");
    printf("# %10s %11s %31s %7s %7s %16s %7s %7s %25s %9s\n", "(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)", "(us)",
           "(GB/s)", "(GB/s)", "(us)", "(us)");
}

static void print_place(const struct bench_result *r)
{
    char wrong[24] = "N/A";
    if (!r->is_there) {
        printf(" %9s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    if (r->wrong >= 0)
        snprintf(wrong, sizeof wrong, "%lld", (long long)r->wrong);
    printf(" %9.2f %7.2f %7.2f %6s", r->time_us, r->algbw, r->busbw, wrong);
}

/* Of the ceiling, in per cent: "78/92". */
static void print_shares(const struct bench_line *line)
{
    char text[BENCH_PLACES][16], both[40];
    for (int place = 0; place < BENCH_PLACES; place++) {
        const struct bench_result *r = &line->place[place];
        snprintf(text[place], sizeof *text, "-");
        if (r->is_there && r->share > 0)
            snprintf(text[place], sizeof *text, "%.0f", 100 * r->share);
    }
    snprintf(both, sizeof both, "%s/%s", text[0], text[1]);
    printf(" %7s", both);
}

void bench_table_line(const struct bench_options *o, const struct bench_line *line)
{
    const struct bench_call *c = &line->call;
    const struct bench_result *r = &line->place[line->place[0].is_there ? 0 : 1];
    int reduces = c->op == BENCH_ALL_REDUCE || c->op == BENCH_REDUCE_SCATTER;
    char backend[64], skew[16] = "-";
    snprintf(backend, sizeof backend, "%s%s", line->backend, o->n_caches > 1 ? line->cold ? " cold" : " warm" : "");
    if (r->skew_us >= 0)
        snprintf(skew, sizeof skew, "%.2f", r->skew_us);
    printf("  %10llu %11llu %5s %6s %5d", (unsigned long long)c->bytes, (unsigned long long)c->count,
           c->op == BENCH_BARRIER ? "none" : tn_dtype_name(c->dtype), reduces ? bench_red_name(c->red) : "none",
           c->op == BENCH_BROADCAST ? (int)c->root : -1);
    print_place(&line->place[BENCH_OUT_OF_PLACE]);
    print_place(&line->place[BENCH_IN_PLACE]);
    printf("  %-14s %9.2f %8s", backend, r->p99_us, skew);
    print_shares(line);
    if (line->is_first)
        printf(" %7s\n", "1");
    else
        printf(" %7.2f [%.2f, %.2f]\n", r->ratio.middle, r->ratio.low, r->ratio.high);
    fflush(stdout);
}

/* ---- JSON and CSV ---- */

static json_t *real_or_null(int is_known, double value)
{
    return is_known ? json_real(value) : json_null();
}

json_t *bench_line_json(const struct bench_line *line, int place)
{
    const struct bench_call *c = &line->call;
    const struct bench_result *r = &line->place[place];
    int reduces = c->op == BENCH_ALL_REDUCE || c->op == BENCH_REDUCE_SCATTER;
    json_t *all = json_pack(
        "{s:s, s:i, s:I, s:I, s:s, s:s, s:i}", "op", bench_op_name(c->op), "ranks", c->n, "size", (json_int_t)c->bytes,
        "count", (json_int_t)c->count, "type", c->op == BENCH_BARRIER ? "none" : tn_dtype_name(c->dtype), "redop",
        reduces ? bench_red_name(c->red) : "none", "root", c->op == BENCH_BROADCAST ? (int)c->root : -1);
    json_object_set_new(all, "place", json_string(place_names[place]));
    json_object_set_new(all, "backend", json_string(line->backend));
    json_object_set_new(all, "cache", json_string(line->cold ? "cold" : "warm"));
    json_object_set_new(all, "iterations", json_integer((json_int_t)r->iterations));
    json_object_set_new(all, "time_us", json_real(r->time_us));
    json_object_set_new(all, "p99_us", json_real(r->p99_us));
    json_object_set_new(all, "skew_us", real_or_null(r->skew_us >= 0, r->skew_us));
    json_object_set_new(all, "algbw", json_real(r->algbw));
    json_object_set_new(all, "busbw", json_real(r->busbw));
    json_object_set_new(all, "wrong", r->wrong >= 0 ? json_integer(r->wrong) : json_null());
    json_object_set_new(all, "ceiling_busbw", real_or_null(r->ceiling > 0, r->ceiling));
    json_object_set_new(all, "ceiling_share", real_or_null(r->ceiling > 0, r->share));
    json_object_set_new(all, "ratio", json_real(r->ratio.middle));
    json_object_set_new(all, "ratio_low", json_real(r->ratio.low));
    json_object_set_new(all, "ratio_high", json_real(r->ratio.high));
    return all;
}

static void csv_value(const json_t *value, FILE *out)
{
    if (json_is_string(value) && strpbrk(json_string_value(value), ",\""))
        fprintf(out, "\"%s\"", json_string_value(value)); /* names of backends; a quote in one is not escaped */
    else if (json_is_string(value))
        fputs(json_string_value(value), out);
    else if (json_is_integer(value))
        fprintf(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        fprintf(out, "%.6g", json_real_value(value));
}

void bench_csv(const json_t *results, FILE *out)
{
    const char *key;
    json_t *value;
    for (size_t i = 0; i < json_array_size(results); i++) {
        json_t *line = json_array_get(results, i);
        if (i == 0) {
            const char *comma = "";
            json_object_foreach(line, key, value)
            {
                fprintf(out, "%s%s", comma, key);
                comma = ",";
            }
            fputc('\n', out);
        }
        const char *comma = "";
        json_object_foreach(line, key, value)
        {
            fputs(comma, out);
            csv_value(value, out);
            comma = ",";
        }
        fputc('\n', out);
    }
}

/* ---- files ---- */

static int finish(FILE *file, const char *path)
{
    int failed = ferror(file);
    if (fclose(file) == 0 && !failed)
        return 0;
    fprintf(stderr, "tenon bench: cannot write %s: %s\n", path, strerror(errno));
    return -1;
}

static FILE *open_file(const char *path, const char *mode, int *failed)
{
    FILE *file = fopen(path, mode);
    if (!file) {
        fprintf(stderr, "tenon bench: cannot write %s: %s\n", path, strerror(errno));
        *failed = -1;
    }
    return file;
}

int bench_output_check(const struct bench_options *o)
{
    const char *const paths[] = { o->json_file, o->csv_file, o->svg_file };
    int failed = 0;
    FILE *file;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (paths[i] && (file = open_file(paths[i], "a", &failed)) != NULL) /* what is there stays until the end */
            fclose(file);
    return failed;
}

static void write_json(json_t *about, json_t *results, json_t *more, FILE *out)
{
    json_t *all = json_pack("{s:O, s:O}", "about", about, "results", results);
    if (more)
        json_object_update(all, more);
    json_dumpf(all, out, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    fputc('\n', out);
    json_decref(all);
}

int bench_output(const struct bench_options *o, json_t *about, json_t *results, json_t *more,
                 const struct bench_chart *chart)
{
    int failed = 0;
    FILE *file;
    if (o->json)
        write_json(about, results, more, stdout);
    if (o->csv)
        bench_csv(results, stdout);
    if (o->json_file && (file = open_file(o->json_file, "w", &failed)) != NULL) {
        write_json(about, results, more, file);
        failed |= finish(file, o->json_file);
    }
    if (o->csv_file && (file = open_file(o->csv_file, "w", &failed)) != NULL) {
        bench_csv(results, file);
        failed |= finish(file, o->csv_file);
    }
    if (o->svg_file && (file = open_file(o->svg_file, "w", &failed)) != NULL) {
        bench_chart_write(about, results, chart, file);
        failed |= finish(file, o->svg_file);
    }
    return failed;
}
