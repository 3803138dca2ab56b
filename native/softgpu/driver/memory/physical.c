/* Physical memory: creation, reference counts of handles and mappings, and export as a file descriptor. */
#define _GNU_SOURCE
#include "softgpu/driver/memory/vmm.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_host(int type)
{
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult check_props(const CUmemAllocationProp *props)
{
    if (!props || props->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        if (!sg_device_at(props->location.id))
            return CUDA_ERROR_INVALID_DEVICE;
    } else if (!is_host(props->location.type)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (props->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED; /* Windows and fabric handles */
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *props,
                                           CUmemAllocationGranularity_flags option)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!granularity || (int)option < CU_MEM_ALLOC_GRANULARITY_MINIMUM ||
        (int)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = check_props(props);
    if (result == CUDA_SUCCESS)
        *granularity = SG_GRANULARITY;
    return sg_leave(result);
}

struct sg_physical *sg_physical_of(CUmemGenericAllocationHandle handle)
{
    struct sg_physical *physical = (struct sg_physical *)(uintptr_t)handle;
    return sg_alive(SG_PHYSICAL, physical) ? physical : NULL;
}

static int is_charged(const struct sg_physical *physical)
{
    return physical->props.location.type == CU_MEM_LOCATION_TYPE_DEVICE && !physical->is_imported;
}

void sg_physical_release(struct sg_physical *physical)
{
    if (!physical->handles)
        sg_object_hide(physical); /* the handle is invalid, but cuMemRetainAllocationHandle can return a new one */
    if (physical->handles || physical->maps)
        return;
    munmap((void *)(uintptr_t)physical->base, physical->bytes);
    if (physical->share)
        sg_share_close(physical->device, physical->share);
    else if (is_charged(physical))
        sg_client_charge(physical->device, physical->bytes, 1);
    sg_delete(SG_PHYSICAL, physical);
}

static struct sg_physical *make(struct sg_device *device, uint64_t bytes, void *base, const CUmemAllocationProp *props)
{
    struct sg_physical *physical = base == MAP_FAILED ? NULL : sg_new(SG_PHYSICAL);
    if (!physical) {
        if (base != MAP_FAILED)
            munmap(base, bytes);
        return NULL;
    }
    physical->device = device;
    physical->bytes = bytes;
    physical->base = (uintptr_t)base;
    physical->handles = 1;
    physical->props = *props;
    return physical;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *props)
{
    CUresult result = check_props(props);
    if (result != CUDA_SUCCESS)
        return result;
    int is_device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct sg_device *device = sg_device_at(is_device ? props->location.id : 0);
    if (is_device) {
        result = sg_client_charge(device, bytes, 0);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && sg_pools_reclaim(device))
            result = sg_client_charge(device, bytes, 0);
    }
    if (result != CUDA_SUCCESS)
        return result;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct sg_physical *made = make(device, bytes, base, props);
    if (!made) {
        if (is_device)
            sg_client_charge(device, bytes, 1);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (uintptr_t)made;
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *props,
                         unsigned long long flags)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!handle || !bytes || bytes % SG_GRANULARITY || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(create(handle, bytes, props));
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_physical *physical = sg_physical_of(handle);
    if (!physical)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    physical->handles--;
    sg_physical_release(physical);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_memory *memory = sg_memory_at((uintptr_t)address);
    if (!handle || !memory || !memory->physical)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memory->physical->handles++;
    memory->physical->object.alive = 1; /* its last handle may have been released */
    *handle = (uintptr_t)memory->physical;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *props, CUmemGenericAllocationHandle handle)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    const struct sg_physical *physical = sg_physical_of(handle);
    if (!props || !physical)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *props = physical->props;
    return sg_leave(CUDA_SUCCESS);
}

/* Move the pages of this process to a file that others can map, at the same addresses. */
static CUresult move_into_file(struct sg_physical *physical, int *descriptor)
{
    uint64_t share, charged = is_charged(physical) ? physical->bytes : 0;
    CUresult result =
        sg_share_make(physical->device, 0, SG_SHARE_PHYSICAL, charged, physical->bytes, &share, descriptor);
    if (result != CUDA_SUCCESS)
        return result;
    void *base = (void *)(uintptr_t)physical->base;
    if (sg_share_write(*descriptor, physical->base, physical->bytes) < 0 ||
        mmap(base, physical->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, *descriptor, 0) ==
            MAP_FAILED ||
        sg_views_renew(physical) < 0) {
        close(*descriptor);
        sg_share_close(physical->device, share);
        if (charged) /* closing the share released the bytes */
            sg_client_charge(physical->device, charged, 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->share = share;
    return CUDA_SUCCESS;
}

API CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType type, unsigned long long flags)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_physical *physical = sg_physical_of(handle);
    struct sg_reply reply;
    int descriptor;
    if (!shareable || !physical || flags || (int)type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(physical->props.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (physical->share)
        result = sg_share_open(physical->device, physical->share, 0, SG_SHARE_PHYSICAL, &reply, &descriptor);
    else
        result = move_into_file(physical, &descriptor);
    if (result == CUDA_SUCCESS)
        *(int *)shareable = descriptor;
    return sg_leave(result);
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                            CUmemAllocationHandleType type)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t share, token;
    struct sg_reply reply;
    int descriptor;
    if (!handle || (int)type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_device *device = sg_share_from_file((int)(intptr_t)os_handle, &share, &token);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = sg_share_open(device, share, token, SG_SHARE_PHYSICAL, &reply, &descriptor);
    if (result != CUDA_SUCCESS)
        return sg_leave(result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result);
    /* Memory without charged bytes is host memory. */
    CUmemAllocationProp props = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {reply.a ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST, reply.a ? device->ordinal : 0},
    };
    void *base = mmap(NULL, reply.b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    close(descriptor);
    struct sg_physical *made = make(device, reply.b, base, &props);
    if (!made) {
        sg_share_close(device, share);
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    made->share = share;
    made->is_imported = 1;
    *handle = (uintptr_t)made;
    return sg_leave(CUDA_SUCCESS);
}
