/* Inside libsoftgpu.so: arrays, and the texture and surface objects over them. */
#ifndef COTENANT_SOFTGPU_ARRAY_H
#define COTENANT_SOFTGPU_ARRAY_H

#include "softgpu/face.h"

struct CUarray_st {
    struct sg_object object;
    struct CUctx_st *context;
    uint64_t context_id;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    uint32_t texel_bytes;
    uint64_t address, pitch, slice;
    struct CUmipmappedArray_st *mipmap; /* NULL: stands alone */
};

enum { SG_LEVELS = 18 }; /* of the largest texture there is, 131,072 texels wide */

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

/* Bytes of one element; 0: no such format or number of channels, or one that is not supported. */
uint32_t sg_texel_bytes(CUarray_format format, unsigned channels);
/* The piece of an array that starts at this byte, row and slice; `size` is in bytes, rows and slices. Under the
 * lock. */
CUresult sg_array_box(CUarray array, size_t x, size_t y, size_t z, const size_t size[3], struct sg_box *box);

#endif
