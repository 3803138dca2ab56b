/* Clients, their contexts, streams, events and memory, and their removal at any instant. */
#include "device/state.h"

#include <string.h>

static uint16_t next_generation(uint16_t generation)
{
    return generation == UINT16_MAX ? 1 : (uint16_t)(generation + 1);
}

static uint32_t handle_of(uint16_t generation, uint32_t slot)
{
    return (uint32_t)generation << 16 | slot;
}

/* Returns a slot that was never used, or CT_NONE; the caller tries its free list first. */
static uint32_t take_unused_slot(struct ct_table *table)
{
    return table->touched < table->slots ? table->touched++ : CT_NONE;
}

static uint32_t group_for(struct ct_device *d, uint32_t label)
{
    uint32_t unused = CT_NONE;
    for (uint32_t i = 0; i < d->limits.clients; i++) {
        struct ct_group *group = &ct_groups(d)[i];
        if (group->members > 0 && label != CT_GROUP_OWN && group->label == label)
            return i;
        if (group->members == 0 && unused == CT_NONE)
            unused = i;
    }
    struct ct_group *group = &ct_groups(d)[unused]; /* one exists: each group in use has a client, and this client is
                                                     * new */
    memset(group, 0, sizeof *group);
    group->label = label;
    group->first_ready = group->last_ready = CT_NONE;
    group->next_end_ns = CT_DEVICE_NEVER;
    group->delays_settled_ns = d->now_ns;
    if (d->outgoing == unused)
        d->outgoing = CT_NONE; /* a new group is not charged for the one that had its slot before */
    return unused;
}

int ct_device_client_add(struct ct_device *d, uint64_t now_ns, uint32_t group_label, uint32_t *client)
{
    uint32_t slot = 0;
    ct_time_enter(d, now_ns);
    while (slot < d->limits.clients && ct_clients(d)[slot].used)
        slot++;
    if (slot == d->limits.clients)
        return CT_DEVICE_FULL;
    ct_counters_settle(d);
    struct ct_client *c = &ct_clients(d)[slot];
    uint16_t generation = next_generation(c->generation);
    memset(c, 0, sizeof *c);
    c->generation = generation;
    c->used = 1;
    c->first_context = CT_NONE;
    c->group = group_for(d, group_label);
    struct ct_group *group = &ct_groups(d)[c->group];
    group->members++;
    group->member_mask |= UINT64_C(1) << slot;
    group->blame_mask = group->member_mask;
    for (uint32_t i = 0; i < d->limits.clients; i++)
        ct_clients(d)[i].delayed_by_ns[slot] = 0;
    c->usage.settled_ns = d->now_ns;
    c->usage.sm_limit = d->config.sm_count;
    c->usage.on = (uint16_t)ct_group_is_on(d, c->group);
    *client = handle_of(generation, slot);
    return CT_DEVICE_OK;
}

static void free_event(struct ct_device *d, uint32_t slot)
{
    struct ct_event *event = &ct_events(d)[slot];
    uint32_t *link = &ct_contexts(d)[event->context].first_event;
    while (*link != slot)
        link = &ct_events(d)[*link].next;
    *link = event->next;
    event->used = 0;
    event->next = d->events.free;
    d->events.free = slot;
    d->events.used--;
}

static void free_stream(struct ct_device *d, uint32_t slot)
{
    struct ct_stream *stream = &ct_streams(d)[slot];
    struct ct_context *context = &ct_contexts(d)[stream->context];
    uint32_t *link = &context->first_stream;
    while (*link != slot)
        link = &ct_streams(d)[*link].next;
    *link = stream->next;
    if (context->legacy == slot)
        context->legacy = CT_NONE;
    stream->used = stream->open = 0;
    stream->next = d->streams.free;
    d->streams.free = slot;
    d->streams.used--;
}

void ct_stream_close_if_drained(struct ct_device *d, uint32_t slot)
{
    struct ct_stream *stream = &ct_streams(d)[slot];
    if (stream->used && !stream->open && stream->first == CT_NONE && !stream->in_work)
        free_stream(d, slot);
}

/* Removes ops one by one. The streams are closed first, so that nothing of the context becomes ready meanwhile. */
static void destroy_context(struct ct_device *d, uint32_t slot)
{
    struct ct_context *context = &ct_contexts(d)[slot];
    struct ct_client *client = &ct_clients(d)[context->client];
    ct_counters_settle(d);
    for (uint32_t s = context->first_stream; s != CT_NONE; s = ct_streams(d)[s].next) {
        struct ct_stream *stream = &ct_streams(d)[s];
        stream->open = 0;
        while (stream->first != CT_NONE)
            ct_order_discard(d, stream->first);
    }
    ct_order_run(d); /* releases waiters in other contexts, and removes our streams from the work list */
    for (uint32_t s = context->first_stream, next; s != CT_NONE; s = next) {
        next = ct_streams(d)[s].next;
        free_stream(d, s);
    }
    while (context->first_event != CT_NONE)
        free_event(d, context->first_event);
    client->counters.memory_bytes -= context->counters.memory_bytes;
    d->counters.memory_bytes -= context->counters.memory_bytes;
    context->counters.memory_bytes = 0;
    uint32_t *link = &client->first_context;
    while (*link != slot)
        link = &ct_contexts(d)[*link].next;
    *link = context->next;
    context->used = 0;
    context->next = d->contexts.free;
    d->contexts.free = slot;
    d->contexts.used--;
}

