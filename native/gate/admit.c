/* Admission of one launch: whether it may go now, given what higher-priority tenants are expected to do, what is
 * submitted already, and how much delay they may still suffer. */
#include "gate/account.h"
#include "gate/claim.h"
#include "gate/debt.h"
#include "gate/lease.h"
#include "gate/limit.h"
#include "gate/loss.h"
#include "gate/cost.h"
#include "gate/request.h"
#include "gate/slice.h"
#include "gate/space.h"
#include "gate/internal.h"

enum { PAUSE_RECHECK_NS = 5 * 1000 * 1000, RETRY_NS = 2 * 1000, OVERDUE_EXTENSION_NS = 50 * 1000 };
/* The longer work is overdue, the longer it is expected to take; its end is signalled by the wake word. */
enum { OVERDUE_DIVISOR = 2, OVERDUE_EXTENSION_MAX_NS = 2000 * 1000 * 1000 };
/* How long the wish of a holder for a wait without lower-priority work is granted. */
enum { CLEAN_MAX_NS = 1000 * 1000 * 1000, CLEAN_RECHECK_NS = 200 * 1000 };

/* ---- a snapshot of the other tenants ----------------------------------------------------------------------------- */

/* Returns whether the tenant waits for admission: it has a request, and asked recently. */
static int is_asking(const struct ct_gate_page *page, uint64_t now_ns)
{
    uint64_t asked_ns = load_acquire(&page->asked_ns);
    return load_relaxed(&page->wanted_ns) != 0 && sat_sub_u64(now_ns, asked_ns) <= CT_GATE_ASK_TIMEOUT_NS &&
           sat_sub_u64(asked_ns, now_ns) <= CT_GATE_ASK_TIMEOUT_NS;
}

/* Returns how many kernels per second the tenant launched recently. */
static uint64_t kernel_rate(const struct ct_gate_page *page, uint64_t sequence)
{
    /* The oldest instant may be overwritten during the read, or belong to the previous tenant of the slot. */
    const uint64_t recorded = min_u64(load_relaxed(&page->counts.launches), CT_GATE_RECENT - 2);
    const uint64_t from_ns = load_relaxed(&page->recent_ns[(sequence - recorded + 1) % CT_GATE_RECENT]);
    const uint64_t span_ns = sat_sub_u64(load_relaxed(&page->at_ns), from_ns);
    if (recorded < 2 || !span_ns)
        return UINT32_MAX;
    return min_u64((recorded - 1) * UINT64_C(100000000) * ct_gate_kernels_per_launch(page) / span_ns, UINT32_MAX);
}

/* Returns whether work of the tenant has not been seen to complete: its host still waits for it, or its length was
 * unknown or doubtful. Whatever was predicted, other tenants or a lower clock may have delayed it. A host that waits for
 * a multiple of the expected time has been stopped, and is not waited for. */
static int has_unfinished_work(const struct ct_gate_page *page, uint64_t busy_ns, uint64_t now_ns)
{
    const uint64_t waits_ns = plausible(load_relaxed(&page->waits_ns), now_ns);
    const uint64_t work_ns = min_u64(sat_sub_u64(busy_ns, load_relaxed(&page->at_ns)), CT_GATE_HORIZON_NS);
    const uint64_t max_ns = min_u64(CT_GATE_DOUBTFUL_FACTOR * work_ns + CT_GATE_STUCK_NS, CT_GATE_HORIZON_NS);
    return (waits_ns && sat_sub_u64(now_ns, max_u64(waits_ns, busy_ns)) <= max_ns) ||
           plausible(load_relaxed(&page->unfinished_ns), now_ns) > now_ns;
}

