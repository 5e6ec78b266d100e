/* Buf: text that grows. Always ends with a NUL; out of memory ends the process. */
#ifndef TENON_BASE_BUF_H
#define TENON_BASE_BUF_H

#include <stddef.h>

struct tn_buf {
    char *text; /* "" until something is added */
    size_t length, cap;
};

void tn_buf_init(struct tn_buf *buf);
void tn_buf_finish(struct tn_buf *buf);
void tn_buf_clear(struct tn_buf *buf);
void tn_buf_add(struct tn_buf *buf, const char *text, size_t length);
void tn_buf_printf(struct tn_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
