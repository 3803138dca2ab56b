/* What have those above lost to those below, and how long does that keep the gate closed? */
#include "gate/debt.h"

#include "gate/words.h"

enum { PPM = 1000 * 1000, CHEAP = 4 };

static unsigned power_of(uint64_t ns)
{
    unsigned power = ns ? 63 - (unsigned)__builtin_clzll(ns) : 0;
    return power < CT_GATE_BUCKETS ? power : CT_GATE_BUCKETS - 1;
}

uint64_t ct_gate_earned_in(uint64_t amount_ns, uint64_t ppm)
{
    if (!ppm)
        return CT_GATE_CLOSED_NS; /* nothing is ever earned: what was lost all the same closes the gaps for a while */
    if (amount_ns > UINT64_MAX / PPM)
        return CT_GATE_DEBT_MOST_NS;
    return sooner(amount_ns * PPM / sooner(ppm, PPM), CT_GATE_DEBT_MOST_NS);
}

/* An instant of another boot, or a scribble, must not close the gate for good. */
static uint64_t owed(uint64_t debt_ns, uint64_t now_ns)
{
    return left(debt_ns, now_ns) <= CT_GATE_DEBT_MOST_NS ? left(debt_ns, now_ns) : 0;
}

uint64_t ct_gate_debt(const struct ct_gate *gate, uint64_t now_ns)
{
    return owed(LOAD(gate->floor->debt_ns), now_ns);
}

void ct_gate_charge(struct ct_gate *gate, uint64_t lost_ns, uint64_t now_ns)
{
    uint64_t debt_ns = LOAD(gate->floor->debt_ns), more_ns = ct_gate_earned_in(lost_ns, gate->delay_ppm), paid_ns;
    do
        paid_ns = plus(now_ns, sooner(owed(debt_ns, now_ns) + more_ns, CT_GATE_DEBT_MOST_NS));
    while (!atomic_compare_exchange_weak_explicit(&gate->floor->debt_ns, &debt_ns, paid_ns, memory_order_relaxed,
                                                  memory_order_relaxed));
    ADD(gate->mine->counts.overruns, 1);
    ADD(gate->mine->counts.overrun_ns, lost_ns);
    ADD(gate->mine->counts.overrun[power_of(lost_ns)], 1);
}

uint64_t ct_gate_came_back(const struct ct_gate *gate, struct ct_gate_peer *peer)
{
    uint64_t sequence = SEE(peer->page->sequence), first = peer->seen + 1;
    if (sequence == peer->seen || SEE(peer->page->generation) != peer->generation)
        return CT_GATE_NEVER;
    if (sequence - peer->seen >= CT_GATE_RECENT)
        first = sequence - CT_GATE_RECENT + 2; /* the oldest may be overwritten while we look */
    peer->observed = sequence;
    /* It had not launched when we passed, whatever its page says: two of its processes may have written one instant. */
    return later(LOAD(peer->page->recent_ns[first % CT_GATE_RECENT]), gate->charged_from_ns);
}

/* What was spent, as an instant; nothing is saved up for longer than a while. */
static uint64_t spent(const struct ct_gate *gate, uint64_t now_ns)
{
    return later(gate->spent_ns, left(now_ns, CT_GATE_SPARE_NS));
}

uint64_t ct_gate_spendable_at(const struct ct_gate *gate, uint64_t loss_ns, uint64_t worth_ns, uint64_t since_ns,
                              uint64_t now_ns)
{
    if (gate->policy != CT_GATE_FILL || !gate->delay_ppm)
        return CT_GATE_NEVER;
    const uint64_t earned_ns = ct_gate_earned_in(loss_ns, gate->delay_ppm), debt_ns = ct_gate_debt(gate, now_ns);
    if (loss_ns <= worth_ns / CHEAP)
        return later(plus(spent(gate, now_ns), earned_ns), plus(now_ns, left(debt_ns, CT_GATE_BURST_NS)));
    return later(plus(later(gate->spent_ns, since_ns), earned_ns), plus(now_ns, debt_ns));
}

void ct_gate_spend(struct ct_gate *gate, uint64_t loss_ns, uint64_t now_ns)
{
    gate->spent_ns = plus(spent(gate, now_ns), ct_gate_earned_in(loss_ns, gate->delay_ppm));
}

void ct_gate_settle(struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t first_ns = CT_GATE_NEVER;
    for (uint32_t i = 0; i < gate->above_count; i++) {
        struct ct_gate_peer *peer = &gate->above[i];
        uint64_t back_ns = ct_gate_came_back(gate, peer);
        if (back_ns == CT_GATE_NEVER)
            continue;
        peer->seen = peer->observed;
        first_ns = sooner(first_ns, back_ns);
    }
    if (first_ns < gate->charged_until_ns && !gate->is_back)
        ct_gate_charge(gate, gate->charged_until_ns - first_ns, now_ns);
    if (first_ns != CT_GATE_NEVER) {
        gate->is_back = 1; /* all that our work takes from here on is lost, too: see ct_gate_prolong() */
        gate->has_switched = 0;
    }
    if (gate->owed_ns)
        ct_gate_charge(gate, gate->owed_ns, now_ns);
    gate->owed_ns = 0;
}
