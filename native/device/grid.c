/* Assigns blocks to SMs: in order of priority, then of readiness; a running block keeps its slot until it completes. */
#include "device/state.h"

/* Updates everything that depends on how many blocks a kernel has on the SMs. */
static void set_running(struct ct_device *d, struct ct_op *op, uint64_t blocks)
{
    struct ct_context *context = ct_context_of(d, op);
    struct ct_client *client = &ct_clients(d)[context->client];
    struct ct_group *group = &ct_groups(d)[client->group];
    uint64_t before = op->running_blocks;
    ct_counters_blocks(d, op, before, blocks);
    op->running_blocks = blocks;
    /* Unsigned differences: a decrease wraps around, and the sum is still correct. */
    uint64_t share = (blocks - before) * op->share;
    context->held_share += share;
    client->held_share += share;
    group->held_share += share;
    group->demand += (blocks - before) * op->demand;
    group->running_grids += (blocks > 0) - (before > 0);
}

static void refresh_next_end(struct ct_device *d, uint32_t group)
{
    struct ct_group *g = &ct_groups(d)[group];
    const struct ct_chunk *chunks = ct_chunks(d, group);
    uint64_t next_ns = CT_DEVICE_NEVER;
    if (ct_group_is_on(d, group))
        for (uint32_t i = 0; i < g->chunk_count; i++)
            next_ns = ct_min(next_ns, chunks[i].end_ns);
    g->next_end_ns = next_ns;
}

/* Makes the blocks of waves that have not begun pending again, so that another kernel may take the slots at the next
 * boundary. */
static void split_waves(struct ct_device *d, uint32_t group, struct ct_chunk *chunk)
{
    struct ct_op *op = &ct_ops(d)[chunk->op];
    uint64_t from_ns = ct_group_is_on(d, group) ? d->now_ns : 0;
    uint64_t remaining_ns = chunk->end_ns - from_ns;
    if (chunk->waves == 1 || remaining_ns == 0)
        return;
    uint64_t pace = ct_pace(d, op->rate), work_ns = ct_max(1, ct_scale(remaining_ns, pace, CT_RATE_FULL, 0));
    uint64_t unstarted_waves = ct_min((work_ns - 1) / op->block_ns, chunk->waves - 1);
    op->pending_blocks += unstarted_waves * chunk->blocks;
    ct_counters_retired(d, op, (chunk->waves - 1 - unstarted_waves) * chunk->blocks);
    chunk->waves = 1;
    chunk->end_ns = from_ns + ct_scale(work_ns - unstarted_waves * op->block_ns, CT_RATE_FULL, pace, pace - 1);
    d->dispatch_due = 1;
}

void ct_grid_split_waves(struct ct_device *d, uint32_t group)
{
    struct ct_group *g = &ct_groups(d)[group];
    ct_delay_settle(d, group);
    for (uint32_t i = 0; i < g->chunk_count; i++)
        split_waves(d, group, &ct_chunks(d, group)[i]);
    refresh_next_end(d, group);
}

/* Handles the instant at which a wave has ended and the next one is not placed yet. Called only while the model itself
 * advances; an external call comes after the placement. Returns 1 if the chunk was removed. */
static int stop_waves(struct ct_device *d, uint32_t group, struct ct_chunk *chunk)
{
    struct ct_op *op = &ct_ops(d)[chunk->op];
    uint64_t remaining_ns = chunk->end_ns - d->now_ns;
    uint64_t unstarted_waves = remaining_ns / op->block_ns;
    if (!d->in_step || !ct_group_is_on(d, group) || ct_pace(d, op->rate) != CT_RATE_FULL ||
        remaining_ns % op->block_ns != 0 ||
        unstarted_waves >= chunk->waves)
        return 0;
    op->pending_blocks += unstarted_waves * chunk->blocks;
    op->chunks--;
    ct_counters_retired(d, op, (chunk->waves - unstarted_waves) * chunk->blocks);
    set_running(d, op, op->running_blocks - chunk->blocks);
    *chunk = ct_chunks(d, group)[--ct_groups(d)[group].chunk_count];
    return 1;
}

