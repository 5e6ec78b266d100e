/* Options: reads one manifest section through a table of struct tn_option; see options.h.
 *
 * Tables of plugins come from outside: a row is copied at its own size and checked before it is used, and a bad row
 * is reported as the plugin's fault. Values of one type are read by one function, `read_<type>`, which answers with
 * NULL or with what is wrong; how the value may look instead is said by `expected`. */
#include "config/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

static const char *const type_names[] = { [0] = "?",
#define TN_X(name, number, text) [number] = text,
                                          TN_OPT_LIST(TN_X)
#undef TN_X
};
enum { TYPES = sizeof type_names / sizeof *type_names };

struct unit {
    const char *name;
    int64_t factor;
};

/* clang-format off */
static const struct unit size_units[] = {
    { "", 1 }, { "B", 1 },
    { "K", 1ll << 10 }, { "KB", 1ll << 10 }, { "KiB", 1ll << 10 },
    { "M", 1ll << 20 }, { "MB", 1ll << 20 }, { "MiB", 1ll << 20 },
    { "G", 1ll << 30 }, { "GB", 1ll << 30 }, { "GiB", 1ll << 30 },
    { "T", 1ll << 40 }, { "TB", 1ll << 40 }, { "TiB", 1ll << 40 },
    { NULL, 0 },
};
static const struct unit duration_units[] = {
    { "ns", 1 }, { "us", 1000 }, { "ms", 1000000 }, { "s", 1000000000 },
    { "m", 60000000000 }, { "h", 3600000000000 },
    { NULL, 0 },
};
/* clang-format on */

/* ---- nearest names ---- */

enum { LONGEST_WORD = 48 };

static int is_same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Edits from a to b, whatever their case: insert, delete, replace, swap of neighbours (optimal string alignment). */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[3][LONGEST_WORD + 1], n = strlen(a), m = strlen(b);
    size_t *before = row[0], *above = row[1], *now = row[2];
    for (size_t j = 0; j <= m; j++)
        above[j] = j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = above[j - 1] + !is_same(a[i - 1], b[j - 1]);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) && is_same(a[i - 2], b[j - 1]) &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *oldest = before;
        before = above;
        above = now;
        now = oldest;
    }
    return above[m];
}

const char *tn_nearest(const char *word, const char *const *names, size_t count)
{
    size_t length = strlen(word), limit = length / 3 > 2 ? length / 3 : 2, best = limit + 1;
    const char *nearest = NULL;
    if (length > LONGEST_WORD)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t name_length = strlen(names[i]);
        if (name_length > LONGEST_WORD)
            continue;
        size_t distance = edit_distance(word, names[i]);
        if (distance > limit || distance >= length || distance >= name_length)
            continue; /* the last two: nothing of a short word is left */
        int as_good = nearest && distance == best;
        if (distance < best || (as_good && name_length == length && strlen(nearest) != length)) {
            nearest = names[i];
            best = distance;
        }
    }
    return nearest;
}

/* ---- reading one value ---- */

/* "12", "4M", "1.5s" as a number of the smallest unit. */
static const char *read_with_unit(const char *text, const struct unit *units, int64_t *value)
{
    const char *at = text;
    int64_t whole = 0;
    double fraction = 0, digit = 0.1;
    if (*at == '-')
        return "is negative";
    if (!isdigit((unsigned char)*at))
        return "is not a number";
    for (; isdigit((unsigned char)*at); at++)
        if (__builtin_mul_overflow(whole, 10, &whole) || __builtin_add_overflow(whole, *at - '0', &whole))
            return "is too large";
    if (*at == '.')
        for (at++; isdigit((unsigned char)*at); at++, digit /= 10)
            fraction += (*at - '0') * digit;
    while (*at == ' ')
        at++;
    const struct unit *unit = units;
    while (unit->name && strcmp(unit->name, at) != 0)
        unit++;
    if (!unit->name && whole == 0 && fraction == 0 && !*at)
        unit = units; /* nothing of any unit */
    if (!unit->name)
        return *at ? "has an unknown unit" : "has no unit";
    int64_t part = (int64_t)llround(fraction * (double)unit->factor);
    if (__builtin_mul_overflow(whole, unit->factor, value) || __builtin_add_overflow(*value, part, value))
        return "is too large";
    return NULL;
}

static const char *read_int(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)*text))
        return "is not a whole number";
    *value = number;
    return errno == ERANGE ? "is too large" : NULL;
}

