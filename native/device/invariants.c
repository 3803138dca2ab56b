/* Checks the invariants of the state, and describes the first violation. */
#include "device/state.h"

static const char *check_streams(const struct ct_device *d)
{
    uint32_t ops = 0;
    for (uint32_t s = 0; s < d->streams.touched; s++) {
        const struct ct_stream *stream = &ct_streams(d)[s];
        if (!stream->used)
            continue;
        if (stream->in_work)
            return "a stream is still in the work list";
        if (!ct_contexts(d)[stream->context].used)
            return "a stream outlived its context";
        if (!stream->open && stream->first == CT_NONE)
            return "a destroyed and drained stream was not freed";
        uint64_t order = 0;
        uint32_t last = CT_NONE;
        for (uint32_t op = stream->first; op != CT_NONE; op = ct_ops(d)[op].next) {
            const struct ct_op *o = &ct_ops(d)[op];
            if (o->state == CT_OP_FREE || o->stream != s)
                return "a stream holds an op that is not its own";
            if (op != stream->first && (o->order <= order || o->state != CT_OP_QUEUED))
                return "the ops of a stream are out of order";
            order = o->order;
            last = op;
            if (++ops > d->ops.used)
                return "streams hold more ops than are in use";
        }
        if (last != stream->last)
            return "the last op of a stream is wrong";
    }
    return ops == d->ops.used ? NULL : "some ops belong to no stream";
}

/* Checks that every chunk's op is ready in this group, and that the op's numbers of blocks and chunks agree. */
static const char *check_chunks(const struct ct_device *d, uint32_t group)
{
    const struct ct_group *g = &ct_groups(d)[group];
    const struct ct_chunk *chunks = ct_chunks(d, group);
    int on = ct_group_is_on(d, group);
    uint64_t next_ns = CT_DEVICE_NEVER, blocks_left = 0;
    for (uint32_t i = 0; i < g->chunk_count; i++) {
        if (chunks[i].blocks == 0 || chunks[i].waves == 0 || ct_ops(d)[chunks[i].op].state != CT_OP_READY)
            return "a chunk is empty or belongs to no ready kernel";
        if (on && chunks[i].end_ns <= d->now_ns)
            return "blocks are running beyond their end";
        next_ns = ct_min(next_ns, chunks[i].end_ns);
        blocks_left += chunks[i].blocks;
    }
    if (on && g->ready_grids > 0 && g->chunk_count == 0)
        return "a group with work is on the device, and none of its blocks runs";
    if (g->next_end_ns != (on ? next_ns : CT_DEVICE_NEVER))
        return "the next end of a block is wrong";
    for (uint32_t op = g->first_ready; op != CT_NONE; op = ct_ops(d)[op].ready_next) {
        const struct ct_op *o = &ct_ops(d)[op];
        uint64_t blocks = 0;
        uint32_t count = 0;
        for (uint32_t i = 0; i < g->chunk_count; i++) {
            if (chunks[i].op == op) {
                blocks += chunks[i].blocks;
                count++;
            }
        }
        if (blocks != o->running_blocks || count != o->chunks)
            return "a kernel's number of running blocks or chunks is wrong";
        blocks_left -= blocks;
    }
    return blocks_left == 0 ? NULL : "blocks are running that belong to no ready kernel";
}

static const char *check_group(const struct ct_device *d, uint32_t group)
{
    const struct ct_group *g = &ct_groups(d)[group];
    uint64_t held = 0, demand = 0, mask = 0;
    uint32_t grids = 0, resident = 0, running = 0, previous = CT_NONE;
    int32_t priority = INT32_MIN;
    for (uint32_t op = g->first_ready; op != CT_NONE; op = ct_ops(d)[op].ready_next) {
        const struct ct_op *o = &ct_ops(d)[op];
        if (o->state != CT_OP_READY || o->ready_prev != previous || o->priority < priority)
            return "the list of ready kernels is out of order";
        if (o->running_blocks == 0 && o->pending_blocks == 0)
            return "a kernel without blocks is not complete";
        if (ct_streams(d)[o->stream].first != op)
            return "a ready kernel is not first in its stream";
        held += o->running_blocks * o->share;
        demand += o->running_blocks * o->demand;
        mask |= UINT64_C(1) << ct_context_of(d, o)->client;
        resident += o->resident;
        running += o->running_blocks > 0;
        priority = o->priority;
        previous = op;
        grids++;
    }
    if (grids != g->ready_grids || previous != g->last_ready || mask != g->ready_mask || resident != g->resident_grids ||
        running != g->running_grids)
        return "a group's number or list of ready kernels is wrong";
    if (held != g->held_share || demand != g->demand || held > d->capacity_share)
        return "the shares of the blocks differ from the held share, or exceed the capacity";
    if ((grids > 0) != (d->runnable_mask >> group & 1))
        return "a group with work is not marked as runnable";
    if ((mask & ~g->member_mask) != 0)
        return "a kernel outlived its client";
    return check_chunks(d, group);
}

