/* Functions and kernels: names, attributes and parameters. A kernel of a library is a function without a context. */
#include "softgpu/driver/internal.h"
#include "softgpu/ptx/ptx.h"

static CUresult enter_function(const void *handle)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_alive(SG_FUNCTION, handle) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

#define ENTER(handle)                                                                                                  \
    CUresult result = enter_function(handle);                                                                          \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result

static CUresult get(const struct CUfunc_st *function, int attribute, int *value)
{
    const struct sg_kernel *k = function->kernel;
    uint32_t cluster[3] = {1, 1, 1};
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = (int)k->max_threads;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)k->shared_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        *value = (int)k->const_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)k->local_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = (int)k->registers;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *value = k->ptx_version;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = k->binary_version;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = (int)function->dynamic_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = function->carveout;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        *value = function->cluster_allowed;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        if (k->entry >= 0)
            sg_ptx_cluster(function->module->image.program, k->entry, cluster);
        *value = cluster[0] * cluster[1] * cluster[2] > 1
                     ? (int)cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH]
                     : 0;
        return CUDA_SUCCESS;
    default:
        if (attribute < 0 || attribute > 17)
            return CUDA_ERROR_INVALID_VALUE;
        *value = 0;
        return CUDA_SUCCESS;
    }
}

static CUresult set(struct CUfunc_st *function, int attribute, int value)
{
    const struct sg_device *device = function->module->context ? function->module->context->device : sg_device_at(0);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || !device ||
            (uint64_t)value + function->kernel->shared_bytes > device->config.shared_bytes_per_block_optin)
            return CUDA_ERROR_INVALID_VALUE;
        function->dynamic_bytes = (uint32_t)value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        function->carveout = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        function->cluster_allowed = value != 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult parameter(const struct sg_kernel *kernel, size_t index, size_t *offset, size_t *bytes)
{
    if (!offset || index >= kernel->param_count)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = kernel->param_offset[index];
    if (bytes)
        *bytes = kernel->param_bytes[index];
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    ENTER(function);
    return sg_leave(get(function, (int)attribute, value));
}

API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    ENTER(function);
    return sg_leave(set(function, (int)attribute, value));
}

API CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    ENTER(function);
    return sg_leave((int)config >= 0 && (int)config <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config)
{
    ENTER(function);
    return sg_leave((int)config >= 0 && (int)config <= 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuFuncGetName(const char **name, CUfunction function)
{
    ENTER(function);
    if (!name)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *name = function->kernel->name;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    ENTER(function);
    if (!module)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *module = function->module;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
    ENTER(function);
    return sg_leave(parameter(function->kernel, index, offset, bytes));
}

API CUresult cuFuncGetParamCount(CUfunction function, size_t *count)
{
    ENTER(function);
    if (!count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *count = function->kernel->param_count;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuFuncLoad(CUfunction function)
{
    ENTER(function);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    ENTER(function);
    if (!state)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *state = 1;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    ENTER(kernel);
    if (!function)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    CUcontext context = sg_current();
    if (!context)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    *function = (CUfunction)kernel;
    return sg_leave(sg_alive(SG_CONTEXT, context) ? sg_code_load(context, (*function)->module) : CUDA_SUCCESS);
}

API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    ENTER(kernel);
    if (!library)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *library = (CUlibrary)((CUfunction)kernel)->module;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    ENTER(kernel);
    if (!name)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *name = ((CUfunction)kernel)->kernel->name;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device)
{
    ENTER(kernel);
    if (!sg_device_at(device))
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    return sg_leave(get((CUfunction)kernel, (int)attribute, value));
}

API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
    ENTER(kernel);
    if (!sg_device_at(device))
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    return sg_leave(set((CUfunction)kernel, (int)attribute, value));
}

API CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device)
{
    ENTER(kernel);
    if (!sg_device_at(device))
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    return sg_leave((int)config >= 0 && (int)config <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes)
{
    ENTER(kernel);
    return sg_leave(parameter(((CUfunction)kernel)->kernel, index, offset, bytes));
}

API CUresult cuKernelGetParamCount(CUkernel kernel, size_t *count)
{
    ENTER(kernel);
    if (!count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *count = ((CUfunction)kernel)->kernel->param_count;
    return sg_leave(CUDA_SUCCESS);
}
