/* The text form: what is printed parses back to the same program, field by field and byte by byte; what is no
 * program is refused with its line. (Bad programs for the verifier are files: tests/verify.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "program/ops.h"
#include "program/program_text.h"

static char *print(const struct tn_program *p)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    tn_program_print(p, out);
    fclose(out);
    return text;
}

static int parse(struct tn_program *p, struct tn_mesh *mesh, const char *text)
{
    tn_program_init(p, mesh, NULL);
    return tn_program_parse(p, mesh, text, strlen(text));
}

/* Parses what p prints, and checks that it prints as the same. Caller finishes `again`. */
static void round_trip(const struct tn_program *p, struct tn_program *again, struct tn_mesh *mesh)
{
    char *text = print(p);
    if (parse(again, mesh, text) < 0)
        fail_msg("%s\n%s", again->errors[0], text);
    char *second = print(again);
    assert_string_equal(text, second);
    free(text);
    free(second);
}

static void same_text(const char *a, const char *b)
{
    if (!a || !b)
        assert_ptr_equal(a, b);
    else
        assert_string_equal(a, b);
}

static const char *linked_name(const struct tn_program *p, tn_value v)
{
    return v ? tn_val(p, v)->name : "";
}

static void same_value(const struct tn_program *p, const struct tn_program *q, const struct tn_value_data *a)
{
    tn_value v = tn_value_find(q, a->name);
    assert_int_not_equal(v, 0);
    const struct tn_value_data *b = tn_val(q, v);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->space, b->space);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->rank, b->rank);
    assert_memory_equal(a->shape, b->shape, sizeof a->shape);
    for (int32_t d = 0; d < TN_MAX_DIMS; d++)
        assert_string_equal(a->dims[d], b->dims[d]);
    assert_string_equal(a->tag, b->tag);
    assert_int_equal(a->def_index, b->def_index);
    assert_string_equal(a->def ? tn_opd(p, a->def)->name : "", b->def ? tn_opd(q, b->def)->name : "");
    assert_int_equal(a->layer, b->layer);
    assert_int_equal(a->stage, b->stage);
    assert_string_equal(linked_name(p, a->like), linked_name(q, b->like));
    assert_string_equal(linked_name(p, a->grad_of), linked_name(q, b->grad_of));
    assert_int_equal(a->init, b->init);
    assert_true(a->init_arg == b->init_arg);
    same_text(a->stored.name, b->stored.name);
    assert_int_equal(a->stored.dim, b->stored.dim);
    assert_int_equal(a->stored.offset, b->stored.offset);
    assert_int_equal(a->stored.full, b->stored.full);
    assert_memory_equal(a->place, b->place, sizeof a->place);
    assert_memory_equal(a->want, b->want, sizeof a->want);
    for (int32_t axis = 0; axis < TN_MAX_AXES; axis++)
        same_text(a->placed_by[axis], b->placed_by[axis]);
}

static void same_op(const struct tn_program *p, const struct tn_program *q, const struct tn_op_data *a,
                    const struct tn_op_data *b)
{
    assert_int_equal(a->opcode, b->opcode);
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->region, b->region);
    assert_int_equal(a->layer, b->layer);
    assert_int_equal(a->stage, b->stage);
    assert_int_equal(a->micro, b->micro);
    assert_string_equal(a->tag, b->tag);
    assert_string_equal(a->source ? tn_opd(p, a->source)->name : "", b->source ? tn_opd(q, b->source)->name : "");
    assert_int_equal(a->n_in, b->n_in);
    assert_int_equal(a->n_out, b->n_out);
    for (uint32_t i = 0; i < a->n_in; i++)
        assert_string_equal(linked_name(p, a->in[i]), linked_name(q, b->in[i]));
    for (uint32_t i = 0; i < a->n_out; i++)
        assert_string_equal(linked_name(p, a->out[i]), linked_name(q, b->out[i]));
    assert_int_equal(a->n_attrs, b->n_attrs);
    for (uint32_t i = 0; i < a->n_attrs; i++) {
        assert_string_equal(a->attrs[i].key, b->attrs[i].key);
        assert_int_equal(a->attrs[i].is_float, b->attrs[i].is_float);
        assert_int_equal(a->attrs[i].i, b->attrs[i].i);
        assert_true(a->attrs[i].f == b->attrs[i].f);
    }
}

