/* Driver calls of the hook that must not disturb the program's stream captures. */
#ifndef COTENANT_HOOK_LAUNCH_CAPTURE_MODE_H
#define COTENANT_HOOK_LAUNCH_CAPTURE_MODE_H

#include "hook/entry/session.h"

/* A capture in global mode is invalidated by a query of any thread, and may begin at any time. Queries of a thread in
 * relaxed mode invalidate none. Drivers before CUDA 10.1 have neither. */
static inline int ct_capture_relax(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return CT_NEXT(cuThreadExchangeStreamCaptureMode)(mode) == CUDA_SUCCESS;
}

static inline void ct_capture_restore(int was_relaxed, CUstreamCaptureMode mode)
{
    if (was_relaxed)
        CT_NEXT(cuThreadExchangeStreamCaptureMode)(&mode);
}

static inline CUcontext ct_current_context(void)
{
    CUcontext context = NULL;
    return CT_NEXT(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

static inline int ct_is_capturing(struct ct_session *session, CUstream stream, int is_per_thread)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (load_relaxed(&session->captures))
        return 1;
    CUresult result = is_per_thread ? CT_NEXT(cuStreamIsCapturing_ptsz)(stream, &status)
                              : CT_NEXT(cuStreamIsCapturing)(stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static inline CUresult ct_record_event(CUevent event, CUstream stream, int is_per_thread)
{
    return is_per_thread ? CT_NEXT(cuEventRecord_ptsz)(event, stream) : CT_NEXT(cuEventRecord)(event, stream);
}

#endif
