/* Stream attributes, attachment of managed memory, and the oldest variants of calls. Most of them have no effect on
 * this device. */
#include "softgpu/driver/internal.h"
#include "softgpu/abi/names.h"

#include <string.h>

static CUresult attach(CUstream handle, CUdeviceptr pointer, unsigned flags)
{
    SG_ENTER(context);
    struct sg_memory *memory = sg_memory_at(pointer);
    CUstream stream = sg_stream(context, handle);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture)
        return sg_leave(sg_capture_refuse(stream));
    if (!memory || memory->kind != SG_MEMORY_MANAGED || !flags || flags > CU_MEM_ATTACH_SINGLE || (flags & (flags - 1)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned int flags)
{
    (void)bytes;
    return attach(stream, pointer, flags);
}

API CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned int flags)
{
    (void)bytes;
    return attach(sg_per_thread_stream(stream), pointer, flags);
}

CUresult sg_attribute_support(int attribute)
{
    switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: /* the priority of a stream is fixed at creation */
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        return CUDA_ERROR_NOT_SUPPORTED; /* the program would rely on something that never happens */
    default:
        return attribute < CU_LAUNCH_ATTRIBUTE_IGNORE || attribute > 18 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
}

/* Priority is the only stream attribute with a value. */
static CUresult get_attribute(CUstream handle, int attribute, CUstreamAttrValue *value)
{
    SG_ENTER(context);
    CUstream stream = sg_stream(context, handle);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!value || attribute < 1 || attribute > 18)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memset(value, 0, sizeof *value);
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        value->priority = stream->priority;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult set_attribute(CUstream handle, int attribute, const CUstreamAttrValue *value, int name)
{
    SG_ENTER(context);
    CUstream stream = sg_stream(context, handle);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!value || attribute == CU_LAUNCH_ATTRIBUTE_IGNORE)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    sg_leave(result);
    result = sg_attribute_support(attribute);
    return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(name) : result;
}

/* Attributes of streams have no effect here, so there is nothing to copy. */
static CUresult copy_attributes(CUstream to, CUstream from)
{
    SG_ENTER(context);
    CUstream target = sg_stream(context, to), source = sg_stream(context, from);
    if (!target || !source)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    return sg_leave(target->context == source->context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
    return copy_attributes(to, from);
}

API CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from)
{
    return copy_attributes(sg_per_thread_stream(to), sg_per_thread_stream(from));
}

API CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
    return get_attribute(stream, (int)attribute, value);
}

API CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
    return get_attribute(sg_per_thread_stream(stream), (int)attribute, value);
}

API CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue *value)
{
    return set_attribute(stream, (int)attribute, value, SG_NAME_cuStreamSetAttribute);
}

API CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue *value)
{
    return set_attribute(sg_per_thread_stream(stream), (int)attribute, value, SG_NAME_cuStreamSetAttribute_ptsz);
}

API CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    return context ? sg_stream_contexts(stream, context, green) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    return context ? sg_stream_contexts(sg_per_thread_stream(stream), context, green) : CUDA_ERROR_INVALID_VALUE;
}

/* Variants of CUDA 2 to 4 whose arguments never changed. */
API CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}

API CUresult cuCtxDestroy(CUcontext context)
{
    return cuCtxDestroy_v2(context);
}

API CUresult cuCtxPushCurrent(CUcontext context)
{
    return cuCtxPushCurrent_v2(context);
}

API CUresult cuCtxPopCurrent(CUcontext *context)
{
    return cuCtxPopCurrent_v2(context);
}

API CUresult cuStreamDestroy(CUstream stream)
{
    return cuStreamDestroy_v2(stream);
}

API CUresult cuEventDestroy(CUevent event)
{
    return cuEventDestroy_v2(event);
}

API CUresult cuMemHostRegister(void *host, size_t bytes, unsigned int flags)
{
    return cuMemHostRegister_v2(host, bytes, flags);
}
