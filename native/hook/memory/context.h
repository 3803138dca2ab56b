/* Reports the end of contexts to the ledger. Each function also ends the change that its caller began. */
#ifndef COTENANT_HOOK_MEMORY_CONTEXT_H
#define COTENANT_HOOK_MEMORY_CONTEXT_H

#include "hook/memory/memory.h"

/* Called before the context is destroyed: moves what is freed with it to another home, which is returned, because
 * another thread may get the same handle at once. */
uint64_t ct_memory_context_ending(struct ct_memory *memory, CUcontext context);
void ct_memory_context_ended(struct ct_memory *memory, CUcontext context, uint64_t ending_home, CUresult result);
void ct_memory_context_detached(struct ct_memory *memory, CUcontext context, CUresult result);
/* A primary context ends when its last user releases it, or by a reset; it has ended if it is not active. */
void ct_memory_primary_released(struct ct_memory *memory, CUdevice device, CUresult result);
void ct_memory_green_ended(struct ct_memory *memory, CUgreenCtx green, CUresult result);

#endif
