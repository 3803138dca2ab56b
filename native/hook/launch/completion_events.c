/* Events recorded after launches: as few as suffice, and queried only when their result is needed.
 *
 * The driver is never called with the session's lock held, and nothing is recorded during a capture. An event is
 * recorded only within a call that names the stream, because the stream may be destroyed at any other time. */
#define _GNU_SOURCE
#include "hook/launch/completion_events.h"

#include "hook/launch/capture_mode.h"
#include "hook/launch/gateway.h"

static int has_launches(const struct ct_batch *batch)
{
    return batch->launches || batch->unknown;
}

/* Reports the completion of all launches of a batch to the gate. */
static void confirm(struct ct_session *session, struct ct_batch *batch, uint64_t now_ns)
{
    struct ct_gate *gate = &session->gateway->gate;
    session->gateway->completions.outstanding -= batch->launches + batch->unknown;
    for (; batch->unknown; batch->unknown--)
        ct_gate_confirmed(gate, 0, now_ns);
    for (; batch->launches; batch->launches--) { /* each counts at least one nanosecond, and all together the sum */
        uint64_t part_ns = batch->launches > 1 ? 1 : batch->expect_ns;
        ct_gate_confirmed(gate, part_ns, now_ns);
        batch->expect_ns -= part_ns;
    }
}

/* Returns the entry of a stream, creating it if necessary; NULL if all entries are in use. */
static struct ct_stream_state *find_stream_state(struct ct_completions *completions, CUstream stream, int is_per_thread,
                                                 uint64_t now_ns)
{
    struct ct_stream_state *oldest = &completions->streams[0];
    uintptr_t thread = is_per_thread && !stream ? (uintptr_t)__builtin_thread_pointer() : 0;
    for (int i = 0; i < CT_TRACKED_STREAMS; i++) {
        struct ct_stream_state *stream_state = &completions->streams[i];
        if (stream_state->is_used && stream_state->stream == stream && stream_state->is_per_thread == is_per_thread &&
            stream_state->thread == thread)
            return stream_state;
        if (!stream_state->is_used || (oldest->is_used && stream_state->used_ns < oldest->used_ns))
            oldest = stream_state;
    }
    if (has_launches(&oldest->open)) /* all entries are in use: a launch without one is confirmed by its age */
        return NULL;
    *oldest = (struct ct_stream_state){.stream = stream, .is_per_thread = is_per_thread, .thread = thread, .is_used = 1, .used_ns = now_ns};
    return oldest;
}

int ct_completions_take_back(struct ct_session *session, const struct ct_launch_request *request)
{
    struct ct_completions *completions = &session->gateway->completions;
    struct ct_batch *open = &completions->streams[completions->last_stream_index].open;
    if (!open->launches || open->expect_ns < request->expect_ns)
        return 0;
    open->expect_ns -= request->expect_ns;
    open->launches--;
    completions->outstanding--;
    return 1;
}

/* Returns an entry for this context, with its event if it has one. If all entries belong to other contexts, one of
 * these is reused, and its event is returned to be destroyed. */
static struct ct_completion *take_completion(struct ct_completions *completions, CUcontext context,
                                             CUevent *stale_event)
{
    struct ct_completion *empty = NULL, *other = NULL;
    for (int i = 0; i < CT_COMPLETIONS; i++) {
        struct ct_completion *completion = &completions->slots[i];
        if (completion->state == CT_COMPLETION_SPARE && completion->context == context) {
            completion->state = CT_COMPLETION_TAKEN;
            return completion;
        }
        if (completion->state == CT_COMPLETION_EMPTY)
            empty = completion;
        else if (completion->state == CT_COMPLETION_SPARE)
            other = completion;
    }
    if (!empty && other) {
        *stale_event = other->event;
        empty = other;
    }
    if (empty)
        *empty = (struct ct_completion){.state = CT_COMPLETION_TAKEN, .context = context};
    return empty;
}

