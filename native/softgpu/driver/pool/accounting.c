/* Accounting of pools: used and reserved memory, and the release of reserved memory. */
#include "softgpu/driver/pool/pool.h"

static int has_freed; /* memory was freed since the last synchronisation */

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + SG_POOL_UNIT - 1) / SG_POOL_UNIT * SG_POOL_UNIT;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Only device memory is charged at the server; a shared pool is charged through its share. */
static CUresult charge(CUmemoryPool pool, uint64_t bytes)
{
    if (pool->kind != SG_MEMORY_DEVICE)
        return CUDA_SUCCESS;
    if (!pool->share)
        return bytes > pool->reserved_bytes ? sg_client_charge(pool->device, bytes - pool->reserved_bytes, 0)
                                            : sg_client_charge(pool->device, pool->reserved_bytes - bytes, 1);
    struct sg_request request = {.kind = SG_SHARE_RESIZE, .a = pool->share, .b = bytes};
    struct sg_reply reply;
    if (sg_call(&pool->device->connection, &request, &reply) < 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return sg_result(reply.result);
}

static CUresult reserve(CUmemoryPool pool, uint64_t bytes)
{
    if (pool->is_imported || bytes == pool->reserved_bytes)
        return CUDA_SUCCESS;
    CUresult result = charge(pool, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sg_pools_reclaim(pool->device))
        result = charge(pool, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    pool->reserved_bytes = bytes;
    pool->reserved_high_bytes = larger(pool->reserved_high_bytes, bytes);
    return CUDA_SUCCESS;
}

CUresult sg_pool_charge(CUmemoryPool pool, uint64_t bytes)
{
    uint64_t used;
    if (__builtin_add_overflow(pool->used_bytes, bytes, &used) || used > UINT64_MAX - SG_POOL_UNIT ||
        (pool->max_bytes && used > pool->max_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = reserve(pool, larger(rounded(used), pool->reserved_bytes));
    if (result != CUDA_SUCCESS)
        return result;
    pool->used_bytes = used;
    pool->used_high_bytes = larger(pool->used_high_bytes, used);
    pool->allocations++;
    return CUDA_SUCCESS;
}

void sg_pool_release(CUmemoryPool pool, uint64_t bytes)
{
    pool->used_bytes -= bytes;
    pool->allocations--;
    has_freed = 1;
    sg_pool_end_if_empty(pool);
}

void sg_pool_trim(CUmemoryPool pool, uint64_t keep_bytes)
{
    uint64_t min_bytes = rounded(pool->used_bytes);
    if (pool->reserved_bytes > larger(min_bytes, keep_bytes))
        reserve(pool, larger(min_bytes, keep_bytes));
}

void sg_pools_trim_freed(void)
{
    if (!has_freed)
        return;
    has_freed = 0;
    for (CUmemoryPool pool = sg_each(SG_POOL, NULL); pool; pool = sg_each(SG_POOL, pool))
        if (pool->object.alive == 1) /* a destroyed pool releases everything with its last allocation */
            sg_pool_trim(pool, pool->release_bytes);
}

int sg_pools_reclaim(struct sg_device *device)
{
    int found = 0;
    for (CUmemoryPool pool = sg_each(SG_POOL, NULL); pool; pool = sg_each(SG_POOL, pool)) {
        uint64_t before = pool->reserved_bytes;
        if (pool->device != device || pool->kind != SG_MEMORY_DEVICE || pool->object.alive != 1)
            continue;
        sg_pool_trim(pool, 0);
        found |= pool->reserved_bytes < before;
    }
    return found;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    CUresult result = sg_enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    sg_pool_trim(pool, bytes);
    return sg_leave(CUDA_SUCCESS);
}

static uint64_t *number_of(CUmemoryPool pool, int attribute)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->release_bytes;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return &pool->reserved_bytes;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return &pool->reserved_high_bytes;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->used_bytes;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->used_high_bytes;
    default:
        return NULL;
    }
}

/* High-water marks can only be reset; current values cannot be set. */
static CUresult set(CUmemoryPool pool, int attribute, const void *value)
{
    if (attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        pool->switches[attribute] = *(const int *)value;
        return CUDA_SUCCESS;
    }
    uint64_t number = *(const cuuint64_t *)value;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->release_bytes = number;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        pool->reserved_high_bytes = number ? pool->reserved_high_bytes : pool->reserved_bytes;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        pool->used_high_bytes = number ? pool->used_high_bytes : pool->used_bytes;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return number ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CUresult result = sg_enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (!value || (int)attribute < 1 || (int)attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(set(pool, (int)attribute, value));
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CUresult result = sg_enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (!value || (int)attribute < 1 || (int)attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if ((int)attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        *(int *)value = pool->switches[attribute];
    else
        *(cuuint64_t *)value = *number_of(pool, (int)attribute);
    return sg_leave(CUDA_SUCCESS);
}
