/* Counting what a process and the system hold. */
#ifndef TENON_CONFORMANCE_LIFE_H
#define TENON_CONFORMANCE_LIFE_H

/* Names in a folder, lines of a file, that contain `with`. */
int count_entries(const char *folder, const char *with);
int count_lines(const char *file, const char *with);

#endif
