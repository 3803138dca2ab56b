/* Divides the memory bandwidth: every kernel gets what it asks for, or a fair share of what is available. */
#include "device/state.h"

/* Max-min fairness weighted by the SMs held: a kernel that asks for less than its share gets all of it and leaves the
 * rest to the others. Requests come from SMs, so a kernel's weight grows with the SMs it holds. */
void ct_rate_share(struct ct_flow *flows, uint32_t count, uint64_t bytes_per_s)
{
    ct_u128 weights = 0;
    uint64_t remaining = bytes_per_s;
    for (uint32_t i = 0; i < count; i++) {
        flows[i].rate = 0;
        weights += flows[i].weight;
    }
    for (int changed = 1; changed;) {
        changed = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (flows[i].rate || (ct_u128)flows[i].demand * weights > (ct_u128)remaining * flows[i].weight)
                continue;
            flows[i].rate = CT_RATE_FULL;
            remaining -= flows[i].demand;
            weights -= flows[i].weight;
            changed = 1;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (flows[i].rate)
            continue;
        ct_u128 granted = (ct_u128)remaining * flows[i].weight / weights;
        flows[i].rate = ct_max(1, ct_min(CT_RATE_FULL, (uint64_t)(granted * CT_RATE_FULL / flows[i].demand)));
    }
}

/* Returns the end of work that continues at another rate. */
static uint64_t rescaled_end(uint64_t end_ns, uint64_t from_ns, uint64_t pace, uint64_t next_pace)
{
    return ct_instant_after(from_ns, ct_scale(end_ns - from_ns, pace, next_pace, next_pace - 1));
}

int ct_device_set_speed(struct ct_device *d, uint64_t now_ns, uint32_t speed)
{
    if (speed == 0 || speed > CT_DEVICE_FULL_SPEED)
        return CT_DEVICE_INVALID;
    ct_time_enter(d, now_ns);
    if (speed == d->speed)
        return CT_DEVICE_OK;
    uint64_t before = d->speed;
    for (uint32_t group = 0; group < d->limits.clients; group++) {
        struct ct_group *g = &ct_groups(d)[group];
        struct ct_chunk *chunks = ct_chunks(d, group);
        int is_on = ct_group_is_on(d, group);
        uint64_t from_ns = is_on ? d->now_ns : 0, next_ns = CT_DEVICE_NEVER;
        for (uint32_t i = 0; i < g->chunk_count; i++) {
            uint64_t rate = ct_ops(d)[chunks[i].op].rate;
            d->speed = before;
            uint64_t pace = ct_pace(d, rate);
            d->speed = speed;
            chunks[i].end_ns = rescaled_end(chunks[i].end_ns, from_ns, pace, ct_pace(d, rate));
            next_ns = ct_min(next_ns, chunks[i].end_ns);
        }
        if (is_on)
            g->next_end_ns = next_ns;
    }
    d->speed = speed;
    return CT_DEVICE_OK;
}

uint32_t ct_device_speed(const struct ct_device *d)
{
    return (uint32_t)d->speed;
}

/* Computes new rates and new ends after the set of running blocks has changed. */
void ct_rate_update(struct ct_device *d, uint32_t group)
{
    struct ct_group *g = &ct_groups(d)[group];
    struct ct_chunk *chunks = ct_chunks(d, group);
    struct ct_flow flows[CT_RESIDENT_LIMIT];
    uint32_t count = 0;
    uint64_t from_ns = ct_group_is_on(d, group) ? d->now_ns : 0;
    if (g->demand <= d->config.memory_bytes_per_s && !g->slowed)
        return;
    for (uint32_t op = g->first_ready; op != CT_NONE; op = ct_ops(d)[op].ready_next) {
        const struct ct_op *o = &ct_ops(d)[op];
        if (o->running_blocks > 0)
            flows[count++] = (struct ct_flow){ct_scale(o->demand, o->running_blocks, 1, 0),
                                              (o->running_blocks * o->share) >> 16, 0};
    }
    ct_rate_share(flows, count, d->config.memory_bytes_per_s);
    count = 0;
    g->slowed = 0;
    for (uint32_t op = g->first_ready; op != CT_NONE; op = ct_ops(d)[op].ready_next) {
        struct ct_op *o = &ct_ops(d)[op];
        if (o->running_blocks == 0)
            continue;
        o->next_rate = flows[count++].rate;
        g->slowed |= o->next_rate != CT_RATE_FULL;
    }
    for (uint32_t i = 0; i < g->chunk_count; i++) {
        const struct ct_op *o = &ct_ops(d)[chunks[i].op];
        if (o->next_rate != o->rate)
            chunks[i].end_ns = rescaled_end(chunks[i].end_ns, from_ns, ct_pace(d, o->rate), ct_pace(d, o->next_rate));
    }
    for (uint32_t op = g->first_ready; op != CT_NONE; op = ct_ops(d)[op].ready_next)
        if (ct_ops(d)[op].running_blocks > 0)
            ct_ops(d)[op].rate = ct_ops(d)[op].next_rate;
}
