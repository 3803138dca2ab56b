/* Launch calls that precede cuLaunchKernel: shape and parameters are set on the function before the launch. They are
 * deprecated but in use: PyCUDA calls the setters before each launch. */
#include "softgpu/driver/internal.h"

#include <stdlib.h>
#include <string.h>

static CUresult enter(struct CUfunc_st *function)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_FUNCTION, function))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!function->legacy)
        function->legacy = calloc(1, sizeof *function->legacy);
    return function->legacy ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
}

#define ENTER(function)                                                                                                \
    CUresult result = enter(function);                                                                                 \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result

API CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
    ENTER(function);
    if (x < 1 || y < 1 || z < 1 || x > 1024 || y > 1024 || z > 64 ||
        (uint64_t)x * (uint64_t)y * (uint64_t)z > function->kernel->max_threads)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    const unsigned block[3] = {(unsigned)x, (unsigned)y, (unsigned)z};
    memcpy(function->legacy->block, block, sizeof block);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes)
{
    ENTER(function);
    if (bytes > function->dynamic_bytes)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    function->legacy->shared_bytes = bytes;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuParamSetSize(CUfunction function, unsigned int bytes)
{
    ENTER(function);
    if (bytes > sizeof function->legacy->params)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    function->legacy->param_bytes = bytes;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult set(struct CUfunc_st *function, int offset, const void *data, unsigned bytes)
{
    ENTER(function);
    if (!data || offset < 0 || (uint64_t)offset + bytes > sizeof function->legacy->params)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(function->legacy->params + offset, data, bytes);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuParamSeti(CUfunction function, int offset, unsigned int value)
{
    return set(function, offset, &value, sizeof value);
}

API CUresult cuParamSetf(CUfunction function, int offset, float value)
{
    return set(function, offset, &value, sizeof value);
}

API CUresult cuParamSetv(CUfunction function, int offset, void *data, unsigned int bytes)
{
    return set(function, offset, data, bytes);
}

static CUresult launch(CUfunction function, int width, int height, CUstream stream)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_FUNCTION, function))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (width < 1 || height < 1 || !function->legacy)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    const unsigned grid[3] = {(unsigned)width, (unsigned)height, 1};
    size_t bytes = function->legacy->param_bytes;
    void *extra[] = {(void *)1, function->legacy->params, (void *)2, &bytes, NULL}; /* buffer, size, end */
    const struct sg_launch_options plain = {.is_cooperative = 0};
    return sg_leave(sg_function_launch(context, function, grid, function->legacy->block, function->legacy->shared_bytes,
                                       stream, NULL, extra, &plain));
}

API CUresult cuLaunch(CUfunction function)
{
    return launch(function, 1, 1, NULL);
}

API CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    return launch(function, width, height, NULL);
}

API CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    return launch(function, width, height, stream);
}
