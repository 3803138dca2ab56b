/* What have those above lost to those below, and how long does that keep the gate closed? */
#include "gate/debt.h"

#include "gate/loss.h"
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
    return sooner(amount_ns * PPM / ppm, CT_GATE_DEBT_MOST_NS);
}

/* An instant of another boot, or a scribble, must not close the gate for good. */
static uint64_t owed(uint64_t debt_ns, uint64_t now_ns)
{
    return left(debt_ns, now_ns) <= CT_GATE_DEBT_MOST_NS ? left(debt_ns, now_ns) : 0;
}

uint64_t ct_gate_spared_ppm(const struct ct_gate *gate)
{
    const uint64_t spared_ppm = gate->delay_ppm * gate->duty_ppm / PPM;
    return gate->delay_ppm && !spared_ppm ? 1 : spared_ppm;
}

/* Half of it is what was seen before: a request that happens to fall into the time looked at is not all there is. */
static void count_duty(struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t active_ns = 0;
    if (left(now_ns, gate->duty_from_ns) < CT_GATE_DUTY_NS)
        return;
    ct_loss_look(gate);
    for (uint32_t i = 0; i < gate->above_count; i++)
        if (SEE(gate->above[i].page->generation) == gate->above[i].generation)
            active_ns = plus(active_ns, LOAD(gate->above[i].page->active_ns));
    if (gate->duty_from_ns) {
        const uint64_t more_ns = left(active_ns, gate->duty_active_ns), span_ns = now_ns - gate->duty_from_ns;
        const uint64_t duty_ppm = more_ns >= span_ns ? PPM : more_ns * 1000 / (span_ns / 1000);
        /* From the least up at once: nobody knew, or it just came back. */
        const uint64_t before_ppm = gate->duty_ppm > CT_GATE_DUTY_LEAST_PPM ? gate->duty_ppm : duty_ppm;
        gate->duty_ppm = later((before_ppm + duty_ppm) / 2, CT_GATE_DUTY_LEAST_PPM);
    }
    gate->duty_from_ns = now_ns;
    gate->duty_active_ns = active_ns;
}

static uint64_t owed_by(const struct ct_gate_peer *peer, uint32_t count, uint64_t now_ns)
{
    uint64_t most_ns = 0;
    for (uint32_t i = 0; i < count; i++)
        if (SEE(peer[i].page->generation) == peer[i].generation)
            most_ns = later(most_ns, owed(LOAD(peer[i].page->owes_ns), now_ns));
    return most_ns;
}

/* What was charged last by somebody who is gone is forgiven, back to what the last of those who are there was charged. */
static uint64_t owed_of(const struct ct_gate *gate, uint64_t debt_ns, uint64_t now_ns)
{
    const uint64_t owed_ns = owed(debt_ns, now_ns), mine_ns = owed(LOAD(gate->mine->owes_ns), now_ns);
    if (owed_ns <= mine_ns)
        return owed_ns;
    const uint64_t others_ns =
        later(owed_by(gate->above, gate->above_count, now_ns), owed_by(gate->beside, gate->beside_count, now_ns));
    return sooner(owed_ns, later(mine_ns, others_ns));
}

uint64_t ct_gate_debt(const struct ct_gate *gate, uint64_t now_ns)
{
    return owed_of(gate, SEE(gate->floor->debt_ns), now_ns);
}