/* Reads the pages of all higher-priority tenants. */
static void take_snapshot(struct ct_gate *gate, uint64_t now_ns, struct snapshot *snapshot)
{
    snapshot->is_active = snapshot->is_clean_wanted = snapshot->is_urgent = 0;
    snapshot->gap_begin_ns = snapshot->quiet_ns = now_ns;
    snapshot->gap_end_ns = snapshot->gap_end_latest_ns = snapshot->next_gap_ns = CT_GATE_NEVER;
    snapshot->kernels_per_s = 0;
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        struct ct_gate_peer *peer = &gate->higher[i];
        const struct ct_gate_page *page = peer->page;
        /* The loads are in the opposite order of the stores: with a sequence number come the words of that launch or of
         * a later one. */
        peer->latest_sequence = snapshot->sequence[i] = load_acquire(&page->sequence);
        if (!snapshot->sequence[i] || load_acquire(&page->generation) != peer->generation)
            continue;
        uint64_t quiet_ns = plausible(load_acquire(&page->quiet_ns), now_ns),
            next_ns = plausible(load_acquire(&page->next_ns), now_ns);
        uint64_t busy_ns = plausible(load_acquire(&page->busy_ns), now_ns);
        const uint64_t last_ns = min_u64(sat_sub_u64(busy_ns, load_relaxed(&page->at_ns)), CT_GATE_HORIZON_NS);
        const uint64_t wanted_ns = plausible(load_relaxed(&page->clean_wanted_ns), now_ns);
        snapshot->is_urgent |= ct_gate_request_is_urgent(page, now_ns);
        snapshot->is_clean_wanted |= wanted_ns && sat_sub_u64(now_ns, wanted_ns) <= CLEAN_MAX_NS;
        if (busy_ns <= now_ns && has_unfinished_work(page, busy_ns, now_ns))
            busy_ns = sat_add_u64(now_ns, OVERDUE_EXTENSION_NS + min_u64((now_ns - busy_ns) / OVERDUE_DIVISOR,
                                                                         OVERDUE_EXTENSION_MAX_NS));
        /* A tenant that itself waits for admission launches when it is admitted, not when it was predicted to. */
        int is_expected = now_ns < quiet_ns && !is_asking(page, now_ns);
        if (!is_expected && busy_ns <= now_ns)
            continue;
        snapshot->is_active = 1;
        snapshot->kernels_per_s =
            min_u64(snapshot->kernels_per_s + kernel_rate(page, snapshot->sequence[i]), UINT32_MAX);
        snapshot->gap_begin_ns = max_u64(snapshot->gap_begin_ns, busy_ns);
        snapshot->quiet_ns = max_u64(snapshot->quiet_ns, is_expected ? max_u64(quiet_ns, busy_ns) : busy_ns);
        if (is_expected && next_ns < snapshot->gap_end_ns) {
            snapshot->gap_end_ns = next_ns;
            snapshot->gap_end_latest_ns = plausible(load_relaxed(&page->latest_ns), now_ns);
            snapshot->next_gap_ns = sat_add_u64(next_ns, last_ns);
        }
    }
}

/* Returns whether a higher-priority tenant has launched since the snapshot. */
static int holder_launched(struct ct_gate *gate, const struct snapshot *snapshot)
{
    for (uint32_t i = 0; i < gate->higher_count; i++)
        if ((gate->higher[i].latest_sequence = load_acquire(&gate->higher[i].page->sequence)) != snapshot->sequence[i])
            return 1;
    return 0;
}

/* Returns the expected remaining device time of a peer's work. A process of lower priority could state that it always
 * has work, and so keep this one out for good: if its page has shown work during a long wait, the work no longer counts
 * until the page shows an end. */
static uint64_t peer_work(const struct ct_gate *gate, struct ct_gate_peer *peer, uint64_t now_ns)
{
    if (load_acquire(&peer->page->generation) != peer->generation)
        return 0;
    const uint64_t work_ns = sat_sub_u64(plausible(load_relaxed(&peer->page->busy_ns), now_ns), now_ns);
    if (peer->priority == gate->priority)
        return work_ns;
    const uint64_t elapsed_ns = sat_sub_u64(now_ns, peer->busy_looked_ns);
    if (!work_ns)
        peer->busy_waited_ns = 0;
    else if (elapsed_ns <= CT_GATE_LOWER_BUSY_LOOK_NS)
        peer->busy_waited_ns += elapsed_ns;
    else
        peer->busy_waited_ns = sat_sub_u64(peer->busy_waited_ns, elapsed_ns / CT_GATE_LOWER_BUSY_FORGET);
    peer->busy_looked_ns = now_ns;
    return peer->busy_waited_ns < CT_GATE_LOWER_BUSY_MAX_NS ? work_ns : 0;
}

/* Returns the expected remaining device time of what this process and its peers have submitted. */
static uint64_t submitted_work(struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t sum_ns = sat_sub_u64(plausible(load_relaxed(&gate->mine->busy_ns), now_ns), now_ns);
    for (uint32_t i = 0; i < gate->peer_count; i++)
        sum_ns = sat_add_u64(sum_ns, peer_work(gate, &gate->peers[i], now_ns));
    return sum_ns;
}

/* Returns whether this waiting peer goes before us: by priority, then the longest kernel that fits, then the lower
 * index. */
