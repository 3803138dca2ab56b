/* Pools as objects: creation, destruction, the default and current pool of a location, and access rights. */
#include "softgpu/driver/pool/pool.h"

/* The pools of the host and of managed memory. */
static CUmemoryPool host_default, host_current, managed_default, managed_current;

CUresult sg_enter_pool(CUmemoryPool pool)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_alive(SG_POOL, pool) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUmemoryPool sg_pool_make(struct sg_device *device, enum sg_memory_kind kind)
{
    CUmemoryPool pool = sg_new(SG_POOL);
    if (!pool)
        return NULL;
    pool->device = device;
    pool->kind = kind;
    pool->switches[1] = pool->switches[2] = pool->switches[3] = 1; /* the three reuse policies */
    if (kind == SG_MEMORY_DEVICE)
        pool->readers = pool->writers = UINT32_C(1) << device->ordinal;
    else if (kind == SG_MEMORY_MANAGED)
        pool->readers = pool->writers = UINT32_MAX; /* every device may access managed memory */
    return pool;
}

/* Find the variables with the default and current pool of a location, and the kind of such pools. */
static CUresult find_slots(const CUmemLocation *location, CUmemAllocationType type, CUmemoryPool **standard,
                           CUmemoryPool **current, struct sg_device **device, enum sg_memory_kind *kind)
{
    int is_managed = (int)type == CU_MEM_ALLOCATION_TYPE_MANAGED, where = location ? (int)location->type : -1;
    if (where < 0 || (!is_managed && (int)type != CU_MEM_ALLOCATION_TYPE_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    *device = sg_device_at(where == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : 0);
    if (!*device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (where == CU_MEM_LOCATION_TYPE_DEVICE && !is_managed) {
        *standard = &(*device)->default_pool;
        *current = &(*device)->current_pool;
        *kind = SG_MEMORY_DEVICE;
        return CUDA_SUCCESS;
    }
    if (where > CU_MEM_LOCATION_TYPE_HOST_NUMA || (where == CU_MEM_LOCATION_TYPE_NONE && !is_managed))
        return CUDA_ERROR_INVALID_VALUE;
    *standard = is_managed ? &managed_default : &host_default;
    *current = is_managed ? &managed_current : &host_current;
    *kind = is_managed ? SG_MEMORY_MANAGED : SG_MEMORY_HOST;
    return CUDA_SUCCESS;
}

static CUresult look_up(const CUmemLocation *location, CUmemAllocationType type, int is_current, CUmemoryPool *pool)
{
    CUmemoryPool *standard, *current;
    struct sg_device *device;
    enum sg_memory_kind kind;
    CUresult result = find_slots(location, type, &standard, &current, &device, &kind);
    if (result != CUDA_SUCCESS)
        return result;
    if (!*standard)
        *standard = sg_pool_make(device, kind);
    if (!*standard)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!*current)
        *current = *standard;
    *pool = is_current ? *current : *standard;
    return CUDA_SUCCESS;
}

CUresult sg_pool_current(struct sg_device *device, CUmemoryPool *pool)
{
    const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
    return look_up(&location, CU_MEM_ALLOCATION_TYPE_PINNED, 1, pool);
}

static CUresult get(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type, int is_current)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(pool ? look_up(location, type, is_current, pool) : CUDA_ERROR_INVALID_VALUE);
}

static CUresult set_current(const CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    CUmemoryPool *standard, *current, default_pool;
    struct sg_device *device;
    enum sg_memory_kind kind;
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = look_up(location, type, 0, &default_pool);
    if (result == CUDA_SUCCESS)
        result = find_slots(location, type, &standard, &current, &device, &kind);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    if (!sg_alive(SG_POOL, pool) || pool->device != device || pool->kind != kind || pool->is_imported)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *current = pool;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return get(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, 0);
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return get(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, 1);
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return set_current(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return get(pool, location, type, 0);
}

API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return get(pool, location, type, 1);
}

API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    return set_current(location, type, pool);
}

/* Only pools of pinned device memory and of a host NUMA node can be exported. */
static CUresult check(const CUmemPoolProps *props, struct sg_device **device, enum sg_memory_kind *kind)
{
    CUmemoryPool *standard, *current;
    if (!props)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = find_slots(&props->location, props->allocType, &standard, &current, device, kind);
    if (result != CUDA_SUCCESS)
        return result;
    if ((int)props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (props->handleTypes && (*kind == SG_MEMORY_MANAGED || props->location.type == CU_MEM_LOCATION_TYPE_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolCreate(CUmemoryPool *made, const CUmemPoolProps *props)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device;
    enum sg_memory_kind kind;
    result = made ? check(props, &device, &kind) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    CUmemoryPool pool = sg_pool_make(device, kind);
    if (!pool)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    pool->max_bytes = props->maxSize;
    pool->handle_types = (int)props->handleTypes;
    if (pool->handle_types)
        result = sg_pool_create_file(pool);
    if (result == CUDA_SUCCESS)
        *made = pool;
    else
        sg_delete(SG_POOL, pool);
    return sg_leave(result);
}

void sg_pool_end_if_empty(CUmemoryPool pool)
{
    if (pool->object.alive == 1 || pool->allocations)
        return;
    sg_pool_trim(pool, 0);
    if (pool->share)
        sg_pool_close_file(pool);
    sg_delete(SG_POOL, pool);
}

static void forget_current(CUmemoryPool pool)
{
    for (int i = 0; i < sg_device_count; i++)
        if (sg_devices[i].current_pool == pool)
            sg_devices[i].current_pool = sg_devices[i].default_pool;
    if (host_current == pool)
        host_current = host_default;
    if (managed_current == pool)
        managed_current = managed_default;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult result = sg_enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (pool == pool->device->default_pool || pool == host_default || pool == managed_default)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    forget_current(pool);
    sg_object_hide(pool);
    sg_pool_end_if_empty(pool);
    return sg_leave(CUDA_SUCCESS);
}

static uint32_t bit_of(const CUmemLocation *location)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return sg_device_at(location->id) ? UINT32_C(1) << location->id : 0;
    return location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA
               ? UINT32_C(1) << 31
               : 0;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    CUresult result = sg_enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    uint32_t own = pool->kind == SG_MEMORY_DEVICE ? UINT32_C(1) << pool->device->ordinal : 0;
    if (!access || !count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        uint32_t bit = bit_of(&access[i].location);
        int flags = (int)access[i].flags;
        if (!bit)
            return sg_leave(CUDA_ERROR_INVALID_DEVICE);
        /* The access of a pool's own device cannot be changed. */
        if ((flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
             flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) ||
            (bit == own && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            return sg_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t bit = bit_of(&access[i].location);
        pool->readers = (int)access[i].flags & 1 ? pool->readers | bit : pool->readers & ~bit;
        pool->writers = (int)access[i].flags & 2 ? pool->writers | bit : pool->writers & ~bit;
    }
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    CUresult result = sg_enter_pool(pool);
    if (result != CUDA_SUCCESS)
        return result;
    uint32_t bit = location ? bit_of(location) : 0;
    if (!flags || !bit)
        return sg_leave(flags && location ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
    *flags = pool->writers & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : pool->readers & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                   : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return sg_leave(CUDA_SUCCESS);
}
