/* The end and the bounds of a lease, and launches under it that did not go as expected. */
#include "gate/lease.h"

#include "gate/account.h"
#include "gate/debt.h"
#include "gate/submission.h"

enum { PPM = 1000 * 1000 };

void ct_lease_grant(struct ct_gate *gate, uint32_t reason, uint64_t now_ns)
{
    struct ct_gate_lease *lease = &gate->lease;
    /* Peers must see each launch when they decide, and an ending tenant may have one launch at a time. */
    if ((reason != CT_GATE_FREE && reason != CT_GATE_LENT) || gate->policy == CT_GATE_OPEN || gate->peer_count ||
        gate->must_claim || gate->is_paused || gate->is_ending || gate->gang.page)
        return;
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        struct ct_gate_peer *peer = &gate->higher[i];
        peer->lease_quiet_ns = load_acquire(&peer->page->quiet_ns);
        peer->lease_waits_ns = load_relaxed(&peer->page->waits_ns);
        /* A holder that has not launched since the decision may have begun to wait, and so be active. */
        if (sat_sub_u64(peer->lease_quiet_ns, now_ns) || peer->lease_waits_ns)
            return;
    }
    lease->reason = reason;
    lease->is_charged = gate->limit_ppm && !gate->is_lent;
    const uint64_t ahead_ns = lease->is_charged ? ct_account_ahead(gate, now_ns) : 0;
    lease->use_max_ns = sat_sub_u64(CT_LIMIT_AHEAD_NS, ahead_ns) * min_u64(gate->limit_ppm, PPM) / PPM;
    /* A process without higher-priority tenants may have any amount of work in flight. */
    lease->bound_ns = gate->higher_count ? gate->bound_ns : CT_GATE_HORIZON_NS;
    lease->lead_ns = min_u64(CT_GATE_LEAD_NS, lease->bound_ns);
    /* A decision measures the activity of holders, which later losses are weighed by: no lease delays the next one. */
    lease->until_ns = min_u64(sat_add_u64(now_ns, CT_LEASE_NS), sat_add_u64(gate->duty_from_ns, CT_GATE_DUTY_NS));
}

void ct_lease_end(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_gate_lease *lease = &gate->lease;
    const uint64_t used_ns = lease->used_ns;
    lease->until_ns = lease->used_ns = 0;
    if (used_ns) /* as of its last launch: the tenant keeps what it has earned since */
        ct_limit_charge_use(gate, used_ns, min_u64(gate->charged_from_ns, now_ns));
}

void ct_lease_late(struct ct_gate *gate, uint64_t now_ns)
{
    ct_submission_count_late(gate, now_ns);
}

void ct_lease_refused(struct ct_gate *gate, const struct ct_launch_request *request, int is_in_flight, uint64_t now_ns)
{
    ct_lease_end(gate, now_ns);
    add_single_writer(&gate->mine->counts.submitted, -UINT64_C(1));
    ct_limit_refund(gate, request, now_ns);
    if (!is_in_flight && gate->unconfirmed)
        ct_submission_remove(gate, request->expect_ns, now_ns);
}
