/* Shares of the device. The use of a tenant is one instant: when all that its processes have used will have been earned
 * at its share. */
#include "gate/limit.h"

#include "gate/account.h"
#include "gate/debt.h"
#include "gate/cost.h"
#include "gate/lease.h"
#include "gate/space.h"
#include "gate/internal.h"

/* ---- accounting --------------------------------------------------------------------------------------------------- */

/* Returns the tenant's use as an instant. Unused time older than the window is lost: a tenant that idled gets a small
 * burst at most, and a new tenant gets none. A tenant that was recently delayed by kernels of equal priority may catch
 * up on the delay. */
static uint64_t use_instant(const struct ct_gate *gate, uint64_t now_ns)
{
    const uint64_t held_ns = sat_sub_u64(now_ns, gate->held_at_ns) <= CT_LIMIT_HELD_FOR_NS ? gate->held_ns : 0;
    return plausible(gate->paid_ns, now_ns)
        ? max_u64(gate->paid_ns, sat_sub_u64(now_ns, CT_LIMIT_WINDOW_NS + 2 * held_ns))
        : now_ns;
}

void ct_limit_held(struct ct_gate *gate, uint64_t held_ns, uint64_t now_ns)
{
    if (!gate->limit_ppm || !gate->must_share ||
        (held_ns < gate->held_ns && sat_sub_u64(now_ns, gate->held_at_ns) <= CT_LIMIT_HELD_FOR_NS))
        return;
    gate->held_ns = min_u64(held_ns, CT_LIMIT_HELD_MAX_NS);
    gate->held_at_ns = now_ns;
}

void ct_limit_charge_use(struct ct_gate *gate, uint64_t use_ns, uint64_t now_ns)
{
    if (gate->limit_ppm)
        ct_account_charge(gate, use_instant(gate, now_ns), use_ns, now_ns);
}

void ct_limit_charge(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    if (!gate->limit_ppm || gate->is_lent)
        return;
    ct_account_charge(gate, use_instant(gate, now_ns), ct_limit_use(gate, request), now_ns);
    store_relaxed(&gate->mine->part_ppm, sat_sub_u64(CT_LIMIT_WHOLE_PPM, request->free_ppm));
}

void ct_limit_refund(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    if (gate->limit_ppm && !gate->is_lent)
        ct_account_refund(gate, use_instant(gate, now_ns), ct_limit_use(gate, request));
}

void ct_gate_measured(struct ct_gate *gate, uint64_t charged_ns, uint64_t used_ns, uint64_t now_ns)
{
    ct_lease_end(gate, now_ns);
    if (!gate->limit_ppm || charged_ns == used_ns)
        return;
    const uint64_t from_ns = use_instant(gate, now_ns);
    if (charged_ns > used_ns)
        ct_account_refund(gate, from_ns, charged_ns - used_ns);
    else
        ct_account_charge(gate, from_ns, used_ns - charged_ns, now_ns);
}

/* ---- tenants that have used their share --------------------------------------------------------------------------- */

/* Returns until when the tenant has used up its share; 0: it has not. A tenant runs ahead and then waits until all of
 * it is earned, so that it need not wake up for every kernel. All its processes wait, until the same
 * instant: otherwise those that do not would use all that the others wait for. */
static uint64_t share_used_until(struct ct_gate *gate, uint64_t now_ns)
{
    ct_account_rescale(gate, now_ns);
    const uint64_t ahead_ns = ct_account_ahead(gate, now_ns);
    const uint64_t over_ns = load_relaxed(&gate->mine->over_ns);
    const int is_waiting = gate->sibling_count ? over_ns > now_ns || ct_account_sibling_is_over(gate, now_ns)
                                               : over_ns != 0;
    const int has_run_ahead = ahead_ns > CT_LIMIT_AHEAD_NS || (ahead_ns && is_waiting);
    const uint64_t until_ns = has_run_ahead ? sat_add_u64(now_ns, ahead_ns) : 0;
    store_release(&gate->mine->over_ns, until_ns);
    return until_ns;
}

/* Returns whether a process states that its tenant has used up its share. */
static int is_over(const struct ct_gate_page *page, uint64_t now_ns)
{
    return plausible(load_acquire(&page->over_ns), now_ns) > now_ns ||
        sat_sub_u64(plausible(load_relaxed(&page->paid_ns), now_ns), now_ns) > CT_LIMIT_AHEAD_NS;
}

