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
CUresult sg_copy_read(const CUDA_MEMCPY3D *description, struct sg_copy *copy);

/* `handle` is a stream handle; not async: it is done on return. Takes and gives the lock. */
CUresult sg_copy(const struct sg_copy *copy, CUstream handle, int is_async);

#endif