void ct_grid_stop_waves(struct ct_device *d, uint32_t group)
{
    ct_delay_settle(d, group);
    for (uint32_t i = 0; i < ct_groups(d)[group].chunk_count;)
        i += !stop_waves(d, group, &ct_chunks(d, group)[i]);
}

/* Priorities between clients are only partly effective: of the kernels that would overtake kernels of other clients, the
 * configured part does, evenly spread; the others wait in order of readiness. */
static void limit_priority(const struct ct_device *d, struct ct_op *op, struct ct_client *client,
                           const struct ct_group *group)
{
    const uint32_t last = group->last_ready;
    if (d->config.priority_effect_ppm == CT_PPM || last == CT_NONE || ct_ops(d)[last].priority <= op->priority ||
        (group->ready_mask & ~(UINT64_C(1) << ct_context_of(d, op)->client)) == 0)
        return;
    client->priority_credit_ppm += d->config.priority_effect_ppm;
    if (client->priority_credit_ppm >= CT_PPM)
        client->priority_credit_ppm -= CT_PPM;
    else
        op->priority = ct_ops(d)[last].priority;
}

void ct_grid_ready(struct ct_device *d, uint32_t op)
{
    struct ct_op *o = &ct_ops(d)[op];
    uint32_t owner = ct_context_of(d, o)->client;
    struct ct_client *client = &ct_clients(d)[owner];
    struct ct_group *group = &ct_groups(d)[client->group];
    ct_delay_settle(d, client->group);
    limit_priority(d, o, client, group);
    for (uint32_t i = 0; i < group->chunk_count;) {
        struct ct_chunk *chunk = &ct_chunks(d, client->group)[i];
        if (chunk->waves > 1 && o->priority < ct_ops(d)[chunk->op].priority) {
            if (stop_waves(d, client->group, chunk))
                continue;
            split_waves(d, client->group, chunk);
        }
        i++;
    }
    uint32_t before = group->last_ready;
    while (before != CT_NONE && ct_ops(d)[before].priority > o->priority)
        before = ct_ops(d)[before].ready_prev;
    o->ready_prev = before;
    o->ready_next = before == CT_NONE ? group->first_ready : ct_ops(d)[before].ready_next;
    if (before == CT_NONE)
        group->first_ready = op;
    else
        ct_ops(d)[before].ready_next = op;
    if (o->ready_next == CT_NONE)
        group->last_ready = op;
    else
        ct_ops(d)[o->ready_next].ready_prev = op;
    group->ready_grids++;
    client->ready_grids++;
    group->ready_mask |= UINT64_C(1) << owner;
    d->runnable_mask |= UINT64_C(1) << client->group;
    d->ready_count++;
    d->dispatch_due = 1;
}

static void remove_ready(struct ct_device *d, uint32_t op)
{
    struct ct_op *o = &ct_ops(d)[op];
    uint32_t owner = ct_context_of(d, o)->client;
    struct ct_client *client = &ct_clients(d)[owner];
    struct ct_group *group = &ct_groups(d)[client->group];
    if (o->ready_prev == CT_NONE)
        group->first_ready = o->ready_next;
    else
        ct_ops(d)[o->ready_prev].ready_next = o->ready_next;
    if (o->ready_next == CT_NONE)
        group->last_ready = o->ready_prev;
    else
        ct_ops(d)[o->ready_next].ready_prev = o->ready_prev;
    if (o->resident)
        group->resident_grids--;
    if (--client->ready_grids == 0)
        group->ready_mask &= ~(UINT64_C(1) << owner);
    if (--group->ready_grids == 0)
        d->runnable_mask &= ~(UINT64_C(1) << client->group);
}

void ct_grid_remove(struct ct_device *d, uint32_t op)
{
    struct ct_op *o = &ct_ops(d)[op];
    uint32_t group = ct_clients(d)[ct_context_of(d, o)->client].group;
    struct ct_group *g = &ct_groups(d)[group];
    struct ct_chunk *chunks = ct_chunks(d, group);
    ct_delay_settle(d, group);
    for (uint32_t i = 0; i < g->chunk_count;) {
        if (chunks[i].op != op) {
            i++;
            continue;
        }
        split_waves(d, group, &chunks[i]); /* counts the completed waves */
        chunks[i] = chunks[--g->chunk_count];
    }
    set_running(d, o, 0);
    remove_ready(d, op);
    ct_rate_update(d, group);
    refresh_next_end(d, group);
    d->dispatch_due = 1;
}

