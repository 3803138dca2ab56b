/* Events: recording, waiting, queries and elapsed time. */
#include "softgpu/driver/internal.h"

CUresult sg_event_make(CUcontext context, unsigned flags, CUevent *made)
{
    if (!context->spare_count) { /* in batches, because programs create hundreds of events */
        struct sg_request request = {.kind = SG_EVENTS_CREATE, .a = context->model};
        struct sg_reply reply;
        if (sg_call(&context->device->connection, &request, &reply) < 0)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (reply.result != CT_DEVICE_OK)
            return sg_result(reply.result);
        for (uint32_t i = 0; i < reply.a && i < SG_EVENT_BATCH; i++)
            context->spare_events[context->spare_count++] = reply.batch[i];
    }
    CUevent event = sg_new(SG_EVENT);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->context = context;
    event->context_id = context->object.id;
    event->model = context->spare_events[--context->spare_count];
    event->flags = flags;
    event->is_shared = (flags & CU_EVENT_INTERPROCESS) != 0; /* earlier records count as well */
    *made = event;
    return CUDA_SUCCESS;
}

API CUresult cuEventCreate(CUevent *made, unsigned int flags)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    const unsigned valid = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!made || (flags & ~valid) || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(sg_event_make(context, flags, made));
}

/* Pending records and waits are unaffected: the model's event changes only when it is recorded again. */
void sg_event_end(CUevent event)
{
    CUcontext owner = event->context;
    const uint32_t capacity = sizeof owner->spare_events / sizeof owner->spare_events[0];
    int has_owner = sg_alive(SG_CONTEXT, owner) && owner->object.id == event->context_id;
    if (has_owner && owner->spare_count < capacity && !event->is_shared) {
        owner->spare_events[owner->spare_count++] = event->model;
    } else if (has_owner) { /* an opened event continues to exist in its own process */
        struct sg_request request = {.kind = SG_EVENT_DESTROY, .a = event->model};
        struct sg_reply reply;
        sg_call(&owner->device->connection, &request, &reply);
    }
    sg_delete(SG_EVENT, event);
}

API CUresult cuEventDestroy_v2(CUevent event)
{
    CUcontext context;
    CUresult result = sg_current() ? sg_enter_context(&context) : sg_enter(); /* allowed without a current context */
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
    if (stream->context_id != event->context_id &&
        sg_owner_context(stream->context) != sg_owner_context(event->context))
        return CUDA_ERROR_INVALID_HANDLE;
    /* Another process that observes the record must observe the memory written before it. */
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
    sg_call_lasts(event->context->device->costs.event_record_ns);
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
    return record(event, sg_per_thread_stream(stream), 0);
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    return record(event, stream, flags);
}

API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags)
{
    return record(event, sg_per_thread_stream(stream), flags);
}

CUresult sg_stream_wait_event(CUstream stream, CUevent event)
{
    if (!event->order && !event->is_shared)
        return CUDA_SUCCESS;
    /* Two devices have separate models without a common order, so the host waits. */
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
    int handled = 0;
    if (stream->capture || event->captured_by)
        result = sg_capture_wait(stream, event, (flags & CU_EVENT_WAIT_EXTERNAL) != 0, &handled);
    return sg_leave(handled || result != CUDA_SUCCESS ? result : sg_stream_wait_event(stream, event));
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    return wait_for(stream, event, flags);
}

API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
    return wait_for(sg_per_thread_stream(stream), event, flags);
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
    sg_call_lasts(event->context->device->costs.event_query_ns);
    result = sg_capture_event(event);
    return sg_leave(result == CUDA_SUCCESS ? sg_event_ready(event) : result);
}

API CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = enter_event(event);
    if (result != CUDA_SUCCESS)
        return result;
    result = sg_connection_status(&event->context->device->connection);
    if (result == CUDA_SUCCESS)
        result = sg_capture_event(event);
    return sg_leave(result == CUDA_SUCCESS ? sg_event_wait(event) : result);
}

static void set_instant(CUevent event, uint64_t at_ns)
{
    event->instant.order = event->order;
    event->instant.at_ns = at_ns;
}

static CUresult complete_both(CUevent start, CUevent end)
{
    CUresult result = sg_event_completed(start);
    return result == CUDA_SUCCESS ? sg_event_completed(end) : result;
}

/* One request returns both instants or when to ask again. None is sent if both are available locally. */
static CUresult read_instants(CUevent start, CUevent end)
{
    struct sg_connection *connection = &start->context->device->connection;
    for (;;) {
        struct sg_request request = {.kind = SG_EVENT_TIMES, .a = start->model, .b = end->model};
        struct sg_reply reply;
        CUresult result = sg_connection_status(connection);
        if (result != CUDA_SUCCESS)
            return result;
        sg_event_read_instant(start);
        sg_event_read_instant(end);
        if (start->instant.order == start->order && end->instant.order == end->order)
            return complete_both(start, end);
        int start_status = sg_event_local_status(start), end_status = sg_event_local_status(end);
        if (!start_status || !end_status)
            return CUDA_ERROR_NOT_READY;
        request.c = start->slot > end->slot ? start->slot : end->slot;
        if (sg_call(connection, &request, &reply) < 0)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (reply.result == CT_DEVICE_OK) {
            set_instant(start, reply.a);
            set_instant(end, reply.b);
            return complete_both(start, end);
        }
        if (reply.result != CT_DEVICE_NOT_READY)
            return sg_result(reply.result);
        if (start_status < 0 || end_status < 0) {
            if (end_status < 0 && !reply.retry && reply.a != CT_DEVICE_DONE)
                sg_event_set_prediction(end, reply.a, reply.c);
            return CUDA_ERROR_NOT_READY;
        }
        /* A late submission by another process delayed the event after its predicted instant. Wait for it. */
        result = sg_event_wait_server(start);
        if (result == CUDA_SUCCESS)
            result = sg_event_wait_server(end);
        if (result != CUDA_SUCCESS)
            return result;
    }
}

/* Return the instant of the event on the device's own clock, which drifts and has a resolution. */
static double device_ns(CUevent event)
{
    const struct sg_costs *costs = &event->context->device->costs;
    uint64_t at_ns = event->instant.at_ns;
    at_ns += (uint64_t)((unsigned __int128)at_ns * costs->clock_drift_ppb / 1000000000);
    return (double)(costs->event_resolution_ns ? at_ns - at_ns % costs->event_resolution_ns : at_ns);
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
    result = read_instants(start, end);
    if (result == CUDA_SUCCESS)
        *milliseconds = (float)((device_ns(end) - device_ns(start)) / 1e6);
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
