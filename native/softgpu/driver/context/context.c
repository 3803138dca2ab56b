/* Contexts: creation, the primary context of a device, and destruction. */
#include "softgpu/driver/internal.h"

#include <string.h>

CUresult sg_context_create(struct sg_device *device, unsigned flags, uint32_t sm_cap, CUcontext *made)
{
    struct sg_request request = {.kind = SG_CONTEXT_CREATE, .a = sg_mps_cap(device, sm_cap)};
    struct sg_reply reply;
    if (!device->address_space.start && sg_address_space_open(&device->address_space, device->config.memory_bytes) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (sg_call(&device->connection, &request, &reply) < 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (reply.result == SG_REFUSED)
        return (CUresult)reply.a;
    if (reply.result != CT_DEVICE_OK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t given = reply.batch[0];
    CUcontext context = sg_new(SG_CONTEXT);
    CUstream legacy = context ? sg_new(SG_STREAM) : NULL;
    if (!legacy) {
        request = (struct sg_request){.kind = SG_CONTEXT_DESTROY, .a = reply.a};
        if (context)
            sg_delete(SG_CONTEXT, context);
        sg_call(&device->connection, &request, &reply);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->device = device;
    context->model = (uint32_t)reply.a;
    context->sm_cap = given;
    context->flags = flags;
    context->api_version = SG_DRIVER_VERSION;
    context->users = 1;
    context->legacy = legacy;
    static const size_t limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};
    memcpy(context->limits, limits, sizeof limits);
    legacy->context = context;
    legacy->context_id = context->object.id;
    legacy->model = (uint32_t)reply.b;
    legacy->is_legacy = 1;
    *made = context;
    return CUDA_SUCCESS;
}

CUcontext sg_owner_context(CUcontext context)
{
    return context->green && context->device->primary ? context->device->primary : context;
}

static void end_code(CUcontext context)
{
    for (CUmodule module = sg_each(SG_MODULE, NULL); module; module = sg_each(SG_MODULE, module))
        if (module->context == context)
            sg_module_end(module);
}

void sg_context_destroy(CUcontext context)
{
    uint64_t id = context->object.id;
    struct sg_request request = {.kind = SG_CONTEXT_DESTROY, .a = context->model};
    struct sg_reply reply;
    /* The driver lets queued work finish. Without the wait, pending host functions would never run. */
    sg_context_wait(context);
    if (!sg_alive(SG_CONTEXT, context) || context->object.id != id)
        return; /* another thread destroyed it */
    sg_effects_drop_context(id);
    sg_call(&context->device->connection, &request, &reply);
    for (CUstream stream = sg_each(SG_STREAM, NULL); stream; stream = sg_each(SG_STREAM, stream))
        if (stream->context_id == id) {
            if (stream->capture)
                sg_capture_drop_stream(stream);
            sg_delete(SG_STREAM, stream);
        }
    for (CUevent event = sg_each(SG_EVENT, NULL); event; event = sg_each(SG_EVENT, event))
        if (event->context_id == id)
            sg_delete(SG_EVENT, event);
    end_code(context);
    sg_arrays_end(context);
    sg_memory_drop_context(context);
    sg_pools_trim_freed(); /* release what pools reserved for it */
    sg_delete(SG_CONTEXT, context);
}

static CUresult create(CUcontext *made, unsigned flags, CUdevice ordinal, const CUexecAffinityParam *params, int count)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    unsigned mode = flags & CU_CTX_SCHED_MASK;
    uint32_t sm_cap = 0;
    if (!made || (flags & ~(unsigned)CU_CTX_FLAGS_MASK) || (mode & (mode - 1)) || count < 0 || (count && !params))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    for (int i = 0; i < count; i++) {
        if (params[i].type != 0 || !sg_mps.is_client) /* SM affinity is available only under MPS */
            return sg_leave(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        sm_cap = params[i].param.smCount.val;
        if (!sm_cap || sm_cap > device->config.sm_count)
            return sg_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUcontext context = NULL;
    result = sg_context_create(device, flags, sm_cap, &context);
    sg_leave(result);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuCtxPushCurrent_v2(context);
    *made = context;
    return result;
}

API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    return create(context, flags, device, NULL, 0);
}

API CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params, int count, unsigned int flags,
                            CUdevice device)
{
    return create(context, flags, device, params, count);
}

API CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
    if (params && params->cigParams)
        return CUDA_ERROR_NOT_SUPPORTED;
    return create(context, flags, device, params ? params->execAffinityParams : NULL,
                  params ? params->numExecAffinityParams : 0);
}

API CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_CONTEXT, context))
        return sg_leave(context ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT);
    if (context->is_primary || context->green)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    uint64_t id = context->object.id;
    sg_context_destroy(context);
    sg_context_pop_if_current(context, id);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
    CUcontext current;
    CUresult result = sg_enter_context(&current);
    if (result != CUDA_SUCCESS)
        return result;
    if (!context || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    current->users++;
    *context = current;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxDetach(CUcontext context)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_CONTEXT, context) || context->is_primary || context->green)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (--context->users == 0) {
        uint64_t id = context->object.id;
        sg_context_destroy(context);
        sg_context_pop_if_current(context, id);
    }
    return sg_leave(CUDA_SUCCESS);
}

CUresult sg_primary(struct sg_device *device, CUcontext *context)
{
    if (!device->primary) {
        CUresult result = sg_context_create(device, device->primary_flags, 0, &device->primary);
        if (result != CUDA_SUCCESS)
            return result;
        device->primary->is_primary = 1;
    }
    *context = device->primary;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    if (!context || !device)
        return sg_leave(context ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
    result = sg_connection_status(&device->connection);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    result = sg_primary(device, context);
    device->primary_users += result == CUDA_SUCCESS;
    return sg_leave(result);
}

static void end_primary(struct sg_device *device)
{
    CUcontext context = device->primary;
    device->primary = NULL;
    device->primary_users = 0;
    if (context)
        sg_context_destroy(context);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!device->primary_users)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (--device->primary_users == 0)
        end_primary(device);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    end_primary(device);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    unsigned mode = flags & CU_CTX_SCHED_MASK;
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) || (mode & (mode - 1)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_device *device = sg_device_at(ordinal);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!flags || !active)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = device->primary_flags;
    *active = device->primary != NULL;
    return sg_leave(CUDA_SUCCESS);
}

/* The variants of CUDA 4 to 10 take the same arguments. */
API CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    return cuDevicePrimaryCtxRelease_v2(ordinal);
}

API CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
    return cuDevicePrimaryCtxReset_v2(ordinal);
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}