static void same_program(const struct tn_program *p, const struct tn_program *q)
{
    assert_int_equal(p->n_values, q->n_values);
    for (tn_value v = 1; v <= p->n_values; v++)
        same_value(p, q, tn_val(p, v));
    tn_op b = q->first;
    TN_EACH_OP(p, op) {
        assert_int_not_equal(b, 0);
        same_op(p, q, tn_opd(p, op), tn_opd(q, b));
        b = tn_opd(q, b)->next;
    }
    assert_int_equal(b, 0);
    assert_int_equal(p->n_parts, q->n_parts);
    for (uint32_t i = 1; i < p->n_parts; i++) {
        assert_int_equal(p->parts[i].n, q->parts[i].n);
        assert_int_equal(p->parts[i].sum, q->parts[i].sum);
        assert_memory_equal(p->parts[i].weights, q->parts[i].weights, (size_t)p->parts[i].n * sizeof(int64_t));
    }
    assert_int_equal(p->mesh->world, q->mesh->world);
    for (int32_t axis = 0; axis < p->mesh->n_axes; axis++) {
        assert_string_equal(p->mesh->axis[axis].name, q->mesh->axis[axis].name);
        assert_string_equal(p->mesh->axis[axis].owner, q->mesh->axis[axis].owner);
        assert_int_equal(p->mesh->axis[axis].size, q->mesh->axis[axis].size);
        assert_int_equal(p->mesh->axis[axis].stride, q->mesh->axis[axis].stride);
        assert_int_equal(p->coord[axis], q->coord[axis]);
    }
}

/* A program in which every field of values and ops is set somewhere. */
static tn_value full_param(struct tn_program *p)
{
    static const int64_t shape[] = { 8, 16 }, weights[] = { 25152, 25105 };
    tn_value w = tn_value_new(p, TN_KIND_PARAM, "h.0.w", TN_F32, 2, shape);
    struct tn_value_data *value = tn_val(p, w);
    p->parts[p->n_parts++] = (struct tn_parts){ .n = 2, .weights = weights, .sum = 50257 };
    value->dims[0] = "embed";
    value->dims[1] = "two words";
    value->flags = TN_VALUE_NO_DECAY | 64;
    value->space = TN_SPACE_HOST;
    value->tag = "tag \"quoted\" \\ and a\ttab";
    value->layer = 3;
    value->stage = 2;
    value->init = TN_INIT_NORMAL;
    value->init_arg = 0.02;
    value->stored.name = "h.0.c_attn";
    value->stored.dim = 1;
    value->stored.offset = 16;
    value->stored.full = 48;
    value->place[0] = TN_SHARD_PARTS(1, 1);
    value->placed_by[0] = "tp";
    value->place[1] = TN_SHARD_ZIGZAG(0);
    value->place[2] = TN_FLAT;
    value->placed_by[2] = "./mine.so";
    value->want[0] = TN_REPLICATE;
    value->want[2] = TN_PARTIAL(TN_RED_MAX);
    return w;
}

