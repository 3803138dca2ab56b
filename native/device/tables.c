/* The layout of the state: one memory area divided into tables, and handles that detect stale objects. */
#include "device/state.h"

#include <string.h>

/* Reserves bytes for a table, aligned to a cache line, and returns its offset. */
static size_t reserve_bytes(size_t *total, size_t bytes)
{
    size_t offset = *total;
    *total += (bytes + 63) / 64 * 64;
    return offset;
}

/* Computes the offsets of all tables and returns the total size: first the live state, then the state of projections
 * with the same offsets, then the records. */
static size_t lay_out(const struct ct_device_limits *limits, struct ct_device *d)
{
    size_t total = 0;
    reserve_bytes(&total, sizeof *d);
    d->groups_offset = reserve_bytes(&total, limits->clients * sizeof(struct ct_group));
    d->clients_offset = reserve_bytes(&total, limits->clients * sizeof(struct ct_client));
    d->chunks_offset = reserve_bytes(&total, (size_t)limits->clients * CT_GROUP_CHUNKS * sizeof(struct ct_chunk));
    d->contexts.offset = reserve_bytes(&total, limits->contexts * sizeof(struct ct_context));
    d->streams.offset = reserve_bytes(&total, limits->streams * sizeof(struct ct_stream));
    d->events.offset = reserve_bytes(&total, limits->events * sizeof(struct ct_event));
    d->ops.offset = reserve_bytes(&total, limits->ops * sizeof(struct ct_op));
    d->ahead_offset = reserve_bytes(&total, total);
    d->records_offset = reserve_bytes(&total, limits->records * sizeof(struct ct_device_record));
    return total;
}

static int is_in_range(uint32_t value, uint32_t limit)
{
    return value >= 1 && value <= limit;
}

size_t ct_device_bytes(const struct ct_device_limits *limits)
{
    struct ct_device scratch;
    if (!is_in_range(limits->clients, CT_DEVICE_MAX_CLIENTS) || !is_in_range(limits->contexts, CT_DEVICE_MAX_HANDLES) ||
        !is_in_range(limits->streams, CT_DEVICE_MAX_HANDLES) || !is_in_range(limits->events, CT_DEVICE_MAX_HANDLES) ||
        !is_in_range(limits->ops, 1u << 24) || !is_in_range(limits->records, 1u << 25))
        return 0;
    return lay_out(limits, &scratch);
}

static int is_valid_config(const struct ct_device_config *c)
{
    return is_in_range(c->sm_count, 1024) && is_in_range(c->blocks_per_sm, CT_MAX_OCCUPANCY) &&
        c->threads_per_sm >= 1 &&
           is_in_range(c->threads_per_block, 1u << 16) && c->registers_per_sm >= 1 &&
           is_in_range(c->resident_kernels, CT_RESIDENT_LIMIT) && c->copy_engines >= 1 && c->memory_bytes_per_s >= 1 &&
           c->host_bytes_per_s >= 1 && c->slice_ns >= 1 && c->priority_greatest <= c->priority_least &&
           c->issue_full_ppm <= CT_PPM && c->cache_contention_ppm <= CT_CONTENTION_MAX_PPM &&
           c->dram_contention_ppm <= CT_CONTENTION_MAX_PPM && c->clock_drop_ppm <= CT_PPM / 2 &&
           c->priority_effect_ppm <= CT_PPM;
}

static void table_init(struct ct_table *table, uint32_t slots)
{
    table->slots = slots;
    table->free = CT_NONE;
    table->touched = table->used = 0;
}

