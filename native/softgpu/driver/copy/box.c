/* The descriptors of 2D and 3D copies, checked and converted to struct sg_copy. */
#include "softgpu/driver/array/array.h"
#include "softgpu/driver/copy/copy.h"

/* Convert one side of a descriptor and apply its offsets. */
static CUresult one_side(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array, size_t x, size_t y,
                         size_t z, size_t pitch, size_t rows, const size_t size[3], struct sg_box *box,
                         enum sg_side *side)
{
    uint64_t start;
    switch ((int)type) {
    case CU_MEMORYTYPE_HOST:
        start = (uintptr_t)host;
        *side = SG_SIDE_HOST;
        break;
    case CU_MEMORYTYPE_DEVICE:
        start = device;
        *side = SG_SIDE_DEVICE;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        start = device;
        *side = SG_SIDE_ANY;
        break;
    case CU_MEMORYTYPE_ARRAY:
        *side = SG_SIDE_DEVICE;
        return sg_array_box(array, x, y, z, size, box);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!pitch)
        pitch = x + size[0];
    if (!rows)
        rows = y + size[1];
    uint64_t slice, row, skip, total, last;
    /* The numbers are untrusted: reject everything that overflows an address. */
    if (pitch < size[0] || x > pitch - size[0] || __builtin_mul_overflow(pitch, rows, &slice) ||
        __builtin_mul_overflow(slice, z, &skip) || __builtin_mul_overflow(pitch, y, &row) ||
        __builtin_add_overflow(skip, row, &skip) || __builtin_add_overflow(skip, x, &skip) ||
        __builtin_add_overflow(start, skip, &start) || __builtin_mul_overflow(slice, size[2], &total) ||
        __builtin_mul_overflow(pitch, size[1], &last) || __builtin_add_overflow(total, last, &total) ||
        __builtin_add_overflow(start, total, &last))
        return CUDA_ERROR_INVALID_VALUE;
    *box = (struct sg_box){start, pitch, slice};
    return CUDA_SUCCESS;
}

static CUresult read_2d(const CUDA_MEMCPY2D *d, struct sg_copy *copy)
{
    if (!d)
        return CUDA_ERROR_INVALID_VALUE;
    const size_t size[3] = {d->WidthInBytes, d->Height, 1};
    *copy = (struct sg_copy){.width = d->WidthInBytes, .height = d->Height, .depth = 1};
    CUresult result = one_side(d->srcMemoryType, d->srcHost, d->srcDevice, d->srcArray, d->srcXInBytes, d->srcY, 0,
                               d->srcPitch, 0, size, &copy->source, &copy->source_side);
    if (result == CUDA_SUCCESS)
        result = one_side(d->dstMemoryType, d->dstHost, d->dstDevice, d->dstArray, d->dstXInBytes, d->dstY, 0,
                          d->dstPitch, 0, size, &copy->target, &copy->target_side);
    return result;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *d, CUstream stream, int is_async)
{
    struct sg_copy copy;
    CUresult result = sg_enter();
    if (result == CUDA_SUCCESS)
        result = sg_leave(read_2d(d, &copy));
    return result == CUDA_SUCCESS ? sg_copy(&copy, stream, is_async) : result;
}

CUresult sg_copy_read(const CUDA_MEMCPY3D *d, struct sg_copy *copy)
{
    if (!d || d->srcLOD || d->dstLOD)
        return CUDA_ERROR_INVALID_VALUE;
    const size_t size[3] = {d->WidthInBytes, d->Height, d->Depth};
    *copy = (struct sg_copy){.width = d->WidthInBytes, .height = d->Height, .depth = d->Depth};
    CUresult result = one_side(d->srcMemoryType, d->srcHost, d->srcDevice, d->srcArray, d->srcXInBytes, d->srcY,
                               d->srcZ, d->srcPitch, d->srcHeight, size, &copy->source, &copy->source_side);
    if (result == CUDA_SUCCESS)
        result = one_side(d->dstMemoryType, d->dstHost, d->dstDevice, d->dstArray, d->dstXInBytes, d->dstY, d->dstZ,
                          d->dstPitch, d->dstHeight, size, &copy->target, &copy->target_side);
    return result;
}

/* The peer variant has the same layout except for the two contexts, which this device does not need. */
static CUresult copy_3d(const CUDA_MEMCPY3D *d, CUstream stream, int is_async)
{
    struct sg_copy copy;
    CUresult result = sg_enter();
    if (result == CUDA_SUCCESS)
        result = sg_leave(sg_copy_read(d, &copy));
    return result == CUDA_SUCCESS ? sg_copy(&copy, stream, is_async) : result;
}

_Static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER), "the two 3D descriptors have the same layout");

static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *d, CUstream stream, int is_async)
{
    if (!d)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    int valid = sg_alive(SG_CONTEXT, d->srcContext) && sg_alive(SG_CONTEXT, d->dstContext);
    sg_leave(result);
    return valid ? copy_3d((const CUDA_MEMCPY3D *)d, stream, is_async) : CUDA_ERROR_INVALID_CONTEXT;
}

#define SYNC(name, per_thread, type, function)                                                                         \
    API CUresult name(const type *copy)                                                                                \
    {                                                                                                                  \
        return function(copy, NULL, 0);                                                                                \
    }                                                                                                                  \
    API CUresult per_thread(const type *copy)                                                                          \
    {                                                                                                                  \
        return function(copy, CU_STREAM_PER_THREAD, 0);                                                                \
    }

#define ASYNC(name, per_thread, type, function)                                                                        \
    API CUresult name(const type *copy, CUstream stream)                                                               \
    {                                                                                                                  \
        return function(copy, stream, 1);                                                                              \
    }                                                                                                                  \
    API CUresult per_thread(const type *copy, CUstream stream)                                                         \
    {                                                                                                                  \
        return function(copy, sg_per_thread_stream(stream), 1);                                                        \
    }

SYNC(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, CUDA_MEMCPY2D, copy_2d)
SYNC(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, CUDA_MEMCPY2D, copy_2d)
ASYNC(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, CUDA_MEMCPY2D, copy_2d)
SYNC(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, CUDA_MEMCPY3D, copy_3d)
ASYNC(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, CUDA_MEMCPY3D, copy_3d)
SYNC(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, CUDA_MEMCPY3D_PEER, copy_3d_peer)
ASYNC(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, CUDA_MEMCPY3D_PEER, copy_3d_peer)