static const char *read_float(const char *text, double *value)
{
    char *end;
    if (strspn(text, "+-.0123456789eE") != strlen(text)) /* no nan, inf, hexadecimal */
        return "is not a number";
    errno = 0;
    *value = strtod(text, &end);
    if (end == text || *end)
        return "is not a number";
    if (errno == ERANGE)
        return fabs(*value) > 1 ? "is too large" : "is too small";
    return NULL;
}

static const char *read_bool(const char *text, int64_t *value)
{
    static const char *const words[] = { "false", "true", "off", "on", "no", "yes" };
    for (int i = 0; i < 6; i++)
        if (strcmp(text, words[i]) == 0) {
            *value = i & 1;
            return NULL;
        }
    return "is neither true nor false";
}

static const char *read_enum(const char *text, const struct tn_option *option, int64_t *value)
{
    for (int64_t i = 0; option->choices[i]; i++)
        if (strcmp(text, option->choices[i]) == 0) {
            *value = i;
            return NULL;
        }
    return "is not a choice";
}

static const char *read_list(const char *text, struct tn_option_value *value, struct tn_arena *arena)
{
    uint32_t count = *text ? 1 : 0;
    for (const char *at = text; *at; at++)
        count += *at == ',';
    const char **items = tn_arena_alloc(arena, (count + 1) * sizeof *items);
    const char *at = text;
    for (uint32_t i = 0; i < count; i++) {
        const char *end = strchrnul(at, ',');
        const char *next = *end ? end + 1 : end;
        while (at < end && isspace((unsigned char)*at))
            at++;
        while (end > at && isspace((unsigned char)end[-1]))
            end--;
        if (at == end)
            return "has an empty item";
        items[i] = tn_arena_printf(arena, "%.*s", (int)(end - at), at);
        at = next;
    }
    value->list = items;
    value->list_count = count;
    return NULL;
}

static const char *read_value(const char *text, struct tn_option_value *value, struct tn_arena *arena)
{
    const struct tn_option *option = value->option;
    value->s = text;
    if ((option->flags & TN_OPT_AUTO) && strcmp(text, "auto") == 0) {
        value->i = -1;
        value->f = -1;
        return NULL;
    }
    const char *wrong = NULL;
    switch (option->type) {
    case TN_OPT_INT: wrong = read_int(text, &value->i); break;
    case TN_OPT_FLOAT: return read_float(text, &value->f);
    case TN_OPT_BOOL: wrong = read_bool(text, &value->i); break;
    case TN_OPT_SIZE: wrong = read_with_unit(text, size_units, &value->i); break;
    case TN_OPT_DURATION: wrong = read_with_unit(text, duration_units, &value->i); break;
    case TN_OPT_ENUM: wrong = read_enum(text, option, &value->i); break;
    case TN_OPT_LIST: return read_list(text, value, arena);
    default: return NULL;
    }
    value->f = (double)value->i;
    return wrong;
}

/* ---- ranges, and what would work ---- */

static int has_range(const struct tn_option *option)
{
    int ranged = option->type == TN_OPT_INT || option->type == TN_OPT_FLOAT || option->type == TN_OPT_SIZE ||
                 option->type == TN_OPT_DURATION;
    return ranged && (option->min != 0 || option->max != 0);
}

/* A bound as a manifest would say it: in the largest unit that divides it. */
static void print_bound(const struct tn_option *option, double bound, struct tn_buf *out)
{
    const struct unit *units = option->type == TN_OPT_DURATION ? duration_units : size_units, *best = units;
    if (option->type != TN_OPT_SIZE && option->type != TN_OPT_DURATION) {
        tn_buf_printf(out, option->type == TN_OPT_INT && fabs(bound) < 1e16 ? "%.0f" : "%.15g", bound);
        return;
    }
    for (const struct unit *unit = units; unit->name; unit++)
        if (bound != 0 && fmod(bound, (double)unit->factor) == 0 && unit->factor > best->factor)
            best = unit;
    tn_buf_printf(out, "%.0f%s", bound / (double)best->factor, best->name);
}

static void print_range(const struct tn_option *option, struct tn_buf *out)
{
    print_bound(option, option->min, out);
    tn_buf_printf(out, " to ");
    print_bound(option, option->max, out);
}

static int in_range(const struct tn_option *option, const struct tn_option_value *value)
{
    double number = option->type == TN_OPT_FLOAT ? value->f : (double)value->i;
    int is_auto = (option->flags & TN_OPT_AUTO) && strcmp(value->s, "auto") == 0;
    return is_auto || !has_range(option) || (number >= option->min && number <= option->max);
}

