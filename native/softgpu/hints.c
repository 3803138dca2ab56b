/* Advice, attributes and older forms: calls a driver accepts although little or nothing follows from them here. */
#include "softgpu/face.h"
#include "softgpu/names.h"

#include <string.h>

#define ENTER(context)                                                                                                 \
    CUcontext context;                                                                                                 \
    CUresult result = sg_enter_context(&context);                                                                      \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result

static CUstream own(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

static CUresult attach(CUstream handle, CUdeviceptr pointer, unsigned flags)
{
    ENTER(context);
    struct sg_memory *memory = sg_memory_at(pointer);
    if (!sg_stream(context, handle))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
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
    return attach(own(stream), pointer, flags);
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
    ENTER(context);
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
    ENTER(context);
    CUstream stream = sg_stream(context, handle);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!value || attribute == CU_LAUNCH_ATTRIBUTE_IGNORE)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    sg_leave(result);
    result = sg_attribute_known(attribute);
    return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(name) : result;
}

API CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
    return get_attribute(stream, (int)attribute, value);
}

API CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
    return get_attribute(own(stream), (int)attribute, value);
}

API CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue *value)
{
    return set_attribute(stream, (int)attribute, value, SG_NAME_cuStreamSetAttribute);
}

API CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue *value)
{
    return set_attribute(own(stream), (int)attribute, value, SG_NAME_cuStreamSetAttribute_ptsz);
}

/* No stream is ever captured. */
static CUresult not_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
    ENTER(context);
    if (!sg_stream(context, handle))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!status)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    (void)id;
    return not_capturing(stream, status);
}

API CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    (void)id;
    return not_capturing(own(stream), status);
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                       const CUgraphNode **dependencies, size_t *count)
{
    (void)id, (void)graph, (void)dependencies, (void)count;
    return not_capturing(stream, status);
}

API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                            CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
    (void)id, (void)graph, (void)dependencies, (void)count;
    return not_capturing(own(stream), status);
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                       const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
    (void)id, (void)graph, (void)dependencies, (void)edges, (void)count;
    return not_capturing(stream, status);
}

API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                            CUgraph *graph, const CUgraphNode **dependencies,
                                            const CUgraphEdgeData **edges, size_t *count)
{
    (void)id, (void)graph, (void)dependencies, (void)edges, (void)count;
    return not_capturing(own(stream), status);
}

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    static __thread int current;
    if (!mode || (int)*mode < 0 || (int)*mode > 2)
        return CUDA_ERROR_INVALID_VALUE;
    int before = current;
    current = (int)*mode;
    *mode = before;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    if (green)
        *green = NULL;
    return cuStreamGetCtx(stream, context);
}

API CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    if (green)
        *green = NULL;
    return cuStreamGetCtx(own(stream), context);
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
