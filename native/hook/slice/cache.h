/* Rewritten texts on disk, so that a program that starts again does not rewrite its modules again. The compiled code of
 * both forms is cached by the driver. */
#ifndef COTENANT_HOOK_SLICE_CACHE_H
#define COTENANT_HOOK_SLICE_CACHE_H

#include "hook/slice/ptx.h"

/* Reads the rewritten text from the cache, or rewrites it and keeps it there. The directory is ptx in COTENANT_CACHE, or
 * else in cotenant in XDG_CACHE_HOME, or in .cache/cotenant in HOME. Without a directory that belongs to this user alone
 * nothing is kept. Returns 0 if there is no memory for it. */
int ct_slice_cached(const char *text, size_t bytes, struct ct_ptx_module *module);


/* Computes a hash of 128 bits, which is not secure against deliberate collisions. */
void ct_slice_hash(const void *content, size_t bytes, uint64_t hash[2]);

#endif