static void print_choices(const struct tn_option *option, struct tn_buf *out)
{
    for (size_t i = 0; option->choices[i]; i++)
        tn_buf_printf(out, "%s%s", i == 0 ? "" : option->choices[i + 1] ? ", " : " or ", option->choices[i]);
}

/* What would work instead of `text`. */
static void print_expected(const struct tn_option *option, const char *text, struct tn_buf *out)
{
    static const char *const looks[TYPES] = {
        [TN_OPT_INT] = "a whole number",
        [TN_OPT_FLOAT] = "a number such as 0.1 or 3e-4",
        [TN_OPT_BOOL] = "true or false",
        [TN_OPT_SIZE] = "a size such as 512K, 64M or 2G",
        [TN_OPT_ENUM] = "",
        [TN_OPT_DURATION] = "a duration such as 250ms, 30s or 5m",
        [TN_OPT_STRING] = "a text",
        [TN_OPT_LIST] = "items with one comma between two",
    };
    size_t count = 0;
    while (option->type == TN_OPT_ENUM && option->choices[count])
        count++;
    const char *nearest = count ? tn_nearest(text, option->choices, count) : NULL;
    if (nearest)
        tn_buf_printf(out, "did you mean %s? Choices are ", nearest);
    else
        tn_buf_printf(out, "use %s", looks[option->type]);
    if (option->type == TN_OPT_ENUM)
        print_choices(option, out);
    if (has_range(option)) {
        tn_buf_printf(out, ", ");
        print_range(option, out);
    }
    if (option->flags & TN_OPT_AUTO)
        tn_buf_printf(out, ", or auto");
    if (strstr(text, " #"))
        tn_buf_printf(out, " (a comment after a value starts with ';')");
}

/* ---- rows ---- */

static int has_text(const struct tn_option *row)
{
    return row->key && *row->key && row->type > 0 && row->type < TYPES;
}

/* Row `index`, whatever its size; NULL if it cannot be used. */
static const struct tn_option *row_copy(const struct tn_option *table, uint32_t index, uint32_t stride,
                                        struct tn_arena *arena)
{
    const char *at = (const char *)table + (size_t)index * stride;
    uint32_t size;
    if (stride < sizeof size)
        return NULL;
    memcpy(&size, at, sizeof size);
    if (size > stride)
        size = stride;
    struct tn_option *row = tn_arena_alloc(arena, sizeof *row);
    memcpy(row, at, size < sizeof *row ? size : sizeof *row);
    if (!has_text(row) || (row->type == TN_OPT_ENUM && (!row->choices || !row->choices[0])))
        return NULL;
    if (!row->help)
        row->help = "";
    return row;
}

/* Sets the default. Answers what is wrong with the row if its default does not fit itself. */
static const char *take_default(struct tn_option_value *value, struct tn_arena *arena)
{
    const struct tn_option *option = value->option;
    int text_like = option->type == TN_OPT_STRING || option->type == TN_OPT_LIST;
    const char *text = option->fallback ? option->fallback : "";
    value->s = "";
    if ((option->flags & TN_OPT_REQUIRED) || (text_like && !*text))
        return NULL;
    const char *wrong = read_value(text, value, arena);
    return !wrong && !in_range(option, value) ? "is out of range" : wrong;
}

static void report_value(const struct tn_option *option, const struct tn_entry *entry, const char *wrong,
                         struct tn_diag *diag)
{
    const char *text = entry->value;
    struct tn_buf fix;
    tn_buf_init(&fix);
    print_expected(option, text, &fix);
    if (!*text)
        tn_diag_add(diag, entry->where, fix.text, "is empty");
    else
        tn_diag_add(diag, entry->where, fix.text, "%.80s%s %s", text, strlen(text) > 80 ? "..." : "", wrong);
    tn_buf_finish(&fix);
}

/* Takes what the manifest gives; a value that does not fit is reported and leaves the default. */
static void take_entry(struct tn_option_value *value, struct tn_entry *entry, struct tn_arena *arena,
                       struct tn_diag *diag)
{
    const struct tn_option *option = value->option;
    int may_be_empty =
        (option->type == TN_OPT_STRING || option->type == TN_OPT_LIST) && !(option->flags & TN_OPT_REQUIRED);
    struct tn_option_value given = { .option = option, .given = 1 };
    const char *wrong = !*entry->value && !may_be_empty ? "is empty" : read_value(entry->value, &given, arena);
    if (!wrong && !in_range(option, &given))
        wrong = "is out of range";
    entry->used = 1;
    value->given = 1;
    if (wrong)
        report_value(option, entry, wrong, diag);
    else
        *value = given;
}