int ct_device_client_kill(struct ct_device *d, uint64_t now_ns, uint32_t client)
{
    uint32_t slot = ct_slot_client(d, client);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    ct_time_enter(d, now_ns);
    struct ct_client *c = &ct_clients(d)[slot];
    struct ct_group *group = &ct_groups(d)[c->group];
    ct_delay_settle_all(d);
    while (c->first_context != CT_NONE)
        destroy_context(d, c->first_context);
    ct_memory_free_client(d, c);
    c->used = 0;
    group->members--;
    group->member_mask &= ~(UINT64_C(1) << slot);
    if (group->members > 0)
        group->blame_mask = group->member_mask;
    else if (d->resident == c->group)
        d->resident = CT_NONE; /* there is no state to be saved: the next group is switched in at no cost */
    ct_time_settle(d);
    return CT_DEVICE_OK;
}

int ct_device_client_stop(struct ct_device *d, uint64_t now_ns, uint32_t client)
{
    uint32_t slot = ct_slot_client(d, client);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    ct_time_enter(d, now_ns);
    ct_delay_settle_all(d);
    ct_counters_settle(d);
    for (uint32_t c = ct_clients(d)[slot].first_context; c != CT_NONE; c = ct_contexts(d)[c].next)
        for (uint32_t s = ct_contexts(d)[c].first_stream; s != CT_NONE; s = ct_streams(d)[s].next)
            while (ct_streams(d)[s].first != CT_NONE)
                ct_order_discard(d, ct_streams(d)[s].first);
    ct_time_settle(d);
    return CT_DEVICE_OK;
}

int ct_device_client_cap(struct ct_device *d, uint64_t now_ns, uint32_t client, uint32_t sm_cap)
{
    uint32_t slot = ct_slot_client(d, client);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    if (sm_cap > d->config.sm_count)
        return CT_DEVICE_INVALID;
    ct_time_enter(d, now_ns);
    struct ct_client *c = &ct_clients(d)[slot];
    ct_delay_settle_all(d);
    ct_counters_settle(d);
    c->sm_cap = sm_cap;
    for (uint32_t k = c->first_context; k != CT_NONE; k = ct_contexts(d)[k].next)
        ct_contexts(d)[k].is_capped = sm_cap || ct_contexts(d)[k].sm_cap;
    ct_counters_client_cap(d, c);
    ct_grid_split_waves(d, c->group);
    d->dispatch_due = 1;
    ct_time_settle(d);
    return CT_DEVICE_OK;
}

int ct_device_context_create(struct ct_device *d, uint64_t now_ns, uint32_t client, uint32_t sm_cap, uint32_t *context)
{
    uint32_t owner = ct_slot_client(d, client);
    if (owner == CT_NONE)
        return CT_DEVICE_STALE;
    if (sm_cap > d->config.sm_count)
        return CT_DEVICE_INVALID;
    ct_time_enter(d, now_ns);
    if (ct_device_memory_free(d) < d->config.context_bytes)
        return CT_DEVICE_NO_MEMORY;
    uint32_t slot = d->contexts.free;
    if (slot != CT_NONE)
        d->contexts.free = ct_contexts(d)[slot].next;
    else if ((slot = take_unused_slot(&d->contexts)) == CT_NONE)
        return CT_DEVICE_FULL;
    d->contexts.used++;
    struct ct_context *c = &ct_contexts(d)[slot];
    uint16_t generation = next_generation(c->generation);
    memset(c, 0, sizeof *c);
    c->generation = generation;
    c->used = 1;
    c->client = owner;
    c->next = ct_clients(d)[owner].first_context;
    ct_clients(d)[owner].first_context = slot;
    c->first_stream = c->first_event = c->legacy = CT_NONE;
    c->sm_cap = sm_cap;
    c->is_capped = sm_cap || ct_clients(d)[owner].sm_cap;
    c->usage.settled_ns = d->now_ns;
    c->usage.sm_limit = sm_cap ? sm_cap : d->config.sm_count;
    c->usage.is_capped = sm_cap > 0;
    c->usage.on = (uint16_t)ct_group_is_on(d, ct_clients(d)[owner].group);
    *context = handle_of(generation, slot);
    return ct_device_memory_take(d, *context, d->config.context_bytes);
}

int ct_device_context_destroy(struct ct_device *d, uint64_t now_ns, uint32_t context)
{
    uint32_t slot = ct_slot_context(d, context);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    ct_time_enter(d, now_ns);
    ct_delay_settle_all(d);
    destroy_context(d, slot);
    ct_time_settle(d);
    return CT_DEVICE_OK;
}

