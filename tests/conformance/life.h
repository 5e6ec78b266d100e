/* Counting what a process and the system hold. */
#ifndef TENON_CONFORMANCE_LIFE_H
#define TENON_CONFORMANCE_LIFE_H

int count_entries(const char *folder);
int count_lines(const char *file, const char *with);

#endif