static int goes_first(const struct ct_gate *gate, const struct ct_gate_peer *peer, uint64_t upper_ns,
                      uint64_t remaining_ns,
                      int has_waited_long, uint64_t now_ns)
{
    if (peer->priority > gate->priority || (has_waited_long && peer->priority == gate->priority) ||
        load_acquire(&peer->page->generation) != peer->generation || !is_asking(peer->page, now_ns))
        return 0;
    const uint64_t wanted_ns = load_relaxed(&peer->page->wanted_ns) - 1; /* wraps to the maximum, and so never fits, if
                                                                          * the peer does not wait or may not fill
                                                                          * gaps */
    if (wanted_ns > remaining_ns)
        return 0;
    return peer->priority < gate->priority || wanted_ns > upper_ns ||
        (wanted_ns == upper_ns && peer->index < gate->index);
}

/* Returns whether another waiting tenant should get the gap. */
static int better_candidate_waits(const struct ct_gate *gate, uint64_t upper_ns, uint64_t remaining_ns,
                                  uint64_t since_ns,
                                  uint64_t now_ns)
{
    /* After a long wait only tenants of better priority go first. Otherwise the longer kernels of an equal could keep
     * this one out forever. */
    const int has_waited_long = sat_sub_u64(now_ns, since_ns) >= CT_GATE_WAITED_LONG_NS;
    for (uint32_t i = 0; i < gate->higher_count; i++)
        if (goes_first(gate, &gate->higher[i], upper_ns, remaining_ns, has_waited_long, now_ns))
            return 1;
    for (uint32_t i = 0; i < gate->peer_count; i++)
        if (goes_first(gate, &gate->peers[i], upper_ns, remaining_ns, has_waited_long, now_ns))
            return 1;
    return 0;
}

/* ---- decisions ---------------------------------------------------------------------------------------------------- */

static struct ct_gate_answer wait_for(uint32_t reason, uint64_t until_ns)
{
    return (struct ct_gate_answer){.pass = 0, .reason = reason, .until_ns = until_ns};
}

/* Charges the certain loss of higher-priority tenants to the debt at once, and spends the expected loss from their
 * budget. */
static void charge_expected_loss(struct ct_gate *gate, const struct ct_launch_request *request, uint32_t reason,
                                 const struct snapshot *snapshot, uint64_t now_ns)
{
    if (reason == CT_GATE_RISK) {
        ct_gate_spend(gate, sat_add_u64(weight_of(gate, request->expect_ns), 1), now_ns);
        ct_gate_charge(gate, sat_add_u64(weight_of(gate, request->expect_ns), 1), now_ns);
    }
    if (reason != CT_GATE_GAP && reason != CT_GATE_CORUN)
        return;
    const uint64_t loss_ns =
        reason == CT_GATE_GAP ? ct_cost_gap(gate, request, snapshot, now_ns) : ct_cost_corun(request, snapshot, now_ns);
    if (loss_ns)
        ct_gate_spend(gate, loss_ns, now_ns);
    if (ct_cost_switch(gate))
        ct_gate_charge(gate, ct_cost_switch(gate), now_ns);
}

/* Announces the kernel and records the sequence numbers of higher-priority tenants, so that their loss can be computed
 * later. */
static struct ct_gate_answer pass(struct ct_gate *gate, const struct ct_launch_request *request, uint32_t reason,
                                  const struct snapshot *snapshot, uint64_t now_ns)
{
    struct ct_gate_counts *counts = &gate->mine->counts;
    const uint32_t basis = reason == CT_GATE_AGREED ? gate->opened_reason : reason;
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        if (gate->higher[i].latest_sequence != snapshot->sequence[i] && reason != CT_GATE_AGREED)
            add_single_writer(&counts->stale, 1);
        gate->higher[i].admission_sequence = snapshot->sequence[i];
    }
    charge_expected_loss(gate, request, basis, snapshot, now_ns);
    ct_limit_charge(gate, request, now_ns);
    gate->has_switched = 1;
    if (gate->charged_until_ns <= now_ns)
        gate->granularity_ns = request->granularity_ns;
    else if (gate->granularity_ns) /* the running work is preemptible only if all of it is */
        gate->granularity_ns = request->granularity_ns ? max_u64(gate->granularity_ns, request->granularity_ns) : 0;
    ct_gate_announce(gate, request, now_ns);
    ct_loss_publish(gate, now_ns);
    store_relaxed(&gate->mine->wanted_ns, 0);
    gate->charged_from_ns = now_ns;
    /* Use of the minimum share is granted, so higher-priority tenants are not charged for it. */
    gate->charged_until_ns = basis == CT_GATE_MIN_SHARE || basis == CT_GATE_SPACE ? 0
        : load_relaxed(&gate->mine->busy_ns);
    gate->holder_returned = basis == CT_GATE_RISK; /* already charged, except for time beyond the prediction */
    const uint64_t weight_ns = weight_of(gate, request->expect_ns);
    if (basis == CT_GATE_MIN_SHARE)
        ct_account_charge_min_share(gate, sat_add_u64(weight_ns, 1), now_ns);
    if (basis == CT_GATE_GAP)
        add_single_writer(&counts->filled_ns, request->expect_ns);
    if (!gate->unconfirmed++)
        gate->ended_ns = now_ns;
    gate->unconfirmed_ns = sat_add_u64(gate->unconfirmed_ns, weight_ns);
    add_single_writer(&counts->admitted, 1);
    add_single_writer(&counts->passed[reason], 1);
    if (gate->gang.is_asking)
        ct_gang_passed(&gate->gang);
    return (struct ct_gate_answer){.pass = 1, .reason = reason, .until_ns = now_ns};
}

