/* After a context ended: what the ledger must hear, and that the call which began is over. */
#ifndef COTENANT_HOOK_MEMORY_CONTEXT_H
#define COTENANT_HOOK_MEMORY_CONTEXT_H

#include "hook/memory.h"

/* Before: what ends with it is set apart, for another thread may be given the same handle as soon as it is over. */
uint64_t ct_memory_context_leaves(struct ct_memory *memory, CUcontext context);
void ct_memory_context_ended(struct ct_memory *memory, CUcontext context, uint64_t leaving, CUresult result);
void ct_memory_context_detached(struct ct_memory *memory, CUcontext context, CUresult result);
/* A primary context ends with its last user, or by a reset: it has ended if it is not active. */
void ct_memory_primary_released(struct ct_memory *memory, CUdevice device, CUresult result);
void ct_memory_green_ended(struct ct_memory *memory, CUgreenCtx green, CUresult result);

#endif
