/* Attributes of pointers. */
#include "softgpu/driver/internal.h"

#include <string.h>

/* Return the access of the current context's device. */
static int access_of(const struct sg_memory *memory)
{
    CUcontext context = sg_current();
    const struct sg_device *device = sg_alive(SG_CONTEXT, context) ? context->device : memory->device;
    uint32_t bit = UINT32_C(1) << device->ordinal, readers = UINT32_MAX, writers = UINT32_MAX;
    if (memory->physical) {
        readers = memory->readers;
        writers = memory->writers;
    } else if (memory->pool) {
        readers = memory->pool->readers;
        writers = memory->pool->writers;
    } else if (memory->kind == SG_MEMORY_DEVICE && device != memory->device) {
        readers = writers = context->peers >> memory->device->ordinal & 1 ? bit : 0;
    }
    return writers & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : readers & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                           : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

static int is_ipc_capable(const struct sg_memory *memory)
{
    return memory->kind == SG_MEMORY_DEVICE && !memory->pool && !memory->physical && !memory->opened &&
           !memory->is_variable;
}

static size_t width_of(int attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return 8;
    default:
        return 4;
    }
}

static CUresult flag_of(int *data, int attribute, const struct sg_memory *memory)
{
    int is_host = memory->kind == SG_MEMORY_HOST || memory->kind == SG_MEMORY_REGISTERED;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *data = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *data = memory->is_sync;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *data = memory->kind == SG_MEMORY_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *data = memory->device->ordinal;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *data = is_ipc_capable(memory);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *data = access_of(memory);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult word_of(uint64_t *data, int attribute, const struct sg_memory *memory, uint64_t address)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: /* memory of a pool belongs to no context */
        *data = memory->pool ? 0 : (uintptr_t)memory->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *data = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (memory->kind == SG_MEMORY_DEVICE || memory->physical)
            return CUDA_ERROR_INVALID_VALUE;
        *data = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *data = memory->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *data = memory->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *data = memory->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *data = memory->charged_bytes ? memory->charged_bytes : memory->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *data = memory->physical ? (unsigned)memory->physical->props.requestedHandleTypes
                : memory->pool   ? (unsigned)memory->pool->handle_types
                                 : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *data = (uintptr_t)memory->pool;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *data = memory->physical ? memory->physical->object.id : memory->id;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult attribute_of(void *data, int attribute, uint64_t address)
{
    const struct sg_memory *memory = sg_memory_at(address);
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    return width_of(attribute) == 8 ? word_of(data, attribute, memory, address) : flag_of(data, attribute, memory);
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(data ? attribute_of(data, (int)attribute, pointer) : CUDA_ERROR_INVALID_VALUE);
}

/* In this call, attributes that an address does not have are 0 and not an error. */
API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data,
                                    CUdeviceptr pointer)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!attributes || !data || !count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        int attribute = (int)attributes[i];
        if (!data[i] || attribute < CU_POINTER_ATTRIBUTE_CONTEXT || attribute > 22)
            return sg_leave(CUDA_ERROR_INVALID_VALUE);
        if (attribute_of(data[i], attribute, pointer) == CUDA_SUCCESS)
            continue;
        memset(data[i], 0, width_of(attribute));
        if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = -2; /* the driver's value for unknown memory */
    }
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_memory *memory = sg_memory_at(pointer);
    if (!value || (int)attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !memory)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memory->is_sync = *(const int *)value != 0; /* copies take effect in order in any case */
    return sg_leave(CUDA_SUCCESS);
}
