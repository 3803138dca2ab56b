/* Wait for the device: request the predicted end, sleep until then, and ask again only if something was submitted. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 60000,               /* a sleeper wakes about 30 us late, so it wakes this early and polls the clock */
    EARLY_NS = 150000,             /* lead before the end at which a longer wait checks whether the projection holds */
    LIVENESS_CHECK_NS = 500000000, /* the longest sleep without a check that the server lives */
};

static void futex_wait_until(struct sg_connection *connection, uint32_t wake, uint64_t at_ns)
{
    static __thread int slack_set;
    if (!slack_set) {
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
        slack_set = 1;
    }
    struct timespec until = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)};
    syscall(SYS_futex, &connection->ring->wake, FUTEX_WAIT_BITSET, wake, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

void sg_wake(struct sg_connection *connection)
{
    atomic_fetch_add(&connection->ring->wake, 1);
    syscall(SYS_futex, &connection->ring->wake, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static int is_dead(struct sg_connection *connection)
{
    struct pollfd poll_fd = {.fd = connection->socket, .events = POLLRDHUP};
    return connection->lost || (poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)));
}

/* The lock is not held while the thread sleeps in the futex, so signal handlers can run. */
static void wait_while_held(struct sg_connection *connection)
{
    const struct timespec timeout = {.tv_nsec = LIVENESS_CHECK_NS};
    while (!connection->lost && atomic_load(&connection->ring->held)) {
        sg_unlock();
        syscall(SYS_futex, &connection->ring->held, FUTEX_WAIT, 1, &timeout, NULL, 0);
        int is_gone = is_dead(connection);
        sg_relock();
        connection->lost |= is_gone;
    }
}

void sg_wait_while_held(void)
{
    /* Start again with the first device, because the server may have locked it in the meantime. */
    for (int i = 0; i < sg_device_count; i++)
        if (atomic_load_explicit(&sg_devices[i].connection.ring->held, memory_order_relaxed) &&
            !sg_devices[i].connection.lost) {
            wait_while_held(&sg_devices[i].connection);
            i = -1;
        }
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleep until the instant, a change of the wake word or the death of the server. The lock is not held. */
void sg_sleep_until(struct sg_connection *connection, uint32_t wake, uint64_t at_ns, int may_spin)
{
    uint64_t spin_ns = may_spin ? SPIN_NS : 0;
    for (;;) {
        uint64_t now_ns = sg_clock_ns();
        if (now_ns >= at_ns || atomic_load_explicit(&connection->ring->wake, memory_order_acquire) != wake)
            return;
        uint64_t remaining_ns = at_ns - now_ns;
        if (remaining_ns <= spin_ns) {
            relax();
        } else if (remaining_ns - spin_ns <= LIVENESS_CHECK_NS) {
            futex_wait_until(connection, wake, at_ns - spin_ns);
        } else {
            futex_wait_until(connection, wake, now_ns + LIVENESS_CHECK_NS);
            if (is_dead(connection)) {
                connection->lost = 1;
                return;
            }
        }
    }
}

static int is_fresh(const struct sg_query *query)
{
    return atomic_load_explicit(&query->device->connection.bulletin->submissions, memory_order_acquire) == query->count;
}

CUresult sg_project(struct sg_query *query)
{
    struct sg_connection *connection = &query->device->connection;
    struct sg_request request = {.kind = SG_PROJECT, .a = query->target, .b = query->number, .c = query->slot};
    struct sg_reply reply;
    CUresult status = sg_connection_status(connection);
    if (status != CUDA_SUCCESS)
        return status;
    if (sg_call(connection, &request, &reply) < 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (reply.result != CT_DEVICE_OK)
        return sg_result(reply.result);
    query->at_ns = reply.a;
    /* A retry never counts as fresh, so that it is requested again. */
    query->count = reply.retry ? reply.c - 1 : reply.c;
    query->done = !reply.retry && reply.a == CT_DEVICE_DONE;
    if (reply.b && query->target != SG_TARGET_HOST) {
        query->target = SG_TARGET_OP;
        query->number = reply.b;
    }
    return CUDA_SUCCESS;
}

CUresult sg_await(struct sg_query *query)
{
    struct sg_connection *connection = &query->device->connection;
    for (;;) {
        uint32_t wake = atomic_load_explicit(&connection->ring->wake, memory_order_acquire);
        CUresult result = sg_project(query);
        if (result != CUDA_SUCCESS || query->done)
            return result;
        sg_unlock();
        uint64_t now_ns = sg_clock_ns();
        int is_long = query->at_ns != CT_DEVICE_NEVER && query->at_ns > now_ns + 2 * EARLY_NS;
        /* Submissions by other clients usually delay the end. Check shortly before it to avoid waking too early. */
        if (is_long)
            sg_sleep_until(connection, wake, query->at_ns - EARLY_NS, 0);
        if (!is_long || is_fresh(query))
            sg_sleep_until(connection, wake, query->at_ns, query->may_spin);
        int done = sg_clock_ns() >= query->at_ns && is_fresh(query);
        sg_relock();
        if (connection->lost)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (done) {
            query->done = 1;
            sg_prediction_passed(connection, query->count);
            return CUDA_SUCCESS;
        }
    }
}

CUresult sg_stream_wait(CUstream stream)
{
    struct sg_device *device = stream->context->device;
    uint64_t order = stream->order, id = stream->object.id;
    if (sg_stream_local_status(stream) > 0) {
        stream->done_order = order;
    } else {
        struct sg_query query = {
            .device = device,
            .target = SG_TARGET_STREAM,
            .number = stream->model,
            .slot = stream->slot,
            .may_spin = !(stream->context->flags & CU_CTX_SCHED_BLOCKING_SYNC),
        };
        CUresult result = sg_await(&query);
        if (result != CUDA_SUCCESS)
            return result;
        if (stream->object.id == id && stream->done_order < order)
            stream->done_order = order;
    }
    sg_effects_apply(order);
    sg_pools_trim_freed();
    CUresult status = sg_connection_status(&device->connection);
    if (stream->object.id == id && stream->object.alive && stream->is_ending && stream->done_order >= stream->order)
        sg_stream_end(stream);
    return status;
}

CUresult sg_stream_ready(CUstream stream)
{
    struct sg_device *device = stream->context->device;
    CUresult status = sg_connection_status(&device->connection);
    if (status != CUDA_SUCCESS)
        return status;
    int local = sg_stream_local_status(stream);
    if (local < 0) {
        struct sg_query query = {
            .device = device, .target = SG_TARGET_STREAM, .number = stream->model, .slot = stream->slot};
        CUresult result = sg_project(&query);
        if (result != CUDA_SUCCESS)
            return result;
        stream->prediction = (struct sg_prediction){stream->order, query.at_ns, query.count};
        local = query.done;
    }
    if (!local)
        return CUDA_ERROR_NOT_READY;
    stream->done_order = stream->order;
    sg_effects_apply(stream->order);
    status = sg_connection_status(&device->connection);
    if (stream->is_ending)
        sg_stream_end(stream);
    return status;
}

/* Work before the record in the same stream is complete too; frees in the stream may depend on that. */
static void set_complete(CUevent event, uint64_t order)
{
    event->done_order = order;
    if (event->stream && event->stream->object.id == event->stream_id && event->stream->done_order < order)
        event->stream->done_order = order;
}

CUresult sg_event_wait_server(CUevent event)
{
    uint64_t order = event->order, id = event->object.id;
    struct sg_query query = {
        .device = event->context->device,
        .target = SG_TARGET_EVENT,
        .number = event->model,
        .slot = event->slot,
        .may_spin = !(event->flags & CU_EVENT_BLOCKING_SYNC),
    };
    CUresult result = sg_await(&query);
    if (result != CUDA_SUCCESS || event->object.id != id || event->done_order >= order)
        return result;
    if (event->order == order && !event->is_shared)
        set_complete(event, order);
    else
        event->done_order = order; /* it was recorded again, possibly in another stream or process */
    return result;
}

CUresult sg_event_wait(CUevent event)
{
    struct sg_device *device = event->context->device;
    uint64_t order = event->order;
    if (sg_event_local_status(event) > 0) {
        set_complete(event, order);
    } else {
        CUresult result = sg_event_wait_server(event);
        if (result != CUDA_SUCCESS)
            return result;
    }
    sg_effects_apply(order);
    sg_pools_trim_freed();
    return sg_connection_status(&device->connection);
}

void sg_event_set_prediction(CUevent event, uint64_t at_ns, uint64_t count)
{
    event->prediction = (struct sg_prediction){event->order, at_ns, count};
}

CUresult sg_event_completed(CUevent event)
{
    struct sg_device *device = event->context->device;
    if (!event->is_shared)
        set_complete(event, event->order);
    sg_effects_apply(event->order);
    return sg_connection_status(&device->connection);
}

CUresult sg_event_ready(CUevent event)
{
    struct sg_device *device = event->context->device;
    CUresult status = sg_connection_status(&device->connection);
    if (status != CUDA_SUCCESS)
        return status;
    int local = sg_event_local_status(event);
    if (local < 0) {
        struct sg_query query = {
            .device = device, .target = SG_TARGET_EVENT, .number = event->model, .slot = event->slot};
        CUresult result = sg_project(&query);
        if (result != CUDA_SUCCESS)
            return result;
        sg_event_set_prediction(event, query.at_ns, query.count);
        local = query.done;
    }
    return local ? sg_event_completed(event) : CUDA_ERROR_NOT_READY;
}

CUresult sg_context_wait(CUcontext context)
{
    uint64_t id = context->object.id, last = 0;
    for (CUstream stream = sg_each(SG_STREAM, NULL); stream; stream = sg_each(SG_STREAM, stream)) {
        if (stream->context_id != id)
            continue;
        last = stream->order > last ? stream->order : last;
        if (stream->done_order >= stream->order)
            continue;
        CUresult result = sg_stream_wait(stream);
        if (result != CUDA_SUCCESS)
            return result;
        if (!sg_alive(SG_CONTEXT, context) || context->object.id != id)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    sg_effects_apply(last);
    sg_pools_trim_freed();
    return sg_connection_status(&context->device->connection);
}
