/* Green contexts: partitions of a device's SMs, and contexts of the model with that number of SMs. */
#include "softgpu/driver/context/green.h"

#include <string.h>

enum { MAX_SMS = 1023, MAGIC = 0x736d7331 };

/* Private data in the padding of a resource. */
struct origin {
    uint32_t magic;
    int32_t device;
    uint64_t split; /* the split that created it; 0: none, so it can be split */
};

/* A descriptor is an address in this array. It encodes a device and a number of SMs and needs no release. */
static const char descriptors[SG_MAX_DEVICES][MAX_SMS + 1];

/* The minimum size of a partition and its granularity by architecture, from the chapter on green contexts of NVIDIA's
 * driver API documentation. */
static void partition_size(const struct sg_device *device, unsigned flags, unsigned *min_sms, unsigned *step)
{
    static const struct {
        unsigned min_sms, step;
    } sizes[] = {[6] = {1, 1}, [7] = {2, 2}, [8] = {4, 2}, [9] = {8, 8}};
    unsigned major = device->config.compute_major;
    major = major < 6 ? 6 : major > 9 ? 9 : major;
    *min_sms = sizes[major].min_sms;
    *step = sizes[major].step;
    if (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING)
        *min_sms = *step = major == 6 ? 1 : 2;
}

static struct origin origin_of(const CUdevResource *resource)
{
    struct origin origin;
    memcpy(&origin, resource->_internal_padding, sizeof origin);
    return origin;
}

static void fill(CUdevResource *resource, const struct sg_device *device, unsigned count, uint64_t split)
{
    struct origin origin = {MAGIC, device->ordinal, split};
    memset(resource, 0, sizeof *resource);
    if (!count)
        return; /* no type: no SMs remain */
    resource->type = CU_DEV_RESOURCE_TYPE_SM;
    memcpy(resource->_internal_padding, &origin, sizeof origin);
    resource->sm.smCount = count;
    partition_size(device, 0, &resource->sm.minSmPartitionSize, &resource->sm.smCoscheduledAlignment);
}

/* An MPS client can partition only its share of the device. */
static unsigned usable(const struct sg_device *device)
{
    return device->sm_cap ? device->sm_cap : device->config.sm_count;
}

/* Succeed if the resource was filled in by this library. */
static CUresult check(const CUdevResource *resource, struct sg_device **device)
{
    if (resource->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    struct origin origin = origin_of(resource);
    *device = origin.magic == MAGIC ? sg_device_at(origin.device) : NULL;
    return *device && resource->sm.smCount && resource->sm.smCount <= usable(*device)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_resource(CUdevResource *resource, CUdevResourceType type, const struct sg_device *device,
                             unsigned count)
{
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    fill(resource, device, count, 0);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *resource, CUdevResourceType type)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    const struct sg_device *device = sg_device_at(ordinal);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    return sg_leave(get_resource(resource, type, device, usable(device)));
}

API CUresult cuCtxGetDevResource(CUcontext context, CUdevResource *resource, CUdevResourceType type)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_CONTEXT, context))
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    return sg_leave(get_resource(resource, type, context->device, sg_context_sms(context)));
}

static CUresult split(CUdevResource *parts, unsigned *part_count, const CUdevResource *input, CUdevResource *remaining,
                      unsigned flags, unsigned wanted)
{
    struct sg_device *device;
    const unsigned valid =
        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    if (!part_count || !input || (flags & ~valid) || (parts && !*part_count))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check(input, &device);
    if (result != CUDA_SUCCESS)
        return result;
    unsigned whole = input->sm.smCount, min_sms, step;
    if (origin_of(input).split)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (wanted > whole ||
        ((flags & CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE) && device->config.compute_major < 9))
        return CUDA_ERROR_INVALID_VALUE;
    partition_size(device, flags, &min_sms, &step);
    unsigned size = wanted > min_sms ? (wanted + step - 1) / step * step : min_sms, max_parts = whole / size;
    if (!max_parts)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned made = parts && *part_count < max_parts ? *part_count : max_parts;
    uint64_t number = sg_next_id();
    CUdevResource remainder;
    fill(&remainder, device, whole - made * size, number);
    for (unsigned i = 0; parts && i < made; i++)
        fill(&parts[i], device, size, number);
    *part_count = made;
    if (remaining)
        *remaining = remainder;
    return CUDA_SUCCESS;
}

API CUresult cuDevSmResourceSplitByCount(CUdevResource *parts, unsigned int *part_count, const CUdevResource *input,
                                         CUdevResource *remaining, unsigned int flags, unsigned int wanted)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(split(parts, part_count, input, remaining, flags, wanted));
}

/* Several partitions of one split can be combined; partitions of different splits might overlap. */
static CUresult describe(CUdevResourceDesc *made, const CUdevResource *resources, unsigned count)
{
    struct sg_device *device = NULL;
    uint64_t total = 0;
    if (!made || !resources || !count || count > MAX_SMS)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        CUresult result = check(&resources[i], &device);
        if (result != CUDA_SUCCESS)
            return result;
        struct origin one = origin_of(&resources[i]), first = origin_of(&resources[0]);
        if (one.device != first.device || one.split != first.split || (i && !one.split))
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        total += resources[i].sm.smCount;
    }
    if (total > usable(device) || total > MAX_SMS)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    *made = (CUdevResourceDesc)(uintptr_t)&descriptors[device->ordinal][total];
    return CUDA_SUCCESS;
}

