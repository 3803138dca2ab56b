/* Events: marks in a stream that others wait for, ask about and measure time between. */
#include "softgpu/face.h"

CUresult sg_event_make(CUcontext context, unsigned flags, CUevent *made)
{
    if (!context->spare_count) { /* a batch at a time: programs make events by the hundred */
        struct sg_request request = {.kind = SG_EVENTS_CREATE, .a = context->model};
        struct sg_reply reply;
        if (sg_ask(&context->device->link, &request, &reply) < 0)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (reply.result != CT_DEVICE_OK)
            return sg_result(reply.result);
        for (uint32_t i = 0; i < reply.a && i < SG_EVENT_BATCH; i++)
            context->spare_events[context->spare_count++] = reply.batch[i];
    }
    CUevent event = sg_make(SG_EVENT);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->context = context;
    event->context_id = context->object.id;
    event->model = context->spare_events[--context->spare_count];
    event->flags = flags;
    event->is_shared = (flags & CU_EVENT_INTERPROCESS) != 0; /* records made before it is handed on count, too */
    *made = event;
    return CUDA_SUCCESS;
}

API CUresult cuEventCreate(CUevent *made, unsigned int flags)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!made || (flags & ~known) || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(sg_event_make(context, flags, made));
}

/* A record or wait that is still queued keeps its meaning: the model's event is only renamed when recorded again. */
void sg_event_end(CUevent event)
{
    CUcontext home = event->context;
    const uint32_t room = sizeof home->spare_events / sizeof home->spare_events[0];
    int has_home = sg_alive(SG_CONTEXT, home) && home->object.id == event->context_id;
    if (has_home && home->spare_count < room && !event->is_shared) {
        home->spare_events[home->spare_count++] = event->model;
    } else if (has_home) { /* one that was opened here goes on where it is from */
        struct sg_request request = {.kind = SG_EVENT_DESTROY, .a = event->model};
        struct sg_reply reply;
        sg_ask(&home->device->link, &request, &reply);
    }
    sg_unmake(SG_EVENT, event);
}

API CUresult cuEventDestroy_v2(CUevent event)
{
    CUcontext context;
    CUresult result = sg_current() ? sg_enter_context(&context) : sg_enter(); /* it can be done after the last pop */
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_EVENT, event))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    sg_event_end(event);
    return sg_leave(CUDA_SUCCESS);
}

CUresult sg_event_record(CUevent event, CUstream stream)
{
    struct sg_slot slot = {.kind = SG_SLOT_RECORD, .value = event->model};
    if (stream->context_id != event->context_id && sg_home(stream->context) != sg_home(event->context))
        return CUDA_ERROR_INVALID_HANDLE;
    /* Another process that sees the record must see the memory written before it. */
    CUresult result = event->is_shared ? sg_host_barrier(stream) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = sg_submit(stream, &slot);
    if (result != CUDA_SUCCESS)
        return result;
    event->order = stream->order;
    event->slot = stream->slot;
    event->stream = stream;
    event->stream_id = stream->object.id;
    event->captured_by = 0;
    if (sg_effects_hosts()) {
        struct sg_effect effect = {.kind = SG_EFFECT_RECORD, .event.event_id = event->object.id};
        result = sg_effect_add(stream, &effect);
    }
    return result;
}

static CUresult record(CUevent event, CUstream handle, unsigned flags)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!sg_alive(SG_EVENT, event) || !stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (stream->capture)
        return sg_leave(sg_capture_record(stream, event, (flags & CU_EVENT_RECORD_EXTERNAL) != 0));
    return sg_leave(sg_event_record(event, stream));
}

API CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return record(event, stream, 0);
}

API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return record(event, sg_twin(stream), 0);
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    return record(event, stream, flags);
}

API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags)
{
    return record(event, sg_twin(stream), flags);
}

CUresult sg_event_hold(CUstream stream, CUevent event)
{
    if (!event->order && !event->is_shared)
        return CUDA_SUCCESS;
    /* Two devices have two models and no common order: the host waits in the stream's stead. */
    if (stream->context->device != event->context->device)
        return sg_event_wait(event);
    struct sg_slot slot = {.kind = SG_SLOT_WAIT, .value = event->model};
    CUresult result = sg_submit(stream, &slot);
    if (result == CUDA_SUCCESS && sg_effects_hosts()) {
        struct sg_effect effect = {.kind = SG_EFFECT_WAIT, .event.event_id = event->object.id};
        result = sg_effect_add(stream, &effect);
    }
    return result;
}

