/* Program API: the program as plugins see it ("tn.program/1", "tn.program_edit/1"). */
#ifndef TENON_PROGRAM_API_H
#define TENON_PROGRAM_API_H

/* The table by id, or NULL. */
const void *tn_program_api_get(const char *id);

#endif