int ct_device_init(void *memory, size_t bytes, const struct ct_device_config *config,
                   const struct ct_device_limits *limits, uint64_t now_ns, struct ct_device **device)
{
    struct ct_device *d = memory;
    size_t needed = ct_device_bytes(limits);
    if (needed == 0 || bytes < needed || (uintptr_t)memory % 64 != 0 || !is_valid_config(config))
        return CT_DEVICE_INVALID;
    struct ct_device layout;
    lay_out(limits, &layout);
    /* The ops, by far the largest part, are not cleared: each is written when it is taken, and untouched memory costs
     * nothing. */
    memset(memory, 0, layout.ops.offset);
    memset((char *)memory + layout.ahead_offset, 0, layout.ops.offset);
    lay_out(limits, d);
    d->config = *config;
    d->limits = *limits;
    table_init(&d->contexts, limits->contexts);
    table_init(&d->streams, limits->streams);
    table_init(&d->events, limits->events);
    table_init(&d->ops, limits->ops);
    d->now_ns = now_ns;
    d->epoch = 1;
    d->capacity_share = config->sm_count * CT_SM_UNITS;
    d->speed = CT_DEVICE_FULL_SPEED;
    d->contends = config->issue_full_ppm || config->cache_contention_ppm || config->dram_contention_ppm ||
                  config->clock_drop_ppm;
    d->work_first = d->work_last = d->first_deferred = CT_NONE;
    d->active = d->resident = d->outgoing = CT_NONE;
    d->switch_end_ns = d->slice_end_ns = CT_DEVICE_NEVER;
    for (int i = 0; i < CT_ENGINES; i++)
        d->engines[i] = (struct ct_engine){CT_NONE, CT_NONE, CT_DEVICE_NEVER};
    d->usage = (struct ct_usage){.settled_ns = now_ns, .sm_limit = config->sm_count, .on = 1};
    for (uint32_t i = 0; i < limits->clients; i++)
        ct_groups(d)[i].next_end_ns = CT_DEVICE_NEVER;
    d->record_kinds = (1u << CT_OP_KINDS) - 1;
    d->record_kinds &= ~(1u << CT_OP_EVENT_WAIT | 1u << CT_OP_MARKER);
    *device = d;
    return CT_DEVICE_OK;
}

const struct ct_device_config *ct_device_config(const struct ct_device *device)
{
    return &device->config;
}

uint32_t ct_slot_client(const struct ct_device *d, uint32_t handle)
{
    uint32_t slot = handle & 0xffff;
    if (slot >= d->limits.clients || !ct_clients(d)[slot].used || ct_clients(d)[slot].generation != handle >> 16)
        return CT_NONE;
    return slot;
}

uint32_t ct_slot_context(const struct ct_device *d, uint32_t handle)
{
    uint32_t slot = handle & 0xffff;
    if (slot >= d->contexts.touched || !ct_contexts(d)[slot].used || ct_contexts(d)[slot].generation != handle >> 16)
        return CT_NONE;
    return slot;
}

uint32_t ct_slot_stream(const struct ct_device *d, uint32_t handle)
{
    uint32_t slot = handle & 0xffff;
    if (slot >= d->streams.touched || !ct_streams(d)[slot].open || ct_streams(d)[slot].handle != handle)
        return CT_NONE;
    return slot;
}

uint32_t ct_slot_event(const struct ct_device *d, uint32_t handle)
{
    uint32_t slot = handle & 0xffff;
    if (slot >= d->events.touched || !ct_events(d)[slot].used || ct_events(d)[slot].generation != handle >> 16)
        return CT_NONE;
    return slot;
}

uint32_t ct_slot_op(const struct ct_device *d, uint64_t op)
{
    uint64_t slot = op & UINT32_MAX;
    if (slot >= d->ops.touched || ct_ops(d)[slot].state == CT_OP_FREE || ct_ops(d)[slot].generation != op >> 32)
        return CT_NONE;
    return (uint32_t)slot;
}

uint32_t ct_take_op(struct ct_device *d)
{
    uint32_t slot = d->ops.free;
    uint32_t generation = 1;
    if (slot != CT_NONE) {
        d->ops.free = ct_ops(d)[slot].next;
        generation = ct_ops(d)[slot].generation + 1;
        if (generation == 0)
            generation = 1;
    } else if (d->ops.touched < d->ops.slots) {
        slot = d->ops.touched++;
    } else {
        return CT_NONE;
    }
    d->ops.used++;
    struct ct_op *op = &ct_ops(d)[slot];
    memset(op, 0, sizeof *op);
    op->generation = generation;
    op->state = CT_OP_QUEUED;
    op->next = op->ready_prev = op->ready_next = CT_NONE;
    op->event = op->first_waiter = op->next_waiter = CT_NONE;
    op->rate = CT_RATE_FULL;
    return slot;
}

void ct_free_op(struct ct_device *d, uint32_t slot)
{
    struct ct_op *op = &ct_ops(d)[slot];
    op->state = CT_OP_FREE;
    op->next = d->ops.free;
    d->ops.free = slot;
    d->ops.used--;
}