/* Checks that for every cap the client's kernels with this cap or a smaller one hold no more than that together. */
static const char *check_caps_of_kernels(const struct ct_device *d, uint32_t owner)
{
    uint32_t first = ct_groups(d)[ct_clients(d)[owner].group].first_ready;
    for (uint32_t op = first; op != CT_NONE; op = ct_ops(d)[op].ready_next) {
        uint64_t sm_cap = ct_ops(d)[op].sm_cap, held = 0;
        for (uint32_t other = first; sm_cap && other != CT_NONE; other = ct_ops(d)[other].ready_next) {
            const struct ct_op *o = &ct_ops(d)[other];
            if (o->sm_cap && o->sm_cap <= sm_cap && ct_context_of(d, o)->client == owner)
                held += o->running_blocks * o->share;
        }
        if (held > sm_cap * CT_SM_UNITS)
            return "kernels hold more SMs than the largest of their caps";
    }
    return NULL;
}

static const char *check_timeslices(const struct ct_device *d)
{
    if (d->runnable_mask != 0 && d->active == CT_NONE)
        return "there is work and no group is on the device";
    if (d->active != CT_NONE && !(d->runnable_mask >> d->active & 1))
        return "a group without work is on the device";
    int contested = d->active != CT_NONE && !d->switching && (d->runnable_mask & ~(UINT64_C(1) << d->active)) != 0;
    if (contested != (d->slice_end_ns != CT_DEVICE_NEVER))
        return "the end of the slice is set without competition, or not set despite it";
    if (ct_device_next_change(d) <= d->now_ns)
        return "a change is overdue";
    return NULL;
}

/* Checks that memory and counters of contexts and clients add up to those of the device. */
static const char *check_counters(const struct ct_device *d)
{
    uint64_t memory = 0, blocks = 0;
    for (uint32_t i = 0; i < d->limits.clients; i++) {
        const struct ct_client *client = &ct_clients(d)[i];
        uint64_t delayed = 0, owned = client->loose_bytes, held = 0;
        for (uint32_t k = 0; k < d->limits.clients; k++)
            delayed += client->delayed_by_ns[k];
        if (delayed > client->counters.delayed_ns) /* less: a culprit's slot was reused */
            return "the attributed delay exceeds the delay of the client";
        if (client->delayed_by_ns[i] > 0)
            return "a client delayed itself";
        if (!client->used && (client->counters.memory_bytes > 0 || client->held_share > 0))
            return "a removed client still holds memory or SMs";
        if (!client->used)
            continue;
        for (uint32_t c = client->first_context; c != CT_NONE; c = ct_contexts(d)[c].next) {
            const struct ct_context *context = &ct_contexts(d)[c];
            if (!context->used || context->client != i)
                return "a client lists a context that is not its own";
            owned += context->counters.memory_bytes;
            held += context->held_share;
        }
        if (owned != client->counters.memory_bytes || held != client->held_share)
            return "the sums over contexts differ from those of their client";
        memory += owned;
        blocks += client->usage.on ? client->usage.blocks : 0;
    }
    if (memory != d->counters.memory_bytes || memory > d->config.memory_bytes)
        return "the sum of the clients' memory differs from the device's, or exceeds its capacity";
    return blocks == d->usage.blocks ? NULL : "the sum of the clients' running blocks differs from the device's";
}

const char *ct_device_check(const struct ct_device *d)
{
    const char *violation = check_streams(d);
    for (uint32_t i = 0; violation == NULL && i < d->limits.clients; i++)
        if (ct_groups(d)[i].members > 0)
            violation = check_group(d, i);
    for (uint32_t i = 0; violation == NULL && i < d->limits.clients; i++)
        if (ct_clients(d)[i].used)
            violation = check_caps_of_kernels(d, i);
    if (violation == NULL)
        violation = check_timeslices(d);
    return violation ? violation : check_counters(d);
}
