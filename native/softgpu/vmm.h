/* Virtual memory: what the calls about addresses and those about physical memory know of each other. */
#ifndef COTENANT_SOFTGPU_VMM_H
#define COTENANT_SOFTGPU_VMM_H

#include "softgpu/face.h"

#define SG_GRANULARITY (UINT64_C(2) << 20)

/* A handle as the program has it; NULL: there is no such memory, or its last handle was released. */
struct sg_physical *sg_physical_of(CUmemGenericAllocationHandle handle);
/* It ends with its last handle and mapping. */
void sg_physical_let_go(struct sg_physical *physical);
/* Another view of the same pages over reserved addresses: out of reach until somebody is given access. */
int sg_physical_view(const struct sg_physical *physical, uint64_t address, uint64_t bytes);
/* All views, after the pages moved into a file. */
int sg_views_renew(const struct sg_physical *physical);
int sg_view_protect(const struct sg_memory *memory);

#endif