static void read_row(struct tn_option_value *value, const struct tn_option *row, struct tn_manifest *m,
                     const char *section, struct tn_diag *diag)
{
    value->option = row;
    const char *wrong = take_default(value, &m->arena);
    if (wrong)
        tn_diag_add(diag, tn_manifest_where(m, section, row->key), "the fault is in its option table",
                    "the default '%s' %s", row->fallback ? row->fallback : "", wrong);
    struct tn_entry *entry = tn_manifest_find(m, section, row->key);
    if (entry)
        take_entry(value, entry, &m->arena, diag);
    else if ((row->flags & TN_OPT_REQUIRED) && m->readable)
        tn_diag_add(diag, tn_manifest_where(m, section, row->key), row->help, "is required and not given");
}

static void report_unknown(const struct tn_options *options, struct tn_manifest *m, struct tn_diag *diag)
{
    const char **keys = tn_arena_alloc(&m->arena, (options->count + 1) * sizeof *keys);
    struct tn_buf fix;
    tn_buf_init(&fix);
    for (uint32_t i = 0; i < options->count; i++)
        keys[i] = options->values[i].option->key;
    for (size_t i = 0; i < m->count; i++) {
        struct tn_entry *entry = &m->entries[i];
        if (entry->used || strcmp(entry->section, options->section) != 0)
            continue;
        const char *nearest = tn_nearest(entry->key, keys, options->count);
        tn_buf_clear(&fix);
        if (nearest)
            tn_buf_printf(&fix, "did you mean %s?", nearest);
        else
            tn_buf_printf(&fix, options->count ? "known keys are " : "this section has no keys");
        for (uint32_t k = 0; !nearest && k < options->count; k++)
            tn_buf_printf(&fix, "%s%s", k ? ", " : "", keys[k]);
        tn_diag_add(diag, entry->where, fix.text, "unknown key");
        entry->used = 1;
    }
    tn_buf_finish(&fix);
}

void tn_options_read(struct tn_options *options, struct tn_manifest *m, const char *section,
                     const struct tn_option *table, uint32_t count, uint32_t stride, struct tn_diag *diag)
{
    options->section = tn_arena_strdup(&m->arena, section);
    options->values = tn_arena_alloc(&m->arena, (count + 1) * sizeof *options->values);
    options->count = 0;
    size_t before = diag->count;
    for (uint32_t i = 0; i < count; i++) {
        const struct tn_option *row = row_copy(table, i, stride, &m->arena);
        if (!row) {
            tn_diag_add(diag, tn_manifest_where(m, section, NULL), "the fault is in its option table",
                        "row %u of its options has no key, no type or no choices", i);
            continue;
        }
        read_row(&options->values[options->count++], row, m, section, diag);
    }
    options->sound = diag->count == before;
    report_unknown(options, m, diag);
}

const struct tn_option_value *tn_options_find(const struct tn_options *options, const char *key)
{
    for (uint32_t i = 0; i < options->count; i++)
        if (strcmp(options->values[i].option->key, key) == 0)
            return &options->values[i];
    return NULL;
}

const struct tn_option_value *tn_options_get(const struct tn_options *options, const char *key)
{
    const struct tn_option_value *value = tn_options_find(options, key);
    assert(value && "a key that the table has");
    return value;
}

/* ---- the reference ---- */

static void describe_row(const struct tn_option *option, struct tn_buf *out)
{
    tn_buf_printf(out, "  %-20s %-8s ", option->key, type_names[option->type]);
    if (option->flags & TN_OPT_REQUIRED)
        tn_buf_printf(out, "required");
    else if (option->fallback && *option->fallback)
        tn_buf_printf(out, "default %s", option->fallback);
    else
        tn_buf_printf(out, "default empty");
    if (option->type == TN_OPT_ENUM) {
        tn_buf_printf(out, "; ");
        print_choices(option, out);
    }
    if (has_range(option)) {
        tn_buf_printf(out, "; ");
        print_range(option, out);
    }
    if (option->flags & TN_OPT_AUTO)
        tn_buf_printf(out, "; or auto");
    tn_buf_printf(out, "\n      %s\n", option->help);
}

void tn_options_describe(const struct tn_option *table, uint32_t count, uint32_t stride, struct tn_buf *out)
{
    struct tn_arena arena;
    tn_arena_init(&arena);
    for (uint32_t i = 0; i < count; i++) {
        const struct tn_option *row = row_copy(table, i, stride, &arena);
        if (row)
            describe_row(row, out);
        else
            tn_buf_printf(out, "  (row %u has no key, no type or no choices)\n", i);
    }
    tn_arena_finish(&arena);
}
