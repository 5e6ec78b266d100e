/* tenon dump --format timeline: what each rank of the pipeline does when, drawn as text or SVG, and how much of the
 * time ranks wait, next to what the formula says. */
#include "timeline.h"

#include <stdio.h>
#include <string.h>

#include "program/program_text.h"
#include "tool.h"

enum { COLUMNS = 100 };

/* Micro-batch m of a region. */
static char letter(uint32_t region, int32_t micro)
{
    switch (region) {
    case TN_REGION_FORWARD: return (char)('0' + micro % 10);
    case TN_REGION_BACKWARD: return (char)('a' + micro % 26);
    default: return (char)('A' + micro % 26);
    }
}

/* A column shows what runs in the middle of its time. */
static void fill_row(const struct tn_timeline *t, int32_t stage, char row[COLUMNS + 1])
{
    double column = t->end / COLUMNS;
    memset(row, '.', COLUMNS);
    row[COLUMNS] = 0;
    for (size_t i = 0; i < t->n_slots; i++) {
        const struct tn_timeline_slot *s = &t->slot[i];
        for (int at = (int)(s->begin / column + 0.5); s->stage == stage && at < COLUMNS && at + 0.5 < s->end / column;
             at++)
            row[at] = letter(s->region, s->micro);
    }
}

static void print_text(const struct tn_timeline *t)
{
    char row[COLUMNS + 1];
    for (int32_t rank = 0; rank < t->ranks; rank++)
        for (int32_t stage = rank; stage < t->stages; stage += t->ranks) {
            fill_row(t, stage, row);
            if (t->stages > t->ranks)
                printf("rank %-3d stage %-3d %s\n", rank, stage, row);
            else
                printf("rank %-3d %s\n", rank, row);
        }
}

static int has_region(const struct tn_timeline *t, uint32_t region)
{
    for (size_t i = 0; i < t->n_slots; i++)
        if (t->slot[i].region == region)
            return 1;
    return 0;
}

static void print_legend(const struct tn_timeline *t)
{
    printf(
        "%d ranks, %d stages, %d micro-batches; time is FLOPs by the ops' cost rules, %.4g GFLOP from left to right\n",
        t->ranks, t->stages, t->micro_batches, t->end * 1e-9);
    printf("forward 0 1 2 .., backward a b c ..%s of the same micro-batches; . waits\n",
           has_region(t, TN_REGION_WEIGHT) ? ", weight gradients A B C .." : "");
}

void tool_print_bubble(const struct tn_timeline *t, FILE *out)
{
    struct tn_bubble b = tn_timeline_bubble(t);
    fprintf(out, "idle %.1f%% of the time: bubble %.1f%% (by the formula %.1f%%), unequal stages %.1f%%\n",
            100 * b.idle, 100 * b.bubble, 100 * b.formula, 100 * b.unequal);
}

enum { SVG_WIDTH = 1200, SVG_ROW = 28, SVG_LEFT = 70, SVG_TOP = 44 };

static const char *color(uint32_t region)
{
    switch (region) {
    case TN_REGION_FORWARD: return "#8ab6e8";
    case TN_REGION_BACKWARD: return "#8fcf9b";
    default: return "#f0c36d";
    }
}

static void draw_slot(const struct tn_timeline *t, const struct tn_timeline_slot *s)
{
    double scale = SVG_WIDTH / t->end, x = SVG_LEFT + s->begin * scale, width = (s->end - s->begin) * scale;
    int y = SVG_TOP + s->rank * SVG_ROW;
    double shade = 1 - 0.5 * (s->stage / t->ranks) / (t->stages / t->ranks + 0.0);
    printf("<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" fill-opacity=\"%.2f\" stroke=\"#fff\" "
           "stroke-width=\"0.5\">"
           "<title>%s %d, stage %d</title></rect>\n",
           x, y, width, SVG_ROW - 4, color(s->region), shade, tn_region_name(s->region), s->micro, s->stage);
    if (width >= 9)
        printf("<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", x + width / 2, y + SVG_ROW / 2 + 2,
               s->micro);
}

