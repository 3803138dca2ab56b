/* The rates of kernels that run together: contention, and parts of the memory bandwidth.
 *
 * A kernel alone has its full rate by definition: its block time was measured alone. Others slow it by the product of
 *
 * - issue slots: the SMs issue instructions of all resident warps. A kernel needs its SMs' issue slots in proportion to
 *   the slots that its blocks fill, all of them from issue_full_ppm on. One that moves data issues less: half when it
 *   uses the whole bandwidth. If the kernels together need more than the device has, all slow down by the excess. Blocks
 *   are spread over all SMs that are not taken by capped kernels, which have SMs of their own.
 * - caches: 1 + cache_contention_ppm, reached when other kernels hold a fifth of the SMs, and dram_contention_ppm times
 *   the part of the bandwidth that the others ask for.
 * - clocks: the power follows SMs and bandwidth in use. Beyond POWER_FREE_PPM of full power the clocks fall linearly,
 *   by clock_drop_ppm at full power. Only the fall beyond that of the kernel alone counts.
 *
 * What then asks for more than the bandwidth gets a max-min fair part of it, weighted by the SMs held. */
#include "device/state.h"

/* Chosen, not measured. The split of the power is that of board.c; CACHE_FULL_PPM because slowdowns measured with split
 * SMs are the same next to 20 % and next to 80 % of the SMs. */
enum { POWER_FREE_PPM = 750000, POWER_SMS_PPM = 700000, CACHE_FULL_PPM = 200000 };

/* Max-min fairness weighted by the SMs held: a kernel that asks for less than its share gets all of it and leaves the
 * rest to the others. Requests come from SMs, so a kernel's weight grows with the SMs it holds. */
static void share_bandwidth(struct ct_flow *flows, uint32_t count, uint64_t bytes_per_s)
{
    ct_u128 weights = 0;
    uint64_t remaining = bytes_per_s;
    for (uint32_t i = 0; i < count; i++) {
        flows[i].rate = 0;
        weights += flows[i].held >> 16;
    }
    for (int changed = 1; changed;) {
        changed = 0;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t weight = flows[i].held >> 16;
            if (flows[i].rate || (ct_u128)flows[i].demand * weights > (ct_u128)remaining * weight)
                continue;
            flows[i].rate = CT_RATE_FULL;
            remaining -= flows[i].demand;
            weights -= weight;
            changed = 1;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (flows[i].rate)
            continue;
        ct_u128 granted = (ct_u128)remaining * (flows[i].held >> 16) / weights;
        flows[i].rate = ct_max(1, ct_min(CT_RATE_FULL, (uint64_t)(granted * CT_RATE_FULL / flows[i].demand)));
    }
}

void ct_flow_add(const struct ct_device *d, struct ct_flow *flow, const struct ct_op *op, uint64_t blocks)
{
    const struct ct_context *context = ct_context_of(d, op);
    const uint32_t caps[] = {context->sm_cap, ct_clients(d)[context->client].sm_cap, op->sm_cap};
    int is_capped = ct_is_capped(d, op);
    uint64_t sms = d->config.sm_count;
    for (int i = 0; is_capped && i < 3; i++)
        sms = caps[i] ? ct_min(sms, caps[i]) : sms;
    *flow = (struct ct_flow){.held = blocks * op->share,
                             .demand = ct_scale(op->demand, blocks, 1, 0),
                             .sms = ct_min(sms, blocks),
                             .is_capped = (uint64_t)is_capped,
                             .contended_rate = CT_RATE_FULL,
                             .rate = CT_RATE_FULL};
}

static uint64_t ppm_of(uint64_t part, uint64_t whole)
{
    return part >= whole ? CT_PPM : (uint64_t)((ct_u128)part * CT_PPM / whole);
}

/* Returns the part of the device's issue slots that a kernel needs. `of_capped`: SM units held by capped kernels. */
static uint64_t issue_need_ppm(const struct ct_device *d, const struct ct_flow *flow, uint64_t held_ppm,
                               uint64_t demand_ppm, uint64_t of_capped)
{
    uint64_t sms = flow->sms;
    if (!flow->is_capped)
        sms = ct_min(sms, (d->capacity_share - of_capped) / CT_SM_UNITS);
    uint64_t filled_ppm = held_ppm * CT_PPM / d->config.issue_full_ppm;
    return ct_min(sms * CT_PPM / d->config.sm_count, filled_ppm) * (CT_PPM - demand_ppm / 2) / CT_PPM;
}

