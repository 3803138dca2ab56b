/* A driver whose calls return at once, so that the measured time of a call is the overhead of the hook. Used by the
 * hook's benchmark and by tests, which can prevent its events from completing, read which stream it was last asked
 * about, limit its memory, and make its work, its records of events and the end of captures fail. */
#include "hook/entry/route.h"

#define IDLE __attribute__((visibility("default"))) CUresult

__attribute__((visibility("default"))) int idle_is_stuck;
__attribute__((visibility("default"))) _Atomic(CUstream) idle_queried_stream;
__attribute__((visibility("default"))) _Atomic uint64_t idle_free_bytes = UINT64_MAX;
__attribute__((visibility("default"))) _Atomic uint64_t idle_frees;
__attribute__((visibility("default"))) CUresult idle_outcome;
__attribute__((visibility("default"))) CUresult idle_record_outcome;
__attribute__((visibility("default"))) CUresult idle_capture_outcome;
__attribute__((visibility("default"))) int idle_is_capturing; /* whether the stream is captured after that */

/* Objects whose addresses serve as handles. */
static char a_context, a_module, a_function, an_event;

IDLE cuInit(unsigned int flags);
IDLE cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
IDLE cuCtxSetCurrent(CUcontext context);
IDLE cuCtxSynchronize(void);
IDLE cuCtxGetCurrent(CUcontext *context);
IDLE cuModuleLoadData(CUmodule *module, const void *image);
IDLE cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
IDLE cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
IDLE cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
IDLE cuStreamEndCapture(CUstream stream, CUgraph *graph);
IDLE cuStreamDestroy_v2(CUstream stream);
IDLE cuCtxDestroy_v2(CUcontext context);
IDLE cuStreamQuery(CUstream stream);
IDLE cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags);
IDLE cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags);
IDLE cuEventCreate(CUevent *event, unsigned int flags);
IDLE cuEventRecord(CUevent event, CUstream stream);
IDLE cuEventQuery(CUevent event);
IDLE cuEventDestroy_v2(CUevent event);
IDLE cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end);
IDLE cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
IDLE cuMemFree_v2(CUdeviceptr pointer);
IDLE cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
IDLE cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                    CUstream stream, void **params, void **extra);

CUresult cuInit(unsigned int flags)
{
    return flags ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)&a_context;
    return device ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    return context ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxSynchronize(void)
{
    return idle_outcome;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = (CUcontext)&a_context;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)&a_module;
    return image ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    *function = (CUfunction)&a_function;
    return module && name ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    idle_queried_stream = stream;
    *status = idle_is_capturing ? 1 : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    return stream ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    (void)stream;
    *graph = NULL;
    return idle_capture_outcome;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    return context ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuStreamQuery(CUstream stream)
{
    (void)stream;
    return idle_is_stuck ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)
{
    (void)stream, (void)value, (void)flags;
    return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags)
{
    (void)stream, (void)ops, (void)flags;
    return count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    *event = (CUevent)&an_event;
    return flags > 3 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    (void)stream;
    return event ? idle_record_outcome : CUDA_ERROR_NOT_FOUND;
}

CUresult cuEventQuery(CUevent event)
{
    if (idle_is_stuck)
        return CUDA_ERROR_NOT_READY;
    return event ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    return event ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end)
{
    if (idle_is_stuck)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = 20e-6f; /* shorter than a launch takes, so the device is always idle */
    return begin && end ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    static _Atomic CUdeviceptr last;
    if (bytes > load_relaxed(&idle_free_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = fetch_add_relaxed(&last, 4096) + 4096;
    return bytes ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = load_relaxed(&idle_free_bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    fetch_add_relaxed(&idle_frees, 1);
    return pointer ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **params, void **extra)
{
    (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared_bytes;
    (void)stream, (void)params, (void)extra;
    return function && grid_x ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
