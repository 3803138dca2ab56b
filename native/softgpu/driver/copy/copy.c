/* Submission of one copy: its engine, its pinned or pageable host side, and when the call returns. */
#include "softgpu/driver/copy/copy.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

static uint64_t extent(const struct sg_copy *copy, const struct sg_box *box)
{
    return (copy->depth - 1) * box->slice + (copy->height - 1) * box->pitch + copy->width;
}

/* Reject invalid host pointers without following them. Check row by row if whole pages lie between the rows, because
 * those need not be accessible. */
static int is_accessible(const struct sg_copy *copy, const struct sg_box *box, int is_target)
{
    if ((copy->height == 1 || box->pitch - copy->width < PAGE) &&
        (copy->depth == 1 || box->slice - copy->height * box->pitch < PAGE))
        return sg_host_accessible(box->start, extent(copy, box), is_target);
    for (uint64_t z = 0; z < copy->depth; z++)
        for (uint64_t y = 0; y < copy->height; y++)
            if (!sg_host_accessible(box->start + z * box->slice + y * box->pitch, copy->width, is_target))
                return 0;
    return 1;
}

/* 1: memory of the device, 0: host memory, -1: this copy cannot access it. */
static int side(const struct sg_device *device, const struct sg_copy *copy, const struct sg_box *box,
                enum sg_side declared)
{
    int is_target = box == &copy->target;
    uint64_t bytes = extent(copy, box);
    struct sg_memory *memory = sg_memory_at(box->start);
    if (!box->start || bytes > UINT64_MAX - box->start)
        return -1;
    if (memory && !sg_memory_allows(device, box->start, bytes, is_target))
        return -1;
    if (!memory && declared == SG_SIDE_DEVICE)
        return -1;
    /* The program may have unmapped registered memory. */
    if (!memory || memory->kind == SG_MEMORY_REGISTERED)
        return is_accessible(copy, box, is_target) ? 0 : -1;
    return memory->kind == SG_MEMORY_DEVICE || memory->kind == SG_MEMORY_MANAGED;
}

static int is_pinned(const struct sg_box *box)
{
    return sg_memory_at(box->start) != NULL;
}

/* The driver reads pageable memory before an asynchronous copy returns, so that the program can change it. */
static CUresult stage_source(struct sg_effect *effect)
{
    uint64_t width = effect->copy.width, height = effect->copy.height, depth = effect->copy.depth;
    if (height > SIZE_MAX / width || depth > SIZE_MAX / (width * height))
        return CUDA_ERROR_INVALID_VALUE;
    char *staged = malloc(width * height * depth);
    if (!staged)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct sg_box from = effect->copy.source;
    for (uint64_t z = 0; z < depth; z++)
        for (uint64_t y = 0; y < height; y++)
            memcpy(staged + (z * height + y) * width,
                   (const void *)(uintptr_t)(from.start + z * from.slice + y * from.pitch), width);
    effect->staged = staged;
    effect->copy.source = (struct sg_box){(uintptr_t)staged, width, width * height};
    return CUDA_SUCCESS;
}

CUresult sg_copy_submit(const struct sg_copy *copy, CUstream stream, enum sg_copy_how how)
{
    const struct sg_device *device = stream->context->device;
    int to = side(device, copy, &copy->target, copy->target_side);
    int from = side(device, copy, &copy->source, copy->source_side);
    if (to < 0 || from < 0)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t engine = to && from ? CT_OP_COPY_DTOD : to ? CT_OP_COPY_HTOD : CT_OP_COPY_DTOH;
    struct sg_slot slot = {.kind = SG_SLOT_COPY, .value = copy->width * copy->height * copy->depth, .how = engine};
    struct sg_effect effect = {
        .kind = SG_EFFECT_COPY,
        .copy = {copy->target, copy->source, copy->width, copy->height, copy->depth},
    };
    int pageable_target = !to && !is_pinned(&copy->target), pageable_source = !from && !is_pinned(&copy->source);
    CUresult result = CUDA_SUCCESS;
    if (how == SG_COPY_ASYNC && pageable_source && !pageable_target)
        result = stage_source(&effect);
    if (result == CUDA_SUCCESS)
        result = sg_submit(stream, &slot);
    if (result == CUDA_SUCCESS)
        result = sg_effect_add(stream, &effect);
    if (result != CUDA_SUCCESS) {
        free(effect.staged);
        return result;
    }
    /* Copies to pageable memory are synchronous even in the asynchronous variants; copies within the device are
     * asynchronous even in the synchronous ones. */
    if (how == SG_COPY_ASYNC ? pageable_target : how == SG_COPY_SYNC && engine != CT_OP_COPY_DTOD)
        result = sg_stream_wait(stream);
    return result;
}

