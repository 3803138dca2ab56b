/* Pools shared between processes: one file per pool, in which an allocation is identified by its offset. */
#define _GNU_SOURCE
#include "softgpu/driver/pool/pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Content of the 64 opaque bytes of an exported pointer. */
struct pointer_export {
    uint64_t magic, share, offset, bytes, charged_bytes;
};

#define MAGIC UINT64_C(0x74656b6f6f707473)

static enum sg_share_kind share_kind(enum sg_memory_kind kind)
{
    return kind == SG_MEMORY_HOST ? SG_SHARE_HOST_POOL : SG_SHARE_POOL;
}

static CUresult map_file(CUmemoryPool pool, int descriptor, uint64_t bytes)
{
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    struct sg_extent *extents = start == MAP_FAILED ? NULL : malloc(16 * sizeof *extents);
    if (!extents) {
        if (start != MAP_FAILED)
            munmap(start, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    madvise(start, bytes, MADV_DONTDUMP);
    extents[0] = (struct sg_extent){(uintptr_t)start, bytes};
    pool->address_space = (struct sg_address_space){
        .start = (uintptr_t)start, .bytes = bytes, .is_shared = 1, .free = extents, .free_count = 1,
        .free_capacity = 16};
    return CUDA_SUCCESS;
}

CUresult sg_pool_create_file(CUmemoryPool pool)
{
    uint64_t capacity = pool->device->config.memory_bytes;
    int descriptor;
    CUresult result = sg_share_make(pool->device, 0, share_kind(pool->kind), 0, capacity, &pool->share, &descriptor);
    if (result != CUDA_SUCCESS)
        return result;
    result = map_file(pool, descriptor, capacity);
    close(descriptor);
    if (result != CUDA_SUCCESS)
        sg_share_close(pool->device, pool->share);
    return result;
}

void sg_pool_close_file(CUmemoryPool pool)
{
    munmap((void *)(uintptr_t)pool->address_space.start, pool->address_space.bytes);
    free(pool->address_space.free);
    sg_share_close(pool->device, pool->share);
}

API CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,
                                              unsigned long long flags)
{
    CUresult result = sg_enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_reply reply;
    int descriptor;
    if (!handle || flags || !pool->share || (int)type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = sg_share_open(pool->device, pool->share, 0, share_kind(pool->kind), &reply, &descriptor);
    if (result == CUDA_SUCCESS)
        *(int *)handle = descriptor;
    return sg_leave(result);
}

API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *made, void *handle, CUmemAllocationHandleType type,
                                                unsigned long long flags)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t share, token;
    struct sg_reply reply;
    int descriptor;
    if (!made || flags || (int)type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_device *device = sg_share_from_file((int)(intptr_t)handle, &share, &token);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    enum sg_memory_kind kind = SG_MEMORY_DEVICE;
    result = sg_share_open(device, share, token, share_kind(kind), &reply, &descriptor);
    if (result == CUDA_ERROR_INVALID_HANDLE) {
        kind = SG_MEMORY_HOST;
        result = sg_share_open(device, share, token, share_kind(kind), &reply, &descriptor);
    }
    if (result != CUDA_SUCCESS)
        return sg_leave(result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result);
    CUmemoryPool pool = sg_pool_make(device, kind);
    result = pool ? map_file(pool, descriptor, reply.b) : CUDA_ERROR_OUT_OF_MEMORY;
    close(descriptor);
    if (result != CUDA_SUCCESS) {
        if (pool)
            sg_delete(SG_POOL, pool);
        sg_share_close(device, share);
        return sg_leave(result);
    }
    pool->share = share;
    pool->is_imported = 1;
    pool->handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    *made = pool;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    const struct sg_memory *memory = sg_memory_at(pointer);
    if (!data || !memory || memory->start != pointer || !memory->pool || !memory->pool->share ||
        memory->pool->is_imported || memory->is_ending)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct pointer_export exported = {MAGIC, memory->pool->share, pointer - memory->pool->address_space.start,
                                      memory->bytes, memory->charged_bytes};
    memset(data, 0, sizeof *data);
    memcpy(data->reserved, &exported, sizeof exported);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    CUresult result = sg_enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    struct pointer_export exported;
    if (!pointer || !data || !pool->is_imported)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(&exported, data->reserved, sizeof exported);
    uint64_t capacity = pool->address_space.bytes;
    if (exported.magic != MAGIC || exported.share != pool->share || exported.offset >= capacity || !exported.bytes ||
        exported.bytes > exported.charged_bytes || exported.charged_bytes > capacity - exported.offset)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t start = pool->address_space.start + exported.offset;
    if (sg_memory_overlaps(start, exported.bytes)) /* it can be imported again after it was freed here */
        return sg_leave(CUDA_ERROR_ALREADY_MAPPED);
    struct sg_memory *memory = sg_memory_insert(NULL, pool->device, start, exported.bytes);
    if (!memory)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    memory->kind = pool->kind;
    memory->charged_bytes = exported.charged_bytes;
    memory->pool = pool;
    pool->used_bytes += memory->charged_bytes;
    pool->allocations++;
    *pointer = start;
    return sg_leave(CUDA_SUCCESS);
}
