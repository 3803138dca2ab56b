/* The debt: device time that higher-priority tenants lost to lower-priority ones, and for how long it closes the
 * gate. */
#include "gate/debt.h"

#include "gate/loss.h"
#include "gate/internal.h"

enum { PPM = 1000 * 1000, SMALL_LOSS_DIVISOR = 4, CHARGE_ATTEMPTS = 8 };

static unsigned bucket_of(uint64_t ns)
{
    unsigned power = ns ? 63 - (unsigned)__builtin_clzll(ns) : 0;
    return power < CT_GATE_BUCKETS ? power : CT_GATE_BUCKETS - 1;
}

uint64_t ct_gate_time_to_earn(uint64_t amount_ns, uint64_t ppm)
{
    if (!ppm)
        return CT_GATE_CLOSED_NS; /* nothing can be earned: a loss that occurs anyway closes the gaps for a while */
    if (amount_ns > UINT64_MAX / PPM)
        return CT_GATE_DEBT_MAX_NS;
    return min_u64(amount_ns * PPM / ppm, CT_GATE_DEBT_MAX_NS);
}

/* Returns how much longer a debt lasts. An implausible instant, from another boot or a corrupted page, must not close
 * the gate forever. */
static uint64_t remaining_debt(uint64_t debt_ns, uint64_t now_ns)
{
    return sat_sub_u64(debt_ns, now_ns) <= CT_GATE_DEBT_MAX_NS ? sat_sub_u64(debt_ns, now_ns) : 0;
}

uint64_t ct_gate_spared_ppm(const struct ct_gate *gate)
{
    const uint64_t spared_ppm = gate->delay_ppm * gate->duty_ppm / PPM;
    return gate->delay_ppm && !spared_ppm ? 1 : spared_ppm;
}

/* Measures the activity of higher-priority tenants once per period. The result is averaged with the previous value,
 * because one request that happens to fall into the period is not representative. */
static void update_duty(struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t active_ns = 0;
    if (sat_sub_u64(now_ns, gate->duty_from_ns) < CT_GATE_DUTY_NS)
        return;
    ct_loss_update(gate);
    for (uint32_t i = 0; i < gate->higher_count; i++)
        if (load_acquire(&gate->higher[i].page->generation) == gate->higher[i].generation)
            active_ns = sat_add_u64(active_ns, load_relaxed(&gate->higher[i].page->active_ns));
    if (gate->duty_from_ns) {
        const uint64_t period_active_ns = sat_sub_u64(active_ns, gate->duty_active_ns),
            span_ns = now_ns - gate->duty_from_ns;
        const uint64_t duty_ppm = period_active_ns >= span_ns ? PPM : period_active_ns * 1000 / (span_ns / 1000);
        /* A value at the minimum is replaced at once: it was a default, or the tenant has just become active again. */
        const int is_measured = gate->duty_ppm > CT_GATE_DUTY_MIN_PPM && gate->duty_ppm != CT_GATE_DUTY_START_PPM;
        const uint64_t previous_ppm = is_measured ? gate->duty_ppm : duty_ppm;
        gate->duty_ppm = max_u64((previous_ppm + duty_ppm) / 2, CT_GATE_DUTY_MIN_PPM);
    }
    gate->duty_from_ns = now_ns;
    gate->duty_active_ns = active_ns;
}

/* Returns the largest remaining debt among the processes of at least this priority. */
static uint64_t max_debt_of(const struct ct_gate_peer *peer, uint32_t count, uint32_t priority, uint64_t now_ns)
{
    uint64_t max_ns = 0;
    for (uint32_t i = 0; i < count; i++)
        if (peer[i].priority <= priority && load_acquire(&peer[i].page->generation) == peer[i].generation)
            max_ns = max_u64(max_ns, remaining_debt(load_acquire(&peer[i].page->owes_ns), now_ns));
    return max_ns;
}

static uint64_t debt_of_others(const struct ct_gate *gate, uint64_t now_ns)
{
    return max_u64(max_debt_of(gate->higher, gate->higher_count, gate->priority, now_ns),
                   max_debt_of(gate->peers, gate->peer_count, gate->priority, now_ns));
}

