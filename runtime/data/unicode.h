/* Unicode: reading UTF-8, and the classes of characters that the GPT-2 tokeniser tells apart. */
#ifndef TENON_UNICODE_H
#define TENON_UNICODE_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed UTF-8 character at `text`, of which `left` bytes are there; 0 if there is none. */
size_t tn_utf8_read(const char *text, size_t left, uint32_t *code);
/* Writes the character (below 0x800) and gives its bytes: 1 or 2. */
size_t tn_utf8_write(uint32_t code, char *text);

enum { TN_CHAR_OTHER, TN_CHAR_SPACE, TN_CHAR_LETTER, TN_CHAR_NUMBER };
/* By general category (L*, N*) and White_Space, of Unicode 14. */
int tn_char_class(uint32_t code);

#endif
