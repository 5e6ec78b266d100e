/* Program text: the words that the printer, the parser and the verifier share (docs/program.md). */
#ifndef TENON_RUNTIME_PROGRAM_TEXT_H
#define TENON_RUNTIME_PROGRAM_TEXT_H

#include "program/program.h"

/* Bytes of the word that `text` begins with: letters, digits and some marks; 0 if there is none. Names that are not
 * one whole word are put in quotes. */
size_t tn_word_length(const char *text, const char *end);

/* R, S0, S1z (zigzag), S0/1 (parts table 1), F, P, Pmax; 0x and the raw bits where it is none of these. */
enum { TN_PLACEMENT_TEXT = 24 };
const char *tn_placement_write(tn_placement placement, char text[TN_PLACEMENT_TEXT]);
int tn_placement_read(const char *text, tn_placement *placement); /* 0, or -1 */

/* NULL for an unknown number. */
const char *tn_kind_name(uint32_t kind);
const char *tn_region_name(uint32_t region);
uint32_t tn_kind_by_name(const char *name);  /* 0 if unknown */
int32_t tn_region_by_name(const char *name); /* -1 if unknown */

/* Names of bits and numbers that have no X-macro in abi: in order, NULL at the end. */
extern const char *const tn_flag_names[]; /* bit n */
extern const char *const tn_init_names[];
extern const char *const tn_space_names[];

#endif