/* Passes, or waits for the other ranks of the gang. */
static struct ct_gate_answer pass_with_ranks(struct ct_gate *gate, const struct ct_launch_request *request,
                                             uint32_t reason, const struct snapshot *snapshot, uint64_t now_ns)
{
    if (!request->is_probe && (!gate->gang.is_asking || ct_gang_open(&gate->gang, now_ns)))
        return pass(gate, request, reason, snapshot, now_ns);
    for (uint32_t i = 0; i < gate->higher_count; i++)
        gate->higher[i].opened_sequence = snapshot->sequence[i];
    gate->opened_reason = reason;
    if (request->is_probe)
        return (struct ct_gate_answer){.pass = 1, .reason = reason, .until_ns = now_ns};
    return wait_for(CT_GATE_GANG, ct_gang_recheck_at(&gate->gang, now_ns));
}

/* Returns whether the snapshot is outdated. Higher-priority tenants are checked last, immediately before the launch. */
static int is_outdated(struct ct_gate *gate, uint32_t reason, const struct snapshot *snapshot, uint64_t now_ns)
{
    if (gate->must_claim && (submitted_work(gate, now_ns) > snapshot->submitted_ns ||
                             (reason == CT_GATE_RISK && ct_gate_debt(gate, now_ns))))
        return 1;
    return holder_launched(gate, snapshot);
}

/* Checks the snapshot once more and passes. If other tenants must ask too, this is done under the claim, so that each
 * sees what the other submitted. */
static struct ct_gate_answer pass_if_unchanged(struct ct_gate *gate, const struct ct_launch_request *request,
                                               uint32_t reason,
                                               const struct snapshot *snapshot, uint64_t now_ns)
{
    struct ct_gate_answer answer = wait_for(CT_GATE_CHANGED, now_ns);
    uint64_t claim = 0;
    if (gate->must_claim && !ct_gate_take_claim(gate, now_ns, &claim))
        return wait_for(CT_GATE_OTHER, sat_add_u64(now_ns, RETRY_NS));
    if (!is_outdated(gate, reason, snapshot, now_ns))
        answer = pass_with_ranks(gate, request, reason, snapshot, now_ns);
    if (gate->must_claim)
        ct_gate_release_claim(gate, claim); /* if the claim expired meanwhile, another tenant may have passed too: one
                                          * extra kernel */
    return answer;
}

/* Decides while no higher-priority tenant is active. */
static struct ct_gate_answer admit_idle(struct ct_gate *gate, const struct ct_launch_request *request,
                                        const struct snapshot *snapshot,
                                      uint64_t now_ns)
{
    const uint64_t debt_ns = ct_gate_debt(gate, now_ns), lead_ns = min_u64(CT_GATE_LEAD_NS, gate->bound_ns);
    if (debt_ns > CT_GATE_BURST_NS) {
        gate->idle_debt_ns = now_ns;
        return wait_for(CT_GATE_DEBT, sat_add_u64(now_ns, debt_ns - CT_GATE_BURST_NS));
    }
    const uint64_t slice_ns = request->blocks ? ct_slice_bound(gate, now_ns) : 0;
    const uint64_t bound_ns = slice_ns ? max_u64(slice_ns, ct_cost_idle_depth(gate, now_ns))
                                       : ct_cost_bound(gate, request, now_ns);
    if (snapshot->submitted_ns > lead_ns && sat_add_u64(snapshot->submitted_ns, request->expect_ns) > bound_ns)
        return wait_for(CT_GATE_BOUND, sat_add_u64(now_ns, snapshot->submitted_ns - lead_ns));
    return pass_if_unchanged(gate, request, CT_GATE_FREE, snapshot, now_ns);
}

/* Reduces a launch that can be cut to what is expected to fit into the rest of the gap. */
static void cut_to_gap(const struct ct_gate *gate, struct ct_launch_request *request, const struct snapshot *snapshot,
                       uint64_t now_ns)
{
    const uint64_t begin_ns = sat_add_u64(sat_add_u64(now_ns, snapshot->submitted_ns), 2 * ct_cost_switch(gate));
    if (request->blocks && snapshot->gap_end_ns > begin_ns)
        ct_slice_cut(request, snapshot->gap_end_ns - begin_ns);
}

