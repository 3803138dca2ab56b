/* Which group is on the device: one at a time, in turn, a slice each while another one has work.
 *
 * Compute preemption (Pascal on) saves the state of running blocks, so a slice ends at once and the blocks go on later
 * where they were. A group without work gives up its turn. With no competitor slices follow one another unnoticed; a
 * newcomer waits for the end of the current one. */
#include "device/state.h"

static void turn_on(struct ct_device *d, uint32_t group)
{
    struct ct_group *g = &ct_groups(d)[group];
    struct ct_chunk *chunks = ct_chunks(d, group);
    d->switching = 0;
    d->switch_end_ns = CT_DEVICE_NEVER;
    d->slice_start_ns = d->now_ns;
    d->slice_end_ns = CT_DEVICE_NEVER;
    for (uint32_t i = 0; i < g->chunk_count; i++)
        chunks[i].end_ns = ct_later(d->now_ns, chunks[i].end_ns);
    ct_books_group_on(d, group, 1);
    d->dispatch_due = 1;
}

/* Its blocks freeze; what is left of them counts from 0 until the group is back. */
static void turn_off(struct ct_device *d)
{
    struct ct_group *g = &ct_groups(d)[d->active];
    struct ct_chunk *chunks = ct_chunks(d, d->active);
    if (!d->switching) {
        ct_rate_update(d, d->active);
        ct_books_group_on(d, d->active, 0);
        for (uint32_t i = 0; i < g->chunk_count; i++)
            chunks[i].end_ns -= d->now_ns;
        g->next_end_ns = CT_DEVICE_NEVER;
    }
    d->active = CT_NONE;
    d->switching = 0;
    d->switch_end_ns = d->slice_end_ns = CT_DEVICE_NEVER;
}

static void turn_to(struct ct_device *d, uint32_t group)
{
    d->active = group;
    if (d->resident == group || d->resident == CT_NONE || d->config.switch_ns == 0) {
        d->counters.switches += d->resident != group && d->resident != CT_NONE;
        d->resident = group;
        turn_on(d, group);
        return;
    }
    d->counters.switches++;
    d->outgoing = d->resident;
    d->resident = group;
    d->switching = 1;
    d->switch_end_ns = ct_later(d->now_ns, d->config.switch_ns);
}

static uint32_t next_in_turn(const struct ct_device *d, uint32_t after)
{
    uint64_t later = after >= 63 ? 0 : d->runnable_mask & (~UINT64_C(0) << (after + 1));
    return ct_lowest(later ? later : d->runnable_mask);
}

/* After any change of who has work: hands over an unused turn, and sets or lifts the end of the slice. */
void ct_turn_update(struct ct_device *d)
{
    if (d->active != CT_NONE && ct_groups(d)[d->active].ready_grids == 0) {
        uint32_t idle = d->active;
        ct_delay_settle_all(d);
        turn_off(d);
        if (d->runnable_mask)
            turn_to(d, next_in_turn(d, idle));
    } else if (d->active == CT_NONE && d->runnable_mask) {
        ct_delay_settle_all(d);
        turn_to(d, next_in_turn(d, d->resident == CT_NONE ? 63 : d->resident));
    }
    if (d->active == CT_NONE || d->switching)
        return;
    if ((d->runnable_mask & ~(UINT64_C(1) << d->active)) == 0) {
        d->slice_end_ns = CT_DEVICE_NEVER;
    } else if (d->slice_end_ns == CT_DEVICE_NEVER) {
        uint64_t slices = (d->now_ns - d->slice_start_ns + d->config.slice_ns - 1) / d->config.slice_ns;
        d->slice_end_ns = ct_later(d->slice_start_ns, ct_scale(ct_max(slices, 1), d->config.slice_ns, 1, 0));
    }
}

void ct_turn_slice_over(struct ct_device *d)
{
    uint32_t group = next_in_turn(d, d->active);
    ct_delay_settle_all(d);
    turn_off(d);
    turn_to(d, group);
}

void ct_turn_switched(struct ct_device *d)
{
    ct_delay_settle_all(d);
    turn_on(d, d->active);
}
