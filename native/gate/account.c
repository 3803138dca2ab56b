/* The tenant's account, of which each process has a replica. */
#include "gate/account.h"

#include "gate/debt.h"
#include "gate/internal.h"

enum { WHOLE_PPM = 1000 * 1000 };

static int is_attached(const struct ct_gate_peer *peer)
{
    return load_acquire(&peer->page->generation) == peer->generation;
}

void ct_account_begin(struct ct_gate_peer *peer)
{
    peer->used_ns = is_attached(peer) ? load_acquire(&peer->page->used_ns) : 0;
    peer->min_share_used_ns = is_attached(peer) ? load_acquire(&peer->page->min_share_used_ns) : 0;
}

void ct_account_restore(struct ct_gate *gate)
{
    if (!gate->paid_ns) {
        gate->paid_ns = load_relaxed(&gate->page->paid_ns);
        gate->paid_ppm = load_relaxed(&gate->page->paid_ppm);
    }
    if (!gate->min_share_ns)
        gate->min_share_ns = load_relaxed(&gate->page->min_share_ns);
}

/* Totals wrap around, and differences are signed: a refund reduces the total. */
void ct_account_gather(struct ct_gate *gate)
{
    for (uint32_t i = 0; i < gate->peer_count && gate->sibling_count; i++) {
        struct ct_gate_peer *peer = &gate->peers[i];
        if (!peer->is_sibling || !is_attached(peer))
            continue;
        const uint64_t used_ns = load_acquire(&peer->page->used_ns),
            min_share_used_ns = load_acquire(&peer->page->min_share_used_ns);
        gate->siblings_used_ns += used_ns - peer->used_ns;
        gate->siblings_min_share_used_ns += min_share_used_ns - peer->min_share_used_ns;
        peer->used_ns = used_ns;
        peer->min_share_used_ns = min_share_used_ns;
    }
}

/* Returns how long it takes to earn an amount, without the limit of a debt: a process that was idle for long adds at
 * once what its siblings used and earned meanwhile. */
static uint64_t time_to_earn(uint64_t use_ns, uint64_t ppm)
{
    if (use_ns / ppm > UINT64_MAX / (2 * WHOLE_PPM))
        return UINT64_MAX;
    return use_ns / ppm * WHOLE_PPM + use_ns % ppm * WHOLE_PPM / ppm;
}

/* ---- the replica -------------------------------------------------------------------------------------------------- */

/* Moves an instant by an amount that was used or, if negative, refunded. */
static uint64_t moved(uint64_t instant_ns, uint64_t use_ns, uint64_t ppm, uint64_t now_ns)
{
    if (!ppm || !use_ns)
        return instant_ns;
    if ((int64_t)use_ns < 0)
        return sat_sub_u64(instant_ns, time_to_earn(UINT64_C(0) - use_ns, ppm));
    return min_u64(sat_add_u64(instant_ns, time_to_earn(use_ns, ppm)), sat_add_u64(now_ns, CT_GATE_HORIZON_NS));
}

/* Returns how long a debt at one share takes to be earned at another: at a larger one it is paid off earlier. */
static uint64_t converted(uint64_t debt_ns, uint64_t from_ppm, uint64_t to_ppm)
{
    if (!debt_ns || !from_ppm || from_ppm > WHOLE_PPM || from_ppm == to_ppm)
        return debt_ns;
    return ct_gate_time_to_earn(debt_ns * from_ppm / WHOLE_PPM, to_ppm);
}

/* Returns the latest instant that a sibling has published for the share, at this process's rate; 0: none has. */
static uint64_t siblings_paid_ns(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t latest_ns = 0;
    for (uint32_t i = 0; i < gate->peer_count && gate->sibling_count; i++) {
        const struct ct_gate_page *page = gate->peers[i].page;
        if (!gate->peers[i].is_sibling || !is_attached(&gate->peers[i]))
            continue;
        const uint64_t paid_ns = plausible(load_acquire(&page->paid_ns), now_ns),
            debt_ns = converted(sat_sub_u64(paid_ns, now_ns), load_relaxed(&page->paid_ppm), gate->limit_ppm);
        latest_ns = max_u64(latest_ns, debt_ns ? sat_add_u64(now_ns, debt_ns) : paid_ns);
    }
    return latest_ns;
}

/* The same for the minimum share. */
static uint64_t siblings_min_share_ns(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t latest_ns = 0;
    for (uint32_t i = 0; i < gate->peer_count && gate->sibling_count; i++)
        if (gate->peers[i].is_sibling && is_attached(&gate->peers[i]))
            latest_ns = max_u64(latest_ns, plausible(load_acquire(&gate->peers[i].page->min_share_ns), now_ns));
    return latest_ns;
}