/* Decides while a higher-priority tenant is expected to launch again: the kernel must end before that, or its expected
 * cost must be within the budget. */
static struct ct_gate_answer admit_gap(struct ct_gate *gate, struct ct_launch_request *request,
                                       const struct snapshot *snapshot,
                                     uint64_t since_ns, uint64_t now_ns)
{
    cut_to_gap(gate, request, snapshot, now_ns);
    const uint64_t submitted_ns = snapshot->submitted_ns, cost_ns = ct_cost_switch(gate);
    const uint64_t taken_ns = sat_add_u64(submitted_ns, sat_add_u64(cost_ns, cost_ns)),
        debt_ns = ct_gate_debt(gate, now_ns);
    const int is_due = now_ns >= snapshot->gap_end_ns;
    if (!request->may_fill)
        return wait_for(CT_GATE_DUE, snapshot->quiet_ns);
    if (debt_ns > CT_GATE_HARD_DEBT_NS)
        return wait_for(CT_GATE_DEBT, sat_add_u64(now_ns, debt_ns - CT_GATE_HARD_DEBT_NS));
    const uint64_t loss_ns = ct_cost_gap(gate, request, snapshot, now_ns);
    const uint64_t at_ns = loss_ns ? ct_gate_spendable_at(gate, loss_ns, request->expect_ns, since_ns, now_ns) : now_ns;
    if (at_ns > now_ns) /* a check before its next work has completed would fail again */
        return wait_for(is_due ? CT_GATE_DUE : CT_GATE_TIGHT,
                        min_u64(at_ns, is_due ? snapshot->quiet_ns : snapshot->next_gap_ns));
    if (ct_cost_reaches_bound(gate, request, snapshot, now_ns))
        return wait_for(CT_GATE_BOUND, sat_add_u64(now_ns, submitted_ns - CT_GATE_LEAD_NS / 2));
    if (better_candidate_waits(gate, max_u64(request->upper_ns, request->expect_ns),
                               sat_sub_u64(snapshot->gap_end_ns, sat_add_u64(now_ns, taken_ns)), since_ns,
                               now_ns))
        return wait_for(CT_GATE_OTHER, sat_add_u64(now_ns, RETRY_NS));
    return pass_if_unchanged(gate, request, CT_GATE_GAP, snapshot, now_ns);
}

/* Returns when a kernel that fits no gap may use the delay budget of higher-priority tenants. */
static uint64_t risk_allowed_at(const struct ct_gate *gate, const struct ct_launch_request *request, uint64_t since_ns,
                                uint64_t now_ns)
{
    const uint64_t weight_ns = weight_of(gate, request->expect_ns);
    const uint64_t at_ns = ct_gate_spendable_at(gate, sat_add_u64(weight_ns, 1), 0, since_ns, now_ns);
    return request->expect_ns ? at_ns : max_u64(at_ns, sat_add_u64(since_ns, CT_GATE_WAITED_LONG_NS));
}

/* Returns when the kernel may run concurrently with higher-priority tenants, at the expected cost of doing so. */
static uint64_t corun_allowed_at(const struct ct_gate *gate, const struct ct_launch_request *request,
                                 const struct snapshot *snapshot,
                          uint64_t since_ns, uint64_t now_ns)
{
    if (!request->granularity_ns || !request->expect_ns)
        return CT_GATE_NEVER;
    return ct_gate_spendable_at(gate, ct_cost_corun(request, snapshot, now_ns), request->expect_ns, since_ns, now_ns);
}

/* Passes a launch that is limited to its part of the SMs, or waits as told. */
static struct ct_gate_answer admit_limited(struct ct_gate *gate, struct ct_launch_request *request,
                                           const struct snapshot *snapshot, struct ct_gate_answer otherwise,
                                           uint64_t now_ns)
{
    struct ct_launch_request limited = *request;
    if (snapshot->is_urgent || !ct_space_limit(gate, &limited, now_ns))
        return otherwise;
    const uint64_t bound_ns = ct_space_bound(gate), lead_ns = max_u64(bound_ns / 2, CT_GATE_LEAD_NS);
    if (snapshot->submitted_ns > lead_ns && sat_add_u64(snapshot->submitted_ns, limited.expect_ns) > bound_ns)
        return wait_for(CT_GATE_BOUND, sat_add_u64(now_ns, snapshot->submitted_ns - lead_ns));
    const struct ct_gate_answer answer = pass_if_unchanged(gate, &limited, CT_GATE_SPACE, snapshot, now_ns);
    if (answer.pass)
        *request = limited;
    return answer;
}