/* The debt is the largest one that a present process of at least our priority has charged: that of a process which has
 * left is forgotten, and one of lower priority cannot close the gate for us. */
uint64_t ct_gate_debt(const struct ct_gate *gate, uint64_t now_ns)
{
    return max_u64(remaining_debt(load_relaxed(&gate->mine->owes_ns), now_ns), debt_of_others(gate, now_ns));
}

void ct_gate_charge(struct ct_gate *gate, uint64_t estimated_ns, uint64_t now_ns)
{
    const uint64_t lost_ns = ct_loss_scaled(gate, estimated_ns);
    const uint64_t added_ns = ct_gate_time_to_earn(lost_ns, ct_gate_spared_ppm(gate));
    const uint64_t mine_ns = remaining_debt(load_relaxed(&gate->mine->owes_ns), now_ns);
    uint64_t debt_ns = load_acquire(&gate->arbitration->debt_ns), paid_ns;
    int attempts = CHARGE_ATTEMPTS; /* a process could keep changing the word */
    do {
        paid_ns = sat_add_u64(now_ns, min_u64(max_u64(mine_ns, debt_of_others(gate, now_ns)) + added_ns,
                                              CT_GATE_DEBT_MAX_NS));
        /* Stored before the arbitration page, so that a process that finds that word changed sees it. */
        store_release(&gate->mine->owes_ns, paid_ns);
    } while (!atomic_compare_exchange_weak_explicit(&gate->arbitration->debt_ns, &debt_ns, paid_ns,
                                                    memory_order_acq_rel,
                                                    memory_order_acquire) &&
             --attempts);
    fetch_add_relaxed(&gate->arbitration->charged_ns, min_u64(estimated_ns, CT_GATE_HORIZON_NS));
    add_single_writer(&gate->mine->counts.overruns, 1);
    add_single_writer(&gate->mine->counts.overrun_ns, lost_ns);
    add_single_writer(&gate->mine->counts.overrun[bucket_of(lost_ns)], 1);
}

uint64_t ct_gate_returned_at(const struct ct_gate *gate, struct ct_gate_peer *peer)
{
    uint64_t sequence = load_acquire(&peer->page->sequence), first = peer->admission_sequence + 1;
    if (sequence == peer->admission_sequence || load_acquire(&peer->page->generation) != peer->generation)
        return CT_GATE_NEVER;
    if (sequence - peer->admission_sequence >= CT_GATE_RECENT)
        first = sequence - CT_GATE_RECENT + 2; /* the oldest entry may be overwritten during the read */
    peer->latest_sequence = sequence;
    /* It had not launched when we were admitted, whatever its page says. */
    return max_u64(load_relaxed(&peer->page->recent_ns[first % CT_GATE_RECENT]), gate->charged_from_ns);
}

/* Returns the budget spent, as an instant. Unused budget is kept for CT_GATE_SPARE_NS at most. */
static uint64_t budget_spent(const struct ct_gate *gate, uint64_t now_ns)
{
    return max_u64(gate->spent_ns, sat_sub_u64(now_ns, CT_GATE_SPARE_NS));
}

uint64_t ct_gate_idle_first_until(const struct ct_gate *gate)
{
    return gate->idle_debt_ns ? sat_add_u64(gate->idle_debt_ns, CT_GATE_IDLE_FIRST_NS) : 0;
}