/* Records an event after what was launched into a stream. */
static void record_event_after(struct ct_session *session, struct ct_stream_state *stream_state)
{
    struct ct_completions *completions = &session->gateway->completions;
    CUstreamCaptureMode mode;
    int was_relaxed = ct_capture_relax(&mode);
    CUcontext context = ct_current_context();
    ct_lock(session);
    const unsigned generation = completions->generation;
    const CUstream stream = stream_state->stream;
    const int is_per_thread = stream_state->is_per_thread;
    CUevent stale_event = NULL;
    struct ct_completion *completion = context && has_launches(&stream_state->open)
        ? take_completion(completions, context, &stale_event)
        : NULL;
    if (completion) {
        completion->batch = stream_state->open;
        completion->stream_state = (int)(stream_state - completions->streams);
        stream_state->open = (struct ct_batch){0};
    }
    ct_unlock(session);
    if (stale_event)
        CT_NEXT(cuEventDestroy_v2)(stale_event);
    if (completion) {
        CUresult result = completion->event ? CUDA_SUCCESS
                                            : CT_NEXT(cuEventCreate)(&completion->event, CU_EVENT_DISABLE_TIMING);
        if (result == CUDA_SUCCESS)
            result = ct_record_event(completion->event, stream, is_per_thread);
        ct_lock(session);
        if (completions->generation != generation) { /* its context was destroyed meanwhile, and its event with it */
            *completion = (struct ct_completion){.state = CT_COMPLETION_EMPTY};
        } else if (result == CUDA_SUCCESS) {
            completion->state = CT_COMPLETION_WAITING;
            completions->queue[(completions->first + completions->count++) % CT_COMPLETIONS] =
                (uint8_t)(completion - completions->slots);
        } else if (result == CUDA_ERROR_INVALID_HANDLE) { /* the stream belongs to another context than the current one: no
                                                           * event will confirm it, its predicted length must do */
            confirm(session, &completion->batch, session->gateway->instant.last_ns);
            completion->state = completion->event ? CT_COMPLETION_SPARE : CT_COMPLETION_EMPTY;
        } else { /* undo, so that the next launch tries again */
            stream_state->open.expect_ns += completion->batch.expect_ns;
            stream_state->open.launches += completion->batch.launches;
            stream_state->open.unknown += completion->batch.unknown;
            completion->state = completion->event ? CT_COMPLETION_SPARE : CT_COMPLETION_EMPTY;
        }
        ct_unlock(session);
    }
    ct_capture_restore(was_relaxed, mode);
}

/* Clears the batches. The events stay in the queue until they are collected, and confirm nothing. */
static void clear_batches(struct ct_completions *completions)
{
    for (int i = 0; i < CT_TRACKED_STREAMS; i++)
        completions->streams[i].open = (struct ct_batch){0};
    for (int i = 0; i < CT_COMPLETIONS; i++)
        completions->slots[i].batch = (struct ct_batch){0};
    completions->outstanding = 0;
}

void ct_completions_note(struct ct_session *session, const struct ct_launch_request *request, CUstream stream,
                         int is_per_thread,
                   int may_record_event)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_completions *completions = &gateway->completions;
    const struct ct_gate *gate = &gateway->gate;
    ct_lock(session);
    const uint64_t now_ns = gateway->instant.last_ns, part_ns = gate->bound_ns / CT_COMPLETION_BOUND_DIVISOR;
    struct ct_stream_state *stream_state = find_stream_state(completions, stream, is_per_thread, now_ns);
    if (CT_UNLIKELY(gate->unconfirmed <= 1 && completions->outstanding))
        clear_batches(completions); /* the gate has reset its count, because for a while there was no higher-priority
                                  * tenant */
    if (!completions->outstanding)
        completions->ended_ns = now_ns;
    if (!stream_state) { /* no event will confirm it: it is confirmed at once, by its predicted length alone */
        ct_gate_confirmed(&gateway->gate, request->expect_ns, now_ns);
        ct_unlock(session);
        return;
    }
    if (completions->last_stream_index != (int)(stream_state - completions->streams)) {
        completions->last_stream_index = (int)(stream_state - completions->streams);
        completions->switched_ns = now_ns;
    }
    stream_state->used_ns = now_ns;
    stream_state->open.expect_ns += request->expect_ns;
    stream_state->open.launches += request->expect_ns != 0;
    stream_state->open.unknown += request->expect_ns == 0;
    completions->outstanding++;
    int is_due = stream_state->open.expect_ns >= part_ns || stream_state->open.unknown ||
        request->expect_ns >= CT_COMPLETION_LONG_NS ||
                 stream_state->open.launches >= CT_COMPLETION_SHARED_MAX ||
                     gate->unconfirmed_ns + request->expect_ns > gate->bound_ns ||
                 gate->is_ending || now_ns - completions->switched_ns < CT_COMPLETION_EXPIRY_NS;
    ct_unlock(session);
    /* An event must not show the completion of a launch that another thread has not submitted yet. */
    if (is_due && may_record_event && !load_relaxed(&session->captures) && !load_acquire(&gateway->is_leased))
        record_event_after(session, stream_state);
}

void ct_completions_watch(struct ct_session *session, CUstream stream, int is_per_thread)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_completions *completions = &gateway->completions;
    ct_lock(session);
    struct ct_stream_state *stream_state = find_stream_state(completions, stream, is_per_thread,
                                                             gateway->instant.last_ns);
    if (stream_state) {
        stream_state->used_ns = gateway->instant.last_ns;
        stream_state->open.unknown++;
        completions->outstanding++;
    }
    ct_unlock(session);
    if (stream_state && !load_relaxed(&session->captures))
        record_event_after(session, stream_state);
}

