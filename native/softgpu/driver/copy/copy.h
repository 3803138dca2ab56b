/* Copies of every shape use one call. */
#ifndef COTENANT_SOFTGPU_DRIVER_COPY_COPY_H
#define COTENANT_SOFTGPU_DRIVER_COPY_COPY_H

#include "softgpu/driver/internal.h"

enum sg_side { SG_SIDE_HOST, SG_SIDE_DEVICE, SG_SIDE_ANY };

struct sg_copy {
    struct sg_box target, source;
    enum sg_side target_side, source_side; /* as declared by the caller; ANY: determined by the address */
    uint64_t width, height, depth;
};

/* When the call returns: after completion; immediately, with the current content of pageable memory; immediately, with
 * its content when the copy runs. */
enum sg_copy_how { SG_COPY_SYNC, SG_COPY_ASYNC, SG_COPY_OF_GRAPH };
CUresult sg_copy_submit(const struct sg_copy *copy, CUstream stream, enum sg_copy_how how);
/* Convert a 3D descriptor. The lock is held. */
CUresult sg_copy_read(const CUDA_MEMCPY3D *description, struct sg_copy *copy);

/* `handle` is a stream handle. If not async, the copy is complete on return. Takes and releases the lock. */
CUresult sg_copy(const struct sg_copy *copy, CUstream handle, int is_async);

#endif