static uint64_t clock_ppm(const struct ct_device *d, uint64_t held_ppm, uint64_t demand_ppm)
{
    uint64_t power_ppm = (held_ppm * POWER_SMS_PPM + demand_ppm * (CT_PPM - POWER_SMS_PPM)) / CT_PPM;
    return power_ppm <= POWER_FREE_PPM
               ? CT_PPM
               : CT_PPM - (power_ppm - POWER_FREE_PPM) * d->config.clock_drop_ppm / (CT_PPM - POWER_FREE_PPM);
}

/* Computes the rates by contention, and reduces the demands accordingly. */
static void contend(const struct ct_device *d, struct ct_flow *flows, uint32_t count)
{
    const struct ct_device_config *config = &d->config;
    uint64_t held = 0, demand = 0, of_capped = 0, issue_ppm = 0;
    for (uint32_t i = 0; i < count; i++) {
        held += flows[i].held;
        demand = demand > UINT64_MAX - flows[i].demand ? UINT64_MAX : demand + flows[i].demand;
        of_capped += flows[i].is_capped ? flows[i].held : 0;
    }
    for (uint32_t i = 0; config->issue_full_ppm && i < count; i++)
        issue_ppm += issue_need_ppm(d, &flows[i], ppm_of(flows[i].held, d->capacity_share),
                                    ppm_of(flows[i].demand, config->memory_bytes_per_s), of_capped);
    issue_ppm = ct_max(issue_ppm, CT_PPM);
    uint64_t shared_clock_ppm =
        clock_ppm(d, ppm_of(held, d->capacity_share), ppm_of(demand, config->memory_bytes_per_s));
    for (uint32_t i = 0; i < count; i++) {
        uint64_t present_ppm = ppm_of(ppm_of(held - flows[i].held, d->capacity_share), CACHE_FULL_PPM);
        uint64_t traffic_ppm = ppm_of(demand - flows[i].demand, config->memory_bytes_per_s);
        uint64_t cache_ppm = CT_PPM + (config->cache_contention_ppm * present_ppm +
                                       config->dram_contention_ppm * traffic_ppm) / CT_PPM;
        uint64_t own_clock_ppm = clock_ppm(d, ppm_of(flows[i].held, d->capacity_share),
                                           ppm_of(flows[i].demand, config->memory_bytes_per_s));
        uint64_t slower_ppm = cache_ppm * issue_ppm / CT_PPM * own_clock_ppm / shared_clock_ppm;
        flows[i].contended_rate = ct_max(1, CT_RATE_FULL * CT_PPM / slower_ppm);
        flows[i].demand = ct_scale(flows[i].demand, flows[i].contended_rate, CT_RATE_FULL, 0);
    }
}

void ct_rate_compute(const struct ct_device *d, struct ct_flow *flows, uint32_t count)
{
    uint64_t demand = 0;
    if (d->contends && count > 1)
        contend(d, flows, count);
    for (uint32_t i = 0; i < count; i++)
        demand = demand > UINT64_MAX - flows[i].demand ? UINT64_MAX : demand + flows[i].demand;
    if (demand > d->config.memory_bytes_per_s)
        share_bandwidth(flows, count, d->config.memory_bytes_per_s);
    for (uint32_t i = 0; i < count; i++)
        if (flows[i].contended_rate != CT_RATE_FULL)
            flows[i].rate = ct_max(1, flows[i].rate * flows[i].contended_rate / CT_RATE_FULL);
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
    if (g->demand <= d->config.memory_bytes_per_s && !g->slowed && (!d->contends || g->running_grids <= 1))
        return;
    for (uint32_t op = g->first_ready; op != CT_NONE; op = ct_ops(d)[op].ready_next) {
        const struct ct_op *o = &ct_ops(d)[op];
        if (o->running_blocks > 0)
            ct_flow_add(d, &flows[count++], o, o->running_blocks);
    }
    ct_rate_compute(d, flows, count);
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
