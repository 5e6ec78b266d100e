/* BPE, encoding: see bpe.h.
 *
 * A word is a linked list of symbols, first its bytes. A heap holds every pair that may be joined, by rank and then
 * from left to right; a pair that is no longer there when its turn comes is dropped. So a word of n bytes costs
 * O(n log n), also one of a million equal letters. */
#include "data/bpe.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "data/bpe_load.h"
#include "data/unicode.h"

struct bpe_symbol {
    int32_t id;            /* -1: joined to the one before */
    int32_t before, after; /* -1: none */
};

struct bpe_pair {
    int32_t rank, at; /* `at`: the left symbol */
    int32_t left, right, joined;
};

int32_t tn_bpe_vocab(const struct tn_bpe *bpe)
{
    return bpe->vocab;
}

const char *tn_bpe_token(const struct tn_bpe *bpe, int32_t id, size_t *bytes)
{
    *bytes = 0;
    if (id < 0 || id >= bpe->vocab || !bpe->tokens[id].bytes)
        return NULL;
    *bytes = bpe->tokens[id].length;
    return bpe->tokens[id].bytes;
}

/* Words. */

struct cursor {
    const char *text;
    size_t bytes;
};

/* Class of the character at `at` and its length; a byte that is no UTF-8 is a character of its own. At the end: -1. */
static int class_at(const struct cursor *c, size_t at, size_t *length)
{
    uint32_t code = 0;
    *length = 0;
    if (at >= c->bytes)
        return -1;
    *length = tn_utf8_read(c->text + at, c->bytes - at, &code);
    if (*length == 0) {
        *length = 1;
        return TN_CHAR_OTHER;
    }
    return tn_char_class(code);
}

/* The end of the characters of class `kind` from `at` on; *last is where the last of them begins. */
static size_t run_end(const struct cursor *c, size_t at, int kind, size_t *last)
{
    size_t length;
    while (class_at(c, at, &length) == kind) {
        *last = at;
        at += length;
    }
    return at;
}

static size_t contraction(const struct cursor *c, size_t at)
{
    static const char *const endings[] = { "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" };
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t length = strlen(endings[i]);
        if (c->bytes - at >= length && memcmp(c->text + at, endings[i], length) == 0)
            return length;
    }
    return 0;
}

/* The end of the word that begins at `at`. GPT-2's rule, the alternatives in its order:
 *     's|'t|'re|'ve|'m|'ll|'d | ?letters | ?numbers | ?others | spaces not before a word | spaces */
static size_t word_end(const struct cursor *c, size_t at)
{
    size_t length = contraction(c, at), last = at;
    if (length > 0)
        return at + length;
    size_t begin = c->text[at] == ' ' ? at + 1 : at;
    int kind = class_at(c, begin, &length);
    if (kind >= 0 && kind != TN_CHAR_SPACE)
        return run_end(c, begin, kind, &last);
    /* Spaces: the last one is left to the word that follows, unless it is all there is. */
    size_t end = run_end(c, at, TN_CHAR_SPACE, &last);
    return end == c->bytes || last == at ? end : last;
}

/* After a character that is no space, a space always begins a word, and no word looks back. */
size_t tn_bpe_cut(const char *text, size_t bytes)
{
    for (size_t at = bytes; at-- > 1;) {
        if (text[at] != ' ' && text[at] != '\n')
            continue;
        size_t from = at - 1, length;
        while (from > 0 && at - from < 4 && ((unsigned char)text[from] & 0xC0) == 0x80)
            from--;
        struct cursor c = { text + from, at - from };
        if (class_at(&c, 0, &length) != TN_CHAR_SPACE && length == at - from)
            return at;
    }
    return 0;
}

/* Joining. */

