/* Allocation calls for device, pitched, managed and pinned host memory, and queries about them. */
#include "softgpu/driver/internal.h"

#include <string.h>

/* These calls may wait for the device, so fail while a capture forbids it. */
#define UNSAFE()                                                                                                       \
    do {                                                                                                               \
        CUresult allowed = sg_capture_unsafe();                                                                        \
        if (allowed != CUDA_SUCCESS)                                                                                   \
            return sg_leave(allowed);                                                                                  \
    } while (0)

enum { PITCH = 512 };

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    SG_ENTER(context);
    struct sg_request request = {.kind = SG_MEMORY_INFO};
    struct sg_reply reply;
    if (!free_bytes || !total_bytes)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_call(&context->device->connection, &request, &reply) < 0)
        return sg_leave(CUDA_ERROR_DEVICE_UNAVAILABLE);
    *free_bytes = reply.a;
    *total_bytes = reply.b;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult allocate(CUcontext context, CUdeviceptr *pointer, size_t bytes)
{
    uint64_t address;
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sg_memory_make(context, bytes, SG_MEMORY_DEVICE, 0, &address);
    if (result == CUDA_SUCCESS)
        *pointer = address;
    return result;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    SG_ENTER(context);
    UNSAFE();
    return sg_leave(allocate(context, pointer, bytes));
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    SG_ENTER(context);
    UNSAFE();
    if (!pointer || !pitch || !width || !height || (element != 4 && element != 8 && element != 16) ||
        width > SIZE_MAX - PITCH)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    size_t row = (width + PITCH - 1) / PITCH * PITCH;
    if (height > SIZE_MAX / row)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    result = allocate(context, pointer, row * height);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return sg_leave(result);
}

API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    SG_ENTER(context);
    UNSAFE();
    uint64_t address;
    if (!pointer || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = sg_memory_make(context, bytes, SG_MEMORY_MANAGED, flags, &address);
    if (result == CUDA_SUCCESS)
        *pointer = address;
    return sg_leave(result);
}

CUresult sg_wait_all(CUcontext current)
{
    CUresult result = CUDA_SUCCESS;
    for (CUcontext each = sg_each(SG_CONTEXT, NULL); each; each = sg_each(SG_CONTEXT, each)) {
        CUresult one = sg_context_wait(each);
        if (each == current)
            result = one;
    }
    return result;
}

/* Freeing waits for the device, as in the driver. A pointer into the middle of an allocation is invalid. */
static CUresult release(CUcontext context, uint64_t address, int is_host)
{
    struct sg_memory *memory = sg_memory_at(address);
    /* Host memory from a pool is freed like memory of any other pool. */
    if (!memory || memory->start != address || (memory->kind == SG_MEMORY_HOST && !memory->pool) != is_host ||
        memory->kind == SG_MEMORY_REGISTERED || memory->is_ending || memory->is_variable || memory->physical ||
        memory->opened)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t id = memory->id;
    CUresult result = sg_wait_all(context);
    memory = sg_memory_at(address);
    if (!memory || memory->id != id)
        return CUDA_ERROR_INVALID_VALUE; /* another thread freed it */
    if (result == CUDA_SUCCESS)
        sg_memory_drop(address);
    return result;
}

/* Programs free memory after they have popped their context. Use the context of the memory then. */
static CUresult enter_for(uint64_t address, CUcontext *context)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_memory *memory = sg_current() ? NULL : sg_memory_at(address);
    if (memory && memory->context) {
        *context = memory->context;
        return CUDA_SUCCESS;
    }
    sg_leave(CUDA_SUCCESS);
    return sg_enter_context(context);
}

API CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    CUcontext context;
    CUresult result = enter_for(pointer, &context);
    if (result != CUDA_SUCCESS)
        return result;
    UNSAFE();
    return sg_leave(pointer ? release(context, pointer, 0) : CUDA_SUCCESS);
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr pointer)
{
    SG_ENTER(context);
    (void)context;
    struct sg_memory *memory = sg_memory_at(pointer);
    if (!memory)
        return sg_leave(CUDA_ERROR_NOT_FOUND);
    if (start)
        *start = memory->start;
    if (bytes)
        *bytes = memory->bytes;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult host_allocate(void **pointer, size_t bytes, unsigned flags)
{
    SG_ENTER(context);
    UNSAFE();
    uint64_t address;
    const unsigned valid = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!pointer || !bytes || (flags & ~valid))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = sg_memory_make(context, bytes, SG_MEMORY_HOST, flags, &address);
    if (result == CUDA_SUCCESS)
        *pointer = (void *)(uintptr_t)address;
    return sg_leave(result);
}

API CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    return host_allocate(pointer, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
}

API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    return host_allocate(pointer, bytes, flags);
}

API CUresult cuMemFreeHost(void *pointer)
{
    CUcontext context;
    CUresult result = enter_for((uintptr_t)pointer, &context);
    if (result != CUDA_SUCCESS)
        return result;
    UNSAFE();
    return sg_leave(pointer ? release(context, (uintptr_t)pointer, 1) : CUDA_SUCCESS);
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned int flags)
{
    SG_ENTER(context);
    (void)context;
    struct sg_memory *memory = sg_memory_at((uintptr_t)host);
    if (!pointer || !memory || flags || (memory->kind != SG_MEMORY_HOST && memory->kind != SG_MEMORY_REGISTERED))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *pointer = (uintptr_t)host;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemHostGetFlags(unsigned int *flags, void *host)
{
    SG_ENTER(context);
    (void)context;
    struct sg_memory *memory = sg_memory_at((uintptr_t)host);
    if (!flags || !memory || memory->kind != SG_MEMORY_HOST)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = memory->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemHostRegister_v2(void *host, size_t bytes, unsigned int flags)
{
    SG_ENTER(context);
    UNSAFE();
    const unsigned valid = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY |
                           CU_MEMHOSTREGISTER_READ_ONLY;
    if (!host || !bytes || (flags & ~valid))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sg_host_accessible((uintptr_t)host, bytes, !(flags & CU_MEMHOSTREGISTER_READ_ONLY)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(sg_memory_register(context, (uintptr_t)host, bytes, flags));
}

API CUresult cuMemHostUnregister(void *host)
{
    SG_ENTER(context);
    UNSAFE();
    struct sg_memory *memory = sg_memory_at((uintptr_t)host);
    if (!host)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!memory || memory->kind != SG_MEMORY_REGISTERED || memory->start != (uintptr_t)host)
        return sg_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    result = sg_wait_all(context);
    if (result == CUDA_SUCCESS)
        sg_memory_drop((uintptr_t)host);
    return sg_leave(result);
}