static CUresult wait_for(CUstream handle, CUevent event, unsigned flags)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!sg_alive(SG_EVENT, event) || !stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    int taken = 0;
    if (stream->capture || event->captured_by)
        result = sg_capture_wait(stream, event, (flags & CU_EVENT_WAIT_EXTERNAL) != 0, &taken);
    return sg_leave(taken || result != CUDA_SUCCESS ? result : sg_event_hold(stream, event));
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    return wait_for(stream, event, flags);
}

API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
    return wait_for(sg_twin(stream), event, flags);
}

static CUresult enter_event(CUevent event)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_alive(SG_EVENT, event) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

API CUresult cuEventQuery(CUevent event)
{
    CUresult result = enter_event(event);
    if (result != CUDA_SUCCESS)
        return result;
    result = sg_capture_event(event);
    return sg_leave(result == CUDA_SUCCESS ? sg_event_ready(event) : result);
}

API CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = enter_event(event);
    if (result != CUDA_SUCCESS)
        return result;
    result = sg_trouble(&event->context->device->link);
    if (result == CUDA_SUCCESS)
        result = sg_capture_event(event);
    return sg_leave(result == CUDA_SUCCESS ? sg_event_wait(event) : result);
}

static void learn(CUevent event, uint64_t at_ns)
{
    event->instant.order = event->order;
    event->instant.at_ns = at_ns;
}

static CUresult see_both(CUevent start, CUevent end)
{
    CUresult result = sg_event_seen(start);
    return result == CUDA_SUCCESS ? sg_event_seen(end) : result;
}

/* One question tells the instants of both, or when to ask again; none is asked about what is known. */
static CUresult learn_instants(CUevent start, CUevent end)
{
    struct sg_link *link = &start->context->device->link;
    for (;;) {
        struct sg_request request = {.kind = SG_EVENT_TIMES, .a = start->model, .b = end->model};
        struct sg_reply reply;
        CUresult result = sg_trouble(link);
        if (result != CUDA_SUCCESS)
            return result;
        sg_event_look(start);
        sg_event_look(end);
        if (start->instant.order == start->order && end->instant.order == end->order)
            return see_both(start, end);
        int start_known = sg_event_known(start), end_known = sg_event_known(end);
        if (!start_known || !end_known)
            return CUDA_ERROR_NOT_READY;
        request.c = start->slot > end->slot ? start->slot : end->slot;
        if (sg_ask(link, &request, &reply) < 0)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (reply.result == CT_DEVICE_OK) {
            learn(start, reply.a);
            learn(end, reply.b);
            return see_both(start, end);
        }
        if (reply.result != CT_DEVICE_NOT_READY)
            return sg_result(reply.result);
        if (start_known < 0 || end_known < 0) {
            if (end_known < 0 && !reply.behind && reply.a != CT_DEVICE_DONE)
                sg_event_foresaw(end, reply.a, reply.c);
            return CUDA_ERROR_NOT_READY;
        }
        /* This process slept until the projected instant and a late submission of another moved it: wait for it too. */
        result = sg_event_await(start);
        if (result == CUDA_SUCCESS)
            result = sg_event_await(end);
        if (result != CUDA_SUCCESS)
            return result;
    }
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    CUresult result = enter_event(start);
    if (result != CUDA_SUCCESS)
        return result;
    if (!milliseconds)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sg_alive(SG_EVENT, end) || !start->order || !end->order || start->context->device != end->context->device ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (start->captured_by || end->captured_by)
        return sg_leave(CUDA_ERROR_CAPTURED_EVENT);
    result = learn_instants(start, end);
    if (result == CUDA_SUCCESS)
        *milliseconds = (float)((double)(int64_t)(end->instant.at_ns - start->instant.at_ns) / 1e6);
    return sg_leave(result);
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return elapsed(milliseconds, start, end);
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    return elapsed(milliseconds, start, end);
}
