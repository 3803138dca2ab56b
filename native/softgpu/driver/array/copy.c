/* Copies from and to one-dimensional arrays, and the address of a part of an array. */
#include "softgpu/driver/array/array.h"
#include "softgpu/driver/copy/copy.h"

static int fits(size_t from, size_t length, size_t whole)
{
    return from <= whole && length <= whole - from;
}

/* Only whole elements inside the array are accepted, because no pitch defines the address of anything else. */
CUresult sg_array_box(CUarray array, size_t x, size_t y, size_t z, const size_t size[3], struct sg_box *box)
{
    if (!sg_alive(SG_ARRAY, array))
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR *shape = &array->shape;
    if (x % array->texel_bytes || size[0] % array->texel_bytes ||
        !fits(x, size[0], shape->Width * array->texel_bytes) || !fits(y, size[1], shape->Height ? shape->Height : 1) ||
        !fits(z, size[2], shape->Depth ? shape->Depth : 1))
        return CUDA_ERROR_INVALID_VALUE;
    *box = (struct sg_box){array->address + z * array->slice + y * array->pitch + x, array->pitch, array->slice};
    return CUDA_SUCCESS;
}

/* One side of a linear copy: an array and an offset, or an address. */
struct end {
    CUarray array;
    uint64_t at;
    enum sg_side side;
};

static struct end in_array(CUarray array, size_t offset)
{
    return (struct end){array, offset, SG_SIDE_DEVICE};
}

static struct end at_host(const void *address)
{
    return (struct end){NULL, (uintptr_t)address, SG_SIDE_HOST};
}

static struct end at_device(CUdeviceptr address)
{
    return (struct end){NULL, address, SG_SIDE_DEVICE};
}

static CUresult resolve(const struct end *end, int is_array, size_t bytes, struct sg_box *box)
{
    const size_t size[3] = {bytes, 1, 1};
    *box = (struct sg_box){end->at, 0, 0};
    if (!is_array)
        return CUDA_SUCCESS;
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    int is_line = sg_alive(SG_ARRAY, end->array) && !end->array->shape.Height && !end->array->shape.Depth;
    return sg_leave(is_line ? sg_array_box(end->array, end->at, 0, 0, size, box) : CUDA_ERROR_INVALID_VALUE);
}

enum { TO_ARRAY = 1, FROM_ARRAY = 2 };

static CUresult line(struct end to, struct end from, int arrays, size_t bytes, CUstream stream, int is_async)
{
    struct sg_copy copy = {.target_side = to.side, .source_side = from.side, .width = bytes, .height = 1, .depth = 1};
    CUresult result = resolve(&to, arrays & TO_ARRAY, bytes, &copy.target);
    if (result == CUDA_SUCCESS)
        result = resolve(&from, arrays & FROM_ARRAY, bytes, &copy.source);
    return result == CUDA_SUCCESS ? sg_copy(&copy, stream, is_async) : result;
}

#define SYNC(name, arrays, to, from, ...)                                                                              \
    API CUresult name##_v2(__VA_ARGS__, size_t bytes)                                                                  \
    {                                                                                                                  \
        return line(to, from, arrays, bytes, NULL, 0);                                                                 \
    }                                                                                                                  \
    API CUresult name##_v2_ptds(__VA_ARGS__, size_t bytes)                                                             \
    {                                                                                                                  \
        return line(to, from, arrays, bytes, CU_STREAM_PER_THREAD, 0);                                                 \
    }

#define ASYNC(name, arrays, to, from, ...)                                                                             \
    API CUresult name##_v2(__VA_ARGS__, size_t bytes, CUstream stream)                                                 \
    {                                                                                                                  \
        return line(to, from, arrays, bytes, stream, 1);                                                               \
    }                                                                                                                  \
    API CUresult name##_v2_ptsz(__VA_ARGS__, size_t bytes, CUstream stream)                                            \
    {                                                                                                                  \
        return line(to, from, arrays, bytes, sg_per_thread_stream(stream), 1);                                         \
    }

SYNC(cuMemcpyHtoA, TO_ARRAY, in_array(to, offset), at_host(from), CUarray to, size_t offset, const void *from)
SYNC(cuMemcpyDtoA, TO_ARRAY, in_array(to, offset), at_device(from), CUarray to, size_t offset, CUdeviceptr from)
SYNC(cuMemcpyAtoH, FROM_ARRAY, at_host(to), in_array(from, offset), void *to, CUarray from, size_t offset)
SYNC(cuMemcpyAtoD, FROM_ARRAY, at_device(to), in_array(from, offset), CUdeviceptr to, CUarray from, size_t offset)
SYNC(cuMemcpyAtoA, TO_ARRAY | FROM_ARRAY, in_array(to, to_offset), in_array(from, offset), CUarray to,
     size_t to_offset, CUarray from, size_t offset)
ASYNC(cuMemcpyHtoAAsync, TO_ARRAY, in_array(to, offset), at_host(from), CUarray to, size_t offset, const void *from)
ASYNC(cuMemcpyAtoHAsync, FROM_ARRAY, at_host(to), in_array(from, offset), void *to, CUarray from, size_t offset)
