/* Delays between clients: compares each kernel's progress with what it would be at the same instant without the other
 * clients. device.h defines it, above struct ct_device_counters. */
#include "device/state.h"

/* Computes which kernels of a client would have blocks on the SMs now without the other clients, and how many
 * blocks. */
static uint32_t place_alone(const struct ct_device *d, const struct ct_group *g, uint32_t owner,
                            struct ct_placement *placed)
{
    uint64_t free_share = d->capacity_share - ct_clients(d)[owner].held_share;
    uint32_t count = 0;
    int blocked = 0;
    for (uint32_t op = g->first_ready; op != CT_NONE && count < CT_RESIDENT_LIMIT; op = ct_ops(d)[op].ready_next) {
        const struct ct_op *o = &ct_ops(d)[op];
        if (ct_context_of(d, o)->client != owner)
            continue;
        uint64_t blocks = o->running_blocks;
        if (o->pending_blocks > 0 && !blocked) {
            uint64_t own = ct_is_capped(d, o) ? ct_cap_available(d, o, placed, count) : free_share;
            uint64_t added = ct_min(o->pending_blocks, ct_min(free_share, own) / o->share);
            blocked = added < o->pending_blocks && own >= free_share; /* because of missing SMs, not of a cap */
            free_share -= added * o->share;
            blocks += added;
        }
        if (blocks > 0)
            placed[count++] = (struct ct_placement){op, blocks};
    }
    return count;
}

static void charge_delay(struct ct_device *d, struct ct_op *op, uint64_t lost_ns, uint64_t culprits)
{
    struct ct_context *context = ct_context_of(d, op);
    struct ct_client *waiter = &ct_clients(d)[context->client];
    uint64_t held = 0, remaining_ns = lost_ns;
    if (lost_ns == 0 || culprits == 0)
        return;
    op->delayed_ns += lost_ns;
    context->counters.delayed_ns += lost_ns;
    waiter->counters.delayed_ns += lost_ns;
    d->counters.delayed_ns += lost_ns;
    uint32_t first = ct_lowest(culprits);
    if (culprits & (culprits - 1)) {
        for (uint64_t mask = culprits; mask; mask &= mask - 1)
            held += ct_clients(d)[ct_lowest(mask)].held_share;
        for (uint64_t mask = culprits & (culprits - 1); held > 0 && mask; mask &= mask - 1) {
            uint64_t part_ns = ct_scale(lost_ns, ct_clients(d)[ct_lowest(mask)].held_share, held, 0);
            waiter->delayed_by_ns[ct_lowest(mask)] += part_ns;
            remaining_ns -= part_ns;
        }
    }
    waiter->delayed_by_ns[first] += remaining_ns;
}

/* Charges the delay of a group that is switched out or is being switched in: every runnable kernel loses all of this
 * time to the group on the device. */
static void settle_waiting(struct ct_device *d, uint32_t group, uint64_t passed_ns)
{
    const struct ct_group *g = &ct_groups(d)[group];
    uint32_t holder = d->switching && d->active == group ? d->outgoing : d->active;
    struct ct_placement placed[CT_RESIDENT_LIMIT];
    if (holder == CT_NONE)
        return;
    const struct ct_group *other = &ct_groups(d)[holder];
    uint64_t culprits = other->ready_mask ? other->ready_mask : other->blame_mask;
    for (uint64_t mask = g->ready_mask; mask; mask &= mask - 1) {
        uint32_t count = place_alone(d, g, ct_lowest(mask), placed);
        for (uint32_t i = 0; i < count; i++)
            charge_delay(d, &ct_ops(d)[placed[i].op], passed_ns, culprits);
    }
}

/* Charges the delay of a client in a group on the device with several clients, which lose slots and bandwidth to each
 * other. */
static void settle_sharing(struct ct_device *d, uint32_t group, uint32_t owner, uint64_t passed_ns)
{
    const struct ct_group *g = &ct_groups(d)[group];
    struct ct_placement placed[CT_RESIDENT_LIMIT];
    struct ct_flow flows[CT_RESIDENT_LIMIT];
    uint32_t count = place_alone(d, g, owner, placed);
    for (uint32_t i = 0; i < count; i++)
        ct_flow_add(d, &flows[i], &ct_ops(d)[placed[i].op], placed[i].blocks);
    ct_rate_compute(d, flows, count);
    for (uint32_t i = 0; i < count; i++) {
        struct ct_op *o = &ct_ops(d)[placed[i].op];
        uint64_t service = o->running_blocks * o->rate, solo = placed[i].blocks * flows[i].rate;
        if (service < solo)
            charge_delay(d, o, ct_scale(passed_ns, solo - service, solo, 0), g->ready_mask & ~(UINT64_C(1) << owner));
    }
}

void ct_delay_settle(struct ct_device *d, uint32_t group)
{
    struct ct_group *g = &ct_groups(d)[group];
    uint64_t passed_ns = d->now_ns - g->delays_settled_ns;
    g->delays_settled_ns = d->now_ns;
    if (passed_ns == 0 || g->ready_grids == 0 || d->is_ahead)
        return;
    if (!ct_group_is_on(d, group))
        settle_waiting(d, group, passed_ns);
    else if (g->ready_mask & (g->ready_mask - 1))
        for (uint64_t mask = g->ready_mask; mask; mask &= mask - 1)
            settle_sharing(d, group, ct_lowest(mask), passed_ns);
}

void ct_delay_settle_all(struct ct_device *d)
{
    for (uint64_t mask = d->runnable_mask; mask; mask &= mask - 1)
        ct_delay_settle(d, ct_lowest(mask));
}