/* Decides by space: next to an active holder, the launch passes if it can be limited to a part of the SMs. It is not
 * limited if it is expected to end before the holder launches. */
static struct ct_gate_answer admit_space(struct ct_gate *gate, struct ct_launch_request *request,
                                         const struct snapshot *snapshot, uint64_t now_ns)
{
    if (now_ns < snapshot->gap_begin_ns)
        return admit_limited(gate, request, snapshot, wait_for(CT_GATE_BUSY, snapshot->gap_begin_ns), now_ns);
    struct ct_launch_request fitting = *request;
    cut_to_gap(gate, &fitting, snapshot, now_ns);
    if (!request->may_fill || ct_cost_gap(gate, &fitting, snapshot, now_ns)) {
        const int is_due = now_ns >= snapshot->gap_end_ns;
        const uint64_t until_ns = is_due || !request->may_fill ? snapshot->quiet_ns : snapshot->next_gap_ns;
        return admit_limited(gate, request, snapshot, wait_for(is_due ? CT_GATE_DUE : CT_GATE_TIGHT, until_ns), now_ns);
    }
    if (ct_cost_reaches_bound(gate, &fitting, snapshot, now_ns)) {
        const uint64_t until_ns = sat_add_u64(now_ns, snapshot->submitted_ns - CT_GATE_LEAD_NS / 2);
        return admit_limited(gate, request, snapshot, wait_for(CT_GATE_BOUND, until_ns), now_ns);
    }
    *request = fitting;
    return pass_if_unchanged(gate, request, CT_GATE_GAP, snapshot, now_ns);
}

/* Decides for a tenant that has higher-priority tenants. */
static struct ct_gate_answer admit_lower(struct ct_gate *gate, struct ct_launch_request *request,
                                         const struct snapshot *snapshot,
                                       uint64_t since_ns, uint64_t now_ns)
{
    struct ct_gate_answer answer;
    if (snapshot->is_clean_wanted && ct_space_needs_losses(gate))
        return wait_for(CT_GATE_CLEAN, sat_add_u64(now_ns, CLEAN_RECHECK_NS));
    if (!snapshot->is_active) {
        answer = admit_idle(gate, request, snapshot, now_ns);
        if (answer.reason != CT_GATE_DEBT || !ct_space_is_open(gate) || request->is_collective)
            return answer;
        return admit_limited(gate, request, snapshot, answer, now_ns);
    }
    if (snapshot->is_urgent) /* only launches pass that cost nothing */
        return gate->policy == CT_GATE_FILL ? admit_space(gate, request, snapshot, now_ns)
                                            : wait_for(CT_GATE_DUE, max_u64(snapshot->gap_begin_ns, snapshot->quiet_ns));
    if (ct_space_is_open(gate) && (!request->is_collective || gate->gang.is_asking)) {
        answer = admit_space(gate, request, snapshot, now_ns);
        if (answer.pass || answer.reason > CT_GATE_DUE || !ct_space_permits_loss(gate, request))
            return answer;
    }
    if (ct_space_prefers_idle(gate) && sat_sub_u64(now_ns, since_ns) < CT_GATE_WAITED_LONG_NS &&
        !request->is_collective) {
        answer = admit_space(gate, request, snapshot, now_ns);
        if (answer.pass || answer.reason > CT_GATE_DUE || !ct_space_permits_loss(gate, request)) {
            answer.until_ns = min_u64(answer.until_ns, sat_add_u64(since_ns, CT_GATE_WAITED_LONG_NS));
            return answer;
        }
    }
    if (now_ns < snapshot->gap_begin_ns)
        answer = wait_for(CT_GATE_BUSY, snapshot->gap_begin_ns);
    else if (gate->policy != CT_GATE_FILL)
        answer = wait_for(CT_GATE_DUE, snapshot->quiet_ns);
    else
        answer = admit_gap(gate, request, snapshot, since_ns, now_ns);
    if (answer.pass || answer.reason > CT_GATE_DUE)
        return answer;
    const uint64_t corun_ns = corun_allowed_at(gate, request, snapshot, since_ns, now_ns);
    if (corun_ns <= now_ns) {
        if (ct_cost_reaches_bound(gate, request, snapshot, now_ns))
            return wait_for(CT_GATE_BOUND, sat_add_u64(now_ns, snapshot->submitted_ns - CT_GATE_LEAD_NS / 2));
        /* The rest of a gap is reserved for waiting kernels that fit into it. */
        const uint64_t remaining_ns = sat_sub_u64(snapshot->gap_end_ns, sat_add_u64(now_ns, snapshot->submitted_ns));
        if (now_ns >= snapshot->gap_begin_ns &&
            better_candidate_waits(gate, max_u64(request->upper_ns, request->expect_ns), remaining_ns, since_ns,
                                   now_ns))
            return wait_for(CT_GATE_OTHER, sat_add_u64(now_ns, RETRY_NS));
        return pass_if_unchanged(gate, request, CT_GATE_CORUN, snapshot, now_ns);
    }
    answer.until_ns = min_u64(answer.until_ns, corun_ns);
    if (snapshot->submitted_ns) /* only one such kernel at a time */
        return answer;
    const uint64_t risk_ns = risk_allowed_at(gate, request, since_ns, now_ns);
    if (risk_ns <= now_ns)
        return pass_if_unchanged(gate, request, CT_GATE_RISK, snapshot, now_ns);
    answer.until_ns = min_u64(answer.until_ns, risk_ns);
    return answer;
}