static void full_ops(struct tn_program *p, tn_value w)
{
    static const int64_t rows[] = { 4, 8 };
    tn_value x = tn_value_new(p, TN_KIND_INPUT, "x", TN_F32, 2, rows);
    tn_val(p, x)->dims[1] = "embed";
    tn_val(p, x)->placed_by[1] = "dp";
    const struct tn_attr trans[] = { TN_ATTR_I("trans", 0), TN_ATTR_I("odd key", INT64_MIN), TN_ATTR_F("f", 0.1) };
    p->at_region = TN_REGION_FORWARD;
    p->at_layer = 5;
    p->at_stage = 1;
    tn_value y = tn_op_new(p, TN_OP_LINEAR, "y", (tn_value[]){ x, w, 0 }, 3, trans, 3);
    tn_op linear = tn_last_op(p);
    tn_opd(p, linear)->tag = "residual";
    tn_opd(p, linear)->micro = 7;
    tn_val(p, y)->flags = TN_VALUE_LOSS;
    tn_val(p, y)->place[0] = TN_PARTIAL(TN_RED_SUM);
    tn_val(p, y)->layer = -1;
    tn_val(p, y)->stage = 4;
    p->at_region = TN_REGION_BACKWARD;
    tn_value acc = tn_value_new(p, TN_KIND_ACCUMULATOR, "grad.h.0.w", TN_F32, 2, tn_val(p, w)->shape);
    tn_val(p, acc)->like = w;
    tn_value dw = tn_op_new(p, TN_OP_LINEAR_DW, "y.dw", (tn_value[]){ x, y, acc }, 3, NULL, 0);
    tn_val(p, dw)->kind = TN_KIND_ACCUMULATOR;
    tn_val(p, dw)->grad_of = w;
    tn_val(p, dw)->like = w;
    tn_opd(p, tn_last_op(p))->source = linear;
    const struct tn_attr to[] = { TN_ATTR_I("axis", 0), TN_ATTR_I("peer", 1) };
    p->at_layer = -1;
    p->at_stage = 0;
    tn_op_new(p, TN_OP_SEND, "y.send", &y, 1, to, 2);
    p->at_region = TN_REGION_FORWARD;
    tn_value two = tn_op_new(p, TN_OP_RMSNORM, "norm", (tn_value[]){ y, w }, 2, NULL, 0);
    (void)two;
    tn_op_raw(p, TN_OP_ADD_N, "sum of all", (tn_value[]){ x, x, x }, 3, &x, 0, NULL, 0);
}

static void every_field_survives(void **state)
{
    (void)state;
    struct tn_mesh mesh = { 0 }, mesh_again = { 0 };
    struct tn_program p, again;
    const int32_t coord[TN_MAX_AXES] = { 1, 0, 2 };
    tn_mesh_add(&mesh, "tp", 2, "tp");
    tn_mesh_add(&mesh, "tp_rep", 1, "tp");
    tn_mesh_add(&mesh, "fsdp", 3, "./mine.so");
    tn_program_init(&p, &mesh, coord);
    full_ops(&p, full_param(&p));
    round_trip(&p, &again, &mesh_again);
    same_program(&p, &again);
    tn_program_finish(&again);
    tn_program_finish(&p);
}

/* What an edit leaves behind: removed ops, their outputs, links to them. */
static void removed_ops_are_left_out(void **state)
{
    (void)state;
    struct tn_mesh mesh = { .world = 1 };
    struct tn_program p, again;
    static const int64_t shape[] = { 4 };
    tn_program_init(&p, &mesh, NULL);
    tn_value x = tn_value_new(&p, TN_KIND_INPUT, "x", TN_F32, 1, shape);
    tn_value gone = tn_op_new(&p, TN_OP_GELU, "gone", &x, 1, NULL, 0);
    tn_op removed = tn_last_op(&p);
    tn_value kept = tn_op_new(&p, TN_OP_GELU, "kept", &x, 1, NULL, 0);
    tn_val(&p, kept)->grad_of = gone;
    tn_opd(&p, tn_last_op(&p))->source = removed;
    tn_op_unlink(&p, removed);
    char *text = print(&p);
    assert_null(strstr(text, "gone"));
    free(text);
    tn_opd(&p, tn_last_op(&p))->in[0] = gone; /* a use of what no op makes any more is shown */
    round_trip(&p, &again, &mesh);
    assert_int_equal(tn_val(&again, tn_value_find(&again, "gone"))->kind, TN_KIND_ACTIVATION);
    tn_program_finish(&again);
    tn_program_finish(&p);
}

