/* Counts the streams that are being captured, by their handles: a capture also ends with an error, and with its stream. */
#include "hook/launch/captures.h"

#include "hook/launch/capture_mode.h"

/* The legacy default stream cannot be captured, so a handle of 0 is the default stream of the thread. */
static uintptr_t key_of(CUstream stream)
{
    return stream ? (uintptr_t)stream : 2;
}

/* Decrements the count for a capture that has no entry, unless there is none: it may have begun before the session. Called
 * with the lock held. */
static void count_end_without_entry(struct ct_session *session)
{
    int entries = 0;
    for (int i = 0; i < CT_CAPTURES; i++)
        entries += session->capture_storage[i].stream != 0;
    if (load_relaxed(&session->captures) > entries)
        atomic_fetch_sub(&session->captures, 1);
}

/* Removes the captures of a stream, or all of a context. Returns whether there were any. Called with the lock held. */
static int remove_captures(struct ct_session *session, uintptr_t stream, CUcontext context)
{
    int is_found = 0;
    for (int i = 0; i < CT_CAPTURES; i++) {
        struct ct_capture *capture = &session->capture_storage[i];
        if (!capture->stream || (stream ? capture->stream != stream : capture->context != context))
            continue;
        *capture = (struct ct_capture){0};
        atomic_fetch_sub(&session->captures, 1);
        is_found = 1;
    }
    return is_found;
}

void ct_capture_begin(void)
{
    struct ct_session *session = ct_session();
    if (session)
        atomic_fetch_add(&session->captures, 1);
}

void ct_capture_begun(CUstream stream, CUresult result)
{
    struct ct_session *session = ct_session();
    if (!session)
        return;
    const CUcontext context = ct_current_context();
    ct_lock(session);
    if (result != CUDA_SUCCESS)
        count_end_without_entry(session);
    /* If more streams are captured at once than there are entries, the others are only counted. */
    for (int i = 0; result == CUDA_SUCCESS && i < CT_CAPTURES; i++) {
        if (session->capture_storage[i].stream)
            continue;
        session->capture_storage[i] = (struct ct_capture){key_of(stream), context};
        break;
    }
    ct_unlock(session);
}

/* Returns whether the stream is not captured any more. After an error other than these, the driver knows. */
static int has_ended(CUstream stream, int is_per_thread, CUresult result)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
        result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        return 1;
    result = is_per_thread ? CT_NEXT(cuStreamIsCapturing_ptsz)(stream, &status)
                           : CT_NEXT(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

void ct_capture_end(CUstream stream, int is_per_thread, CUresult result)
{
    struct ct_session *session = ct_session();
    if (!session || !load_relaxed(&session->captures) || !has_ended(stream, is_per_thread, result))
        return;
    ct_lock(session);
    if (!remove_captures(session, key_of(stream), NULL))
        count_end_without_entry(session);
    ct_unlock(session);
}

void ct_capture_stream_destroyed(CUstream stream)
{
    struct ct_session *session = ct_session();
    if (!session || !stream || !load_relaxed(&session->captures))
        return;
    ct_lock(session);
    remove_captures(session, (uintptr_t)stream, NULL);
    ct_unlock(session);
}

void ct_capture_context_destroyed(CUcontext context)
{
    struct ct_session *session = ct_session();
    if (!session || !context || !load_relaxed(&session->captures))
        return;
    ct_lock(session);
    remove_captures(session, 0, context);
    ct_unlock(session);
}