API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *made, CUdevResource *resources, unsigned int count)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_leave(describe(made, resources, count));
}

/* The green context holds a reference to the primary context, which owns its allocations. */
static CUresult create(CUgreenCtx *made, uint32_t count, struct sg_device *device)
{
    CUcontext primary;
    CUresult result = sg_primary(device, &primary);
    if (result != CUDA_SUCCESS)
        return result;
    CUgreenCtx green = sg_new(SG_GREEN);
    if (!green)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = sg_context_create(device, device->primary_flags, count, &green->context);
    if (result != CUDA_SUCCESS) {
        sg_delete(SG_GREEN, green);
        return result;
    }
    device->primary_users++;
    green->context_id = green->context->object.id;
    green->primary_id = primary->object.id;
    green->context->green = green;
    *made = green;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxCreate(CUgreenCtx *made, CUdevResourceDesc descriptor, CUdevice ordinal, unsigned int flags)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    uintptr_t offset = (uintptr_t)descriptor - (uintptr_t)descriptors;
    struct sg_device *device = sg_device_at(ordinal);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!made || flags != CU_GREEN_CTX_DEFAULT_STREAM || offset >= sizeof descriptors ||
        offset / (MAX_SMS + 1) != (uintptr_t)ordinal || !(offset % (MAX_SMS + 1)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(create(made, (uint32_t)(offset % (MAX_SMS + 1)), device));
}

static CUresult enter_green(CUgreenCtx green)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_alive(SG_GREEN, green) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

#define ENTER(green)                                                                                                   \
    CUresult result = enter_green(green);                                                                              \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result

API CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    ENTER(green);
    uint64_t id = green->context_id, primary_id = green->primary_id;
    CUcontext context = green->context;
    const struct sg_device *device = context->device;
    /* Before the wait in sg_context_destroy(), so that no other thread can use the handle. */
    sg_delete(SG_GREEN, green);
    sg_context_destroy(context);
    sg_context_pop_if_current(context, id);
    /* A primary context created after a reset is not held by this green context. */
    int is_kept = device->primary && device->primary->object.id == primary_id;
    sg_leave(CUDA_SUCCESS);
    return is_kept ? cuDevicePrimaryCtxRelease_v2(device->ordinal) : CUDA_SUCCESS;
}

API CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    ENTER(green);
    if (!context)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *context = green->context;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type)
{
    ENTER(green);
    return sg_leave(get_resource(resource, type, green->context->device, sg_context_sms(green->context)));
}

API CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id)
{
    ENTER(green);
    if (!id)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *id = green->object.id;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority)
{
    ENTER(green);
    if (!stream || flags != CU_STREAM_NON_BLOCKING)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(sg_stream_make(green->context, flags, priority, stream));
}

CUresult sg_stream_contexts(CUstream stream, CUcontext *ordinary, CUgreenCtx *green)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    stream = sg_stream(context, stream);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!ordinary && !green)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (ordinary)
        *ordinary = sg_owner_context(stream->context);
    if (green)
        *green = stream->context->green;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green)
{
    return sg_stream_contexts(stream, NULL, green);
}

/* Every current stream of the context waits for the event. The lock is held. */
static CUresult all_wait(CUcontext context, CUevent event)
{
    CUresult result = CUDA_SUCCESS;
    if (event->captured_by) {
        sg_capture_event(event);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    for (CUstream stream = sg_each(SG_STREAM, NULL); stream && result == CUDA_SUCCESS;
         stream = sg_each(SG_STREAM, stream))
        if (stream->context_id == context->object.id && stream->object.alive == 1)
            result = sg_stream_wait_event(stream, event);
    return result;
}

/* The default stream waits for all other streams, and the event is recorded behind that. */
static CUresult record_all(CUcontext context, CUevent event)
{
    CUresult result = CUDA_SUCCESS;
    if (sg_owner_context(event->context) != sg_owner_context(context))
        return CUDA_ERROR_INVALID_HANDLE;
    for (CUstream stream = sg_each(SG_STREAM, NULL); stream && result == CUDA_SUCCESS;
         stream = sg_each(SG_STREAM, stream)) {
        if (stream->context_id != context->object.id || stream == context->legacy ||
            stream->done_order >= stream->order)
            continue;
        result = sg_event_record(event, stream);
        if (result == CUDA_SUCCESS)
            result = sg_stream_wait_event(context->legacy, event);
    }
    return result == CUDA_SUCCESS ? sg_event_record(event, context->legacy) : result;
}

static CUresult with_event(CUcontext context, CUevent event, CUresult (*action)(CUcontext, CUevent))
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_CONTEXT, context))
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!sg_alive(SG_EVENT, event))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    result = sg_capture_context(context); /* this concerns all streams of the context, including captured ones */
    return sg_leave(result == CUDA_SUCCESS ? action(context, event) : result);
}

API CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
    return with_event(context, event, record_all);
}

API CUresult cuCtxWaitEvent(CUcontext context, CUevent event)
{
    return with_event(context, event, all_wait);
}

API CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event)
{
    ENTER(green);
    CUcontext context = green->context;
    sg_leave(CUDA_SUCCESS);
    return with_event(context, event, record_all);
}

API CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event)
{
    ENTER(green);
    CUcontext context = green->context;
    sg_leave(CUDA_SUCCESS);
    return with_event(context, event, all_wait);
}
