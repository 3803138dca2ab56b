/* Determine the completion of submissions without a request to the server.
 *
 * The server writes into the ring which slots are complete and when the records of events will be. A prediction holds
 * until a submission could change it. */
#include "softgpu/driver/internal.h"

enum { MUST_QUERY = -1, NOT_YET = 0, COMPLETE = 1 };

/* Read the server's entry for a slot. 0: there is none, or it was overwritten. */
static int read_outcome(const struct sg_connection *connection, uint64_t slot, uint64_t *at_ns, uint64_t *count)
{
    const struct sg_outcome *outcome = &connection->ring->outcomes[slot % SG_OUTCOMES];
    if (!slot || atomic_load_explicit(&outcome->slot, memory_order_acquire) != slot)
        return 0;
    *at_ns = atomic_load_explicit(&outcome->at_ns, memory_order_relaxed);
    *count = atomic_load_explicit(&outcome->count, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&outcome->slot, memory_order_relaxed) == slot;
}

/* Whether predictions made at this bulletin count are still lower bounds: no op has ended before its predicted end
 * since. */
static int is_lower_bound(struct sg_connection *connection, uint64_t count)
{
    uint32_t wake = atomic_load_explicit(&connection->ring->wake, memory_order_acquire);
    if (connection->bound.wake != wake) {
        connection->bound.wake = wake;
        connection->bound.since_count = atomic_load_explicit(&connection->bulletin->submissions, memory_order_acquire);
    }
    return count >= connection->bound.since_count;
}

/* Predictions made at or after this count remain lower bounds; earlier ones may have ended first. */
void sg_prediction_passed(struct sg_connection *connection, uint64_t count)
{
    if (is_lower_bound(connection, count))
        connection->bound.since_count = count;
}

/* Evaluate a prediction. It is exact while nothing was submitted to the device since, or only by this process to the
 * same stream, where the new work runs later. Other submissions take resources from running work, so the end is rarely
 * earlier than predicted and no request is needed before that instant. It can be earlier when one kernel prevents
 * another from slowing down a third. Once dependent work has completed, the prediction is therefore no longer a lower
 * bound. */
static int evaluate(struct sg_connection *connection, uint64_t stream_id, uint64_t at_ns, uint64_t count)
{
    uint64_t now_ns = sg_clock_ns(); /* read before the count, so that no submission between the two is missed */
    uint64_t latest = atomic_load_explicit(&connection->bulletin->submissions, memory_order_acquire);
    int is_own_run = connection->run.stream_id == stream_id && connection->run.first_count <= count &&
                     connection->run.next_count == latest;
    if (latest == count || is_own_run) {
        if (now_ns < at_ns)
            return NOT_YET;
        sg_prediction_passed(connection, count);
        return COMPLETE;
    }
    return now_ns < at_ns && at_ns != CT_DEVICE_NEVER && is_lower_bound(connection, count) ? NOT_YET : MUST_QUERY;
}

struct submission {
    struct sg_connection *connection;
    uint64_t stream_id, slot, order;
    const struct sg_prediction *prediction;
};

/* With COMPLETE, *at_ns is the instant of completion, or CT_DEVICE_NEVER if it is not available locally. */
static int local_status(const struct submission *one, uint64_t *at_ns)
{
    const struct sg_prediction *prediction = one->prediction;
    uint64_t count;
    if (read_outcome(one->connection, one->slot, at_ns, &count)) {
        int status = count == SG_CERTAIN ? COMPLETE : evaluate(one->connection, one->stream_id, *at_ns, count);
        if (status != MUST_QUERY)
            return status;
    }
    *at_ns = CT_DEVICE_NEVER;
    if (prediction->order != one->order)
        return MUST_QUERY; /* immediately: a round trip takes as long as a short kernel */
    return evaluate(one->connection, one->stream_id, prediction->at_ns, prediction->count);
}

static struct submission record_of(const struct CUevent_st *event)
{
    return (struct submission){.connection = &event->context->device->connection,
                               .stream_id = event->stream_id,
                               .slot = event->slot,
                               .order = event->order,
                               .prediction = &event->prediction};
}

static int event_status(CUevent event)
{
    struct submission record = record_of(event);
    uint64_t at_ns;
    int status = local_status(&record, &at_ns);
    if (status == COMPLETE && at_ns != CT_DEVICE_NEVER) {
        event->instant.order = event->order;
        event->instant.at_ns = at_ns;
    }
    return status;
}

int sg_event_local_status(CUevent event)
{
    const struct CUstream_st *stream = event->stream;
    if (event->is_shared) /* another process may have recorded it again */
        return MUST_QUERY;
    if (event->done_order >= event->order)
        return COMPLETE;
    if (stream && stream->object.id == event->stream_id && stream->done_order >= event->order)
        return COMPLETE;
    return event_status(event);
}

void sg_event_read_instant(CUevent event)
{
    if (event->order && event->instant.order != event->order && !event->is_shared)
        event_status(event);
}

int sg_stream_local_status(CUstream stream)
{
    struct submission last = {.connection = &stream->context->device->connection,
                              .stream_id = stream->object.id,
                              .slot = stream->slot,
                              .order = stream->order,
                              .prediction = &stream->prediction};
    uint64_t at_ns;
    return stream->done_order >= stream->order ? COMPLETE : local_status(&last, &at_ns);
}

void sg_note_submission(CUstream stream, uint64_t count)
{
    struct sg_connection *connection = &stream->context->device->connection;
    if (connection->run.stream_id != stream->object.id || connection->run.next_count != count - 1) {
        connection->run.stream_id = stream->object.id;
        connection->run.first_count = count - 1;
    }
    connection->run.next_count = count;
}