int ct_device_context_cap(struct ct_device *d, uint64_t now_ns, uint32_t context, uint32_t sm_cap)
{
    uint32_t slot = ct_slot_context(d, context);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    if (sm_cap > d->config.sm_count)
        return CT_DEVICE_INVALID;
    ct_time_enter(d, now_ns);
    struct ct_context *c = &ct_contexts(d)[slot];
    ct_delay_settle_all(d);
    ct_counters_settle(d);
    c->sm_cap = sm_cap;
    c->is_capped = sm_cap || ct_clients(d)[c->client].sm_cap;
    ct_counters_context_cap(d, c);
    ct_grid_split_waves(d, ct_clients(d)[c->client].group);
    d->dispatch_due = 1;
    ct_time_settle(d);
    return CT_DEVICE_OK;
}

uint64_t ct_device_memory_free(const struct ct_device *d)
{
    return d->config.memory_bytes - d->counters.memory_bytes;
}

static void add_memory(struct ct_device_counters *counters, uint64_t bytes)
{
    counters->memory_bytes += bytes;
    counters->memory_peak_bytes = ct_max(counters->memory_peak_bytes, counters->memory_bytes);
}

int ct_device_memory_take(struct ct_device *d, uint32_t context, uint64_t bytes)
{
    uint32_t slot = ct_slot_context(d, context);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    if (bytes > ct_device_memory_free(d))
        return CT_DEVICE_NO_MEMORY;
    add_memory(&ct_contexts(d)[slot].counters, bytes);
    add_memory(&ct_clients(d)[ct_contexts(d)[slot].client].counters, bytes);
    add_memory(&d->counters, bytes);
    return CT_DEVICE_OK;
}

int ct_device_memory_give(struct ct_device *d, uint32_t context, uint64_t bytes)
{
    uint32_t slot = ct_slot_context(d, context);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    if (bytes > ct_contexts(d)[slot].counters.memory_bytes)
        return CT_DEVICE_INVALID;
    ct_contexts(d)[slot].counters.memory_bytes -= bytes;
    ct_clients(d)[ct_contexts(d)[slot].client].counters.memory_bytes -= bytes;
    d->counters.memory_bytes -= bytes;
    return CT_DEVICE_OK;
}

int ct_device_stream_create(struct ct_device *d, uint64_t now_ns, uint32_t context, int kind, int32_t priority,
                            uint32_t *stream)
{
    uint32_t owner = ct_slot_context(d, context);
    if (owner == CT_NONE)
        return CT_DEVICE_STALE;
    struct ct_context *c = &ct_contexts(d)[owner];
    if (kind < CT_STREAM_BLOCKING || kind > CT_STREAM_LEGACY || (kind == CT_STREAM_LEGACY && c->legacy != CT_NONE))
        return CT_DEVICE_INVALID;
    ct_time_enter(d, now_ns);
    uint32_t slot = d->streams.free;
    if (slot != CT_NONE)
        d->streams.free = ct_streams(d)[slot].next;
    else if ((slot = take_unused_slot(&d->streams)) == CT_NONE)
        return CT_DEVICE_FULL;
    d->streams.used++;
    struct ct_stream *s = &ct_streams(d)[slot];
    uint16_t generation = next_generation(s->generation);
    memset(s, 0, sizeof *s);
    s->generation = generation;
    s->handle = handle_of(generation, slot);
    s->used = s->open = 1;
    s->kind = (uint8_t)kind;
    s->priority = priority > d->config.priority_least      ? d->config.priority_least
                  : priority < d->config.priority_greatest ? d->config.priority_greatest
                                                           : priority;
    s->context = owner;
    s->first = s->last = s->next_work = CT_NONE;
    s->next = c->first_stream;
    c->first_stream = slot;
    if (kind == CT_STREAM_LEGACY)
        c->legacy = slot;
    *stream = s->handle;
    return CT_DEVICE_OK;
}

int ct_device_stream_destroy(struct ct_device *d, uint64_t now_ns, uint32_t stream)
{
    uint32_t slot = ct_slot_stream(d, stream);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    ct_time_enter(d, now_ns);
    ct_streams(d)[slot].open = 0;
    ct_stream_close_if_drained(d, slot);
    return CT_DEVICE_OK;
}

int ct_device_event_create(struct ct_device *d, uint32_t context, uint32_t *event)
{
    uint32_t owner = ct_slot_context(d, context);
    if (owner == CT_NONE)
        return CT_DEVICE_STALE;
    uint32_t slot = d->events.free;
    if (slot != CT_NONE)
        d->events.free = ct_events(d)[slot].next;
    else if ((slot = take_unused_slot(&d->events)) == CT_NONE)
        return CT_DEVICE_FULL;
    d->events.used++;
    struct ct_event *e = &ct_events(d)[slot];
    uint16_t generation = next_generation(e->generation);
    memset(e, 0, sizeof *e);
    e->generation = generation;
    e->used = 1;
    e->context = owner;
    e->next = ct_contexts(d)[owner].first_event;
    ct_contexts(d)[owner].first_event = slot;
    *event = handle_of(generation, slot);
    return CT_DEVICE_OK;
}

int ct_device_event_destroy(struct ct_device *d, uint32_t event)
{
    uint32_t slot = ct_slot_event(d, event);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    free_event(d, slot);
    return CT_DEVICE_OK;
}
