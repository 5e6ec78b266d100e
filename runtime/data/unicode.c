/* Unicode: see unicode.h. */
#include "data/unicode.h"

struct range {
    uint32_t first, last;
};

#define LETTERS(first, last) { first, last },
#define NUMBERS(first, last)
static const struct range letters[] = {
#include "data/unicode_ranges.def"
};
#undef LETTERS
#undef NUMBERS
#define LETTERS(first, last)
#define NUMBERS(first, last) { first, last },
static const struct range numbers[] = {
#include "data/unicode_ranges.def"
};

static int is_in(const struct range *ranges, size_t count, uint32_t code)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= ranges[low].first;
}

static int is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

int tn_char_class(uint32_t code)
{
    if (is_space(code))
        return TN_CHAR_SPACE;
    if (is_in(letters, sizeof letters / sizeof *letters, code))
        return TN_CHAR_LETTER;
    return is_in(numbers, sizeof numbers / sizeof *numbers, code) ? TN_CHAR_NUMBER : TN_CHAR_OTHER;
}

/* Unicode 3.9, table 3-7: no overlong forms, no surrogates, nothing beyond U+10FFFF. */
size_t tn_utf8_read(const char *text, size_t left, uint32_t *code)
{
    static const struct {
        uint32_t lead, mask, least;
    } forms[] = { { 0x00, 0x80, 0 }, { 0xC0, 0xE0, 0x80 }, { 0xE0, 0xF0, 0x800 }, { 0xF0, 0xF8, 0x10000 } };
    const unsigned char *bytes = (const unsigned char *)text;
    for (size_t more = 0; left > 0 && more < 4; more++) {
        if ((bytes[0] & forms[more].mask) != forms[more].lead)
            continue;
        if (more >= left)
            return 0;
        uint32_t number = bytes[0] & ~forms[more].mask & 0xFF;
        for (size_t i = 1; i <= more; i++) {
            if ((bytes[i] & 0xC0) != 0x80)
                return 0;
            number = number << 6 | (bytes[i] & 0x3F);
        }
        *code = number;
        return number < forms[more].least || number > 0x10FFFF || (number >= 0xD800 && number < 0xE000) ? 0 : more + 1;
    }
    return 0;
}

size_t tn_utf8_write(uint32_t code, char *text)
{
    if (code < 0x80) {
        text[0] = (char)code;
        return 1;
    }
    text[0] = (char)(0xC0 | code >> 6);
    text[1] = (char)(0x80 | (code & 0x3F));
    return 2;
}
