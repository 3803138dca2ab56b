/* Properties of contexts, and settings that a real driver accepts and that have no effect on this device. */
#include "softgpu/driver/internal.h"

API CUresult cuCtxGetDevice(CUdevice *device)
{
    SG_ENTER(context);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *device = context->device->ordinal;
    return sg_leave(CUDA_SUCCESS);
}

/* In calls that name a context, NULL means the current one. */
static CUresult enter_named(CUcontext *context)
{
    CUcontext current;
    if (!*context) {
        CUresult result = sg_enter_context(&current);
        *context = current;
        return result;
    }
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_alive(SG_CONTEXT, *context) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_CONTEXT);
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    CUresult result = enter_named(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *device = context->device->ordinal;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxSynchronize(void)
{
    SG_ENTER(context);
    CUresult allowed = sg_capture_context(context);
    return sg_leave(allowed == CUDA_SUCCESS ? sg_context_wait(context) : allowed);
}

API CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CUresult result = enter_named(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUresult allowed = sg_capture_context(context);
    return sg_leave(allowed == CUDA_SUCCESS ? sg_context_wait(context) : allowed);
}

API CUresult cuCtxGetFlags(unsigned int *flags)
{
    SG_ENTER(context);
    if (!flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = context->flags;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxSetFlags(unsigned int flags)
{
    SG_ENTER(context);
    unsigned mode = flags & CU_CTX_SCHED_MASK;
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) || (mode & (mode - 1)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    context->flags = flags;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CUresult result = enter_named(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!id)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *id = context->object.id;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
    CUresult result = enter_named(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!version)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *version = context->api_version;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    SG_ENTER(context);
    if (limit < 0 || limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
        return sg_leave(limit == 7 ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE);
    context->limits[limit] = value;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    SG_ENTER(context);
    if (!value || limit < 0 || limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
        return sg_leave(value && limit == 7 ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE);
    *value = context->limits[limit];
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
    SG_ENTER(context);
    if (!config)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *config = context->cache_config;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    SG_ENTER(context);
    if ((int)config < 0 || (int)config > 3)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    context->cache_config = (int)config;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
    SG_ENTER(context);
    if (!config)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *config = context->shared_config;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    SG_ENTER(context);
    if ((int)config < 0 || (int)config > 2)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    context->shared_config = (int)config;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    SG_ENTER(context);
    if (least)
        *least = context->device->config.priority_least;
    if (greatest)
        *greatest = context->device->config.priority_greatest;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxResetPersistingL2Cache(void)
{
    SG_ENTER(context);
    (void)context;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetExecAffinity(CUexecAffinityParam *param, CUexecAffinityType type)
{
    SG_ENTER(context);
    if (!param)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (type != 0)
        return sg_leave(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    param->type = type;
    param->param.smCount.val = sg_context_sms(context);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    SG_ENTER(context);
    if (!sg_alive(SG_CONTEXT, peer))
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (peer->device == context->device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    uint32_t bit = UINT32_C(1) << peer->device->ordinal;
    if (context->peers & bit)
        return sg_leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    context->peers |= bit;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    SG_ENTER(context);
    if (!sg_alive(SG_CONTEXT, peer))
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    uint32_t bit = UINT32_C(1) << peer->device->ordinal;
    if (!(context->peers & bit))
        return sg_leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    context->peers &= ~bit;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuProfilerStart(void)
{
    SG_ENTER(context);
    (void)context;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuProfilerStop(void)
{
    SG_ENTER(context);
    (void)context;
    return sg_leave(CUDA_SUCCESS);
}
