/* After the answer: what was submitted, what has ended, and how to wait. */
#include "gate/debt.h"
#include "gate/limit.h"
#include "gate/words.h"

enum { PPM = 1000 * 1000, SPIN_BURST_NS = 5 * 1000 * 1000, SPIN_LONGEST_NS = 200 * 1000 };

/* One that was admitted is over, or never began. */
static void take_off(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns)
{
    gate->unconfirmed--;
    gate->ended_ns = now_ns;
    gate->unconfirmed_ns -= sooner(weight_of(gate, expect_ns), gate->unconfirmed_ns);
    if (gate->unconfirmed)
        return;
    gate->unconfirmed_ns = 0;
    if (LOAD(gate->mine->busy_ns) > now_ns)
        SHOW(gate->mine->busy_ns, now_ns);
    if (gate->charged_until_ns > now_ns && !gate->is_back)
        gate->charged_until_ns = now_ns; /* it ended before it was expected to: the rest costs nobody anything */
}

void ct_gate_submitted(struct ct_gate *gate, const struct ct_gate_wish *wish, int is_submitted, uint64_t now_ns)
{
    struct ct_gate_counts *counts = &gate->mine->counts;
    if (!gate->unconfirmed)
        return; /* it passed because nobody was above */
    if (!is_submitted) {
        ct_limit_refund(gate, wish, now_ns);
        take_off(gate, wish->expect_ns, now_ns);
        return;
    }
    ADD(counts->submitted, 1);
    uint64_t first_ns = CT_GATE_NEVER;
    for (uint32_t i = 0; i < gate->above_count; i++)
        first_ns = sooner(first_ns, ct_gate_came_back(gate, &gate->above[i]));
    if (first_ns == CT_GATE_NEVER)
        return;
    ADD(counts->late, 1);
    ADD(counts->late_ns, left(now_ns, first_ns));
}

void ct_gate_confirmed(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns)
{
    if (!gate->unconfirmed)
        return;
    ADD(gate->mine->counts.confirmed, 1);
    take_off(gate, expect_ns, now_ns);
}

void ct_gate_prolong(struct ct_gate *gate, uint64_t until_ns)
{
    if (LOAD(gate->mine->busy_ns) < until_ns)
        SHOW(gate->mine->busy_ns, until_ns);
    if (!gate->charged_until_ns || until_ns <= gate->charged_until_ns)
        return;
    if (gate->is_back)
        gate->owed_ns = plus(gate->owed_ns, until_ns - gate->charged_until_ns);
    gate->charged_until_ns = until_ns;
}

void ct_gate_waited(struct ct_gate *gate, uint64_t since_ns, uint64_t now_ns)
{
    struct ct_gate_counts *counts = &gate->mine->counts;
    uint64_t waited_ns = left(now_ns, since_ns);
    unsigned power = waited_ns ? 63 - (unsigned)__builtin_clzll(waited_ns) : 0;
    STORE(gate->mine->wanted_ns, 0);
    ADD(counts->waits, 1);
    ADD(counts->waited_ns, waited_ns);
    ADD(counts->waited[power < CT_GATE_BUCKETS ? power : CT_GATE_BUCKETS - 1], 1);
}

struct ct_gate_nap ct_gate_nap(struct ct_gate *gate, const struct ct_gate_answer *answer, uint64_t now_ns)
{
    struct ct_gate_nap nap = {0, 0};
    uint64_t until_ns = later(answer->until_ns, now_ns);
    /* Who is late for its share has it later: there is no use in looking. */
    int may_spin = gate->spin_ppm && answer->reason != CT_GATE_PAUSED && answer->reason < CT_GATE_DEBT &&
                   left(gate->spin_ns, now_ns) <= SPIN_BURST_NS;
    /* Who waits for a holder that may come at any instant looks at it, for its launch opens the next gap. */
    int must_look = answer->reason == CT_GATE_DUE;
    if (may_spin && (must_look || until_ns - now_ns <= CT_GATE_WAKE_NS)) {
        nap.spin_until_ns = until_ns - now_ns < SPIN_LONGEST_NS ? until_ns : now_ns + SPIN_LONGEST_NS;
        return nap;
    }
    until_ns = sooner(until_ns, plus(now_ns, must_look ? 2 * CT_GATE_WAKE_NS : CT_GATE_NAP_NS));
    nap.sleep_until_ns = may_spin ? until_ns - CT_GATE_WAKE_NS : until_ns;
    uint64_t asleep_ns = LOAD(gate->floor->asleep_until_ns);
    if (asleep_ns < nap.sleep_until_ns || left(asleep_ns, now_ns) > CT_GATE_NAP_NS)
        STORE(gate->floor->asleep_until_ns, nap.sleep_until_ns);
    return nap;
}

void ct_gate_spun(struct ct_gate *gate, uint64_t spun_ns, uint64_t now_ns)
{
    if (gate->spin_ppm)
        gate->spin_ns = plus(later(gate->spin_ns, now_ns), sooner(spun_ns, CT_GATE_FAR_NS) * PPM / gate->spin_ppm);
    ADD(gate->mine->counts.spun_ns, spun_ns);
}

void ct_gate_slept(struct ct_gate *gate, uint64_t slept_ns)
{
    ADD(gate->mine->counts.slept_ns, slept_ns);
}

void ct_gate_overslept(struct ct_gate *gate, uint64_t late_ns, uint64_t now_ns)
{
    ct_limit_held(gate, late_ns, now_ns);
}