/* Returns whether the peer competes with this process for shares: another tenant of equal priority, not paused. */
static int competes(const struct ct_gate *gate, const struct ct_gate_peer *peer)
{
    return peer->priority == gate->priority && !peer->is_sibling && !peer->is_paused &&
        (peer->limit_ppm || gate->limit_ppm) && load_acquire(&peer->page->generation) == peer->generation;
}

/* Returns when all work of this tenant and those of equal priority is expected to be complete: until then no single
 * tenant's work need be. */
static uint64_t all_complete_at(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t last_ns = plausible(load_relaxed(&gate->mine->busy_ns), now_ns);
    for (uint32_t i = 0; i < gate->peer_count; i++)
        if (gate->peers[i].priority == gate->priority &&
            load_acquire(&gate->peers[i].page->generation) == gate->peers[i].generation)
            last_ns = max_u64(last_ns, plausible(load_acquire(&gate->peers[i].page->busy_ns), now_ns));
    return last_ns;
}

/* Returns whether the tenant has work, waits for completion or for admission, or would be delayed by our kernel. Work
 * that its host still waits for is not complete, whatever was predicted, as long as work of others may delay it
 * (`all_complete_ns`). */
static int has_demand(const struct ct_gate_page *page, uint64_t all_complete_ns, uint64_t until_ns, uint64_t now_ns)
{
    const uint64_t asked_ns = load_acquire(&page->asked_ns),
        waits_ns = plausible(load_acquire(&page->waits_ns), now_ns);
    const uint64_t busy_ns = plausible(load_acquire(&page->busy_ns), now_ns);
    if (busy_ns > now_ns || (waits_ns && sat_sub_u64(now_ns,
                                                     max_u64(waits_ns,
                                                             max_u64(busy_ns, all_complete_ns))) <= CT_LIMIT_LATE_NS))
        return 1;
    /* A tenant that waits for admission may be asleep and wake up late: it is still waiting. */
    if (load_relaxed(&page->wanted_ns) && sat_sub_u64(now_ns, asked_ns) <= CT_LIMIT_SLEEPER_NS &&
        sat_sub_u64(asked_ns, now_ns) <= CT_LIMIT_RECHECK_NS)
        return 1;
    return now_ns < plausible(load_relaxed(&page->quiet_ns), now_ns) &&
        plausible(load_relaxed(&page->next_ns), now_ns) < until_ns;
}

/* Under MPS work runs concurrently: a tenant whose work occupies no more than its share leaves the rest of the device
 * free. */
static int leaves_capacity(const struct ct_gate *gate, const struct ct_gate_peer *peer)
{
    const uint64_t part_ppm = load_relaxed(&peer->page->part_ppm);
    return gate->is_mps && part_ppm && part_ppm <= peer->limit_ppm + CT_LIMIT_ROUNDING_PPM;
}

/* Returns whether a tenant of equal priority wants its share and has not used it. A tenant that runs beyond its share
 * also defers to tenants without a share. */
static int peer_has_demand(const struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    const uint64_t busy_ns = max_u64(plausible(load_relaxed(&gate->mine->busy_ns), now_ns), now_ns);
    const uint64_t until_ns = sat_add_u64(busy_ns, weight_of(gate, request->expect_ns)),
        all_complete_ns = all_complete_at(gate, now_ns);
    uint8_t tenant_is_over[CT_PROCESSES] = {0}; /* by the number of the tenant's first process */
    for (uint32_t i = 0; i < gate->peer_count; i++) {
        const struct ct_gate_peer *peer = &gate->peers[i];
        if (peer->limit_ppm && competes(gate, peer))
            tenant_is_over[peer->first] |= (uint8_t)is_over(peer->page, now_ns);
    }
    for (uint32_t i = 0; i < gate->peer_count; i++) {
        const struct ct_gate_peer *peer = &gate->peers[i];
        if (competes(gate, peer) && !tenant_is_over[peer->first] && load_acquire(&peer->page->sequence) &&
            !leaves_capacity(gate, peer) && has_demand(peer->page, all_complete_ns, until_ns, now_ns))
            return 1;
    }
    return 0;
}

int ct_limit_must_ask(const struct ct_gate *gate)
{
    if (gate->limit_ppm && gate->is_static)
        return 1;
    for (uint32_t i = 0; i < gate->peer_count; i++)
        if (gate->peers[i].priority == gate->priority && !gate->peers[i].is_sibling &&
            (gate->limit_ppm || gate->peers[i].limit_ppm))
            return 1;
    return 0;
}

