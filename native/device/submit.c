/* Submission of kernels, copies, host functions and events, and queries about them. */
#include "device/state.h"

/* A block's demand is limited so that sums over a whole device fit 64 bits. */
static const uint64_t DEMAND_MAX = UINT64_C(1) << 48;

/* The grid that represents copies within the device and memsets, chosen: one block per 256 KiB until the grid fills the
 * SMs once; together the blocks ask for the whole bandwidth, or what one block per SM can use. */
enum { MOVER_BYTES = 256 * 1024, MOVER_THREADS = 512, MOVER_BLOCKS_PER_SM = 2 };

/* Advances to the instant and takes an op for the stream. */
static int begin_op(struct ct_device *d, uint64_t now_ns, uint32_t stream, int kind, uint64_t tag, uint32_t *slot,
                    uint32_t *op)
{
    ct_time_enter(d, now_ns);
    *slot = ct_slot_stream(d, stream);
    if (*slot == CT_NONE)
        return CT_DEVICE_STALE;
    *op = ct_take_op(d);
    if (*op == CT_NONE)
        return CT_DEVICE_FULL;
    ct_ops(d)[*op].kind = (uint8_t)kind;
    ct_ops(d)[*op].tag = tag;
    return CT_DEVICE_OK;
}

/* Appends the op to its stream and processes the consequences. */
static int append_op(struct ct_device *d, uint32_t stream, uint32_t op, uint64_t *id)
{
    if (id)
        *id = ct_op_id(d, op);
    ct_order_append(d, stream, op);
    ct_time_settle(d);
    return CT_DEVICE_OK;
}

static void set_shape(struct ct_op *op, uint64_t blocks, uint64_t block_ns, uint64_t bytes_per_block,
                      uint32_t occupancy)
{
    op->pending_blocks = blocks;
    op->block_ns = ct_max(block_ns, 1);
    op->bytes_per_block = bytes_per_block;
    op->share = CT_SM_UNITS / occupancy;
    op->demand = bytes_per_block ? ct_min(DEMAND_MAX, ct_scale(bytes_per_block, 1000000000, op->block_ns, 0)) : 0;
}

int ct_device_launch(struct ct_device *d, uint64_t now_ns, uint32_t stream, const struct ct_kernel *kernel,
                     uint64_t tag, uint64_t *id)
{
    uint32_t slot, op;
    uint32_t occupancy = kernel->blocks_per_sm;
    if (kernel->blocks == 0 || kernel->blocks > UINT64_C(1) << 48 || kernel->sm_cap > d->config.sm_count)
        return CT_DEVICE_INVALID;
    if (occupancy == 0)
        occupancy = ct_device_occupancy(&d->config, kernel->threads_per_block, kernel->registers_per_thread,
                                        kernel->shared_bytes_per_block);
    if (occupancy == 0 || occupancy > CT_MAX_OCCUPANCY)
        return CT_DEVICE_NO_FIT;
    int result = begin_op(d, now_ns, stream, CT_OP_KERNEL, tag, &slot, &op);
    if (result != CT_DEVICE_OK)
        return result;
    set_shape(&ct_ops(d)[op], kernel->blocks, kernel->block_ns, kernel->bytes_per_block, occupancy);
    ct_ops(d)[op].threads_per_block = kernel->threads_per_block;
    ct_ops(d)[op].sm_cap = kernel->sm_cap < d->config.sm_count ? kernel->sm_cap : 0;
    return append_op(d, slot, op, id);
}

/* Sets the shape of a copy within the device or a memset. `moved_bytes` are read and written for a copy, written for a
 * memset. */