void ct_grid_finish(struct ct_device *d, uint32_t op)
{
    ct_grid_remove(d, op);
    ct_order_complete(d, op);
}

static uint64_t block_time_ns(const struct ct_device *d, const struct ct_op *op)
{
    uint64_t pace = ct_pace(d, op->rate);
    return pace == CT_RATE_FULL ? op->block_ns : ct_scale(op->block_ns, CT_RATE_FULL, pace, pace - 1);
}

/* Returns the kernel whose blocks are placed next. */
static uint32_t first_waiting(const struct ct_device *d, const struct ct_group *g)
{
    uint32_t op = g->first_ready;
    while (op != CT_NONE && ct_ops(d)[op].pending_blocks == 0)
        op = ct_ops(d)[op].ready_next;
    return op;
}

/* Handles the common case of a long grid: every block that ends is replaced by the next one of the same kernel and
 * nothing else changes, so shares, rates and delays stay the same. Returns 0 if this is not the case. With enough
 * waiting blocks for a whole device, the solo rate stays the same too. */
int ct_grid_refill(struct ct_device *d, uint32_t group)
{
    struct ct_group *g = &ct_groups(d)[group];
    struct ct_chunk *chunks = ct_chunks(d, group);
    uint32_t first = first_waiting(d, g);
    uint64_t blocks = 0;
    if (first == CT_NONE || d->work_first != CT_NONE || d->slice_end_ns == d->now_ns || d->dispatch_due)
        return 0;
    struct ct_op *op = &ct_ops(d)[first];
    if (ct_context_of(d, op)->is_capped) /* and possibly beyond its cap, which may have been lowered */
        return 0;
    for (uint32_t i = 0; i < g->chunk_count; i++) {
        if (chunks[i].end_ns != d->now_ns)
            continue;
        if (chunks[i].op != first || chunks[i].waves != 1)
            return 0;
        blocks += chunks[i].blocks;
    }
    if (op->pending_blocks < blocks + d->capacity_share / op->share)
        return 0;
    uint64_t end_ns = ct_instant_after(d->now_ns, block_time_ns(d, op)), next_ns = end_ns;
    for (uint32_t i = 0; i < g->chunk_count; i++) {
        if (chunks[i].end_ns == d->now_ns)
            chunks[i].end_ns = end_ns;
        next_ns = ct_min(next_ns, chunks[i].end_ns);
    }
    op->pending_blocks -= blocks;
    ct_counters_retired(d, op, blocks);
    g->next_end_ns = next_ns;
    return 1;
}

/* Removes all blocks that end now together, so that their slots are assigned together. Kernels that end at the same
 * instant complete in the order of the list: by priority, then by readiness. */
void ct_grid_retire(struct ct_device *d, uint32_t group)
{
    struct ct_group *g = &ct_groups(d)[group];
    struct ct_chunk *chunks = ct_chunks(d, group);
    uint32_t finished = 0;
    ct_delay_settle(d, group);
    for (uint32_t i = 0; i < g->chunk_count;) {
        if (chunks[i].end_ns != d->now_ns) {
            i++;
            continue;
        }
        struct ct_chunk ended = chunks[i];
        struct ct_op *o = &ct_ops(d)[ended.op];
        chunks[i] = chunks[--g->chunk_count];
        o->chunks--;
        set_running(d, o, o->running_blocks - ended.blocks);
        ct_counters_retired(d, o, ended.waves * ended.blocks);
        finished += o->pending_blocks == 0 && o->running_blocks == 0;
    }
    for (uint32_t op = g->first_ready, next; finished > 0; op = next) {
        const struct ct_op *o = &ct_ops(d)[op];
        next = o->ready_next;
        if (o->pending_blocks > 0 || o->running_blocks > 0)
            continue;
        remove_ready(d, op);
        ct_order_complete(d, op);
        finished--;
    }
    g->next_end_ns = CT_DEVICE_NEVER;
    d->dispatch_due = 1;
}

