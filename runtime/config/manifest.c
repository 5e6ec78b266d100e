/* Manifest: reads the INI text and its overrides; see manifest.h.
 *
 * The file is read whole and cut into lines here; inih parses each line. That way every line is checked before the
 * parser sees it (UTF-8, control characters, length), every bad line is reported and not only the first, and each
 * key knows its line. Lines are handed on without indentation, so no build of inih takes an indented key for the
 * continuation of the one above. */
#include "config/manifest.h"

#include <errno.h>
#include <ini.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/input.h"

enum {
    MOST_PROBLEMS = 20, /* of one file: what has more is no manifest */
    MOST_NAME = 48      /* bytes of a section or key: inih cuts longer section names off */
};

struct reader {
    struct tn_manifest *m;
    struct tn_diag *diag;
    const char *at, *end;
    int line;
    int expects_pair; /* the line handed out last must come back as a key and a value */
    size_t problems;
};

/* ---- entries and sections ---- */

struct tn_entry *tn_manifest_find(const struct tn_manifest *m, const char *section, const char *key)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->entries[i].key, key) == 0 && strcmp(m->entries[i].section, section) == 0)
            return &m->entries[i];
    return NULL;
}

static const struct tn_section *section_find(const struct tn_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->section_count; i++)
        if (strcmp(m->sections[i].name, name) == 0)
            return &m->sections[i];
    return NULL;
}

struct tn_where tn_manifest_where(const struct tn_manifest *m, const char *section, const char *key)
{
    const struct tn_entry *entry = key ? tn_manifest_find(m, section, key) : NULL;
    if (entry)
        return entry->where;
    const struct tn_section *known = section_find(m, section);
    struct tn_where where = known ? known->where : (struct tn_where){ .file = m->path };
    where.section = section;
    where.key = key;
    return where;
}

static void section_add(struct tn_manifest *m, const char *name, const char *file, int line)
{
    m->sections = tn_arena_grow(&m->arena, m->sections, sizeof *m->sections, &m->section_cap, m->section_count + 1);
    name = tn_arena_strdup(&m->arena, name);
    m->sections[m->section_count++] =
        (struct tn_section){ .name = name, .where = { .file = file, .line = line, .section = name } };
}

static void entry_add(struct tn_manifest *m, const char *section, const char *key, const char *value, const char *file,
                      int line)
{
    m->entries = tn_arena_grow(&m->arena, m->entries, sizeof *m->entries, &m->cap, m->count + 1);
    struct tn_entry *entry = &m->entries[m->count++];
    entry->section = tn_arena_strdup(&m->arena, section);
    entry->key = tn_arena_strdup(&m->arena, key);
    entry->value = tn_arena_strdup(&m->arena, value);
    entry->where = (struct tn_where){ .file = file, .line = line, .section = entry->section, .key = entry->key };
    entry->used = 0;
}

/* ---- one line ---- */

#define PROBLEM(r, section, key, fix, ...) \
    ((r)->problems++,                      \
     tn_diag_add((r)->diag, (struct tn_where){ (r)->m->path, (r)->line, section, key }, fix, __VA_ARGS__))

static int is_space(char c)
{
    return c == ' ' || c == '\t';
}

/* Bytes of the UTF-8 character at `s`, 0 if it is none (Unicode 15, table 3-7). */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || left < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    int overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    int beyond = (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f);
    return overlong || beyond ? 0 : n;
}

static int text_is_clean(struct reader *r, const char *line, size_t length)
{
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)line[i];
        size_t n = utf8_length((const unsigned char *)line + i, length - i);
        if (n == 0) {
            PROBLEM(r, NULL, NULL, "save the file as UTF-8", "byte %zu of the line (0x%02x) is not UTF-8", i + 1, c);
            return 0;
        }
        if ((c < 0x20 && c != '\t') || c == 0x7f) {
            PROBLEM(r, NULL, NULL, "remove it", "byte %zu of the line is the control character 0x%02x", i + 1, c);
            return 0;
        }
        i += n;
    }
    return 1;
}

/* A "[name]" line: notes the section. Returns 0 if it is not well formed. */
static int take_section(struct reader *r, const char *line, size_t length)
{
    const char *close = memchr(line, ']', length);
    if (!close) {
        PROBLEM(r, NULL, NULL, "write [name]", "the section's ']' is missing");
        return 0;
    }
    size_t name_length = (size_t)(close - line) - 1;
    const char *rest = close + 1;
    while (rest < line + length && is_space(*rest))
        rest++;
    if (rest < line + length && *rest != ';' && *rest != '#') {
        PROBLEM(r, NULL, NULL, "put it on a line of its own", "text after the section's ']'");
        return 0;
    }
    if (name_length == 0 || name_length > MOST_NAME || is_space(line[1]) || is_space(close[-1])) {
        PROBLEM(r, NULL, NULL, "use 1 to 48 characters without spaces around them", "'%.*s' is not a section name",
                name_length > 60 ? 60 : (int)name_length, line + 1);
        return 0;
    }
    char name[MOST_NAME + 1] = { 0 };
    memcpy(name, line + 1, name_length);
    const struct tn_section *earlier = section_find(r->m, name);
    if (earlier)
        PROBLEM(r, name, NULL, "move its keys there", "the section was opened before, in line %d", earlier->where.line);
    else
        section_add(r->m, name, r->m->path, r->line);
    return 1;
}

