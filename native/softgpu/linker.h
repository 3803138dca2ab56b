/* Inside libsoftgpu.so: what cuLink... gathers until it is one image. */
#ifndef COTENANT_SOFTGPU_LINKER_H
#define COTENANT_SOFTGPU_LINKER_H

#include "softgpu/face.h"

struct sg_log {
    char *text;
    unsigned room, used; /* bytes; `used` is without the zero behind it */
};

struct CUlinkState_st {
    struct sg_object object;
    struct sg_image image;
    struct sg_log error, info;
    void **error_used, **info_used; /* where the program looks for how much was said */
    char *linked; /* the image as text, once complete */
};

#endif
