/* What the files about pools know of each other. */
#ifndef COTENANT_SOFTGPU_POOL_H
#define COTENANT_SOFTGPU_POOL_H

#include "softgpu/face.h"

/* A pool's memory is reserved in pieces of this size, as physical memory is. */
#define SG_POOL_UNIT (UINT64_C(2) << 20)

/* Takes the lock if the pool is one. */
CUresult sg_enter_pool(CUmemoryPool pool);
/* A pool without allocations, with its defaults; NULL: there are too many. */
CUmemoryPool sg_pool_make(struct sg_device *device, enum sg_memory_kind kind);
CUresult sg_pool_current(struct sg_device *device, CUmemoryPool *pool);
/* Gives back what is reserved beyond this and unused. */
void sg_pool_trim(CUmemoryPool pool, uint64_t keep_bytes);
/* Of a destroyed pool: it goes with its last allocation. */
void sg_pool_end_if_empty(CUmemoryPool pool);
/* From the beginning a pool that can be exported lies in a file. */
CUresult sg_pool_lay_in_file(CUmemoryPool pool);
void sg_pool_leave_file(CUmemoryPool pool);

#endif
