/* Copies of any shape come down to one call. */
#ifndef COTENANT_SOFTGPU_COPY_H
#define COTENANT_SOFTGPU_COPY_H

#include "softgpu/face.h"

enum sg_side { SG_SIDE_HOST, SG_SIDE_DEVICE, SG_SIDE_ANY };

struct sg_copy {
    struct sg_box target, source;
    enum sg_side target_side, source_side; /* what the caller says; ANY: by address */
    uint64_t width, height, depth;
};

/* What a description says, under the lock. */
/* How the caller goes on: when it is done; at once, with what pageable memory held; at once, with what it will hold. */
enum sg_copy_how { SG_COPY_SYNC, SG_COPY_ASYNC, SG_COPY_OF_GRAPH };
CUresult sg_copy_submit(const struct sg_copy *copy, CUstream stream, enum sg_copy_how how);
CUresult sg_copy_read(const CUDA_MEMCPY3D *description, struct sg_copy *copy);

/* `handle` is a stream handle; not async: it is done on return. Takes and gives the lock. */
CUresult sg_copy(const struct sg_copy *copy, CUstream handle, int is_async);

#endif
