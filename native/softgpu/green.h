/* Inside libsoftgpu.so: green contexts. */
#ifndef COTENANT_SOFTGPU_GREEN_H
#define COTENANT_SOFTGPU_GREEN_H

#include "softgpu/face.h"

struct CUgreenCtx_st {
    struct sg_object object;
    CUcontext context;
    uint64_t context_id;
};

#endif