static void set_mover_shape(const struct ct_device *d, struct ct_op *op, uint64_t moved_bytes)
{
    uint64_t limit = (uint64_t)d->config.sm_count * MOVER_BLOCKS_PER_SM;
    uint64_t blocks = ct_max(1, ct_min(limit, (moved_bytes + MOVER_BYTES - 1) / MOVER_BYTES));
    uint64_t bytes = (moved_bytes + blocks - 1) / blocks;
    /* A few blocks cannot use the whole bandwidth: the blocks of an SM can use an SM's share of it. */
    uint64_t per_block_bytes_per_s = ct_max(1, d->config.memory_bytes_per_s / ct_max(blocks, d->config.sm_count));
    set_shape(op, blocks, ct_scale(bytes, 1000000000, per_block_bytes_per_s, per_block_bytes_per_s - 1), bytes,
              MOVER_BLOCKS_PER_SM);
    op->threads_per_block = MOVER_THREADS;
}

int ct_device_copy(struct ct_device *d, uint64_t now_ns, uint32_t stream, int kind, uint64_t bytes, uint64_t tag,
                   uint64_t *id)
{
    uint32_t slot, op;
    if (kind < CT_OP_COPY_HTOD || kind > CT_OP_MEMSET || bytes > UINT64_C(1) << 48)
        return CT_DEVICE_INVALID;
    int result = begin_op(d, now_ns, stream, kind, tag, &slot, &op);
    if (result != CT_DEVICE_OK)
        return result;
    ct_ops(d)[op].bytes = bytes;
    if (kind == CT_OP_COPY_DTOD || kind == CT_OP_MEMSET)
        set_mover_shape(d, &ct_ops(d)[op], kind == CT_OP_COPY_DTOD ? 2 * bytes : bytes);
    return append_op(d, slot, op, id);
}

/* Submits an op that has no further parameters. */
static int submit_plain(struct ct_device *d, uint64_t now_ns, uint32_t stream, int kind, uint64_t tag, uint64_t *id)
{
    uint32_t slot, op;
    int result = begin_op(d, now_ns, stream, kind, tag, &slot, &op);
    return result != CT_DEVICE_OK ? result : append_op(d, slot, op, id);
}

int ct_device_marker(struct ct_device *d, uint64_t now_ns, uint32_t stream, uint64_t tag, uint64_t *id)
{
    return submit_plain(d, now_ns, stream, CT_OP_MARKER, tag, id);
}

int ct_device_host(struct ct_device *d, uint64_t now_ns, uint32_t stream, uint64_t tag, uint64_t *id)
{
    return submit_plain(d, now_ns, stream, CT_OP_HOST, tag, id);
}

int ct_device_op_cut(struct ct_device *d, uint64_t now_ns, uint64_t id)
{
    ct_time_enter(d, now_ns);
    uint32_t op = ct_slot_op(d, id);
    if (op == CT_NONE)
        return CT_DEVICE_STALE;
    struct ct_op *o = &ct_ops(d)[op];
    if (o->kind != CT_OP_KERNEL && o->kind != CT_OP_COPY_DTOD && o->kind != CT_OP_MEMSET)
        return CT_DEVICE_INVALID;
    if (o->state == CT_OP_READY) {
        ct_delay_settle_all(d);
        ct_grid_finish(d, op);
    } else {
        o->pending_blocks = o->block_ns = 1;
    }
    ct_time_settle(d);
    return CT_DEVICE_OK;
}

int ct_device_host_done(struct ct_device *d, uint64_t now_ns, uint64_t id)
{
    ct_time_enter(d, now_ns);
    uint32_t op = ct_slot_op(d, id);
    if (op == CT_NONE || ct_ops(d)[op].kind != CT_OP_HOST)
        return CT_DEVICE_STALE;
    if (ct_ops(d)[op].state != CT_OP_READY)
        return CT_DEVICE_NOT_READY;
    ct_order_complete(d, op);
    ct_time_settle(d);
    return CT_DEVICE_OK;
}

