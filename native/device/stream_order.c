/* The order of ops: within streams, with the legacy stream, and across streams by events. */
#include "device/state.h"

void ct_order_touch(struct ct_device *d, uint32_t slot)
{
    struct ct_stream *stream = &ct_streams(d)[slot];
    if (stream->in_work)
        return;
    stream->in_work = 1;
    stream->next_work = CT_NONE;
    if (d->work_last == CT_NONE)
        d->work_first = slot;
    else
        ct_streams(d)[d->work_last].next_work = slot;
    d->work_last = slot;
}

void ct_order_append(struct ct_device *d, uint32_t slot, uint32_t op)
{
    struct ct_stream *stream = &ct_streams(d)[slot];
    struct ct_context *context = &ct_contexts(d)[stream->context];
    struct ct_op *o = &ct_ops(d)[op];
    o->stream = slot;
    o->order = context->next_order++;
    o->priority = stream->priority;
    o->submit_ns = d->now_ns;
    if (stream->kind == CT_STREAM_BLOCKING)
        context->blocking_ops++;
    else if (stream->kind == CT_STREAM_LEGACY)
        context->legacy_ops++;
    if (stream->last == CT_NONE) {
        stream->first = op;
        ct_order_touch(d, slot);
    } else {
        ct_ops(d)[stream->last].next = op;
    }
    stream->last = op;
}

/* Ops of one stream have increasing order numbers, so comparing the first ones suffices. */
static int held_by_legacy_rule(const struct ct_device *d, const struct ct_stream *stream, const struct ct_op *op)
{
    const struct ct_context *context = &ct_contexts(d)[stream->context];
    if (stream->kind == CT_STREAM_BLOCKING) {
        if (context->legacy_ops == 0)
            return 0;
        return ct_ops(d)[ct_streams(d)[context->legacy].first].order < op->order;
    }
    if (stream->kind == CT_STREAM_LEGACY && context->blocking_ops > 0) {
        for (uint32_t s = context->first_stream; s != CT_NONE; s = ct_streams(d)[s].next) {
            const struct ct_stream *other = &ct_streams(d)[s];
            if (other->kind == CT_STREAM_BLOCKING && other->first != CT_NONE &&
                ct_ops(d)[other->first].order < op->order)
                return 1;
        }
    }
    return 0;
}

static uint64_t arrival_ns(const struct ct_device *d, const struct ct_op *op)
{
    return ct_instant_after(op->submit_ns, d->config.launch_ns);
}

uint64_t ct_order_next_deferred(const struct ct_device *d)
{
    return d->first_deferred == CT_NONE ? CT_DEVICE_NEVER : arrival_ns(d, &ct_ops(d)[d->first_deferred]);
}

void ct_order_arrive(struct ct_device *d)
{
    while (ct_order_next_deferred(d) <= d->now_ns) {
        struct ct_op *op = &ct_ops(d)[d->first_deferred];
        d->first_deferred = op->next_deferred;
        op->is_deferred = 0;
        ct_order_touch(d, op->stream);
    }
}

/* Returns 1 while a kernel or copy that is first in its stream has not reached the device. At most one op per stream is
 * deferred, so the list is short. */
static int is_on_its_way(struct ct_device *d, uint32_t op)
{
    struct ct_op *o = &ct_ops(d)[op];
    if (o->is_deferred)
        return 1;
    if (d->config.launch_ns == 0 || o->kind >= CT_OP_HOST || arrival_ns(d, o) <= d->now_ns)
        return 0;
    uint32_t *link = &d->first_deferred;
    while (*link != CT_NONE && ct_ops(d)[*link].submit_ns <= o->submit_ns)
        link = &ct_ops(d)[*link].next_deferred;
    o->next_deferred = *link;
    o->is_deferred = 1;
    *link = op;
    return 1;
}

static void forget_deferred(struct ct_device *d, uint32_t op)
{
    uint32_t *link = &d->first_deferred;
    if (!ct_ops(d)[op].is_deferred)
        return;
    while (*link != op)
        link = &ct_ops(d)[*link].next_deferred;
    *link = ct_ops(d)[op].next_deferred;
    ct_ops(d)[op].is_deferred = 0;
}

