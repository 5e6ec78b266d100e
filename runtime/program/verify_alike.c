/* Verify, ops alike: a model's layers, and a schedule's micro-batches, are the same few ops over and over, and what the
 * rules say of one they say of all. So each is held to its rules once (verify.c, verify_place.c).
 *
 * Ops are alike that have one opcode and equal attributes, and whose values have equal types, placements and wants: of
 * the program, a core op's rules for attributes, shape and placement read nothing else. That of pack does, and those of
 * a plugin's op may; these are alike to none. */
#include <string.h>

#include <xxhash.h>

#include "base/buf.h"
#include "program/verify.h"

enum { FIRST_SLOTS = 512 };

struct kept {
    uint64_t hash;
    size_t at, bytes; /* of what is said of it, in text */
    tn_op op;         /* 0: empty */
};

struct tn_alike {
    struct tn_buf text;
    struct kept *slot;
    size_t cap, used; /* cap is a power of two */
};

struct tn_alike *tn_alike_new(struct tn_arena *memory)
{
    struct tn_alike *alike = tn_arena_alloc(memory, sizeof *alike);
    tn_buf_init(&alike->text);
    alike->cap = FIRST_SLOTS;
    alike->slot = tn_arena_alloc(memory, alike->cap * sizeof *alike->slot);
    return alike;
}

void tn_alike_finish(struct tn_alike *alike)
{
    tn_buf_finish(&alike->text);
}

static void say(struct tn_alike *alike, const void *what, size_t bytes)
{
    tn_buf_add(&alike->text, what, bytes);
}

static void say_value(struct tn_alike *alike, const struct tn_value_data *value)
{
    const uint32_t type[] = { value->dtype, value->space, (uint32_t)value->rank };
    say(alike, type, sizeof type);
    say(alike, value->shape, sizeof value->shape);
    say(alike, value->place, sizeof value->place);
    say(alike, value->want, sizeof value->want);
}

static void say_op(struct tn_alike *alike, const struct tn_program *p, const struct tn_op_data *o)
{
    const uint32_t head[] = { o->opcode, o->n_in, o->n_out, o->n_attrs };
    say(alike, head, sizeof head);
    for (uint32_t i = 0; i < o->n_attrs; i++) {
        const struct tn_attr *attr = &o->attrs[i];
        say(alike, attr->key, strlen(attr->key) + 1);
        say(alike, &attr->is_float, sizeof attr->is_float);
        say(alike, attr->is_float ? (const void *)&attr->f : &attr->i, sizeof attr->i);
    }
    for (uint32_t i = 0; i < o->n_in + o->n_out; i++) {
        tn_value v = i < o->n_in ? o->in[i] : o->out[i - o->n_in];
        say(alike, &(char){ v != 0 }, 1);
        if (v)
            say_value(alike, tn_val(p, v));
    }
}

/* Where `key` is, or an empty slot for it. */
static struct kept *slot_of(const struct tn_alike *alike, const struct kept *key)
{
    size_t at = (size_t)key->hash & (alike->cap - 1);
    for (; alike->slot[at].op; at = (at + 1) & (alike->cap - 1)) {
        const struct kept *k = &alike->slot[at];
        if (k->hash == key->hash && k->bytes == key->bytes &&
            memcmp(alike->text.text + k->at, alike->text.text + key->at, k->bytes) == 0)
            break;
    }
    return &alike->slot[at];
}

static void grow(struct tn_alike *alike, struct tn_arena *memory)
{
    struct tn_alike old = *alike;
    alike->cap *= 2;
    alike->slot = tn_arena_alloc(memory, alike->cap * sizeof *alike->slot);
    for (size_t i = 0; i < old.cap; i++)
        if (old.slot[i].op)
            *slot_of(alike, &old.slot[i]) = old.slot[i];
}

tn_op tn_alike_first(struct tn_alike *alike, struct tn_arena *memory, const struct tn_program *p, tn_op op)
{
    const struct tn_op_data *o = tn_opd(p, op);
    struct kept key = { .at = alike->text.length, .op = op };
    if (o->opcode >= TN_OP_CORE_END || o->opcode == TN_OP_PACK)
        return op;
    say_op(alike, p, o);
    key.bytes = alike->text.length - key.at;
    key.hash = XXH3_64bits(alike->text.text + key.at, key.bytes);
    struct kept *slot = slot_of(alike, &key);
    if (slot->op) {
        alike->text.length = key.at; /* nothing new was said */
        return slot->op;
    }
    *slot = key;
    if (2 * ++alike->used > alike->cap)
        grow(alike, memory);
    return op;
}
