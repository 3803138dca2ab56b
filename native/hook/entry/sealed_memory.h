/* Memory files that only their creator can write, and that no process can resize. */
#ifndef COTENANT_HOOK_ENTRY_SEALED_MEMORY_H
#define COTENANT_HOOK_ENTRY_SEALED_MEMORY_H

#include <fcntl.h>
#include <stddef.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

enum {
    CT_SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
    CT_ALL_SEALS = CT_SIZE_SEALS | F_SEAL_FUTURE_WRITE,
};

/* Creates zeroed memory of this size, of which the first `allocated` bytes have pages. Once it is sealed, this mapping is
 * the only one that can write. A forked child does not inherit the mapping. Returns the descriptor, or -1. */
int ct_sealed_memory_make(const char *name, size_t bytes, size_t allocated, void **memory);

#endif
