/* The state of a linker. */
#ifndef COTENANT_SOFTGPU_DRIVER_MODULE_LINKER_H
#define COTENANT_SOFTGPU_DRIVER_MODULE_LINKER_H

#include "softgpu/driver/internal.h"

struct sg_log {
    char *text;
    unsigned capacity, used; /* bytes; `used` excludes the terminating zero */
};

struct CUlinkState_st {
    struct sg_object object;
    struct sg_image image;
    struct sg_log error, info;
    void **error_used, **info_used; /* where the program reads the length of the logs */
    char *linked; /* the image as text after cuLinkComplete */
};

#endif
