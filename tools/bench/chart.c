/* The chart: a figure over the size of messages, both axes logarithmic, as SVG (bench.h).
 *
 * One frame for each operation, one curve for each backend and state of the caches; of the two places in place is
 * drawn, as that is what programs do, where there is one. The ceiling is a dashed grey line. */
#include "bench.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 720, FRAME = 360, LEFT = 70, RIGHT = 150, TOP = 44, BOTTOM = 48, MOST_CURVES = 16, NAME_BYTES = 64 };

static const char *const colours[] = { "#1b6ca8", "#d1495b", "#2e8b57", "#edae49",
                                       "#6a4c93", "#00798c", "#8d6346", "#333333" };

struct frame {
    const json_t *results;
    const struct bench_chart *chart;
    const char *op;
    const char *place;
    double x_low, x_high, y_low, y_high; /* logarithms, base 10 */
    int top;
    char curve[MOST_CURVES][NAME_BYTES];
    int n_curves;
};

static double number(const json_t *line, const char *key)
{
    return key ? json_number_value(json_object_get(line, key)) : 0;
}

static const char *text(const json_t *line, const char *key)
{
    const char *value = json_string_value(json_object_get(line, key));
    return value ? value : "";
}

static int belongs(const struct frame *f, const json_t *line)
{
    return strcmp(text(line, "op"), f->op) == 0 && strcmp(text(line, "place"), f->place) == 0 &&
           number(line, "size") > 0 && number(line, f->chart->y) > 0;
}

static void curve_name(const json_t *line, char name[NAME_BYTES])
{
    int is_plain = strcmp(text(line, "cache"), "cold") != 0;
    const char *type = text(line, "type"), *red = text(line, "redop");
    snprintf(name, NAME_BYTES, "%.24s%s%s%s%s%s", text(line, "backend"), is_plain ? "" : " cold",
             strcmp(type, "f32") != 0 && *type ? " " : "", strcmp(type, "f32") != 0 ? type : "",
             strcmp(red, "max") == 0 ? " " : "", strcmp(red, "max") == 0 ? red : "");
}

static void widen(double value, double *low, double *high)
{
    if (value <= 0)
        return;
    *low = log10(value) < *low ? log10(value) : *low;
    *high = log10(value) > *high ? log10(value) : *high;
}

static void survey(struct frame *f)
{
    f->x_low = f->y_low = 1e9;
    f->x_high = f->y_high = -1e9;
    for (size_t i = 0; i < json_array_size(f->results); i++) {
        const json_t *line = json_array_get(f->results, i);
        char name[NAME_BYTES];
        if (!belongs(f, line))
            continue;
        widen(number(line, "size"), &f->x_low, &f->x_high);
        widen(number(line, f->chart->y), &f->y_low, &f->y_high);
        widen(number(line, f->chart->ceiling), &f->y_low, &f->y_high);
        curve_name(line, name);
        int known = 0;
        for (int k = 0; k < f->n_curves; k++)
            known |= strcmp(f->curve[k], name) == 0;
        if (!known && f->n_curves < MOST_CURVES)
            snprintf(f->curve[f->n_curves++], NAME_BYTES, "%s", name);
    }
    if (f->x_high - f->x_low < 0.1) {
        f->x_low -= 0.3;
        f->x_high += 0.3;
    }
    f->y_low = floor(f->y_low);
    f->y_high = ceil(f->y_high + 1e-9);
    f->y_high = f->y_high <= f->y_low ? f->y_low + 1 : f->y_high;
}

static double x_at(const struct frame *f, double size)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (log10(size) - f->x_low) / (f->x_high - f->x_low);
}

static double y_at(const struct frame *f, double value)
{
    return f->top + TOP + (FRAME - TOP - BOTTOM) * (f->y_high - log10(value)) / (f->y_high - f->y_low);
}

static void print_escaped(const char *plain, FILE *out)
{
    for (; *plain; plain++)
        if (*plain == '<' || *plain == '>' || *plain == '&' || *plain == '"')
            fprintf(out, "&#%d;", *plain);
        else
            fputc(*plain, out);
}

static void size_name(double size, char *name, size_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB" };
    int unit = 0;
    while (size >= 1024 && unit < 3) {
        size /= 1024;
        unit++;
    }
    snprintf(name, bytes, "%g %s", size, units[unit]);
}