static void any_name_survives(void **state)
{
    (void)state;
    static const char *const names[] = {
        "layers.3.attn.q.weight",
        "a/b+c-d$e%f~g",
        "#hash",
        "x#3",
        "x@3",
        "@x",
        "two words",
        "\"",
        "\\",
        "a\\x41",
        "tab\tnewline\n",
        "\x01\x7f",
        "gr\xc3\xbc\xc3\x9f",
        "\xff\xfe",
        "param",
        "region",
        "mesh",
        "123",
        "-",
        "=",
        "a:b",
        "by",
        "[1]",
        " ",
    };
    struct tn_mesh mesh = { .world = 1 };
    struct tn_program p, again;
    static const int64_t shape[] = { 4 };
    tn_program_init(&p, &mesh, NULL);
    tn_value x = tn_value_new(&p, TN_KIND_INPUT, "x", TN_F32, 1, shape);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        x = tn_op_new(&p, TN_OP_GELU, names[i], &x, 1, NULL, 0);
        tn_opd(&p, tn_last_op(&p))->tag = names[i];
        tn_val(&p, x)->dims[0] = names[i];
    }
    round_trip(&p, &again, &mesh);
    same_program(&p, &again);
    tn_program_finish(&again);
    tn_program_finish(&p);
}

static void any_number_survives(void **state)
{
    (void)state;
    struct tn_mesh mesh = { .world = 1 };
    struct tn_program p, again;
    static const int64_t shape[] = { 4 };
    double special[] = { 0.0,         1.0,          -1.0,     1e-5,      0.1,  1.0 / 3,     DBL_MIN, DBL_MAX,
                         DBL_EPSILON, DBL_TRUE_MIN, INFINITY, -INFINITY, 1e22, 123456789.0, 0x1p53 };
    enum { SPECIAL = sizeof special / sizeof *special };
    tn_program_init(&p, &mesh, NULL);
    tn_value x = tn_value_new(&p, TN_KIND_INPUT, "x", TN_F32, 1, shape);
    for (uint64_t i = 0; i < 2000; i++) {
        uint32_t random[4];
        double f;
        uint64_t bits;
        tn_philox(7, 0, i, random);
        bits = (uint64_t)random[0] << 32 | random[1];
        memcpy(&f, &bits, sizeof f);
        if (i < SPECIAL)
            f = special[i];
        if (isnan(f))
            continue;
        const struct tn_attr attrs[] = { TN_ATTR_F("f", f), TN_ATTR_F("g", (float)f),
                                         TN_ATTR_I("i", (int64_t)((uint64_t)random[2] << 32 | random[3])) };
        char name[32];
        snprintf(name, sizeof name, "y%" PRIu64, i);
        tn_op_new(&p, TN_OP_GELU, name, &x, 1, attrs, 3);
    }
    round_trip(&p, &again, &mesh);
    same_program(&p, &again);
    tn_program_finish(&again);
    tn_program_finish(&p);
}

static void any_placement_survives(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4096; i++) {
        uint32_t random[4];
        tn_philox(11, 0, i, random);
        tn_placement placement = random[0], read = 0;
        if (i % 2)
            placement = TN_PLACEMENT(i / 2 % 5, random[0] % 8, random[1] % 2, random[2] % 3);
        char text[TN_PLACEMENT_TEXT];
        assert_int_equal(tn_placement_read(tn_placement_write(placement, text), &read), 0);
        assert_int_equal(read, placement);
    }
    static const struct {
        const char *text;
        tn_placement placement;
    } known[] = {
        { "R", TN_REPLICATE },
        { "S0", TN_SHARD(0) },
        { "S1z", TN_SHARD_ZIGZAG(1) },
        { "S0/1", TN_SHARD_PARTS(0, 1) },
        { "F", TN_FLAT },
        { "P", TN_PARTIAL(TN_RED_SUM) },
        { "Pmax", TN_PARTIAL(TN_RED_MAX) },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char text[TN_PLACEMENT_TEXT];
        assert_string_equal(tn_placement_write(known[i].placement, text), known[i].text);
    }
    tn_placement none;
    static const char *const wrong[] = {
        "", "S", "Sx", "S-1", "S0/", "S0/0", "S0/256", "S256", "S0zz", "Q", "0x", "r"
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(tn_placement_read(wrong[i], &none), -1);
}

static void reads_any_line_ending(void **state)
{
    (void)state;
    struct tn_mesh mesh = { 0 };
    struct tn_program p;
    assert_int_equal(parse(&p, &mesh, ""), 0);
    assert_int_equal(mesh.world, 1);
    tn_program_finish(&p);
    assert_int_equal(parse(&p, &mesh, "# a comment\r\n\r\nmesh tp=2\r\n\tinput x: f32[2] {tp: S0}"), 0);
    assert_int_equal(tn_val(&p, tn_value_find(&p, "x"))->place[0], TN_SHARD(0));
    tn_program_finish(&p);
}

