/* Arrays, and the texture and surface objects that refer to them. */
#ifndef COTENANT_SOFTGPU_DRIVER_ARRAY_ARRAY_H
#define COTENANT_SOFTGPU_DRIVER_ARRAY_ARRAY_H

#include "softgpu/driver/internal.h"

struct CUarray_st {
    struct sg_object object;
    struct CUctx_st *context;
    uint64_t context_id;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    uint32_t texel_bytes;
    uint64_t address, pitch, slice;
    struct CUmipmappedArray_st *mipmap; /* the mipmapped array that this level belongs to; NULL: none */
};

enum { SG_LEVELS = 18 }; /* levels of the largest texture, 131,072 texels wide */

struct CUmipmappedArray_st {
    struct sg_object object;
    struct CUctx_st *context;
    uint64_t context_id;
    uint64_t address;
    uint32_t level_count;
    struct CUarray_st *levels[SG_LEVELS];
};

/* A texture object or a surface object. */
struct sg_sampler {
    struct sg_object object;
    uint64_t context_id;
    int is_surface, has_view;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
};

/* Return the size of an element in bytes; 0: the format or number of channels is invalid or not supported. */
uint32_t sg_texel_bytes(CUarray_format format, unsigned channels);
/* Set *box to the part of an array that starts at byte x, row y and slice z; `size` is in bytes, rows and slices. The
 * lock is held. */
CUresult sg_array_box(CUarray array, size_t x, size_t y, size_t z, const size_t size[3], struct sg_box *box);

#endif
