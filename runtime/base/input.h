/* Input: files that were given by name, opened to be read. A pipe or a device in their place could keep a reader
 * waiting for ever, or be another one for each rank that reads: it is refused. */
#ifndef TENON_BASE_INPUT_H
#define TENON_BASE_INPUT_H

#include <stdio.h>

#include <jansson.h>

/* -1: *why says so, "No such file or directory" or "is a folder, not a file"; errno is 0 for the latter kind. */
int tn_input_open(const char *path, const char **why);
FILE *tn_input_stream(const char *path, const char **why); /* NULL likewise */
/* NULL: problem.text says why; problem.line is above 0 where it is of the text. */
json_t *tn_input_json(const char *path, json_error_t *problem);

#endif
