/* Memory in stream order: pools that keep books, allocations that are there at once, frees that wait their turn. */
#include "softgpu/face.h"

static CUresult default_pool(struct sg_device *device, CUmemoryPool *pool)
{
    if (!device->default_pool) {
        device->default_pool = sg_make(SG_POOL);
        if (!device->default_pool)
            return CUDA_ERROR_OUT_OF_MEMORY;
        device->default_pool->device = device;
    }
    if (!device->current_pool)
        device->current_pool = device->default_pool;
    *pool = device->default_pool;
    return CUDA_SUCCESS;
}

static CUresult of_device(CUmemoryPool *pool, CUdevice ordinal, int is_current)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    if (!pool || !device)
        return sg_leave(pool ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
    result = default_pool(device, pool);
    if (result == CUDA_SUCCESS && is_current)
        *pool = device->current_pool;
    return sg_leave(result);
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    return of_device(pool, device, 0);
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    return of_device(pool, device, 1);
}

API CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    if (!device || !sg_alive(SG_POOL, pool) || pool->device != device)
        return sg_leave(device ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE);
    device->current_pool = pool;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolCreate(CUmemoryPool *made, const CUmemPoolProps *props)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!made || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || props->handleTypes)
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    struct sg_device *device = sg_device_at(props->location.id);
    CUmemoryPool pool = device ? sg_make(SG_POOL) : NULL;
    if (!pool)
        return sg_leave(device ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_DEVICE);
    pool->device = device;
    *made = pool;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult enter_pool(CUmemoryPool pool)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_alive(SG_POOL, pool) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult result = enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (pool == pool->device->default_pool)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (pool->device->current_pool == pool)
        pool->device->current_pool = pool->device->default_pool;
    sg_memory_leave_pool(pool);
    sg_unmake(SG_POOL, pool);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    CUresult result = enter_pool(pool);
    (void)bytes; /* nothing is kept back that could be trimmed */
    return result == CUDA_SUCCESS ? sg_leave(result) : result;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CUresult result = enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (!value || (int)attribute < 1 || (int)attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if ((int)attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->switches[attribute] = (uint64_t)*(int *)value;
    else if ((int)attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->release_bytes = *(cuuint64_t *)value;
    else if (*(cuuint64_t *)value != 0)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    else
        pool->used_high_bytes = pool->used_bytes;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    CUresult result = enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (!value || (int)attribute < 1 || (int)attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if ((int)attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        *(int *)value = (int)pool->switches[attribute];
    else if ((int)attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        *(cuuint64_t *)value = pool->release_bytes;
    else if ((int)attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ||
             (int)attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        *(cuuint64_t *)value = pool->used_bytes;
    else
        *(cuuint64_t *)value = pool->used_high_bytes;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    CUresult result = enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(count && !access ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    CUresult result = enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (!flags || !location)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream handle)
{
    CUcontext context;
    CUmemoryPool fallback;
    uint64_t address;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!pointer || !bytes)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture)
        return sg_leave(sg_capture_allocate(stream, bytes, pointer));
    result = default_pool(context->device, &fallback);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    if (!pool)
        pool = context->device->current_pool;
    result = sg_memory_make(context, bytes, SG_MEMORY_DEVICE, 0, &address);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    struct sg_memory *memory = sg_memory_at(address);
    memory->pool = pool;
    pool->used_bytes += memory->taken_bytes;
    if (pool->used_bytes > pool->used_high_bytes)
        pool->used_high_bytes = pool->used_bytes;
    *pointer = address;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult allocate_from(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    CUresult result = enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    sg_leave(result);
    return allocate(pointer, bytes, pool, stream);
}

CUresult sg_memory_free_in(CUstream stream, struct sg_memory *memory)
{
    struct sg_effect effect = {.kind = SG_EFFECT_FREE, .free.address = memory->start};
    if (stream->done_order >= stream->order && !sg_effects_pending()) {
        sg_memory_drop(memory->start);
        return CUDA_SUCCESS;
    }
    memory->is_ending = 1; /* not to be freed again */
    return sg_effect_add(stream, &effect);
}

static CUresult release(CUdeviceptr pointer, CUstream handle)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    struct sg_memory *memory = sg_memory_at(pointer);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture)
        return sg_leave(sg_capture_free(stream, pointer));
    if (!memory || memory->start != pointer || memory->kind != SG_MEMORY_DEVICE || memory->is_ending ||
        memory->is_variable)
        return sg_leave(pointer ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
    return sg_leave(sg_memory_free_in(stream, memory));
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return allocate(pointer, bytes, NULL, stream);
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return allocate(pointer, bytes, NULL, stream ? stream : CU_STREAM_PER_THREAD);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_from(pointer, bytes, pool, stream);
}

API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_from(pointer, bytes, pool, stream ? stream : CU_STREAM_PER_THREAD);
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    return release(pointer, stream);
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    return release(pointer, stream ? stream : CU_STREAM_PER_THREAD);
}