/* Returns whether the tenant may launch because it has not used its minimum share. */
static int min_share_is_due(const struct ct_gate *gate, uint64_t now_ns)
{
    return gate->min_share_ppm && ct_account_min_share_ahead(gate, now_ns) <= CT_GATE_BURST_NS &&
           sat_sub_u64(plausible(load_relaxed(&gate->mine->busy_ns), now_ns), now_ns) <= CT_GATE_LEAD_NS;
}

/* Publishes that this tenant waits and the gap its kernel needs; CT_GATE_NEVER if no gap suffices, so that no tenant
 * defers to it. */
static void publish_request(struct ct_gate *gate, const struct ct_launch_request *request, int may_fill,
                            uint64_t now_ns)
{
    const uint64_t upper_ns = max_u64(request->upper_ns, request->expect_ns);
    store_relaxed(&gate->mine->wanted_ns, may_fill ? sat_add_u64(upper_ns, 1) : CT_GATE_NEVER);
    store_release(&gate->mine->asked_ns, now_ns);
}

/* Passes a launch that need not ask. A collective waits for those ranks of its gang that have to. */
static struct ct_gate_answer admit_top(struct ct_gate *gate, struct ct_launch_request *request, uint64_t now_ns)
{
    struct ct_gang *gang = &gate->gang;
    if (gang->is_asking && !ct_gang_is_uncontended(gang) && !ct_gang_open(gang, now_ns))
        return wait_for(CT_GATE_GANG, ct_gang_recheck_at(gang, now_ns));
    ct_space_limit_open(gate, request);
    ct_gate_announce(gate, request, now_ns);
    store_relaxed(&gate->mine->wanted_ns, 0);
    add_single_writer(&gate->mine->counts.passed[CT_GATE_TOP], 1);
    if (gang->is_asking)
        ct_gang_passed(gang);
    return (struct ct_gate_answer){.pass = 1, .reason = CT_GATE_TOP, .until_ns = now_ns};
}

/* Passes a collective that is agreed, whatever has happened since this gate admitted it: other ranks launch it now. If a
 * higher-priority tenant has launched since, its loss is charged as if the collective had been launched then. */
static struct ct_gate_answer pass_agreed(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    struct snapshot snapshot;
    ct_account_update(gate, now_ns);
    ct_gate_settle(gate, now_ns);
    take_snapshot(gate, now_ns, &snapshot);
    snapshot.submitted_ns = submitted_work(gate, now_ns);
    for (uint32_t i = 0; i < gate->higher_count; i++)
        snapshot.sequence[i] = gate->higher[i].opened_sequence;
    return pass(gate, request, CT_GATE_AGREED, &snapshot, now_ns);
}