/* Starts what can start at the head of this stream; ops without duration complete at once. */
static void run_head(struct ct_device *d, uint32_t slot)
{
    struct ct_stream *stream = &ct_streams(d)[slot];
    while (stream->first != CT_NONE) {
        uint32_t op = stream->first;
        struct ct_op *o = &ct_ops(d)[op];
        if (o->state != CT_OP_QUEUED || held_by_legacy_rule(d, stream, o))
            return;
        if (o->kind == CT_OP_EVENT_WAIT && ct_slot_op(d, o->awaits) != CT_NONE)
            return;
        if (is_on_its_way(d, op))
            return;
        o->state = CT_OP_READY;
        o->ready_ns = o->start_ns = d->now_ns;
        switch (o->kind) {
        case CT_OP_KERNEL:
        case CT_OP_COPY_DTOD:
        case CT_OP_MEMSET:
            ct_grid_ready(d, op);
            return;
        case CT_OP_COPY_HTOD:
        case CT_OP_COPY_DTOH:
            ct_engine_enter(d, op);
            return;
        case CT_OP_HOST:
            ct_counters_record(d, op, CT_RECORD_READY);
            return;
        default:
            ct_order_complete(d, op);
        }
    }
}

void ct_order_run(struct ct_device *d)
{
    while (d->work_first != CT_NONE) {
        uint32_t slot = d->work_first;
        struct ct_stream *stream = &ct_streams(d)[slot];
        d->work_first = stream->next_work;
        if (d->work_first == CT_NONE)
            d->work_last = CT_NONE;
        stream->in_work = 0;
        run_head(d, slot);
        ct_stream_close_if_drained(d, slot);
    }
}

static void unlink_waiter(struct ct_device *d, uint32_t op)
{
    uint32_t record = ct_slot_op(d, ct_ops(d)[op].awaits);
    if (record == CT_NONE)
        return;
    uint32_t *link = &ct_ops(d)[record].first_waiter;
    while (*link != CT_NONE && *link != op)
        link = &ct_ops(d)[*link].next_waiter;
    if (*link == op)
        *link = ct_ops(d)[op].next_waiter;
}

static void complete_event(struct ct_device *d, uint32_t op)
{
    const struct ct_op *o = &ct_ops(d)[op];
    struct ct_event *event = &ct_events(d)[o->event];
    if (!d->is_ahead && event->used && event->record == ct_op_id(d, op)) {
        event->done = 1;
        event->instant_ns = d->now_ns;
    }
    for (uint32_t w = o->first_waiter; w != CT_NONE; w = ct_ops(d)[w].next_waiter)
        ct_order_touch(d, ct_ops(d)[w].stream);
}

/* Removes the first op of its stream. The next ct_order_run() handles those that waited for it. */
static void leave_stream(struct ct_device *d, uint32_t op)
{
    struct ct_op *o = &ct_ops(d)[op];
    struct ct_stream *stream = &ct_streams(d)[o->stream];
    struct ct_context *context = &ct_contexts(d)[stream->context];
    if (o->kind == CT_OP_EVENT_RECORD)
        complete_event(d, op);
    stream->first = o->next;
    if (stream->first == CT_NONE)
        stream->last = CT_NONE;
    ct_order_touch(d, o->stream);
    if (stream->kind == CT_STREAM_BLOCKING) {
        context->blocking_ops--;
        if (context->legacy_ops > 0)
            ct_order_touch(d, context->legacy);
    } else if (stream->kind == CT_STREAM_LEGACY) {
        context->legacy_ops--;
        if (context->blocking_ops > 0)
            for (uint32_t s = context->first_stream; s != CT_NONE; s = ct_streams(d)[s].next)
                if (ct_streams(d)[s].kind == CT_STREAM_BLOCKING)
                    ct_order_touch(d, s);
    }
    ct_free_op(d, op);
}

void ct_order_complete(struct ct_device *d, uint32_t op)
{
    struct ct_op *o = &ct_ops(d)[op];
    if (d->is_ahead) {
        struct ct_device *live = (struct ct_device *)(void *)((char *)d - d->ahead_offset);
        ct_ops(live)[op].projected_ns = d->now_ns;
        ct_ops(live)[op].projected_epoch = d->ahead_epoch;
    }
    ct_counters_done(d, o);
    ct_counters_record(d, op, CT_RECORD_DONE);
    leave_stream(d, op);
}

void ct_order_discard(struct ct_device *d, uint32_t op)
{
    struct ct_op *o = &ct_ops(d)[op];
    struct ct_context *context = ct_context_of(d, o);
    if (o->state == CT_OP_READY) {
        if (o->kind == CT_OP_KERNEL || o->kind == CT_OP_COPY_DTOD || o->kind == CT_OP_MEMSET)
            ct_grid_remove(d, op);
        else if (o->kind == CT_OP_COPY_HTOD || o->kind == CT_OP_COPY_DTOH)
            ct_engine_remove(d, op);
    } else if (o->kind == CT_OP_EVENT_WAIT) {
        unlink_waiter(d, op);
    }
    forget_deferred(d, op);
    context->counters.killed_ops++;
    ct_clients(d)[context->client].counters.killed_ops++;
    d->counters.killed_ops++;
    leave_stream(d, op);
}
