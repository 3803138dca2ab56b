/* How is the driver asked while it works for a program? So that nothing of the program's changes by it. */
#ifndef COTENANT_HOOK_ASKING_H
#define COTENANT_HOOK_ASKING_H

#include "hook/seen.h"

/* A capture in the global mode is spoiled by any thread that asks after an event, and may begin while we do. What a
 * thread asks in the relaxed mode spoils none. Drivers before 10.1 have neither. */
static inline int ct_relax(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return CT_NEXT(cuThreadExchangeStreamCaptureMode)(mode) == CUDA_SUCCESS;
}

static inline void ct_tighten(int is_relaxed, CUstreamCaptureMode mode)
{
    if (is_relaxed)
        CT_NEXT(cuThreadExchangeStreamCaptureMode)(&mode);
}

static inline CUcontext ct_current_context(void)
{
    CUcontext context = NULL;
    return CT_NEXT(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

static inline int ct_is_capturing(struct ct_session *session, CUstream stream, int is_twin)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (atomic_load_explicit(&session->captures, memory_order_relaxed))
        return 1;
    CUresult result = is_twin ? CT_NEXT(cuStreamIsCapturing_ptsz)(stream, &status)
                              : CT_NEXT(cuStreamIsCapturing)(stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static inline CUresult ct_mark(CUevent event, CUstream stream, int is_twin)
{
    return is_twin ? CT_NEXT(cuEventRecord_ptsz)(event, stream) : CT_NEXT(cuEventRecord)(event, stream);
}

#endif
