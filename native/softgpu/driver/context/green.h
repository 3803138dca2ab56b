/* Green contexts. */
#ifndef COTENANT_SOFTGPU_DRIVER_CONTEXT_GREEN_H
#define COTENANT_SOFTGPU_DRIVER_CONTEXT_GREEN_H

#include "softgpu/driver/internal.h"

struct CUgreenCtx_st {
    struct sg_object object;
    CUcontext context;
    uint64_t context_id;
    uint64_t primary_id; /* the primary context that it holds, unless that was reset */
};

#endif