static int line_fits(struct reader *r, size_t length, int room)
{
    if (length + 2 <= (size_t)room) /* newline and NUL */
        return 1;
    PROBLEM(r, NULL, NULL, "shorten it", "the line has %zu bytes; this build of inih reads %d", length, room - 2);
    return 0;
}

/* Cuts off the next line, without indentation, line end and spaces before it. */
static const char *next_line(struct reader *r, size_t *length)
{
    const char *line = r->at;
    const char *newline = memchr(line, '\n', (size_t)(r->end - line));
    const char *end = newline ? newline : r->end;
    r->at = newline ? newline + 1 : r->end;
    r->line++;
    if (end > line && end[-1] == '\r')
        end--;
    while (line < end && is_space(*line))
        line++;
    while (end > line && is_space(end[-1]))
        end--;
    *length = (size_t)(end - line);
    return line;
}

/* What inih reads its lines through. A line that must not be parsed is handed on as an empty one. */
static char *read_line(char *into, int room, void *user)
{
    struct reader *r = user;
    if (r->expects_pair)
        PROBLEM(r, NULL, NULL, "write key = value, [section], or ; comment", "the line is no key and no section");
    r->expects_pair = 0;
    if (r->at >= r->end)
        return NULL;
    if (r->problems >= MOST_PROBLEMS || r->m->section_count > TN_MANIFEST_MOST_KEYS) {
        PROBLEM(r, NULL, NULL, NULL, "too many problems; the rest of the file was not read");
        return NULL;
    }

    size_t length;
    const char *line = next_line(r, &length);
    int take = length > 0 && *line != ';' && *line != '#';
    take = text_is_clean(r, line, length) && take && line_fits(r, length, room);
    if (take && *line == '[')
        take = take_section(r, line, length);
    else if (take)
        r->expects_pair = 1;
    length = take ? length : 0;
    memcpy(into, line, length);
    memcpy(into + length, "\n", 2);
    return into;
}

/* What inih calls for each key. */
static int take_pair(void *user, const char *section, const char *key, const char *value)
{
    struct reader *r = user;
    r->expects_pair = 0;
    if (!*key || strlen(key) > MOST_NAME) {
        PROBLEM(r, *section ? section : NULL, NULL, "use 1 to 48 characters before the '='", "'%.60s' is not a key",
                key);
        return 1;
    }
    if (!*section) {
        PROBLEM(r, NULL, key, "put a [section] line above it", "the key belongs to no section");
        return 1;
    }
    const struct tn_entry *earlier = tn_manifest_find(r->m, section, key);
    if (earlier)
        PROBLEM(r, section, key, "keep one of them", "the key was given before, in line %d", earlier->where.line);
    else if (r->m->count >= TN_MANIFEST_MOST_KEYS)
        PROBLEM(r, section, key, "remove some", "the file has more than %d keys", TN_MANIFEST_MOST_KEYS);
    else
        entry_add(r->m, section, key, value ? value : "", r->m->path, r->line);
    return 1;
}

/* ---- the file ---- */

static size_t longest_line(const char *text, const char *end)
{
    size_t longest = 0;
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *stop = newline ? newline : end;
        if ((size_t)(stop - text) > longest)
            longest = (size_t)(stop - text);
        text = stop + 1;
    }
    return longest;
}

static void parse(struct reader *r)
{
    int room = (int)longest_line(r->at, r->end) + 3;
#ifdef TENON_INIH_TUNABLE /* Debian's inih: the limits are variables */
    ini_use_stack = false;
    ini_allow_realloc = false;
    ini_initial_alloc = ini_max_line = room < 256 ? 256 : room;
#else
    (void)room;
#endif
    if (ini_parse_stream(read_line, r, take_pair, r) < 0)
        PROBLEM(r, NULL, NULL, NULL, "out of memory");
}