/* Decides by this gate alone about a launch, or about its next part, for a process that must ask. */
static struct ct_gate_answer decide(struct ct_gate *gate, struct ct_launch_request *request, uint64_t since_ns,
                                    uint64_t now_ns)
{
    struct snapshot snapshot;
    ct_lease_end(gate, now_ns);
    ct_account_update(gate, now_ns);
    if (request->blocks && gate->higher_count && gate->policy != CT_GATE_OPEN)
        ct_slice_cut(request, ct_slice_bound(gate, now_ns));
    request->granularity_ns = ct_cost_granularity(gate, request);
    const int is_full = ct_limit_is_full(gate, request, now_ns);
    publish_request(gate, request, request->may_fill && !is_full && !gate->is_paused, now_ns);
    ct_gate_settle(gate, now_ns);
    ct_space_update(gate, now_ns);
    if (gate->is_paused)
        return wait_for(CT_GATE_PAUSED, sat_add_u64(now_ns, PAUSE_RECHECK_NS));
    take_snapshot(gate, now_ns, &snapshot);
    snapshot.submitted_ns = submitted_work(gate, now_ns);
    if (is_full && request->is_probe)
        return wait_for(CT_GATE_BOUND, sat_add_u64(now_ns, RETRY_NS));
    if (is_full) {
        ct_limit_held(gate, sat_sub_u64(now_ns, gate->ended_ns), now_ns);
        if (gate->is_ending || sat_sub_u64(now_ns, since_ns) / 8 < sat_add_u64(CT_GATE_STUCK_NS / 8,
                                                                               gate->unconfirmed_ns))
            return wait_for(CT_GATE_BOUND, ct_limit_retry_at(gate, request, now_ns));
        add_single_writer(&gate->mine->counts.stuck, 1);
        gate->is_lent = 0; /* ct_limit_ask() was not called for this launch */
        return pass(gate, request, CT_GATE_STUCK, &snapshot, now_ns);
    }
    uint64_t until_ns;
    const uint32_t reason = ct_limit_ask(gate, request, snapshot.is_active, since_ns, now_ns, &until_ns);
    if (reason) {
        store_relaxed(&gate->mine->wanted_ns, CT_GATE_NEVER); /* it does not compete for gaps */
        return wait_for(reason, until_ns);
    }
    /* Without higher-priority tenants, only an ending tenant and a tenant with shares to observe get here. */
    if (gate->policy == CT_GATE_OPEN || (!gate->higher_count && !gate->is_ending))
        return pass_with_ranks(gate, request, gate->is_lent ? CT_GATE_LENT : CT_GATE_FREE, &snapshot, now_ns);
    struct ct_gate_answer answer = admit_lower(gate, request, &snapshot, since_ns, now_ns);
    if (!answer.pass && answer.reason != CT_GATE_CHANGED && answer.reason != CT_GATE_GANG &&
        min_share_is_due(gate, now_ns)) {
        take_snapshot(gate, now_ns, &snapshot);
        return pass_with_ranks(gate, request, CT_GATE_MIN_SHARE, &snapshot, now_ns);
    }
    return answer;
}

/* Publishes whether a collective waits for other ranks. Then it does not compete for gaps. */
static void publish_ranks(struct ct_gate *gate, int is_waiting, uint64_t now_ns)
{
    store_relaxed(&gate->mine->ranks_ns, is_waiting ? gate->gang.arrived_ns : 0);
    if (!is_waiting)
        return;
    store_relaxed(&gate->mine->wanted_ns, CT_GATE_NEVER);
    store_release(&gate->mine->asked_ns, now_ns);
}

struct ct_gate_answer ct_gate_admit(struct ct_gate *gate, struct ct_launch_request *request, uint64_t since_ns,
                                    uint64_t now_ns)
{
    struct ct_gang *gang = &gate->gang;
    const int must_ask = ct_gate_must_ask(gate);
    request->sm_ppm = 0;
    request->part_blocks = 0;
    if (request->is_collective)
        request->blocks = 0; /* its blocks may wait for each other */
    gang->is_asking = request->is_collective && !request->is_coupled && ct_gang_begin(gang, must_ask, now_ns);
    if (request->is_collective && !gang->is_asking) /* it may wait for others, for as long as they are held elsewhere */
        request->may_fill = request->granularity_ns = 0;
    struct ct_launch_request admitted = *request; /* unchanged if it must wait: the next part may be another one */
    struct ct_gate_answer answer;
    if (!must_ask)
        answer = admit_top(gate, request, now_ns);
    else if (request->is_agreed || (gang->is_asking && ct_gang_is_agreed(gang)))
        answer = pass_agreed(gate, request, now_ns);
    else
        answer = decide(gate, &admitted, since_ns, now_ns);
    if (answer.pass && answer.reason != CT_GATE_TOP && answer.reason != CT_GATE_AGREED)
        *request = admitted;
    if (answer.pass && !request->part_blocks)
        ct_lease_grant(gate, answer.reason, now_ns);
    if (!answer.pass && gang->is_asking && answer.reason != CT_GATE_GANG && ct_gang_close(gang))
        answer = pass_agreed(gate, request, now_ns);
    ct_gang_held(gang, answer.pass ? 0 : now_ns);
    if (gang->page)
        publish_ranks(gate, answer.reason == CT_GATE_GANG, now_ns);
    return answer;
}

int ct_gate_would_admit(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    struct ct_launch_request probe = {.expect_ns = request->expect_ns, .upper_ns = request->upper_ns,
                                      .is_collective = 1, .is_coupled = 1, .is_probe = 1};
    gate->gang.is_asking = 0;
    return !ct_gate_must_ask(gate) || decide(gate, &probe, now_ns, now_ns).pass;
}
