/* Images that the driver linked from texts with variants. */
#ifndef COTENANT_HOOK_SLICE_LINK_H
#define COTENANT_HOOK_SLICE_LINK_H

#include "hook/slice/ptx.h"

/* Finds the kernels of an image that was linked from texts with variants, and copies them into `module`, which has no
 * text. Returns whether the image is known. */
int ct_slice_linked(const void *image, struct ct_ptx_module *module);

#endif
