/* Memory pools, shared by the files of this folder. */
#ifndef COTENANT_SOFTGPU_DRIVER_POOL_POOL_H
#define COTENANT_SOFTGPU_DRIVER_POOL_POOL_H

#include "softgpu/driver/internal.h"

/* The unit in which pools reserve memory, as for physical memory. */
#define SG_POOL_UNIT (UINT64_C(2) << 20)

/* Take the lock if the handle is valid. */
CUresult sg_enter_pool(CUmemoryPool pool);
/* Create an empty pool with default settings. NULL: too many pools. */
CUmemoryPool sg_pool_make(struct sg_device *device, enum sg_memory_kind kind);
CUresult sg_pool_current(struct sg_device *device, CUmemoryPool *pool);
/* Release unused reserved memory beyond `keep_bytes`. */
void sg_pool_trim(CUmemoryPool pool, uint64_t keep_bytes);
/* Free a destroyed pool that has no allocations. */
void sg_pool_end_if_empty(CUmemoryPool pool);
/* A pool that can be exported is in a file from the start. */
CUresult sg_pool_create_file(CUmemoryPool pool);
void sg_pool_close_file(CUmemoryPool pool);

#endif
