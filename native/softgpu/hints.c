/* Advice, attributes and older forms: calls a driver accepts although little or nothing follows from them here. */
#include "softgpu/face.h"
#include "softgpu/names.h"

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
    return attach(sg_twin(stream), pointer, flags);
}

CUresult sg_attribute_known(int attribute)
{
    switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: /* a stream has its own from its making to its end */
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        return CUDA_ERROR_NOT_SUPPORTED; /* the program would wait for, or count on, what never comes */
    default:
        return attribute < CU_LAUNCH_ATTRIBUTE_IGNORE || attribute > 18 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
}

/* Of the attributes of a stream its priority is the one that means something. */
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
    result = sg_attribute_known(attribute);
    return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(name) : result;
}

/* What a stream can be told has no effect here, so there is nothing to copy. */
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
    return copy_attributes(sg_twin(to), sg_twin(from));
}

API CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
    return get_attribute(stream, (int)attribute, value);
}

API CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
    return get_attribute(sg_twin(stream), (int)attribute, value);
}

API CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue *value)
{
    return set_attribute(stream, (int)attribute, value, SG_NAME_cuStreamSetAttribute);
}

API CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue *value)
{
    return set_attribute(sg_twin(stream), (int)attribute, value, SG_NAME_cuStreamSetAttribute_ptsz);
}

API CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    return context ? sg_stream_contexts(stream, context, green) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    return context ? sg_stream_contexts(sg_twin(stream), context, green) : CUDA_ERROR_INVALID_VALUE;
}

/* The forms of CUDA 2 to 4 whose arguments never changed. */
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
