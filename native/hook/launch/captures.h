/* The streams that are being captured. While there are any, nothing is timed and no event is recorded. */
#ifndef COTENANT_HOOK_LAUNCH_CAPTURES_H
#define COTENANT_HOOK_LAUNCH_CAPTURES_H

#include "hook/entry/session.h"

/* Called before the driver begins a capture, so that no other thread records an event in between, and after it. */
void ct_capture_begin(void);
void ct_capture_begun(CUstream stream, CUresult result);
/* Called after the driver ended a capture, or failed to. */
void ct_capture_end(CUstream stream, int is_per_thread, CUresult result);
/* Called when a stream, or a context with its streams, was destroyed: a program that abandons a capture does not end it. */
void ct_capture_stream_destroyed(CUstream stream);
void ct_capture_context_destroyed(CUcontext context);

#endif
