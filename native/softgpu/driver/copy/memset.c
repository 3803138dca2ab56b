/* Memsets of every element size, linear and 2D, synchronous and asynchronous. */
#include "softgpu/driver/internal.h"

/* The caller has checked the numbers; whether the memory exists is checked at submission. */
CUresult sg_fill_submit(const struct sg_box *target, uint64_t width, uint64_t height, uint32_t value,
                        uint32_t element_bytes, CUstream stream)
{
    uint64_t row = width * element_bytes, total;
    if (target->start % element_bytes || (height > 1 && target->pitch % element_bytes) ||
        __builtin_mul_overflow(height - 1, target->pitch, &total) || __builtin_add_overflow(total, row, &total) ||
        !sg_memory_allows(stream->context->device, target->start, total, 1))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_slot slot = {.kind = SG_SLOT_COPY, .value = row * height, .how = CT_OP_MEMSET};
    struct sg_effect effect = {
        .kind = SG_EFFECT_FILL,
        .fill = {*target, width, height, value, element_bytes},
    };
    CUresult result = sg_submit(stream, &slot);
    return result == CUDA_SUCCESS ? sg_effect_add(stream, &effect) : result;
}

static CUresult set(uint64_t target, uint64_t pitch, uint32_t value, uint32_t element_bytes, uint64_t width,
                    uint64_t height, CUstream handle, int is_async)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    uint64_t row;
    if (__builtin_mul_overflow(width, element_bytes, &row) || (height > 1 && pitch < row) ||
        target % element_bytes || (height > 1 && pitch % element_bytes))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!width || !height)
        return sg_leave(CUDA_SUCCESS);
    const struct sg_box box = {target, pitch, 0};
    if (stream->capture)
        return sg_leave(is_async ? sg_capture_fill(stream, &box, width, height, value, element_bytes)
                                 : sg_capture_refuse(stream));
    result = sg_fill_submit(&box, width, height, value, element_bytes, stream);
    int is_device = result == CUDA_SUCCESS && sg_memory_at(target)->kind == SG_MEMORY_DEVICE;
    /* The synchronous variant is synchronous only for memory that the host can access. */
    if (result == CUDA_SUCCESS && !is_async && !is_device)
        result = sg_stream_wait(stream);
    return sg_leave(result);
}

#define LINE(bits, type)                                                                                               \
    API CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t width)                                        \
    {                                                                                                                  \
        return set(to, 0, value, bits / 8, width, 1, NULL, 0);                                                         \
    }                                                                                                                  \
    API CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr to, type value, size_t width)                                   \
    {                                                                                                                  \
        return set(to, 0, value, bits / 8, width, 1, CU_STREAM_PER_THREAD, 0);                                         \
    }                                                                                                                  \
    API CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t width, CUstream stream)                     \
    {                                                                                                                  \
        return set(to, 0, value, bits / 8, width, 1, stream, 1);                                                       \
    }                                                                                                                  \
    API CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr to, type value, size_t width, CUstream stream)                \
    {                                                                                                                  \
        return set(to, 0, value, bits / 8, width, 1, sg_per_thread_stream(stream), 1);                                 \
    }

#define ROWS(bits, type)                                                                                               \
    API CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)         \
    {                                                                                                                  \
        return set(to, pitch, value, bits / 8, width, height, NULL, 0);                                                \
    }                                                                                                                  \
    API CUresult cuMemsetD2D##bits##_v2_ptds(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)    \
    {                                                                                                                  \
        return set(to, pitch, value, bits / 8, width, height, CU_STREAM_PER_THREAD, 0);                                \
    }                                                                                                                  \
    API CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,       \
                                          CUstream stream)                                                             \
    {                                                                                                                  \
        return set(to, pitch, value, bits / 8, width, height, stream, 1);                                              \
    }                                                                                                                  \
    API CUresult cuMemsetD2D##bits##Async_ptsz(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,  \
                                               CUstream stream)                                                        \
    {                                                                                                                  \
        return set(to, pitch, value, bits / 8, width, height, sg_per_thread_stream(stream), 1);                        \
    }

LINE(8, unsigned char)
LINE(16, unsigned short)
LINE(32, unsigned int)
ROWS(8, unsigned char)
ROWS(16, unsigned short)
ROWS(32, unsigned int)