/* Publishes the replica, and a change of the total of this process. */
static void publish(struct ct_gate *gate, uint64_t use_ns)
{
    gate->paid_ppm = gate->paid_ppm ? gate->paid_ppm : gate->limit_ppm;
    store_release(&gate->mine->used_ns, load_relaxed(&gate->mine->used_ns) + use_ns);
    store_relaxed(&gate->mine->paid_ppm, gate->paid_ppm);
    store_release(&gate->mine->paid_ns, gate->paid_ns);
}

/* A process that has used nothing yet begins with the latest instant of its siblings. Their totals were read before:
 * what they use meanwhile may count twice, but never not at all. */
void ct_account_update(struct ct_gate *gate, uint64_t now_ns)
{
    const uint64_t rate_ppm = gate->paid_ppm ? gate->paid_ppm : gate->limit_ppm;
    ct_account_gather(gate);
    gate->paid_ns = gate->paid_ns ? moved(gate->paid_ns, gate->siblings_used_ns, rate_ppm, now_ns)
                                  : siblings_paid_ns(gate, now_ns);
    gate->min_share_ns = gate->min_share_ns
        ? moved(gate->min_share_ns, gate->siblings_min_share_used_ns, gate->min_share_ppm, now_ns)
        : siblings_min_share_ns(gate, now_ns);
    if (gate->siblings_used_ns) /* for processes that join later: the sibling may end before */
        publish(gate, 0);
    if (gate->siblings_min_share_used_ns)
        store_release(&gate->mine->min_share_ns, gate->min_share_ns);
    gate->siblings_used_ns = gate->siblings_min_share_used_ns = 0;
}

/* The replica may be too low if this process was idle: time that the tenant did not use is lost after a while, and only
 * the processes that were active know when. So the latest instant counts. It is not stored in the replica, where it
 * would count a charge twice. */
uint64_t ct_account_ahead(const struct ct_gate *gate, uint64_t now_ns)
{
    return sat_sub_u64(max_u64(plausible(gate->paid_ns, now_ns), siblings_paid_ns(gate, now_ns)), now_ns);
}

uint64_t ct_account_min_share_ahead(const struct ct_gate *gate, uint64_t now_ns)
{
    return sat_sub_u64(max_u64(plausible(gate->min_share_ns, now_ns), siblings_min_share_ns(gate, now_ns)), now_ns);
}

/* ---- the share ---------------------------------------------------------------------------------------------------- */

void ct_account_charge(struct ct_gate *gate, uint64_t from_ns, uint64_t use_ns, uint64_t now_ns)
{
    gate->paid_ns = min_u64(sat_add_u64(from_ns, ct_gate_time_to_earn(use_ns, gate->limit_ppm)),
                            sat_add_u64(now_ns, CT_GATE_HORIZON_NS));
    publish(gate, use_ns);
}

void ct_account_refund(struct ct_gate *gate, uint64_t from_ns, uint64_t use_ns)
{
    gate->paid_ns = sat_sub_u64(from_ns, ct_gate_time_to_earn(use_ns, gate->limit_ppm));
    publish(gate, UINT64_C(0) - use_ns);
}

void ct_account_rescale(struct ct_gate *gate, uint64_t now_ns)
{
    const uint64_t debt_ns = sat_sub_u64(plausible(gate->paid_ns, now_ns), now_ns);
    if (gate->paid_ppm == gate->limit_ppm)
        return;
    if (debt_ns)
        gate->paid_ns = sat_add_u64(now_ns, converted(debt_ns, gate->paid_ppm, gate->limit_ppm));
    gate->paid_ppm = gate->limit_ppm;
    publish(gate, 0);
}

int ct_account_sibling_is_over(const struct ct_gate *gate, uint64_t now_ns)
{
    for (uint32_t i = 0; i < gate->peer_count && gate->sibling_count; i++)
        if (gate->peers[i].is_sibling && is_attached(&gate->peers[i]) &&
            plausible(load_acquire(&gate->peers[i].page->over_ns), now_ns) > now_ns)
            return 1;
    return 0;
}

/* ---- the minimum share -------------------------------------------------------------------------------------------- */

void ct_account_charge_min_share(struct ct_gate *gate, uint64_t use_ns, uint64_t now_ns)
{
    const uint64_t earned_ns = ct_gate_time_to_earn(use_ns, gate->min_share_ppm);
    gate->min_share_ns = min_u64(sat_add_u64(max_u64(plausible(gate->min_share_ns, now_ns), now_ns), earned_ns),
                                 sat_add_u64(now_ns, CT_GATE_HORIZON_NS));
    store_release(&gate->mine->min_share_used_ns,
                  load_relaxed(&gate->mine->min_share_used_ns) + min_u64(use_ns, CT_GATE_HORIZON_NS));
    store_release(&gate->mine->min_share_ns, gate->min_share_ns);
}