uint32_t ct_limit_ask(struct ct_gate *gate, const struct ct_launch_request *request, int is_active, uint64_t since_ns,
                      uint64_t now_ns, uint64_t *until_ns)
{
    gate->is_lent = 0;
    if (gate->is_ending || request->free_ppm >= CT_LIMIT_WHOLE_PPM || (!gate->limit_ppm && !gate->must_share))
        return 0;
    *until_ns = gate->limit_ppm ? share_used_until(gate, now_ns) : sat_add_u64(now_ns, CT_LIMIT_RECHECK_NS);
    if (!*until_ns)
        return 0;
    if (gate->limit_ppm && gate->is_static)
        return CT_GATE_LIMIT;
    /* A tenant without a share is not kept out forever, but the longer its kernel is, the longer it waits. */
    const uint64_t length_ns = min_u64(weight_of(gate, request->expect_ns), CT_GATE_HORIZON_NS);
    const int has_waited_long =
        !gate->limit_ppm && sat_sub_u64(now_ns, since_ns) >= CT_GATE_STUCK_NS + CT_LIMIT_WAIT_FACTOR * length_ns;
    if (!is_active && !has_waited_long && peer_has_demand(gate, request, now_ns)) {
        *until_ns = min_u64(*until_ns, sat_add_u64(now_ns, CT_LIMIT_RECHECK_NS));
        return gate->limit_ppm ? CT_GATE_LIMIT : CT_GATE_SHARE;
    }
    gate->is_lent = gate->limit_ppm != 0;
    return 0;
}

/* ---- work in flight ----------------------------------------------------------------------------------------------- */

enum { RETRY_NS = 2 * 1000 };

/* Converts device time to time of the whole device: launches of few blocks may run concurrently. */
static uint64_t whole_device_time(uint64_t length_ns, uint64_t part_ppm)
{
    return min_u64(length_ns, CT_GATE_HORIZON_NS) * part_ppm / CT_LIMIT_WHOLE_PPM;
}

/* Returns whether a process of this tenant is expected to have work on the device. */
static int tenant_is_busy(const struct ct_gate *gate, uint64_t now_ns)
{
    for (uint32_t i = 0; i < gate->peer_count && gate->sibling_count; i++) {
        const struct ct_gate_peer *peer = &gate->peers[i];
        if (peer->is_sibling && load_acquire(&peer->page->generation) == peer->generation &&
            plausible(load_acquire(&peer->page->busy_ns), now_ns) > now_ns)
            return 1;
    }
    return plausible(load_relaxed(&gate->mine->busy_ns), now_ns) > now_ns;
}

/* An ending tenant has at most one launch on the device, over all its processes, so that a kill does not find more. */
int ct_limit_is_full(const struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    const uint64_t weight_ns = weight_of(gate, request->expect_ns);
    if (gate->is_ending)
        return gate->unconfirmed || tenant_is_busy(gate, now_ns);
    if (gate->higher_count)
        return gate->unconfirmed > 1 && sat_add_u64(gate->unconfirmed_ns, weight_ns) >
            max_u64(ct_cost_bound(gate, request, now_ns), gate->space.sm_ppm ? ct_space_bound(gate) : 0);
    /* A tenant that is alone is limited by its own share only. */
    const uint64_t part_ppm = max_u64(sat_sub_u64(CT_LIMIT_WHOLE_PPM, request->free_ppm), CT_LIMIT_MIN_PART_PPM);
    return gate->peer_count > gate->sibling_count && gate->unconfirmed > 1 &&
           whole_device_time(sat_add_u64(gate->unconfirmed_ns, weight_ns), part_ppm) > max_u64(gate->bound_ns,
                                                                                               CT_LIMIT_AHEAD_NS);
}

/* Without higher-priority tenants the caller sleeps until half of the submitted work has completed, if all of it runs
 * concurrently: long enough to be cheap, and before the device idles. Completed work was removed before. */
uint64_t ct_limit_retry_at(const struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    if (gate->higher_count || gate->is_ending) {
        /* The device should not idle during the wake-up, but work submitted ahead delays a higher-priority tenant that
         * returns. */
        const uint64_t ahead_ns = gate->is_ending ? 0 : CT_GATE_LEAD_NS;
        return max_u64(sat_sub_u64(plausible(load_relaxed(&gate->mine->busy_ns), now_ns), ahead_ns),
                       sat_add_u64(now_ns, RETRY_NS));
    }
    /* Work of unknown length counts as long but may be short. */
    const uint64_t all_ns = request->expect_ns ? whole_device_time(gate->unconfirmed_ns,
                                                          sat_sub_u64(CT_LIMIT_WHOLE_PPM, request->free_ppm)) : 0;
    return sat_add_u64(now_ns, max_u64(all_ns / 2, CT_LIMIT_POLL_NS));
}