static void stops_at_twenty_problems(void **state)
{
    (void)state;
    struct tn_mesh mesh = { 0 };
    struct tn_program p;
    char text[4096] = "";
    for (int i = 0; i < 100; i++)
        strcat(text, "what is this\n");
    assert_int_equal(parse(&p, &mesh, text), -1);
    assert_int_equal(p.n_errors, 21);
    assert_non_null(strstr(p.errors[20], "line 20: too many problems"));
    tn_program_finish(&p);
}

/* Long lines cost what their length is, not its square. */
static void long_lines_are_read(void **state)
{
    (void)state;
    struct tn_mesh mesh = { 0 };
    struct tn_program p;
    size_t n = 200000, at = 0;
    char *text = malloc(n * 5 + 100);
    at += (size_t)sprintf(text, "input x: f32[1]\n  y: f32[1] = add_n(");
    for (size_t i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, i ? ", \"x\"" : "\"x\"");
    sprintf(text + at, ")\n");
    assert_int_equal(parse(&p, &mesh, text), 0);
    assert_int_equal(tn_opd(&p, p.first)->n_in, n);
    tn_program_finish(&p);
    free(text);
}

/* What only a fault of ours can make: the text form cannot say it. */
static void stale_records_are_found(void **state)
{
    (void)state;
    struct tn_mesh mesh = { 0 };
    struct tn_program p;
    assert_int_equal(parse(&p, &mesh, "input x: f32[4]\n  y: f32[4] flags=output = gelu(x: x)\n"), 0);
    assert_int_equal(tn_program_verify(&p, "model"), 0);
    tn_value y = tn_value_find(&p, "y");
    tn_val(&p, y)->def_index = 1;
    assert_int_equal(tn_program_verify(&p, "model"), 1);
    assert_non_null(strstr(p.errors[0], "y = gelu: makes y, whose record says otherwise"));
    tn_val(&p, y)->def_index = 0;
    tn_opd(&p, p.first)->in[0] = 99;
    assert_int_equal(tn_program_verify(&p, "model"), 1);
    assert_non_null(strstr(p.errors[1], "input x is value 99, which does not exist"));
    tn_opd(&p, p.first)->in[0] = tn_value_find(&p, "x");
    tn_val(&p, y)->place[3] = TN_REPLICATE;
    assert_int_equal(tn_program_verify(&p, "model"), 1);
    assert_non_null(strstr(p.errors[2], "is placed on axis 3; the mesh has 0 axes"));
    tn_val(&p, y)->place[3] = TN_PLACE_UNSET;
    tn_op_unlink(&p, p.first);
    assert_int_equal(tn_program_verify(&p, "model"), 1);
    assert_non_null(strstr(p.errors[3], "y is the loss or an output, but the op that made it was removed"));
    tn_program_finish(&p);
}

static void verifier_leaves_the_program_alone(void **state)
{
    (void)state;
    struct tn_mesh mesh = { 0 };
    struct tn_program p;
    assert_int_equal(parse(&p, &mesh,
                           "mesh tp=2\ninput x: f32[4] {tp: R}\n  y: f32[5] {tp: S0} = gelu(x: x)\n"
                           "  z: f32[4] {tp: R} = pack(x)\n"),
                     0);
    char *before = print(&p);
    assert_int_not_equal(tn_program_verify(&p, "resolve"), 0);
    char *after = print(&p);
    assert_string_equal(before, after);
    free(before);
    free(after);
    tn_program_finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_survives),     cmocka_unit_test(removed_ops_are_left_out),
        cmocka_unit_test(any_name_survives),        cmocka_unit_test(any_number_survives),
        cmocka_unit_test(any_placement_survives),   cmocka_unit_test(reads_any_line_ending),
        cmocka_unit_test(stops_at_twenty_problems), cmocka_unit_test(long_lines_are_read),
        cmocka_unit_test(stale_records_are_found),  cmocka_unit_test(verifier_leaves_the_program_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
