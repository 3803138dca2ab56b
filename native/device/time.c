/* The passage of time: from one change to the next, never beyond the requested instant; and projections into the
 * future. */
#include "device/state.h"

#include <string.h>

uint64_t ct_device_next_change(const struct ct_device *d)
{
    uint64_t next_ns = ct_min(ct_min(d->switch_end_ns, d->slice_end_ns), ct_order_next_deferred(d));
    for (int i = 0; i < CT_ENGINES; i++)
        next_ns = ct_min(next_ns, d->engines[i].end_ns);
    if (d->active != CT_NONE)
        next_ns = ct_min(next_ns, ct_groups(d)[d->active].next_end_ns);
    return next_ns;
}

/* Processes the consequences of changes at this instant: order within streams, time slices, and blocks. */
void ct_time_settle(struct ct_device *d)
{
    ct_order_run(d);
    ct_timeslice_update(d);
    if (d->slice_end_ns == d->now_ns) { /* before new blocks are placed, which would be frozen at the same instant */
        ct_timeslice_expired(d);
        ct_timeslice_update(d);
    }
    if (d->dispatch_due && d->active != CT_NONE)
        ct_grid_dispatch(d, d->active);
    d->dispatch_due = 0;
}

/* Processes all changes at one instant. */
static void run_step(struct ct_device *d, uint64_t instant_ns)
{
    d->now_ns = instant_ns;
    d->in_step = 1;
    ct_order_arrive(d);
    for (uint32_t i = 0; i < CT_ENGINES; i++)
        if (d->engines[i].end_ns == instant_ns)
            ct_engine_finish(d, i);
    if (d->active != CT_NONE && ct_groups(d)[d->active].next_end_ns == instant_ns) {
        if (ct_grid_refill(d, d->active)) {
            d->in_step = 0;
            return; /* nothing else happens at this instant */
        }
        ct_grid_retire(d, d->active);
    }
    if (d->switch_end_ns == instant_ns)
        ct_timeslice_switched(d);
    ct_order_run(d);
    ct_timeslice_update(d);
    if (d->slice_end_ns == instant_ns)
        ct_grid_stop_waves(d, d->active);
    ct_time_settle(d);
    d->in_step = 0;
}

static void advance_to(struct ct_device *d, uint64_t now_ns)
{
    for (uint64_t next_ns; (next_ns = ct_device_next_change(d)) <= now_ns && next_ns != CT_DEVICE_NEVER;)
        run_step(d, next_ns);
    d->now_ns = ct_max(d->now_ns, now_ns);
}

void ct_device_advance(struct ct_device *d, uint64_t now_ns)
{
    if (now_ns < d->now_ns)
        d->counters.late_calls++;
    advance_to(d, now_ns);
}

uint64_t ct_time_enter(struct ct_device *d, uint64_t now_ns)
{
    ct_device_advance(d, now_ns);
    d->epoch++;
    return d->now_ns;
}

uint64_t ct_device_now(const struct ct_device *d)
{
    return d->now_ns;
}

uint64_t ct_device_epoch(const struct ct_device *d)
{
    return d->epoch;
}

/* ---- projections -------------------------------------------------------------------------------------------------- */

/* Copies only what is in use, and nothing that a projection does not need (events, records, the matrix of delays): the
 * cost depends on the queued work, not on the size of the tables. */
static void copy_clients(struct ct_device *to, const struct ct_device *from)
{
    memcpy(ct_groups(to), ct_groups(from), from->limits.clients * sizeof(struct ct_group));
    memcpy(ct_contexts(to), ct_contexts(from), from->contexts.touched * sizeof(struct ct_context));
    memcpy(ct_streams(to), ct_streams(from), from->streams.touched * sizeof(struct ct_stream));
    for (uint32_t i = 0; i < from->limits.clients; i++) {
        if (ct_clients(from)[i].used)
            memcpy(&ct_clients(to)[i], &ct_clients(from)[i], offsetof(struct ct_client, delayed_by_ns));
        memcpy(ct_chunks(to, i), ct_chunks(from, i), ct_groups(from)[i].chunk_count * sizeof(struct ct_chunk));
    }
}

