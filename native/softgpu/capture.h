/* Inside libsoftgpu.so: what the calls that put work into streams ask before they do. Included by face.h. */
#ifndef COTENANT_SOFTGPU_CAPTURE_H
#define COTENANT_SOFTGPU_CAPTURE_H

struct sg_capture;
struct sg_copy;
struct sg_body;

/* All under the lock. The stream is captured where one is named: the work becomes a node instead of being done. */
CUresult sg_capture_kernel(CUstream stream, CUfunction function, const unsigned grid[3], const unsigned block[3],
                           unsigned shared_bytes, void **params, void **extra, int is_cooperative);
CUresult sg_capture_copy(CUstream stream, const struct sg_copy *copy);
CUresult sg_capture_fill(CUstream stream, const struct sg_box *target, uint64_t width, uint64_t height, uint32_t value,
                         uint32_t element_bytes);
CUresult sg_capture_host(CUstream stream, CUhostFn function, void *data);
CUresult sg_capture_record(CUstream stream, CUevent event, int is_external);
CUresult sg_capture_allocate(CUstream stream, const struct sg_device *device, uint64_t bytes, CUdeviceptr *address);
CUresult sg_capture_free(CUstream stream, uint64_t address);
/* A wait that involves a capture on either side; *taken: dealt with, the caller is done. */
CUresult sg_capture_wait(CUstream stream, CUevent event, int is_external, int *taken);

/* What cannot be captured: says so and makes the capture void. */
CUresult sg_capture_refuse(CUstream stream);
/* The legacy stream would wait for blocking streams: not while one of those is captured. */
CUresult sg_capture_implicit(CUstream legacy);
/* Calls that might wait for what is only being captured: not allowed while a capture forbids them to this thread. */
CUresult sg_capture_unsafe(void);
CUresult sg_capture_event(CUevent event); /* whether it may be asked about */
CUresult sg_capture_context(CUcontext context); /* whether all of its streams may be waited for */
void sg_capture_forget(CUstream stream); /* it ends */

#endif