static void draw_axes(const struct frame *f, FILE *out)
{
    int bottom = f->top + FRAME - BOTTOM, right = WIDTH - RIGHT;
    for (double decade = f->y_low; decade <= f->y_high + 0.01; decade += 1) {
        double y = y_at(f, pow(10, decade));
        fprintf(out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT, y, right, y);
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 6, y + 4, pow(10, decade));
    }
    double first = ceil(f->x_low / log10(2) - 1e-6), last = floor(f->x_high / log10(2) + 1e-6);
    double step = last - first > 10 ? ceil((last - first) / 9) : 1;
    for (double power = first; power <= last + 0.01; power += step) {
        char name[32];
        double x = x_at(f, pow(2, power));
        size_name(pow(2, power), name, sizeof name);
        fprintf(out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#ddd\"/>\n", x, f->top + TOP, x,
                bottom);
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x, bottom + 16, name);
    }
    fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#333\"/>\n", LEFT,
            f->top + TOP, right - LEFT, bottom - f->top - TOP);
    fprintf(out, "<text x=\"16\" y=\"%d\" text-anchor=\"middle\" transform=\"rotate(-90 16 %d)\">%s</text>\n",
            (f->top + TOP + bottom) / 2, (f->top + TOP + bottom) / 2, f->chart->y_label);
}

/* `name` NULL: the ceiling, from the lines of the first curve. */
static void draw_curve(const struct frame *f, const char *name, const char *key, const char *style, FILE *out)
{
    int n = 0;
    fprintf(out, "<polyline fill=\"none\" %s points=\"", style);
    for (size_t i = 0; i < json_array_size(f->results); i++) {
        const json_t *line = json_array_get(f->results, i);
        char own[NAME_BYTES];
        curve_name(line, own);
        if (belongs(f, line) && strcmp(own, name ? name : f->curve[0]) == 0 && number(line, key) > 0)
            fprintf(out, "%s%.1f,%.1f", n++ ? " " : "", x_at(f, number(line, "size")), y_at(f, number(line, key)));
    }
    fprintf(out, "\"/>\n");
}

static void draw_legend(const struct frame *f, int row, const char *name, const char *style, FILE *out)
{
    int x = WIDTH - RIGHT + 12, y = f->top + TOP + 10 + 18 * row;
    fprintf(out, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" %s/>\n<text x=\"%d\" y=\"%d\">", x, y, x + 22, y, style,
            x + 28, y + 4);
    print_escaped(name, out);
    fprintf(out, "</text>\n");
}

static void draw_frame(struct frame *f, const json_t *about, FILE *out)
{
    const json_t *host = json_object_get(about, "host");
    survey(f);
    if (f->n_curves == 0)
        return;
    fprintf(out, "<text x=\"%d\" y=\"%d\" font-size=\"15\">", LEFT, f->top + 20);
    print_escaped(f->op, out);
    fprintf(out, "</text>\n<text x=\"%d\" y=\"%d\" fill=\"#555\">%d ranks, %d cores, ", LEFT, f->top + 36,
            (int)json_integer_value(json_object_get(about, "ranks")),
            (int)json_integer_value(json_object_get(host, "cores")));
    print_escaped(text(host, "processor"), out);
    fprintf(out, ", tenon %s</text>\n", text(about, "tenon"));
    draw_axes(f, out);
    if (f->chart->ceiling) {
        static const char dashes[] = "stroke=\"#888\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\"";
        draw_curve(f, NULL, f->chart->ceiling, dashes, out);
        draw_legend(f, f->n_curves, "memory's ceiling", dashes, out);
    }
    for (int i = 0; i < f->n_curves; i++) {
        char style[80];
        snprintf(style, sizeof style, "stroke=\"%s\" stroke-width=\"2\"", colours[i % 8]);
        draw_curve(f, f->curve[i], f->chart->y, style, out);
        draw_legend(f, i, f->curve[i], style, out);
    }
}

/* Operations in order of their first line, each in the place that is drawn. */
static int list_ops(const json_t *results, const char *op[BENCH_OPS], const char *place[BENCH_OPS])
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *line = json_array_get(results, i);
        int k = 0;
        while (k < n && strcmp(op[k], text(line, "op")) != 0)
            k++;
        if (k == BENCH_OPS || number(line, "size") <= 0)
            continue;
        if (k == n) {
            op[n] = text(line, "op");
            place[n++] = text(line, "place");
        } else if (strcmp(text(line, "place"), "in_place") == 0) {
            place[k] = text(line, "place");
        }
    }
    return n;
}

void bench_chart_write(const json_t *about, const json_t *results, const struct bench_chart *chart, FILE *out)
{
    const char *op[BENCH_OPS], *place[BENCH_OPS];
    int n = list_ops(results, op, place);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, n * FRAME + 1, WIDTH, n * FRAME + 1);
    for (int i = 0; i < n; i++) {
        struct frame f = { .results = results, .chart = chart, .op = op[i], .place = place[i], .top = i * FRAME };
        draw_frame(&f, about, out);
    }
    fprintf(out, "</svg>\n");
}