static int is_first(const struct bpe_pair *a, const struct bpe_pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_add(struct tn_bpe *bpe, struct bpe_pair pair)
{
    size_t i = bpe->heap_count++;
    for (; i > 0 && is_first(&pair, &bpe->heap[(i - 1) / 2]); i = (i - 1) / 2)
        bpe->heap[i] = bpe->heap[(i - 1) / 2];
    bpe->heap[i] = pair;
}

static struct bpe_pair heap_take(struct tn_bpe *bpe)
{
    struct bpe_pair top = bpe->heap[0], pair = bpe->heap[--bpe->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < bpe->heap_count; i = child) {
        if (child + 1 < bpe->heap_count && is_first(&bpe->heap[child + 1], &bpe->heap[child]))
            child++;
        if (!is_first(&bpe->heap[child], &pair))
            break;
        bpe->heap[i] = bpe->heap[child];
    }
    bpe->heap[i] = pair;
    return top;
}

/* The symbol at `at` with the one after it, if the merges list the pair. */
static void consider(struct tn_bpe *bpe, int32_t at)
{
    if (at < 0 || bpe->symbols[at].after < 0)
        return;
    int32_t left = bpe->symbols[at].id, right = bpe->symbols[bpe->symbols[at].after].id;
    const struct bpe_merge *merge = bpe_find_merge(bpe, left, right);
    if (merge->left >= 0)
        heap_add(bpe, (struct bpe_pair){ merge->rank, at, left, right, merge->joined });
}

static void join(struct tn_bpe *bpe, const struct bpe_pair *pair)
{
    struct bpe_symbol *symbols = bpe->symbols, *left = &symbols[pair->at];
    if (left->id != pair->left || left->after < 0 || symbols[left->after].id != pair->right)
        return;
    struct bpe_symbol *right = &symbols[left->after];
    left->id = pair->joined;
    left->after = right->after;
    right->id = -1;
    if (left->after >= 0)
        symbols[left->after].before = pair->at;
    consider(bpe, left->before);
    consider(bpe, pair->at);
}

/* Symbols for `length` bytes, and a heap for the most pairs that they can give: each byte starts one, each join
 * makes two more. */
static int make_room(struct tn_bpe *bpe, size_t length)
{
    if (length <= bpe->room)
        return 0;
    size_t room = length < 64 ? 64 : length + length / 2;
    if (length > INT32_MAX / 4)
        return -1;
    struct bpe_symbol *symbols = realloc(bpe->symbols, room * sizeof *symbols);
    bpe->symbols = symbols ? symbols : bpe->symbols;
    struct bpe_pair *heap = realloc(bpe->heap, 3 * room * sizeof *heap);
    bpe->heap = heap ? heap : bpe->heap;
    if (!symbols || !heap)
        return -1;
    bpe->room = room;
    return 0;
}

static int append(struct tn_ids *ids, int32_t id)
{
    if (ids->count == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 1024;
        int32_t *grown = realloc(ids->ids, cap * sizeof *grown);
        if (!grown)
            return -1;
        ids->ids = grown;
        ids->cap = cap;
    }
    ids->ids[ids->count++] = id;
    return 0;
}

static int encode_word(struct tn_bpe *bpe, const char *word, size_t length, struct tn_ids *ids)
{
    if (make_room(bpe, length) != 0)
        return -1;
    for (size_t i = 0; i < length; i++)
        bpe->symbols[i] = (struct bpe_symbol){ bpe->byte_id[(unsigned char)word[i]], (int32_t)i - 1,
                                               i + 1 < length ? (int32_t)i + 1 : -1 };
    bpe->heap_count = 0;
    for (size_t i = 0; i + 1 < length; i++)
        consider(bpe, (int32_t)i);
    while (bpe->heap_count > 0) {
        struct bpe_pair pair = heap_take(bpe);
        join(bpe, &pair);
    }
    for (int32_t at = 0; at >= 0; at = bpe->symbols[at].after)
        if (append(ids, bpe->symbols[at].id) != 0)
            return -1;
    return 0;
}

int tn_bpe_encode(struct tn_bpe *bpe, const char *text, size_t bytes, struct tn_ids *ids)
{
    struct cursor c = { text, bytes };
    for (size_t at = 0, end; at < bytes; at = end) {
        end = word_end(&c, at);
        if (encode_word(bpe, text + at, end - at, ids) != 0)
            return -1;
    }
    return 0;
}
