/* Idx format: the places of an .idx file's fields, shared by its reader and its writer. */
#ifndef TENON_IDX_FORMAT_H
#define TENON_IDX_FORMAT_H

#define IDX_MAGIC "MMIDIDX\0\0"
enum {
    IDX_MAGIC_BYTES = 9,
    IDX_AT_VERSION = 9,
    IDX_AT_DTYPE = 17,
    IDX_AT_SEQUENCES = 18,
    IDX_AT_ENTRIES = 26,
    IDX_HEADER = 34
};

/* Byte of item i of the three arrays in an index of n sequences. */
#define IDX_LENGTH(i) (IDX_HEADER + 4 * (int64_t)(i))
#define IDX_POINTER(n, i) (IDX_HEADER + 4 * (int64_t)(n) + 8 * (int64_t)(i))
#define IDX_DOCUMENT(n, i) (IDX_HEADER + 12 * (int64_t)(n) + 8 * (int64_t)(i))

#endif
