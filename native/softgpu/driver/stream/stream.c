/* Streams: the legacy stream, per-thread streams and streams of the program; synchronisation and queries. */
#include "softgpu/driver/internal.h"

/* The number of a thread, assigned when it first uses its default stream. Streams of ended threads are reused. */
static pthread_key_t ends;
static pthread_once_t ends_once = PTHREAD_ONCE_INIT;
static uint64_t threads;
static __thread uint64_t this_thread;
static __thread struct {
    uint64_t context_id;
    CUstream stream;
} last_used;

static void thread_ends(void *value)
{
    uint64_t thread = (uint64_t)(uintptr_t)value;
    if (sg_enter() != CUDA_SUCCESS)
        return;
    for (CUstream stream = sg_each(SG_STREAM, NULL); stream; stream = sg_each(SG_STREAM, stream))
        if (stream->thread == thread)
            stream->thread = 0;
    sg_leave(CUDA_SUCCESS);
}

static void prepare(void)
{
    pthread_key_create(&ends, thread_ends);
}

CUresult sg_stream_make(CUcontext context, unsigned flags, int priority, CUstream *made)
{
    struct sg_device *device = context->device;
    struct sg_request request = {
        .kind = SG_STREAM_CREATE,
        .a = context->model,
        .b = flags & CU_STREAM_NON_BLOCKING ? CT_STREAM_NONBLOCKING : CT_STREAM_BLOCKING,
    };
    struct sg_reply reply;
    if (priority < device->config.priority_greatest)
        priority = device->config.priority_greatest;
    if (priority > device->config.priority_least)
        priority = device->config.priority_least;
    request.c = (uint64_t)(int64_t)priority;
    if (sg_call(&device->connection, &request, &reply) < 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (reply.result != CT_DEVICE_OK)
        return sg_result(reply.result);
    CUstream stream = sg_new(SG_STREAM);
    if (!stream) {
        request = (struct sg_request){.kind = SG_STREAM_DESTROY, .a = reply.a};
        sg_call(&device->connection, &request, &reply);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->context = context;
    stream->context_id = context->object.id;
    stream->model = (uint32_t)reply.a;
    stream->flags = flags;
    stream->priority = priority;
    *made = stream;
    return CUDA_SUCCESS;
}

static CUstream per_thread(CUcontext context)
{
    uint64_t id = context->object.id;
    if (last_used.context_id == id && sg_alive(SG_STREAM, last_used.stream) &&
        last_used.stream->thread == this_thread && last_used.stream->context_id == id)
        return last_used.stream;
    CUstream found = NULL, spare = NULL;
    if (!this_thread) {
        pthread_once(&ends_once, prepare);
        this_thread = ++threads;
        pthread_setspecific(ends, (void *)(uintptr_t)this_thread);
    }
    for (CUstream stream = sg_each(SG_STREAM, NULL); stream && !found; stream = sg_each(SG_STREAM, stream)) {
        if (stream->context_id != id || !stream->is_per_thread)
            continue;
        if (stream->thread == this_thread)
            found = stream;
        else if (!stream->thread)
            spare = stream;
    }
    if (!found)
        found = spare;
    if (!found && sg_stream_make(context, CU_STREAM_DEFAULT, 0, &found) != CUDA_SUCCESS)
        return NULL;
    found->is_per_thread = 1;
    found->thread = this_thread;
    last_used.context_id = id;
    last_used.stream = found;
    return found;
}

CUstream sg_stream(CUcontext context, CUstream handle)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        return context->legacy;
    if (handle == CU_STREAM_PER_THREAD)
        return per_thread(context);
    return sg_alive(SG_STREAM, handle) ? handle : NULL;
}

void sg_stream_end(CUstream stream)
{
    struct sg_request request = {.kind = SG_STREAM_DESTROY, .a = stream->model};
    struct sg_reply reply;
    struct sg_connection *connection = &stream->context->device->connection;
    sg_delete(SG_STREAM, stream);
    sg_call(connection, &request, &reply);
}

/* Bound the number of retired streams of programs that never synchronise. */
void sg_stream_sweep(CUcontext context)
{
    for (CUstream stream = sg_each(SG_STREAM, NULL); stream; stream = sg_each(SG_STREAM, stream))
        if (stream->is_ending && stream->context_id == context->object.id && sg_stream_ready(stream) != CUDA_SUCCESS)
            break; /* later streams are rarely older */
}

void sg_stream_retire(CUstream stream)
{
    /* The handle becomes invalid, but cuCtxSynchronize waits for the stream until its work is complete. */
    if (stream->done_order < stream->order) {
        stream->is_ending = 1;
        sg_object_hide(stream);
    } else {
        sg_stream_end(stream);
    }
}

static CUresult create(CUstream *made, unsigned flags, int priority)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!made || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    sg_stream_sweep(context);
    return sg_leave(sg_stream_make(context, flags, priority, made));
}

API CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return create(stream, flags, 0);
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    return create(stream, flags, priority);
}

/* Only the handle ends; queued work runs and takes effect. */
API CUresult cuStreamDestroy_v2(CUstream stream)
{
    CUcontext context;
    CUresult result = sg_current() ? sg_enter_context(&context) : sg_enter(); /* allowed without a current context */
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_STREAM, stream) || stream->is_legacy || stream->is_per_thread)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture)
        sg_capture_drop_stream(stream);
    sg_stream_retire(stream);
    return sg_leave(CUDA_SUCCESS);
}

static CUresult enter_stream(CUstream *stream)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    *stream = sg_stream(context, *stream);
    return *stream ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

#define ENTER(stream)                                                                                                  \
    CUresult result = enter_stream(&stream);                                                                           \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result

/* Work under capture can be neither waited for nor queried. */
static CUresult check_capture(CUstream stream)
{
    if (stream->capture)
        return sg_capture_refuse(stream);
    return stream->is_legacy ? sg_capture_implicit(stream) : CUDA_SUCCESS;
}

API CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER(stream);
    result = check_capture(stream);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    if (stream->is_legacy) /* it is ordered after the work of all blocking streams */
        for (CUstream other = sg_each(SG_STREAM, NULL); other; other = sg_each(SG_STREAM, other))
            if (other->context_id == stream->context_id && !(other->flags & CU_STREAM_NON_BLOCKING)) {
                result = sg_stream_wait(other);
                if (result != CUDA_SUCCESS)
                    return sg_leave(result);
            }
    return sg_leave(sg_stream_wait(stream));
}

API CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return cuStreamSynchronize(sg_per_thread_stream(stream));
}

API CUresult cuStreamQuery(CUstream stream)
{
    ENTER(stream);
    result = check_capture(stream);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    if (stream->is_legacy)
        for (CUstream other = sg_each(SG_STREAM, NULL); other; other = sg_each(SG_STREAM, other))
            if (other->context_id == stream->context_id && !(other->flags & CU_STREAM_NON_BLOCKING)) {
                result = sg_stream_ready(other);
                if (result != CUDA_SUCCESS)
                    return sg_leave(result);
            }
    return sg_leave(sg_stream_ready(stream));
}

API CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return cuStreamQuery(sg_per_thread_stream(stream));
}

API CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
    ENTER(stream);
    if (!flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = stream->flags;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int *flags)
{
    return cuStreamGetFlags(sg_per_thread_stream(stream), flags);
}

API CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    ENTER(stream);
    if (!priority)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *priority = stream->priority;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority)
{
    return cuStreamGetPriority(sg_per_thread_stream(stream), priority);
}

API CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
    ENTER(stream);
    if (!id)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *id = stream->object.id;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id)
{
    return cuStreamGetId(sg_per_thread_stream(stream), id);
}

API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    ENTER(stream);
    if (!context)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *context = stream->context;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context)
{
    return cuStreamGetCtx(sg_per_thread_stream(stream), context);
}

API CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    ENTER(stream);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *device = stream->context->device->ordinal;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *device)
{
    return cuStreamGetDevice(sg_per_thread_stream(stream), device);
}