/* The whole file, or NULL after a problem. */
static char *read_file(struct tn_manifest *m, size_t *bytes, struct tn_diag *diag)
{
    struct tn_where where = { .file = m->path };
    const char *why;
    int fd = tn_input_open(m->path, &why);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        int is_other = fd < 0 && errno == 0;
        tn_diag_add(diag, where, is_other ? "give the path of a manifest" : NULL, "%s%s",
                    is_other ? "" : "cannot be read: ", fd < 0 ? why : strerror(errno));
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    char *text = NULL;
    ssize_t got = -1;
    if (info.st_size > TN_MANIFEST_MOST_BYTES) {
        tn_diag_add(diag, where, "is it a manifest?", "has %lld bytes; a manifest has at most %d",
                    (long long)info.st_size, TN_MANIFEST_MOST_BYTES);
    } else {
        text = tn_arena_alloc(&m->arena, (size_t)info.st_size + 1);
        got = 0;
        for (ssize_t n = 1; n > 0 && got<info.st_size; got += n> 0 ? n : 0)
            if ((n = read(fd, text + got, (size_t)(info.st_size - got))) < 0) {
                tn_diag_add(diag, where, NULL, "cannot be read: %s", strerror(errno));
                text = NULL;
            }
    }
    close(fd);
    *bytes = (size_t)got;
    return text;
}

static void parse_file(struct tn_manifest *m, struct tn_diag *diag)
{
    size_t bytes;
    const char *text = read_file(m, &bytes, diag);
    if (!text)
        return;
    struct reader r = { .m = m, .diag = diag, .at = text, .end = text + bytes };
    if (bytes >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0)) {
        tn_diag_add(diag, (struct tn_where){ .file = m->path }, "save it as UTF-8", "is UTF-16");
        return;
    }
    m->readable = bytes > 0;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        r.at += 3;
    parse(&r);
    if (m->section_count == 0 && r.problems == 0)
        tn_diag_add(diag, (struct tn_where){ .file = m->path }, "a manifest needs at least [data] with a path",
                    bytes == 0 ? "is empty" : "has no section");
}

/* ---- overrides ---- */

static int override_is_clean(const char *text)
{
    for (size_t n; *text; text += n) {
        n = utf8_length((const unsigned char *)text, strlen(text));
        if (n == 0 || (unsigned char)*text < 0x20 || *text == 0x7f)
            return 0;
    }
    return 1;
}

static void apply_override(struct tn_manifest *m, const char *text, struct tn_diag *diag)
{
    struct tn_where where = { .file = "--set" };
    const char *equals = strchr(text, '=');
    const char *dot = memrchr(text, '.', equals ? (size_t)(equals - text) : 0); /* a section may have one: comm.dp */
    if (!override_is_clean(text)) {
        tn_diag_add(diag, where, "use one line of UTF-8", "a control character, or a byte that is not UTF-8");
        return;
    }
    if (!dot || dot == text || dot + 1 == equals) {
        tn_diag_add(diag, where, "use section.key=value, as in tp.size=2", "'%.80s' names no key", text);
        return;
    }
    const char *section = tn_arena_printf(&m->arena, "%.*s", (int)(dot - text), text);
    const char *key = tn_arena_printf(&m->arena, "%.*s", (int)(equals - dot - 1), dot + 1);
    struct tn_entry *entry = tn_manifest_find(m, section, key);
    if (entry) {
        entry->value = tn_arena_strdup(&m->arena, equals + 1);
        entry->where = (struct tn_where){ "--set", 0, entry->section, entry->key };
        return;
    }
    if (!section_find(m, section))
        section_add(m, section, "--set", 0);
    entry_add(m, section, key, equals + 1, "--set", 0);
}

/* ---- the whole ---- */

static uint64_t hash_entries(const struct tn_manifest *m)
{
    XXH64_hash_t hash = 0;
    for (size_t i = 0; i < m->count; i++) {
        const char *const texts[] = { m->entries[i].section, m->entries[i].key, m->entries[i].value };
        for (int n = 0; n < 3; n++)
            hash = XXH64(texts[n], strlen(texts[n]) + 1, hash);
    }
    return hash;
}

static const char *folder_of(struct tn_manifest *m, const char *path)
{
    const char *folder = dirname(tn_arena_strdup(&m->arena, path));
    char *absolute = realpath(folder, NULL);
    const char *kept = tn_arena_strdup(&m->arena, absolute ? absolute : folder);
    free(absolute);
    return kept;
}

void tn_manifest_init(struct tn_manifest *m, const char *path, const char *const *overrides, size_t n_overrides,
                      struct tn_diag *diag)
{
    *m = (struct tn_manifest){ 0 };
    tn_arena_init(&m->arena);
    m->path = path ? tn_arena_strdup(&m->arena, path) : NULL;
    m->folder = path ? folder_of(m, path) : NULL;
    if (path)
        parse_file(m, diag);
    for (size_t i = 0; i < n_overrides; i++)
        apply_override(m, overrides[i], diag);
    m->hash = hash_entries(m);
}

void tn_manifest_finish(struct tn_manifest *m)
{
    tn_arena_finish(&m->arena);
    *m = (struct tn_manifest){ 0 };
}