void ct_completions_close(struct ct_session *session, CUstream stream, int is_per_thread)
{
    struct ct_completions *completions = &session->gateway->completions;
    if (load_relaxed(&session->captures))
        return;
    ct_lock(session);
    struct ct_stream_state *stream_state = find_stream_state(completions, stream, is_per_thread,
                                                             session->gateway->instant.last_ns);
    int has_open = stream_state && has_launches(&stream_state->open) && !load_acquire(&session->gateway->is_leased);
    ct_unlock(session);
    if (has_open)
        record_event_after(session, stream_state);
}

/* Removes completed events from the front of the queue. Called with the lock held. */
static void remove_done(struct ct_completions *completions)
{
    while (completions->count &&
           completions->slots[completions->queue[completions->first]].state == CT_COMPLETION_DONE) {
        completions->slots[completions->queue[completions->first]].state = CT_COMPLETION_SPARE;
        completions->first = (completions->first + 1) % CT_COMPLETIONS;
        completions->count--;
    }
}

/* Confirms launches into streams that are no longer used, after which no event will be recorded. */
static void expire_old(struct ct_session *session, uint64_t now_ns)
{
    struct ct_gateway *gateway = session->gateway;
    for (int i = 0; i < CT_TRACKED_STREAMS; i++) {
        struct ct_stream_state *stream_state = &gateway->completions.streams[i];
        if (has_launches(&stream_state->open) && now_ns - stream_state->used_ns > CT_COMPLETION_EXPIRY_NS)
            confirm(session, &stream_state->open, now_ns);
    }
}

void ct_completions_collect(struct ct_session *session)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_completions *completions = &gateway->completions;
    uint32_t unready = 0; /* bit mask of streams */
    CUstreamCaptureMode mode;
    if (exchange_acquire(&completions->is_collecting, 1))
        return;
    int was_relaxed = ct_capture_relax(&mode);
    ct_lock(session);
    /* The queue only grows at its end meanwhile: only the collecting thread removes from its front. */
    const uint32_t first = completions->first, count = completions->count;
    for (uint32_t i = 0; i < count; i++) {
        struct ct_completion *completion = &completions->slots[completions->queue[(first + i) % CT_COMPLETIONS]];
        if (completion->state != CT_COMPLETION_WAITING || unready >> completion->stream_state & 1)
            continue;
        ct_unlock(session);
        CUresult result = CT_NEXT(cuEventQuery)(completion->event);
        ct_lock(session);
        if (result == CUDA_ERROR_NOT_READY) {
            unready |= UINT32_C(1) << completion->stream_state;
            continue;
        }
        /* An event whose query fails counts as completed; the program will get the error itself. */
        uint64_t now_ns = ct_instant_ns(&gateway->instant, &session->clock, ct_clock_ticks(&session->clock));
        completion->state = CT_COMPLETION_DONE;
        completions->ended_ns = now_ns;
        confirm(session, &completion->batch, now_ns);
    }
    remove_done(completions);
    uint64_t now_ns = ct_instant_ns(&gateway->instant, &session->clock, ct_clock_ticks(&session->clock));
    if (count && !completions->outstanding && !gateway->gate.must_ask)
        ct_gate_completed(&gateway->gate, now_ns);
    expire_old(session, now_ns);
    completions->collected_ns = now_ns;
    ct_unlock(session);
    ct_capture_restore(was_relaxed, mode);
    store_release(&completions->is_collecting, 0);
}

void ct_completions_all_ended(struct ct_session *session, uint64_t now_ns)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_completions *completions = &gateway->completions;
    clear_batches(completions);
    while (gateway->gate.unconfirmed)
        ct_gate_confirmed(&gateway->gate, gateway->gate.unconfirmed_ns, now_ns);
    completions->ended_ns = now_ns;
}

void ct_completions_drop(struct ct_session *session)
{
    struct ct_completions *completions = &session->gateway->completions;
    CUevent events[CT_COMPLETIONS];
    int count = 0;
    ct_lock_slow(&completions->is_collecting);
    ct_lock(session);
    completions->generation++;
    ct_completions_all_ended(session, session->gateway->instant.last_ns);
    completions->first = completions->count = 0;
    for (int i = 0; i < CT_COMPLETIONS; i++) {
        struct ct_completion *completion = &completions->slots[i];
        if (completion->state == CT_COMPLETION_TAKEN)
            continue; /* the thread that uses it checks the generation */
        if (completion->event)
            events[count++] = completion->event;
        *completion = (struct ct_completion){.state = CT_COMPLETION_EMPTY};
    }
    ct_unlock(session);
    for (int i = 0; i < count; i++)
        CT_NEXT(cuEventDestroy_v2)(events[i]);
    store_release(&completions->is_collecting, 0);
}