uint64_t ct_gate_spendable_at(const struct ct_gate *gate, uint64_t loss_ns, uint64_t work_ns, uint64_t since_ns,
                              uint64_t now_ns)
{
    if (gate->policy != CT_GATE_FILL || !gate->delay_ppm)
        return CT_GATE_NEVER;
    const uint64_t earned_ns = ct_gate_time_to_earn(ct_loss_scaled(gate, loss_ns), ct_gate_spared_ppm(gate));
    const uint64_t debt_ns = ct_gate_debt(gate, now_ns), first_ns = ct_gate_idle_first_until(gate);
    if (loss_ns <= work_ns / SMALL_LOSS_DIVISOR || loss_ns <= min_u64(work_ns, UINT32_MAX) * gate->delay_ppm / PPM)
        return max_u64(first_ns, max_u64(sat_add_u64(budget_spent(gate, now_ns), earned_ns),
                                         sat_add_u64(now_ns, sat_sub_u64(debt_ns, CT_GATE_BURST_NS))));
    return max_u64(first_ns, max_u64(sat_add_u64(max_u64(gate->spent_ns, since_ns), earned_ns),
                                     sat_add_u64(now_ns, debt_ns)));
}

void ct_gate_spend(struct ct_gate *gate, uint64_t loss_ns, uint64_t now_ns)
{
    gate->spent_ns = sat_add_u64(budget_spent(gate, now_ns), ct_gate_time_to_earn(ct_loss_scaled(gate, loss_ns),
                                                                                  ct_gate_spared_ppm(gate)));
}

uint64_t ct_gate_preemption_loss(uint64_t kernel_count, uint64_t granularity_ns)
{
    return kernel_count > UINT32_MAX || granularity_ns > UINT32_MAX ? CT_GATE_NEVER : kernel_count * granularity_ns / 2;
}

uint64_t ct_gate_kernels_per_launch(const struct ct_gate_page *page)
{
    const uint64_t launches = load_relaxed(&page->counts.launches), kernel_count = load_relaxed(&page->kernel_count);
    if (!launches || kernel_count <= launches)
        return 10;
    if (kernel_count / launches >= UINT16_MAX)
        return 10 * UINT16_MAX;
    return 10 * (kernel_count / launches) + kernel_count % launches / (launches / 10 + 1);
}

/* Returns the number of kernels that a higher-priority tenant launched after our last admission and before an
 * instant. */
static uint64_t kernels_launched_before(const struct ct_gate_peer *peer, uint64_t until_ns)
{
    const uint64_t sequence = peer->latest_sequence, launched = sequence - peer->admission_sequence,
        recorded = min_u64(launched, CT_GATE_RECENT - 2);
    uint64_t launches = 0;
    for (uint64_t i = 0; i < recorded; i++)
        launches += load_relaxed(&peer->page->recent_ns[(sequence - i) % CT_GATE_RECENT]) < until_ns;
    if (launches == recorded) /* launches whose instants are overwritten came earlier still */
        launches = min_u64(launched, UINT32_MAX);
    return launches * ct_gate_kernels_per_launch(peer->page) / 10;
}

void ct_gate_settle(struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t first_ns = CT_GATE_NEVER, kernel_count = 0;
    update_duty(gate, now_ns);
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        struct ct_gate_peer *peer = &gate->higher[i];
        uint64_t returned_ns = ct_gate_returned_at(gate, peer);
        if (returned_ns == CT_GATE_NEVER)
            continue;
        if (gate->granularity_ns)
            kernel_count += kernels_launched_before(peer, gate->charged_until_ns);
        peer->admission_sequence = peer->latest_sequence;
        first_ns = min_u64(first_ns, returned_ns);
    }
    if (first_ns < gate->charged_until_ns && !gate->holder_returned) {
        uint64_t lost_ns = gate->charged_until_ns - first_ns;
        if (gate->granularity_ns) {
            lost_ns = min_u64(lost_ns, ct_gate_preemption_loss(kernel_count, gate->granularity_ns));
            gate->charged_from_ns = first_ns + lost_ns; /* all its kernels together lose no more than the duration of
                                                         * our work */
        }
        ct_gate_charge(gate, lost_ns, now_ns);
    }
    if (first_ns != CT_GATE_NEVER) {
        /* From now on every extension of our work is a loss as well, see ct_gate_prolong(), unless each kernel is
         * charged separately. */
        gate->holder_returned |= !gate->granularity_ns;
        gate->has_switched = 0;
    }
    if (gate->owed_ns)
        ct_gate_charge(gate, gate->owed_ns, now_ns);
    gate->owed_ns = 0;
}
