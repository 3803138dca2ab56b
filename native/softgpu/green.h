/* Inside libsoftgpu.so: green contexts. */
#ifndef COTENANT_SOFTGPU_GREEN_H
#define COTENANT_SOFTGPU_GREEN_H

#include "softgpu/face.h"

struct CUgreenCtx_st {
    struct sg_object object;
    CUcontext context;
    uint64_t context_id;
    uint64_t primary_id; /* the primary context that it keeps, unless that was reset */
};

#endif
