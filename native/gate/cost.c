/* The expected cost of a kernel to higher-priority tenants, and the amount of such work that may be in flight. */
#include "gate/cost.h"

#include "gate/debt.h"
#include "gate/internal.h"

enum {
    PPM = 1000 * 1000,
    PREEMPTIBLE_BOUND_FACTOR = 4,
    IDLE_DIVISOR = 512,      /* this part of the time for which holders have been idle may be in flight, */
    SLACK_PPM = 100 * 1000,  /* and this part, or `delay_ppm`, of the time that their requests take, */
    IDLE_BOUND_FACTOR = 16,  /* and no more than this multiple of the bound */
};

/* Returns the cost of a context switch if this launch would be the first since a higher-priority tenant launched. */
uint64_t ct_cost_switch(const struct ct_gate *gate)
{
    return gate->has_switched || gate->is_mps ? 0 : gate->switch_ns;
}

/* Returns the expected loss of a higher-priority tenant if our work ends at `until_ns`. Its launch is assumed to be
 * uniformly distributed between the earliest and the latest predicted instant; past the latest, over as long as it has
 * been overdue. */
static uint64_t expected_loss(const struct snapshot *snapshot, uint64_t until_ns, uint64_t now_ns)
{
    const uint64_t from_ns = max_u64(snapshot->gap_end_ns, now_ns), overlap_ns = sat_sub_u64(until_ns, from_ns);
    const uint64_t width_ns =
        max_u64(sat_sub_u64(snapshot->gap_end_latest_ns, from_ns), sat_sub_u64(now_ns, snapshot->gap_end_ns));
    if (overlap_ns >= width_ns)
        return overlap_ns - width_ns / 2;
    return overlap_ns < UINT32_MAX ? overlap_ns * overlap_ns / width_ns / 2 : overlap_ns / 2;
}

/* A kernel that arrives meanwhile waits for part of a block. Work submitted before has already paid for its own
 * time. */
uint64_t ct_cost_corun(const struct ct_launch_request *request, const struct snapshot *snapshot, uint64_t now_ns)
{
    const uint64_t begin_ns = sat_add_u64(now_ns, snapshot->submitted_ns),
        until_ns = sat_add_u64(begin_ns, request->expect_ns);
    /* Work that was launched and has not started may start at any instant. */
    const uint64_t from_ns = now_ns < snapshot->gap_begin_ns ? begin_ns : max_u64(snapshot->gap_end_ns, begin_ns);
    const uint64_t overlap_ns = sat_sub_u64(until_ns, from_ns);
    if (!overlap_ns)
        return 0;
    const uint64_t kernel_count = min_u64(overlap_ns, UINT32_MAX) * snapshot->kernels_per_s / UINT64_C(1000000000);
    return sat_add_u64(min_u64(ct_gate_preemption_loss(sat_add_u64(kernel_count, 1), request->granularity_ns),
                               overlap_ns),
                       1);
}

uint64_t ct_cost_fraction(uint64_t amount_ns, uint64_t ppm)
{
    return min_u64(amount_ns, UINT32_MAX) * min_u64(ppm, PPM) / PPM;
}

uint64_t ct_cost_idle_depth(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t idle_ns = CT_GATE_HORIZON_NS, request_ns = CT_GATE_NEVER;
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        const struct ct_gate_page *page = gate->higher[i].page;
        if (load_acquire(&page->generation) != gate->higher[i].generation)
            continue;
        const uint64_t last_ns = max_u64(load_relaxed(&page->at_ns), plausible(load_relaxed(&page->busy_ns), now_ns));
        idle_ns = min_u64(idle_ns, sat_sub_u64(now_ns, last_ns));
        request_ns = min_u64(request_ns, gate->higher[i].request_ns);
    }
    if (request_ns == CT_GATE_NEVER)
        return 0;
    const uint64_t slack_ns = ct_cost_fraction(request_ns, max_u64(gate->delay_ppm, SLACK_PPM));
    return min_u64(min_u64(idle_ns / IDLE_DIVISOR, slack_ns),
                   min_u64(gate->bound_ns, CT_GATE_HORIZON_NS) * IDLE_BOUND_FACTOR);
}

/* Preemptible work may be submitted further ahead the larger the permitted delay is: it occupies the device only with
 * the blocks that run. */
static uint64_t base_bound(const struct ct_gate *gate, const struct ct_launch_request *request)
{
    if (!request->granularity_ns)
        return gate->bound_ns;
    return sat_add_u64(gate->bound_ns, ct_cost_fraction(PREEMPTIBLE_BOUND_FACTOR * gate->bound_ns, gate->delay_ppm));
}

uint64_t ct_cost_bound(const struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    return max_u64(base_bound(gate, request), ct_cost_idle_depth(gate, now_ns));
}

/* Returns how much may be in flight while a higher-priority tenant is active. */
static uint64_t active_bound(const struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    const int is_preemptible = request->granularity_ns && (gate->granularity_ns ||
                                                           load_relaxed(&gate->mine->busy_ns) <= now_ns);
    return sat_add_u64(CT_GATE_DEPTH_NS, is_preemptible
                       ? ct_cost_fraction(base_bound(gate, request), gate->delay_ppm)
                       : 0);
}

int ct_cost_reaches_bound(const struct ct_gate *gate, const struct ct_launch_request *request,
                          const struct snapshot *snapshot,
                     uint64_t now_ns)
{
    return snapshot->submitted_ns > CT_GATE_LEAD_NS / 2 &&
           sat_add_u64(snapshot->submitted_ns, request->expect_ns) > active_bound(gate, request, now_ns);
}

/* Most kernels take about their mean time, so the mean counts for three quarters and the upper estimate for one
 * quarter. */
uint64_t ct_cost_gap(const struct ct_gate *gate, const struct ct_launch_request *request,
                     const struct snapshot *snapshot,
                      uint64_t now_ns)
{
    const uint64_t cost_ns = ct_cost_switch(gate);
    const uint64_t from_ns = sat_add_u64(now_ns, sat_add_u64(snapshot->submitted_ns, sat_add_u64(cost_ns, cost_ns)));
    const uint64_t upper_ns = max_u64(request->upper_ns, request->expect_ns);
    if (!cost_ns && sat_add_u64(from_ns, upper_ns) <= snapshot->gap_end_ns)
        return 0;
    const uint64_t mean_loss_ns = expected_loss(snapshot, sat_add_u64(from_ns, request->expect_ns), now_ns);
    const uint64_t upper_loss_ns = expected_loss(snapshot, sat_add_u64(from_ns, upper_ns), now_ns);
    const uint64_t loss_ns = sat_add_u64(mean_loss_ns - mean_loss_ns / 4 + upper_loss_ns / 4, cost_ns + 1);
    /* A kernel that ends in time only on average is not free, even if no kernel of a higher-priority tenant is expected
     * to meet it. */
    return request->granularity_ns && !cost_ns ? min_u64(loss_ns, max_u64(ct_cost_corun(request, snapshot, now_ns), 1))
        : loss_ns;
}
