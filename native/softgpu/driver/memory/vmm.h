/* Virtual memory management, shared by vmm.c and physical.c. */
#ifndef COTENANT_SOFTGPU_DRIVER_MEMORY_VMM_H
#define COTENANT_SOFTGPU_DRIVER_MEMORY_VMM_H

#include "softgpu/driver/internal.h"

#define SG_GRANULARITY (UINT64_C(2) << 20)

/* Convert a handle of the program. NULL: no such memory, or its last handle was released. */
struct sg_physical *sg_physical_of(CUmemGenericAllocationHandle handle);
/* Free the memory if it has neither handles nor mappings. */
void sg_physical_release(struct sg_physical *physical);
/* Map the pages at reserved addresses, without access. */
int sg_physical_view(const struct sg_physical *physical, uint64_t address, uint64_t bytes);
/* Recreate all mappings after the pages moved to a file. */
int sg_views_renew(const struct sg_physical *physical);
int sg_view_protect(const struct sg_memory *memory);

#endif