static void draw_legend(const struct tn_timeline *t, int y)
{
    static const uint32_t regions[] = { TN_REGION_FORWARD, TN_REGION_BACKWARD, TN_REGION_WEIGHT };
    int x = SVG_LEFT;
    for (int i = 0; i < 3; i++) {
        if (!has_region(t, regions[i]))
            continue;
        printf("<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%d\" y=\"%d\">%s</text>\n", x,
               y, color(regions[i]), x + 17, y + 10, tn_region_name(regions[i]));
        x += 90;
    }
    if (t->stages > t->ranks)
        printf("<text x=\"%d\" y=\"%d\">the paler, the later the stage</text>\n", x, y + 10);
}

static void print_svg(const struct tn_timeline *t)
{
    int width = SVG_LEFT + SVG_WIDTH + 20, height = SVG_TOP + t->ranks * SVG_ROW + 30;
    struct tn_bubble b = tn_timeline_bubble(t);
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
           "font-family=\"sans-serif\" "
           "font-size=\"11\" fill=\"#222\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
           width, height, width, height);
    printf("<text x=\"%d\" y=\"18\" font-size=\"13\">%d ranks, %d stages, %d micro-batches, %.4g GFLOP from left to "
           "right</text>\n",
           SVG_LEFT, t->ranks, t->stages, t->micro_batches, t->end * 1e-9);
    printf("<text x=\"%d\" y=\"35\">idle %.1f%% of the time: bubble %.1f%% (by the formula %.1f%%), unequal stages "
           "%.1f%%</text>\n",
           SVG_LEFT, 100 * b.idle, 100 * b.bubble, 100 * b.formula, 100 * b.unequal);
    for (int32_t rank = 0; rank < t->ranks; rank++) {
        int y = SVG_TOP + rank * SVG_ROW;
        printf("<text x=\"8\" y=\"%d\">rank %d</text>\n<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
               "fill=\"#f1f1f1\"/>\n",
               y + SVG_ROW / 2 + 2, rank, SVG_LEFT, y, SVG_WIDTH, SVG_ROW - 4);
    }
    for (size_t i = 0; i < t->n_slots; i++)
        draw_slot(t, &t->slot[i]);
    draw_legend(t, SVG_TOP + t->ranks * SVG_ROW + 8);
    printf("</svg>\n");
}

/* The ranks along the axis of stages, first of all others. 1: done. */
static int add_ranks(struct tn_job *job, int mode, int32_t axis, struct tn_timeline *t)
{
    int good = 1;
    struct tn_lowered lowered = { .is_done = 0 };
    for (int32_t rank = 0; good && rank < t->ranks; rank++) {
        struct tn_compiled c;
        good = tn_job_compile_next(job, mode, rank * job->mesh.axis[axis].stride, &lowered, &c) == TN_OK;
        if (good)
            tn_timeline_add(t, rank, &c.plan);
        tn_compiled_finish(&c);
    }
    tn_lowered_finish(&lowered);
    return good;
}

int tool_timeline(struct tn_job *job, int mode, int svg)
{
    int32_t axis = tn_stage_axis(&job->mesh);
    char error[1024] = "";
    struct tn_timeline t;
    if (axis < 0) {
        fprintf(stderr,
                "tenon dump: --format timeline: no strategy of this job makes stages; use one that does (pp)\n");
        return TOOL_USAGE;
    }
    tn_timeline_init(&t, job->mesh.axis[axis].size);
    int code = TOOL_USAGE;
    if (add_ranks(job, mode, axis, &t)) {
        code = tn_timeline_run(&t, 0, error, sizeof error) == TN_OK ? TOOL_DONE : TOOL_FAILED;
        if (code == TOOL_FAILED)
            fprintf(stderr, "tenon dump: %s\n", error);
        else if (svg)
            print_svg(&t);
        else {
            print_text(&t);
            print_legend(&t);
            tool_print_bubble(&t, stdout);
        }
    }
    tn_timeline_finish(&t);
    return code;
}
