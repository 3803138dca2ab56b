/* After a decision: submission, completion and waiting. */
#include "gate/submission.h"

#include "gate/debt.h"
#include "gate/lease.h"
#include "gate/limit.h"
#include "gate/loss.h"
#include "gate/internal.h"

enum { PPM = 1000 * 1000, SPIN_BURST_NS = 5 * 1000 * 1000, SPIN_MAX_NS = 200 * 1000 };

void ct_submission_remove(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns)
{
    gate->unconfirmed--;
    gate->ended_ns = now_ns;
    gate->unconfirmed_ns -= min_u64(weight_of(gate, expect_ns), gate->unconfirmed_ns);
    if (!gate->unconfirmed) {
        gate->unconfirmed_ns = 0;
        ct_loss_ended(gate, now_ns);
    }
    /* What is left cannot take longer than predicted for it alone: earlier work may have ended before its prediction. */
    const uint64_t until_ns = sat_add_u64(now_ns, gate->unconfirmed_ns);
    if (load_relaxed(&gate->mine->busy_ns) > until_ns)
        store_release(&gate->mine->busy_ns, until_ns);
    if (gate->charged_until_ns > until_ns && !gate->holder_returned)
        gate->charged_until_ns = until_ns; /* the time that was predicted and not used is not charged */
}

void ct_gate_submitted(struct ct_gate *gate, const struct ct_launch_request *request, int is_submitted, uint64_t now_ns)
{
    struct ct_gate_counts *counts = &gate->mine->counts;
    if (!gate->unconfirmed)
        return; /* it passed while no higher-priority tenant existed */
    if (!is_submitted) {
        ct_limit_refund(gate, request, now_ns);
        ct_submission_remove(gate, request->expect_ns, now_ns);
        return;
    }
    add_single_writer(&counts->submitted, 1);
    ct_submission_count_late(gate, now_ns);
}

void ct_submission_count_late(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_gate_counts *counts = &gate->mine->counts;
    uint64_t first_ns = CT_GATE_NEVER;
    for (uint32_t i = 0; i < gate->higher_count; i++)
        first_ns = min_u64(first_ns, ct_gate_returned_at(gate, &gate->higher[i]));
    if (first_ns == CT_GATE_NEVER)
        return;
    add_single_writer(&counts->late, 1);
    add_single_writer(&counts->late_ns, sat_sub_u64(now_ns, first_ns));
}

void ct_gate_confirmed(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns)
{
    if (!gate->unconfirmed)
        return;
    add_single_writer(&gate->mine->counts.confirmed, 1);
    ct_submission_remove(gate, expect_ns, now_ns);
}

void ct_gate_prolong(struct ct_gate *gate, uint64_t until_ns)
{
    if (load_relaxed(&gate->mine->busy_ns) < until_ns)
        store_release(&gate->mine->busy_ns, until_ns);
    if (!gate->charged_until_ns || until_ns <= gate->charged_until_ns)
        return;
    if (gate->holder_returned)
        gate->owed_ns = sat_add_u64(gate->owed_ns, until_ns - gate->charged_until_ns);
    gate->charged_until_ns = until_ns;
}

void ct_gate_waited(struct ct_gate *gate, uint64_t since_ns, uint64_t now_ns)
{
    struct ct_gate_counts *counts = &gate->mine->counts;
    uint64_t waited_ns = sat_sub_u64(now_ns, since_ns);
    unsigned power = waited_ns ? 63 - (unsigned)__builtin_clzll(waited_ns) : 0;
    store_relaxed(&gate->mine->wanted_ns, 0);
    add_single_writer(&counts->waits, 1);
    add_single_writer(&counts->waited_ns, waited_ns);
    add_single_writer(&counts->waited[power < CT_GATE_BUCKETS ? power : CT_GATE_BUCKETS - 1], 1);
}

struct ct_gate_wait_plan ct_gate_wait_plan(struct ct_gate *gate, const struct ct_gate_answer *answer, uint64_t now_ns)
{
    struct ct_gate_wait_plan plan = {0, 0};
    uint64_t until_ns = max_u64(answer->until_ns, now_ns);
    /* A tenant beyond its share waits long; spinning would be of no use. */
    int may_spin = gate->spin_ppm && answer->reason != CT_GATE_PAUSED && answer->reason < CT_GATE_DEBT &&
                   sat_sub_u64(gate->spin_ns, now_ns) <= SPIN_BURST_NS;
    /* While a holder may launch at any instant, its launch is polled for, because it opens the next gap. */
    int must_poll = answer->reason == CT_GATE_DUE;
    if (may_spin && (must_poll || until_ns - now_ns <= CT_GATE_WAKE_NS)) {
        plan.spin_until_ns = until_ns - now_ns < SPIN_MAX_NS ? until_ns : now_ns + SPIN_MAX_NS;
        return plan;
    }
    until_ns = min_u64(until_ns, sat_add_u64(now_ns, must_poll ? 2 * CT_GATE_WAKE_NS : CT_GATE_SLEEP_MAX_NS));
    plan.sleep_until_ns = may_spin ? until_ns - CT_GATE_WAKE_NS : until_ns;
    uint64_t asleep_ns = load_relaxed(&gate->arbitration->asleep_until_ns);
    if (asleep_ns < plan.sleep_until_ns || sat_sub_u64(asleep_ns, now_ns) > CT_GATE_SLEEP_MAX_NS)
        store_relaxed(&gate->arbitration->asleep_until_ns, plan.sleep_until_ns);
    return plan;
}

void ct_gate_spun(struct ct_gate *gate, uint64_t spun_ns, uint64_t now_ns)
{
    if (gate->spin_ppm)
        gate->spin_ns = sat_add_u64(max_u64(gate->spin_ns, now_ns),
                                    min_u64(spun_ns, CT_GATE_HORIZON_NS) * PPM / gate->spin_ppm);
    add_single_writer(&gate->mine->counts.spun_ns, spun_ns);
}

void ct_gate_slept(struct ct_gate *gate, uint64_t slept_ns)
{
    add_single_writer(&gate->mine->counts.slept_ns, slept_ns);
}

void ct_gate_overslept(struct ct_gate *gate, uint64_t late_ns, uint64_t now_ns)
{
    ct_limit_held(gate, late_ns, now_ns);
}
