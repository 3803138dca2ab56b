/* Files that the node passes to a tenant, by inherited descriptors or by a name in the directory of the records. */
#ifndef COTENANT_HOOK_ENTRY_NODE_FILES_H
#define COTENANT_HOOK_ENTRY_NODE_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Maps parts of a file with this size, which is open for reading and for writing; returns 0 if the file is not
 * valid. */
typedef int ct_node_file_map(void *into, int reading, int writing, size_t bytes, uint64_t slot);

/* Tries the descriptors in an environment variable ("READING,WRITING"), then the file name; `records` may be NULL.
 * Returns whether a file was mapped. */
int ct_node_file_open(const char *variable, const char *records, const char *name, ct_node_file_map *map, void *into,
                  uint64_t slot);

/* Maps a part of a file; a forked child does not inherit the mapping. Returns NULL on failure. */
void *ct_node_file_map_part(int descriptor, int protection, off_t at, size_t bytes);

#endif