void ct_gate_charge(struct ct_gate *gate, uint64_t thought_ns, uint64_t now_ns)
{
    const uint64_t lost_ns = ct_loss_scaled(gate, thought_ns);
    const uint64_t more_ns = ct_gate_earned_in(lost_ns, ct_gate_spared_ppm(gate));
    uint64_t debt_ns = SEE(gate->floor->debt_ns), paid_ns;
    do {
        paid_ns = plus(now_ns, sooner(owed_of(gate, debt_ns, now_ns) + more_ns, CT_GATE_DEBT_MOST_NS));
        STORE(gate->mine->owes_ns, paid_ns); /* before the floor says so: whoever sees the one sees the other */
    } while (!atomic_compare_exchange_weak_explicit(&gate->floor->debt_ns, &debt_ns, paid_ns, memory_order_acq_rel,
                                                    memory_order_acquire));
    atomic_fetch_add_explicit(&gate->floor->charged_ns, sooner(thought_ns, CT_GATE_FAR_NS), memory_order_relaxed);
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
    const uint64_t earned_ns = ct_gate_earned_in(ct_loss_scaled(gate, loss_ns), ct_gate_spared_ppm(gate));
    const uint64_t debt_ns = ct_gate_debt(gate, now_ns);
    if (loss_ns <= worth_ns / CHEAP || loss_ns <= sooner(worth_ns, UINT32_MAX) * gate->delay_ppm / PPM)
        return later(plus(spent(gate, now_ns), earned_ns), plus(now_ns, left(debt_ns, CT_GATE_BURST_NS)));
    return later(plus(later(gate->spent_ns, since_ns), earned_ns), plus(now_ns, debt_ns));
}

void ct_gate_spend(struct ct_gate *gate, uint64_t loss_ns, uint64_t now_ns)
{
    gate->spent_ns = plus(spent(gate, now_ns), ct_gate_earned_in(ct_loss_scaled(gate, loss_ns), ct_gate_spared_ppm(gate)));
}

uint64_t ct_gate_yielded(uint64_t pieces, uint64_t grain_ns)
{
    return pieces > UINT32_MAX || grain_ns > UINT32_MAX ? CT_GATE_NEVER : pieces * grain_ns / 2;
}

uint64_t ct_gate_tenths(const struct ct_gate_page *page)
{
    const uint64_t launches = LOAD(page->counts.launches), pieces = LOAD(page->pieces);
    if (!launches || pieces <= launches)
        return 10;
    if (pieces / launches >= UINT16_MAX)
        return 10 * UINT16_MAX;
    return 10 * (pieces / launches) + pieces % launches / (launches / 10 + 1);
}

/* Kernels that one above launched since our last admission and before an instant. */
static uint64_t pieces_until(const struct ct_gate_peer *peer, uint64_t until_ns)
{
    const uint64_t sequence = peer->observed, all = sequence - peer->seen, known = sooner(all, CT_GATE_RECENT - 2);
    uint64_t launches = 0;
    for (uint64_t i = 0; i < known; i++)
        launches += LOAD(peer->page->recent_ns[(sequence - i) % CT_GATE_RECENT]) < until_ns;
    if (launches == known) /* then those whose instants are overwritten came before it, too */
        launches = sooner(all, UINT32_MAX);
    return launches * ct_gate_tenths(peer->page) / 10;
}

void ct_gate_settle(struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t first_ns = CT_GATE_NEVER, pieces = 0;
    count_duty(gate, now_ns);
    for (uint32_t i = 0; i < gate->above_count; i++) {
        struct ct_gate_peer *peer = &gate->above[i];
        uint64_t back_ns = ct_gate_came_back(gate, peer);
        if (back_ns == CT_GATE_NEVER)
            continue;
        if (gate->grain_ns)
            pieces += pieces_until(peer, gate->charged_until_ns);
        peer->seen = peer->observed;
        first_ns = sooner(first_ns, back_ns);
    }
    if (first_ns < gate->charged_until_ns && !gate->is_back) {
        uint64_t lost_ns = gate->charged_until_ns - first_ns;
        if (gate->grain_ns) {
            lost_ns = sooner(lost_ns, ct_gate_yielded(pieces, gate->grain_ns));
            gate->charged_from_ns = first_ns + lost_ns; /* all kernels together lose no more than all of our work */
        }
        ct_gate_charge(gate, lost_ns, now_ns);
    }
    if (first_ns != CT_GATE_NEVER) {
        /* All that our work takes from here on is lost, too, see ct_gate_prolong(); unless each kernel pays for itself. */
        gate->is_back |= !gate->grain_ns;
        gate->has_switched = 0;
    }
    if (gate->owed_ns)
        ct_gate_charge(gate, gate->owed_ns, now_ns);
    gate->owed_ns = 0;
}