/* Adds blocks to the kernel's latest chunk, because too many chunks are in flight. Its end becomes the mean weighted by
 * blocks. */
static void merge_into_latest(struct ct_device *d, uint32_t group, uint32_t op, uint64_t blocks, uint64_t end_ns)
{
    struct ct_chunk *latest = NULL;
    for (uint32_t i = 0; i < ct_groups(d)[group].chunk_count; i++) {
        struct ct_chunk *chunk = &ct_chunks(d, group)[i];
        if (chunk->op == op && (latest == NULL || chunk->end_ns > latest->end_ns))
            latest = chunk;
    }
    uint64_t early_ns = ct_min(latest->end_ns, end_ns);
    uint64_t early_blocks = latest->end_ns < end_ns ? latest->blocks : blocks;
    uint64_t total_blocks = latest->blocks + blocks;
    latest->end_ns = ct_max(latest->end_ns, end_ns) -
                       ct_scale(ct_max(latest->end_ns, end_ns) - early_ns, early_blocks, total_blocks, 0);
    latest->blocks = (uint32_t)total_blocks;
    d->counters.merged_chunks++;
}

/* Places this many blocks in free slots; returns 0 if no further kernel can be resident. `is_first`: no earlier kernel
 * waits for slots. */
static int place_blocks(struct ct_device *d, uint32_t group, uint32_t op, uint64_t blocks, int is_first)
{
    struct ct_group *g = &ct_groups(d)[group];
    struct ct_op *o = &ct_ops(d)[op];
    int must_merge = o->chunks >= CT_KERNEL_CHUNKS || g->chunk_count == CT_GROUP_CHUNKS;
    if ((!o->resident && g->resident_grids >= d->config.resident_kernels) || (must_merge && o->chunks == 0))
        return 0;
    if (!o->resident) {
        o->resident = 1;
        o->start_ns = d->now_ns;
        g->resident_grids++;
    }
    uint64_t wave_ns = block_time_ns(d, o);
    if (must_merge) {
        merge_into_latest(d, group, op, blocks, ct_instant_after(d->now_ns, wave_ns));
        o->pending_blocks -= blocks;
    } else {
        /* A kernel that is alone on the SMs and first in order uses the same slots again and again: one chunk of
         * several waves. A later kernel cannot interrupt it; an earlier one splits the chunk. The last, partial wave is
         * separate. */
        uint64_t waves = g->chunk_count == 0 && is_first ? o->pending_blocks / blocks : 1;
        uint64_t end_ns = ct_instant_after(d->now_ns, ct_scale(wave_ns, waves, 1, 0));
        ct_chunks(d, group)[g->chunk_count++] = (struct ct_chunk){op, (uint32_t)blocks, waves, end_ns};
        o->chunks++;
        o->pending_blocks -= waves * blocks;
    }
    set_running(d, o, o->running_blocks + blocks);
    return 1;
}

void ct_grid_dispatch(struct ct_device *d, uint32_t group)
{
    struct ct_group *g = &ct_groups(d)[group];
    if (!ct_group_is_on(d, group))
        return;
    ct_delay_settle(d, group);
    int is_first = 1;
    for (uint32_t op = g->first_ready; op != CT_NONE; op = ct_ops(d)[op].ready_next) {
        struct ct_op *o = &ct_ops(d)[op];
        if (o->pending_blocks == 0)
            continue;
        uint64_t free_share = d->capacity_share - g->held_share;
        int is_cap_reached = 0;
        if (free_share == 0)
            break;
        if (ct_is_capped(d, o)) {
            uint64_t own = ct_cap_available(d, o, NULL, 0);
            is_cap_reached = own < free_share;
            free_share = ct_min(free_share, own);
        }
        uint64_t blocks = ct_min(o->pending_blocks, free_share / o->share);
        if (blocks > 0 && !place_blocks(d, group, op, blocks, is_first)) {
            is_first = 0;
            continue; /* kernels that are already resident continue, otherwise their slots would never become free */
        }
        /* Strict order up to the last block: no kernel overtakes one that waits for slots, unless that one waits
         * because of a cap. */
        if (o->pending_blocks > 0 && !is_cap_reached)
            break;
    }
    ct_rate_update(d, group);
    refresh_next_end(d, group);
}