int ct_device_event_record(struct ct_device *d, uint64_t now_ns, uint32_t stream, uint32_t event, uint64_t tag,
                           uint64_t *id)
{
    uint32_t slot, op;
    uint32_t event_slot = ct_slot_event(d, event);
    if (event_slot == CT_NONE)
        return CT_DEVICE_STALE;
    int result = begin_op(d, now_ns, stream, CT_OP_EVENT_RECORD, tag, &slot, &op);
    if (result != CT_DEVICE_OK)
        return result;
    ct_ops(d)[op].event = event_slot;
    ct_events(d)[event_slot].record = ct_op_id(d, op);
    ct_events(d)[event_slot].done = 0;
    return append_op(d, slot, op, id);
}

int ct_device_event_wait(struct ct_device *d, uint64_t now_ns, uint32_t stream, uint32_t event, uint64_t tag,
                         uint64_t *id)
{
    uint32_t slot, op;
    uint32_t event_slot = ct_slot_event(d, event);
    if (event_slot == CT_NONE)
        return CT_DEVICE_STALE;
    int result = begin_op(d, now_ns, stream, CT_OP_EVENT_WAIT, tag, &slot, &op);
    if (result != CT_DEVICE_OK)
        return result;
    struct ct_op *o = &ct_ops(d)[op];
    o->awaits = ct_events(d)[event_slot].record;
    uint32_t record = ct_slot_op(d, o->awaits);
    if (record != CT_NONE) {
        o->next_waiter = ct_ops(d)[record].first_waiter;
        ct_ops(d)[record].first_waiter = op;
    }
    return append_op(d, slot, op, id);
}

int ct_device_op_query(const struct ct_device *d, uint64_t op)
{
    return ct_slot_op(d, op) == CT_NONE ? CT_DEVICE_OK : CT_DEVICE_NOT_READY;
}

int ct_device_op_begun(const struct ct_device *d, uint64_t id)
{
    uint32_t op = ct_slot_op(d, id);
    if (op == CT_NONE || ct_ops(d)[op].state != CT_OP_READY || !ct_ops(d)[op].running_blocks)
        return 0;
    const struct ct_op *o = &ct_ops(d)[op];
    uint32_t group = ct_clients(d)[ct_context_of(d, o)->client].group;
    return !o->pending_blocks && ct_group_is_on(d, group) ? 2 : 1;
}

int ct_device_event_query(const struct ct_device *d, uint32_t event)
{
    uint32_t slot = ct_slot_event(d, event);
    return slot == CT_NONE ? CT_DEVICE_STALE : ct_device_op_query(d, ct_events(d)[slot].record);
}

int ct_device_event_time(const struct ct_device *d, uint32_t event, uint64_t *instant_ns)
{
    uint32_t slot = ct_slot_event(d, event);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    if (ct_events(d)[slot].record == 0)
        return CT_DEVICE_INVALID;
    if (!ct_events(d)[slot].done)
        return CT_DEVICE_NOT_READY;
    *instant_ns = ct_events(d)[slot].instant_ns;
    return CT_DEVICE_OK;
}

uint64_t ct_device_event_op(const struct ct_device *d, uint32_t event)
{
    uint32_t slot = ct_slot_event(d, event);
    return slot == CT_NONE ? 0 : ct_events(d)[slot].record;
}

int ct_device_stream_query(const struct ct_device *d, uint32_t stream)
{
    uint32_t slot = ct_slot_stream(d, stream);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    return ct_streams(d)[slot].first == CT_NONE ? CT_DEVICE_OK : CT_DEVICE_NOT_READY;
}

uint64_t ct_device_stream_last(const struct ct_device *d, uint32_t stream)
{
    uint32_t slot = ct_slot_stream(d, stream);
    return slot == CT_NONE || ct_streams(d)[slot].last == CT_NONE ? 0 : ct_op_id(d, ct_streams(d)[slot].last);
}

int ct_device_context_query(const struct ct_device *d, uint32_t context)
{
    uint32_t slot = ct_slot_context(d, context);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    for (uint32_t s = ct_contexts(d)[slot].first_stream; s != CT_NONE; s = ct_streams(d)[s].next)
        if (ct_streams(d)[s].first != CT_NONE)
            return CT_DEVICE_NOT_READY;
    return CT_DEVICE_OK;
}
