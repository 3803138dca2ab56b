/* A lease: one decision, while higher-priority tenants are idle, that holds for further launches. Each of them passes with
 * a local check as long as nothing has changed that the decision was based on: no holder has launched or begun to wait,
 * the tenant table is the same, and the work in flight and the used share stay within their bounds. Only a process without
 * peers gets one, so nobody else has to see its launches before the next decision. */
#ifndef COTENANT_GATE_LEASE_H
#define COTENANT_GATE_LEASE_H

#include "gate/announce.h"
#include "gate/cost.h"
#include "gate/limit.h"

enum { CT_LEASE_NS = 200 * 1000 };

/* Grants a lease after a launch has passed for this reason, if the situation permits one. */
void ct_lease_grant(struct ct_gate *gate, uint32_t reason, uint64_t now_ns);
/* Ends the lease: what its launches used is charged to the share. */
void ct_lease_end(struct ct_gate *gate, uint64_t now_ns);

/* Counts a launch under the lease that holders did not know of when they launched. */
void ct_lease_late(struct ct_gate *gate, uint64_t now_ns);
/* Takes back a launch under the lease that the driver refused; `is_in_flight`: an event will show its completion. */
void ct_lease_refused(struct ct_gate *gate, const struct ct_launch_request *request, int is_in_flight, uint64_t now_ns);

/* Returns whether no holder has done anything since the lease was granted. Launches are checked last, immediately before
 * the tenant's own one is announced. */
static inline int ct_lease_is_undisturbed(const struct ct_gate *gate)
{
    for (uint32_t i = 0; i < gate->higher_count; i++)
        if (load_acquire(&gate->higher[i].page->quiet_ns) != gate->higher[i].lease_quiet_ns ||
            load_acquire(&gate->higher[i].page->waits_ns) != gate->higher[i].lease_waits_ns)
            return 0;
    for (uint32_t i = 0; i < gate->higher_count; i++)
        if (load_acquire(&gate->higher[i].page->sequence) != gate->higher[i].admission_sequence)
            return 0;
    return 1;
}

/* Returns whether a launch passes under the lease. Then it is announced, and counts as submitted; the caller calls
 * ct_lease_refused() if it was not, ct_lease_late() if ct_lease_is_undisturbed() is 0 afterwards, and ct_gate_confirmed()
 * when an event shows its completion. Otherwise nothing has changed, and ct_gate_admit() must decide. The tenant table
 * must have been checked, by ct_gate_must_ask(). */
static inline __attribute__((always_inline)) int ct_lease_pass(struct ct_gate *gate,
                                                               const struct ct_launch_request *request, uint64_t now_ns)
{
    struct ct_gate_lease *lease = &gate->lease;
    struct ct_gate_page *mine = gate->mine;
    const uint64_t expect_ns = request->expect_ns,
        submitted_ns = sat_sub_u64(load_relaxed(&mine->busy_ns), now_ns);
    if (now_ns >= lease->until_ns || !expect_ns || expect_ns > CT_LEASE_NS || request->is_collective || request->blocks)
        return 0;
    if ((submitted_ns > lease->lead_ns && submitted_ns + expect_ns > lease->bound_ns) ||
        gate->unconfirmed_ns + expect_ns > lease->bound_ns)
        return 0;
    const uint64_t used_ns = lease->is_charged ? lease->used_ns + ct_limit_use(gate, request) : 0;
    if (used_ns > lease->use_max_ns || !ct_lease_is_undisturbed(gate))
        return 0;
    lease->used_ns = used_ns;
    const uint64_t granularity_ns = ct_cost_granularity(gate, request);
    if (gate->charged_until_ns <= now_ns)
        gate->granularity_ns = granularity_ns;
    else if (gate->granularity_ns)
        gate->granularity_ns = granularity_ns ? max_u64(gate->granularity_ns, granularity_ns) : 0;
    const struct ct_announcement announcement = {expect_ns, request->low_ns, request->high_ns,
                                                 ct_gate_kernel_count(request), request->is_doubtful};
    ct_announce(gate, announcement, 0, now_ns);
    ct_loss_publish(gate, now_ns);
    gate->charged_from_ns = now_ns;
    gate->charged_until_ns = load_relaxed(&mine->busy_ns);
    if (!gate->unconfirmed++)
        gate->ended_ns = now_ns;
    gate->unconfirmed_ns += expect_ns;
    add_single_writer(&mine->counts.admitted, 1);
    add_single_writer(&mine->counts.submitted, 1);
    add_single_writer(&mine->counts.passed[lease->reason], 1);
    return 1;
}

#endif
