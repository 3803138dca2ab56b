/* What can be told of a submission without a question to the server?
 *
 * Mostly enough. The server writes into the ring what it knows to be complete, and when the records of events will be.
 * What was foreseen holds until somebody submits something that could change it. */
#include "softgpu/face.h"

enum { MUST_ASK = -1, NOT_YET = 0, COMPLETE = 1 };

/* What the server wrote of a slot; 0: nothing, or it was overwritten. */
static int read_outcome(const struct sg_link *link, uint64_t slot, uint64_t *at_ns, uint64_t *count)
{
    const struct sg_outcome *outcome = &link->ring->outcomes[slot % SG_OUTCOMES];
    if (!slot || atomic_load_explicit(&outcome->slot, memory_order_acquire) != slot)
        return 0;
    *at_ns = atomic_load_explicit(&outcome->at_ns, memory_order_relaxed);
    *count = atomic_load_explicit(&outcome->count, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&outcome->slot, memory_order_relaxed) == slot;
}

/* Nothing ended sooner than foreseen since the bulletin's count was this. */
static int is_calm(struct sg_link *link, uint64_t count)
{
    uint32_t wake = atomic_load_explicit(&link->ring->wake, memory_order_acquire);
    if (link->calm.wake != wake) {
        link->calm.wake = wake;
        link->calm.since_count = atomic_load_explicit(&link->bulletin->submissions, memory_order_acquire);
    }
    return count >= link->calm.since_count;
}

/* Projections made later than this one go on saying when there is nothing to ask; earlier ones no longer do. */
void sg_passed(struct sg_link *link, uint64_t count)
{
    if (is_calm(link, count))
        link->calm.since_count = count;
}

/* What a projection says now. It is still exact when nothing was submitted to the device since, or only by this process
 * and behind it in its own stream: that waits its turn. Other submissions take something away from what runs. Then it
 * will hardly be sooner, and until that instant there is nothing to ask; but it can be, where one kernel keeps another
 * from slowing down a third. So what depends on it may be seen first, and from then on the instant says nothing. */
static int judge(struct sg_link *link, uint64_t stream_id, uint64_t at_ns, uint64_t count)
{
    uint64_t now_ns = sg_clock_ns(); /* before the count: nothing came until then */
    uint64_t latest = atomic_load_explicit(&link->bulletin->submissions, memory_order_acquire);
    int is_ours = link->run.stream_id == stream_id && link->run.first_count <= count && link->run.next_count == latest;
    if (latest == count || is_ours) {
        if (now_ns < at_ns)
            return NOT_YET;
        sg_passed(link, count);
        return COMPLETE;
    }
    return now_ns < at_ns && at_ns != CT_DEVICE_NEVER && is_calm(link, count) ? NOT_YET : MUST_ASK;
}

struct submission {
    struct sg_link *link;
    uint64_t stream_id, slot, order;
    const struct sg_foreseen *foreseen;
};

/* With COMPLETE: *at_ns is when, or CT_DEVICE_NEVER where only that it is so is known. */
static int tell(const struct submission *one, uint64_t *at_ns)
{
    const struct sg_foreseen *foreseen = one->foreseen;
    uint64_t count;
    if (read_outcome(one->link, one->slot, at_ns, &count)) {
        int answer = count == SG_CERTAIN ? COMPLETE : judge(one->link, one->stream_id, *at_ns, count);
        if (answer != MUST_ASK)
            return answer;
    }
    *at_ns = CT_DEVICE_NEVER;
    if (foreseen->order != one->order)
        return MUST_ASK; /* and at once, not when it could be complete: the answer takes as long as a short kernel */
    return judge(one->link, one->stream_id, foreseen->at_ns, foreseen->count);
}

static struct submission record_of(const struct CUevent_st *event)
{
    return (struct submission){.link = &event->context->device->link,
                               .stream_id = event->stream_id,
                               .slot = event->slot,
                               .order = event->order,
                               .foreseen = &event->foreseen};
}

static int tell_event(CUevent event)
{
    struct submission record = record_of(event);
    uint64_t at_ns;
    int answer = tell(&record, &at_ns);
    if (answer == COMPLETE && at_ns != CT_DEVICE_NEVER) {
        event->instant.order = event->order;
        event->instant.at_ns = at_ns;
    }
    return answer;
}

int sg_event_known(CUevent event)
{
    const struct CUstream_st *stream = event->stream;
    if (event->is_shared) /* another process may have recorded it since */
        return MUST_ASK;
    if (event->done_order >= event->order)
        return COMPLETE;
    if (stream && stream->object.id == event->stream_id && stream->done_order >= event->order)
        return COMPLETE;
    return tell_event(event);
}

void sg_event_look(CUevent event)
{
    if (event->order && event->instant.order != event->order && !event->is_shared)
        tell_event(event);
}

int sg_stream_known(CUstream stream)
{
    struct submission last = {.link = &stream->context->device->link,
                              .stream_id = stream->object.id,
                              .slot = stream->slot,
                              .order = stream->order,
                              .foreseen = &stream->foreseen};
    uint64_t at_ns;
    return stream->done_order >= stream->order ? COMPLETE : tell(&last, &at_ns);
}

void sg_submitted(CUstream stream, uint64_t count)
{
    struct sg_link *link = &stream->context->device->link;
    if (link->run.stream_id != stream->object.id || link->run.next_count != count - 1) {
        link->run.stream_id = stream->object.id;
        link->run.first_count = count - 1;
    }
    link->run.next_count = count;
}
