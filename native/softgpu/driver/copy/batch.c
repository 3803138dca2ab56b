/* Batches of copies between pointers. Each copy is submitted asynchronously; the attributes are hints without
 * effect. */
#include "softgpu/driver/copy/copy.h"

/* Entry i applies to the copies from starts[i] on; the first one starts at 0, so that every copy has attributes. */
static int are_attributes(const CUmemcpyAttributes *attributes, const size_t *starts, size_t attribute_count,
                          size_t count)
{
    if (!attributes || !starts || !attribute_count || attribute_count > count || starts[0])
        return 0;
    for (size_t i = 0; i < attribute_count; i++) {
        if (starts[i] >= count || (i && starts[i] <= starts[i - 1]))
            return 0;
        if (attributes[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
            attributes[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
            return 0;
        if (attributes[i].flags & ~(unsigned)CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
            return 0;
    }
    return 1;
}

static CUresult wait_for(CUstream handle)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    return sg_leave(stream->capture ? sg_capture_refuse(stream) : sg_stream_wait(stream));
}

static CUresult batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count,
                      const CUmemcpyAttributes *attributes, const size_t *starts, size_t attribute_count,
                      size_t *failed, CUstream stream)
{
    int must_wait = 0;
    if (failed)
        *failed = SIZE_MAX;
    if (!stream || stream == CU_STREAM_LEGACY || !to || !from || !sizes || !count ||
        !are_attributes(attributes, starts, attribute_count, count))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, entry = 0; i < count; i++) {
        while (entry + 1 < attribute_count && starts[entry + 1] <= i)
            entry++;
        must_wait |= attributes[entry].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        struct sg_copy copy = {{to[i], 0, 0}, {from[i], 0, 0}, SG_SIDE_ANY, SG_SIDE_ANY, sizes[i], 1, 1};
        CUresult result = sizes[i] ? sg_copy(&copy, stream, 1) : CUDA_ERROR_INVALID_VALUE;
        if (result != CUDA_SUCCESS) {
            if (failed)
                *failed = i;
            return result;
        }
    }
    /* Pinned sources are read when the copy runs. A source that may change after this call must be read before it
     * returns. */
    return must_wait ? wait_for(stream) : CUDA_SUCCESS;
}

API CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count, size_t *failed,
                                CUstream stream)
{
    return batch(to, from, sizes, count, attributes, starts, attribute_count, failed, stream);
}

API CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                     CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                                     size_t *failed, CUstream stream)
{
    return batch(to, from, sizes, count, attributes, starts, attribute_count, failed,
                 sg_per_thread_stream(stream));
}

API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                   CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                                   CUstream stream)
{
    return batch(to, from, sizes, count, attributes, starts, attribute_count, NULL, stream);
}

API CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                        CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                                        CUstream stream)
{
    return batch(to, from, sizes, count, attributes, starts, attribute_count, NULL,
                 sg_per_thread_stream(stream));
}
