/* Pools across processes: one file for all of a pool, and where in it an allocation lies. */
#define _GNU_SOURCE
#include "softgpu/pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What is in the 64 opaque bytes of an exported pointer. */
struct exported {
    uint64_t magic, share, offset, bytes, taken_bytes;
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
    pool->arena = (struct sg_arena){
        .start = (uintptr_t)start, .bytes = bytes, .is_shared = 1, .free = extents, .free_count = 1, .free_room = 16};
    return CUDA_SUCCESS;
}

CUresult sg_pool_lay_in_file(CUmemoryPool pool)
{
    uint64_t room = pool->device->config.memory_bytes;
    int descriptor;
    CUresult result = sg_share_make(pool->device, 0, share_kind(pool->kind), 0, room, &pool->share, &descriptor);
    if (result != CUDA_SUCCESS)
        return result;
    result = map_file(pool, descriptor, room);
    close(descriptor);
    if (result != CUDA_SUCCESS)
        sg_share_close(pool->device, pool->share);
    return result;
}

void sg_pool_leave_file(CUmemoryPool pool)
{
    munmap((void *)(uintptr_t)pool->arena.start, pool->arena.bytes);
    free(pool->arena.free);
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
    struct sg_device *device = sg_share_named((int)(intptr_t)handle, &share, &token);
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
            sg_unmake(SG_POOL, pool);
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
    struct exported exported = {MAGIC, memory->pool->share, pointer - memory->pool->arena.start, memory->bytes,
                                memory->taken_bytes};
    memset(data, 0, sizeof *data);
    memcpy(data->reserved, &exported, sizeof exported);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    CUresult result = sg_enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    struct exported exported;
    if (!pointer || !data || !pool->is_imported)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(&exported, data->reserved, sizeof exported);
    uint64_t room = pool->arena.bytes;
    if (exported.magic != MAGIC || exported.share != pool->share || exported.offset >= room || !exported.bytes ||
        exported.bytes > exported.taken_bytes || exported.taken_bytes > room - exported.offset)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t start = pool->arena.start + exported.offset;
    if (sg_memory_overlaps(start, exported.bytes)) /* as long as it was not freed here, it is imported once */
        return sg_leave(CUDA_ERROR_ALREADY_MAPPED);
    struct sg_memory *memory = sg_memory_insert(NULL, pool->device, start, exported.bytes);
    if (!memory)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    memory->kind = pool->kind;
    memory->taken_bytes = exported.taken_bytes;
    memory->pool = pool;
    pool->used_bytes += memory->taken_bytes;
    pool->allocations++;
    *pointer = start;
    return sg_leave(CUDA_SUCCESS);
}
