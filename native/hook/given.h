/* The files that the node gives a tenant to map: by descriptors, or by a name beside the program's records. */
#ifndef COTENANT_HOOK_GIVEN_H
#define COTENANT_HOOK_GIVEN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Maps what it needs of a file of so many bytes, open in both ways; 0: it is not what it should be. */
typedef int ct_given_map(void *into, int reading, int writing, size_t bytes, uint64_t slot);

/* Tries the descriptors that a variable names ("READING,WRITING"), then the name; records may be NULL. Whether one was mapped. */
int ct_given_open(const char *variable, const char *records, const char *name, ct_given_map *map, void *into,
                  uint64_t slot);

/* A part of such a file, which a forked child does not have; NULL if that cannot be. */
void *ct_given_part(int descriptor, int protection, off_t at, size_t bytes);

#endif
