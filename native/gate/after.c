/* After the answer: what was submitted, what has ended, and how to wait. */
#include "gate/gate.h"

#define LOAD(place) atomic_load_explicit(&(place), memory_order_relaxed)
#define STORE(place, value) atomic_store_explicit(&(place), (value), memory_order_relaxed)
#define ADD(place, more) STORE(place, LOAD(place) + (more))

enum { PPM = 1000 * 1000, SPIN_BURST_NS = 5 * 1000 * 1000, SPIN_LONGEST_NS = 200 * 1000 };

void ct_gate_submitted(struct ct_gate *gate, const struct ct_gate_wish *wish, int is_submitted, uint64_t now_ns)
{
    struct ct_gate_counts *counts = &gate->mine->counts;
    if (!is_submitted) {
        ct_gate_confirmed(gate, wish->expect_ns, now_ns);
        return;
    }
    ADD(counts->submitted, 1);
    for (uint32_t i = 0; i < gate->above_count; i++) {
        const struct ct_gate_peer *peer = &gate->above[i];
        uint64_t sequence = atomic_load_explicit(&peer->page->sequence, memory_order_acquire);
        if (sequence == peer->seen)
            continue;
        uint64_t at_ns = LOAD(peer->page->recent_ns[(peer->seen + 1) % CT_GATE_RECENT]);
        ADD(counts->late, 1);
        ADD(counts->late_ns, at_ns < now_ns ? now_ns - at_ns : 0);
        return;
    }
}

void ct_gate_confirmed(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns)
{
    ADD(gate->mine->counts.confirmed, 1);
    gate->unconfirmed -= gate->unconfirmed > 0;
    gate->unconfirmed_ns -= expect_ns < gate->unconfirmed_ns ? expect_ns : gate->unconfirmed_ns;
    if (gate->unconfirmed == 0) {
        gate->unconfirmed_ns = 0;
        if (LOAD(gate->mine->busy_ns) > now_ns)
            STORE(gate->mine->busy_ns, now_ns);
    }
}

void ct_gate_prolong(struct ct_gate *gate, uint64_t until_ns)
{
    if (LOAD(gate->mine->busy_ns) < until_ns)
        STORE(gate->mine->busy_ns, until_ns);
}

void ct_gate_waited(struct ct_gate *gate, uint64_t since_ns, uint64_t now_ns)
{
    struct ct_gate_counts *counts = &gate->mine->counts;
    uint64_t waited_ns = now_ns > since_ns ? now_ns - since_ns : 0;
    unsigned power = waited_ns ? 63 - (unsigned)__builtin_clzll(waited_ns) : 0;
    STORE(gate->mine->wanted_ns, 0);
    ADD(counts->waits, 1);
    ADD(counts->waited_ns, waited_ns);
    ADD(counts->waited[power < CT_GATE_BUCKETS ? power : CT_GATE_BUCKETS - 1], 1);
}

struct ct_gate_nap ct_gate_nap(struct ct_gate *gate, const struct ct_gate_answer *answer, uint64_t now_ns)
{
    struct ct_gate_nap nap = {0, 0};
    uint64_t until_ns = answer->until_ns > now_ns ? answer->until_ns : now_ns;
    int may_spin = gate->spin_ppm && answer->reason != CT_GATE_PAUSED && answer->reason != CT_GATE_DEBT &&
                   gate->spin_ns <= now_ns + SPIN_BURST_NS;
    /* Who waits for a holder that may come at any instant looks at it, for its launch opens the next gap. */
    int must_look = answer->reason == CT_GATE_DUE;
    if (may_spin && (must_look || until_ns - now_ns <= CT_GATE_WAKE_NS)) {
        nap.spin_until_ns = until_ns - now_ns < SPIN_LONGEST_NS ? until_ns : now_ns + SPIN_LONGEST_NS;
        return nap;
    }
    const uint64_t most_ns = must_look ? 2 * CT_GATE_WAKE_NS : CT_GATE_NAP_NS;
    if (until_ns - now_ns > most_ns)
        until_ns = now_ns + most_ns;
    nap.sleep_until_ns = may_spin ? until_ns - CT_GATE_WAKE_NS : until_ns;
    if (LOAD(gate->floor->asleep_until_ns) < nap.sleep_until_ns ||
        LOAD(gate->floor->asleep_until_ns) > now_ns + CT_GATE_NAP_NS)
        STORE(gate->floor->asleep_until_ns, nap.sleep_until_ns);
    return nap;
}

void ct_gate_spun(struct ct_gate *gate, uint64_t spun_ns, uint64_t now_ns)
{
    uint64_t from_ns = gate->spin_ns > now_ns ? gate->spin_ns : now_ns;
    if (gate->spin_ppm)
        gate->spin_ns = from_ns + (spun_ns < UINT64_MAX / PPM ? spun_ns * PPM / gate->spin_ppm : UINT64_MAX / 2);
    ADD(gate->mine->counts.spun_ns, spun_ns);
}

void ct_gate_slept(struct ct_gate *gate, uint64_t slept_ns)
{
    ADD(gate->mine->counts.slept_ns, slept_ns);
}
