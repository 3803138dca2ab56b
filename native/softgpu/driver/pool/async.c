/* Stream-ordered allocation: memory is available immediately, frees take effect in stream order. */
#include "softgpu/driver/pool/pool.h"

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream handle)
{
    CUcontext context;
    uint64_t address;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!pointer || !bytes)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!pool)
        result = sg_pool_current(context->device, &pool);
    else if (!sg_alive(SG_POOL, pool) || pool->is_imported)
        result = CUDA_ERROR_INVALID_VALUE; /* only the process that created a pool allocates from it */
    if (result == CUDA_SUCCESS && stream->capture) /* a node only uses the location of the pool */
        return sg_leave(pool->kind == SG_MEMORY_DEVICE ? sg_capture_allocate(stream, pool->device, bytes, pointer)
                                                       : sg_capture_refuse(stream));
    if (result == CUDA_SUCCESS && !sg_memory_reuse(pool, context, stream, bytes, &address))
        result = sg_memory_make_from(pool, context, bytes, &address);
    if (result == CUDA_SUCCESS)
        *pointer = address;
    return sg_leave(result);
}

static CUresult allocate_from(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return pool ? allocate(pointer, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sg_memory_free_in(CUstream stream, struct sg_memory *memory)
{
    struct sg_effect effect = {.kind = SG_EFFECT_FREE, .free.address = memory->start};
    if (stream->done_order >= stream->order && !sg_effects_pending()) {
        sg_memory_drop(memory->start);
        return CUDA_SUCCESS;
    }
    memory->is_ending = 1; /* it must not be freed again */
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
    if (!memory || memory->start != pointer || (memory->kind != SG_MEMORY_DEVICE && !memory->pool) ||
        memory->is_ending || memory->is_variable || memory->physical || memory->opened)
        return sg_leave(pointer ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
    return sg_leave(sg_memory_free_in(stream, memory));
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return allocate(pointer, bytes, NULL, stream);
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return allocate(pointer, bytes, NULL, sg_per_thread_stream(stream));
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_from(pointer, bytes, pool, stream);
}

API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_from(pointer, bytes, pool, sg_per_thread_stream(stream));
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    return release(pointer, stream);
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    return release(pointer, sg_per_thread_stream(stream));
}
