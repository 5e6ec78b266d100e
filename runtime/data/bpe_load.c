/* BPE, the files: see bpe.h.
 *
 * Both are text, so each byte of a token stands there as a printable character: the printable ones of Latin-1 as
 * themselves, the other 68 as U+0100 and up in their order. */
#include "data/bpe_load.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/input.h"
#include "data/unicode.h"

#define MOST_IDS (1 << 24)

static int is_shown_as_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

static uint32_t shown_as(int byte)
{
    uint32_t hidden = 0;
    for (int i = 0; i < byte; i++)
        hidden += !is_shown_as_itself(i);
    return is_shown_as_itself(byte) ? (uint32_t)byte : 256 + hidden;
}

/* Byte for each character, -1 for what stands for none. */
struct shown {
    int byte[512];
};

static void shown_init(struct shown *shown)
{
    memset(shown->byte, -1, sizeof shown->byte);
    for (int byte = 0; byte < 256; byte++)
        shown->byte[shown_as(byte)] = byte;
}

/* The bytes that the text shows. What cannot be a shown byte (in special tokens) is kept as it is. */
static struct bpe_token unshow(struct tn_bpe *bpe, const struct shown *shown, const char *text)
{
    size_t length = strlen(text), made = 0;
    char *bytes = tn_arena_alloc(&bpe->arena, length + 1);
    for (size_t i = 0; i < length;) {
        uint32_t code = 0;
        size_t step = tn_utf8_read(text + i, length - i, &code);
        if (step > 0 && code < 512 && shown->byte[code] >= 0) {
            bytes[made++] = (char)shown->byte[code];
        } else {
            step = step ? step : 1;
            memcpy(bytes + made, text + i, step);
            made += step;
        }
        i += step;
    }
    return (struct bpe_token){ bytes, made };
}

struct bpe_merge *bpe_find_merge(const struct tn_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = (hash >> 20) & (bpe->places - 1);; i = (i + 1) & (bpe->places - 1)) {
        struct bpe_merge *merge = &bpe->merges[i];
        if (merge->left < 0 || (merge->left == left && merge->right == right))
            return merge;
    }
}

static int fill_vocabulary(struct tn_bpe *bpe, json_t *object, const char *path, char *error)
{
    const char *text;
    json_t *value;
    json_object_foreach(object, text, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= MOST_IDS)
            return snprintf(error, 256, "%.120s: '%.40s' has no id from 0 to %d", path, text, MOST_IDS - 1), -1;
        bpe->vocab = id >= bpe->vocab ? (int32_t)id + 1 : bpe->vocab;
    }
    struct shown shown;
    shown_init(&shown);
    bpe->tokens = tn_arena_alloc(&bpe->arena, (size_t)bpe->vocab * sizeof *bpe->tokens + 1);
    json_object_foreach(object, text, value)
    {
        struct bpe_token *token = &bpe->tokens[json_integer_value(value)];
        if (token->bytes)
            return snprintf(error, 256, "%.120s: two tokens have the id %lld", path,
                            (long long)json_integer_value(value)),
                   -1;
        *token = unshow(bpe, &shown, text);
    }
    for (int byte = 0; byte < 256; byte++) {
        char key[3] = "";
        tn_utf8_write(shown_as(byte), key);
        json_t *id = json_object_get(object, key);
        if (!id)
            return snprintf(error, 256, "%.120s: has no token for byte %d", path, byte), -1;
        bpe->byte_id[byte] = (int32_t)json_integer_value(id);
    }
    return 0;
}

/* "left right" of line `number`; `line` has no newline any more. */
static int add_merge(struct tn_bpe *bpe, json_t *vocabulary, char *line, const char *where, size_t number, int32_t rank,
                     char *error)
{
    char *space = strchr(line, ' ');
    if (!space || space == line || !space[1] || strchr(space + 1, ' '))
        return snprintf(error, 256, "%.120s:%zu: expected two tokens with a space between", where, number), -1;
    *space = 0;
    json_t *left = json_object_get(vocabulary, line), *right = json_object_get(vocabulary, space + 1);
    memmove(space, space + 1, strlen(space + 1) + 1);
    json_t *joined = json_object_get(vocabulary, line);
    if (!left || !right || !joined)
        return snprintf(error, 256, "%.120s:%zu: the %s token is not in the vocabulary", where, number,
                        !left    ? "first"
                        : !right ? "second"
                                 : "joined"),
               -1;
    struct bpe_merge *merge =
        bpe_find_merge(bpe, (int32_t)json_integer_value(left), (int32_t)json_integer_value(right));
    if (merge->left < 0) /* of a pair that is listed twice, the first counts */
        *merge = (struct bpe_merge){ (int32_t)json_integer_value(left), (int32_t)json_integer_value(right), rank,
                                     (int32_t)json_integer_value(joined) };
    return 0;
}

static void make_places(struct tn_bpe *bpe, size_t merges)
{
    bpe->places = 16;
    while (bpe->places < merges * 2)
        bpe->places *= 2;
    bpe->merges = tn_arena_alloc(&bpe->arena, bpe->places * sizeof *bpe->merges);
    for (size_t i = 0; i < bpe->places; i++)
        bpe->merges[i].left = -1;
}

static int read_merges(struct tn_bpe *bpe, json_t *vocabulary, const char *path, char *error)
{
    const char *why;
    FILE *file = tn_input_stream(path, &why);
    char *line = NULL;
    size_t cap = 0, number = 0, lines = 0;
    ssize_t length;
    int done = 0;
    if (!file)
        return snprintf(error, 256, "cannot open %.170s: %.60s", path, why), -1;
    while (getline(&line, &cap, file) >= 0)
        lines++;
    rewind(file);
    make_places(bpe, lines);
    int32_t rank = 0;
    while (done == 0 && (length = getline(&line, &cap, file)) >= 0) {
        number++;
        while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r'))
            line[--length] = 0;
        if (length > 0 && !(number == 1 && strncmp(line, "#version", 8) == 0))
            done = add_merge(bpe, vocabulary, line, path, number, rank++, error);
    }
    if (done == 0 && ferror(file)) {
        snprintf(error, 256, "cannot read %.180s: %s", path, strerror(errno));
        done = -1;
    }
    fclose(file);
    free(line);
    return done;
}

int tn_bpe_open(struct tn_bpe **out, const char *vocabulary, const char *merges, char *error)
{
    *out = NULL;
    json_error_t problem;
    json_t *object = tn_input_json(vocabulary, &problem);
    if (!json_is_object(object)) {
        if (object)
            snprintf(error, 256, "%.180s: is not a JSON object from token to id", vocabulary);
        else if (problem.line > 0)
            snprintf(error, 256, "%.120s:%d: %.100s", vocabulary, problem.line, problem.text);
        else
            snprintf(error, 256, "cannot open %.170s: %.60s", vocabulary, problem.text);
        json_decref(object);
        return -1;
    }
    struct tn_bpe *bpe = calloc(1, sizeof *bpe);
    int done = -1;
    if (!bpe) {
        snprintf(error, 256, "out of memory");
        goto drop_object;
    }
    tn_arena_init(&bpe->arena);
    if (fill_vocabulary(bpe, object, vocabulary, error) == 0 && read_merges(bpe, object, merges, error) == 0) {
        *out = bpe;
        done = 0;
    } else {
        tn_bpe_close(bpe);
    }
drop_object:
    json_decref(object);
    return done;
}

void tn_bpe_close(struct tn_bpe *bpe)
{
    if (!bpe)
        return;
    tn_arena_finish(&bpe->arena);
    free(bpe->symbols);
    free(bpe->heap);
    free(bpe);
}
