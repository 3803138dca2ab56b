/* Stream capture, as used by the calls that submit work to streams. */
#ifndef COTENANT_SOFTGPU_DRIVER_CAPTURE_CAPTURE_H
#define COTENANT_SOFTGPU_DRIVER_CAPTURE_CAPTURE_H

struct sg_capture;
struct sg_copy;
struct sg_body;
struct sg_launch_options;

/* The lock is held. The stream is captured: the functions add a node in place of submitting the work. */
CUresult sg_capture_kernel(CUstream stream, CUfunction function, const unsigned grid[3], const unsigned block[3],
                           unsigned shared_bytes, void **params, void **extra, const struct sg_launch_options *options);
CUresult sg_capture_copy(CUstream stream, const struct sg_copy *copy);
CUresult sg_capture_fill(CUstream stream, const struct sg_box *target, uint64_t width, uint64_t height, uint32_t value,
                         uint32_t element_bytes);
CUresult sg_capture_host(CUstream stream, CUhostFn function, void *data);
CUresult sg_capture_record(CUstream stream, CUevent event, int is_external);
CUresult sg_capture_allocate(CUstream stream, const struct sg_device *device, uint64_t bytes, CUdeviceptr *address);
CUresult sg_capture_free(CUstream stream, uint64_t address);
/* Handle a wait in which the stream or the event is captured. *handled is set to 1 if the caller has nothing left to
 * do. */
CUresult sg_capture_wait(CUstream stream, CUevent event, int is_external, int *handled);

/* Invalidate the capture because of a call that cannot be captured. Returns the error for the program. */
CUresult sg_capture_refuse(CUstream stream);
/* Fail if the legacy stream would wait for a blocking stream that is being captured. */
CUresult sg_capture_implicit(CUstream legacy);
/* Fail if a capture in progress forbids potentially unsafe calls to this thread. */
CUresult sg_capture_unsafe(void);
CUresult sg_capture_event(CUevent event); /* fail if the event was recorded in a capture */
CUresult sg_capture_context(CUcontext context); /* fail if one of the context's streams is captured */
void sg_capture_drop_stream(CUstream stream); /* the stream is destroyed */

#endif
