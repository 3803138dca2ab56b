/* Time slices between groups: one group is on the device at a time, in turn, for a slice while another one has work.
 *
 * Compute preemption (Pascal and later) saves the state of running blocks, so a slice ends at once and the blocks
 * continue later. A group without work gives up its slice. Without competition slices follow each other seamlessly; a
 * new group waits for the end of the current one. */
#include "device/state.h"

static void switch_in(struct ct_device *d, uint32_t group)
{
    struct ct_group *g = &ct_groups(d)[group];
    struct ct_chunk *chunks = ct_chunks(d, group);
    d->switching = 0;
    d->switch_end_ns = CT_DEVICE_NEVER;
    d->slice_start_ns = d->now_ns;
    d->slice_end_ns = CT_DEVICE_NEVER;
    for (uint32_t i = 0; i < g->chunk_count; i++)
        chunks[i].end_ns = ct_instant_after(d->now_ns, chunks[i].end_ns);
    ct_counters_group_on(d, group, 1);
    d->dispatch_due = 1;
}

/* Freezes its blocks; their remaining time is stored relative to 0 until the group is switched in. */
static void switch_out(struct ct_device *d)
{
    struct ct_group *g = &ct_groups(d)[d->active];
    struct ct_chunk *chunks = ct_chunks(d, d->active);
    if (!d->switching) {
        ct_rate_update(d, d->active);
        ct_counters_group_on(d, d->active, 0);
        for (uint32_t i = 0; i < g->chunk_count; i++)
            chunks[i].end_ns -= d->now_ns;
        g->next_end_ns = CT_DEVICE_NEVER;
    }
    d->active = CT_NONE;
    d->switching = 0;
    d->switch_end_ns = d->slice_end_ns = CT_DEVICE_NEVER;
}

static void switch_to(struct ct_device *d, uint32_t group)
{
    d->active = group;
    if (d->resident == group || d->resident == CT_NONE || d->config.switch_ns == 0) {
        d->counters.switches += d->resident != group && d->resident != CT_NONE;
        d->resident = group;
        switch_in(d, group);
        return;
    }
    d->counters.switches++;
    d->outgoing = d->resident;
    d->resident = group;
    d->switching = 1;
    d->switch_end_ns = ct_instant_after(d->now_ns, d->config.switch_ns);
}

static uint32_t next_group(const struct ct_device *d, uint32_t after)
{
    uint64_t following = after >= 63 ? 0 : d->runnable_mask & (~UINT64_C(0) << (after + 1));
    return ct_lowest(following ? following : d->runnable_mask);
}

/* Called after any change of runnable work: switches from a group without work, and sets or clears the end of the
 * slice. */
void ct_timeslice_update(struct ct_device *d)
{
    if (d->active != CT_NONE && ct_groups(d)[d->active].ready_grids == 0) {
        uint32_t previous = d->active;
        ct_delay_settle_all(d);
        switch_out(d);
        if (d->runnable_mask)
            switch_to(d, next_group(d, previous));
    } else if (d->active == CT_NONE && d->runnable_mask) {
        ct_delay_settle_all(d);
        switch_to(d, next_group(d, d->resident == CT_NONE ? 63 : d->resident));
    }
    if (d->active == CT_NONE || d->switching)
        return;
    if ((d->runnable_mask & ~(UINT64_C(1) << d->active)) == 0) {
        d->slice_end_ns = CT_DEVICE_NEVER;
    } else if (d->slice_end_ns == CT_DEVICE_NEVER) {
        uint64_t slices = (d->now_ns - d->slice_start_ns + d->config.slice_ns - 1) / d->config.slice_ns;
        d->slice_end_ns = ct_instant_after(d->slice_start_ns, ct_scale(ct_max(slices, 1), d->config.slice_ns, 1, 0));
    }
}

int ct_device_set_slice(struct ct_device *d, uint64_t now_ns, uint64_t slice_ns)
{
    if (slice_ns == 0)
        return CT_DEVICE_INVALID;
    ct_time_enter(d, now_ns);
    d->config.slice_ns = slice_ns;
    if (d->slice_end_ns != CT_DEVICE_NEVER)
        d->slice_end_ns = ct_max(ct_instant_after(d->slice_start_ns, slice_ns), d->now_ns);
    ct_time_settle(d);
    return CT_DEVICE_OK;
}

uint64_t ct_device_slice_ns(const struct ct_device *d)
{
    return d->config.slice_ns;
}

void ct_timeslice_expired(struct ct_device *d)
{
    uint32_t group = next_group(d, d->active);
    ct_delay_settle_all(d);
    switch_out(d);
    switch_to(d, group);
}

void ct_timeslice_switched(struct ct_device *d)
{
    ct_delay_settle_all(d);
    switch_in(d, d->active);
}