CUresult sg_copy(const struct sg_copy *copy, CUstream handle, int is_async)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!copy->width || !copy->height || !copy->depth)
        return sg_leave(CUDA_SUCCESS);
    if (stream->capture)
        return sg_leave(is_async ? sg_capture_copy(stream, copy) : sg_capture_refuse(stream));
    return sg_leave(sg_copy_submit(copy, stream, is_async ? SG_COPY_ASYNC : SG_COPY_SYNC));
}

static CUresult line(uint64_t to, enum sg_side to_side, uint64_t from, enum sg_side from_side, size_t bytes,
                     CUstream stream, int is_async)
{
    struct sg_copy copy = {{to, 0, 0}, {from, 0, 0}, to_side, from_side, bytes, 1, 1};
    return sg_copy(&copy, stream, is_async);
}

/* Each call has a per-thread variant: _ptds uses the thread's default stream, _ptsz maps NULL to it. */
#define SYNC_FORMS(name, per_thread, parameters, to, to_side, from, from_side)                                         \
    API CUresult name parameters                                                                                       \
    {                                                                                                                  \
        return line(to, to_side, from, from_side, bytes, NULL, 0);                                                     \
    }                                                                                                                  \
    API CUresult per_thread parameters                                                                                 \
    {                                                                                                                  \
        return line(to, to_side, from, from_side, bytes, CU_STREAM_PER_THREAD, 0);                                     \
    }

#define ASYNC_FORMS(name, per_thread, parameters, to, to_side, from, from_side)                                        \
    API CUresult name parameters                                                                                       \
    {                                                                                                                  \
        return line(to, to_side, from, from_side, bytes, stream, 1);                                                   \
    }                                                                                                                  \
    API CUresult per_thread parameters                                                                                 \
    {                                                                                                                  \
        return line(to, to_side, from, from_side, bytes, sg_per_thread_stream(stream), 1);                             \
    }

SYNC_FORMS(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, SG_SIDE_ANY, from,
           SG_SIDE_ANY)
SYNC_FORMS(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t bytes), to, SG_SIDE_DEVICE,
           (uintptr_t)from, SG_SIDE_HOST)
SYNC_FORMS(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t bytes), (uintptr_t)to,
           SG_SIDE_HOST, from, SG_SIDE_DEVICE)
SYNC_FORMS(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, SG_SIDE_DEVICE,
           from, SG_SIDE_DEVICE)
ASYNC_FORMS(cuMemcpyAsync, cuMemcpyAsync_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to,
            SG_SIDE_ANY, from, SG_SIDE_ANY)
ASYNC_FORMS(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
            (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), to, SG_SIDE_DEVICE, (uintptr_t)from,
            SG_SIDE_HOST)
ASYNC_FORMS(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
            (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (uintptr_t)to, SG_SIDE_HOST, from,
            SG_SIDE_DEVICE)
ASYNC_FORMS(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
            (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, SG_SIDE_DEVICE, from, SG_SIDE_DEVICE)

static CUresult peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                     CUstream stream, int is_async)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    int valid = sg_alive(SG_CONTEXT, to_context) && sg_alive(SG_CONTEXT, from_context);
    sg_leave(result);
    return valid ? line(to, SG_SIDE_DEVICE, from, SG_SIDE_DEVICE, bytes, stream, is_async) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
    return peer(to, to_context, from, from_context, bytes, NULL, 0);
}

API CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                               size_t bytes)
{
    return peer(to, to_context, from, from_context, bytes, CU_STREAM_PER_THREAD, 0);
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                               size_t bytes, CUstream stream)
{
    return peer(to, to_context, from, from_context, bytes, stream, 1);
}

API CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                    size_t bytes, CUstream stream)
{
    return peer(to, to_context, from, from_context, bytes, sg_per_thread_stream(stream), 1);
}