static void copy_work(struct ct_device *to, const struct ct_device *from)
{
    for (uint32_t s = 0; s < from->streams.touched; s++) {
        if (!ct_streams(from)[s].used)
            continue;
        for (uint32_t op = ct_streams(from)[s].first; op != CT_NONE; op = ct_ops(from)[op].next) {
            ct_ops(to)[op] = ct_ops(from)[op];
            uint32_t awaited = (uint32_t)ct_ops(from)[op].awaits; /* possibly complete: the copy must contain that */
            if (ct_ops(from)[op].awaits != 0)
                ct_ops(to)[awaited] = ct_ops(from)[awaited];
        }
    }
}

/* Copies the live state into the one in which projections run. */
static struct ct_device *fork_ahead(struct ct_device *d)
{
    struct ct_device *ahead = ct_at(d, d->ahead_offset);
    memcpy(ahead, d, sizeof *d);
    copy_clients(ahead, d);
    copy_work(ahead, d);
    ahead->is_ahead = 1;
    ahead->ahead_epoch = d->ahead_epoch = d->epoch;
    return ahead;
}

/* Returns the end of an op that obviously completes at the next change; otherwise CT_DEVICE_NEVER. */
static uint64_t end_at_next_change(const struct ct_device *d, uint32_t slot)
{
    const struct ct_op *op = &ct_ops(d)[slot];
    for (int i = 0; i < CT_ENGINES; i++)
        if (d->engines[i].first == slot)
            return d->engines[i].end_ns; /* a copy that has begun is not disturbed */
    if (op->running_blocks == 0 || op->pending_blocks > 0 || op->chunks != 1 || d->active == CT_NONE)
        return CT_DEVICE_NEVER;
    uint64_t next_ns = ct_groups(d)[d->active].next_end_ns;
    if (next_ns != ct_device_next_change(d))
        return CT_DEVICE_NEVER;
    for (uint32_t i = 0; i < ct_groups(d)[d->active].chunk_count; i++)
        if (ct_chunks(d, d->active)[i].op == slot && ct_chunks(d, d->active)[i].end_ns == next_ns)
            return next_ns;
    return CT_DEVICE_NEVER;
}

int ct_device_project_within(struct ct_device *d, uint64_t op, uint64_t steps, uint64_t *instant_ns)
{
    uint32_t slot = ct_slot_op(d, op);
    *instant_ns = CT_DEVICE_DONE;
    if (slot == CT_NONE)
        return CT_DEVICE_OK;
    struct ct_op *o = &ct_ops(d)[slot];
    *instant_ns = o->projected_epoch == d->epoch ? o->projected_ns : end_at_next_change(d, slot);
    if (*instant_ns != CT_DEVICE_NEVER)
        return CT_DEVICE_OK;
    struct ct_device *ahead = d->ahead_epoch == d->epoch ? ct_at(d, d->ahead_offset) : fork_ahead(d);
    while (o->projected_epoch != d->epoch) {
        uint64_t next_ns = ct_device_next_change(ahead);
        if (next_ns == CT_DEVICE_NEVER)
            return CT_DEVICE_OK;
        if (steps-- == 0) {
            *instant_ns = ct_max(ahead->now_ns, d->now_ns);
            return CT_DEVICE_NOT_READY;
        }
        run_step(ahead, next_ns);
    }
    *instant_ns = o->projected_ns;
    return CT_DEVICE_OK;
}

uint64_t ct_device_project_op(struct ct_device *d, uint64_t op)
{
    uint64_t instant_ns;
    ct_device_project_within(d, op, UINT64_MAX, &instant_ns);
    return instant_ns;
}

uint64_t ct_device_project_event(struct ct_device *d, uint32_t event)
{
    return ct_device_project_op(d, ct_device_event_op(d, event));
}

uint64_t ct_device_project_stream(struct ct_device *d, uint32_t stream)
{
    return ct_device_project_op(d, ct_device_stream_last(d, stream));
}

uint64_t ct_device_project_context(struct ct_device *d, uint32_t context)
{
    uint32_t slot = ct_slot_context(d, context);
    uint64_t latest_ns = CT_DEVICE_DONE;
    if (slot == CT_NONE)
        return CT_DEVICE_DONE;
    for (uint32_t s = ct_contexts(d)[slot].first_stream; s != CT_NONE; s = ct_streams(d)[s].next)
        if (ct_streams(d)[s].last != CT_NONE)
            latest_ns = ct_max(latest_ns, ct_device_project_op(d, ct_op_id(d, ct_streams(d)[s].last)));
    return latest_ns;
}
