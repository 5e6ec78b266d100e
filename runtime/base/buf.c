/* Buf: see buf.h. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char empty[1];

void tn_buf_init(struct tn_buf *buf)
{
    *buf = (struct tn_buf){ .text = empty };
}

void tn_buf_finish(struct tn_buf *buf)
{
    if (buf->text != empty)
        free(buf->text);
    tn_buf_init(buf);
}

void tn_buf_clear(struct tn_buf *buf)
{
    buf->length = 0;
    buf->text[0] = 0;
}

static void reserve(struct tn_buf *buf, size_t more)
{
    if (buf->cap - buf->length > more)
        return;
    size_t cap = buf->cap ? buf->cap : 128;
    while (cap - buf->length <= more)
        cap *= 2;
    char *grown = realloc(buf->text == empty ? NULL : buf->text, cap);
    if (!grown) {
        fprintf(stderr, "tenon: out of memory (%zu bytes of text)\n", cap);
        exit(1);
    }
    buf->text = grown;
    buf->cap = cap;
}

void tn_buf_add(struct tn_buf *buf, const char *text, size_t length)
{
    reserve(buf, length);
    memcpy(buf->text + buf->length, text, length);
    buf->length += length;
    buf->text[buf->length] = 0;
}

void tn_buf_printf(struct tn_buf *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    reserve(buf, (size_t)length);
    va_start(args, fmt);
    vsnprintf(buf->text + buf->length, (size_t)length + 1, fmt, args);
    va_end(args);
    buf->length += (size_t)length;
}
